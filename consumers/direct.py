"""The sequence batcher ``direct``: a sequence has a row of an instance. Pure.

A model may keep the memory of each row by itself (SEMANTICS SQ-11): such a model's sequences have a row each, from
START to END, and are not parked. Where the model declares its states, a row is nobody's memory. There each sequence has
a row of its own as long as no more of them are live than an instance has rows; more of them share the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from headrace.consumers.line import Line, LineBatcher
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.slots import INSTANCE_BITS
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.model_config import SequenceBatching


class DirectBatcher(LineBatcher):
    """Executions of at most one request per row, in the order of the rows (SB-02, SQ-10…SQ-12).

    Of a model with memory of its own an instance has one execution at a time. Rows below the highest one that runs are
    padded where they have nothing ready; rows above it are not sent. Where sequences share the rows, the requests that
    wait for longest run, and no row is padded.
    """

    SEATS: ClassVar[int] = 4096
    """Slots of an instance where rows are shared: as many sequences may have a request queued at a time by default, so
    hardly ever does one wait for another's slot."""

    def _seats(self, config: SequenceBatching) -> int:
        self._width = max(1, self._signature.max_batch_size)
        self._enough = config.min_slot_utilization * self._width
        return max(self._width, self.SEATS) if config.states else self._width

    def _make_ready(self, lane: LiveSequence) -> None:
        super()._make_ready(lane)
        if self._timeouts.times:
            self._arm(lane)

    def _make_all_ready(self, lanes: Sequence[LiveSequence]) -> None:
        super()._make_all_ready(lanes)
        if self._timeouts.times:
            for lane in lanes:
                self._arm(lane)

    def _withdraw(self, lane: LiveSequence) -> None:
        super()._withdraw(lane)
        self._timeouts.disarm(lane)

    def _arm(self, lane: LiveSequence) -> None:
        # Without a row of its own it waits for one, as it would in the backlog.
        if lane.running is None and lane.slot >> INSTANCE_BITS >= self._width:
            self._timeouts.arm(lane)

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Return the batch that an instance should run now, or None to wait.

        Args:
            instance: Which one is free.
            now_ns: Monotonic time.
            flush: Do not wait for more slots to become ready.
        """
        self._now_ns = now_ns
        line = self._lines.get(instance)
        if line is None or not line.count or not (flush or self._is_due(line)):
            return None
        entries = line.pop(min(line.count, self._width))
        if self._must_compare and len(entries) > 1:
            # The longest waiting one decides, so that none waits for ever behind lower rows of another shape.
            entries = self._alike_ones(line, entries)
        if self._timeouts.times:
            for entry in entries:
                self._timeouts.disarm(entry.sequence)
        self._started(entries, len(entries))
        return self._placed(entries)

    def _alike_ones(self, line: Line, entries: list[Entry]) -> list[Entry]:
        """Return those that may run together with the first one; the others stand in line again."""
        first: LiveSequence = entries[0].sequence
        alike: list[Entry] = []
        others: list[Entry] = []
        for entry in entries:
            fits = entry is entries[0] or self._fits(first, entry.sequence)
            (alike if fits else others).append(entry)
        line.put_back(others)
        return alike

    def _placed(self, entries: Sequence[Entry]) -> Batch:
        """Start entries in their rows, if each has one of its own; else in any."""
        initial = self._initial
        rows = [_row(entry) for entry in entries]
        height = max(rows) + 1
        if height == len(rows) or height > self._width:
            if height == len(rows):
                entries = sorted(entries, key=_row)
            states = [entry.sequence.start(initial) for entry in entries]
            return Batch(self._signature, entries, states)
        # Nobody reads it, but its shapes must be the others'.
        padding = self._before(entries[0].sequence) if self._varies else initial
        placed: list[Entry | None] = [None] * height
        states = [padding] * height
        for row, entry in zip(rows, entries, strict=True):
            placed[row] = entry
            states[row] = entry.sequence.start(initial)
        return Batch(self._signature, placed, states)

    def _is_due(self, line: Line) -> bool:
        """Whether enough slots are ready, or the oldest request has waited for the delay (SB-02)."""
        if line.count >= self._enough:
            return True
        return self._now_ns - line.oldest_ns() >= self._delay_ns

    def _due_ns(self) -> int | None:
        if self._enough <= 0 or self._delay_ns <= 0:
            return None
        waiting = [line for line in self._lines.values() if line.count and not self._is_due(line)]
        return min([line.oldest_ns() + self._delay_ns for line in waiting], default=None)


def _row(entry: Entry) -> int:
    slot: int = entry.sequence.slot
    return slot >> INSTANCE_BITS
