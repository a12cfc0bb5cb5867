"""One input partition, its state topic and its owners, in the smallest form that the delivery's rules can go wrong in.

The store and the fold are the real ones; delivery, group and model are imitated by a few lines each, one atomic act per
method, so that a test or Hypothesis chooses every interleaving: a settle beside a commit, a failed publish that was
written in part, a zombie, a crash, compaction. After every act `World.check` takes the partition over in thought and
compares what the next owner would answer, and hold at the end, with the undisturbed run.

The model is a sequence of the offsets that were applied to it, so a step that is skipped or applied twice shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.consumers.restore import Restored, StateFold
from headrace.consumers.state_store import StateStore
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import SequenceCodec, StateKind
from headrace.streams.log import Position
from headrace.streams.memory_partition import MemoryRecord

INPUT = TP("in", 0)
STATE = "state"
TTL_MS = 1000
IDLE_MS = 1000
"""Not above the markers' time: a zombie's snapshot that its owner never read is too old to go on by then."""

UNKNOWN = "unknown"


class Counterexample(AssertionError):
    """The world is not what the rules promise."""


class Request(NamedTuple):
    """A record of the input partition."""

    key: bytes
    start: bool
    end: bool
    timestamp_ms: int


def step(
    state: SequenceState | None, request: Request, offset: int, token: str
) -> tuple[str, SequenceState | None]:
    """The model that is served: the answer, and the sequence afterwards."""
    at = request.timestamp_ms
    if not request.start:
        if state is None:
            return UNKNOWN, None
        if state.flag is not Flag.LIVE:
            return UNKNOWN, state.marked(state.flag, offset)
        if at - state.timestamp_ms > IDLE_MS:
            return UNKNOWN, state.marked(Flag.EXPIRED, offset)
    before = "" if request.start or state is None else state.tensors[0].decode() + ","
    steps = 1 if request.start or state is None else state.steps + 1
    applied = before + token
    after = SequenceState(offset, Flag.LIVE, at, 1, steps, (applied.encode(),), ((),))
    return applied, after.marked(Flag.ENDED, offset) if request.end else after


class World:
    """The log and the group.

    Attributes:
        requests: The input partition.
        topic: The state partition.
        visible: Offset → answers that a reader has seen.
        committed: Committed offset and finished ones above it.
        owner: Who the group thinks it is.
        zombies: Former owners that do not know, with the time at which they became so.
        now_ms: The clock.
        owners: Takeovers so far.
        reaped: Keys and offsets of sequences that an owner has ended as idle.
    """

    def __init__(
        self,
        *,
        store: Callable[..., StateStore[SequenceState]] = StateStore,
        fold: Callable[[], StateFold] = StateFold,
        record_answers: bool = False,
        ahead: bool | None = None,
        **options: int,
    ) -> None:
        """Begin with an empty log and a first owner.

        Args:
            store: Makes the store of an owner.
            fold: Makes the fold of the state topic.
            record_answers: The model is no function of the log: a second run gives another answer.
            ahead: The store records answers; as ``record_answers`` unless said.
            options: For the store.
        """
        self.make_store = store
        self.make_fold = fold
        self.random = record_answers
        self.ahead = record_answers if ahead is None else ahead
        self.options = {"ended_ttl_ms": TTL_MS, "max_markers": 1000, **options}
        self.requests: list[Request] = []
        self.topic: list[MemoryRecord] = []
        self.visible: dict[int, set[str]] = defaultdict(set)
        self.committed: tuple[int, frozenset[int]] = (0, frozenset())
        self.now_ms = 10_000
        self.owners = 0
        self.runs = 0
        self.reaped: set[tuple[bytes, int]] = set()
        self.end = 0
        self.zombies: list[tuple[int, Owner]] = []
        self.owner = Owner(self)

    def send(self, key: bytes, kind: str) -> None:
        """Append a request; ``kind`` is S, M, E or SE."""
        self.requests.append(Request(key, "S" in kind, "E" in kind, self.now_ms))

    def publish(self, outs: Sequence[Out], upto: int | None = None) -> bool:
        """Produce the first ``upto`` records and say whether all were acknowledged; None is all."""
        for out in outs if upto is None else outs[:upto]:
            if out.topic == STATE:
                self.topic.append(
                    MemoryRecord(STATE, 0, self.end, self.now_ms, out.key, out.value, ())
                )
                self.end += 1
            else:
                offset, value = (out.value or b"").decode().split("=")
                self.visible[int(offset)].add(value)
        return upto is None

    def read(self) -> Restored[SequenceState]:
        """What a takeover finds in the state topic."""
        fold = self.make_fold()
        for at in range(0, len(self.topic), 3):
            fold.add(self.topic[at : at + 3])
        restored: Restored[SequenceState] = Restored()
        for _ in fold.decode(SequenceCodec(()), restored):
            pass
        return restored

    @property
    def can_compact(self) -> bool:
        """Whether a key is in the topic twice."""
        return len({record.key for record in self.topic}) < len(self.topic)

    def compact(self) -> None:
        """Keep the last record of each key, and no tombstones before the end."""
        last = {record.key: record.offset for record in self.topic}
        self.topic = [
            record
            for record in self.topic
            if last[record.key] == record.offset
            and (record.value is not None or record.offset == self.end - 1)
        ]

    def advance(self, ms: int) -> None:
        """Let time pass; no zombie lives as long as a marker (P-2)."""
        self.now_ms += ms
        self.zombies = [
            (since, zombie) for since, zombie in self.zombies if self.now_ms - since < TTL_MS
        ]

    def crash(self) -> None:
        """The owner dies and another one takes over."""
        self.owner = Owner(self)

    def move(self) -> None:
        """The group takes the partition from an owner that goes on as if it had not."""
        self.zombies.append((self.now_ms, self.owner))
        self.owner = Owner(self)

    def finished(self) -> set[int]:
        """Offsets that the committed position says are finished."""
        return {*range(self.committed[0]), *self.committed[1]}

    def undisturbed(self) -> tuple[list[str], dict[bytes, SequenceState]]:
        """Answers and sequences of a run without faults."""
        answers, states = [], {}
        for offset, request in enumerate(self.requests):
            answer, after = step(states.get(request.key), request, offset, str(offset))
            answers.append(answer)
            if after is not None:
                states[request.key] = after
        return answers, states

    def check(self) -> None:
        """Compare what is visible, and what a next owner would make of it, with the undisturbed run.

        Raises:
            Counterexample: They differ.
        """
        try:
            self.take_over_in_thought()
        except AssertionError as exc:
            raise Counterexample(str(exc)) from exc

    def take_over_in_thought(self) -> None:
        """Do what a next owner would do, and compare."""
        ideal, live = self.undisturbed()
        restored = self.read()
        assert not restored.failures
        finished, states = self.finished(), restored.states
        for offset in finished:
            assert self.visible[offset], f"{offset} is committed and has no answer"
        for offset, seen in self.visible.items():
            assert len(seen) <= 1, f"{offset} is answered {seen}"
            assert self.random or seen <= {ideal[offset]}, f"{offset} is answered {seen}"
        for offset, request in enumerate(self.requests):
            known = states.get(request.key)
            if offset in finished:
                continue
            if known is not None and known.offset >= offset:
                recorded = restored.answers.get(request.key, {}).get(offset)
                self.check_closed(offset, recorded)
                continue
            answer, after = step(known, request, offset, str(offset))
            seen = self.visible[offset] if self.random else {ideal[offset]}
            assert seen <= {answer}, f"{offset} would be answered {answer}, expected {seen}"
            if after is not None:
                states[request.key] = after
        self.check_rest(states, live)

    def check_closed(self, offset: int, recorded: Out | None) -> None:
        """A record that a next owner would not run has its answer."""
        if recorded is None:
            assert self.visible[offset], f"{offset} would never be answered"
            return
        _, value = (recorded.value or b"").decode().split("=")
        assert self.visible[offset] <= {value}, f"{offset} would be answered {value} too"

    def check_rest(
        self, states: dict[bytes, SequenceState], live: dict[bytes, SequenceState]
    ) -> None:
        """The next owner goes on where the undisturbed run stands, but for what the idle reaper has ended."""
        for key in states.keys() | live.keys():
            found, ideal = states.get(key), live.get(key)
            if (
                ideal is not None
                and ideal.flag is Flag.LIVE
                and (key, ideal[0]) not in self.reaped
            ):
                assert found is not None
                assert self.random or found == ideal, f"{key!r} is {found}, expected {ideal}"
                assert found[:2] == ideal[:2]
            else:
                assert not self.is_live(found), f"{key!r} lives on as {found}"

    def is_live(self, state: SequenceState | None) -> bool:
        """Whether a further step could still go on from it."""
        return (
            state is not None
            and state.flag is Flag.LIVE
            and self.now_ms - state.timestamp_ms <= IDLE_MS
        )


class Owner:
    """A worker: intake, execution, settler, committer. It acts on what it believes."""

    def __init__(self, world: World) -> None:
        """Take over: committed position, then state topic."""
        world.owners += 1
        self.world = world
        offset, above = world.committed
        self.finished = {*range(offset), *above}
        self.next = offset
        restored = world.read()
        self.states = dict(restored.states)
        self.store = world.make_store(
            STATE,
            StateKind.SEQUENCE,
            SequenceCodec(()),
            record_answers=world.ahead,
            wall_ms=lambda: world.now_ms,
            on_forgotten=self.forget,
            **world.options,
        )
        self.store.open(INPUT, restored, b"%08x" % world.owners)
        self.queue: list[int] = []
        self.answered: list[int] = []
        self.held: list[Out] = []
        self.outs: list[Out] = []
        self.late: list[Out] = []
        self.settle: tuple[list[Out], list[Out], Position] | None = None
        self.phase = 0
        self.pending: Position | None = None
        self.chunks: Iterator[Sequence[Out]] | None = None
        self.chunk: Sequence[Out] | None = None
        self.committing: Position | None = None

    @property
    def has_work(self) -> bool:
        """Whether something can be read or run."""
        return bool(self.queue) or self.next < len(self.world.requests)

    @property
    def has_unsettled(self) -> bool:
        """Whether a settle would be about something."""
        return bool(self.answered or self.outs or self.late or self.held)

    @property
    def idle(self) -> bool:
        """Whether the reaper would find something."""
        return not self.has_work and any(
            state.flag is Flag.LIVE and not self.world.is_live(state)
            for state in self.states.values()
        )

    def forget(self, tp: TP, keys: Sequence[bytes]) -> None:
        """The store has forgotten these markers."""
        for key in keys:
            assert self.states[key].flag is not Flag.LIVE
            del self.states[key]

    def admit(self) -> None:
        """Read the next record; what is known as finished is closed without running."""
        if self.next >= len(self.world.requests):
            return
        offset, self.next = self.next, self.next + 1
        if offset in self.finished:
            return
        key = self.world.requests[offset].key
        known = self.states.get(key)
        if known is None or known.offset < offset:
            self.queue.append(offset)
            return
        recorded = self.store.answers(INPUT, key, offset)
        if recorded is not None:
            self.put(recorded)
        self.answered.append(offset)

    def run(self, choice: int = 0) -> None:
        """Execute a queued request: any that is the first of its sequence."""
        requests = self.world.requests
        first = {requests[offset].key: offset for offset in reversed(self.queue)}
        if not first:
            return
        offset = sorted(first.values())[choice % len(first)]
        self.queue.remove(offset)
        key = requests[offset].key
        self.world.runs += 1
        token = f"{offset}r{self.world.runs}" if self.world.random else str(offset)
        answer, after = step(self.states.get(key), requests[offset], offset, token)
        out = Out("results", 0, key, f"{offset}={answer}".encode())
        self.put(out)
        self.answered.append(offset)
        if after is not None:
            self.states[key] = after
            self.store.stage(INPUT, {key: after})
        self.store.record(INPUT, [(key, offset, out)])

    def expire(self, key: bytes) -> None:
        """Let the idle reaper end a sequence, once caught up (P-15)."""
        state = self.states.get(key)
        queued = any(self.world.requests[offset].key == key for offset in self.queue)
        if self.next < len(self.world.requests) or queued or state is None:
            return
        if state.flag is Flag.LIVE and not self.world.is_live(state):
            self.world.reaped.add((key, state.offset))
            self.states[key] = state.marked(Flag.EXPIRED, state.offset)
            self.store.stage(INPUT, {key: self.states[key]})

    def put(self, out: Out) -> None:
        """Buffer an answer."""
        (self.held if self.world.ahead else self.outs).append(out)

    def begin(self) -> None:
        """Begin a settle of all that is answered, unless one is under way."""
        if self.settle is not None:
            return
        self.finished.update(self.answered)
        self.answered = []
        first, last = self.store.begin(INPUT)
        self.outs += first
        self.late += [*last, *self.held]
        self.held = []
        self.settle = self.outs, self.late, self.position()
        self.outs, self.late, self.phase = [], [], 0

    def publish(self, upto: int | None = None) -> None:
        """Publish the next part of the settle; ``upto``: it fails after so many records were written."""
        if self.settle is None:
            return
        outs, late, position = self.settle
        if not self.world.publish(outs if self.phase == 0 else late, upto):
            self.outs, self.late = outs + self.outs, late + self.late
            self.settle = None
            return
        self.phase += 1
        if self.phase == 2:
            self.settle = None
            self.pending = position
            self.store.settled(INPUT, position)

    def position(self) -> Position:
        """The lowest unfinished offset and what is finished above it."""
        low = 0
        while low in self.finished:
            low += 1
        above = sorted(offset for offset in self.finished if offset > low)
        return Position(low, ",".join(map(str, above)))

    def start_commit(self) -> None:
        """Begin a commit of what is settled, unless one is under way."""
        if self.committing is None and self.pending is not None:
            self.committing, self.pending = self.pending, None
            self.chunks = self.store.snapshots(INPUT, self.committing)

    def save(self, upto: int | None = None) -> None:
        """Go on with the commit: take a chunk, publish it (``upto`` as in `publish`), or commit when all are out."""
        if self.committing is None:
            return
        if self.chunk is not None:
            chunk, self.chunk = self.chunk, None
            if self.world.publish(chunk, upto):
                self.store.saved(INPUT, chunk)
            else:
                self.fail_commit()
        elif self.chunks is not None:
            self.chunk = next(self.chunks, None)
            if self.chunk is None:
                self.chunks = None
        else:
            self.commit(self.committing)

    def commit(self, position: Position) -> None:
        """Commit, if the group accepts it."""
        self.committing = self.chunks = None
        if self.world.owner is not self:
            return
        above = (
            frozenset(map(int, position.metadata.split(","))) if position.metadata else frozenset()
        )
        assert position.offset >= self.world.committed[0], "backwards"
        self.world.committed = position.offset, above
        self.store.committed(INPUT, position)

    def step(self, steps: int = 1) -> None:
        """Read and run so many requests."""
        for _ in range(steps):
            self.admit()
            self.run()

    def work(self) -> None:
        """Read and run everything that there is."""
        while self.next < len(self.world.requests):
            self.admit()
        while self.queue:
            self.run()

    def finish(self) -> None:
        """Settle everything, and the answers of closed records too."""
        self.begin()
        while self.settle is not None:
            self.publish()

    def save_all(self) -> None:
        """Do everything of a commit but the commit."""
        self.start_commit()
        while self.chunk is not None or self.chunks is not None:
            self.save()

    def fail_commit(self) -> None:
        """Let the commit fail whose snapshots are out."""
        self.pending = self.pending or self.committing
        self.committing = self.chunks = self.chunk = None

    def commit_all(self) -> None:
        """Commit what is settled."""
        self.save_all()
        self.save()
