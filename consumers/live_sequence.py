"""One sequence in memory: what was admitted of it, what runs, and what follows from its last step. Pure.

There are two views. *Admission* reads records ahead: `LiveSequence.is_open` says whether the next record may be a
step, ``timestamp_ms`` when the last one was appended. *Execution* follows behind: `LiveSequence.state` is the
sequence as of its last finished request. Between both lies the queue, a chain of entries (`Entry.next`): an id's
requests are one order whatever incarnation of the sequence they belong to (SEMANTICS KX-03), so a START behind an END
waits in the same chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, Reason
from headrace.schemas.infer import SequenceId
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState

ENDING = {
    Reason.SEQUENCE_EXPIRED: Flag.EXPIRED,
    Reason.SEQUENCE_LOST: Flag.LOST,
    Reason.WORKER_CRASHED: Flag.LOST,
    Reason.TIMEOUT_EXPIRED: Flag.EXPIRED,
    Reason.DEADLINE_PASSED: Flag.EXPIRED,
    Reason.CANCELLED: Flag.ENDED,
    Reason.QUEUE_FULL: Flag.ENDED,
}
"""Errors that end the whole sequence, and what it is afterwards; all others leave it as it was."""

NO_SLOT = -1

_LIVE = Flag.LIVE


class LiveSequence:
    """One id of one partition.

    Attributes:
        key: Type-tagged id.
        text: The id as records carry it in their key.
        sequence_id: The id as clients give it.
        tp: Input partition.
        epoch: Our epoch of the partition's assignment.
        version: Model version of its newest incarnation.
        home: Version whose batcher holds its queue: still the old one's while a START for another version waits.
        state: As of the last finished request, None before the first.
        is_open: Whether a record without START may follow the last admitted one.
        closed_as: If not, why: what such a record is told does not depend on what has run by then.
        timestamp_ms: Record timestamp of the last admitted step.
        head: First queued entry, None if nothing waits.
        tail: Last queued entry.
        waiting: Number of queued entries.
        running: The entry that executes now, or None: at most one (SQ-13).
        slot: Slot of its version's batcher, `NO_SLOT` where it has none.
        is_dropped: Its partition was given up: nothing of it is queued any more, and what runs is its last step here.
    """

    __slots__ = (
        "closed_as",
        "epoch",
        "head",
        "home",
        "is_dropped",
        "is_open",
        "key",
        "running",
        "sequence_id",
        "slot",
        "state",
        "tail",
        "text",
        "timestamp_ms",
        "tp",
        "version",
        "waiting",
    )

    def __init__(
        self,
        key: bytes,
        sequence_id: SequenceId,
        tp: TP,
        epoch: int,
        version: int,
        state: SequenceState | None = None,
    ) -> None:
        """Start with nothing queued, open if the state says so."""
        self.key = key
        self.text = key[2:]
        self.sequence_id = sequence_id
        self.tp = tp
        self.epoch = epoch
        self.version = version
        self.home = version
        self.state = state
        self.is_open = state is not None and state.flag is Flag.LIVE
        self.closed_as = Flag.ENDED if self.is_open or state is None else state.flag
        self.timestamp_ms = 0 if state is None else state.timestamp_ms
        self.head: Entry | None = None
        self.tail: Entry | None = None
        self.waiting = 0
        self.running: Entry | None = None
        self.slot = NO_SLOT
        self.is_dropped = False

    def __repr__(self) -> str:
        """Show where it stands."""
        at = "new" if self.state is None else f"{self.state.flag.name} at {self.state.offset}"
        return f"LiveSequence({self.key.decode()}, {at}, slot={self.slot}, {self.waiting} queued)"

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is queued or runs."""
        return self.head is None and self.running is None

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the queued entries; not while the queue changes."""
        entry = self.head
        while entry is not None:
            yield entry
            entry = entry.next

    def push(self, entry: Entry) -> None:
        """Queue an entry behind the others."""
        if self.tail is None:
            self.head = entry
        else:
            self.tail.next = entry
        self.tail = entry
        self.waiting += 1

    def pop(self) -> Entry:
        """Remove and return the first queued entry."""
        entry = self.head
        assert entry is not None, "nothing is queued"
        self.head = entry.next
        if self.head is None:
            self.tail = None
        entry.next = None
        self.waiting -= 1
        return entry

    def clear(self) -> list[Entry]:
        """Remove and return all queued entries."""
        entries = list(self)
        for entry in entries:
            entry.next = None
        self.head = self.tail = None
        self.waiting = 0
        return entries

    def start(self, initial: SequenceState) -> SequenceState:
        """Take the first queued entry to run it; returns the state that it starts from (SQ-18).

        Args:
            initial: The model's initial state.
        """
        self.running = entry = self.pop()
        before = self.state
        return initial if before is None or entry.sequence_start else before

    def finish(self, before: SequenceState) -> None:
        """Take note that the running step has ended, well or with an error (SQ-17), and how the sequence stands.

        An error leaves the state as it was; END ends the sequence all the same (SQ-05).

        Args:
            before: The state that it started from.
        """
        entry = self.running
        assert entry is not None, "nothing runs"
        self.running = None
        steps, found = before.steps, entry.state_out
        if found is not None:
            steps += 1
            tensors, shapes = found
        else:
            tensors, shapes = before.tensors, before.shapes
        flag = _LIVE
        if entry.sequence_end:
            flag, tensors, shapes = Flag.ENDED, (), ()
        record = entry.record
        # Once per record: without the call of a constructor that would only make this tuple.
        self.state = entry.after = tuple.__new__(
            SequenceState,
            (record.offset, flag, record.timestamp, entry.version, steps, tensors, shapes, ()),
        )

    def doom(self, make: Callable[[Entry], InferError]) -> None:
        """End the sequence with everything that is queued of it (SQ-09, SQ-16): each entry gets its error in its turn.

        What runs goes on, and the entries wait for it: else a snapshot that covers them would cover an answer that
        does not exist yet (P-3).
        """
        self.is_open = False
        for entry in self:
            if entry.error is None:
                entry.error = make(entry)
                self.closed_as = ENDING.get(entry.error.reason, Flag.ENDED)

    def refuse(self, entry: Entry) -> None:
        """Take note that a request was answered with its ``error`` in its turn, without running.

        The offset advances with it, so that nobody answers it again (P-3); an error that ends the sequence makes it a
        marker that says so. A sequence of which nothing is known yet stays unknown after other errors.
        """
        assert entry.error is not None
        before, mark = self.state, ENDING.get(entry.error.reason)
        offset = entry.record.offset
        if before is None:
            if mark is None:
                return
            before = SequenceState(offset, mark, self.timestamp_ms, self.version, 0)
        flag = before.flag if mark is None else mark
        if flag is Flag.LIVE:
            self.state = entry.after = before._replace(offset=offset)
        else:
            self.state = entry.after = before.marked(flag, offset)

    def lose(self) -> None:
        """End the sequence: what the model remembered of it is gone. Nothing of it runs."""
        assert self.running is None, "a step that runs still counts"
        self.is_open, self.closed_as = False, Flag.LOST
        if self.state is not None and self.state.flag is Flag.LIVE:
            self.state = self.state.marked(Flag.LOST, self.state.offset)

    def rewind(self) -> None:
        """Forget what was admitted and is not queued any more: the records will be read again (P-7)."""
        assert self.head is None, "queued entries still count"
        entry, state = self.running, self.state
        if entry is not None:
            self.is_open, self.closed_as = not entry.sequence_end, Flag.ENDED
            self.timestamp_ms, self.version = entry.record.timestamp, entry.version
        elif state is None:
            self.is_open, self.closed_as = False, Flag.ENDED
        else:
            self.is_open = state.flag is Flag.LIVE
            self.closed_as = Flag.ENDED if self.is_open else state.flag
            self.timestamp_ms, self.version = state.timestamp_ms, state.version

    def expire(self) -> SequenceState | None:
        """End an idle sequence that was silent for too long; returns its marker, None if there is none to make."""
        assert self.is_idle, "what is queued decides for itself"
        self.is_open = False
        self.closed_as = Flag.EXPIRED
        if self.state is None or self.state.flag is not Flag.LIVE:
            return None
        self.state = self.state.marked(Flag.EXPIRED, self.state.offset)
        return self.state
