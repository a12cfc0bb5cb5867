"""When a sequence has waited too long for a slot (SEMANTICS SQ-09). Pure.

Any queued request of a sequence may carry a timeout or a deadline; the first that passes ends the sequence, but only
while it waits in the backlog for its first step (DELIVERY P-15). So a sequence's times are kept from a request's
admission until it leaves the queue, and count only while the sequence is *armed*. A live sequence never is, though it
may wait for a slot too: that it was parked, or came from another worker, is our doing, and its client asked for a
step of something that exists.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

from headrace.consumers.live_sequence import LiveSequence
from headrace.schemas.batch import Entry
from headrace.schemas.sequence import Flag

_SLACK = 256
"""Stale heap items that are tolerated before tidying up."""


_Time: TypeAlias = tuple[int, int, bool]
"""Time in ns, offset of the request, whether it is a deadline. A plain tuple: calls through a gateway all have one."""


class BacklogTimeouts:
    """Times of all lanes, and the soonest of each armed one in one heap.

    Attributes:
        times: Each lane's that has any: while it is empty, nobody need call anything.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.times: dict[LiveSequence, list[_Time]] = {}
        self._armed: dict[LiveSequence, int] = {}
        self._heap: list[tuple[int, int, bool, LiveSequence]] = []
        self._ticket = 0

    def note(self, lane: LiveSequence, entry: Entry) -> None:
        """Keep a queued request's own time, if it has one; an armed lane is armed anew by the caller."""
        timeout_at = entry.admitted_ns + entry.timeout_us * 1000 if entry.timeout_us > 0 else 0
        when_ns = timeout_at or entry.expires_ns
        if not when_ns:
            return
        is_deadline = bool(entry.expires_ns) and entry.expires_ns <= when_ns
        if is_deadline:
            when_ns = entry.expires_ns
        times = self.times.get(lane)
        if times is None:
            self.times[lane] = [(when_ns, entry.record.offset, is_deadline)]
            return
        heappush(times, (when_ns, entry.record.offset, is_deadline))
        if len(times) > _SLACK + 2 * lane.waiting:
            assert lane.head is not None
            first = lane.head.record.offset
            times[:] = [time for time in times if time[1] >= first]
            heapify(times)

    def arm(self, lane: LiveSequence) -> None:
        """Let a lane's times count from now on: it waits for a slot; those of a live sequence never do."""
        times = self.times.get(lane)
        if times is None or (lane.state is not None and lane.state.flag is Flag.LIVE):
            return
        assert lane.head is not None
        first = lane.head.record.offset
        while times and times[0][1] < first:  # that request has left the queue
            heappop(times)
        if not times:
            del self.times[lane]
            return
        self._ticket += 1
        self._armed[lane] = self._ticket
        heappush(self._heap, (times[0][0], self._ticket, times[0][2], lane))
        if len(self._heap) > _SLACK + 2 * len(self._armed):
            self._heap = [item for item in self._heap if self._armed.get(item[3]) == item[1]]
            heapify(self._heap)

    @property
    def armed(self) -> int:
        """How many lanes' times count."""
        return len(self._armed)

    def disarm(self, lane: LiveSequence) -> None:
        """Let them count no more: the lane got its slot."""
        self._armed.pop(lane, None)

    def forget(self, lane: LiveSequence) -> None:
        """Forget a lane of which nothing is queued here any more."""
        self.times.pop(lane, None)
        self._armed.pop(lane, None)

    def pop(self, now_ns: int) -> tuple[LiveSequence, bool] | None:
        """Take out a lane whose time has passed, and whether it is a deadline; a time is served at its very instant."""
        heap = self._heap
        while heap and heap[0][0] < now_ns:
            _, ticket, is_deadline, lane = heappop(heap)
            if self._armed.get(lane) == ticket:
                del self._armed[lane]
                return lane, is_deadline
        return None

    def wake_at(self) -> int | None:
        """Return when the soonest time of an armed lane has passed."""
        heap = self._heap
        while heap and self._armed.get(heap[0][3]) != heap[0][1]:
            heappop(heap)
        return heap[0][0] + 1 if heap else None
