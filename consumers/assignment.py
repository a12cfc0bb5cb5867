"""Taking partitions over and handing them back, by the rules of DELIVERY (P-5…P-8), for stateless models.

The group's callbacks only note and start tasks; a takeover reads the committed position with its finished
offsets, seeks and resumes. A revocation drops what is queued, waits for what executes, settles, commits, and
is bounded by ``revoke_grace``. Lost partitions are dropped and nothing is published for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set

from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.settle import Settler
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.log import Delivery, Source

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
"""Of a revocation's time so much at most, and a quarter, is kept for the commit at its end, seconds."""

PROGRESS_S = 0.1
"""How often a revocation looks whether what executes has ended: not all ends with a settle."""

FIRST_RETRY_S = 0.1
"""First pause after a failed takeover, doubled up to ``restart_backoff_s``."""


class Assignment:
    """The partitions of one model's group member; implements `headrace.streams.log.Rebalance`.

    Attributes:
        partitions: Those that are ours, taken over or about to be.
        rebalances: How often partitions were assigned, revoked or lost.
    """

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        start: Callable[[Coroutine[None, None, None]], object],
        drop: Callable[[TP], int],
        next_epoch: Callable[[], int],
    ) -> None:
        """Keep the parts; `attach` brings those that are made later.

        Args:
            settings: Bounds.
            start: Starts a task in the worker's task group.
            drop: Removes a partition's queued entries and returns how many they were.
            next_epoch: Counts takeovers over the worker's whole life.
        """
        self.partitions: dict[TP, Partition] = {}
        self.rebalances = 0
        self._settings = settings
        self._start = start
        self._drop = drop
        self._next_epoch = next_epoch
        self._source: Source | None = None
        self._delivery: Delivery | None = None
        self._settler: Settler | None = None

    def attach(self, source: Source, delivery: Delivery, settler: Settler) -> None:
        """Bring the parts that need this object to be made."""
        self._source, self._delivery, self._settler = source, delivery, settler

    def complete(self) -> bool:
        """Whether every assigned partition has been taken over."""
        return all(part.active for part in self.partitions.values())

    def assigned(self, tps: Set[TP], epoch: int) -> None:
        """Note the partitions and start taking them over."""
        self.rebalances += 1
        for tp in tps:
            self._begin(tp, epoch)

    async def revoked(self, tps: Set[TP], deadline: float) -> None:
        """Hand partitions back: nothing new starts, what executes is answered and committed if in time."""
        assert self._delivery is not None
        assert self._settler is not None
        self.rebalances += 1
        parts = [part for tp in tps if (part := self.partitions.get(tp)) is not None]
        for part in parts:
            part.active = False
            part.in_flight -= self._drop(part.tp) + len(part.held)
            part.held.clear()
        clock = asyncio.get_running_loop().time
        # Beyond the deadline the source gives up on us: leave time to commit what is settled by then.
        waits_until = deadline - min(FLUSH_S, (deadline - clock()) / 4)
        try:
            while (now := clock()) < deadline:
                is_executing = now < waits_until and any(part.in_flight > 0 for part in parts)
                # What is on its way is worth a moment: else its new owner would answer it again.
                if not is_executing and not any(part.answered or part.settling for part in parts):
                    break
                self._settler.schedule(at_once=True)
                await self._settler.progress(min(PROGRESS_S, deadline - now))
            await self._flush(deadline - clock())
            for part in parts:
                if part.in_flight > 0:
                    logger.warning(
                        "%s/%d is handed over with %d records unanswered: their new owner answers them",
                        *part.tp,
                        part.in_flight,
                    )
                await self._forget(part)
        finally:
            # The source may give up on us: whatever still executes, the partition is not ours any more.
            for part in parts:
                if self.partitions.get(part.tp) is part:
                    self._start(self._forget(part))
                    del self.partitions[part.tp]

    def lost(self, tps: Set[TP]) -> None:
        """Drop partitions that are already somebody else's; publish nothing for them (P-7)."""
        self.rebalances += 1
        for tp in tps:
            part = self.partitions.pop(tp, None)  # at once: results of what executes are dropped
            if part is not None:
                part.active = False
                self._drop(tp)
                self._start(self._forget(part))

    def again(self, part: Partition) -> None:
        """Take a partition over once more from its committed position: a settle of it was aborted."""
        if self.partitions.get(part.tp) is not part:
            return  # it changed hands meanwhile, and may be ours anew: that takeover stands
        del self.partitions[part.tp]
        part.active = False
        self._drop(part.tp)
        self._start(self._start_again(part))

    def _begin(self, tp: TP, source_epoch: int) -> None:
        ledger = OffsetLedger(
            epoch=source_epoch,
            max_span=self._settings.max_partition_span,
            block_records=self._settings.max_poll_records,
        )
        part = Partition(tp, source_epoch, self._next_epoch(), ledger)
        self.partitions[tp] = part
        self._start(self._take_over(part))

    async def _start_again(self, part: Partition) -> None:
        await self._forget(part)
        if self._source is None or part.tp in self.partitions:
            return  # assigned anew meanwhile
        if self._source.assignment().get(part.tp) == part.source_epoch:
            self._begin(part.tp, part.source_epoch)

    async def _take_over(self, part: Partition) -> None:
        assert self._source is not None
        source, tp = self._source, part.tp
        pause_s = FIRST_RETRY_S
        while self.partitions.get(tp) is part:
            try:
                position = (await source.committed({tp}))[tp]
                if position is not None and position.offset > (await source.end_offsets({tp}))[tp]:
                    logger.warning(
                        "%s/%d ends before its committed offset %d, it was made again or cut: read from its beginning",
                        *tp,
                        position.offset,
                    )
                    position = None
                if position is None:
                    first = (await source.beginning_offsets({tp}))[tp]
                else:
                    warning = part.ledger.restore(position)
                    if warning:
                        logger.warning("%s/%d: %s", tp.topic, tp.partition, warning)
                    first = position.offset
            except LogError as exc:
                if not exc.retriable:
                    raise
                logger.warning("taking over %s/%d failed, trying again: %s", *tp, exc.detail)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.restart_backoff_s)
                continue
            if self.partitions.get(tp) is not part or tp not in source.assignment():
                return  # revoked meanwhile
            if position is None:
                part.ledger.begin(first)
            source.seek(tp, first)
            part.active = True
            part.paused = False
            source.resume({tp})
            return

    async def _flush(self, timeout_s: float) -> None:
        assert self._delivery is not None
        try:
            async with asyncio.timeout(max(0.1, timeout_s)):
                await self._delivery.flush()
        except (LogError, TimeoutError) as exc:
            logger.warning("positions could not be committed before the hand-over: %s", exc)

    async def _forget(self, part: Partition) -> None:
        """Drop what is buffered for a partition that is not ours any more."""
        if self._settler is not None:
            self._settler.forget(part)
        if self.partitions.get(part.tp) is part:
            del self.partitions[part.tp]
        if self._delivery is None:
            return
        try:
            await self._delivery.release(part.tp, abort=part.in_flight > 0)
        except LogError as exc:
            logger.warning("%s/%d is handed over uncommitted: %s", *part.tp, exc.detail)
