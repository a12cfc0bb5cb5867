"""Which requests of one partition there are, and how each was answered.

A byte per offset, whatever was written: ten million requests take ten megabytes, and long holes nothing. Models of 0..n
responses take four bytes more per offset, and some hundreds per request whose responses are not complete. All of it
comes from a `Budget`, so that an audit ends with a sentence and not with the machine's memory. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from headrace.schemas.record import TP, Record
from headrace.streams.audit_identity import WHOLE, Identity
from headrace.streams.audit_offsets import (
    MASK,
    PAGE,
    SHIFT,
    Budget,
    OffsetBytes,
    OffsetNumbers,
    Progress,
)
from headrace.streams.audit_report import Counts

PRESENT = 0x80
DEAD = 0x40
DOUBLE = 0x20
COMPARED = 0x10
COUNT = 0x0F
"""Answers without an index; stays at its greatest value."""

OPEN_BYTES = 300
"""Bounds what a request with some of its responses takes, and each response that came before another, bytes."""


class Seen(Enum):
    """What a record is to the requests of a partition."""

    FIRST = "first"
    REPEAT = "repeat"
    CONFLICT = "conflict"
    """Behind the last answer: more responses than there were, or a result beside an error."""
    ORPHAN = "orphan"
    OUTSIDE = "outside"
    """Of a request that is not audited: before the range or behind it."""


class PartitionTally:
    """The requests of one partition.

    Attributes:
        tp: The partition.
        start: First offset of the range.
        end: Offset behind its last one.
        newest: An answer whose source is here or above names no request: nothing had been written there yet.
        first_ms: Least timestamp of a request, ms since the epoch; None without any.
        counts: What was found so far.
        unaccounted: Finished requests without an answer, once `close` has counted them.
        unaccounted_span: First offset of such a request, and the one behind the last.
    """

    def __init__(self, tp: TP, start: int, end: int, budget: Budget) -> None:
        """Start with no request known."""
        self.tp = tp
        self.start = start
        self.end = self.newest = end
        self.first_ms: int | None = None
        self.counts = Counts()
        self.unaccounted = 0
        self.unaccounted_span = (0, 0)
        self._budget = budget
        self._progress: Progress | None = None
        self._states = OffsetBytes(budget)
        self._lengths = OffsetNumbers(budget)  # responses of those that have all
        self._open: dict[int, int] = {}  # responses that came without a gap
        self._gaps: dict[int, set[int]] = {}  # those that came behind one
        self._finals: dict[int, int] = {}

    def add_requests(self, records: Sequence[Record]) -> None:
        """Note requests, ascending."""
        first, end = records[0].offset, records[-1].offset + 1
        if end - first == len(records):
            self._states.fill(first, end, PRESENT)
        else:
            for record in records:
                self._states[record.offset] = PRESENT
        self.counts.requests += len(records)
        least = min([record.timestamp for record in records])
        self.first_ms = least if self.first_ms is None else min(self.first_ms, least)

    def narrow(self, start: int) -> None:
        """Take out of the range what is below an offset: it was deleted while we read."""
        self.start = max(self.start, start)
        for number, page in self._states.pages.items():
            gone = min(start - (number << SHIFT), PAGE)
            if gone > 0:
                self.counts.requests -= gone - page[:gone].count(0)
                page[:gone] = bytes(gone)

    def answer(self, identity: Identity) -> Seen:
        """Note an answer that names this partition."""
        offset = identity.offset
        state = self._states[offset]
        if not state:
            return self._stranger(offset)
        if identity.attempt > 1:
            self.counts.retried += 1
        if identity.response != WHOLE:
            return self._response(identity, state)
        if state & COUNT:
            more = 1 if state & COUNT < COUNT else 0
            return self._repeat(offset, state + more)
        if self._lengths.pages and self._lengths[offset]:
            return self._conflict()
        self._states.pages[offset >> SHIFT][offset & MASK] = state + 1
        if self._open or self._gaps:
            self._complete(offset)
        return Seen.FIRST

    def dead_letter(self, offset: int) -> Seen:
        """Note a dead letter."""
        state = self._states[offset]
        if not state:
            return self._stranger(offset)
        if state & DEAD:
            self.counts.dead_letters_repeated += 1
            return Seen.REPEAT
        self._states[offset] = state | DEAD
        self.counts.dead_letters += 1
        return Seen.FIRST

    def close(self, progress: Progress | None) -> None:
        """Count who is answered; an unanswered request is pending unless ``progress`` covers it, None covers all."""
        self._progress = progress
        ends: list[int] = []
        for number in sorted(self._states.pages):
            states = np.frombuffer(self._states.pages[number], np.uint8)
            waiting = (states != 0) & (states & COUNT == 0)
            if number in self._lengths.pages:
                waiting &= self._lengths.pages[number] == 0
            count = int(waiting.sum())
            if progress is not None:
                waiting &= progress.mask(number << SHIFT)
            lost = np.flatnonzero(waiting)
            self.counts.answered += int((states != 0).sum()) - count
            self.counts.pending += count - len(lost)
            self.unaccounted += len(lost)
            if len(lost):
                ends += (number << SHIFT | int(lost[0]), (number << SHIFT | int(lost[-1])) + 1)
        if ends:
            self.unaccounted_span = (ends[0], ends[-1])

    def is_unaccounted(self, offset: int) -> bool:
        """Say whether a request is finished and has no complete answer."""
        state = self._states[offset]
        if not state or state & COUNT or self._lengths[offset]:
            return False
        return self._progress is None or self._progress.covers(offset)

    def explain(self, offset: int) -> str:
        """Return what there is instead of an answer."""
        dead = "a dead letter" if self._states[offset] & DEAD else "nothing"
        if offset not in self._open and offset not in self._gaps:
            return f"{dead} instead of an answer"
        prefix, last = self._open.get(offset, 0), self._finals.get(offset)
        if last is None:
            count = prefix + len(self._gaps.get(offset, ()))
            return f"{count} response{'s' * (count != 1)} and no final one"
        return f"response {prefix} of 0 to {last} is missing"

    def is_doubtful(self, offset: int) -> bool:
        """Say whether a request's answers are to be compared: one was repeated, and that was not done yet."""
        return self._states[offset] & (DOUBLE | COMPARED) == DOUBLE

    def copies(self, offset: int) -> int:
        """Return how many answers without an index a request has, 0 where there may be more than are counted."""
        count = self._states[offset] & COUNT
        return 0 if count == COUNT else count

    def may_repeat(self, identity: Identity) -> bool:
        """Say whether an answer is the first of its identity or a repeat, and not behind the last answer."""
        count, length = self._states[identity.offset] & COUNT, self._lengths[identity.offset]
        if identity.response == WHOLE:
            return count > 0
        return identity.response < length or not (length or count)

    def compared(self, *, is_equal: bool) -> None:
        """Count a repeat as what it was found to be."""
        self.counts.duplicated_unknown -= 1
        if is_equal:
            self.counts.duplicated_equal += 1
        else:
            self.counts.duplicated_different += 1

    def set_compared(self, offset: int) -> None:
        """Note that a request's answers have been compared."""
        self._states[offset] |= COMPARED

    def _response(self, identity: Identity, state: int) -> Seen:
        """Note one of 0..n responses."""
        offset, index = identity.offset, identity.response
        length = self._lengths[offset]
        if length or state & COUNT:
            return self._repeat(offset, state) if index < length else self._conflict()
        prefix = self._open.get(offset, 0)
        gaps = self._gaps.get(offset, set())
        is_repeat = index < prefix or index in gaps
        if not is_repeat and index == prefix:
            self._advance(offset, prefix, gaps)
        elif not is_repeat:
            self._budget.take(OPEN_BYTES)
            self._gaps.setdefault(offset, gaps).add(index)
        if identity.final:
            self._finals.setdefault(offset, index)
        last = self._finals.get(offset, -1)
        if 0 <= last < self._open.get(offset, 0):
            self._complete(offset)
        return self._repeat(offset, state) if is_repeat else Seen.FIRST

    def _advance(self, offset: int, prefix: int, gaps: set[int]) -> None:
        """Note the next response, and those behind it that came before it."""
        if offset not in self._open:
            self._budget.take(OPEN_BYTES)
        prefix += 1
        while prefix in gaps:
            gaps.remove(prefix)
            self._budget.take(-OPEN_BYTES)
            prefix += 1
        self._open[offset] = prefix

    def _complete(self, offset: int) -> None:
        """Keep only the number of a request's responses: the last has come, or an error in its place."""
        prefix, gaps = self._open.pop(offset, 0), self._gaps.pop(offset, set())
        self._finals.pop(offset, None)
        self._budget.take(-OPEN_BYTES * (len(gaps) + (prefix > 0)))
        if prefix:
            self._lengths[offset] = prefix

    def _repeat(self, offset: int, state: int) -> Seen:
        self._states[offset] = state | DOUBLE
        self.counts.duplicated_unknown += 1
        return Seen.REPEAT

    def _conflict(self) -> Seen:
        self.counts.duplicated_different += 1
        return Seen.CONFLICT

    def _stranger(self, offset: int) -> Seen:
        if offset < self.start or self.end <= offset < self.newest:
            return Seen.OUTSIDE
        self.counts.orphaned += 1
        return Seen.ORPHAN
