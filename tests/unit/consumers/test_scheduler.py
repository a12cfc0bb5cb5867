"""A scheduler gives free instances their batches, and says so when it fails itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from headrace.consumers.batcher import Refusal
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.execution import Execution
from headrace.consumers.pool import Done, Work
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.settings import Clock
from headrace.schemas.batch import Batch
from headrace.schemas.errors import Reason
from service_parts import ScriptedInstance, make_config, make_entry, make_signature

ECHO = """
backend: "identity"
max_batch_size: 4
input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }}]
dynamic_batching {{ {} }}
"""


class Instances:
    """Some instances whose work ends when the test says so."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.running: list[tuple[int, Work, Done]] = []

    @property
    def busy(self) -> int:
        """Number at work."""
        return len(self.running)

    def next_staging(self) -> int | None:
        """Nothing ahead."""
        return None

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Keep the work for `finish`."""
        self.free.remove(number)
        self.running.append((number, work, done))

    def finish(self) -> None:
        """Run what was submitted first, and be free again."""
        number, work, done = self.running.pop(0)
        outcome = work(ScriptedInstance())
        self.free.append(number)
        done(number, outcome)


class Outcomes:
    """What the scheduler told."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.refusals: list[Refusal] = []
        self.failures: list[BaseException] = []

    def executed(self, scheduler: Scheduler, batch: Batch, execution: Execution) -> None:
        """Note the batch."""
        self.batches.append(batch)

    def refused(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Note the refusals."""
        self.refusals += refusals

    def broken(self, scheduler: Scheduler, batch: Batch, exc: BaseException) -> None:
        """Note the cause."""
        self.failures.append(exc)

    def failed(self, scheduler: Scheduler, exc: BaseException) -> None:
        """Note the cause."""
        self.failures.append(exc)


def make(
    batching: str, instances: int = 1, kind: type[DynamicBatcher] = DynamicBatcher
) -> tuple[Scheduler, Instances, Outcomes]:
    """Return a scheduler of the echo model with what is around it."""
    text = ECHO.format(batching)
    config = make_config(text)
    assert config.dynamic_batching is not None
    pool, outcomes = Instances(instances), Outcomes()
    batcher = kind(make_signature(text), config.dynamic_batching)
    return Scheduler(1, batcher, pool, outcomes, clock=Clock(lambda: 0, lambda: 0)), pool, outcomes


def entries(count: int, start: int = 0):
    return [make_entry((i, i), offset=i) for i in range(start, start + count)]


HELD = "max_queue_delay_microseconds: 1000000"


@pytest.mark.parametrize("blocks", [(10,), (3, 7), (1,) * 10, (5, 5), (9, 1)])
async def test_MX34_however_ten_arrive_four_run_four_wait_and_two_are_refused(
    blocks: tuple[int, ...],
) -> None:
    """A block that finds the queue full is offered again behind the batches that just left it (QT-01, DB-11)."""
    scheduler, pool, _ = make(f"{HELD} default_queue_policy {{ max_queue_size: 4 }}")
    refused: list[Refusal] = []
    start = 0
    for size in blocks:
        refused += scheduler.offer(entries(size, start))
        start += size
    assert [refusal.entry.record.offset for refusal in refused] == [8, 9]
    assert {refusal.error.reason for refusal in refused} == {Reason.QUEUE_FULL}
    assert (scheduler.executing, len(scheduler.batcher), pool.busy) == (4, 4, 1)


async def test_several_instances_take_their_batches_from_one_block() -> None:
    """A queue of 4 before three instances of 4 takes 16 at once, in order."""
    scheduler, pool, outcomes = make(f"{HELD} default_queue_policy {{ max_queue_size: 4 }}", 3)
    refused = scheduler.offer(entries(20))
    assert [refusal.entry.record.offset for refusal in refused] == [16, 17, 18, 19]
    while pool.running:
        pool.finish()
    ran = [entry.record.offset for batch in outcomes.batches for entry in batch.entries]
    assert ran == list(range(16))
    assert scheduler.idle


async def test_refusals_for_other_reasons_are_not_offered_again() -> None:
    """Two whose deadline has passed, among ten."""
    scheduler, _, _ = make(f"{HELD} default_queue_policy {{ max_queue_size: 4 }}")
    block = entries(10)
    block[0].expires_ns = block[5].expires_ns = -1
    refused = scheduler.offer(block)
    assert sorted((r.entry.record.offset, r.error.reason) for r in refused) == [
        (0, Reason.DEADLINE_PASSED),
        (5, Reason.DEADLINE_PASSED),
    ]
    assert (scheduler.executing, len(scheduler.batcher)) == (4, 4)


class Broken(DynamicBatcher):
    """A batcher with a bug, once something runs."""

    def done(self, batch: Batch, now_ns: int) -> None:
        """Fail."""
        raise ZeroDivisionError("a bug")


async def test_B42_a_failure_in_a_callback_is_told() -> None:
    """Nobody else would hear of it: the loop only logs what its callbacks raise."""
    scheduler, pool, outcomes = make("", kind=Broken)
    assert not scheduler.offer(entries(1))
    pool.finish()
    (failure,) = outcomes.failures
    assert isinstance(failure, ZeroDivisionError)
    assert not outcomes.batches


async def test_B42_a_failure_in_the_timer_is_told() -> None:
    """As above, when the delay is over."""

    class Expiring(DynamicBatcher):
        def expire(self, now_ns: int) -> Sequence[Refusal]:
            raise ZeroDivisionError("a bug")

    scheduler, _, outcomes = make(HELD, kind=Expiring)
    assert not scheduler.offer(entries(1))
    scheduler._tick()
    scheduler.close()
    assert [type(failure) for failure in outcomes.failures] == [ZeroDivisionError]


class Staging(Instances):
    """One instance that takes one piece of work ahead."""

    def next_staging(self) -> int | None:
        """The instance, while it has exactly one."""
        return 0 if len(self.running) == 1 else None

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Keep the work for `finish`."""
        if number in self.free:
            self.free.remove(number)
        self.running.append((number, work, done))

    def finish(self) -> None:
        """End the first; free only when nothing is left."""
        number, work, done = self.running.pop(0)
        outcome = work(ScriptedInstance())
        if not self.running:
            self.free.append(number)
        done(number, outcome)


@pytest.mark.parametrize(("run_ns", "ahead"), [(1_000_000, 2), (6_000_000, 1)])
async def test_a_full_batch_is_given_ahead_behind_a_deep_queue_of_short_runs(
    run_ns: int, ahead: int
) -> None:
    """Four full batches wait and a run takes 1 ms: the next one is there before it ends; with 6 ms it is not."""
    text = ECHO.format("")
    config = make_config(text)
    assert config.dynamic_batching is not None
    pool, outcomes = Staging(1), Outcomes()
    ticks = iter(range(0, 10**12, run_ns))
    clock = Clock(lambda: next(ticks), lambda: 0)
    batcher = DynamicBatcher(make_signature(text), config.dynamic_batching)
    scheduler = Scheduler(1, batcher, pool, outcomes, stage_rows=4, clock=clock)
    scheduler.offer(entries(28))
    assert len(pool.running) == 1  # how long a run takes is not known yet
    pool.finish()
    assert len(pool.running) == ahead
    while pool.running:
        pool.finish()
    found = [e.record.offset for b in outcomes.batches for e in b.entries if e is not None]
    assert found == list(range(28))
    assert scheduler.idle
