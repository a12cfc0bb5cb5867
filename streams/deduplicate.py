"""Drops answers that a reader has seen before: at least once, an answer may come twice (DESIGN §6).

The same answer is the one with the same ``source`` and ``response-index``. Its value is equal (DELIVERY P-16), so it
does not matter which copy is kept, and ``attempt`` does not count. What is remembered lives in memory: whoever restarts
and reads from a committed position begins anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from headrace.schemas.errors import ConfigError
from headrace.schemas.record import Record
from headrace.streams.audit_identity import WHOLE, Identity, identity_of

R = TypeVar("R", bound=Record)

WINDOW = 131_072
"""Offsets of each partition of requests that are remembered, 16 KiB. When a worker dies, what was answered since its
last commit is answered again: half a second of requests, unless ``--commit-interval-ms`` says otherwise."""

MAX_PARTITIONS = 1_024
"""Partitions of requests that are remembered."""

MAX_NUMBERED = 65_536
"""Requests with numbered responses that are remembered, a bit per response and about 200 bytes each."""

MAX_RESPONSES = 16_384
"""Responses to one request that are told apart; further ones are passed on."""


class _Window:
    """A bit for each of the newest requests of one partition, in a ring."""

    __slots__ = ("_mask", "_ring", "end")

    def __init__(self, window: int, end: int) -> None:
        self.end = end  # offset behind the newest request
        self._mask = window - 1
        self._ring = bytearray(window // 8)

    def is_below(self, offset: int) -> bool:
        """Whether nothing is known of an offset any more."""
        return offset < self.end - self._mask - 1

    def move(self, end: int) -> None:
        """Let the newest request be the one before ``end``: the oldest are forgotten."""
        if end - self.end > self._mask:
            self._ring = bytearray(len(self._ring))
        else:
            for offset in range(self.end, end):
                self._ring[(offset & self._mask) >> 3] &= ~(1 << (offset & 7))
        self.end = end

    def note(self, offset: int) -> bool:
        """Note an offset; returns whether it was noted before."""
        place, bit = (offset & self._mask) >> 3, 1 << (offset & 7)
        known = self._ring[place] & bit
        self._ring[place] |= bit
        return bool(known)


class Deduplicator:
    """Passes on every answer once, for one reader of any topics of answers.

    An answer is dropped only if it is known to be a repeat: one that names no request is passed on, and so is one whose
    request has left the window. Where a requests topic was deleted and made again, its offsets begin anew: `forget` it.

    Example:
        once = Deduplicator()
        for batch in (await consumer.getmany()).values():  # any client's records
            for record in once.fresh(batch):
                ...

    Attributes:
        dropped: Repeats so far.
        unsure: Answers that were passed on without knowing: their requests had left the window.
    """

    def __init__(self, *, window: int = WINDOW, max_partitions: int = MAX_PARTITIONS) -> None:
        """Start with nothing seen.

        Args:
            window: Offsets of each partition of requests that are remembered, a power of two from 8 on.
            max_partitions: Partitions that are remembered; above, the one that was silent longest is forgotten.

        Raises:
            ConfigError: One of them cannot be used.
        """
        if window < 8 or window & (window - 1):
            raise ConfigError("expected a power of two from 8 on", field="window", value=window)
        if max_partitions < 1:
            raise ConfigError("expected 1 or more", field="max_partitions", value=max_partitions)
        self.dropped = 0
        self.unsure = 0
        self._window = window
        self._max_partitions = max_partitions
        self._windows: OrderedDict[bytes, _Window] = OrderedDict()
        self._numbered: OrderedDict[tuple[bytes, int], int] = OrderedDict()

    def fresh(self, records: Iterable[R]) -> list[R]:
        """Return those that were not seen before, in their order, and remember them."""
        return [record for record in records if not self.is_repeat(record)]

    def is_repeat(self, record: Record) -> bool:
        """Say whether an answer was seen before, and remember it."""
        identity = identity_of(record.headers)
        if identity is None or identity.response >= MAX_RESPONSES:
            return False
        window = self._window_of(identity)
        offset = identity.offset
        if window.is_below(offset):
            self.unsure += 1
            return False
        if offset >= window.end:
            window.move(offset + 1)
        known = window.note(offset) if identity.response == WHOLE else self._note(identity)
        self.dropped += known
        return known

    def forget(self, topic: str) -> None:
        """Forget the answers to a requests topic that was deleted and made again."""
        name = topic.encode()
        for partition in [p for p in self._windows if p.rpartition(b"/")[0] == name]:
            del self._windows[partition]
        for key in [key for key in self._numbered if key[0].rpartition(b"/")[0] == name]:
            del self._numbered[key]

    def _note(self, identity: Identity) -> bool:
        """Note one of 0..n responses; returns whether it was noted before."""
        key = (identity.partition, identity.offset)
        seen = self._numbered.get(key, 0)
        self._numbered[key] = seen | 1 << identity.response
        if len(self._numbered) > MAX_NUMBERED:
            self._numbered.popitem(last=False)
        return bool(seen >> identity.response & 1)

    def _window_of(self, identity: Identity) -> _Window:
        window = self._windows.get(identity.partition)
        if window is None:
            while len(self._windows) >= self._max_partitions:
                self._windows.popitem(last=False)
            window = _Window(self._window, identity.offset)
            self._windows[identity.partition] = window
        else:
            self._windows.move_to_end(identity.partition)
        return window
