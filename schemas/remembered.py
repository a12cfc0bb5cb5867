"""Answers that are remembered under an idempotency key, and their binary form (DELIVERY P-17).

Stateless ones are records of the answers topic; those of a sequence stand in its snapshots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headrace.schemas.packing import Reader, headers_of, number, sized
from headrace.schemas.record import Headers
from headrace.schemas.sequence import Flag

if TYPE_CHECKING:
    from headrace.schemas.snapshot import Head

_FIRST = struct.Struct("<q")
_RECENT = struct.Struct("<qq")
_LAYOUT = 1
ROOM_BYTES = 256
"""Memory that a remembered answer takes beside its bytes, about."""


class KeptAnswer(NamedTuple):
    """One response, or one error, as it was encoded.

    Attributes:
        value: The record's value.
        headers: Those that a repeat's answer has too: of the format, the version, the outcome, and a claim.
    """

    value: bytes
    headers: Headers


class Remembered(NamedTuple):
    """The answer to the first request with a key.

    Attributes:
        offset: Of that request in its partition.
        flag: `Flag.LIVE`; `Flag.LOST` where what is stored cannot be read.
        timestamp_ms: That record's timestamp.
        at_ms: When it was answered, ms since the epoch: the window counts from there.
        digest: Of the request (`headrace.schemas.idempotency.request_digest`).
        answers: One, or all responses of a decoupled model.
    """

    offset: int
    flag: Flag
    timestamp_ms: int
    at_ms: int
    digest: bytes
    answers: tuple[KeptAnswer, ...]

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return ROOM_BYTES + sum(
            len(answer.value) + sum([len(name) + len(value) for name, value in answer.headers])
            for answer in self.answers
        )


def _pack(state: Remembered) -> bytes:
    fields = [_FIRST.pack(state.at_ms), sized(state.digest), number(len(state.answers))]
    for answer in state.answers:
        fields += (sized(answer.value), *headers_of(answer.headers))
    return b"".join(fields)


def _unpack(reader: Reader, offset: int, flag: Flag, timestamp_ms: int) -> Remembered:
    (at_ms,) = _FIRST.unpack(reader.take(_FIRST.size))
    digest = reader.sized() or b""
    answers = tuple(
        [KeptAnswer(reader.sized() or b"", reader.headers()) for _ in range(reader.number())]
    )
    return Remembered(offset, flag, timestamp_ms, at_ms, digest, answers)


class AnswerCodec:
    """Stateless answers as records of the answers topic; see `headrace.schemas.snapshot.StateCodec`."""

    digest = _LAYOUT

    def check_key(self, key: bytes) -> None:
        """Raise `ValueError` where it is no idempotency key."""
        if not key:
            raise ValueError("an idempotency key has a character at least")

    def encode(self, state: Remembered) -> Sequence[bytes]:
        """Return all that the head does not say."""
        return [_pack(state)]

    def decode(self, head: Head, content: memoryview) -> Remembered:
        """Return the answer; its bytes are copied."""
        return _unpack(Reader(content), head.offset, Flag(head.flag), head.timestamp_ms)

    def lost(self, offset: int, timestamp_ms: int) -> Remembered:
        """Return what stands for an answer that cannot be read."""
        return Remembered(offset, Flag.LOST, timestamp_ms, 0, b"", ())


Recent: TypeAlias = tuple[tuple[bytes, Remembered], ...]
"""Idempotency key → answer of a sequence's latest requests that had one, the oldest first."""


def pack_recent(recent: Iterable[tuple[bytes, Remembered]]) -> bytes:
    """Return a sequence's recent keys and answers; each has its own length, so that later fields have room."""
    parts = []
    for key, state in recent:
        fields = sized(key) + _RECENT.pack(state.offset, state.timestamp_ms) + _pack(state)
        parts.append(sized(fields))
    return b"".join(parts)


def unpack_recent(content: memoryview) -> Recent:
    """Return what `pack_recent` packed; `ValueError` or `struct.error` where it makes no sense."""
    reader = Reader(content)
    found: list[tuple[bytes, Remembered]] = []
    while reader.at < len(content):
        one = Reader(reader.take(reader.number()))
        key = one.sized() or b""
        offset, timestamp_ms = _RECENT.unpack(one.take(_RECENT.size))
        found.append((key, _unpack(one, offset, Flag.LIVE, timestamp_ms)))
    return tuple(found)
