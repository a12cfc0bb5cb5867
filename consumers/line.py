"""What may run on each instance, in the order of admission: what both sequence strategies share. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.slots import INSTANCE_MASK
from headrace.schemas.batch import Entry
from headrace.schemas.model_config import SequenceBatching

_SLACK = 256
"""Withdrawn entries that are tolerated in a line before tidying up."""


class Line:
    """Entries that may run on one instance, the first admitted one first.

    Blocks are offered in the order of time, so most entries come last; but the next request of a lane comes when the
    one before has run, and may be older than all others. So the entries of a block stand in one bucket, and the
    blocks' times in a heap.

    An entry that has an error, or does not stand at the head of its lane any more, was withdrawn: it is passed over.

    Attributes:
        count: Entries that were not withdrawn.
    """

    __slots__ = ("_blocks", "_stale", "_times", "count")

    def __init__(self) -> None:
        """Start empty."""
        self.count = 0
        self._stale = 0
        self._blocks: dict[int, deque[Entry]] = {}
        self._times: list[int] = []

    def add(self, entry: Entry) -> None:
        """Let an entry stand in line."""
        when_ns = entry.admitted_ns
        block = self._blocks.get(when_ns)
        if block is None:
            self._blocks[when_ns] = deque((entry,))
            heappush(self._times, when_ns)
        else:
            block.append(entry)
        self.count += 1

    def add_all(self, entries: Sequence[Entry]) -> None:
        """Add entries; those of one block stand next to each other."""
        when_ns = -1
        block: deque[Entry] = deque()
        for entry in entries:
            if entry.admitted_ns != when_ns:
                when_ns = entry.admitted_ns
                found = self._blocks.get(when_ns)
                if found is None:
                    found = self._blocks[when_ns] = deque()
                    heappush(self._times, when_ns)
                block = found
            block.append(entry)
        self.count += len(entries)

    def withdraw(self, entry: Entry) -> None:
        """Leave out an entry that its lane is about to lose."""
        self.count -= 1
        self._stale += 1
        if self._stale > _SLACK + self.count:
            for when_ns, block in list(self._blocks.items()):
                kept = deque(e for e in block if e is not entry and _stands(e))
                if kept:
                    self._blocks[when_ns] = kept
                else:
                    del self._blocks[when_ns]
            self._times = list(self._blocks)
            heapify(self._times)
            self._stale = 0

    def oldest_ns(self) -> int:
        """Return when the first entry was admitted; there is one."""
        while True:
            when_ns = self._times[0]
            block = self._blocks[when_ns]
            while block:
                if _stands(block[0]):
                    return when_ns
                block.popleft()
                self._stale -= 1
            del self._blocks[when_ns]
            heappop(self._times)

    def pop(self, count: int) -> list[Entry]:
        """Remove and return the first entries; there are so many."""
        self.count -= count
        taken: list[Entry] = []
        while count:
            when_ns = self._times[0]
            block = self._blocks[when_ns]
            while block and count:
                entry = block.popleft()
                if (
                    entry.sequence.head is entry and entry.error is None
                ):  # as `_stands`, of each step
                    taken.append(entry)
                    count -= 1
                else:
                    self._stale -= 1
            if not block:
                del self._blocks[when_ns]
                heappop(self._times)
        return taken

    def put_back(self, entries: list[Entry]) -> None:
        """Undo `pop`."""
        for entry in reversed(entries):
            block = self._blocks.get(entry.admitted_ns)
            if block is None:
                self._blocks[entry.admitted_ns] = deque((entry,))
                heappush(self._times, entry.admitted_ns)
            else:
                block.appendleft(entry)
        self.count += len(entries)


def _stands(entry: Entry) -> bool:
    """Whether an entry was not withdrawn."""
    return entry.sequence.head is entry and entry.error is None


class LineBatcher(SequenceBatcher):
    """A sequence batcher in which each instance has a line of what it may run."""

    def _prepare(self, config: SequenceBatching) -> int:
        self._lines: dict[int, Line] = {}
        return self._seats(config)

    @abstractmethod
    def _seats(self, config: SequenceBatching) -> int:
        """Read the strategy's own options; returns the number of slots of an instance (SB-11)."""

    def ready(self, instance: int) -> int:
        """Return how many entries may be given to an instance ahead: none while something that waits may expire."""
        line = self._lines.get(instance)
        return 0 if line is None or self._timeouts.armed else line.count

    def _line(self, instance: int) -> Line:
        line = self._lines.get(instance)
        if line is None:
            line = self._lines[instance] = Line()
        return line

    def _make_ready(self, lane: LiveSequence) -> None:
        assert lane.head is not None
        self._line(lane.slot & INSTANCE_MASK).add(lane.head)

    def _make_all_ready(self, lanes: Sequence[LiveSequence]) -> None:
        heads: dict[int, list[Entry]] = {}
        for lane in lanes:
            assert lane.head is not None
            try:
                heads[lane.slot & INSTANCE_MASK].append(lane.head)
            except KeyError:
                heads[lane.slot & INSTANCE_MASK] = [lane.head]
        for instance, entries in heads.items():
            self._line(instance).add_all(entries)

    def _withdraw(self, lane: LiveSequence) -> None:
        assert lane.head is not None
        self._lines[lane.slot & INSTANCE_MASK].withdraw(lane.head)
