"""The sequence batcher ``oldest``: a sequence has an instance, and its steps join any batch there. Pure.

At most one request of a sequence is in a batch (SQ-13). Across sequences the rules are those of the dynamic batcher
(SEMANTICS §1.6) for requests of one row: `headrace.consumers.dynamic` walks over one queue for all instances, while
here each instance has its own, in the order of admission.
"""

from __future__ import annotations

from bisect import bisect_right

from headrace.consumers.line import Line, LineBatcher
from headrace.consumers.live_sequence import LiveSequence
from headrace.schemas.batch import Batch
from headrace.schemas.model_config import SequenceBatching


class OldestBatcher(LineBatcher):
    """Executions of any of an instance's sequences, the request that waits for longest first (SB-03, SQ-13)."""

    def _seats(self, config: SequenceBatching) -> int:
        self._sizes = config.preferred_batch_size
        self.limit(0)
        return config.max_candidates

    def limit(self, rows: int) -> None:
        """Form no batch of more rows from now on, 0 is ``max_batch_size``; preferred sizes above count no more."""
        self._max_rows = rows or max(1, self._signature.max_batch_size)
        self._preferred = tuple(n for n in self._sizes if not rows or n <= rows)

    def _arm(self, lane: LiveSequence) -> None:
        """Do nothing: what has a slot waits for nothing but its turn."""

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

    def _due_ns(self) -> int | None:
        if self._delay_ns <= 0:
            return None
        decided = [self._decide(line, flush=False) for line in self._lines.values() if line.count]
        return min([until_ns for count, until_ns in decided if not count], default=None)

    def _decide(self, line: Line, *, flush: bool) -> tuple[int, int]:
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

    def _alike_ahead(self, line: Line) -> int:
        """Return how many of the first entries may run together (DB-12, DB-13)."""
        ahead = line.pop(min(line.count, self._max_rows))
        first = ahead[0].sequence
        count = 1
        while count < len(ahead) and self._fits(first, ahead[count].sequence):
            count += 1
        line.put_back(ahead)
        return count
