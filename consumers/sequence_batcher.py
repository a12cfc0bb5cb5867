"""The sequence batcher but for its strategies: the calls of `headrace.consumers.batcher.Batcher`. Pure.

What they decide about a sequence is in `headrace.consumers.lane_queue`, with the rules.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial

from headrace.consumers.backlog import BacklogBounds
from headrace.consumers.batcher import Refusal
from headrace.consumers.lane_queue import LaneQueue
from headrace.consumers.live_sequence import NO_SLOT, LiveSequence
from headrace.consumers.queues import request_prefix
from headrace.consumers.slots import instance_of, row_of
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import Cancelled, DeadlineExceeded, InferError, Reason
from headrace.schemas.record import TP
from headrace.schemas.sequence import SequenceState

__all__ = ["BacklogBounds", "SequenceBatcher"]


class SequenceBatcher(LaneQueue):
    """Sequences of one model version on its instances; see `headrace.consumers.batcher.Batcher`."""

    def __repr__(self) -> str:
        """Show the counts."""
        return (
            f"{type(self).__name__}({self._size} queued, {self.live} live, {self.backlogged} backlogged, "
            f"{len(self._refusing)} refusing)"
        )

    @abstractmethod
    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Return the batch that a free instance should run now, or None to wait."""

    @abstractmethod
    def _due_ns(self) -> int | None:
        """Return when `take` changes its answer by time alone, None if it does not."""

    @property
    def live(self) -> int:
        """Number of lanes that have a slot."""
        return len(self._holders)

    @property
    def parked(self) -> int:
        """How often a lane lost its slot to another one so far."""
        return self._holders.parked

    @property
    def backlogged(self) -> int:
        """Number of lanes that wait for a slot."""
        return self._backlog.size

    def queues(self) -> Sequence[tuple[int, int, int]]:
        """Return the one queue that there is: level 0, queued entries, no ``max_queue_size``."""
        return [(0, self._size, 0)]

    def place(self, lane: LiveSequence) -> tuple[int, int]:
        """Return instance and row of a lane that has a slot."""
        return instance_of(lane.slot), row_of(lane.slot)

    def offer(self, entries: Sequence[Entry], now_ns: int) -> Sequence[Refusal]:
        """Queue entries in their lanes and set their ``admitted_ns``.

        Args:
            entries: In offset order per partition; each has its ``sequence``, whose queue is here or nowhere. An
                ``error`` says that the entry is to be answered in its turn without running.
            now_ns: Monotonic time.

        Returns:
            What is refused by now, in order.
        """
        self._size += len(entries)
        read = {} if self._parks else {entry.tp: entry.record.offset for entry in entries}
        for tp, offset in read.items():
            self._backlog.read(tp, offset)
        woken = self._push(entries, now_ns)
        # Not before: what expires takes along the steps that were taken for its own.
        self._sweep(now_ns)
        for lane in woken:
            self._advance(lane)
        if self._backlog.size:
            self._fill()
            self._shed(read)
        return self._fetch()

    def read_on(self, tp: TP, next_offset: int) -> bool:
        """Take note how far a partition was read, whatever became of its records: another version's, or refused.

        Where a sequence in the backlog holds the partition back by now, it is answered ``queue_full``.

        Args:
            tp: The partition.
            next_offset: The next offset to read.

        Returns:
            Whether there is something to fetch (`expire`).
        """
        if not self._parks:
            self._backlog.read(tp, next_offset - 1)
            self._shed((tp,))
        return bool(self._refusing)

    def _shed(self, tps: Iterable[TP]) -> None:
        """End what exceeds the bounds of the backlog after partitions were read on."""
        while (found := self._backlog.excess(tps)) is not None:
            lane, why = found
            self._doom(lane, partial(self._queue_full, why=why))

    def adopt(self, lane: LiveSequence, now_ns: int) -> None:
        """Take over a lane with its queue: its next request starts it anew on this version. It has no slot."""
        assert lane.slot == NO_SLOT
        assert lane.running is None
        self._now_ns = now_ns
        self._size += lane.waiting
        for entry in lane:
            self._note(lane, entry)
        self._advance(lane)

    def resize(self, instances: Set[int]) -> None:
        """Set which instances exist (SQ-21): removed ones get no new lanes, and serve theirs to the end."""
        self._holders.resize(instances)
        self._fill()

    def done(self, batch: Batch, now_ns: int) -> None:
        """Take note that a batch was executed, or given up: each lane stands where its step left it (SQ-13)."""
        self._sweep(now_ns)
        version, backlog = self.version, self._backlog
        ready: list[LiveSequence] = []
        for entry, before in zip(batch.entries, batch.states, strict=True):
            if entry is None:
                continue
            lane: LiveSequence = entry.sequence
            # Also where the partition was revoked meanwhile: the step is still answered, and its state goes with it.
            lane.finish(before)
            head = lane.head
            if head is None:
                self._rest(lane)
            elif head.error is not None:
                self._advance(lane)
            elif entry.sequence_end or backlog.size or head.version != version:
                self._proceed(lane)
            else:
                ready.append(lane)  # it keeps its slot, for nobody waits
        self._make_all_ready(ready)
        if self._backlog.size:
            self._fill()

    def release(self, lane: LiveSequence) -> None:
        """Take an idle lane's slot away; does nothing if it has none here (FAULTS B87, B88)."""
        if lane.is_idle:
            self._holders.release(lane)
            self._fill()

    def limit(self, rows: int) -> None:
        """Do nothing: a row is a sequence's own place, and what is too large runs in pieces."""

    def lose(
        self, instance: int, batch: Batch, make: Callable[[Entry], InferError], now_ns: int
    ) -> Sequence[Refusal]:
        """End all sequences of an instance that is gone with its memory of them, and with a batch.

        What comes of them later finds that they are lost, until the next START.

        Returns:
            The batch's requests, in its order, then those that were queued behind them.
        """
        self._sweep(now_ns)
        refused: list[Refusal] = []
        lanes = self._holders.on(instance)
        ran: dict[LiveSequence, None] = {}
        for entry in batch.entries:
            if entry is None:
                continue
            lane: LiveSequence = entry.sequence
            ran[lane] = None  # also one whose partition is not ours any more
            lane.running = None
            entry.error = make(entry)
            lane.refuse(entry)
            refused.append(Refusal(entry, entry.error))
        for lane in dict.fromkeys([*ran, *lanes]):
            lane.lose()
            if lane.head is None:
                self._rest(lane)
            elif lane in ran:
                lane.doom(make)
                self._advance(lane)
            else:
                self._doom(lane, make)
        return [*refused, *self._fetch()]

    def cancel(self, ids: Set[bytes]) -> Sequence[Refusal]:
        """End the sequences of the queued entries with these correlation ids, with all that is queued of them (SQ-16).

        Returns:
            What is refused by now; what waits for a running step of its sequence follows in its turn.
        """
        named = [entry for key in sorted(ids & self._by_id.keys()) for entry in self._by_id[key]]
        for lane in dict.fromkeys(entry.sequence for entry in named):
            self._doom(lane, _cancelled)
        self._fill()
        return self._fetch()

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Return what was refused: errors whose turn has come, and sequences that waited too long (SQ-09)."""
        self._sweep(now_ns)
        return self._fetch()

    def drop(self, tp: TP) -> Sequence[Entry]:
        """Remove a partition's lanes without answering: it is revoked or lost. What runs frees its slot at its end."""
        found: list[Entry] = []
        for lane in [*self._withdraw_all(tp), *self._holders.drop(tp)]:
            lane.is_dropped = True
            found += self._leave(lane)
            if lane.running is None:
                self._holders.free(lane)
        self._fill()
        return found

    def suspend(self, tp: TP) -> Sequence[Entry]:
        """Remove a partition's queued entries without answering; its lanes stay with their slots (DELIVERY P-7).

        It is revoked, and may come back before anybody else had it; else `drop` follows.
        """
        found: list[Entry] = []
        for lane in [*self._withdraw_all(tp), *self._holders.of(tp)]:
            if lane.head is None:
                continue
            found += self._leave(lane)
            lane.rewind()
            if lane.running is None:
                self._rest(lane)
        self._fill()
        return found

    def wake_at(self) -> int | None:
        """Return the soonest time at which time alone changes an answer; a past one while refusals wait."""
        if self._refusing:
            return self._refusing_since
        due_ns, timeout_ns = self._due_ns(), self._timeouts.wake_at()
        if due_ns is None or timeout_ns is None:
            return timeout_ns if due_ns is None else due_ns
        return min(due_ns, timeout_ns)

    def _sweep(self, now_ns: int) -> None:
        """End what has waited too long by now; every use of the clock passes here."""
        self._now_ns = now_ns
        while (found := self._timeouts.pop(now_ns)) is not None:
            lane, is_deadline = found
            self._doom(lane, _deadline_passed if is_deadline else _timeout_expired)

    def _started(self, entries: Sequence[Entry | None], count: int) -> None:
        """Take note of what `take` has started."""
        self._size -= count
        if self._by_id:
            for entry in entries:
                if entry is not None:
                    self._forget(entry)

    def _before(self, lane: LiveSequence) -> SequenceState:
        """Return the state from which a lane's head starts."""
        assert lane.head is not None
        if lane.head.sequence_start or lane.state is None:
            return self._initial
        return lane.state

    def _fits(self, first: LiveSequence, lane: LiveSequence) -> bool:
        """Tell whether two lanes' heads may share a batch: alike inputs, and states of the same shapes (SQ-12)."""
        assert first.head is not None
        assert lane.head is not None
        if self._varies and self._before(first).shapes != self._before(lane).shapes:
            return False
        return self._alike.fits(first.head, lane.head)


def _cancelled(entry: Entry) -> InferError:
    return Cancelled(
        f"{request_prefix(entry)}Request cancelled while it was queued, as all queued requests of sequence "
        f"{entry.sequence_id} were"
    )


def _timeout_expired(entry: Entry) -> InferError:
    return DeadlineExceeded(
        f"{request_prefix(entry)}timeout of the corresponding sequence has been expired"
    )


def _deadline_passed(entry: Entry) -> InferError:
    return DeadlineExceeded(
        f"{request_prefix(entry)}timeout of the corresponding sequence has been expired: the deadline of one of its "
        "requests passed in the backlog",
        reason=Reason.DEADLINE_PASSED,
    )
