"""The one timer of a gateway's open calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.streams.alarm import Alarm
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
        self._alarm = Alarm(self._expire)

    def wake_at(self, deadline_s: float) -> None:
        """See that calls expire at this time of the loop's clock at the latest."""
        self._alarm.set(deadline_s)

    def cancel(self) -> None:
        """Watch no more."""
        self._alarm.cancel()

    def _expire(self) -> None:
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        for slot in self._pending.expire(now_ns):
            self._expired(slot)
        if (wake_at := self._pending.wake_at()) is not None:
            self.wake_at(wake_at / 1e9 + LATER_S)
