"""A tensor that is kept in shared memory instead of its request: the parameters that say where (SEMANTICS PB-72)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from headrace.schemas.errors import InvalidRequest, MalformedRequest, Unsupported
from headrace.schemas.tensor import Buffer

REGION = "shared_memory_region"
BYTE_SIZE = "shared_memory_byte_size"
OFFSET = "shared_memory_offset"

MAX_UINT64 = 2**64 - 1


class SharedSpan(NamedTuple):
    """Bytes of a region.

    Attributes:
        region: Its name, as it was registered.
        offset: First byte.
        byte_size: How many.
    """

    region: str
    offset: int
    byte_size: int


ReadShared: TypeAlias = Callable[[str, SharedSpan], Buffer]
"""Tensor name, place → the bytes; raises `InferError`."""


def shared_span(tensor: str, parameters: Mapping[str, object]) -> SharedSpan | None:
    """Return where a tensor is kept; None where it is not in shared memory.

    Raises:
        MalformedRequest: A parameter is of the wrong type.
    """
    if REGION not in parameters:
        return None
    region = parameters[REGION]
    if not isinstance(region, str):
        raise MalformedRequest(
            f"Unable to parse '{REGION}': expected a string in tensor '{tensor}'"
        )
    return SharedSpan(
        region, _whole(tensor, OFFSET, parameters), _whole(tensor, BYTE_SIZE, parameters)
    )


def check_alone(tensor: str, others: Mapping[str, bool]) -> None:
    """Check that the data of an input in shared memory is nowhere else: the request fills none of the other places.

    Raises:
        InvalidRequest: The data is given twice (PB-36).
    """
    given = [f"'{name}'" for name, is_given in others.items() if is_given]
    if given:
        raise InvalidRequest(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'{REGION}' in 'parameters'. But set {' '.join(given)} '{REGION}' for '{tensor}'"
        )


def read_shared(tensor: str, span: SharedSpan, read: ReadShared | None) -> Buffer:
    """Return the data of an input that is kept in shared memory.

    Args:
        tensor: Its name.
        span: Where it is.
        read: Reads it; None where no shared memory is at hand: a record's reader is another machine.

    Raises:
        Unsupported: There is no shared memory here.
        InferError: Of whatever kind, by ``read``.
    """
    if read is None:
        raise Unsupported(
            f"input '{tensor}' is kept in shared memory, which is not offered here, expected its data "
            "in the request"
        )
    return read(tensor, span)


def _whole(tensor: str, name: str, parameters: Mapping[str, object]) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise MalformedRequest(
            f"Unable to parse '{name}': expected an unsigned integer in tensor '{tensor}'"
        )
    return value
