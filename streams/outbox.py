"""Produces what many calls want to send, in few publishes.

Every call hands over one record. What gathers while the event loop turns once, while as many publishes as allowed are
under way, or while many calls come (`headrace.streams.gathering`), goes out as one `Publisher.publish`: no waiting when
little is to do, and one future for many records when much is (FAULTS B93).

Records of one key keep their order (DELIVERY P-18): publishes side by side may overtake each other, so a record whose
key is in one that is under way waits for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.gathering import Gathering
from headrace.streams.log import Publisher

OnError: TypeAlias = Callable[[LogError], None]
Item: TypeAlias = tuple[Out, OnError]
Key: TypeAlias = tuple[str, bytes]
"""Topic and key of a record."""

MAX_PUBLISHES = 2
"""Publishes that may be under way at once; more records gather meanwhile. One is on its way to the broker and the next
one is ready: a request to a broker costs as much as what forty records add to it, and a client sends one at a time."""


class Outbox:
    """See the module's docstring. Bounded by who calls: each open call has at most one record in here.

    Attributes:
        turn: Number of the publish that takes what is sent now: who spreads records over partitions by it keeps a
            publish together in one batch, as Kafka's own sticky partitioner does.
    """

    def __init__(
        self,
        publisher: Publisher,
        group: asyncio.TaskGroup,
        *,
        first_turn: int = 0,
        gather_s: float = 0.0,
        open_calls: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start empty.

        Args:
            publisher: Open.
            group: Publishes run as its tasks.
            first_turn: Differs between gateways.
            gather_s: How long records may gather while calls come, seconds.
            open_calls: Returns how many calls are open.
        """
        self._publisher = publisher
        self._group = group
        self.turn = first_turn
        self._gathering = Gathering(gather_s, open_calls)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[Item] = []
        self._busy: set[Key | None] = set()  # of what is under way
        self._receipts: dict[Out, asyncio.Future[None]] = {}  # of records whose sender waits
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

    async def deliver(self, out: Out) -> None:
        """Produce a record soon and wait until it is acknowledged; it goes out even if the caller is cancelled.

        Raises:
            LogError: It is not.
        """
        receipt = self._receipts[out] = asyncio.get_running_loop().create_future()
        self.send(out, lambda error: self._acknowledge(out, error))
        await receipt

    def _acknowledge(self, out: Out, error: LogError | None) -> None:
        receipt = self._receipts.pop(out, None)
        if receipt is None or receipt.done():
            return
        if error is None:
            receipt.set_result(None)
        else:
            receipt.set_exception(error)

    def close(self) -> None:
        """Start the last publish and take no more; the task group waits for those under way."""
        self._is_closed = True
        self._start()

    def _schedule(self) -> None:
        if self._scheduled or not self._waiting or self._running >= MAX_PUBLISHES:
            return
        count = len(self._waiting)
        if self._gathering.is_enough(count):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._gathering.begin(count, loop.time()), self._look)

    def _look(self) -> None:
        """Wait on for more records, or let those that are here go out."""
        self._timer = None
        if self._scheduled or self._running >= MAX_PUBLISHES:
            return  # the end of a publish looks again
        loop = asyncio.get_running_loop()
        again_s = self._gathering.look(len(self._waiting), loop.time())
        if again_s is None:
            self._start()
        else:
            self._timer = loop.call_at(again_s, self._look)

    def _start(self) -> None:
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._ready()
        if not batch:
            return
        self.turn += 1
        self._gathering.published(len(batch), asyncio.get_running_loop().time())
        self._running += 1
        self._group.create_task(self._publish(batch))

    def _ready(self) -> list[Item]:
        """Remove and return what may go out now."""
        busy, waiting = self._busy, self._waiting
        batch, self._waiting = waiting, []
        if busy:
            batch = [item for item in waiting if _key(item) not in busy]
            self._waiting = [item for item in waiting if _key(item) in busy]
        busy.update(key for item in batch if (key := _key(item)) is not None)
        return batch

    async def _publish(self, batch: list[Item]) -> None:
        try:
            await self._publisher.publish([out for out, _ in batch])
        except LogError as error:
            for _, on_error in batch:
                on_error(error)
        else:
            if self._receipts:
                for out, _ in batch:
                    self._acknowledge(out, None)
        finally:
            self._running -= 1
            self._busy.difference_update(map(_key, batch))
        # Closed or not: the loop turns to it before the group hears that its last task has ended, and takes no more.
        self._schedule()


def _key(item: Item) -> Key | None:
    """Return what must keep its order with others of its kind; None for a record without a key."""
    out = item[0]
    return None if out.key is None else (out.topic, out.key)
