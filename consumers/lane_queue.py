"""What becomes of a sequence next: it runs, waits, moves, is refused or rests (SEMANTICS §1.7, §4.6). Pure.

Rules of this module:

1. A lane (`headrace.consumers.live_sequence.LiveSequence`) is *idle* (nothing queued, nothing runs), *running*, or
   its head decides: an entry with an error is refused, one for another version moves the lane there, and any other
   makes the lane *ready* if it has a slot, and *backlogged* if there is none (SQ-07).
2. A lane keeps its slot until its sequence has ended and nothing of it runs. Where the model declares its states,
   they are in memory whoever has the slot; so there a lane is *parked*, which means without its slot, when it is
   idle and another one waits, or when its own next request is younger than the one that waits. What is parked and
   asked for its next step waits in the backlog too, behind those that came before it. A slot therefore always
   comes as steps end, whatever ENDs were not read yet; so this backlog has no bounds of its own: what is in it are
   records that intake admitted, and their number is bounded there.
3. A model with memory of its own finds it by slot, so no lane is parked, and who waits in its backlog has not begun.
   There the backlog is bounded, in sequences, records, bytes and offsets, and what exceeds it is answered
   ``queue_full``: else a partition could not be read on to the END that frees a slot.
4. Only what has not begun expires in a backlog (SQ-09): a live sequence that waits there waits as long as it takes
   (P-15).
5. A lane's requests are answered in order. What is refused stays at the head of its lane until the caller fetches
   it, and the lane runs nothing before. What `done` brings about is to be answered behind the batch.
6. Nothing walks over all lanes: what a call costs depends on what it takes, ends or refuses. Only where a partition
   is given up are the slots looked through for its lanes.

Priority is ignored (SQ-15).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from headrace.consumers.alike import Alike
from headrace.consumers.backlog import Backlog, BacklogBounds
from headrace.consumers.batcher import Refusal
from headrace.consumers.live_sequence import NO_SLOT, LiveSequence
from headrace.consumers.queues import request_prefix
from headrace.consumers.slot_holders import SlotHolders
from headrace.consumers.slots import Slots
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, QueueFull
from headrace.schemas.model_config import SequenceBatching
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Signature

_LIVE = Flag.LIVE


class LaneQueue(ABC):
    """The lanes of one model version. The strategies say what `ready` is; `SequenceBatcher` has the port's calls.

    Attributes:
        version: Model version.
    """

    def __init__(
        self,
        signature: Signature,
        config: SequenceBatching,
        *,
        version: int,
        initial: SequenceState,
        instances: int,
        bounds: BacklogBounds,
        on_idle: Callable[[LiveSequence], None],
        on_moved: Callable[[LiveSequence], None],
    ) -> None:
        """Start with all slots free.

        Args:
            signature: Of the model version.
            config: Its ``sequence_batching``.
            version: Its number.
            initial: Every sequence's state at START.
            instances: How many there are, numbered from 0.
            bounds: Of the backlog; without effect where the model declares its states.
            on_idle: Told each time that a lane has become idle, open or not; it has no slot then if it is not.
            on_moved: Told that a lane's next request runs on another version; it has left this batcher.
        """
        self.version = version
        self._signature = signature
        self._initial = initial
        self._parks = bool(config.states)
        self._delay_ns = config.max_queue_delay_us * 1000
        self._on_idle = on_idle
        self._on_moved = on_moved
        self._alike = Alike(signature)
        self._varies = any(dim < 0 for state in config.states for dim in state.dims)
        self._must_compare = self._alike.must_compare or self._varies
        slots = Slots(self._prepare(config), range(instances))
        self._holders = SlotHolders(slots, parks=self._parks)
        # Where a slot is kept to the END, a turn of many would be one of long duration.
        self._backlog = (
            Backlog(None, rows=signature.max_batch_size) if self._parks else Backlog(bounds)
        )
        self._timeouts = self._backlog.timeouts
        # Lanes of which nothing runs and whose head is to be answered with its error.
        self._refusing: dict[LiveSequence, None] = {}
        self._refusing_since = 0
        self._by_id: dict[bytes, dict[Entry, None]] = {}
        self._size = 0
        self._now_ns = 0

    @abstractmethod
    def _prepare(self, config: SequenceBatching) -> int:
        """Make the strategy's own tables; returns the number of slots of an instance (SB-11)."""

    @abstractmethod
    def _make_ready(self, lane: LiveSequence) -> None:
        """Let `take` have a lane: it has a slot, and its head may run."""

    @abstractmethod
    def _make_all_ready(self, lanes: Sequence[LiveSequence]) -> None:
        """Do that for several lanes, in this order."""

    @abstractmethod
    def _withdraw(self, lane: LiveSequence) -> None:
        """Undo that for a lane that is ready; its head is still there."""

    @abstractmethod
    def _arm(self, lane: LiveSequence) -> None:
        """Let the times of a lane that has a slot and something queued count, if it waits all the same (SQ-09)."""

    def __len__(self) -> int:
        """Return the number of queued entries, executing ones not counted."""
        return self._size

    def _push(self, entries: Sequence[Entry], now_ns: int) -> list[LiveSequence]:
        """Queue entries; returns the lanes that have become busy by it and are not ready yet."""
        woken: list[LiveSequence] = []
        ready: list[LiveSequence] = []
        for entry in entries:
            entry.admitted_ns = now_ns
            lane: LiveSequence = entry.sequence
            is_first = lane.head is None
            lane.push(entry)
            if entry.timeout_us or entry.expires_ns or entry.correlation_id:
                self._note(lane, entry)
            if not is_first:
                if lane.slot != NO_SLOT:
                    if self._timeouts.times:
                        self._arm(lane)
                elif lane in self._backlog:
                    self._backlog.grow(lane)
            elif lane.running is None:
                if lane.slot == NO_SLOT:
                    woken.append(lane)
                    continue
                # At once, before the slot is given to another lane of this block.
                self._holders.wake(lane)
                if entry.error is None and entry.version == self.version:
                    ready.append(lane)
                else:
                    woken.append(lane)
        self._make_all_ready(ready)
        return woken

    def _advance(self, lane: LiveSequence) -> None:
        """Decide by a lane's head what becomes of it; nothing of it runs."""
        assert lane.head is not None
        if lane.head.error is None:
            self._proceed(lane)
            return
        if not self._refusing:
            self._refusing_since = self._now_ns
        self._refusing[lane] = None

    def _proceed(self, lane: LiveSequence) -> None:
        """Let a lane's head run: it has no error, and nothing of the lane runs."""
        head, state = lane.head, lane.state
        assert head is not None
        if lane.slot != NO_SLOT and state is not None and state.flag is not _LIVE:
            # The sequence is over, and its successor waits like any other new one (SQ-05, KX-03).
            self._holders.free(lane)
            self._fill()
        if head.version != self.version:
            self._holders.free(lane)
            self._size -= lane.waiting
            for entry in lane:
                self._forget(entry)
            self._timeouts.forget(lane)
            self._fill()
            self._on_moved(lane)
        elif lane.slot == NO_SLOT:
            self._admit(lane)
        elif not (self._parks and self._backlog.size and self._gives_way(lane, head)):
            self._make_ready(lane)

    def _gives_way(self, lane: LiveSequence, head: Entry) -> bool:
        """Park a lane that could go on if a backlogged one, whose turn it is, has a request that waits for longer."""
        if self._holders.is_leaving(lane):
            first = self._backlog.next().head
            assert first is not None
            if first.admitted_ns >= head.admitted_ns:
                return False
            self._holders.park(lane)
            self._fill()
            self._admit(lane)
            return True
        waiting = self._backlog.exchange(lane, head)
        if waiting is None:
            return False
        self._holders.hand_over(lane, waiting)
        self._make_ready(waiting)
        return True

    def _rest(self, lane: LiveSequence) -> None:
        """Take note that a lane has become idle."""
        if lane.is_dropped:
            self._holders.free(lane)
            return
        if lane.slot != NO_SLOT:
            waits = self._backlog.size
            if waits and self._parks and lane.is_open and not self._holders.is_leaving(lane):
                waiting = self._backlog.pop()
                self._holders.hand_over(lane, waiting)
                self._make_ready(waiting)
            else:
                self._holders.rest(lane)
                if waits:
                    self._fill()  # before another lane of this batch passes its slot on for nothing
        if self._timeouts.times:
            self._timeouts.forget(lane)
        self._on_idle(lane)

    def _admit(self, lane: LiveSequence) -> None:
        """Give a lane a slot or let it wait; behind those that wait already."""
        if not self._backlog.size and self._holders.seat(lane):
            self._make_ready(lane)
        elif not self._parks and (why := self._backlog.full(lane)):
            lane.doom(partial(self._queue_full, why=why))
            self._advance(lane)
        else:
            self._backlog.add(lane)

    def _fill(self) -> None:
        """Give slots to those that wait, as far as there are any."""
        while self._backlog.size:
            lane = self._backlog.next()
            if not self._holders.seat(lane):
                return
            self._backlog.pop()
            self._make_ready(lane)

    def _doom(self, lane: LiveSequence, make: Callable[[Entry], InferError]) -> None:
        """End a lane with all that is queued of it; what runs goes on, and the errors follow it."""
        lane.doom(make)
        if lane.running is not None or lane in self._refusing:
            return
        if lane.slot == NO_SLOT:
            self._backlog.remove(lane)
        else:
            self._withdraw(lane)
        self._advance(lane)

    def _fetch(self) -> Sequence[Refusal]:
        """Take out and return what is refused, each lane's in order, and let the lanes go on."""
        refused: list[Refusal] = []
        while self._refusing:
            lanes, self._refusing = self._refusing, {}
            for lane in lanes:
                while (head := lane.head) is not None and head.error is not None:
                    lane.pop()
                    self._forget(head)
                    lane.refuse(head)
                    refused.append(Refusal(head, head.error))
                    self._size -= 1
                if head is None:
                    self._rest(lane)
                else:
                    self._proceed(lane)
            self._fill()
        return refused

    def _queue_full(self, entry: Entry, why: str) -> InferError:
        return QueueFull(
            f"{request_prefix(entry)}Exceeds maximum queue size of the backlog of model "
            f"'{self._signature.model_name}': {why}"
        )

    def _note(self, lane: LiveSequence, entry: Entry) -> None:
        """Keep what is not always there: correlation id, timeout, deadline."""
        if entry.correlation_id:
            self._by_id.setdefault(entry.correlation_id, {})[entry] = None
        self._timeouts.note(lane, entry)

    def _forget(self, entry: Entry) -> None:
        """Undo that for an entry that has left the queue, but for its times: those are the lane's."""
        if entry.correlation_id:
            same = self._by_id[entry.correlation_id]
            del same[entry]
            if not same:
                del self._by_id[entry.correlation_id]

    def _leave(self, lane: LiveSequence) -> list[Entry]:
        """Empty a lane's queue."""
        entries = lane.clear()
        for entry in entries:
            self._forget(entry)
        self._timeouts.forget(lane)
        self._size -= len(entries)
        return entries

    def _withdraw_all(self, tp: TP) -> Sequence[LiveSequence]:
        """Let no lane of a partition wait for anything; returns those that have no slot."""
        lanes = list(self._backlog.drop(tp))
        for lane in self._holders.of(tp):
            if lane.head is not None and lane.running is None and lane not in self._refusing:
                self._withdraw(lane)
        for lane in [lane for lane in self._refusing if lane.tp == tp]:
            del self._refusing[lane]
            if lane.slot == NO_SLOT:
                lanes.append(lane)
        return lanes
