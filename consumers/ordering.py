"""Answers in arrival order although several instances finish in any order: ``preserve_ordering``. Pure.

Built to the documented meaning (SEMANTICS DB-24): the slot of a request in the order of answers is reserved
when it is admitted, not when its answer is made. An answer that is ready early is held back, so what is held
is bounded by what is admitted: the caller stops reading when too much is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from headrace.schemas.batch import Entry

T = TypeVar("T")


class PreserveOrdering(Generic[T]):
    """Releases the answers of one model version's requests in the order of their admission (DB-03).

    An answer is any value of the caller's, one per request: its encoded result, its error, or for a decoupled
    model all of its responses. A request that is answered out of turn (a refusal by a queue policy must not
    wait, QT-04) or not at all (its partition is gone) is skipped.
    """

    def __init__(self) -> None:
        """Start with nothing admitted."""
        self._numbers: dict[Entry, int] = {}
        self._ready: dict[int, tuple[Entry, T] | None] = {}
        self._admitted = 0
        self._next = 0

    def __len__(self) -> int:
        """Return the number of entries that are admitted and whose answers have not left."""
        return self._admitted - self._next

    def __repr__(self) -> str:
        """Show the counts."""
        return f"PreserveOrdering({len(self._numbers)} awaited, {self.held} held)"

    @property
    def held(self) -> int:
        """How many entries are done and wait for one before them."""
        return len(self._ready)

    def admit(self, entries: Iterable[Entry]) -> None:
        """Give entries the next sequence numbers, in order; call it with what a batcher has taken in."""
        number = self._admitted
        for entry in entries:
            assert entry not in self._numbers  # an entry is admitted once
            self._numbers[entry] = number
            number += 1
        self._admitted = number

    def done(self, entries: Sequence[Entry], answers: Sequence[T]) -> list[tuple[Entry, T]]:
        """Take the answers of finished entries; return what may leave now, in order of admission."""
        for entry, answer in zip(entries, answers, strict=True):
            self._ready[self._numbers.pop(entry)] = (entry, answer)
        return self._release()

    def skip(self, entries: Iterable[Entry]) -> list[tuple[Entry, T]]:
        """Wait no longer for entries; return what may leave now. What was never admitted is passed over."""
        for entry in entries:
            number = self._numbers.pop(entry, None)
            if number is not None:
                self._ready[number] = None
        return self._release()

    def _release(self) -> list[tuple[Entry, T]]:
        ready = self._ready
        number = self._next
        released: list[tuple[Entry, T]] = []
        while number in ready:
            slot = ready.pop(number)
            if slot is not None:
                released.append(slot)
            number += 1
        self._next = number
        return released
