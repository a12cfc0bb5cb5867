"""The sequence batcher ``oldest``: a sequence has an instance, and its steps join any batch there. Pure.

At most one request of a sequence is in a batch (SQ-13). Across sequences the rules are those of the dynamic batcher
(SEMANTICS §1.6) for requests of one row: `headrace.consumers.dynamic` walks over one queue for all instances, while
here each instance has its own, in the order of admission.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from heapq import heapify, heappop, heappush

from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.slots import INSTANCE_MASK
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.model_config import SequenceBatching

_SLACK = 256
"""Withdrawn entries that are tolerated in a line before tidying up."""


class _Line:
    """Entries that may run on one instance, the first admitted one first.

    Blocks are offered in the order of time, so most entries come last; but the next request of a lane comes when the
    one before has run, and may be older than all others. So the entries of a block stand in one bucket, and the
    blocks' times in a heap.

    An entry that does not stand at the head of its lane any more was withdrawn: it is passed over.

    Attributes:
        count: Entries that were not withdrawn.
    """

    __slots__ = ("_blocks", "_stale", "_times", "count")

    def __init__(self) -> None:
        self.count = 0
        self._stale = 0
        self._blocks: dict[int, deque[Entry]] = {}
        self._times: list[int] = []

    def add(self, entry: Entry) -> None:
        when_ns = entry.admitted_ns
        block = self._blocks.get(when_ns)
        if block is None:
            self._blocks[when_ns] = deque((entry,))
            heappush(self._times, when_ns)
        else:
            block.append(entry)
        self.count += 1

    def withdraw(self, entry: Entry) -> None:
        """Leave out an entry that its lane is about to lose."""
        self.count -= 1
        self._stale += 1
        if self._stale > _SLACK + self.count:
            for when_ns, block in list(self._blocks.items()):
                kept = deque(e for e in block if e is not entry and e.sequence.head is e)
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
                if block[0].sequence.head is block[0]:
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
                if entry.sequence.head is entry:
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


class OldestBatcher(SequenceBatcher):
    """Executions of any of an instance's sequences, the request that waits for longest first (SB-03, SQ-13)."""

    def _prepare(self, config: SequenceBatching) -> int:
        self._sizes = config.preferred_batch_size
        self.limit(0)
        self._lines: dict[int, _Line] = {}
        return config.max_candidates

    def limit(self, rows: int) -> None:
        """Form no batch of more rows from now on, 0 is ``max_batch_size``; preferred sizes above count no more."""
        self._max_rows = rows or max(1, self._signature.max_batch_size)
        self._preferred = tuple(n for n in self._sizes if not rows or n <= rows)

    def _make_ready(self, lane: LiveSequence) -> None:
        assert lane.head is not None
        instance = lane.slot & INSTANCE_MASK
        line = self._lines.get(instance)
        if line is None:
            line = self._lines[instance] = _Line()
        line.add(lane.head)

    def _withdraw(self, lane: LiveSequence) -> None:
        assert lane.head is not None
        self._lines[lane.slot & INSTANCE_MASK].withdraw(lane.head)

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Return the batch that an instance should run now, or None to wait.

        Args:
            instance: Which one is free.
            now_ns: Monotonic time.
            flush: Hold nothing back: everything that may run together goes, as if the delay had passed.
        """
        self._now_ns = now_ns
        line = self._lines.get(instance)
        if line is None or not line.count:
            return None
        count, _ = self._decide(line, flush=flush)
        if not count:
            return None
        initial = self._initial
        entries = line.pop(count)
        states = [entry.sequence.start(initial) for entry in entries]
        self._started(entries, count)
        return Batch(self._signature, entries, states)

    def ready(self, instance: int) -> int:
        """Return how many entries may run on an instance now."""
        line = self._lines.get(instance)
        return 0 if line is None else line.count

    def _due_ns(self) -> int | None:
        if self._delay_ns <= 0:
            return None
        decided = [self._decide(line, flush=False) for line in self._lines.values() if line.count]
        return min([until_ns for count, until_ns in decided if not count], default=None)

    def _decide(self, line: _Line, *, flush: bool) -> tuple[int, int]:
        """Return how many entries to run now; or 0, and the time until which they are held back.

        All entries have one row, so the walk of DB-12…DB-15 passes every size up to where it stops: its candidate is
        the largest preferred size up to there.
        """
        count = self._alike_ahead(line) if self._must_compare else min(line.count, self._max_rows)
        if flush or self._delay_ns <= 0:
            is_exceeded, until_ns = flush, 0
        else:
            until_ns = line.oldest_ns() + self._delay_ns
            is_exceeded = self._now_ns >= until_ns
        below = bisect_right(self._preferred, count)
        if below and not is_exceeded:
            return self._preferred[below - 1], 0  # DB-16
        if is_exceeded or count < line.count or self._delay_ns <= 0:
            return count, 0  # DB-17, DB-12, DB-13, DB-19
        return 0, until_ns  # DB-20

    def _alike_ahead(self, line: _Line) -> int:
        """Return how many of the first entries may run together (DB-12, DB-13)."""
        ahead = line.pop(min(line.count, self._max_rows))
        first = ahead[0].sequence
        count = 1
        while count < len(ahead) and self._fits(first, ahead[count].sequence):
            count += 1
        line.put_back(ahead)
        return count
