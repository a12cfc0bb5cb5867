"""A run that takes too long is given up, and nothing that has not begun, or was given up already."""

from __future__ import annotations

import asyncio

from headrace.consumers.overdue import Overdue
from virtual_loop import run_virtual

NS = 1_000_000_000


def test_only_a_run_that_is_under_way_for_too_long_is_given_up() -> None:
    """Instance 0 runs, 1 waits behind its own work, 2 was given up before, 3 began a moment ago."""
    given_up: list[int] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()

        def now_ns() -> int:
            return NS + int(loop.time() * NS)

        overdue = Overdue(2 * NS, now_ns, given_up.append)
        running, _waiting, void, young = (overdue.begin(number) for number in range(4))
        running.began_ns = void.began_ns = now_ns()
        void.void()
        await asyncio.sleep(1.9)
        young.began_ns = now_ns()
        assert not given_up
        await asyncio.sleep(0.7)  # a quarter of the timeout later at most
        assert given_up[:1] == [0]
        assert set(given_up) == {0}
        overdue.end(running)
        await asyncio.sleep(1.0)
        assert set(given_up) == {0}
        await asyncio.sleep(1.0)
        assert set(given_up) == {0, 3}
        overdue.close()

    run_virtual(play())
