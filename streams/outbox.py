"""Produces what many calls want to send, in few publishes.

Every call hands over one record. What gathers while the event loop turns once, or while as many publishes as
allowed are under way, goes out as one `Publisher.publish`: no waiting when little is to do, and one future for many
records when much is (FAULTS B93).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.log import Publisher

OnError: TypeAlias = Callable[[LogError], None]

MAX_PUBLISHES = 4
"""Publishes that may be under way at once; more records gather meanwhile."""


class Outbox:
    """See the module's docstring. Bounded by who calls: each open call has at most one record in here.

    Attributes:
        turn: Number of the publish that takes what is sent now: who spreads records over partitions by it keeps a
            publish together in one batch, as Kafka's own sticky partitioner does.
    """

    def __init__(
        self, publisher: Publisher, group: asyncio.TaskGroup, *, first_turn: int = 0
    ) -> None:
        """Keep the open publisher; publishes run as tasks of ``group``, ``first_turn`` differs between gateways."""
        self._publisher = publisher
        self._group = group
        self.turn = first_turn
        self._waiting: list[tuple[Out, OnError]] = []
        self._running = 0
        self._scheduled = False
        self._is_closed = False

    def __repr__(self) -> str:
        """Show what waits and what is under way."""
        return f"Outbox({len(self._waiting)} waiting, {self._running} publishes)"

    def send(self, out: Out, on_error: OnError) -> None:
        """Produce a record soon; ``on_error`` is called if that fails, nothing if it is acknowledged."""
        if self._is_closed:
            on_error(LogError("the outbox is closed", retriable=False))
            return
        self._waiting.append((out, on_error))
        self._schedule()

    def close(self) -> None:
        """Start the last publish and take no more; the task group waits for those under way."""
        self._is_closed = True
        self._start()

    def _schedule(self) -> None:
        if not self._scheduled and self._waiting and self._running < MAX_PUBLISHES:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        self.turn += 1
        self._running += 1
        self._group.create_task(self._publish(batch))

    async def _publish(self, batch: list[tuple[Out, OnError]]) -> None:
        try:
            await self._publisher.publish([out for out, _ in batch])
        except LogError as error:
            for _, on_error in batch:
                on_error(error)
        finally:
            self._running -= 1
            self._schedule()
