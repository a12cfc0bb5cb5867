"""From the columns that a model gave to what belongs to each entry: shapes and raw bytes.

The data is copied, so that no entry's part keeps a whole column alive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import WrongOutput
from headrace.schemas.sequence import SequenceState
from headrace.schemas.signature import TensorSpec
from headrace.schemas.tensor import Array, Datatype, Shape, raw_bytes

StateOut: TypeAlias = tuple[tuple[bytes, ...], tuple[Shape, ...]]
"""What a step makes of its sequence's states: raw bytes and shapes, in the order of the configuration."""

NO_STATE: StateOut = ((), ())
"""Of a model that declares no state."""


def split_output(batch: Batch, spec: TensorSpec, array: Array) -> list[tuple[Shape, bytes]]:
    """Split one output column into each entry's wire shape and raw bytes.

    Args:
        batch: The batch that was executed.
        spec: The output.
        array: [rows, *shape] as the model made it; flat [elements] for a ``batch_output``; without the
            batch axis where the model does not batch.

    Returns:
        One (shape, data) per entry, padding included; the data is copied, so no slice pins the column.

    Raises:
        WrongOutput: Datatype, rank or number of rows do not fit (FAULTS B36).
    """
    _check_datatype(batch, spec, array)
    if not spec.batched:
        _check_shape(batch, spec, array.shape)
        whole = (spec.wire_shape(array.shape), raw_bytes(array, spec.datatype))
        return [whole] * len(batch.entries)
    for scatter in batch.signature.batch_outputs:
        if spec.name in scatter.target_names:
            return _scatter(batch, spec, array, scatter.source_input)
    check_rows(batch, spec, array)
    item = spec.wire_shape(array.shape[1:])
    if spec.datatype is Datatype.BYTES:
        return _split_strings(batch, array, item)
    return _split_fixed(batch, array, spec.datatype, item)


def check_rows(batch: Batch, spec: TensorSpec, array: Array) -> None:
    """Check that an output has an item of its shape for each row of a batch.

    Args:
        batch: The batch, or those of its entries that the output covers.
        spec: The output, which has a batch axis and is no ``batch_output``.
        array: [rows, *shape] as the model made it.

    Raises:
        WrongOutput: Datatype, rank or number of rows do not fit (FAULTS B36).
    """
    _check_datatype(batch, spec, array)
    if array.ndim == 0 or array.shape[0] != batch.rows:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned shape {list(array.shape)} for output "
            f"'{spec.name}', expected {batch.rows} rows for the batch"
        )
    _check_shape(batch, spec, array.shape[1:])


def _split_strings(batch: Batch, array: Array, item: Shape) -> list[tuple[Shape, bytes]]:
    found: list[tuple[Shape, bytes]] = []
    row = 0
    for entry in batch.entries:
        rows = 1 if entry is None else entry.rows
        found.append(((rows, *item), raw_bytes(array[row : row + rows], Datatype.BYTES)))
        row += rows
    return found


def _split_fixed(
    batch: Batch, array: Array, datatype: Datatype, item: Shape
) -> list[tuple[Shape, bytes]]:
    """Split a column whose rows are equally long; entries of one row share their shape's tuple."""
    single = (1, *item)
    if batch.rows == len(batch.entries):
        return list(zip(repeat(single), _copies(array, datatype, batch.rows)))
    raw = raw_bytes(array, datatype)
    step = len(raw) // batch.rows
    found: list[tuple[Shape, bytes]] = []
    row = 0
    for entry in batch.entries:
        rows = 1 if entry is None else entry.rows
        shape = single if rows == 1 else (rows, *item)
        found.append((shape, raw[row * step : (row + rows) * step]))
        row += rows
    return found


def _scatter(
    batch: Batch, spec: TensorSpec, array: Array, source: str
) -> list[tuple[Shape, bytes]]:
    shapes = _scattered_shapes(batch, spec, source)
    check_scattered(batch, spec, source, array)
    flat = array.reshape(-1)
    found: list[tuple[Shape, bytes]] = []
    at = 0
    for shape in shapes:
        count = math.prod(shape)
        found.append((shape, raw_bytes(flat[at : at + count], spec.datatype)))
        at += count
    return found


def check_scattered(batch: Batch, spec: TensorSpec, source: str, array: Array) -> None:
    """Check that a ragged output has as many elements as it takes to split it over the batch.

    Args:
        batch: The batch, or those of its entries that the output covers.
        spec: The output.
        source: The input whose shapes it takes.
        array: The output, of any shape.

    Raises:
        WrongOutput: It has more or fewer (FAULTS B36).
    """
    expected = sum([math.prod(shape) for shape in _scattered_shapes(batch, spec, source)])
    if array.size != expected:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned {array.size} elements for ragged output "
            f"'{spec.name}', expected {expected}, as input '{source}' was joined"
        )


def _scattered_shapes(batch: Batch, spec: TensorSpec, source: str) -> list[Shape]:
    """Return each entry's wire shape: each -1 of the dims takes the source input's size at that place (§1.4)."""
    source_spec = batch.signature.input(source)
    assert source_spec is not None  # checked at load
    found: list[Shape] = []
    for entry in batch.entries:
        given = batch.first if entry is None else entry
        sizes = given.shapes[source_spec.index]
        item = tuple(
            [_scattered_size(sizes, i) if dim < 0 else dim for i, dim in enumerate(spec.dims)]
        )
        found.append((1 if entry is None else entry.rows, *item))
    return found


def _scattered_size(sizes: Shape | None, place: int) -> int:
    if sizes is None:
        return 0  # an absent source has no elements
    return sizes[place] if place < len(sizes) else 1


def split_states(batch: Batch, responses: Responses) -> list[StateOut]:
    """Split the state columns of a response into what each covered row's sequence has then (SEMANTICS SB-07).

    Args:
        batch: Of a sequence model, as it was executed; each entry has one row (SQ-02).
        responses: Of all of its entries, or of some: then the columns have their rows only.

    Returns:
        One per covered row, padding included; the data is copied. A state that the model did not give stays as it
        was before the step (SB-10).

    Raises:
        WrongOutput: A state is not declared (SB-09), or its datatype, rows or shape do not fit.
    """
    covered = range(len(batch)) if responses.members is None else responses.members
    found, states = responses.states, batch.signature.states
    check_declared(batch, found)
    if not covered:
        return []
    if len(found) < len(states):
        return _with_former(batch, found, [batch.states[row] for row in covered])
    if not states:
        return [NO_STATE] * len(covered)
    columns = [_split_state(batch, s.output, found[s.output.name], len(covered)) for s in states]
    shapes = tuple([shape for shape, _ in columns])
    return list(zip(zip(*[data for _, data in columns], strict=True), repeat(shapes)))


def check_declared(batch: Batch, found: Mapping[str, Array]) -> None:
    """Check that the model gave no state that its configuration does not declare.

    Raises:
        WrongOutput: It did; in Triton's words (SB-09).
    """
    declared = [state.output.name for state in batch.signature.states]
    for name in found:
        if name in declared:
            continue
        model = batch.signature.model_name
        raise WrongOutput(
            f"state '{name}' is not a valid state name for model '{model}', expected one of {declared}"
            if declared
            else f"unable to add state '{name}': state configuration is missing for model '{model}'"
        )


def _with_former(
    batch: Batch, found: Mapping[str, Array], former: Sequence[SequenceState]
) -> list[StateOut]:
    """Split as `split_states` does where some states are missing; ``former`` is that of the covered rows."""
    tensors: list[Sequence[bytes]] = []
    shapes: list[Sequence[Shape]] = []
    for index, state in enumerate(batch.signature.states):
        array = found.get(state.output.name)
        if array is None:
            tensors.append([before.tensors[index] for before in former])
            shapes.append([before.shapes[index] for before in former])
        else:
            shape, data = _split_state(batch, state.output, array, len(former))
            tensors.append(data)
            shapes.append([shape] * len(former))
    return list(zip(zip(*tensors, strict=True), zip(*shapes, strict=True), strict=True))


def _split_state(
    batch: Batch, spec: TensorSpec, array: Array, rows: int
) -> tuple[Shape, Sequence[bytes]]:
    """Return the shape that all rows of a state column have, and each row's bytes."""
    _check_datatype(batch, spec, array, "state")
    if not spec.batched:
        _check_shape(batch, spec, array.shape, "state")
        return array.shape, [raw_bytes(array, spec.datatype)]
    if array.ndim == 0 or array.shape[0] != rows:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned shape {list(array.shape)} for state "
            f"'{spec.name}', expected {rows} rows"
        )
    _check_shape(batch, spec, array.shape[1:], "state")
    # The configuration's own tuple is shared by all sequences where it says everything.
    shape = spec.dims if spec.fixed else array.shape[1:]
    if spec.datatype is Datatype.BYTES:
        return shape, [raw_bytes(array[row : row + 1], Datatype.BYTES) for row in range(rows)]
    return shape, _copies(array, spec.datatype, rows)


def _copies(array: Array, datatype: Datatype, rows: int) -> list[bytes]:
    """Copy each row's raw bytes, all of one length."""
    if datatype is Datatype.BF16:
        array = np.frombuffer(raw_bytes(array, datatype), np.uint16)
    size = array.nbytes // rows
    if not size:
        return [b""] * rows
    # An item of that size is one bytes object for numpy: no copy of the whole column comes before.
    items = np.ascontiguousarray(array).reshape(rows, -1).view(f"V{size}")
    found: list[bytes] = items.ravel().tolist()
    return found


def _check_datatype(batch: Batch, spec: TensorSpec, array: Array, word: str = "output") -> None:
    expected = spec.datatype.numpy
    fits = (
        array.dtype.kind in "OSU" if spec.datatype is Datatype.BYTES else array.dtype == expected
    )
    if not fits:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned {array.dtype} for {word} '{spec.name}', "
            f"expected {spec.datatype}"
        )


def _check_shape(batch: Batch, spec: TensorSpec, shape: Shape, word: str = "output") -> None:
    pattern = spec.dims if spec.reshape is None else spec.reshape
    if len(pattern) != len(shape) or any(
        dim >= 0 and dim != size for dim, size in zip(pattern, shape, strict=True)
    ):
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned item shape {list(shape)} for {word} "
            f"'{spec.name}', expected {list(pattern)}"
        )
