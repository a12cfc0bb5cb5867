"""The slots of a model version's instances: which are free, and which is given next. Pure.

A slot is a row of an instance (SEMANTICS SB-11). It is a number, so that a sequence can carry it: rows are counted
before instances, and the smallest free number is the one that Triton gives (SQ-10: slot 0 of every instance comes
before slot 1 of any).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush

from headrace.consumers.live_sequence import NO_SLOT

INSTANCE_BITS = 16
INSTANCE_MASK = (1 << INSTANCE_BITS) - 1


def instance_of(slot: int) -> int:
    """Return the instance of a slot."""
    return slot & INSTANCE_MASK


def row_of(slot: int) -> int:
    """Return the row of a slot in its instance."""
    return slot >> INSTANCE_BITS


class Slots:
    """Free and taken slots. A slot is free at most once (FAULTS B87): giving it back twice is a bug of the caller.

    Rows that were never used are not stored, so a configuration of a million rows costs nothing.

    Attributes:
        is_exhausted: The last `take` found none, and none came free since.
        has_shrunk: An instance was removed at some time.
    """

    def __init__(self, rows: int, instances: Iterable[int]) -> None:
        """Start with all slots free.

        Args:
            rows: Of each instance.
            instances: Their numbers, below 2^16.
        """
        self._rows = rows
        self._instances = frozenset(instances)
        self.has_shrunk = False
        self.is_exhausted = False
        self._free: list[int] = []
        self._opened = 0  # rows whose slots are taken or in the heap
        self._taken: set[int] = set()

    def __len__(self) -> int:
        """Return the number of taken slots."""
        return len(self._taken)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Slots({len(self._taken)} of {self._rows} x {len(self._instances)} taken)"

    def take(self) -> int:
        """Return the lowest free slot, which is taken now; `NO_SLOT` if there is none."""
        if not self._free:
            if self._opened >= self._rows or not self._instances:
                self.is_exhausted = True
                return NO_SLOT
            # Sorted, hence a heap; and all that is in use lies in lower rows.
            row = self._opened << INSTANCE_BITS
            self._free = [row | number for number in sorted(self._instances)]
            self._opened += 1
        slot = heappop(self._free)
        self._taken.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; that of a removed instance is gone (SQ-21)."""
        self._taken.remove(slot)
        if slot & INSTANCE_MASK in self._instances:
            heappush(self._free, slot)
            self.is_exhausted = False

    def is_leaving(self, slot: int) -> bool:
        """Whether the slot's instance was removed."""
        return self.has_shrunk and slot & INSTANCE_MASK not in self._instances

    def resize(self, instances: Set[int]) -> None:
        """Set which instances exist: new ones' slots are free, removed ones' are never given again (SQ-21)."""
        added = instances - self._instances
        self.is_exhausted = False
        self.has_shrunk = self.has_shrunk or bool(self._instances - instances)
        kept = [slot for slot in self._free if slot & INSTANCE_MASK in instances]
        for number in added:
            opened = [row << INSTANCE_BITS | number for row in range(self._opened)]
            # One that comes back may still have sequences from before.
            kept += [slot for slot in opened if slot not in self._taken]
        heapify(kept)
        self._free = kept
        self._instances = frozenset(instances)
