"""The sequence batcher's contract as properties, for both strategies (SQ-03…SQ-21, KX-03, P-18, FAULTS B87).

Each property drives a whole model (routing, batchers, an accumulator that runs the batches) through a drawn trace;
beside it stand batchers with a planted bug for which it must fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest
from batching_kit import MS
from headrace.consumers.batcher import Refusal
from headrace.consumers.direct import DirectBatcher
from headrace.consumers.live_sequence import NO_SLOT, LiveSequence
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.sequence_batcher import BacklogBounds, SequenceBatcher
from headrace.consumers.slots import INSTANCE_MASK, instance_of, row_of
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError, Reason
from headrace.schemas.sequence import Flag
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sequence_batching_kit import STRATEGIES, SUM, TPS, WIDE, Model, OwnRows

KEYS = 7
PARTITIONS = 3
ENDS = {
    Reason.CANCELLED,
    Reason.TIMEOUT_EXPIRED,
    Reason.DEADLINE_PASSED,
    Reason.QUEUE_FULL,
    Reason.SEQUENCE_EXPIRED,
}
TIMES = {Reason.TIMEOUT_EXPIRED, Reason.DEADLINE_PASSED}


class Ask(NamedTuple):
    """A request to come; its partition is that of its key."""

    key: int
    flags: str
    value: int
    timeout_us: int
    expires_ms: int
    cancel_key: int
    version: int


class Step(NamedTuple):
    """One move of a trace."""

    name: str
    asks: tuple[Ask, ...] = ()
    number: int = 0


class Trace(NamedTuple):
    """A model, and what happens to it."""

    rows: int
    instances: int
    has_states: bool
    candidates: int
    preferred: tuple[int, ...]
    delay_ms: int
    utilization: float
    bounds: BacklogBounds
    versions: tuple[int, ...]
    steps: list[Step]

    def model(self, make: type[SequenceBatcher]) -> Model:
        return Model(
            make,
            rows=self.rows,
            instances=self.instances,
            states=(SUM,) if self.has_states else (),
            candidates=self.candidates,
            preferred=tuple(size for size in self.preferred if size <= max(1, self.rows)),
            delay_ms=self.delay_ms,
            utilization=self.utilization,
            bounds=self.bounds,
            idle_ms=40,
            versions=self.versions,
        )


def asks() -> list[Ask]:
    """Many different requests; drawing one of them is one choice, not seven."""
    luck = Random(0)
    plain = [Ask(key, "S", 1, 0, 0, 0, 1) for key in range(KEYS)]
    plain += [Ask(key, "", 2, 0, 0, 0, 1) for key in range(KEYS)]
    plain += [Ask(key, "E", 3, 0, 0, 0, 1) for key in range(KEYS)]
    mixed = [
        Ask(
            key=luck.randrange(KEYS),
            flags=luck.choice(["", "", "", "S", "S", "E", "SE"]),
            value=luck.randint(1, 100),
            timeout_us=luck.choice([0, 0, 0, 4000, 30_000]),
            expires_ms=luck.choice([0, 0, 0, 6, 30]),
            cancel_key=luck.choice([0, 0, 1, 2, 3]),
            version=luck.choice([1, 1, 2]),
        )
        for _ in range(400)
    ]
    return plain * 10 + mixed


STEPS = [
    *[Step("take", number=n) for n in (0, 0, 0, 1, 1, 2)],
    *[Step("finish", number=n) for n in (0, 0, 0, 0, 1, 1, 2)],
    *[Step("move", number=ms) for ms in (1, 1, 3, 5, 8, 45)],
    *[Step("flush", number=n) for n in (0, 1)],
    Step("tick"),
    *[Step("cancel", number=key) for key in (1, 2, 3)],
    *[Step("drop", number=key) for key in (0, 1)],
    *[Step("resize", number=n) for n in (1, 2, 3)],
    Step("reap"),
]

traces = st.builds(
    Trace,
    rows=st.sampled_from([0, 1, 2, 4]),
    instances=st.sampled_from([1, 1, 2]),
    has_states=st.booleans(),
    candidates=st.sampled_from([1, 2, 3]),
    preferred=st.sampled_from([(1,), (2,), (1, 2), (2, 4), (4,)]),
    delay_ms=st.sampled_from([0, 0, 4]),
    utilization=st.sampled_from([0.0, 0.5, 1.0]),
    bounds=st.sampled_from(
        [
            WIDE,
            WIDE,
            BacklogBounds(1, 100, 100, 1000),
            BacklogBounds(9, 3, 100, 1000),
            BacklogBounds(9, 100, 6, 1000),
            BacklogBounds(9, 100, 100, 4),
        ]
    ),
    versions=st.sampled_from([(1,), (1,), (1, 2)]),
    steps=st.lists(
        st.one_of(
            st.lists(st.sampled_from(asks()), min_size=1, max_size=6).map(
                lambda some: Step("offer", tuple(some))
            ),
            st.sampled_from(STEPS),
        ),
        min_size=1,
        max_size=30,
    ),
)


@dataclass
class Drive:
    """A model on its trace, and a plain list of what came and what left."""

    trace: Trace
    model: Model
    came: list[Entry] = field(default_factory=list)
    dropped: list[Entry] = field(default_factory=list)
    epochs: dict[Entry, int] = field(default_factory=dict)
    asked: dict[Entry, int] = field(default_factory=dict)  # versions
    epoch: Counter[int] = field(default_factory=Counter)

    @property
    def batchers(self) -> Iterable[SequenceBatcher]:
        return self.model.batchers.values()

    @property
    def lanes(self) -> set[LiveSequence]:
        """Every sequence of which there ever was a request in a queue."""
        return {one.sequence for one in self.came if one.sequence is not None}

    def offer(self, given: Iterable[Ask]) -> None:
        model = self.model
        # One version per block: which version's batcher hears of which part of a block first is routing's matter.
        version = next(iter(given)).version if len(model.versions) > 1 else 1
        made = [
            model.ask(
                ask.key + 1,
                ask.value,
                ask.flags,
                partition=ask.key % PARTITIONS,
                version=version,
                timeout_us=ask.timeout_us,
                expires_ns=model.now_ns + ask.expires_ms * MS if ask.expires_ms else 0,
                correlation_id=b"%d" % ask.cancel_key if ask.cancel_key else b"",
            )
            for ask in given
        ]
        self.came += made
        for one in made:
            self.epochs[one] = self.epoch[one.tp.partition]
            self.asked[one] = version
        model.offer(*made)

    def step(self, step: Step) -> None:
        """Make one move."""
        model, number = self.model, step.number
        match step.name:
            case "offer":
                self.offer(step.asks)
            case "move":
                model.now_ns += number * MS
            case "tick":
                model.tick()
            case "drop":
                self.drop(number)
            case "reap":
                for tp in TPS:
                    model.sequences.reap(tp, model.now_ns / MS)
            case _:
                for version in model.versions:
                    self.step_of(version, step)

    def step_of(self, version: int, step: Step) -> None:
        """Make one move with a version's batcher."""
        model, instance = self.model, step.number % self.trace.instances
        match step.name:
            case "take" | "flush":
                self.take(version, instance, flush=step.name == "flush")
            case "finish":
                if (version, instance) in model.busy:
                    model.finish(instance, version=version)
            case "cancel":
                model.refused(model.batchers[version].cancel({b"%d" % step.number}))
            case "resize" if self.trace.instances > 1:
                model.batchers[version].resize({n for n in (0, 1) if step.number >> n & 1})

    def take(self, version: int, instance: int, *, flush: bool) -> Batch | None:
        if (version, instance) in self.model.busy:
            return None
        return self.model.take(instance, flush=flush, version=version)

    def run_all(self) -> None:
        """Run batch by batch on all instances, nothing held back, until there is none."""
        going = True
        while going:
            going = False
            for version in self.model.versions:
                for instance in (0, 1):
                    if self.take(version, instance, flush=True) is not None:
                        self.model.finish(instance, version=version)
                        going = True
            self.model.tick()

    def drop(self, partition: int) -> None:
        tp = TPS[partition]
        for batcher in self.batchers:
            self.dropped += batcher.drop(tp)
        self.model.sequences.close(tp)
        self.epoch[partition] += 1
        self.model.sequences.open(tp, self.epoch[partition] + 1, {}, {})

    def finish(self) -> None:
        """Run until everything has left; sequences that never end expire."""
        model = self.model
        for version, instance in list(model.busy):
            model.finish(instance, version=version)
        for _ in range(len(self.came) + 2):
            self.run_all()
            for lane in self.lanes:
                if lane.is_idle and not lane.is_dropped:
                    lane.expire()
                    model.batchers[lane.home].release(lane)
            if not any(len(batcher) for batcher in self.batchers):
                return
        raise AssertionError(f"stuck: {list(self.batchers)}")


def drive(make: type[SequenceBatcher], trace: Trace) -> Drive:
    return Drive(trace, trace.model(make))


def play(make: type[SequenceBatcher], trace: Trace) -> Drive:
    """Play a whole trace."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
    run.finish()
    return run


# --- properties ---


def conservation(make: type[SequenceBatcher], trace: Trace) -> None:
    """Each request leaves exactly once: answered, refused or dropped; the length is what waits."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        waiting = sum(lane.waiting for lane in run.lanes)
        assert sum(len(batcher) for batcher in run.batchers) == waiting
    run.finish()
    left = [*run.model.order, *run.dropped]
    assert len(left) == len(set(left))
    assert set(left) == set(run.came)
    for batcher in run.batchers:
        assert batcher.wake_at() is None
        assert batcher.backlogged == batcher.live == 0


def alone(make: type[SequenceBatcher], trace: Trace) -> None:
    """Each sequence's sums are those of the model alone over its inputs in order, whatever shared its batches.

    It runs on the version on which it started.
    """
    run = play(make, trace)
    sums: dict[tuple[object, ...], int | None] = {}
    versions: dict[tuple[object, ...], int] = {}
    for one in sorted(run.came, key=lambda one: one.record.offset):
        answer = run.model.answers.get(one)
        key = (one.tp, one.sequence_id, run.epochs[one])
        if isinstance(answer, InferError):
            if answer.reason in ENDS:
                sums[key] = None
            continue
        if answer is None:
            continue
        value = int(bytes(one.data[0] or b""))
        if one.sequence_start:
            versions[key] = run.asked[one]
        assert run.model.ran_on[one] == versions[key]
        before = 0 if one.sequence_start else sums[key]
        assert before is not None, f"{one} ran after its sequence had ended"
        assert answer == before + value
        sums[key] = None if one.sequence_end else answer


def order(make: type[SequenceBatcher], trace: Trace) -> None:
    """Answers of one id leave in the order of its requests, refusals too (SQ-20, KX-03, P-18)."""
    run = play(make, trace)
    last: dict[tuple[object, ...], int] = {}
    for one in run.model.order:
        key = (one.tp, one.sequence_id, run.epochs[one])
        assert last.get(key, -1) < one.record.offset
        last[key] = one.record.offset


def one_at_a_time(make: type[SequenceBatcher], trace: Trace) -> None:
    """At most one request of a sequence runs, and what runs is what its lane says (SQ-11, SQ-13)."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        running = [
            one for batch in run.model.busy.values() for one in batch.entries if one is not None
        ]
        lanes = [one.sequence for one in running]
        assert len(lanes) == len(set(lanes))
        assert [lane.running for lane in lanes] == running
        assert {lane for lane in run.lanes if lane.running} == set(lanes)


def slots(make: type[SequenceBatcher], trace: Trace) -> None:
    """A slot is free or somebody's: once, never both; and while anybody waits for one, none is to be had (B87)."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        for batcher in run.batchers:
            mine = [lane for lane in run.lanes if lane.home == batcher.version]
            held = [lane.slot for lane in mine if lane.slot != NO_SLOT]
            free = batcher._holders._slots._free
            assert len(set(held) | set(free)) == len(held) + len(free)
            assert batcher.live == len(held)
            if not batcher.backlogged:
                continue
            assert not free
            if trace.has_states:
                assert not [lane for lane in mine if lane.slot != NO_SLOT and lane.is_idle]
    for lane in run.lanes:
        assert lane.is_dropped or lane.slot == NO_SLOT or lane.is_open or not lane.is_idle


def idleness(make: type[SequenceBatcher], trace: Trace) -> None:
    """Who keeps the sequences hears of each that becomes idle, once; one that is over has no slot then."""
    run = drive(make, trace)
    busy: set[LiveSequence] = set()
    for step in trace.steps:
        seen, heard = len(run.model.queued), len(run.model.idled)
        run.step(step)
        busy |= set(run.model.queued[seen:])
        for lane in run.model.idled[heard:]:
            busy.remove(lane)  # KeyError: told twice
            assert lane.is_open or lane.slot == NO_SLOT
        busy = {lane for lane in busy if not lane.is_dropped}
        assert not [lane for lane in busy if lane.is_idle]


def written_rules(make: type[SequenceBatcher], trace: Trace) -> None:
    """A batch is what the written rules give (SB-02, SB-03, SQ-11, SQ-13, DB-12…DB-20)."""
    run = drive(make, trace)
    for step in trace.steps:
        if step.name not in ("take", "flush"):
            run.step(step)
            continue
        for version in run.model.versions:
            instance = step.number % trace.instances
            if (version, instance) in run.model.busy:
                continue
            batcher = run.model.batchers[version]
            batcher.wake_at()  # looks, and must not change what is taken
            ready = {
                row_of(lane.slot): lane
                for lane in run.lanes
                if lane.home == version
                and lane.slot != NO_SLOT
                and instance_of(lane.slot) == instance
                and lane.head is not None
                and lane.running is None
                and lane not in batcher._refusing
            }
            flush = step.name == "flush"
            rule = direct_takes if isinstance(batcher, DirectBatcher) else oldest_takes
            expected = rule(run, ready, flush=flush)
            times = sorted(lane.head.admitted_ns for lane in ready.values() if lane.head)
            batch = run.take(version, instance, flush=flush)
            found = {} if batch is None else dict(enumerate(batch.entries))
            if isinstance(batcher, DirectBatcher):
                if expected and trace.has_states and batcher.SEATS:
                    expected = shared_rows(found, times, max(1, trace.rows))
                assert {row for row, one in found.items() if one is not None} == expected
                assert len(found) == max(expected, default=-1) + 1
            else:
                assert [one.admitted_ns for one in found.values() if one is not None] == expected


def direct_takes(run: Drive, ready: dict[int, LiveSequence], *, flush: bool) -> set[int]:
    """Return the rows that run."""
    waited = [run.model.now_ns - lane.head.admitted_ns for lane in ready.values() if lane.head]
    share = len(ready) / max(1, run.trace.rows)
    if (
        flush
        or share >= run.trace.utilization
        or max(waited, default=0) >= run.trace.delay_ms * MS
    ):
        return set(ready)
    return set()


def shared_rows(found: dict[int, Entry | None], waiting: list[int], rows: int) -> set[int]:
    """Return the rows that run where sequences share them: own ones if each has one of its own, else the first ones.

    The requests that wait for longest run.
    """
    taken = {row: one for row, one in found.items() if one is not None}
    assert sorted(one.admitted_ns for one in taken.values()) == waiting[:rows]
    slots = {row: row_of(one.sequence.slot) for row, one in taken.items()}
    if max(slots.values()) >= rows:
        return set(range(len(slots)))
    assert all(slot == row for row, slot in slots.items())
    return set(slots)


def oldest_takes(run: Drive, ready: dict[int, LiveSequence], *, flush: bool) -> list[int]:
    """Return when those that run were admitted."""
    trace = run.trace
    times = sorted(lane.head.admitted_ns for lane in ready.values() if lane.head)
    preferred = [size for size in trace.preferred if size <= max(1, trace.rows)]
    preferred = preferred or [max(1, trace.rows)]
    pending = times[: max(1, trace.rows)]
    if not pending:
        return []
    delay_ns = trace.delay_ms * MS
    exceeded = flush or (delay_ns > 0 and run.model.now_ns - pending[0] >= delay_ns)
    candidate = max([size for size in preferred if size <= len(pending)], default=0)
    if candidate and not exceeded:
        return pending[:candidate]
    if exceeded or len(pending) < len(times) or delay_ns == 0:
        return pending
    return []


def quiescence(make: type[SequenceBatcher], trace: Trace) -> None:
    """When nothing is to be done, time alone changes nothing before `wake_at`; at `wake_at` it does."""
    run = drive(make, trace)
    model = run.model
    for step in trace.steps:
        run.step(step)
        if step.name not in ("take", "tick", "move") or model.busy or len(model.versions) > 1:
            continue
        (batcher,) = run.batchers
        model.run()
        wake_ns = batcher.wake_at()
        before_ns = model.now_ns
        model.now_ns = model.now_ns + 3600 * 1000 * MS if wake_ns is None else wake_ns - 1
        assert model.now_ns >= before_ns, "due already, and nothing was taken"
        assert batcher.expire(model.now_ns) == []
        assert [batcher.take(n, model.now_ns) for n in (0, 1)] == [None, None]
        assert batcher.wake_at() == wake_ns
        if wake_ns is None:
            model.now_ns = before_ns
            batcher.expire(before_ns)
            continue
        model.now_ns = wake_ns
        refused = batcher.expire(wake_ns)
        model.refused(refused)
        took = [run.take(1, n, flush=False) for n in range(trace.instances)]
        assert refused or any(took)


def drain(make: type[SequenceBatcher], trace: Trace) -> None:
    """``flush`` holds nothing back: what is still queued then waits for a slot that somebody has."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
    for version, instance in list(run.model.busy):
        run.model.finish(instance, version=version)
    run.model.tick()
    run.run_all()
    for version, batcher in run.model.batchers.items():
        waiting = [lane for lane in run.lanes if lane.home == version and lane.head is not None]
        assert len(waiting) == batcher.backlogged
        if trace.has_states:
            assert not waiting or batcher.live == 0


def bounds(make: type[SequenceBatcher], trace: Trace) -> None:
    """The backlog of a model with memory of its own never exceeds its bounds; only its excess is ``queue_full``."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        for batcher in run.batchers:
            lanes = [
                lane
                for lane in run.lanes
                if lane.home == batcher.version and lane in batcher._backlog and lane.head
            ]
            assert len(lanes) == batcher.backlogged
            if trace.has_states:
                continue
            per = Counter(lane.tp for lane in lanes)
            assert max(per.values(), default=0) <= trace.bounds.sequences
            assert sum(lane.waiting for lane in lanes) <= trace.bounds.records
            values = [one.record.value for lane in lanes for one in lane]
            assert sum(map(len, values)) <= trace.bounds.size
            for lane in lanes:
                newest = max(one.record.offset for one in lane)
                assert lane.head
                assert newest - lane.head.record.offset < trace.bounds.span
    full = [
        one
        for one, error in run.model.answers.items()
        if isinstance(error, InferError) and error.reason is Reason.QUEUE_FULL
    ]
    assert not full or (not trace.has_states and trace.bounds is not WIDE)


def live_steps(make: type[SequenceBatcher], trace: Trace) -> None:
    """No timeout and no deadline takes a step of a live sequence away: only what has not begun expires (P-15).

    Three sequences share one slot, each step has a timeout, and time passes after each move.
    """
    run = drive(make, trace._replace(rows=1, candidates=1, instances=1, has_states=True))
    for step in trace.steps:
        asks = [ask._replace(key=ask.key % 3, timeout_us=4000) for ask in step.asks]
        step = step._replace(asks=tuple(asks))  # noqa: PLW2901  # the same but for that
        for move in (step, Step("take"), Step("move", number=3), Step("tick")):
            before = {lane: lane.state for lane in run.lanes}
            seen = len(run.model.order)
            run.step(move)
            ended: set[LiveSequence] = set()
            for one in run.model.order[seen:]:
                error, state = run.model.answers[one], before.get(one.sequence)
                if isinstance(error, InferError) and error.reason in TIMES:
                    is_live = state is not None and state.flag is Flag.LIVE
                    assert not is_live or one.sequence in ended
                elif one.sequence_end:
                    ended.add(one.sequence)  # what comes behind it has not begun


PROPERTIES = (
    conservation,
    alone,
    order,
    one_at_a_time,
    slots,
    idleness,
    written_rules,
    quiescence,
    drain,
    bounds,
    live_steps,
)

Property = Callable[[type[SequenceBatcher], Trace], None]


def hold(prop: Property, make: type[SequenceBatcher], **options: Any) -> None:
    """Try a property on many traces."""

    @settings(deadline=None, database=None, **options)
    @given(traces)
    def attempt(trace: Trace) -> None:
        prop(make, trace)

    attempt()


@pytest.mark.parametrize(
    "make", [*STRATEGIES, DirectBatcher], ids=["direct", "oldest", "direct, shared rows"]
)
@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.__name__)
def test_property(prop: Property, make: type[SequenceBatcher]) -> None:
    """Holds on drawn traces."""
    hold(prop, make, max_examples=150)


# --- batchers with a planted bug, each of both strategies ---


class FreesTwice:
    """B87: a cancel frees the slot that the end of the sequence frees too."""

    def cancel(self, ids):
        lanes = {
            one.sequence: one.sequence.slot for key in ids for one in self._by_id.get(key, ())
        }
        refusals = super().cancel(ids)
        self._holders._slots._free += [slot for slot in lanes.values() if slot != NO_SLOT]
        return refusals


class KeepsTheSlot:
    """A sequence that has ended stays where it was."""

    def _rest(self, lane):
        is_open, lane.is_open = lane.is_open, True
        super()._rest(lane)
        lane.is_open = is_open


class LeavesSlotsFree:
    """Those that wait are not told when a slot becomes free."""

    def _fill(self):
        pass


class ParksTheBusy:
    """A lane that has got something to do stays in the list of the idle ones."""

    def _prepare(self, config):
        return super()._prepare(config)

    def _make_ready(self, lane):
        super()._make_ready(lane)
        if self._parks:
            self._holders._idle[lane] = None

    def _make_all_ready(self, lanes):
        for lane in lanes:
            self._make_ready(lane)


class ParksOwnMemory:
    """A model that remembers by itself loses its sequences' places."""

    def _rest(self, lane):
        super()._rest(lane)
        if lane.slot != NO_SLOT and self._backlog:
            self._holders.park(lane)


class AnswersAtOnce:
    """A refused request does not wait for its turn: those behind it run before it was fetched."""

    def _advance(self, lane):
        while (head := lane.head) is not None and head.error is not None:
            lane.pop()
            self._forget(head)
            lane.refuse(head)
            self._size -= 1
            self.early = [*getattr(self, "early", ()), Refusal(head, head.error)]
        if lane.head is None:
            self._rest(lane)
        else:
            self._proceed(lane)

    def _fetch(self):
        found, self.early = getattr(self, "early", []), []
        return [*found, *super()._fetch()]


class LosesARefusal:
    """One of several is not answered."""

    def _fetch(self):
        refused = super()._fetch()
        return refused if len(refused) < 2 else refused[:-1]


class CancelsOne:
    """SQ-16 for the named request only."""

    def _doom(self, lane, make):
        if self._by_id and lane.waiting > 1 and lane.tail.error is None:
            lane.tail, last = lane.head, lane.tail
            before = lane.head
            while before.next is not last:
                before = before.next
            lane.tail, before.next = before, None
            super()._doom(lane, make)
            lane.is_open = True
            lane.push(last)
            lane.waiting -= 1
            return
        super()._doom(lane, make)


class ForgetsToTell:
    """An open lane that rests is not reported."""

    def _rest(self, lane):
        told, self._on_idle = self._on_idle, lambda _: None
        super()._rest(lane)
        self._on_idle = told
        if not lane.is_open:
            told(lane)


class TellsTwice:
    """A lane that has ended is reported again when its slot is filled."""

    def _rest(self, lane):
        super()._rest(lane)
        if not lane.is_open:
            self._on_idle(lane)


class ResetsNothing:
    """SQ-18: START goes on with the state before."""

    def take(self, instance, now_ns, *, flush=False):
        batch = super().take(instance, now_ns, flush=flush)
        for row, one in enumerate(batch.entries if batch is not None else ()):
            if one is not None and one.sequence.state is not None and one.sequence.state.tensors:
                batch.states[row] = one.sequence.state
        return batch


class StaysOnItsVersion:
    """A START for another version runs where the sequence is."""

    def _proceed(self, lane):
        lane.head.version = self.version
        super()._proceed(lane)


class HasNoBounds:
    """Any number waits."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._backlog._bounds = WIDE


class ExpiresTheLive:
    """What was parked waits like any other."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        arm = self._timeouts.arm

        def arm_all(lane):
            state, lane.state = lane.state, None
            arm(lane)
            lane.state = state

        self._timeouts.arm = arm_all


class WakesLate:
    def wake_at(self):
        wake_ns = super().wake_at()
        return None if wake_ns is None else wake_ns + MS


class HoldsBackOnFlush:
    def take(self, instance, now_ns, *, flush=False):
        return super().take(instance, now_ns)


PLANTED: tuple[tuple[Property, type], ...] = (
    (slots, FreesTwice),
    (slots, KeepsTheSlot),
    (slots, LeavesSlotsFree),
    (one_at_a_time, ParksTheBusy),
    (alone, ParksOwnMemory),
    (order, AnswersAtOnce),
    (conservation, LosesARefusal),
    (alone, CancelsOne),
    (idleness, ForgetsToTell),
    (idleness, TellsTwice),
    (alone, ResetsNothing),
    (alone, StaysOnItsVersion),
    (bounds, HasNoBounds),
    (live_steps, ExpiresTheLive),
    (quiescence, WakesLate),
    (drain, HoldsBackOnFlush),
)


class OnePaddedRowTooMany(OwnRows):
    def take(self, instance, now_ns, *, flush=False):
        batch = super().take(instance, now_ns, flush=flush)
        if batch is None:
            return None
        return Batch(batch.signature, [*batch.entries, None], [*batch.states, self._initial])


class IgnoresTheUtilization(OwnRows):
    def _is_due(self, ready):
        return True


class StaysInItsRow(DirectBatcher):
    """A sequence beyond the rows runs in the row of its slot, wherever that is."""

    def _placed(self, entries):
        width, self._width = self._width, self.SEATS
        batch = super()._placed(entries)
        self._width = width
        return batch


class NewestFirst(OldestBatcher):
    def _make_ready(self, lane):
        super()._make_ready(lane)
        line = self._lines[lane.slot & INSTANCE_MASK]
        line._times.sort(reverse=True)

    def _make_all_ready(self, lanes):
        for lane in lanes:
            self._make_ready(lane)


class DelayFromTheNewest(OldestBatcher):
    def _decide(self, line, *, flush):
        count, until_ns = super()._decide(line, flush=flush)
        newest = max(line._times) + self._delay_ns
        return (
            (0, newest)
            if self._delay_ns and self._now_ns < newest and not flush
            else (count, until_ns)
        )


class SkipsTheCandidate(OldestBatcher):
    def _prepare(self, config):
        rows = super()._prepare(config)
        self._preferred = (self._max_rows,)
        return rows


class StepsAhead(OldestBatcher):
    """The next request of a sequence does not wait for the one before."""

    def _started(self, entries, count):
        super()._started(entries, count)
        for one in entries:
            if one is not None and one.sequence.head is not None:
                self._make_ready(one.sequence)


PLANTED_IN_ONE: tuple[tuple[Property, type[SequenceBatcher]], ...] = (
    (written_rules, OnePaddedRowTooMany),
    (written_rules, IgnoresTheUtilization),
    (written_rules, StaysInItsRow),
    (written_rules, NewestFirst),
    (written_rules, DelayFromTheNewest),
    (written_rules, SkipsTheCandidate),
    (one_at_a_time, StepsAhead),
)


def fails(prop: Property, make: type[SequenceBatcher]) -> None:
    """See a property fail."""
    with pytest.raises((AssertionError, KeyError, IndexError)):
        hold(
            prop,
            make,
            # Found once, found always, but for constants that Hypothesis takes from whatever modules are loaded.
            max_examples=10_000,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
            derandomize=True,
        )


@pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])
@pytest.mark.parametrize(
    ("prop", "planted"), PLANTED, ids=[f"{p.__name__}-{b.__name__}" for p, b in PLANTED]
)
def test_a_planted_bug_is_found(
    prop: Property, planted: type, make: type[SequenceBatcher]
) -> None:
    """The property can fail."""
    fails(prop, type(planted.__name__, (planted, make), {}))


@pytest.mark.parametrize(
    ("prop", "planted"),
    PLANTED_IN_ONE,
    ids=[f"{p.__name__}-{b.__name__}" for p, b in PLANTED_IN_ONE],
)
def test_a_planted_bug_of_one_strategy_is_found(
    prop: Property, planted: type[SequenceBatcher]
) -> None:
    """The property can fail."""
    fails(prop, planted)
