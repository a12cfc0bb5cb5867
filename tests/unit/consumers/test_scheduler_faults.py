"""What a scheduler does about executions that fail, hang or take their instance with them, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from headrace.consumers.batcher import Refusal
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.execution import Execution
from headrace.consumers.pool import Done, Work
from headrace.consumers.recovery import FaultBounds, NotBegun
from headrace.consumers.retry import RetryBounds
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.settings import Clock
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import (
    BackendError,
    BackendUnavailable,
    ExecutionTimeout,
    InferError,
    InstanceDied,
    OutOfMemory,
    Retriable,
)
from headrace.schemas.record import TP
from service_parts import ScriptedInstance, make_config, make_entry, make_signature
from virtual_loop import run_virtual

ECHO = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }]
dynamic_batching { }
"""
MS = 1_000_000
RUN_S = 0.01
"""What an execution takes."""

BOUNDS = FaultBounds(
    RetryBounds(max_attempts=3, backoff_ns=100 * MS, backoff_max_ns=1_000 * MS),
    execution_timeout_ns=500 * MS,
    ceiling_hold_ns=2_000 * MS,
)


class Hangs(Exception):
    """Raised by a script: the execution never returns."""


class Instances:
    """Instances on virtual time; an execution that dies or hangs takes its instance away for a moment."""

    def __init__(self, script: Callable[[Batch], Any], count: int) -> None:
        self.free = list(range(count))
        self.instance = ScriptedInstance(self._play)
        self.dispatch: Callable[[], None] = lambda: None
        self.begun_s: list[tuple[float, list[int]]] = []
        self._script = script
        self._at_work: dict[int, Done] = {}
        self._fate: BaseException | None = None

    def _play(self, batch: Batch) -> Any:
        self.begun_s.append((round(asyncio.get_running_loop().time(), 3), offsets(batch)))
        try:
            return self._script(batch)
        except Exception as exc:
            if isinstance(exc, InferError | MemoryError):
                raise
            self._fate = exc
            return None

    @property
    def busy(self) -> int:
        """Number at work."""
        return len(self._at_work)

    def next_staging(self) -> int | None:
        """Nothing ahead."""
        return None

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Run at once, answer later."""
        self.free.remove(number)
        self._at_work[number] = done
        self._fate = None
        outcome: Execution | BaseException = work(self.instance)
        if isinstance(self._fate, Hangs):
            for cell in work.keywords.values():
                if hasattr(cell, "began_ns"):
                    cell.began_ns = int(asyncio.get_running_loop().time() * 1e9) + 1
            return
        if self._fate is not None:
            outcome = self._fate
        asyncio.get_running_loop().call_later(RUN_S, self._end, number, outcome)

    def _end(self, number: int, outcome: Execution | BaseException) -> None:
        done = self._at_work.pop(number)
        if isinstance(outcome, BaseException):
            self._revive(number)
        else:
            self.free.append(number)
        done(number, outcome)

    def _revive(self, number: int) -> None:
        def back() -> None:
            self.free.append(number)
            self.dispatch()

        asyncio.get_running_loop().call_later(0.05, back)

    def abandon(self, number: int, error: InferError) -> None:
        """Give up what hangs."""
        done = self._at_work.pop(number)
        self._revive(number)
        done(number, error)


@dataclass
class Told:
    """What the scheduler told, and when.

    Attributes:
        good: Offset → when it had its result, seconds.
        bad: Offset → when it failed and with what.
        counted: What was counted.
    """

    good: dict[int, float] = field(default_factory=dict)
    bad: dict[int, tuple[float, InferError]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def _now(self) -> float:
        return round(asyncio.get_running_loop().time(), 3)

    def executed(self, scheduler: Scheduler, batch: Batch, execution: Execution) -> None:
        """Note results and errors; together they are the batch."""
        told: list[int] = []
        for part in execution.parts:
            told += offsets(part.batch)
            for offset in offsets(part.batch):
                assert offset not in self.good
                assert offset not in self.bad
                if part.error is None:
                    self.good[offset] = self._now()
                else:
                    self.bad[offset] = (self._now(), part.error)
        assert sorted(told) == sorted(offsets(batch))

    def refused(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Note the errors."""
        for entry, error in refusals:
            assert entry.record.offset not in self.good
            assert entry.record.offset not in self.bad
            self.bad[entry.record.offset] = (self._now(), error)

    broken = refused

    def failed(self, scheduler: Scheduler, exc: BaseException) -> None:
        """Note the bug."""
        self.failures.append(exc)

    def retried(self, requests: int) -> None:
        """Count."""
        self._count("retried", requests)

    def ran(self, sizes: Sequence[int]) -> None:
        """Count."""
        self._count("ran", len(sizes))

    def timed_out(self) -> None:
        """Count."""
        self._count("timed_out", 1)

    def ceiling(self, rows: int) -> None:
        """Keep the last."""
        self.counted["ceiling"] = rows

    def _count(self, what: str, more: int) -> None:
        self.counted[what] = self.counted.get(what, 0) + more


def offsets(batch: Batch) -> list[int]:
    return [entry.record.offset for entry in batch.entries if entry is not None]


def entries(count: int, start: int = 0) -> list[Entry]:
    return [make_entry((i, i), offset=i) for i in range(start, start + count)]


Scene = Callable[[Scheduler, Instances], Coroutine[Any, Any, None]]


def play(
    script: Callable[[Batch], Any],
    scene: Scene,
    *,
    instances: int = 1,
    repeatable: bool = True,
    bounds: FaultBounds = BOUNDS,
) -> tuple[Told, Instances]:
    """Play a scene with a scheduler of the echo model, until nothing is left to do."""

    async def main() -> tuple[Told, Instances]:
        loop = asyncio.get_running_loop()
        clock = Clock(lambda: int(loop.time() * 1e9) + 1, lambda: 0)
        config = make_config(ECHO)
        assert config.dynamic_batching is not None
        told, pool = Told(), Instances(script, instances)
        batcher = DynamicBatcher(make_signature(ECHO), config.dynamic_batching)
        scheduler = Scheduler(
            1,
            batcher,
            pool,
            told,
            repeatable=repeatable,
            max_rows=8,
            bounds=bounds,
            faults=told,
            clock=clock,
        )
        scheduler._recovery.retries._jitter = lambda: 0.0
        pool.dispatch = scheduler.dispatch
        await scene(scheduler, pool)
        async with asyncio.timeout(60):
            while not scheduler.idle:  # noqa: ASYNC110  # virtual time, and no event says so
                await asyncio.sleep(0.01)
        assert scheduler.executing == 0
        assert not scheduler._recovery.retries
        scheduler.close()
        assert not told.failures
        return told, pool

    return run_virtual(main())


async def offered(count: int, scheduler: Scheduler, _: Instances) -> None:
    assert not scheduler.offer(entries(count))


def raising(culprits: set[int], make: Callable[[], Exception]) -> Callable[[Batch], None]:
    def script(batch: Batch) -> None:
        if culprits & set(offsets(batch)):
            raise make()

    return script


def test_B20_B30_a_request_that_always_fails_is_tried_three_times_and_blocks_nobody() -> None:
    """Its neighbours are answered with the first execution; its pauses are 100 and 200 ms."""
    script = raising({2}, lambda: Retriable("not now"))
    told, pool = play(script, partial(offered, 4))
    assert told.good == {0: 0.01, 1: 0.01, 3: 0.01}
    when, error = told.bad[2]
    assert isinstance(error, Retriable)
    assert [at for at, rows in pool.begun_s if rows == [2]] == [0.0, 0.11, 0.32]
    assert when == 0.33
    assert told.counted["retried"] == 2


def test_a_request_that_fails_once_succeeds_at_its_second_try() -> None:
    """And its answer says that it was the second."""
    left = [Retriable("not now")]

    def script(batch: Batch) -> None:
        if left:
            raise left.pop()

    block = entries(1)

    async def scene(scheduler: Scheduler, _: Instances) -> None:
        scheduler.offer(block)

    told, _ = play(script, scene)
    assert (told.good, told.bad) == ({0: 0.12}, {})
    assert block[0].attempt == 2


def test_errors_that_do_not_pass_are_not_tried_again() -> None:
    """A plain `BackendError` is final."""
    told, pool = play(raising({0}, lambda: BackendError("no")), partial(offered, 1))
    assert len(pool.begun_s) == 1
    assert told.bad[0][0] == RUN_S


def test_a_model_with_memory_of_its_own_sees_nothing_twice() -> None:
    """Retriable errors, deaths and timeouts are final there."""
    for make in (lambda: Retriable("x"), lambda: ValueError("death"), Hangs):
        told, pool = play(raising({0}, make), partial(offered, 3), repeatable=False)
        assert len(pool.begun_s) == 1
        assert sorted(told.bad) == [0, 1, 2]


def test_B18_new_requests_pass_one_that_waits_for_its_next_try() -> None:
    """Ten more come while it waits; none is later than its own execution."""

    async def scene(scheduler: Scheduler, _: Instances) -> None:
        scheduler.offer(entries(1))
        await asyncio.sleep(0.05)
        scheduler.offer(entries(8, 1))

    told, _ = play(raising({0}, lambda: Retriable("x")), scene)
    assert set(told.good.values()) == {0.06}
    assert set(told.bad) == {0}


def test_an_unavailable_backend_is_asked_with_the_whole_batch_again() -> None:
    """Two failures, then it answers: three executions of eight, none of fewer."""
    left = [BackendUnavailable("x"), BackendUnavailable("x")]

    def script(batch: Batch) -> None:
        if left:
            raise left.pop()

    told, pool = play(script, partial(offered, 8))
    assert [len(rows) for _, rows in pool.begun_s] == [8, 8, 8]
    assert len(told.good) == 8
    assert told.counted == {"retried": 16, "ran": 2}


def test_B42_a_hung_execution_is_given_up_and_its_requests_run_one_by_one() -> None:
    """One of four hangs for ever: the others are served, it is answered after three tries."""
    told, pool = play(raising({1}, Hangs), partial(offered, 4))
    assert sorted(told.good) == [0, 2, 3]
    when, error = told.bad[1]
    assert isinstance(error, ExecutionTimeout)
    assert (error.code, error.reason) == ("UNAVAILABLE", "execution_timeout")
    assert "500 ms" in error.detail
    assert [rows for _, rows in pool.begun_s][:3] == [[0, 1, 2, 3], [0], [1]]
    assert told.counted["timed_out"] == 3
    assert when < 3 * 0.7 + 0.4


def test_B42_a_death_is_tried_again_one_by_one_and_then_answered() -> None:
    """The culprit is found; its error names the cause."""
    told, _ = play(raising({1}, lambda: ValueError("native")), partial(offered, 3))
    assert sorted(told.good) == [0, 2]
    error = told.bad[1][1]
    assert isinstance(error, InstanceDied)
    assert "native" in error.detail


def test_B42_work_that_was_not_begun_goes_to_another_instance() -> None:
    """It is no try of theirs."""
    left = [NotBegun()]
    block = entries(2)

    def script(batch: Batch) -> None:
        if left:
            raise left.pop()

    async def scene(scheduler: Scheduler, _: Instances) -> None:
        scheduler.offer(block)

    told, _ = play(script, scene)
    assert sorted(told.good) == [0, 1]
    assert [entry.attempt for entry in block] == [1, 1]
    assert "retried" not in told.counted


def test_B80_batches_are_formed_below_the_ceiling_until_it_has_risen() -> None:
    """2 rows fit: 8, 4, then pairs; when memory is there again, 4 and then 8 after each hold."""
    fits = [2]

    def script(batch: Batch) -> None:
        if batch.rows > fits[0]:
            raise OutOfMemory("short")

    async def scene(scheduler: Scheduler, pool: Instances) -> None:
        sizes: list[list[int]] = []
        for start in (0, 8, 16, 24, 32):
            begun = len(pool.begun_s)
            scheduler.offer(entries(8, start))
            await asyncio.sleep(0.5)
            sizes.append([len(rows) for _, rows in pool.begun_s[begun:]])
            if start == 8:
                fits[0] = 8
                await asyncio.sleep(1.1)
            if start >= 16:
                await asyncio.sleep(1.6)
        assert sizes == [[8, 4, 2, 2, 2, 2], [2] * 4, [4] * 2, [8], [8]]

    told, _ = play(script, scene)
    assert len(told.good) == 40
    assert told.counted["ceiling"] == 0


def test_B81_memory_that_is_short_for_one_request_ends_as_an_error() -> None:
    """Three tries, no hang."""
    told, _ = play(raising({0}, lambda: MemoryError("x")), partial(offered, 1))
    assert isinstance(told.bad[0][1], OutOfMemory)
    assert told.counted["retried"] == 2


def test_a_deadline_ends_the_tries() -> None:
    """In 50 ms there is no second try; in 150 ms a second, no third."""
    for deadline_ms, runs in ((50, 1), (150, 2)):
        block = entries(1)
        block[0].expires_ns = deadline_ms * MS

        async def scene(scheduler: Scheduler, _: Instances, block: list[Entry] = block) -> None:
            scheduler.offer(block)

        told, pool = play(raising({0}, lambda: Retriable("x")), scene)
        assert len(pool.begun_s) == runs
        assert told.bad[0][0] < deadline_ms / 1000


def test_a_partition_that_goes_takes_what_waits_for_its_next_try_with_it() -> None:
    """It is returned as dropped, once, and nobody runs it again."""
    dropped: list[Entry] = []

    async def scene(scheduler: Scheduler, _: Instances) -> None:
        scheduler.offer(entries(2))
        await asyncio.sleep(0.05)
        dropped.extend(scheduler.drop(TP("t", 0)))

    told, pool = play(raising({0}, lambda: Retriable("x")), scene)
    assert [entry.record.offset for entry in dropped] == [0]
    assert (told.bad, list(told.good)) == ({}, [1])
    assert len([rows for _, rows in pool.begun_s if rows == [0]]) == 1


@pytest.mark.parametrize("instances", [1, 3])
def test_any_mixture_of_faults_ends_with_one_outcome_each(instances: int) -> None:
    """Faults by the offset: each seventh hangs, dies, or fails in a way that passes or does not."""
    kinds = {1: Hangs, 2: lambda: ValueError("x"), 3: lambda: Retriable("x"), 4: MemoryError}

    def script(batch: Batch) -> None:
        for offset in offsets(batch):
            if (make := kinds.get(offset % 7)) is not None:
                raise make()

    async def scene(scheduler: Scheduler, _: Instances) -> None:
        for start in range(0, 35, 5):
            scheduler.offer(entries(5, start))
            await asyncio.sleep(0.02)

    told, _ = play(script, scene, instances=instances)
    assert sorted([*told.good, *told.bad]) == list(range(35))
    assert {offset % 7 for offset in told.bad} == {1, 2, 3, 4}
    assert {offset % 7 for offset in told.good} == {0, 5, 6}
