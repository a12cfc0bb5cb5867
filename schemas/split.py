"""From the columns that a model gave to what belongs to each entry: shapes and raw bytes.

The data is copied, so that no entry's part keeps a whole column alive.
"""

from __future__ import annotations

import math

from headrace.schemas.batch import Batch
from headrace.schemas.errors import WrongOutput
from headrace.schemas.signature import TensorSpec
from headrace.schemas.tensor import Array, Datatype, Shape, raw_bytes


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
    if array.ndim == 0 or array.shape[0] != batch.rows:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned shape {list(array.shape)} for output "
            f"'{spec.name}', expected {batch.rows} rows for the batch"
        )
    _check_shape(batch, spec, array.shape[1:])
    item = spec.wire_shape(array.shape[1:])
    if spec.datatype is Datatype.BYTES:
        return _split_strings(batch, array, item)
    return _split_fixed(batch, raw_bytes(array, spec.datatype), item)


def _split_strings(batch: Batch, array: Array, item: Shape) -> list[tuple[Shape, bytes]]:
    found: list[tuple[Shape, bytes]] = []
    row = 0
    for entry in batch.entries:
        rows = 1 if entry is None else entry.rows
        found.append(((rows, *item), raw_bytes(array[row : row + rows], Datatype.BYTES)))
        row += rows
    return found


def _split_fixed(batch: Batch, raw: bytes, item: Shape) -> list[tuple[Shape, bytes]]:
    """Split a column whose rows are equally long; entries of one row share their shape's tuple."""
    step = len(raw) // batch.rows
    single = (1, *item)
    if batch.rows == len(batch.entries):
        return (
            [(single, raw[at : at + step]) for at in range(0, len(raw), step)]
            if step
            else [(single, b"")] * batch.rows
        )
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


def _check_datatype(batch: Batch, spec: TensorSpec, array: Array) -> None:
    expected = spec.datatype.numpy
    fits = (
        array.dtype.kind in "OSU" if spec.datatype is Datatype.BYTES else array.dtype == expected
    )
    if not fits:
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned {array.dtype} for output '{spec.name}', "
            f"expected {spec.datatype}"
        )


def _check_shape(batch: Batch, spec: TensorSpec, shape: Shape) -> None:
    pattern = spec.dims if spec.reshape is None else spec.reshape
    if len(pattern) != len(shape) or any(
        dim >= 0 and dim != size for dim, size in zip(pattern, shape, strict=True)
    ):
        raise WrongOutput(
            f"model '{batch.signature.model_name}' returned item shape {list(shape)} for output "
            f"'{spec.name}', expected {list(pattern)}"
        )
