"""What a call that streams waits for: 0..n responses, in their order, within bounds (SEMANTICS DC-01, GR-03).

Replies come from a reply partition, by whatever worker: after a takeover the first ones come once more, and are known
by their ``response-index``. What waits for its reader is bounded in bytes, for each stream and for all together: who
reads too slowly loses its own stream, and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headrace.schemas.errors import InferError, Reason, Unavailable
from headrace.schemas.headers import find_header
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import FINAL, RESPONSE_INDEX, Headers

Reply = TypeVar("Reply")

DEFAULT_MAX_STREAM_BYTES = 16 * 1024 * 1024
"""Bytes of responses that may wait for the reader of one stream, unless configured."""

STREAMS_AT_THE_BOUND = 16
"""All streams of a gateway together may hold as much as so many of them that are at their bound."""

RESPONSE_BYTES = 1024
"""What a response counts beside its value: the objects that hold it."""


class Streamed(NamedTuple):
    """One response of a stream.

    Attributes:
        response: What the model gave; without outputs where it only says that nothing follows.
        final: Nothing follows.
    """

    response: InferResponse
    final: bool


class StreamRoom:
    """What waits in all streams of a gateway together.

    Attributes:
        limit: Bytes that may wait in one of them.
        used: Bytes that wait in all of them.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self.limit = limit
        self.used = 0


class Place(NamedTuple):
    """Which of the responses to a request an answer is.

    Attributes:
        number: From 0.
        final: Nothing follows.
    """

    number: int
    final: bool


ONLY = Place(0, final=True)
"""The place of an answer that has no number: there is one for its request."""


def place_of(headers: Headers) -> Place:
    """Read which response an answer is."""
    raw = find_header(headers, RESPONSE_INDEX)
    if raw is None or not raw.isdigit():
        return ONLY
    return Place(int(raw), final=find_header(headers, FINAL) == b"true")


class ReplyStream(Generic[Reply]):
    """The replies to one call, from the one who hears them to the one who reads them. Every reply leaves once.

    Attributes:
        repeated: Replies that had come before, from another worker.
        hear_headers: Told of each reply's headers, where somebody wants to know them.
    """

    __slots__ = (
        "_come",
        "_early",
        "_error",
        "_held",
        "_is_complete",
        "_next",
        "_ready",
        "_room",
        "hear_headers",
        "repeated",
    )

    def __init__(
        self, room: StreamRoom, hear_headers: Callable[[Headers], None] | None = None
    ) -> None:
        """Start with nothing heard."""
        self.repeated = 0
        self.hear_headers = hear_headers
        self._room = room
        self._held = 0
        self._next = 0
        self._early: dict[int, tuple[Reply, bool, int]] = {}
        self._ready: deque[tuple[Reply, bool, int]] = deque()
        self._error: InferError | None = None
        self._is_complete = False
        self._come = asyncio.Event()

    def done(self) -> bool:
        """Whether nothing more is heard: the final one has come, or an error."""
        return self._is_complete or self._error is not None

    def is_wanted(self, place: Place) -> bool:
        """Whether a reply is none of those that came before; counted where it is."""
        if place.number >= self._next and place.number not in self._early:
            return True
        self.repeated += 1
        return False

    def hear(self, reply: Reply, place: Place, size: int) -> None:
        """Take a reply that `is_wanted`; the stream ends with an error where it has no room for it.

        Args:
            reply: As `next` hands it on.
            place: Its own.
            size: Bytes of its value.
        """
        size += RESPONSE_BYTES
        room = self._room
        everywhere = room.limit * STREAMS_AT_THE_BOUND
        if self._held and (self._held + size > room.limit or room.used + size > everywhere):
            self.set_exception(
                Unavailable(
                    f"{self._held} bytes of responses wait for the reader of this stream, and {room.used} in all "
                    f"streams together, expected at most {room.limit} (max_stream_bytes) and {everywhere}: the "
                    "stream has ended",
                    reason=Reason.SLOW_READER,
                )
            )
            return
        self._held += size
        room.used += size
        self._early[place.number] = (reply, place.final, size)
        while (found := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._ready.append(found)
            if found[1]:
                self._is_complete = True
                break
        self._come.set()

    def set_exception(self, error: InferError) -> None:
        """End the stream with an error, behind what has come before."""
        if not self.done():
            self._error = error
            self._come.set()

    async def next(self) -> tuple[Reply, bool]:
        """Wait for the next reply, and whether it is the final one; not called behind that.

        Raises:
            InferError: The stream ended with it.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._come.clear()
            await self._come.wait()
        reply, final, size = self._ready.popleft()
        self._held -= size
        self._room.used -= size
        return reply, final

    def close(self) -> None:
        """Give back the room of what nobody reads any more."""
        self._room.used -= self._held
        self._held = 0
        self._early.clear()
        self._ready.clear()
