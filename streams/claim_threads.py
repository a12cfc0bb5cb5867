"""Blocking calls in few threads, each of which may take so long and no longer.

A call that takes longer is given up, but its thread cannot be ended: it keeps its place until it returns by itself.
When all places are taken by such threads, waiting calls and new ones fail at once. The threads are daemons, so a store
that hangs keeps no process from ending; and they are not the event loop's own, which decode requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Exception):
    """A call took too long, or all threads are in such calls."""


class _Call(Generic[T]):
    """One call: its result for whoever waits, and whether its thread is given up."""

    __slots__ = ("future", "is_overdue", "timer")

    def __init__(self, future: asyncio.Future[T]) -> None:
        self.future = future
        self.is_overdue = False
        self.timer: asyncio.TimerHandle | None = None


class Threads:
    """See the module's docstring. Calls get their turns in the order in which they came."""

    def __init__(self, count: int, timeout_s: float) -> None:
        """Allow ``count`` calls at once, each for ``timeout_s``."""
        self._free = self._count = count
        self._timeout_s = timeout_s
        self._overdue = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        """Show the numbers."""
        busy = self._count - self._free
        return (
            f"Threads({busy} busy, {self._overdue} of them overdue, {len(self._waiting)} waiting)"
        )

    async def call(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns in a thread, or raise what it raises.

        Raises:
            Overdue: It did not return in time, or no thread can be had.
        """
        await self._turn()
        loop = asyncio.get_running_loop()
        call: _Call[T] = _Call(loop.create_future())

        def run() -> None:
            result: T | BaseException
            try:
                result = work()
            except BaseException as exc:  # noqa: BLE001  # handed to the caller
                result = exc
            try:
                loop.call_soon_threadsafe(self._ended, call, result)
            except RuntimeError:
                return  # the loop has ended: nobody waits

        try:
            threading.Thread(target=run, name="claims", daemon=True).start()
        except RuntimeError as exc:  # the process may have no more of them
            self._release()
            raise Overdue(f"no thread can be had for it: {exc}") from exc
        call.timer = loop.call_later(self._timeout_s, self._give_up, call)
        return await call.future

    async def _turn(self) -> None:
        """Wait for a place."""
        if self._overdue == self._count:
            raise self._stuck()
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._release()  # it was ours a moment ago
            raise

    def _ended(self, call: _Call[T], result: T | BaseException) -> None:
        assert call.timer is not None
        call.timer.cancel()
        self._overdue -= call.is_overdue
        self._release()
        if call.future.done():
            return
        if isinstance(result, BaseException):
            call.future.set_exception(result)
        else:
            call.future.set_result(result)

    def _give_up(self, call: _Call[T]) -> None:
        call.is_overdue = True
        self._overdue += 1
        if not call.future.done():
            call.future.set_exception(Overdue(f"it takes longer than {self._timeout_s:g} s"))
        if self._overdue == self._count:
            while self._waiting:
                mine = self._waiting.popleft()
                if not mine.done():
                    mine.set_exception(self._stuck())

    def _release(self) -> None:
        while self._waiting:
            mine = self._waiting.popleft()
            if not mine.done():
                mine.set_result(None)
                return
        self._free += 1

    def _stuck(self) -> Overdue:
        return Overdue(f"all {self._count} calls to it take longer than {self._timeout_s:g} s")
