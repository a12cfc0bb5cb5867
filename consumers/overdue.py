"""Gives up executions that do not return in time (``execution_timeout_ms``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.consumers.execution import Ticket

LOOKS = 4
"""Looks within one timeout: an execution is given up at most a quarter of it too late."""

LOOK_MIN_S = 0.01
LOOK_MAX_S = 1.0
"""Bounds of the time between two looks, seconds."""


class Overdue:
    """Watches the executions of one model version; each run of the model counts by itself.

    A batch that is taken apart runs the model many times, and one that was given ahead waits for its turn: so time
    counts from the beginning of the run that is under way, which the instance's thread notes on the ticket.
    """

    def __init__(
        self, timeout_ns: int, now_ns: Callable[[], int], give_up: Callable[[int], None]
    ) -> None:
        """Watch nothing yet.

        Args:
            timeout_ns: How long a run may take, above 0.
            now_ns: Monotonic time.
            give_up: Called in the loop with the number of an instance whose run takes longer.
        """
        self._timeout_ns = timeout_ns
        self._now_ns = now_ns
        self._give_up = give_up
        self._look_s = min(max(timeout_ns / 1e9 / LOOKS, LOOK_MIN_S), LOOK_MAX_S)
        self._running: dict[Ticket, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, number: int) -> Ticket:
        """Return the ticket of an execution that an instance is given."""
        ticket = Ticket()
        self._running[ticket] = number
        if self._timer is None:
            self._arm()
        return ticket

    def end(self, ticket: Ticket) -> None:
        """Watch an execution no more: it returned, or was given up."""
        self._running.pop(ticket, None)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        before_ns = self._now_ns() - self._timeout_ns
        late = [
            number
            for ticket, number in self._running.items()
            if 0 < ticket.began_ns < before_ns and not ticket.is_void
        ]
        for number in late:
            self._give_up(number)
        if self._running and self._timer is None:
            self._arm()
