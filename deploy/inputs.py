"""Input tensors from the command line: values, files, or made to fit; pure but for reading the named files.

What a model takes comes from its metadata, so ``x=1,2,3`` is enough: the shape is filled in where the metadata
leaves one size open, and a batch axis of 1 is put in front where it is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Array, Datatype, Shape, Tensor

EXAMPLE_SEED = 20240229
"""Any number: examples are the same on every run."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input as a model's metadata shows it; ``shape`` includes the batch axis, -1 is any size."""

    name: str
    datatype: Datatype
    shape: Shape


def specs_of(signature: Signature) -> list[InputSpec]:
    """Return what a model takes."""
    return [
        InputSpec(spec.name, spec.datatype, tuple(spec.wire_dims())) for spec in signature.inputs
    ]


def tensors_from_arguments(
    specs: Sequence[InputSpec], arguments: Sequence[str]
) -> tuple[Tensor, ...]:
    """Make tensors of ``NAME=VALUES``, ``NAME=@file.npy`` and, for BYTES, ``NAME=@any.file``.

    Args:
        specs: Inputs of the model.
        arguments: As typed. Values are separated by commas, or a JSON list whose nesting gives the shape.

    Returns:
        One tensor per argument, in their order. A model with one input needs no ``NAME=``.

    Raises:
        InvalidRequest: An unknown name, a value of the wrong kind, or a count that fits no shape.
    """
    return tuple(_tensor(specs, argument) for argument in arguments)


def example_tensors(specs: Sequence[InputSpec]) -> tuple[Tensor, ...]:
    """Make one small valid input per spec: open sizes are 1; the values are the same on every run.

    Floating-point elements are between 0 and 1; integers are 0, which is a valid index and token everywhere.
    """
    random = np.random.default_rng(EXAMPLE_SEED)
    tensors = []
    for spec in specs:
        shape = tuple(1 if size < 0 else size for size in spec.shape)
        array: Array
        if spec.datatype is Datatype.BYTES:
            array = np.full(shape, b"example", dtype=object)
        elif spec.datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.BF16):
            array = random.random(shape, dtype=np.float32)
        else:
            array = np.zeros(shape, dtype=spec.datatype.numpy)
        tensors.append(_from_array(spec, array))
    return tuple(tensors)


def _tensor(specs: Sequence[InputSpec], argument: str) -> Tensor:
    names = [spec.name for spec in specs]
    name, equals, text = argument.partition("=")
    if not equals or (name not in names and len(specs) == 1 and name.startswith(("@", "["))):
        if len(specs) != 1:
            raise InvalidRequest(
                f"input {argument!r} names no tensor, expected NAME=VALUES for {', '.join(names)}"
            )
        name, text = names[0], argument
    spec = next((spec for spec in specs if spec.name == name), None)
    if spec is None:
        raise InvalidRequest(
            f"the model has no input {name!r}, expected one of {', '.join(names)}"
        )
    if text.startswith("@"):
        return _from_file(spec, Path(text[1:]))
    return _from_text(spec, text)


def _from_file(spec: InputSpec, path: Path) -> Tensor:
    try:
        if path.suffix == ".npy":
            return _from_array(spec, np.load(path, allow_pickle=False))
        if spec.datatype is not Datatype.BYTES:
            raise InvalidRequest(
                f"input '{spec.name}' is {spec.datatype}: expected a .npy file, got {path}"
            )
        return _from_array(spec, np.array([path.read_bytes()], dtype=object))
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path} cannot be read for input '{spec.name}': {exc}") from exc


def _from_text(spec: InputSpec, text: str) -> Tensor:
    if text.startswith("["):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as exc:
            raise InvalidRequest(f"input '{spec.name}' is no JSON list: {exc}") from exc
    else:
        values = text.split(",") if text else []
    try:
        if spec.datatype is Datatype.BYTES:
            array = np.array(values, dtype=object)
        elif spec.datatype is Datatype.BOOL:
            array = np.vectorize(_truth, otypes=[np.bool_])(np.array(values, dtype=object))
        elif spec.datatype is Datatype.BF16:
            array = np.array(values, dtype=np.float32)
        else:
            array = np.array(values).astype(spec.datatype.numpy, casting="unsafe")
            _check_exact(spec, values, array)
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidRequest(
            f"input '{spec.name}' takes {spec.datatype} elements, and {text[:60]!r} holds others: {exc}"
        ) from exc
    return _from_array(spec, array)


def _truth(value: object) -> bool:
    word = str(value).lower()
    if word not in ("true", "false", "1", "0"):
        raise ValueError(f"{value!r} is neither true nor false")
    return word in ("true", "1")


def _check_exact(spec: InputSpec, values: object, array: Array) -> None:
    """Refuse integers that did not fit, such as 1.5 or 300 for UINT8."""
    if array.dtype.kind in "iu" and array.size:
        wanted = np.array(values, dtype=object).ravel().tolist()
        for given, kept in zip(wanted, array.ravel().tolist(), strict=True):
            if float(given) != float(kept):
                raise ValueError(f"{given} is no {spec.datatype}")


def _from_array(spec: InputSpec, array: Array) -> Tensor:
    """Give an array the shape that the model wants, and its datatype.

    Raises:
        InvalidRequest: The count or the shape cannot be made to fit, or the kind of element is another.
    """
    shape = fit_shape(spec, array.shape)
    if spec.datatype is not Datatype.BYTES and not _castable(spec.datatype, array):
        raise InvalidRequest(
            f"input '{spec.name}' takes {spec.datatype} elements, got {array.dtype}"
        )
    return Tensor.from_numpy(spec.name, array.reshape(shape), spec.datatype)


def _castable(datatype: Datatype, array: Array) -> bool:
    """Whether an array's elements are of the datatype's kind; BF16 also comes as bits in uint16."""
    if datatype is Datatype.BF16:
        return array.dtype.kind == "f" or array.dtype == np.uint16
    return np.can_cast(array.dtype, datatype.numpy, casting="same_kind")


def fit_shape(spec: InputSpec, got: Shape) -> Shape:
    """Return the shape that data of shape ``got`` takes for an input.

    A shape that fits is kept; one that lacks only the leading open axis gets a 1 there; a flat list fills the
    fixed sizes and one open size (of two or more, the leading one is 1).

    Raises:
        InvalidRequest: None of these fit.
    """
    wanted = spec.shape
    if _fits(wanted, got):
        return got
    if wanted and wanted[0] < 0 and _fits(wanted[1:], got):
        return (1, *got)
    if len(got) == 1:
        flat = _fill(wanted, got[0])
        if flat is not None:
            return flat
    raise InvalidRequest(
        f"input '{spec.name}' expects shape {list(wanted)} (-1 is any size), got {list(got)}"
    )


def _fits(wanted: Shape, got: Shape) -> bool:
    return len(wanted) == len(got) and all(
        want < 0 or want == size for want, size in zip(wanted, got, strict=True)
    )


def _fill(wanted: Shape, count: int) -> Shape | None:
    """Return ``wanted`` with its open sizes filled so that it has ``count`` elements, if that is clear."""
    shape = list(wanted)
    open_axes = [axis for axis, size in enumerate(shape) if size < 0]
    if len(open_axes) > 1 and open_axes[0] == 0:
        shape[0] = 1
        open_axes = open_axes[1:]
    known = math.prod(size for size in shape if size >= 0)
    if not open_axes:
        return tuple(shape) if known == count else None
    if len(open_axes) > 1 or known == 0 or count % known:
        return None
    shape[open_axes[0]] = count // known
    return tuple(shape)
