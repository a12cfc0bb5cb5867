"""What is known of idempotency keys in one input partition: what is in flight and what was answered (DELIVERY P-17).

Pure: no await, no clock, no logging. Rules of this module:

1. A key is known per scope: `WHOLE`, the partition, for stateless requests, and its sequence's key for steps.
2. The first request with a key leads; repeats follow it while it is in flight, and get what is remembered after that.
3. What is remembered is bounded, by keys and bytes of the partition and of each sequence, and by age; beyond, the
   oldest goes first. Whoever repeats what was forgotten runs again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.schemas.batch import Entry
from headrace.schemas.remembered import Recent, Remembered

WHOLE = b""
"""Scope of stateless requests."""


class KeyBounds(NamedTuple):
    """How much is remembered.

    Attributes:
        window_ms: For how long after the answer, ms.
        keys: Keys of a partition.
        size: Bytes of a partition's answers, with what they take beside.
        answer_size: Bytes of one of them: it must fit into a record.
        sequence_keys: Keys of a sequence.
        sequence_size: Bytes of a sequence's answers: they travel in each of its snapshots.
    """

    window_ms: int
    keys: int
    size: int
    answer_size: int
    sequence_keys: int
    sequence_size: int


class _Scope:
    """What is remembered under one scope, the oldest first."""

    __slots__ = ("keys", "size")

    def __init__(self) -> None:
        self.keys: OrderedDict[bytes, None] = OrderedDict()
        self.size = 0


class KeyTable:
    """The keys of one partition under one takeover.

    Attributes:
        epoch: Our epoch of the assignment.
        leaders: Scope and key → the first request with it, in flight.
        size: Bytes of what is remembered.
        forgotten: Answers that went for want of room, so far.
        waiting: Repeats that are known as such and wait for their turn.
    """

    __slots__ = (
        "_bounds",
        "_known",
        "_scopes",
        "epoch",
        "forgotten",
        "leaders",
        "size",
        "waiting",
    )

    def __init__(self, epoch: int, bounds: KeyBounds) -> None:
        """Start with nothing."""
        self.epoch = epoch
        self.leaders: dict[tuple[bytes, bytes], Entry] = {}
        self.size = 0
        self.forgotten = 0
        self.waiting = 0
        self._bounds = bounds
        self._known: OrderedDict[tuple[bytes, bytes], Remembered] = OrderedDict()
        self._scopes: dict[bytes, _Scope] = {}

    def __len__(self) -> int:
        """Return the number of answers that are remembered."""
        return len(self._known)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"KeyTable({len(self._known)} remembered, {len(self.leaders)} in flight)"

    def items(self) -> Iterator[tuple[tuple[bytes, bytes], Remembered]]:
        """Iterate over scope with key, and answer, the oldest first; not while they change."""
        yield from self._known.items()

    def find(self, scope: bytes, key: bytes, now_ms: int) -> Remembered | None:
        """Return what is remembered; what is older than the window is forgotten."""
        found = self._known.get((scope, key))
        if found is not None and self._is_old(found, now_ms):
            self.drop(scope, key)
            return None
        return found

    def keep(self, scope: bytes, key: bytes, answer: Remembered, now_ms: int) -> bool:
        """Remember an answer, as the newest; False where there is no room for it at all.

        Args:
            scope: Of the request.
            key: Its own.
            answer: To it.
            now_ms: Ms since the epoch.
        """
        self.drop(scope, key)
        size, bounds = answer.size + len(key), self._bounds
        if size > min(bounds.size, bounds.sequence_size if scope else bounds.answer_size):
            return False
        self._known[scope, key] = answer
        self.size += size
        if scope:
            own = self._scopes.setdefault(scope, _Scope())
            own.keys[key] = None
            own.size += size
            while len(own.keys) > bounds.sequence_keys or own.size > bounds.sequence_size:
                self._forget_first((scope, next(iter(own.keys))), now_ms)
        while len(self._known) > bounds.keys or self.size > bounds.size:
            self._forget_first(next(iter(self._known)), now_ms)
        while self._known and self._is_old(next(iter(self._known.values())), now_ms):
            self.drop(*next(iter(self._known)))
        return True

    def drop(self, scope: bytes, key: bytes) -> None:
        """Forget an answer, if there is one."""
        answer = self._known.pop((scope, key), None)
        if answer is None:
            return
        size = answer.size + len(key)
        self.size -= size
        own = self._scopes.get(scope)
        if own is not None:
            own.size -= size
            del own.keys[key]
            if not own.keys:
                del self._scopes[scope]

    def recent(self, scope: bytes, room: int) -> Recent:
        """Return a sequence's keys and answers, the newest as far as they fit into so many bytes, the oldest first."""
        own = self._scopes.get(scope)
        if own is None:
            return ()
        found: list[tuple[bytes, Remembered]] = []
        for key in reversed(own.keys):
            answer = self._known[scope, key]
            room -= answer.size + len(key)
            if room < 0:
                break
            found.append((key, answer))
        return tuple(reversed(found))

    def forget_scopes(self, scopes: Iterable[bytes]) -> None:
        """Forget all that is remembered of sequences that nobody remembers any more."""
        for scope in scopes:
            own = self._scopes.get(scope)
            for key in () if own is None else tuple(own.keys):
                self.drop(scope, key)

    def _is_old(self, answer: Remembered, now_ms: int) -> bool:
        return now_ms - answer.at_ms > self._bounds.window_ms

    def _forget_first(self, which: tuple[bytes, bytes], now_ms: int) -> None:
        self.forgotten += not self._is_old(self._known[which], now_ms)
        self.drop(*which)
