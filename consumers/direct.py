"""The sequence batcher ``direct``: a sequence has one row of one instance for as long as it has a slot. Pure.

So a model may keep the memory of each row by itself (SEMANTICS SQ-11). Such a model's sequences are not parked: where
a sequence was at START, it is at END.
"""

from __future__ import annotations

from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.slots import INSTANCE_BITS, INSTANCE_MASK
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.model_config import SequenceBatching


class DirectBatcher(SequenceBatcher):
    """Executions of at most one request per slot, in the order of the rows (SB-02, SQ-10…SQ-12).

    An instance has one execution at a time. Rows below the highest one that runs are padded where they have nothing
    ready; rows above it are not sent.
    """

    def _prepare(self, config: SequenceBatching) -> int:
        self._width = max(1, self._signature.max_batch_size)
        self._enough = config.min_slot_utilization * self._width
        # Instance → row → lane that is ready.
        self._ready: dict[int, dict[int, LiveSequence]] = {}
        return self._width

    def _make_ready(self, lane: LiveSequence) -> None:
        slot = lane.slot
        try:
            self._ready[slot & INSTANCE_MASK][slot >> INSTANCE_BITS] = lane
        except KeyError:
            self._ready[slot & INSTANCE_MASK] = {slot >> INSTANCE_BITS: lane}

    def _withdraw(self, lane: LiveSequence) -> None:
        del self._ready[lane.slot & INSTANCE_MASK][lane.slot >> INSTANCE_BITS]

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Return the batch that a free instance should run now, or None to wait.

        Args:
            instance: Which one is free.
            now_ns: Monotonic time.
            flush: Do not wait for more slots to become ready.
        """
        self._now_ns = now_ns
        ready = self._ready.get(instance)
        if not ready or not (flush or self._is_due(ready)):
            return None
        rows = sorted(ready)
        padding = self._initial
        if self._must_compare and len(rows) > 1:
            # The longest waiting one decides, so that none waits for ever behind lower rows of another shape.
            first = min(rows, key=lambda row: (_oldest(ready[row]), row))
            rows = [row for row in rows if row == first or self._fits(ready[first], ready[row])]
        if self._varies:
            padding = self._before(
                ready[rows[0]]
            )  # nobody reads it, but its shapes must be the others'
        entries: list[Entry | None] = [None] * (rows[-1] + 1)
        states = [padding] * len(entries)
        initial = self._initial
        for row in rows:
            lane = ready.pop(row)
            states[row] = lane.start(initial)
            entries[row] = lane.running
        self._started(entries, len(rows))
        return Batch(self._signature, entries, states)

    def _is_due(self, ready: dict[int, LiveSequence]) -> bool:
        """Whether enough slots are ready, or the oldest request has waited for the delay (SB-02)."""
        if len(ready) >= self._enough:
            return True
        return self._now_ns - min(map(_oldest, ready.values())) >= self._delay_ns

    def _due_ns(self) -> int | None:
        if self._enough <= 0 or self._delay_ns <= 0:
            return None
        waiting = [r for r in self._ready.values() if r and not self._is_due(r)]
        return min(
            [min(map(_oldest, ready.values())) + self._delay_ns for ready in waiting], default=None
        )


def _oldest(lane: LiveSequence) -> int:
    assert lane.head is not None
    return lane.head.admitted_ns
