"""The settle loop: publishes what was answered, and moves the committed positions (DESIGN §5, step 6).

Answers gather per partition for `WorkerSettings.settle_interval_s`, or go at once when somebody awaits one or
nothing else is in flight; behind a backlog, where each waits longer than that anyway, they gather for
`settle_backlog_interval_s`: a settle costs the broker and the client a request whatever is in it.

Settles run one after the other: while one awaits its acknowledgements the next one
gathers, so the batches grow with the load by themselves. An offset counts as finished only once its answer is
acknowledged (FAULTS B22, B97).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.consumers.partition import Partition
from headrace.consumers.state_store import StateStore
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import SequenceState
from headrace.streams.log import Delivery, Outcome

logger = logging.getLogger(__name__)

NO_STATES: Mapping[bytes, SequenceState] = {}

RETRY_PAUSE_S = 0.2
"""Pause before a settle that failed is tried again, seconds."""


class Settler:
    """Gathers answers and settles them.

    Attributes:
        settled: Set and cleared at each settle that finished something: who waits for progress looks again.
    """

    def __init__(
        self,
        delivery: Delivery,
        *,
        interval_s: float,
        awaited_interval_s: float,
        backlog_interval_s: float,
        on_lost: Callable[[Partition, Outcome], None],
        on_settled: Callable[[int], None],
        retry_s: float,
        delivers: Callable[[Partition], bool],
        is_pointless: Callable[[], Awaitable[bool]],
        store: StateStore[SequenceState] | None = None,
        writes_ahead: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            delivery: Where answers go.
            interval_s: How long answers gather.
            awaited_interval_s: The same where somebody waits for one of them.
            backlog_interval_s: The same while there is a backlog.
            on_lost: A partition's settle was aborted or fenced: nothing of it is committed.
            on_settled: Told how many records were settled; called after each settle.
            retry_s: How long a failing log is tried again before the membership is given up.
            delivers: Whether a partition is still ours.
            is_pointless: Asked after a failure: whether the same records can never be published.
            store: Durable state that follows from the answers; None where the model has none.
            writes_ahead: Answers are published only when the state that holds them is acknowledged (P-16).
        """
        self._delivery = delivery
        self._interval_s = interval_s
        self._awaited_interval_s = awaited_interval_s
        self._backlog_interval_s = backlog_interval_s
        self._on_lost = on_lost
        self._on_settled = on_settled
        self._retry_s = retry_s
        self._delivers = delivers
        self._is_pointless = is_pointless
        self._store = store
        self._writes_ahead = writes_ahead
        self._held: dict[TP, list[Out]] = {}
        self._failing_since: float | None = None
        self._dirty: dict[TP, Partition] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()

    def put(
        self,
        part: Partition,
        outs: Sequence[Out],
        offsets: Sequence[int],
        size: int,
        *,
        states: Mapping[bytes, SequenceState] = NO_STATES,
        recorded: Sequence[tuple[bytes, int, Out]] = (),
    ) -> None:
        """Buffer the answers of some of a partition's records.

        Args:
            part: The partition that the records came from.
            outs: What follows from them; may be empty.
            offsets: Offsets that are thereby answered.
            size: Bytes of the answered records' values.
            states: Key → its sequence as of the latest of them.
            recorded: Key, offset and answer of those that are to be remembered.
        """
        if outs and self._writes_ahead:
            self._held.setdefault(part.tp, []).extend(outs)
        elif outs:
            self._delivery.put(part.tp, outs)
        if self._store is not None:
            if states:
                self._store.stage(part.tp, states)
            if recorded:
                self._store.record(part.tp, recorded)
        part.answered.extend(offsets)
        part.answered_bytes += size
        self._dirty[part.tp] = part

    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        """Let the next settle begin at once, or when an interval since now is over; an earlier one stands.

        Args:
            at_once: Nothing else is in flight.
            awaited: Somebody waits for an answer among these.
            backlog: More waits than the instances can take, and nobody waits: the longest interval is enough.
        """
        if not self._dirty or self._wake.is_set():
            return
        if at_once:
            self._wake.set()
            return
        loop = asyncio.get_running_loop()
        interval_s = self._backlog_interval_s if backlog else self._interval_s
        when = loop.time() + (self._awaited_interval_s if awaited else interval_s)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._wake.set)

    def forget(self, part: Partition) -> None:
        """Leave a partition out of further settles, unless it is ours under another epoch by now."""
        if self._dirty.get(part.tp) is part:
            del self._dirty[part.tp]
            self._held.pop(part.tp, None)

    async def run(self) -> None:
        """Settle for ever; ends by cancellation, or by a `LogError` of the delivery."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._settle()

    async def progress(self, timeout_s: float) -> None:
        """Wait until a settle finished something, at most ``timeout_s``."""
        self._progress.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()
        except TimeoutError:
            return

    async def _settle(self) -> None:
        dirty, self._dirty = self._dirty, {}
        upto = {}
        for tp, part in dirty.items():
            part.ledger.finish(part.answered)
            part.settling += len(part.answered)
            part.settling_bytes += part.answered_bytes
            part.answered = []
            part.answered_bytes = 0
            upto[tp] = part.ledger.position()
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
                finished += part.settling
                part.in_flight -= part.settling
                part.in_flight_bytes -= part.settling_bytes
                part.settling = part.settling_bytes = 0
            else:
                self._on_lost(part, outcomes[tp])
        self._on_settled(finished)
        self._progress.set()

    def _put_states(self, tp: TP, store: StateStore[SequenceState]) -> None:
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
        """Try again after a pause: the delivery keeps what it could not publish."""
        now = asyncio.get_running_loop().time()
        since = self._failing_since = self._failing_since or now
        if await self._is_pointless():
            raise LogError(exc.detail, retriable=True) from exc
        if not exc.retriable or now - since > self._retry_s:
            raise exc
        logger.warning("answers cannot be published, trying again: %s", exc.detail)
        await asyncio.sleep(RETRY_PAUSE_S)
        for tp, part in dirty.items():
            if self._delivers(part):
                self._dirty.setdefault(tp, part)
        self.schedule(at_once=True)
