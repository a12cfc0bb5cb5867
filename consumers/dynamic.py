"""The dynamic batcher: which of the waiting requests a free instance should run together (SEMANTICS §1.6). Pure.

Rules of this module:

1. A batch is a prefix of the queue (`headrace.consumers.queues.EntryQueue`) and is formed in `take`, when an
   instance is free for it. So a request that arrives before that moment is still in time for the batch: what
   Triton needs DB-21 (a formed batch grows while it waits) and DB-25 (formed batches are merged) for holds by
   construction, and batches pile up behind a busy instance by themselves (DB-19).
2. The walk over the queue decides nothing by time. It finds the longest prefix that may run together and the
   best preferred size in it; only then time says which of them goes, or that nothing goes yet.
3. A walk is continued where it stopped as long as entries only came at the queue's end, so each entry is
   looked at once, however often `take` is asked. For a queue of single-row requests with fixed shapes in one
   line the result is known without walking.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice

from headrace.consumers.alike import Alike
from headrace.consumers.queues import EntryQueue
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.model_config import DynamicBatching
from headrace.schemas.signature import Signature


class _Walk:
    """What a walk over the queue has found so far."""

    __slots__ = ("best", "breaks", "count", "first", "oldest_ns", "rows", "stopped")

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.first: Entry | None = None
        self.count = 0  # entries pending
        self.rows = 0  # their rows
        self.best = 0  # entries of the best candidate, 0 is none
        self.stopped = False  # the next entry does not fit
        self.oldest_ns = 0


class DynamicBatcher(EntryQueue):
    """Merges requests up to ``max_batch_size`` rows, by preferred sizes and delay (DB-01…DB-25, DB-31…DB-34).

    One object per model version, shared by its instances (DB-32). Priority levels and queue policies
    (QT-01…QT-07) are the queue's. Answers leave in the order in which batches end; for ``preserve_ordering``
    see `headrace.consumers.ordering`.
    """

    def __init__(self, signature: Signature, config: DynamicBatching) -> None:
        """Start empty.

        Args:
            signature: Of the model version.
            config: Its ``dynamic_batching``.
        """
        super().__init__(config)
        self._signature = signature
        self._sizes = tuple(sorted(config.preferred_batch_size))
        self.limit(0)
        self._delay_ns = config.max_queue_delay_us * 1000
        self._alike = Alike(signature)
        self._must_compare = self._alike.must_compare
        self._now_ns = 0

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:  # noqa: ARG002  # any instance may serve any request (DB-32)
        """Return the batch that a free instance should run now, or None to wait.

        Args:
            instance: Which one is free.
            now_ns: Monotonic time.
            flush: Hold nothing back: everything that may run together goes, as if the delay had passed.
        """
        self.sweep(now_ns)
        count, _ = self._decide(now_ns, flush=flush)
        return Batch(self._signature, self.pop(count)) if count else None

    def limit(self, rows: int) -> None:
        """Form no batch of more rows from now on, 0 is ``max_batch_size``; preferred sizes above count no more."""
        self._max_rows = rows or max(1, self._signature.max_batch_size)
        within = [size for size in self._sizes if not rows or size <= rows]
        self._preferred = tuple(within) or (self._max_rows,)
        self._preferred_rows = frozenset(self._preferred)
        self._largest = self._preferred[-1]
        self._walk = _Walk(self.breaks)

    def wake_at(self) -> int | None:
        """Return when the delay of what is held back is over, or an entry expires; None if neither is to come.

        What `take` would already return does not count: only a free instance changes that.
        """
        expiry_ns = super().wake_at()
        count, until_ns = self._decide(self._now_ns, flush=False)
        if count or not len(self):
            return expiry_ns
        return until_ns if expiry_ns is None else min(until_ns, expiry_ns)

    def sweep(self, now_ns: int) -> None:
        """Take out what has expired by now, see `EntryQueue.sweep`; every use of the clock passes here."""
        self._now_ns = now_ns
        super().sweep(now_ns)

    def _decide(self, now_ns: int, *, flush: bool) -> tuple[int, int]:
        """Return how many entries to run now; or 0, and the time until which the queue is held back."""
        size = len(self)
        if not size:
            return 0, 0
        head = None if self._must_compare else self.head_of_singles()
        if head is not None:
            # All sizes from 1 on are passed, so the walk's candidate is the largest preferred one within reach.
            count = rows = min(size, self._max_rows)
            below = bisect_right(self._preferred, rows)
            best = self._preferred[below - 1] if below else 0
            stopped = size > count
            oldest_ns = head.admitted_ns
        else:
            walk = self._walked()
            count, rows, best, stopped = walk.count, walk.rows, walk.best, walk.stopped
            oldest_ns = walk.oldest_ns
        delay_ns = self._delay_ns
        exceeded = flush or (delay_ns > 0 and now_ns - oldest_ns >= delay_ns)
        if best and not exceeded:  # DB-16
            return best, 0
        if (
            exceeded or stopped or rows >= self._largest or delay_ns <= 0
        ):  # DB-17, DB-12, DB-13, DB-18, DB-19
            return count, 0
        return 0, oldest_ns + delay_ns  # DB-20

    def _walked(self) -> _Walk:
        """Return the walk over the queue as it is now."""
        walk = self._walk
        if walk.breaks != self.breaks:
            walk = self._walk = _Walk(self.breaks)
        if walk.stopped:
            return walk
        first, count, rows, best = walk.first, walk.count, walk.rows, walk.best
        for entry in islice(self.in_order(), count, None):
            total = rows + entry.rows
            if first is None:
                first = walk.first = entry
                walk.oldest_ns = entry.admitted_ns
            else:
                if total > self._largest and not best:  # DB-14
                    best = count
                if total > self._max_rows or (
                    self._must_compare and not self._fits(first, entry)
                ):  # DB-13, DB-12
                    walk.stopped = True
                    break
                if entry.admitted_ns < walk.oldest_ns:  # noqa: PLR1730  # min() costs as much as the rest of the step
                    walk.oldest_ns = entry.admitted_ns
            count += 1
            rows = total
            if rows in self._preferred_rows:  # DB-15
                best = count
        walk.count, walk.rows, walk.best = count, rows, best
        return walk

    def _fits(self, first: Entry, entry: Entry) -> bool:
        """Tell whether two requests may share a batch (DB-12)."""
        return self._alike.fits(first, entry)
