"""The one timer of a gateway's open calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.streams.pending import Pending

Slot = TypeVar("Slot")

LATER_S = 0.0005
"""It goes off so much after a deadline, or the clock's rounding would wake it too early again and again."""


class CallTimer(Generic[Slot]):
    """Closes the calls whose deadline has come."""

    def __init__(self, pending: Pending[Slot], expired: Callable[[Slot], None]) -> None:
        """Watch a table; ``expired`` is called with each call that it closes."""
        self._pending = pending
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None

    def wake_at(self, deadline_s: float) -> None:
        """See that calls expire at this time of the loop's clock at the latest."""
        if self._timer is None or self._timer.when() > deadline_s:
            self.cancel()
            self._timer = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def cancel(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        for slot in self._pending.expire(now_ns):
            self._expired(slot)
        if (wake_at := self._pending.wake_at()) is not None:
            self.wake_at(wake_at / 1e9 + LATER_S)
