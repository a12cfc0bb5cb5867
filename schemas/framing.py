"""Confluent's framing of a value: a zero byte, the schema's id in four bytes, a Protobuf message's index, the rest.

Whether a value is framed is said by the mapping or the content type and never guessed: a plain Avro record may begin
with a zero byte, too. Where it is said, the first byte is verified (FAULTS B35). Pure.

Source: Confluent Schema Registry, "Wire format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.schemas.errors import UndecodableRecord

CONFLUENT = "confluent"
"""The framing's word in mapping files, and in a content type's parameter ``framing``."""

MAGIC = 0
HEAD_BYTES = 5
MAX_INDEX = 32
"""Numbers of a message's index at most: so deep may messages be defined inside messages."""

_HEAD = struct.Struct(">BI")


def framed(schema_id: int) -> bytes:
    """Return what stands before a record that is written with a schema."""
    return _HEAD.pack(MAGIC, schema_id)


def schema_id(value: bytes) -> int:
    """Return the id of the schema that a framed value is written with.

    Raises:
        UndecodableRecord: It is too short, or its first byte is another one.
    """
    if len(value) < HEAD_BYTES or value[0] != MAGIC:
        begin = f"is {value[0]}" if value else "is missing"
        if value[:1] == b"\x00":
            begin = f"is followed by {len(value) - 1} bytes"
        raise UndecodableRecord(
            f"the value is not in Confluent framing: its first byte {begin}, expected 0 and a schema id of 4 bytes"
        )
    found: int = _HEAD.unpack_from(value)[1]
    return found


def schema_ids(values: Iterable[bytes | None]) -> set[int]:
    """Return the ids in a block's values; those that are not framed name none."""
    heads = {value[:HEAD_BYTES] for value in values if value}
    return {
        _HEAD.unpack(head)[1] for head in heads if len(head) == HEAD_BYTES and head[0] == MAGIC
    }


def message_index(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return which of a Protobuf schema's messages a framed value holds, and where it begins.

    Returns:
        The message's place among those of the file, then among those inside that one, and so on; and an offset.

    Raises:
        UndecodableRecord: There is no such index behind the schema's id.
    """
    count, at = _number(value, HEAD_BYTES)
    if count == 0:  # short for the first message
        return (0,), at
    if not 0 < count <= MAX_INDEX:
        raise UndecodableRecord(
            f"the index of the value's message has {count} numbers, expected 1 to {MAX_INDEX}"
        )
    found = []
    for _ in range(count):
        number, at = _number(value, at)
        found.append(number)
    return tuple(found), at


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag number of at most 32 bits, seven bits a byte; returns it and where it ends."""
    number = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise UndecodableRecord(
        f"the value of {len(value)} bytes ends within the index of its message, or that is malformed"
    )
