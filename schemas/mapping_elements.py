"""Values of a record as elements of a tensor, strictly typed: a text is no number, nor is a NaN unless allowed.

Each kind of elements is packed at once where all is well; what is wrong is looked for only then. Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from headrace.schemas.tensor import Datatype, join_bytes
from headrace.schemas.v2json_data import integer_limits

_CODES = {
    Datatype.BOOL: "?",
    Datatype.UINT8: "B",
    Datatype.UINT16: "H",
    Datatype.UINT32: "I",
    Datatype.UINT64: "Q",
    Datatype.INT8: "b",
    Datatype.INT16: "h",
    Datatype.INT32: "i",
    Datatype.INT64: "q",
    Datatype.FP16: "e",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
    Datatype.BF16: "f",
}

NOT_PACKED = (struct.error, OverflowError, TypeError, AttributeError, UnicodeEncodeError)
"""What packing raises of values that are no elements."""

Pack = Callable[[Sequence[object]], bytes]


class Elements(NamedTuple):
    """How elements of one datatype are packed.

    Attributes:
        pack: Returns the raw form of values, or raises one of `NOT_PACKED`; what it takes may still not fit.
        are_fit: Whether values that were packed are elements indeed; may say no of some that are.
        fits: Whether one value is an element.
        expected: What it should be, for errors.
    """

    pack: Pack
    are_fit: Callable[[Sequence[object]], bool]
    fits: Callable[[object], bool]
    expected: str


def elements_of(datatype: Datatype, count: int, *, allow_nan: bool) -> Elements:
    """Return how elements are packed.

    Args:
        datatype: Of the tensor.
        count: How many there always are; -1 is any number.
        allow_nan: Not-a-number and the infinities are numbers.
    """
    if datatype is Datatype.BYTES:
        return Elements(_pack_texts, lambda _: True, _is_text, "a text")
    pack = _pack_numbers(_CODES[datatype], count)
    if datatype is Datatype.BOOL:
        return Elements(
            pack,
            lambda values: set(map(type, values)) <= {bool},
            lambda value: type(value) is bool,
            "true or false",
        )
    if _CODES[datatype] not in "efd":
        limits = integer_limits(datatype)
        expected = f"a whole number from {limits.min} to {limits.max}"
        return Elements(pack, lambda _: True, _is_whole(limits.min, limits.max), expected)
    one = struct.Struct("<" + _CODES[datatype])
    if datatype is Datatype.BF16:
        whole, pack = pack, lambda values: _upper_half(whole(values))
    if allow_nan:
        return Elements(pack, lambda _: True, _is_number(one), f"a number that {datatype} holds")
    return Elements(pack, _are_finite, _is_finite(one), f"a finite number that {datatype} holds")


def _pack_numbers(code: str, count: int) -> Pack:
    if count >= 0:
        pack = struct.Struct(f"<{count}{code}").pack
        return lambda values: pack(*values)
    return lambda values: struct.Struct(f"<{len(values)}{code}").pack(*values)


def _pack_texts(values: Sequence[object]) -> bytes:
    return join_bytes(
        [value if isinstance(value, bytes) else value.encode() for value in values]  # type: ignore[attr-defined]  # see `NOT_PACKED`
    )


def _upper_half(raw: bytes) -> bytes:
    """Return FP32 as BF16: the upper half of each bit pattern (SEMANTICS BN-06)."""
    return (np.frombuffer(raw, "<u4") >> np.uint32(16)).astype("<u2").tobytes()


def _are_finite(values: Sequence[object]) -> bool:
    # One not-a-number or infinity shows in the sum; a sum that is too large only costs a closer look.
    return math.isfinite(sum(values))  # type: ignore[arg-type]  # they were packed as numbers


def _is_number(one: struct.Struct) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        if not isinstance(value, (int, float)):
            return False
        try:
            one.pack(value)
        except (struct.error, OverflowError):
            return False
        return True

    return fits


def _is_finite(one: struct.Struct) -> Callable[[object], bool]:
    is_number = _is_number(one)

    def fits(value: object) -> bool:
        return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]  # it is a number

    return fits


def _is_whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and least <= value <= most


def _is_text(value: object) -> bool:
    if isinstance(value, bytes):
        return True
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
