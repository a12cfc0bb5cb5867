"""The batcher's contract as properties (conservation, order, bounds, patience, quiescence, drain, determinism).

Each property is a function that drives a batcher through a drawn trace and asserts; beside it stands a batcher
with a planted bug for which that function must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

import pytest
from batching_kit import MS, Service, entry, signature, variable
from headrace.consumers.batcher import Refusal
from headrace.consumers.dynamic import DynamicBatcher
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import QueueFull, Reason
from headrace.schemas.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from headrace.schemas.record import TP
from headrace.schemas.signature import Signature
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

MODELS = {
    (size, shapes): signature(size, [variable(allow_ragged_batch=shapes == "ragged")])
    if shapes != "fixed"
    else signature(size)
    for size in (4, 6)
    for shapes in ("fixed", "any", "ragged")
}


class Ask(NamedTuple):
    """A request to be offered."""

    rows: int
    length: int
    priority: int
    timeout_us: int
    expires_ms: int
    key: int
    partition: int


class Step(NamedTuple):
    """One move of a trace."""

    name: str
    asks: tuple[Ask, ...] = ()
    ms: int = 0
    key: int = 0


class Trace(NamedTuple):
    """A model, its settings, and what happens."""

    model: tuple[int, str]
    config: DynamicBatching
    steps: list[Step]


policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout_us=st.sampled_from([0, 0, 3000, 10_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 2, 5]),
)


def asks() -> list[Ask]:
    """Many different requests, the plain ones first; drawing one of them is one choice, not seven."""
    luck = Random(0)
    plain = [Ask(1, 16, 0, 0, 0, 0, 0), Ask(2, 16, 0, 0, 0, 0, 0), Ask(1, 8, 0, 0, 0, 0, 0)]
    mixed = [
        Ask(
            rows=luck.choice([1, 1, 1, 2, 3, 4, 6]),
            length=luck.choice([16, 16, 8]),
            priority=luck.choice([0, 1, 3, 2**64 - 1]),
            timeout_us=luck.choice([0, 1000, 5000]),
            expires_ms=luck.choice([0, 0, 0, 6, 30]),
            key=luck.randint(0, 3),
            partition=luck.randint(0, 1),
        )
        for _ in range(300)
    ]
    return plain * 30 + mixed


STEPS = [
    *[Step("take")] * 6,
    *[Step("move", ms=ms) for ms in (1, 1, 3, 5, 8)],
    *[Step("flush"), Step("expire")],
    *[Step("cancel", key=key) for key in (1, 2)],
    *[Step("drop", key=key) for key in (0, 1)],
]

configs = st.builds(
    lambda preferred, delay_us, levels, policy, own: DynamicBatching(
        preferred_batch_size=preferred,
        max_queue_delay_us=delay_us,
        priority_levels=levels,
        default_priority_level=2 if levels else 0,
        default_queue_policy=policy,
        priority_queue_policy=own if levels else {},
    ),
    st.sampled_from([(4,), (2,), (3,), (1, 4), (2, 3)]),
    st.sampled_from([0, 4000, 20_000]),
    st.sampled_from([0, 0, 3, 2**64 - 1]),
    st.one_of(st.just(QueuePolicy()), policies),
    st.dictionaries(st.sampled_from([1, 3]), policies, max_size=2),
)

traces = st.builds(
    Trace,
    st.sampled_from(sorted(MODELS)),
    configs,
    st.lists(
        st.one_of(
            st.lists(st.sampled_from(asks()), min_size=1, max_size=5).map(
                lambda some: Step("offer", tuple(some))
            ),
            st.sampled_from(STEPS),
        ),
        min_size=1,
        max_size=20,
    ),
)


Make = Callable[[Signature, DynamicBatching], DynamicBatcher]


@dataclass
class Drive:
    """A batcher on its trace, and beside it the plain list of what waits, with nothing clever about it."""

    trace: Trace
    batcher: DynamicBatcher
    now_ns: int = 0
    count: int = 0
    waiting: list[Entry] = field(default_factory=list)
    unfetched: list[Entry] = field(default_factory=list)
    journal: list[tuple[str, int, list[int]]] = field(default_factory=list)

    def request(self, ask: Ask) -> Entry:
        """Make an entry; its number is its place in the log."""
        self.count += 1
        return entry(
            min(ask.rows, self.trace.model[0]),
            ((ask.length,),) if self.trace.model[1] != "fixed" else ((16,),),
            offset=self.count,
            tp=TP("t", ask.partition),
            priority=ask.priority,
            timeout_us=ask.timeout_us,
            expires_ns=self.now_ns + ask.expires_ms * MS if ask.expires_ms else 0,
            correlation_id=b"%d" % ask.key if ask.key else b"",
        )

    def level(self, one: Entry) -> int:
        """QT-06, in plain words."""
        levels = self.trace.config.priority_levels
        if levels == 0:
            return 0
        return one.priority if 1 <= one.priority <= levels else 2

    def policy(self, one: Entry) -> QueuePolicy:
        level = self.level(one)
        config = self.trace.config
        return config.policy(level) if level else config.default_queue_policy

    def timeout_at(self, one: Entry) -> int:
        """QT-03, in plain words; 0 is never."""
        policy = self.policy(one)
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and one.timeout_us and one.timeout_us < timeout_us:
            timeout_us = one.timeout_us
        return one.admitted_ns + timeout_us * 1000 if timeout_us else 0

    def sweep(self) -> None:
        """Move what has expired by now from the waiting ones to those that `expire` owes."""
        for one in list(self.waiting):
            timeout_at = self.timeout_at(one)
            rejects = self.policy(one).timeout_action is TimeoutAction.REJECT
            if (0 < one.expires_ns < self.now_ns) or (rejects and 0 < timeout_at < self.now_ns):
                self.waiting.remove(one)
                self.unfetched.append(one)

    def order(self) -> list[Entry]:
        """The queue in the order in which it is served: level, in time before late, then as it came."""

        def place(one: Entry) -> tuple[int, int, int]:
            late_at = self.timeout_at(one)
            if not 0 < late_at < self.now_ns:
                late_at = 0
            return self.level(one), late_at, one.record.offset

        return sorted(self.waiting, key=place)

    def note(self, what: str, entries: Sequence[Entry | None]) -> None:
        numbers = [one.record.offset for one in entries if one is not None]
        self.journal.append((what, self.now_ns, numbers))

    def offer(self, asks: Sequence[Ask]) -> Sequence[Refusal]:
        self.sweep()
        entries = [self.request(ask) for ask in asks]
        refused = self.batcher.offer(entries, self.now_ns)
        out = [one for one, _ in refused]
        self.waiting += [one for one in entries if one not in out]
        self.note("refused", out)
        return refused

    def take(self, *, flush: bool = False) -> Batch | None:
        self.sweep()
        batch = self.batcher.take(0, self.now_ns, flush=flush)
        if batch is not None:
            self.note("ran", batch.entries)
            for one in batch.entries:
                self.waiting.remove(one)  # ValueError: not there, or twice
            self.batcher.done(batch, self.now_ns)
        return batch

    def expire(self) -> Sequence[Refusal]:
        self.sweep()
        refused = self.batcher.expire(self.now_ns)
        out = [one for one, _ in refused]
        self.note("expired", out)
        assert set(out) == set(self.unfetched)
        assert len(out) == len(self.unfetched)
        self.unfetched.clear()
        return refused

    def step(self, step: Step) -> None:
        """Make one move."""
        match step.name:
            case "offer":
                self.offer(step.asks)
            case "move":
                self.now_ns += step.ms * MS
            case "take" | "flush":
                self.take(flush=step.name == "flush")
            case "expire":
                self.expire()
            case "cancel":
                gone = [one for one, _ in self.batcher.cancel({b"%d" % step.key})]
                named = [one for one in self.waiting if one.correlation_id == b"%d" % step.key]
                # What has expired since the last look is in the queue for the batcher, not for us.
                self.waiting = [one for one in self.waiting if one not in gone]
                assert set(named) <= set(gone)
                self.unfetched = [one for one in self.unfetched if one not in gone]
                self.note("cancelled", gone)
            case "drop":
                tp = TP("t", step.key % 2)
                gone = list(self.batcher.drop(tp))
                lists = [*self.waiting, *self.unfetched]
                assert {one for one in lists if one.tp == tp} == set(gone)
                self.waiting = [one for one in self.waiting if one.tp != tp]
                self.unfetched = [one for one in self.unfetched if one.tp != tp]
                self.note("dropped", gone)

    def finish(self) -> None:
        """Fetch and flush until nothing is left."""
        self.expire()
        for _ in range(len(self.waiting)):
            self.take(flush=True)


def drive(make: Make, trace: Trace) -> Drive:
    return Drive(trace, make(MODELS[trace.model], trace.config))


def conservation(make: Make, trace: Trace) -> None:
    """Each accepted request leaves once: taken, expired, cancelled or dropped; the length is what waits."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        run.sweep()
        run.batcher.sweep(run.now_ns)
        assert len(run.batcher) == len(run.waiting)
    run.finish()
    assert run.waiting == []
    left = [number for _, _, numbers in run.journal for number in numbers]
    assert sorted(left) == list(range(1, run.count + 1))
    assert run.batcher.wake_at() is None


def order(make: Make, trace: Trace) -> None:
    """A batch is a prefix of the queue: by level, late ones behind, then as they came."""
    run = drive(make, trace)
    for step in trace.steps:
        if step.name not in ("take", "flush"):
            run.step(step)
            continue
        run.sweep()
        queue = run.order()
        batch = run.take(flush=step.name == "flush")
        if batch is not None:
            assert list(batch.entries) == queue[: len(batch)]


def bounds(make: Make, trace: Trace) -> None:
    """Rows, queue sizes per level, one shape per batch; and only a full level refuses."""
    run = drive(make, trace)
    for step in trace.steps:
        if step.name == "offer":
            refused = run.offer(step.asks)
            for one, error in refused:
                size = run.policy(one).max_queue_size
                waiting = sum(run.level(other) == run.level(one) for other in run.waiting)
                assert isinstance(error, QueueFull)
                assert size
                assert waiting == size
            for one in run.waiting:
                size = run.policy(one).max_queue_size
                waiting = sum(run.level(other) == run.level(one) for other in run.waiting)
                assert not size or waiting <= size
        elif step.name in ("take", "flush"):
            batch = run.take(flush=step.name == "flush")
            if batch is not None:
                assert batch.rows <= trace.model[0]
                assert batch.rows == sum(one.rows for one in batch.entries if one is not None)
                shapes = {one.shapes for one in batch.entries if one is not None}
                assert len(shapes) == 1 or trace.model[1] == "ragged"
        else:
            run.step(step)


def punctuality(make: Make, trace: Trace) -> None:
    """Nothing is executed past its deadline or its rejecting timeout, and each refusal has the right reason."""
    run = drive(make, trace)
    for step in trace.steps:
        if step.name in ("take", "flush"):
            batch = run.take(flush=step.name == "flush")
            for one in batch.entries if batch is not None else ():
                assert not 0 < one.expires_ns < run.now_ns
                if run.policy(one).timeout_action is TimeoutAction.REJECT:
                    assert not 0 < run.timeout_at(one) < run.now_ns
        elif step.name == "expire":
            for one, error in run.expire():
                timeout_at = run.timeout_at(one)
                rejects = run.policy(one).timeout_action is TimeoutAction.REJECT
                if error.reason is Reason.DEADLINE_PASSED:
                    assert 0 < one.expires_ns < run.now_ns
                else:
                    assert error.reason is Reason.TIMEOUT_EXPIRED
                    assert rejects
                    assert 0 < timeout_at < run.now_ns
        else:
            run.step(step)


def patience(make: Make, trace: Trace) -> None:
    """With an instance free, nobody waits past the delay, counted from the oldest."""
    service = Service(make(MODELS[trace.model], trace.config))
    run = Drive(trace, service.batcher)
    arrivals = []
    for step in trace.steps:
        run.now_ns += step.ms * MS
        if step.asks:
            arrivals.append((run.now_ns / MS, [run.request(ask) for ask in step.asks]))
    service.run(arrivals)
    assert len(service.batcher) == 0
    delay_ns = trace.config.max_queue_delay_us * 1000
    for ran in service.ran:
        for one in ran.batch.entries:
            assert round(ran.ms * MS) - one.admitted_ns <= delay_ns


def quiescence(make: Make, trace: Trace) -> None:
    """After an empty `take`, time alone changes nothing before `wake_at`."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
        if step.name != "take" or run.journal[-1:] == [("ran", run.now_ns, [])]:
            continue
        run.expire()
        while run.take() is not None:
            pass
        wake_ns = run.batcher.wake_at()
        before = run.now_ns + 3600 * 1000 * MS if wake_ns is None else wake_ns - 1
        assert before >= run.now_ns, "due already, and nothing was taken"
        run.now_ns = before
        assert run.batcher.take(0, before) is None
        assert run.batcher.expire(before) == []
        assert run.batcher.wake_at() == wake_ns


def drain(make: Make, trace: Trace) -> None:
    """``flush`` returns something whenever the queue holds something."""
    run = drive(make, trace)
    for step in trace.steps:
        run.step(step)
    run.expire()
    while run.waiting:
        assert run.take(flush=True) is not None
    assert run.take(flush=True) is None


def determinism(make: Make, trace: Trace) -> None:
    """The same trace gives the same answers."""
    runs = [drive(make, trace) for _ in range(2)]
    for run in runs:
        for step in trace.steps:
            run.step(step)
        run.finish()
    assert runs[0].journal == runs[1].journal


def triton_takes(run: Drive, *, flush: bool) -> int:
    """The walk of SEMANTICS §1.6 as it is written there, over the whole queue, anew each time."""
    size, shapes = run.trace.model
    config = run.trace.config
    largest = max(config.preferred_batch_size)
    pending: list[Entry] = []
    rows = candidate = 0
    send_now = False
    for one in run.order():
        if pending:
            if rows + one.rows > largest and candidate == 0:
                candidate = len(pending)
            if rows + one.rows > size:
                send_now = True
                break
            if shapes == "any" and one.shapes != pending[0].shapes:
                send_now = True
                break
        pending.append(one)
        rows += one.rows
        if rows in config.preferred_batch_size:
            candidate = len(pending)
    if not pending:
        return 0
    waited_ns = run.now_ns - min(one.admitted_ns for one in pending)
    delay_ns = config.max_queue_delay_us * 1000
    exceeded = flush or (delay_ns != 0 and waited_ns >= delay_ns)
    if candidate and not exceeded:
        return candidate
    return len(pending) if send_now or rows >= largest or exceeded or delay_ns == 0 else 0


def written_rules(make: Make, trace: Trace) -> None:
    """Whatever is remembered between calls, the batch is what the written walk gives (DB-12 to DB-20)."""
    run = drive(make, trace)
    for step in trace.steps:
        run.batcher.wake_at()  # looks at the queue, and must not change what is taken
        if step.name not in ("take", "flush"):
            run.step(step)
            continue
        flush = step.name == "flush"
        run.sweep()
        expected = triton_takes(run, flush=flush)
        batch = run.take(flush=flush)
        assert (0 if batch is None else len(batch)) == expected


PROPERTIES = (
    conservation,
    order,
    bounds,
    punctuality,
    patience,
    quiescence,
    drain,
    determinism,
    written_rules,
)


def hold(prop: Callable[[Make, Trace], None], make: Make, **options: object) -> None:
    """Try a property on many traces."""

    @settings(deadline=None, database=None, **options)
    @given(traces)
    def attempt(trace: Trace) -> None:
        prop(make, trace)

    attempt()


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.__name__)
def test_property(prop: Callable[[Make, Trace], None]) -> None:
    """Holds on drawn traces."""
    hold(prop, DynamicBatcher, max_examples=200)


# --- batchers with a planted bug ---


class LosesOne(DynamicBatcher):
    def pop(self, count):
        taken = super().pop(count)
        return taken if len(taken) < 3 else taken[:-1]


class RunsCancelled(DynamicBatcher):
    def cancel(self, ids):
        refused = super().cancel(ids)
        for one, _ in refused:
            self._default.main.entries[one] = None
            self._size += 1
        return refused


class NewestFirst(DynamicBatcher):
    def pop(self, count):
        return super().pop(count)[::-1]


class IgnoresPriority(DynamicBatcher):
    def _level(self, entry):
        return self._default


class OneRowTooMany(DynamicBatcher):
    def __init__(self, signature, config):
        super().__init__(signature, config)
        self._max_rows += 1


class MixesShapes(DynamicBatcher):
    def _fits(self, first, entry):
        return True


class OneTooManyQueued(DynamicBatcher):
    def __init__(self, signature, config):
        super().__init__(signature, config)
        self._default.max_size += self._default.max_size > 0


class RunsExpired(DynamicBatcher):
    def sweep(self, now_ns):
        self._now_ns = now_ns


class DelayFromTheNewest(DynamicBatcher):
    """The mistake seen in the field: each newcomer moves the delay of all."""

    def offer(self, entries, now_ns):
        refused = super().offer(entries, now_ns)
        self.oldest = {one: one.admitted_ns for one in self.in_order()}
        return refused

    def _decide(self, now_ns, *, flush):
        count, until_ns = super()._decide(now_ns, flush=flush)
        newest = max((one.admitted_ns for one in self.in_order()), default=0)
        if self._delay_ns and newest + self._delay_ns > now_ns and count and not flush:
            return 0, newest + self._delay_ns
        return count, until_ns


class WakesLate(DynamicBatcher):
    def wake_at(self):
        wake_ns = super().wake_at()
        return None if wake_ns is None else wake_ns + MS


class ForgetsTimeouts(DynamicBatcher):
    def wake_at(self):
        count, until_ns = self._decide(self._now_ns, flush=False)
        return None if count or not len(self) else until_ns


class HoldsBackOnFlush(DynamicBatcher):
    def take(self, instance, now_ns, *, flush=False):
        return super().take(instance, now_ns)


class HasMoods(DynamicBatcher):
    """Every second one made takes one entry less: its answers depend on more than its trace."""

    made = count()

    def __init__(self, signature, config):
        super().__init__(signature, config)
        self._mood = next(self.made) % 2

    def _decide(self, now_ns, *, flush):
        number, until_ns = super()._decide(now_ns, flush=flush)
        return max(1, number - self._mood) if number else 0, until_ns


class TrustsAnOldWalk(DynamicBatcher):
    def _walked(self):
        self._walk.breaks = self.breaks if self._walk.count <= len(self) else -1
        return super()._walked()


class SkipsTheCandidate(DynamicBatcher):
    def __init__(self, signature, config):
        super().__init__(signature, config)
        self._preferred = (self._max_rows,)
        self._preferred_rows = frozenset(self._preferred)


PLANTED = (
    (conservation, LosesOne),
    (conservation, RunsCancelled),
    (order, NewestFirst),
    (order, IgnoresPriority),
    (bounds, OneRowTooMany),
    (bounds, MixesShapes),
    (bounds, OneTooManyQueued),
    (punctuality, RunsExpired),
    (patience, DelayFromTheNewest),
    (patience, WakesLate),
    (quiescence, WakesLate),
    (quiescence, ForgetsTimeouts),
    (drain, HoldsBackOnFlush),
    (determinism, HasMoods),
    (written_rules, TrustsAnOldWalk),
    (written_rules, SkipsTheCandidate),
)


@pytest.mark.parametrize(
    ("prop", "planted"), PLANTED, ids=[f"{p.__name__}-{b.__name__}" for p, b in PLANTED]
)
def test_a_planted_bug_is_found(
    prop: Callable[[Make, Trace], None], planted: type[DynamicBatcher]
) -> None:
    """The property can fail."""
    with pytest.raises((AssertionError, ValueError, KeyError)):
        hold(
            prop, planted, max_examples=1000, phases=(Phase.generate,), report_multiple_bugs=False
        )
