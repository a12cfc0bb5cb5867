"""Tensor data as JSON values, strictly typed (SEMANTICS PB-38, PB-41, PB-44…PB-46)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from headrace.schemas.errors import InvalidRequest, MalformedRequest
from headrace.schemas.tensor import Datatype, Tensor, element_count, join_bytes, split_bytes

MAX_DEPTH = 100
"""Nested arrays in ``data`` at most (PB-38)."""

_WORDS: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "integers"),
    "u": ({int}, "unsigned integers"),
    "f": ({int, float}, "numbers"),
    "O": ({str}, "strings"),
}
_BINARY_ONLY = (Datatype.FP16, Datatype.BF16)


def raw_data(name: str, datatype: Datatype, shape: Sequence[int], data: object) -> bytes:
    """Return the raw form of a tensor's JSON ``data``, flat or nested row by row.

    Raises:
        MalformedRequest: Wrong JSON types, too deep, or another count than the shape's (PB-32).
        InvalidRequest: FP16 and BF16 (FAULTS B51), or a number that the datatype does not hold.
    """
    if datatype in _BINARY_ONLY:
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input '{name}'"
        )
    flat = _flat(name, data)
    if len(flat) != element_count(shape):
        raise MalformedRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field: tensor "
            f"'{name}' has {len(flat)} elements, expected shape {list(shape)}"
        )
    types, words = _WORDS[datatype.numpy.kind]
    found = set(map(type, flat))
    if not found <= types:
        wrong = ", ".join(sorted(kind.__name__ for kind in found - types))
        raise MalformedRequest(
            f"Unable to parse 'data': tensor '{name}' of {datatype} has {wrong}, expected {words}"
        )
    if datatype is Datatype.BYTES:
        return join_bytes([str(item).encode() for item in flat])
    if flat and datatype.numpy.kind in "iu":
        limits = integer_limits(datatype)
        if min(flat) < limits.min or max(flat) > limits.max:  # type: ignore[type-var, operator]  # integers only
            raise InvalidRequest(
                f"tensor '{name}' has an element out of range, expected {datatype} from "
                f"{limits.min} to {limits.max}"
            )
    try:
        with np.errstate(over="ignore"):  # a number beyond FP32 is an infinity, as in C
            return np.array(flat, dtype=datatype.numpy).tobytes()
    except OverflowError:
        raise InvalidRequest(
            f"tensor '{name}' has an element out of range, expected numbers of {datatype}"
        ) from None


def integer_limits(datatype: Datatype) -> np.iinfo[np.integer[Any]]:
    """Return the smallest and the largest number that an integer datatype holds."""
    return np.iinfo(datatype.numpy.str)


def _flat(name: str, data: object) -> list[object]:
    """Return the leaves of nested arrays in order."""
    if not isinstance(data, list):
        raise MalformedRequest(f"Unable to parse 'data': expected an array in tensor '{name}'")
    flat: list[object] = data
    for _ in range(MAX_DEPTH):
        if list not in set(map(type, flat)):
            return flat
        level: list[object] = []
        for item in flat:
            if isinstance(item, list):
                level.extend(item)
            else:
                level.append(item)
        flat = level
    raise MalformedRequest(
        f"Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH}) in "
        f"tensor '{name}'"
    )


def json_data(tensor: Tensor, sending: str) -> list[object]:
    """Return a tensor's data as a flat list of JSON values.

    Args:
        tensor: Its bytes fit its shape.
        sending: ``input`` or ``output``, for the error's text.

    Raises:
        InvalidRequest: FP16 and BF16, or BYTES that are no UTF-8 text.
    """
    if tensor.datatype in _BINARY_ONLY:
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data "
            f"format for {sending} '{tensor.name}'"
        )
    if tensor.datatype is not Datatype.BYTES:
        flat: list[object] = tensor.numpy().reshape(-1).tolist()
        return flat
    try:
        return [item.decode() for item in split_bytes(tensor.name, tensor.data)]
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"sending bytes that are no UTF-8 via JSON is not possible. Please use the binary data "
            f"format for {sending} '{tensor.name}'"
        ) from None
