"""What the states of a sequence model are at START: zeros, or files under ``initial_state/`` (SEMANTICS SB-08)."""

from __future__ import annotations

import math
from pathlib import Path

from headrace.repository.files import inside
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.model_config import ModelConfig, StateConfig
from headrace.schemas.tensor import Datatype, Shape, count_bytes_elements

FOLDER = "initial_state"


def read_initial_state(
    config: ModelConfig, directory: Path, *, file: str
) -> tuple[tuple[bytes, ...], tuple[Shape, ...]]:
    """Return the states of a sequence that has just started.

    Args:
        config: Complete.
        directory: Model directory; data files are in its folder ``initial_state``.
        file: Configuration file for the error's sentence.

    Returns:
        Raw little-endian bytes of one item per declared state, in order, and their shapes without the batch axis;
        each -1 of the dims is 1. Both are empty for a model without states.

    Raises:
        ConfigError: A data file is not there, leads out of its folder or has another size, or a state does not fit
            in memory.
    """
    shapes = tuple([_shape(state) for state in config.states])
    tensors = tuple(
        [
            _tensor(state, shape, directory, file)
            for state, shape in zip(config.states, shapes, strict=True)
        ]
    )
    return tensors, shapes


def _shape(state: StateConfig) -> Shape:
    if state.initial is not None:
        return state.initial.dims
    return tuple([1 if dim < 0 else dim for dim in state.dims])


def _tensor(state: StateConfig, shape: Shape, directory: Path, file: str) -> bytes:
    at = f"sequence_batching.state[{state.input_name}]"
    if state.initial is not None and state.initial.data_file:
        field = f"{at}.initial_state.data_file"
        return _read(state, state.initial.data_file, directory, file=file, field=field)
    try:
        # A BYTES element that is empty is four zero bytes.
        return bytes(math.prod(shape) * (state.datatype.size or 4))
    except (MemoryError, OverflowError) as exc:
        raise ConfigError(
            "expected a shape that fits in memory",
            file=file,
            field=f"{at}.dims",
            value=list(shape),
        ) from exc


def _read(state: StateConfig, name: str, directory: Path, *, file: str, field: str) -> bytes:
    path = inside(directory / FOLDER, name, file=file, field=field)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"cannot be read: {exc.strerror}", file=file, field=field, value=name
        ) from exc
    shape = _shape(state)
    count = math.prod(shape)
    what = f"{state.datatype} {list(shape)}"
    if state.datatype is Datatype.BYTES:
        try:
            found = count_bytes_elements(state.input_name, data)
        except InvalidRequest as exc:
            raise ConfigError(
                f"expected {what}, each element behind its length: {exc.detail}",
                file=file,
                field=field,
                value=name,
            ) from exc
        fits, expected = found == count, f"expected {count} elements for {what}, not {found}"
    else:
        size = count * state.datatype.size
        fits, expected = len(data) == size, f"expected {size} bytes for {what}, not {len(data)}"
    if not fits:
        raise ConfigError(expected, file=file, field=field, value=name)
    return data
