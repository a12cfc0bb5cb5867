"""The settle loop of exactly_once: each partition's cut is a transaction of its own (DELIVERY P-10…P-13).

Answers gather per partition for `WorkerSettings.transaction_interval_s` before their transaction begins, for readers
stop at anybody's earliest open one (P-12); those that somebody awaits are cut at once (P-13), and so is everything
when what is answered takes much of the room of what may be admitted. That nothing else is in flight is no reason:
every transaction costs the broker markers.

A partition has one transaction at a time: while it runs, the next cut gathers, so that cuts grow with the load by
themselves. So they do while a partition waits for its turn, for only so many transactions run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.consumers.partition import Partition
from headrace.consumers.refused_replies import RefusedReplies
from headrace.consumers.settle import NO_STATES, Settler
from headrace.consumers.state_store import StateStore
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.schemas.snapshot import Stored
from headrace.streams.log import Delivery, Outcome

MAX_TRANSACTIONS = 16
"""Transactions of a model in one worker that run side by side. More of them ended no sooner, on one broker as on three,
and would take their cuts sooner, so that there were more of them for the same records."""


class CutBounds(NamedTuple):
    """When a cut is made.

    Attributes:
        interval_s: How long answers gather that nobody awaits, seconds.
        records: Once so many are answered and in no transaction, the partitions with the most of them are cut.
        size: The same in bytes of the answered records' values.
        transactions: So many run side by side.
    """

    interval_s: float
    records: int
    size: int
    transactions: int = MAX_TRANSACTIONS


class Transactions(Protocol):
    """Who counts: `headrace.consumers.observe_transactions.ModelTransactions`."""

    def ended(self, outcome: Outcome, seconds: float) -> None:
        """A cut has ended so, after so long."""


class ExactlyOnceSettler(Settler):
    """Transactions of the partitions, side by side."""

    def __init__(
        self,
        delivery: Delivery,
        *,
        on_lost: Callable[[Partition, Outcome], None],
        on_settled: Callable[[int], None],
        is_pointless: Callable[[], Awaitable[bool]],
        retry_s: float,
        refused: RefusedReplies,
        store: StateStore[Any] | None = None,
        bounds: CutBounds,
        transactions: Transactions | None = None,
    ) -> None:
        """Keep the parts; the first seven are `Settler`'s.

        Args:
            delivery: As there.
            on_lost: As there.
            on_settled: As there.
            is_pointless: As there.
            retry_s: As there.
            refused: As there.
            store: As there.
            bounds: When a cut is made.
            transactions: Who counts, if somebody shall.
        """
        super().__init__(
            delivery,
            on_lost=on_lost,
            on_settled=on_settled,
            is_pointless=is_pointless,
            retry_s=retry_s,
            refused=refused,
            store=store,
        )
        self._bounds = bounds
        self._transactions = transactions
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[TP] = set()
        self._timers: dict[TP, asyncio.TimerHandle] = {}
        self._unscheduled: dict[
            TP, bool
        ] = {}  # put since the last call of `schedule`; True: awaited
        self._due: set[TP] = set()  # to be cut when it is their turn
        self._slots = asyncio.Semaphore(bounds.transactions)
        self._failing: dict[TP, tuple[float, float]] = {}  # since when, and the last time

    def put(
        self,
        part: Partition,
        outs: Sequence[Out],
        offsets: Sequence[int],
        size: int,
        *,
        states: Mapping[bytes, Stored] = NO_STATES,
        recorded: Sequence[tuple[bytes, int, Out]] = (),
        replies: Sequence[Out] = (),
        awaited: bool = False,
    ) -> None:
        """Buffer for the partition's next cut."""
        super().put(part, outs, offsets, size, states=states, recorded=recorded, replies=replies)
        self._unscheduled[part.tp] = awaited or self._unscheduled.get(part.tp, False)

    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        """Cut the partitions of what is awaited now, the others when their interval is over."""
        del at_once, awaited, backlog  # each partition's own answers say more
        loop = asyncio.get_running_loop()
        for tp, is_awaited in self._unscheduled.items():
            if is_awaited:
                self._cut(tp)
            elif tp not in self._timers and tp not in self._due:
                self._timers[tp] = loop.call_later(self._bounds.interval_s, self._cut, tp)
        self._unscheduled.clear()
        self._relieve()

    def hurry(self) -> None:
        """Cut every partition now."""
        for tp in tuple(self._dirty):
            self._cut(tp)

    def forget(self, part: Partition) -> None:
        """Make no further cut of a partition, unless it is ours under another epoch by now."""
        if self._dirty.get(part.tp) is part:
            self._disarm(part.tp)
            self._due.discard(part.tp)
        super().forget(part)

    async def run(self) -> None:
        """Run transactions for ever; ends by cancellation, or by a `LogError`. Those that have begun go on."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self.hurry()
                await asyncio.Event().wait()
            finally:
                self._stop()

    def _stop(self) -> None:
        """Begin no transaction any more."""
        self._tasks = None
        self._due.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _relieve(self) -> None:
        """Where what waits for its interval keeps much from being admitted, cut what makes the most of it."""
        waiting = [part for tp, part in self._dirty.items() if tp not in self._due]
        records = size = 0
        for part in waiting:
            records += len(part.answered)
            size += part.answered_bytes
        max_records, max_size = self._bounds.records, self._bounds.size
        if records < max_records and size < max_size:
            return
        is_size = size >= max_size
        waiting.sort(key=lambda part: part.answered_bytes if is_size else len(part.answered))
        while waiting and (records > max_records // 2 or size > max_size // 2):
            part = waiting.pop()
            records -= len(part.answered)
            size -= part.answered_bytes
            self._cut(part.tp)

    def _cut(self, tp: TP) -> None:
        self._disarm(tp)
        if self._tasks is None or tp not in self._dirty:
            return
        self._due.add(tp)
        if tp not in self._running:
            self._running.add(tp)
            self._tasks.create_task(self._settle(tp))

    def _disarm(self, tp: TP) -> None:
        timer = self._timers.pop(tp, None)
        if timer is not None:
            timer.cancel()

    async def _settle(self, tp: TP) -> None:
        """Settle a partition when it is its turn, and once more what became due meanwhile."""
        try:
            while tp in self._due:
                async with self._slots:
                    if tp not in self._due:
                        return  # forgotten meanwhile
                    self._due.discard(tp)
                    self._disarm(tp)
                    await self._transact(self._dirty.pop(tp))
        except BaseException:
            self._stop()
            raise
        finally:
            self._running.discard(tp)

    async def _transact(self, part: Partition) -> None:
        tp = part.tp
        position = self._begin(part)
        self._on_settled(part.settling)  # what is in a transaction takes no room
        if part.answered:
            # A request that was held was refused as soon as there was room: its answer is in this cut.
            position = self._begin(part)
        if self._store is not None:
            self._store.begin(tp)  # snapshots come with the commit only
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            outcomes = await self._delivery.settle({tp: position})
        except LogError as exc:
            self._count(Outcome.ABORTED, loop.time() - begun)
            if self._refused.note(exc):
                # Run again, its requests are refused before they run: what followed from them is undone with the rest.
                self._on_lost(part, Outcome.ABORTED)
                self._progress.set()
                return
            if await self._is_pointless():
                raise LogError(exc.detail, retriable=True) from exc
            raise
        outcome = outcomes[tp]
        self._count(outcome, loop.time() - begun)
        if outcome is Outcome.SETTLED:
            self._failing.pop(tp, None)
            self._on_settled(self._end(part))
        else:
            self._on_lost(part, outcome)
            if outcome is Outcome.ABORTED:
                await self._aborted(tp)
        self._progress.set()

    def _count(self, outcome: Outcome, seconds: float) -> None:
        if self._transactions is not None:
            self._transactions.ended(outcome, seconds)

    async def _aborted(self, tp: TP) -> None:
        """Give the membership up where a partition's transactions fail for too long, or can only fail."""
        now = asyncio.get_running_loop().time()
        since, last = self._failing.get(tp, (now, now))
        if now - last > self._retry_s:
            since = now  # that was another failure
        self._failing[tp] = (since, now)
        if now - since > self._retry_s:
            raise LogError(
                f"no transaction of {tp.topic}/{tp.partition} could be committed for {now - since:.0f} s",
                retriable=True,
            )
        if await self._is_pointless():
            raise LogError(
                f"transactions of {tp.topic}/{tp.partition} write to a topic that is gone",
                retriable=True,
            )
