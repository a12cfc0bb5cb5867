"""Tensors of the V2 protocol: datatypes, shapes and raw bytes.

A tensor's data is always its *raw* form (little-endian, row-major; BYTES elements with a 4-byte length in
front, SEMANTICS BN-06), so that a record's bytes travel from the wire to the model without a copy. Element
counts are checked against the bytes here, once, and nowhere allocated from a claimed shape.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from headrace.schemas.errors import InvalidRequest
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]
Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = NDArray[np.generic]

MAX_RANK = 64
"""Dimensions of one tensor at most; numpy's own limit."""

MAX_ELEMENTS = 2**48
"""Elements that a shape may claim, empty dimensions counted as one: numpy must take the shape of a whole batch."""


class Datatype(StrEnum):
    """The datatypes of the V2 protocol (SEMANTICS MR-20, PB-44)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    @property
    def size(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements vary."""
        return _SIZES[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds one element; BF16 as its bit pattern in uint16, BYTES as object."""
        return _NUMPY[self]


_SIZES = {
    Datatype.BOOL: 1,
    Datatype.UINT8: 1,
    Datatype.UINT16: 2,
    Datatype.UINT32: 4,
    Datatype.UINT64: 8,
    Datatype.INT8: 1,
    Datatype.INT16: 2,
    Datatype.INT32: 4,
    Datatype.INT64: 8,
    Datatype.FP16: 2,
    Datatype.FP32: 4,
    Datatype.FP64: 8,
    Datatype.BF16: 2,
    Datatype.BYTES: 0,
}
_NUMPY: dict[Datatype, np.dtype[np.generic]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.UINT8: np.dtype("<u1"),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.INT8: np.dtype("<i1"),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
    Datatype.BF16: np.dtype("<u2"),
    Datatype.BYTES: np.dtype(object),
}


def datatype_of(name: str) -> Datatype:
    """Return the datatype called ``name`` on the wire.

    Raises:
        InvalidRequest: No such datatype; the sentence lists those that exist.
    """
    found = _BY_NAME.get(name)
    if found is None:
        known = ", ".join(Datatype)
        raise InvalidRequest(f"datatype {name[:40]!r} is unknown, expected one of {known}")
    return found


_BY_NAME = {datatype.value: datatype for datatype in Datatype}


def element_count(shape: Sequence[int]) -> int:
    """Return how many elements a tensor of this shape has; 1 for the empty shape.

    Raises:
        InvalidRequest: A dimension is negative, the rank is above 64, or the product is absurd.
    """
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"shape has {len(shape)} dimensions, expected at most {MAX_RANK}")
    room = 1
    for size in shape:
        if size < 0:
            raise InvalidRequest(f"shape {list(shape)} has a negative dimension")
        room *= size or 1
        # Checked on the way: the text must not hold a product of 64 huge numbers, nor the numbers themselves.
        if room > MAX_ELEMENTS:
            raise InvalidRequest(
                f"shape of {len(shape)} dimensions claims more than {MAX_ELEMENTS} elements"
            )
    return math.prod(shape)


class Tensor:
    """One named tensor: datatype, shape and raw bytes. Treat as immutable.

    Attributes:
        name: As the model's configuration spells it.
        datatype: Of each element.
        shape: Whole shape, batch axis included.
        data: Raw form; a view is allowed and keeps its base alive.
    """

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: Datatype, shape: Shape, data: Buffer) -> None:
        """Keep the parts as they are; `check` validates them."""
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def __eq__(self, other: object) -> bool:
        """Equal when name, datatype, shape and bytes are."""
        if not isinstance(other, Tensor):
            return NotImplemented
        return (
            self.name == other.name
            and self.datatype == other.datatype
            and self.shape == other.shape
            and bytes(self.data) == bytes(other.data)
        )

    __hash__ = None  # type: ignore[assignment]  # holds a buffer

    def __repr__(self) -> str:
        """Show everything but the data."""
        return (
            f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)}, {len(self.data)} bytes)"
        )

    def check(self) -> None:
        """Check that the bytes hold exactly the elements that the shape claims.

        Raises:
            InvalidRequest: Too few or too many bytes, or a broken BYTES length prefix.
        """
        check_data(self.name, self.datatype, self.shape, self.data)

    def numpy(self) -> Array:
        """Return the data as an array of `shape`; a read-only view except for BYTES, which is decoded.

        Raises:
            InvalidRequest: The bytes do not fit the shape.
        """
        return to_numpy(self.name, self.datatype, self.shape, self.data)

    @classmethod
    def from_numpy(cls, name: str, array: Array, datatype: Datatype | None = None) -> Tensor:
        """Copy an array into a tensor; BF16 only when asked for, from float32 (truncated) or uint16 bits.

        Raises:
            InvalidRequest: The dtype has no V2 datatype.
        """
        chosen = datatype or datatype_of_numpy(array.dtype)
        return cls(name, chosen, tuple(array.shape), raw_bytes(array, chosen))


def check_data(name: str, datatype: Datatype, shape: Shape, data: Buffer) -> None:
    """Check that ``data`` holds exactly the elements of ``shape``.

    Raises:
        InvalidRequest: Too few or too many bytes, or a broken BYTES length prefix (SEMANTICS PB-34).
    """
    expected = element_count(shape)
    if datatype is Datatype.BYTES:
        got = count_bytes_elements(name, data)
        if got != expected:
            raise InvalidRequest(
                f"unexpected number of string elements {got} for inference input '{name}', "
                f"expecting {expected}"
            )
        return
    size = expected * _SIZES[datatype]
    if len(data) != size:
        raise InvalidRequest(
            f"input byte size mismatch for input '{name}'. "
            f"Expected {size}, got {len(data)} for shape {list(shape)} of {datatype}"
        )


def count_bytes_elements(name: str, data: Buffer) -> int:
    """Walk the length prefixes of raw BYTES data and return the number of elements.

    Raises:
        InvalidRequest: A prefix is cut short or reaches beyond the buffer (FAULTS B55).
    """
    position, end, count = 0, len(data), 0
    unpack = struct.Struct("<I").unpack_from
    while position < end:
        if end - position < 4:
            raise InvalidRequest(
                f"incomplete string length indicator for inference input '{name}', "
                f"expecting 4 bytes but only {end - position} bytes available"
            )
        length = unpack(data, position)[0]
        position += 4 + length
        if position > end:
            raise InvalidRequest(
                f"incomplete string data for inference input '{name}', expecting string of "
                f"length {length} but only {length - (position - end)} bytes available"
            )
        count += 1
    return count


def split_bytes(name: str, data: Buffer) -> list[bytes]:
    """Return the elements of raw BYTES data, copied.

    Raises:
        InvalidRequest: As `count_bytes_elements`.
    """
    count_bytes_elements(name, data)
    items: list[bytes] = []
    position, end = 0, len(data)
    unpack = struct.Struct("<I").unpack_from
    while position < end:
        length = unpack(data, position)[0]
        items.append(bytes(data[position + 4 : position + 4 + length]))
        position += 4 + length
    return items


def join_bytes(items: Iterable[bytes]) -> bytes:
    """Return raw BYTES data of the elements, each with its 4-byte little-endian length in front."""
    pack = struct.Struct("<I").pack
    parts: list[bytes] = []
    for item in items:
        parts.append(pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def to_numpy(name: str, datatype: Datatype, shape: Shape, data: Buffer) -> Array:
    """Return raw data as an array; see `Tensor.numpy`."""
    if datatype is Datatype.BYTES:
        items = split_bytes(name, data)
        if len(items) != element_count(shape):
            check_data(name, datatype, shape, data)
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array.reshape(shape)
    check_data(name, datatype, shape, data)
    return np.frombuffer(data, dtype=_NUMPY[datatype]).reshape(shape)


def datatype_of_numpy(dtype: np.dtype[np.generic]) -> Datatype:
    """Return the V2 datatype of a numpy dtype; strings and objects are BYTES.

    Raises:
        InvalidRequest: It has none.
    """
    if dtype.kind in "OSU":
        return Datatype.BYTES
    found = _BY_NUMPY.get((dtype.kind, dtype.itemsize))
    if found is None:
        raise InvalidRequest(f"numpy dtype {dtype} has no V2 datatype")
    return found


_BY_NUMPY = {
    (dtype.kind, dtype.itemsize): datatype
    for datatype, dtype in _NUMPY.items()
    if datatype not in (Datatype.BF16, Datatype.BYTES)
}


def raw_bytes(array: Array, datatype: Datatype) -> bytes:
    """Return an array's elements in raw form, row-major, copied.

    Text elements of a BYTES array are encoded as UTF-8. A float32 array for BF16 is truncated to the upper
    half of each bit pattern (SEMANTICS BN-06).
    """
    if datatype is Datatype.BYTES:
        return join_bytes(
            item if isinstance(item, bytes) else str(item).encode()
            for item in array.ravel().tolist()
        )
    if datatype is Datatype.BF16 and array.dtype.kind == "f":
        bits = np.ascontiguousarray(array, dtype="<f4").view("<u4") >> np.uint32(16)
        return bits.astype("<u2").tobytes()
    return np.ascontiguousarray(array, dtype=_NUMPY[datatype]).tobytes()
