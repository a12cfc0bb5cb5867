"""Instances in threads: one piece of work each, outcomes in the loop, a dead thread is noticed."""

from __future__ import annotations

import asyncio
import threading

from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution
from headrace.consumers.pool import Pool
from service_parts import ScriptedInstance

DONE = Execution((), 1, 0, 0, 0)


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
    """It dies with the thread instead of hanging, and nothing is given to that instance any more."""
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
    assert [type(outcome) for outcome in outcomes] == [SystemExit, SystemExit]
    assert (len(pool.free), pool.next_staging(), pool.busy) == (0, None, 0)
    assert await pool.close(5)
