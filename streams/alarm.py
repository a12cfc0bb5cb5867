"""A timer that only moves to an earlier time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Alarm:
    """Calls back once at the earliest of the times that it was given, on the running loop.

    The time is kept here because a handle does not always know it: for a time that has come, or comes within half a
    millisecond, uvloop's `call_at` returns a plain handle without `when`.

    Attributes:
        due_s: When it goes off by the loop's clock, in seconds; infinity while it is not set.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        """Call ``ring`` when the time has come; it may set the alarm again."""
        self.due_s = inf
        self._ring = ring
        self._handle: asyncio.Handle | None = None

    def set(self, due_s: float) -> None:
        """Go off at this time of the loop's clock, unless it does so earlier anyway."""
        if due_s >= self.due_s:
            return
        self.cancel()
        self.due_s = due_s
        self._handle = asyncio.get_running_loop().call_at(due_s, self._go_off)

    def cancel(self) -> None:
        """Do not go off."""
        self.due_s = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _go_off(self) -> None:
        self.due_s = inf
        self._handle = None
        self._ring()
