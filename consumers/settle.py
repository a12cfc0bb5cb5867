"""What every settle loop has in common, and the one of at_least_once (DESIGN §5, step 6).

A settle publishes what was answered and moves the committed positions. An offset counts as finished only once its
answer is acknowledged, in exactly_once committed (FAULTS B22, B97).

At least once, answers gather per partition for `WorkerSettings.settle_interval_s`, or go at once when somebody awaits
one or nothing else is in flight; behind a backlog, where each waits longer than that anyway, they gather for
`settle_backlog_interval_s`: a settle costs the broker and the client a request whatever is in it. Settles run one
after the other: while one awaits its acknowledgements the next one gathers, so the batches grow with the load by
themselves. The loop of exactly_once is `headrace.consumers.settle_transactions`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from headrace.consumers.partition import Partition
from headrace.consumers.refused_replies import RefusedReplies
from headrace.consumers.state_store import StateStore
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.schemas.snapshot import Stored
from headrace.streams.alarm import Alarm
from headrace.streams.log import Delivery, Outcome, Position

logger = logging.getLogger(__name__)

NO_STATES: Mapping[bytes, Stored] = {}

LOOK_S = 0.1
"""How often who waits for a settle looks whether the partition is still ours, seconds."""

RETRY_PAUSE_S = 0.2
"""Pause before a settle that failed is tried again, seconds."""


class Settler(ABC):
    """Gathers answers and settles them."""

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
    ) -> None:
        """Keep the parts.

        Args:
            delivery: Where answers go.
            on_lost: A partition's settle was aborted or fenced: nothing of it is committed.
            on_settled: Told how many records were settled; called after each settle.
            is_pointless: Asked after a failure: whether the same records can never be published.
            retry_s: How long a failing log is tried again before the membership is given up.
            refused: What becomes of answers that their reply topics refuse.
            store: Durable state that follows from the answers; None where the model has none.
        """
        self._delivery = delivery
        self._on_lost = on_lost
        self._on_settled = on_settled
        self._is_pointless = is_pointless
        self._retry_s = retry_s
        self._refused = refused
        self._store = store
        self._dirty: dict[TP, Partition] = {}
        self._progress = asyncio.Event()

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
        """Buffer the answers of some of a partition's records.

        Args:
            part: The partition that the records came from.
            outs: What follows from them; may be empty.
            offsets: Offsets that are thereby answered.
            size: Bytes of the answered records' values.
            states: Key → what is to be stored as of the latest of them.
            recorded: Key, offset and answer of those that are to be remembered.
            replies: Answers to gateways that are to follow the commit (P-13).
            awaited: Somebody waits for one of the answers.
        """
        del awaited
        if outs:
            self._publish(part.tp, outs)
        if replies:
            self._delivery.put(part.tp, replies, after_commit=True)
        if self._store is not None:
            if states:
                self._store.stage(part.tp, states)
            if recorded:
                self._store.record(part.tp, recorded)
        part.answered.extend(offsets)
        part.answered_bytes += size
        self._dirty[part.tp] = part

    def _publish(self, tp: TP, outs: Sequence[Out]) -> None:
        self._delivery.put(tp, outs)

    @abstractmethod
    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        """Let what was put be settled soon; an earlier time stands.

        Args:
            at_once: Nothing else is in flight.
            awaited: Somebody waits for an answer among these.
            backlog: More waits than the instances can take, and nobody waits: the longest interval is enough.
        """

    @abstractmethod
    def hurry(self) -> None:
        """Settle everything that was put at once: partitions are about to go."""

    @abstractmethod
    async def run(self) -> None:
        """Settle for ever; ends by cancellation, or by a `LogError` of the delivery."""

    def forget(self, part: Partition) -> None:
        """Leave a partition out of further settles, unless it is ours under another epoch by now."""
        if self._dirty.get(part.tp) is part:
            del self._dirty[part.tp]

    async def progress(self, timeout_s: float) -> None:
        """Wait until a settle finished something, at most ``timeout_s``."""
        self._progress.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()
        except TimeoutError:
            return

    async def write(self, part: Partition, *, is_ours: Callable[[], bool]) -> bool:
        """Commit a partition's position as it is now, with what its ledger says of attempts.

        Args:
            part: The partition.
            is_ours: Whether it still is; asked now and then.

        Returns:
            False where it is not ours any more: then nobody knows what is committed.

        Raises:
            LogError: The commit failed; it is kept for the next one.
        """
        settle = part.settles_begun + 1
        self.put(part, (), (), 0)
        while part.settles_ended < settle and is_ours():
            self.hurry()
            await self.progress(LOOK_S)
        if part.settles_ended < settle:
            return False
        await self._delivery.flush()
        return is_ours()

    def _begin(self, part: Partition) -> Position:
        """Fix what the settle that begins now is about; returns the position that follows from it."""
        part.settles_begun += 1
        part.ledger.finish(part.answered)
        part.settling += len(part.answered)
        part.settling_bytes += part.answered_bytes
        part.answered = []
        part.answered_bytes = 0
        return part.ledger.position()

    def _end(self, part: Partition) -> int:
        """Take note that a partition's settle is done; returns how many records it was about."""
        part.settles_ended = part.settles_begun
        count = part.settling
        part.in_flight -= count
        part.in_flight_bytes -= part.settling_bytes
        part.settling = part.settling_bytes = 0
        return count


class AtLeastOnceSettler(Settler):
    """One settle of all partitions after the other."""

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
        interval_s: float,
        awaited_interval_s: float,
        backlog_interval_s: float,
        delivers: Callable[[Partition], bool],
        writes_ahead: bool = False,
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
            interval_s: How long answers gather.
            awaited_interval_s: The same where somebody waits for one of them.
            backlog_interval_s: The same while there is a backlog.
            delivers: Whether a partition is still ours.
            writes_ahead: Answers are published only when the state that holds them is acknowledged (P-16).
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
        self._interval_s = interval_s
        self._awaited_interval_s = awaited_interval_s
        self._backlog_interval_s = backlog_interval_s
        self._delivers = delivers
        self._writes_ahead = writes_ahead
        self._held: dict[TP, list[Out]] = {}
        self._failing_since: float | None = None
        self._wake = asyncio.Event()
        self._alarm = Alarm(self._wake.set)

    def _publish(self, tp: TP, outs: Sequence[Out]) -> None:
        if self._writes_ahead:
            self._held.setdefault(tp, []).extend(outs)
        else:
            self._delivery.put(tp, outs)

    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        """Let the next settle begin at once, or when an interval since now is over; an earlier one stands."""
        if not self._dirty or self._wake.is_set():
            return
        if at_once:
            self._wake.set()
            return
        interval_s = self._backlog_interval_s if backlog else self._interval_s
        now_s = asyncio.get_running_loop().time()
        self._alarm.set(now_s + (self._awaited_interval_s if awaited else interval_s))

    def hurry(self) -> None:
        """Let the next settle begin at once."""
        self.schedule(at_once=True)

    def forget(self, part: Partition) -> None:
        """Leave a partition out of further settles, unless it is ours under another epoch by now."""
        if self._dirty.get(part.tp) is part:
            self._held.pop(part.tp, None)
        super().forget(part)

    async def run(self) -> None:
        """Settle for ever; ends by cancellation, or by a `LogError` of the delivery."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._alarm.cancel()
            await self._settle()

    async def _settle(self) -> None:
        dirty, self._dirty = self._dirty, {}
        upto = {}
        for tp, part in dirty.items():
            upto[tp] = self._begin(part)
            if self._store is not None:
                self._put_states(tp, self._store)
        try:
            outcomes = await self._delivery.settle(upto)
        except LogError as exc:
            await self._failed(exc, dirty)
            return
        self._failing_since = None
        finished = 0
        for tp, part in dirty.items():
            if outcomes[tp] is Outcome.SETTLED:
                finished += self._end(part)
            else:
                self._on_lost(part, outcomes[tp])
        self._on_settled(finished)
        self._progress.set()

    def _put_states(self, tp: TP, store: StateStore[Any]) -> None:
        """Let snapshots travel with this settle: before its answers, or behind them once they are acknowledged."""
        before, behind = store.begin(tp)
        if before:
            self._delivery.put(tp, before)
        if behind:
            self._delivery.put(tp, behind, after_ack=True)
        held = self._held.pop(tp, None)
        if held:
            self._delivery.put(tp, held, after_ack=True)

    async def _failed(self, exc: LogError, dirty: dict[TP, Partition]) -> None:
        """Try again after a pause, at once where that mends it: the delivery keeps what it could not publish."""
        if topics := self._refused.note(exc):
            self._delivery.redirect(topics, self._refused.redirect)
            self._settle_again(dirty)
            return
        now = asyncio.get_running_loop().time()
        since = self._failing_since = self._failing_since or now
        if await self._is_pointless():
            raise LogError(exc.detail, retriable=True) from exc
        if not exc.retriable or now - since > self._retry_s:
            raise exc
        logger.warning("answers cannot be published, trying again: %s", exc.detail)
        await asyncio.sleep(RETRY_PAUSE_S)
        self._settle_again(dirty)

    def _settle_again(self, dirty: Mapping[TP, Partition]) -> None:
        for tp, part in dirty.items():
            if self._delivers(part):
                self._dirty.setdefault(tp, part)
        self.schedule(at_once=True)
