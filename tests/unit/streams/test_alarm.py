"""The alarm on both kinds of loop that the service runs on."""

import asyncio
import random

import pytest
import uvloop
from headrace.streams.alarm import Alarm


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("first_s", [-1.0, 0.0, 0.0002, 0.01])
def test_the_earliest_time_stands_though_a_time_has_come_when_it_is_set(run, first_s):
    """A handle of a time that has come does not know when it is due: the worker died of that, in its settles."""

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        rings = []
        done = asyncio.Event()

        def ring() -> None:
            rings.append(loop.time() - begin)
            done.set()

        begin = loop.time()
        alarm = Alarm(ring)
        alarm.set(begin + first_s)
        alarm.set(begin + 60)
        alarm.set(begin + first_s + 0.001)
        assert alarm.due_s == begin + first_s
        async with asyncio.timeout(30):
            await done.wait()
        assert alarm.due_s == float("inf")
        return len(rings), rings[0]

    count, at_s = run(main())
    assert count == 1
    assert at_s >= first_s - 0.001


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_earlier_time_replaces_a_later_one_and_a_cancelled_one_does_not_ring(run):
    """Set again from within the callback, it goes off once more."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        done = asyncio.Event()
        cancelled = Alarm(lambda: said.append("cancelled"))
        cancelled.set(loop.time())
        cancelled.cancel()

        def ring() -> None:
            said.append("rang")
            if len(said) == 3:
                done.set()
            else:
                alarm.set(loop.time() + random.choice((0, 0.002)))

        alarm = Alarm(ring)
        alarm.set(loop.time() + 3600)
        alarm.set(loop.time() + 0.001)
        async with asyncio.timeout(30):
            await done.wait()
        return said

    assert run(main()) == ["rang"] * 3
