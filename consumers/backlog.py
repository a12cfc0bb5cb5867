"""Sequences that wait for a slot: first come first served within a partition, partitions in turn (SEMANTICS SQ-07).

A partition is one order for its readers, so a partition with a thousand new sequences must not make the sequences of
all others wait behind them (KX-04): a turn is no longer than a batch. Everything here is found without walking over
what waits. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headrace.consumers.backlog_timeouts import BacklogTimeouts
from headrace.consumers.live_sequence import LiveSequence
from headrace.schemas.batch import Entry
from headrace.schemas.record import TP

MAX_TURN = 64
"""Sequences of one partition at most that get a slot before the next one's do, where a batch has as many rows. What was
read together is together in memory, and its answers are published together: with turns of one, a step costs a fifth
more."""

_SLACK = 256
"""Stale heap items that are tolerated before tidying up."""


@dataclass(frozen=True, slots=True)
class BacklogBounds:
    """What may wait for slots of one model version whose sequences cannot be parked (DESIGN §7).

    Attributes:
        sequences: Backlogged sequences per input partition; a START beyond them is answered ``queue_full``.
        records: Their queued requests over all partitions; beyond, the newest backlogged sequence is answered so.
        span: Offsets between the oldest request that waits in a partition's backlog and the newest one that was
            read; from there on the sequence of the oldest one is answered so: its partition could not be read further.
        size: Bytes of those requests' values; beyond, the newest backlogged sequence is answered so.
    """

    sequences: int
    records: int
    span: int
    size: int


class _Partition:
    """What waits of one partition: lanes in order of coming, with their numbers; and the offsets of their heads."""

    __slots__ = ("heads", "lanes")

    def __init__(self) -> None:
        # An ordered dict: the first of a plain one is found by walking over the places of all that left before.
        self.lanes: OrderedDict[LiveSequence, int] = OrderedDict()
        self.heads: list[tuple[int, int, LiveSequence]] = []


class Backlog:
    """Lanes without a slot whose head could run. The head of a lane does not change while the lane is in here.

    Attributes:
        size: Number of lanes.
        timeouts: Of all lanes of the batcher; those of the lanes in here count (SQ-09).
    """

    def __init__(self, bounds: BacklogBounds | None, *, rows: int = 1) -> None:
        """Start empty.

        Args:
            bounds: None lets any number wait.
            rows: Of a batch: a partition's turn is as long, up to `MAX_TURN`.
        """
        self.timeouts = BacklogTimeouts()
        self._bounds = bounds
        self._partitions: OrderedDict[TP, _Partition] = OrderedDict()  # whose turn it is first
        self.size = 0
        self._records = 0
        self._sizes: dict[
            LiveSequence, int
        ] = {}  # bytes of what each lane has queued, where there are bounds
        self._bytes = 0
        self._number = 0
        self._turn = max(1, min(rows, MAX_TURN))
        self._left_of_turn = self._turn
        self._newest: dict[TP, int] = {}  # offset that was read last, where there are bounds

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Backlog({self.size} sequences of {len(self._partitions)} partitions, {self._records} records)"

    def __contains__(self, lane: LiveSequence) -> bool:
        """Whether a lane waits here."""
        part = self._partitions.get(lane.tp)
        return part is not None and lane in part.lanes

    def add(self, lane: LiveSequence) -> None:
        """Let a lane wait behind the others of its partition."""
        assert lane.head is not None
        part = self._partitions.get(lane.tp)
        if part is None:
            part = self._partitions[lane.tp] = _Partition()
        self._number += 1
        part.lanes[lane] = self._number
        self.size += 1
        self._records += lane.waiting
        if self._bounds is not None:
            heappush(part.heads, (lane.head.record.offset, self._number, lane))
            self._sizes[lane] = size = sum(map(_size, lane))
            self._bytes += size
        if self.timeouts.times:
            self.timeouts.arm(lane)

    def grow(self, lane: LiveSequence) -> None:
        """Take note of a request that was queued behind others of a lane in here."""
        self._records += 1
        if self._bounds is not None:
            assert lane.tail is not None
            size = _size(lane.tail)
            self._sizes[lane] += size
            self._bytes += size
        if self.timeouts.times:
            self.timeouts.arm(lane)

    def next(self) -> LiveSequence:
        """Return the lane whose turn it is; there is one."""
        part = next(iter(self._partitions.values()))
        return next(iter(part.lanes))

    def pop(self) -> LiveSequence:
        """Take out the lane whose turn it is; after a turn of them its partition comes behind all others."""
        tp, part = next(iter(self._partitions.items()))
        lane, _ = part.lanes.popitem(last=False)
        if self._bounds is None and not self.timeouts.times:
            self.size -= 1
            self._records -= lane.waiting
        else:
            self._left(part, lane)
        self._left_of_turn -= 1
        if not part.lanes:
            del self._partitions[tp]
            self._left_of_turn = self._turn
        elif self._left_of_turn <= 0:
            self._partitions.move_to_end(tp)
            self._left_of_turn = self._turn
        return lane

    def exchange(self, lane: LiveSequence, head: Entry) -> LiveSequence | None:
        """Let a lane wait and take out the one whose turn it is, which there is, if that one's request is older.

        Args:
            lane: Has a slot so far.
            head: Its request.
        """
        part = next(iter(self._partitions.values()))
        first = next(iter(part.lanes))
        assert first.head is not None
        if first.head.admitted_ns >= head.admitted_ns:
            return None
        self.pop()
        self.add(lane)
        return first

    def remove(self, lane: LiveSequence) -> None:
        """Take a lane out, wherever it stands; its queue is as long as it was."""
        part = self._partitions[lane.tp]
        del part.lanes[lane]
        self._left(part, lane)
        if not part.lanes:
            del self._partitions[lane.tp]

    def drop(self, tp: TP) -> Sequence[LiveSequence]:
        """Take out all lanes of a partition."""
        self._newest.pop(tp, None)
        part = self._partitions.pop(tp, None)
        if part is None:
            return ()
        self.size -= len(part.lanes)
        self._records -= sum(lane.waiting for lane in part.lanes)
        if self._bounds is not None:
            self._bytes -= sum(map(self._sizes.pop, part.lanes))
        return list(part.lanes)

    def _left(self, part: _Partition, lane: LiveSequence) -> None:
        self.size -= 1
        self._records -= lane.waiting
        if self.timeouts.times:
            self.timeouts.disarm(lane)
        if self._bounds is None:
            return
        self._bytes -= self._sizes.pop(lane)
        if len(part.heads) > _SLACK + 2 * len(part.lanes):
            part.heads = [item for item in part.heads if part.lanes.get(item[2]) == item[1]]
            heapify(part.heads)

    # --- bounds ---

    def read(self, tp: TP, offset: int) -> None:
        """Take note that a partition was read up to an offset, at least."""
        if self._bounds is not None:
            self._newest[tp] = max(offset, self._newest.get(tp, 0))

    def full(self, lane: LiveSequence) -> str:
        """Return why there is no room for a lane, or ``""``."""
        if self._bounds is None:
            return ""
        assert lane.head is not None
        part = self._partitions.get(lane.tp)
        if (0 if part is None else len(part.lanes)) >= self._bounds.sequences:
            return (
                f"{self._bounds.sequences} sequences of partition {lane.tp.partition} wait for a slot already, "
                "expected fewer"
            )
        return (
            self._too_many(lane.waiting)
            or self._too_large(sum(map(_size, lane)))
            or self._too_far(lane.tp, lane.head)
        )

    def excess(self, tps: Iterable[TP]) -> tuple[LiveSequence, str] | None:
        """Return a lane that cannot stay, and why; None if all can.

        Args:
            tps: Partitions that were read on.
        """
        if self._bounds is None or not self.size:
            return None
        if why := self._too_many(0) or self._too_large(0):
            return self._last(), why
        for tp in tps:
            lane = self._oldest(tp)
            head = None if lane is None else lane.head
            if lane is not None and head is not None and (why := self._too_far(tp, head)):
                return lane, why
        return None

    def _too_many(self, more: int) -> str:
        assert self._bounds is not None
        records = self._records + more
        if records <= self._bounds.records:
            return ""
        return f"{records} requests would wait for a slot, expected at most {self._bounds.records}"

    def _too_large(self, more: int) -> str:
        assert self._bounds is not None
        size = self._bytes + more
        if size <= self._bounds.size:
            return ""
        return (
            f"requests of {size} bytes would wait for a slot, expected at most {self._bounds.size}"
        )

    def _too_far(self, tp: TP, head: Entry) -> str:
        assert self._bounds is not None
        span = self._newest.get(tp, 0) - head.record.offset
        if span < self._bounds.span:
            return ""
        return (
            f"partition {tp.partition} is read {span} offsets beyond this sequence's first one, expected less than "
            f"{self._bounds.span}"
        )

    def _last(self) -> LiveSequence:
        """Return the lane that came last; walks over partitions only."""
        lasts = [next(reversed(part.lanes.items())) for part in self._partitions.values()]
        return max(lasts, key=lambda last: last[1])[0]

    def _oldest(self, tp: TP) -> LiveSequence | None:
        """Return the lane of a partition whose head has the lowest offset, None if none waits.

        That need not be the one that came first: a sequence whose predecessor of the same id had a slot comes late.
        """
        part = self._partitions.get(tp)
        if part is None:
            return None
        heads = part.heads
        while part.lanes.get(heads[0][2]) != heads[0][1]:
            heappop(heads)
        return heads[0][2]


def _size(entry: Entry) -> int:
    """Return what an entry counts for among the bytes that intake admits."""
    value = entry.record.value
    return 0 if value is None else len(value)
