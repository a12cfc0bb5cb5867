"""Instances in threads: one piece of work each, outcomes in the loop, a dead thread is noticed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution
from headrace.consumers.pool import Pool
from headrace.consumers.recovery import NotBegun
from headrace.consumers.supervision import InstancesExhausted, Supervision
from headrace.schemas.errors import ConfigError, ExecutionTimeout
from service_parts import ScriptedInstance

DONE = Execution((), 1, 0, 0, 0)
STARVED = DONE._replace(failed=True, starved=True)


async def outcome_of(pool: Pool, work) -> tuple[int, Execution | BaseException]:
    """Submit to the longest-free instance and await what comes back."""
    future: asyncio.Future = asyncio.get_running_loop().create_future()
    number = pool.free[0]
    pool.submit(number, work, lambda n, outcome: future.set_result((n, outcome)))
    return await asyncio.wait_for(future, 5)


async def test_work_runs_in_the_instances_own_thread_and_frees_it() -> None:
    """The thread is the instance's, the outcome arrives in the loop's thread."""
    pool = Pool([ScriptedInstance(name="a"), ScriptedInstance(name="b")], "m-1")
    pool.start()
    seen: list[tuple[str, str]] = []

    def work(instance: Instance) -> Execution:
        seen.append((instance.name, threading.current_thread().name))
        return DONE

    assert await outcome_of(pool, work) == (0, DONE)
    assert await outcome_of(pool, work) == (1, DONE)
    assert await outcome_of(pool, work) == (0, DONE)
    assert seen == [("a", "m-1-0"), ("b", "m-1-1"), ("a", "m-1-0")]
    assert pool.busy == 0
    assert await pool.close(5)


async def test_two_instances_work_at_the_same_time() -> None:
    """Neither waits for the other: both must be inside before either may leave."""
    pool = Pool([ScriptedInstance(), ScriptedInstance()], "m-1")
    pool.start()
    barrier = threading.Barrier(2, timeout=5)

    def work(_: Instance) -> Execution:
        barrier.wait()
        return DONE

    outcomes = await asyncio.gather(outcome_of(pool, work), outcome_of(pool, work))
    assert [outcome for _, outcome in outcomes] == [DONE, DONE]
    assert await pool.close(5)


async def test_B42_a_dead_thread_takes_its_instance_out_and_is_reported() -> None:
    """The work is not lost without a word, the pool is unhealthy, the other instance goes on."""
    pool = Pool([ScriptedInstance(), ScriptedInstance()], "m-1")
    pool.start()
    assert pool.healthy()

    def work(_: Instance) -> Execution:
        raise SystemExit("native code asked to leave")

    number, outcome = await outcome_of(pool, work)
    assert number == 0
    assert isinstance(outcome, SystemExit)
    assert not pool.healthy()
    assert list(pool.free) == [1]
    assert await outcome_of(pool, lambda _: DONE) == (1, DONE)
    assert await pool.close(5)


async def test_closing_is_bounded_when_a_model_hangs() -> None:
    """A hung model cannot keep the process from ending."""
    pool = Pool([ScriptedInstance()], "m-1")
    pool.start()
    release = threading.Event()
    entered = threading.Event()

    def work(_: Instance) -> Execution:
        entered.set()
        release.wait(30)
        return DONE

    done: asyncio.Future = asyncio.get_running_loop().create_future()
    pool.submit(0, work, lambda _, outcome: done.set_result(outcome))
    await asyncio.to_thread(entered.wait, 5)
    assert not await pool.close(0.05)
    release.set()
    assert await asyncio.wait_for(done, 5) == DONE


async def test_work_that_is_given_ahead_runs_next_without_the_loop() -> None:
    """The thread goes from one piece to the next; an instance takes one ahead, not two."""
    pool = Pool([ScriptedInstance()], "m-1")
    pool.start()
    assert pool.next_staging() is None
    ended: list[int] = []
    done: asyncio.Future = asyncio.get_running_loop().create_future()

    def ending(_: int, outcome: Execution | BaseException) -> None:
        assert outcome is DONE
        ended.append(len(pool.free))
        if len(ended) == 2:
            done.set_result(None)

    pool.submit(0, lambda _: DONE, ending)
    assert not pool.free
    assert pool.next_staging() == 0
    pool.submit(0, lambda _: DONE, ending)
    assert pool.next_staging() is None
    assert pool.busy == 1
    await asyncio.wait_for(done, 5)
    assert ended == [0, 1]  # free only after the second
    assert pool.busy == 0
    assert await pool.close(5)


async def test_B42_work_given_ahead_is_reported_when_its_thread_dies() -> None:
    """It is told that it was not begun, and nothing is given to that instance any more."""
    pool = Pool([ScriptedInstance()], "m-1")
    pool.start()
    outcomes: list[Execution | BaseException] = []
    done: asyncio.Future = asyncio.get_running_loop().create_future()

    def ending(_: int, outcome: Execution | BaseException) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 2:
            done.set_result(None)

    def dying(_: Instance) -> Execution:
        raise SystemExit("native code asked to leave")

    pool.submit(0, dying, ending)
    pool.submit(0, lambda _: DONE, ending)
    await asyncio.wait_for(done, 5)
    assert [type(outcome) for outcome in outcomes] == [SystemExit, NotBegun]
    assert (len(pool.free), pool.next_staging(), pool.busy) == (0, None, 0)
    assert await pool.close(5)


class Supervised:
    """A pool whose instances are replaced, and what it tells.

    Attributes:
        made: Number and whether the old one was to be closed, of each replacement.
        fails: How many replacements fail first.
        hung: Given-up executions that hang.
        ends: Why nothing can execute any more.
    """

    def __init__(self, count: int = 1, **bounds: object) -> None:
        self.made: list[tuple[int, bool]] = []
        self.fails = 0
        self.hung = 0
        self.restarts = 0
        self.ends: list[InstancesExhausted] = []
        self.instances = [Closing(name=f"first-{number}") for number in range(count)]
        self.pool = Pool(self.instances, "m-1")
        self.came = asyncio.Event()
        supervision = Supervision(
            renew=self.renew,
            changed=self.came.set,
            restarted=self.restarted,
            abandoned=self.abandoned,
            exhausted=self.ends.append,
            backoff_s=0.02,
            backoff_max_s=0.05,
        )
        self.pool.start(replace(supervision, **bounds))

    def renew(self, number: int, closes: bool) -> Instance:  # the supervision's shape
        self.made.append((number, closes))
        if self.fails:
            self.fails -= 1
            raise ConfigError("no device")
        return Closing(name=f"new-{len(self.made)}")

    def restarted(self) -> None:
        self.restarts += 1

    def abandoned(self, more: int) -> None:
        self.hung += more

    async def back(self) -> None:
        """Wait until an instance is there again."""
        await asyncio.wait_for(self.came.wait(), 5)
        self.came.clear()


class Closing(ScriptedInstance):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Hang:
    """Work that returns when it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.free = threading.Event()
        self.instance: Instance | None = None

    def __call__(self, instance: Instance) -> Execution:
        self.instance = instance
        self.entered.set()
        self.free.wait(30)
        return DONE

    async def inside(self) -> None:
        """Wait until it runs."""
        assert await asyncio.to_thread(self.entered.wait, 5)


def dying(_: Instance) -> Execution:
    """Work that takes its instance with it."""
    raise SystemExit("native code asked to leave")


TIMEOUT = ExecutionTimeout("too long")


async def until(condition) -> None:
    """Wait for what other threads bring about."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # another thread's state
            await asyncio.sleep(0.002)


async def test_B42_a_dead_instance_is_replaced_by_a_new_one() -> None:
    """It says so until then, the old one may be closed, and the next work runs on the new one."""
    found = Supervised()
    pool = found.pool
    _, outcome = await outcome_of(pool, dying)
    assert isinstance(outcome, SystemExit)
    assert not pool.healthy()
    assert "died of SystemExit" in pool.trouble()
    await found.back()
    assert (pool.healthy(), pool.trouble()) == (True, "")
    assert (found.made, found.restarts) == ([(0, True)], 1)
    seen: list[str] = []
    await outcome_of(pool, lambda instance: seen.append(instance.name) or DONE)
    assert seen == ["new-1"]
    assert await pool.close(5)


async def test_B42_a_hung_execution_is_left_behind_and_its_late_result_dropped() -> None:
    """Its work ends at once with the error; when the thread returns, it closes its instance, and nobody is told."""
    found = Supervised()
    pool, hang, outcomes = found.pool, Hang(), []
    pool.submit(0, hang, lambda _, outcome: outcomes.append(outcome))
    pool.submit(0, lambda _: DONE, lambda _, outcome: outcomes.append(outcome))
    await hang.inside()
    pool.abandon(0, TIMEOUT)
    assert [type(outcome) for outcome in outcomes] == [ExecutionTimeout, NotBegun]
    assert (pool.healthy(), found.hung) == (False, 1)
    await found.back()
    assert found.made == [(0, False)]
    assert await outcome_of(pool, lambda _: DONE) == (0, DONE)
    assert not found.instances[0].closed
    hang.free.set()
    await until(lambda: found.hung == 0)
    assert found.instances[0].closed
    assert len(outcomes) == 2
    assert pool.healthy()
    assert await pool.close(5)


async def test_B42_too_many_hung_executions_end_it_and_one_that_comes_back_mends_it() -> None:
    """One may hang: the second one's instance is not replaced, and nothing can execute any more."""
    found = Supervised(max_abandoned=1)
    pool, hangs = found.pool, [Hang(), Hang()]
    for hang in hangs:
        pool.submit(0, hang, lambda *_: None)
        await hang.inside()
        pool.abandon(0, TIMEOUT)
        if hang is hangs[0]:
            await found.back()
    assert len(found.ends) == 1
    assert "expected at most 1 (max_abandoned_executions)" in str(found.ends[0])
    assert "2 given-up executions hang" in pool.trouble()
    assert not pool.free
    hangs[1].free.set()
    await found.back()
    assert await outcome_of(pool, lambda _: DONE) == (0, DONE)
    hangs[0].free.set()
    await until(lambda: found.hung == 0)
    assert await pool.close(5)


async def test_B42_with_another_instance_left_it_goes_on_unless_sequences_have_their_places() -> (
    None
):
    """One of two instances is gone: readiness falls; where what it does no other may do, that is the end."""
    for bound in (False, True):
        found = Supervised(2, max_abandoned=0, bound=bound)
        pool, hang = found.pool, Hang()
        pool.submit(1, hang, lambda *_: None)
        await hang.inside()
        pool.abandon(1, TIMEOUT)
        assert bool(found.ends) is bound
        assert not pool.healthy()
        assert await outcome_of(pool, lambda _: DONE) == (0, DONE)
        hang.free.set()
        await until(pool.healthy)
        assert await pool.close(5)


async def test_an_instance_that_cannot_be_made_is_tried_again_with_pauses() -> None:
    """Two failures; then it is there, and readiness with it."""
    found = Supervised()
    found.fails = 2
    await outcome_of(found.pool, dying)
    await until(lambda: "cannot be made anew, trying again: no device" in found.pool.trouble())
    await found.back()
    assert len(found.made) == 3
    assert found.pool.healthy()
    assert await found.pool.close(5)


async def test_an_instance_that_can_never_be_made_ends_it() -> None:
    """After `MAX_RENEWALS` failures in a row somebody is told, while it is tried on."""
    found = Supervised()
    found.fails = 1_000
    await outcome_of(found.pool, dying)
    await until(lambda: found.ends)
    assert "no device" in str(found.ends[0])
    assert len(found.made) >= 10
    assert await found.pool.close(5)


async def test_B81_an_instance_without_memory_for_single_requests_is_replaced() -> None:
    """Three in a row; one that succeeds in between begins the count anew."""
    found = Supervised(max_starved=3)
    for outcome in (STARVED, STARVED, DONE, STARVED, STARVED):
        await outcome_of(found.pool, lambda _, outcome=outcome: outcome)
        assert found.pool.healthy()
    await outcome_of(found.pool, lambda _: STARVED)
    assert "3 single requests in a row ran out of memory" in found.pool.trouble()
    await found.back()
    assert found.pool.healthy()
    assert found.made == [(0, True)]
    assert await found.pool.close(5)


async def test_B42_an_instance_that_says_it_is_not_healthy_is_replaced() -> None:
    """After the execution that showed it, and also while it is idle."""
    found = Supervised()
    found.instances[0].healthy = lambda: False
    await outcome_of(found.pool, lambda _: DONE)
    await found.back()
    assert found.pool.healthy()
    idle = Supervised()
    idle.instances[0].healthy = lambda: False
    assert not idle.pool.healthy()
    await idle.back()
    assert idle.pool.healthy()
    assert await found.pool.close(5)
    assert await idle.pool.close(5)
