"""Taking partitions over and handing them back, by the rules of DELIVERY (P-5…P-8).

The group's callbacks only note and start tasks; a takeover ends what an earlier owner has left open (in exactly_once),
reads the committed position with its finished offsets, then the state of sequences where the model has them, makes sure
that it is still the owner, seeks and resumes. A revocation drops what is queued, waits for what executes, settles,
commits, and is bounded by ``revoke_grace``. Lost partitions are dropped and nothing is published for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from functools import partial

from headrace.consumers.attempts import Marks
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.pauses import Pauses
from headrace.consumers.positions import confirm_positions, read_positions
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.settle import Settler
from headrace.consumers.stateful import Stateful
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.log import Delivery, Mode, Outcome, Position, Source

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
        mode: Mode = Mode.AT_LEAST_ONCE,
        stateful: Stateful | None = None,
        suspend: Callable[[TP], int] | None = None,
        rebalanced: Callable[[float], None] = lambda _: None,
        marks: Marks | None = None,
        from_end: bool = False,
    ) -> None:
        """Keep the parts; `attach` brings those that are made later.

        Args:
            settings: Bounds.
            start: Starts a task in the worker's task group.
            drop: Removes a partition's queued entries and returns how many they were.
            next_epoch: Counts takeovers over the worker's whole life.
            mode: The guarantee of the delivery.
            stateful: What is taken over with a partition beside its position; None for stateless models.
            suspend: As ``drop``, of a revoked partition that may come back: its state is kept.
            rebalanced: Told the seconds from giving up what there was until what was assigned is read.
            marks: What this process says of attempts (P-14); None where the log would not keep it.
            from_end: A partition of which nothing was ever committed is read from its end.
        """
        self.partitions: dict[TP, Partition] = {}
        self.rebalances = 0
        self._settings = settings
        self._start = start
        self._drop = drop
        self._next_epoch = next_epoch
        self._mode = mode
        self._stateful = stateful
        self._suspend = suspend or drop
        self._rebalanced = rebalanced
        self._marks = marks
        self._from_end = from_end
        self._marking = asyncio.Lock()
        self._source: Source | None = None
        self._delivery: Delivery | None = None
        self._settler: Settler | None = None
        self._leaving = asyncio.Lock()
        self._revoked: set[TP] = set()
        self._waiting: set[TP] = set()  # to be taken over again
        self._pauses = Pauses(FIRST_RETRY_S, settings.restart_backoff_s)

    def attach(self, source: Source, delivery: Delivery, settler: Settler) -> None:
        """Bring the parts that need this object to be made."""
        self._source, self._delivery, self._settler = source, delivery, settler

    def complete(self) -> bool:
        """Whether every assigned partition has been taken over."""
        return not self._waiting and all(part.active for part in self.partitions.values())

    def assigned(self, tps: Set[TP], epoch: int) -> None:
        """Note the partitions and start taking them over."""
        assert self._source is not None
        self.rebalances += 1
        self._revoked -= tps
        if self._stateful is not None:
            self._stateful.forget_suspended(but=self._source.kept())
        self._begin(tps, epoch, left_at=self._source.left_at())

    async def revoked(self, tps: Set[TP], deadline: float) -> None:
        """Hand partitions back: nothing new starts, what executes is answered and committed if in time."""
        assert self._delivery is not None
        assert self._settler is not None
        self.rebalances += 1
        self._revoked |= tps
        parts = [part for tp in tps if (part := self.partitions.get(tp)) is not None]
        whole = [part for part in parts if part.active]  # the others were not taken over yet
        for part in parts:
            part.active, part.is_leaving = False, True
            part.in_flight -= self._suspend(part.tp) + part.let_go()
        clock = asyncio.get_running_loop().time
        # Beyond the deadline the source gives up on us: leave time to commit what is settled by then.
        waits_until = deadline - min(FLUSH_S, (deadline - clock()) / 4)
        try:
            while (now := clock()) < deadline:
                ours = [
                    part for part in parts if self._is_ours(part)
                ]  # the others' settles were aborted meanwhile
                is_executing = now < waits_until and any(part.in_flight > 0 for part in ours)
                # What is on its way is worth a moment: else its new owner would answer it again.
                if not is_executing and not any(part.answered or part.settling for part in ours):
                    break
                self._settler.hurry()
                await self._settler.progress(min(PROGRESS_S, deadline - now))
            is_committed = await self._flush(parts, whole, deadline - clock())
            for part in parts:
                is_whole = part in whole and self._is_ours(part) and part.in_flight == 0
                if is_committed and is_whole:
                    self._remove(part, keep=True)
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
                    self._remove(part)

    def lost(self, tps: Set[TP]) -> None:
        """Drop partitions that are already somebody else's; publish nothing for them (P-7)."""
        self.rebalances += 1
        for tp in tps:
            part = self.partitions.get(tp)
            if part is not None:
                part.active = False
                self._drop(tp)
                self._remove(part)  # at once: results of what executes are dropped
                self._start(self._forget(part))

    def again(self, part: Partition, outcome: Outcome = Outcome.ABORTED) -> None:
        """Take a partition over once more from its committed position.

        Args:
            part: Nothing that it has not committed counts; what executes of it is dropped on its return.
            outcome: What became of its settle. Aborted: at once, if it is the first time; after a pause where another
                producer has its transactional id, or where it keeps failing. Fenced, in exactly_once: it is dropped,
                until the group says that it is ours all the same (DELIVERY P-6).
        """
        if self.partitions.get(part.tp) is not part:
            return  # it changed hands meanwhile, and may be ours anew: that takeover stands
        part.active = False
        self._drop(part.tp)
        self._remove(part)
        pause_s = 0.0
        if self._mode is Mode.EXACTLY_ONCE:
            now = asyncio.get_running_loop().time()
            is_fenced = outcome is Outcome.PRODUCER_FENCED
            pause_s = self._pauses.next_s(part.tp, now, is_fenced=is_fenced)
        self._start(self._start_again(part, pause_s))

    def _begin(self, tps: Set[TP], source_epoch: int, *, left_at: float | None = None) -> None:
        parts = []
        for tp in sorted(tps):
            ledger = OffsetLedger(
                epoch=source_epoch,
                max_span=self._settings.max_partition_span,
                block_records=self._settings.max_poll_records,
            )
            part = Partition(tp, source_epoch, self._next_epoch(), ledger)
            self.partitions[tp] = part
            parts.append(part)
        if parts:
            self._start(self._take_over(parts, left_at))

    def _remove(self, part: Partition, *, keep: bool = False) -> None:
        """Have a partition no more, and nothing of its state; ``keep``: it may come back before others had it."""
        del self.partitions[part.tp]
        if self._stateful is None:
            return
        if keep:
            self._stateful.suspend(part.tp)
        else:
            self._stateful.close(part.tp)

    async def _start_again(self, part: Partition, pause_s: float) -> None:
        tp = part.tp
        self._waiting.add(tp)
        try:
            await self._forget(part)
            await asyncio.sleep(pause_s)
            while self._may_begin(part):
                if await self._is_assigned(part):
                    if self._may_begin(part):
                        self._begin({tp}, part.source_epoch)
                    return
                # Whoever has it must not be fenced by us. Our source will hear of its loss, or the group errs.
                pause_s = min(max(FIRST_RETRY_S, 2 * pause_s), self._settings.restart_backoff_s)
                await asyncio.sleep(pause_s)
        finally:
            self._waiting.discard(tp)

    def _may_begin(self, part: Partition) -> bool:
        """Whether nothing has become of a partition since it was to be taken over again."""
        if self._source is None or part.tp in self.partitions or part.tp in self._revoked:
            return False
        return self._source.assignment().get(part.tp) == part.source_epoch

    async def _is_assigned(self, part: Partition) -> bool:
        """Ask the group whether a partition is ours; at least once a commit will tell."""
        assert self._source is not None
        if self._mode is Mode.AT_LEAST_ONCE:
            return True
        try:
            return bool(await self._source.still_assigned({part.tp: part.source_epoch}))
        except LogError as exc:
            logger.warning(
                "%s/%d: the group does not say whose it is, trying again: %s", *part.tp, exc.detail
            )
            return False

    async def _take_over(self, parts: Sequence[Partition], left_at: float | None) -> None:
        """Take partitions over together: one reader for all their state, one commit that confirms them."""
        assert self._source is not None
        pause_s = FIRST_RETRY_S
        async with self._leaving:
            pass  # a partition that left and came back: what goes with its earlier time must not take from this one
        left = [part for part in parts if self._is_ours(part)]
        kept: set[TP] = set()
        while left:
            try:
                if self._stateful is not None:
                    kept |= await self._stateful.resume(left)
                # In this order: a position or a state that is read before an earlier owner's transaction has ended may
                # lack it (D5, D5b), a state that is read before the position a step that this has passed; and only who
                # is still the owner afterwards may trust either.
                taken = await self._fence(left)
                positions = await read_positions(
                    self._source, taken, self._marks, from_end=self._from_end
                )
                if self._stateful is not None:
                    await self._stateful.restore([part for part in taken if part.tp not in kept])
                confirmed = await self._confirm(self._source, taken, positions)
            except LogError as exc:
                if not exc.retriable:
                    raise
                names = ", ".join(f"{part.tp.topic}/{part.tp.partition}" for part in left)
                logger.warning("taking over %s failed, trying again: %s", names, exc.detail)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.restart_backoff_s)
            else:
                self._activate(self._source, left, positions, confirmed)
                if all(part.active for part in left if self._is_ours(part)):
                    if left_at is not None:
                        self._rebalanced(asyncio.get_running_loop().time() - left_at)
                    return
                # The group knows of a change that we have not heard of yet.
                await asyncio.sleep(pause_s)
            left = [p for p in left if self._is_ours(p) and not p.active and not p.is_leaving]
            # Of a source that has left the group nobody will tell us that it has lost them.
            assigned = self._source.assignment()
            for part in [p for p in left if assigned.get(p.tp) != p.source_epoch]:
                left.remove(part)
                self._remove(part)

    async def _fence(self, parts: Sequence[Partition]) -> list[Partition]:
        """End what earlier owners have left open; returns those that are still ours (P-5 step 1)."""
        assert self._delivery is not None
        taken = await self._delivery.take_over({part.tp: part.source_epoch for part in parts})
        return [part for part in parts if part.tp in taken]

    async def _confirm(
        self, source: Source, parts: Sequence[Partition], positions: Mapping[TP, Position]
    ) -> Set[TP]:
        """Commit marks, and return the partitions that are ours behind all that was read of them (P-5 step 4)."""
        async with self._marking:
            staying = [part for part in parts if self._is_ours(part) and not part.is_leaving]
            return await confirm_positions(
                source,
                staying,
                {part.tp: positions[part.tp] for part in staying if part.tp in positions},
                mode=self._mode,
                # An end that was found is committed: what comes behind it must not be passed over at the next start.
                confirms=self._stateful is not None or self._from_end,
            )

    def _activate(
        self,
        source: Source,
        parts: Sequence[Partition],
        positions: Mapping[TP, Position],
        confirmed: Set[TP],
    ) -> None:
        """Begin to read what is still ours."""
        assigned = source.assignment()
        for part in parts:
            if part.is_leaving:
                continue  # revoked while it was taken over: nothing of it is to be read any more
            if part.tp in confirmed and part.tp in assigned and self._is_ours(part):
                if self._stateful is not None:
                    self._stateful.confirmed(part, positions[part.tp])
                source.seek(part.tp, positions[part.tp].offset)
                part.active = True
                part.paused = False
                source.resume({part.tp})

    def _is_ours(self, part: Partition) -> bool:
        return self.partitions.get(part.tp) is part

    async def _flush(
        self, parts: Sequence[Partition], whole: Sequence[Partition], timeout_s: float
    ) -> bool:
        """Commit what is settled, with marks withdrawn (P-14); False if that failed."""
        assert self._delivery is not None
        try:
            async with asyncio.timeout(max(0.1, timeout_s)):
                await self._withdraw(parts, whole)
                await self._delivery.flush()
        except (LogError, TimeoutError) as exc:
            logger.warning("positions could not be committed before the hand-over: %s", exc)
            return False
        return True

    async def _withdraw(self, parts: Sequence[Partition], whole: Sequence[Partition]) -> None:
        """Take back what was said of attempts: nobody has died here."""
        assert self._settler is not None
        assert self._source is not None
        async with self._marking:  # a mark that is on its way would come behind
            unread: dict[TP, Position] = {}
            writing = []
            for part in parts:
                mark = part.ledger.mark
                if mark is None or not self._is_ours(part):
                    continue
                mark.withdraw()
                part.ledger.say(mark)
                if part not in whole:
                    unread[part.tp] = part.ledger.position()
                else:
                    writing.append(self._settler.write(part, is_ours=partial(self._is_ours, part)))
            await asyncio.gather(*writing)
            if unread:
                await self._source.confirm(unread)

    async def _forget(self, part: Partition) -> None:
        """Drop what is buffered for a partition that is not ours any more."""
        if self._settler is not None:
            self._settler.forget(part)
        if self.partitions.get(part.tp) is part:
            self._remove(part)
        if self._delivery is None:
            return
        try:
            async with self._leaving:
                await self._delivery.release(part.tp, abort=part.in_flight > 0)
        except LogError as exc:
            logger.warning("%s/%d is handed over uncommitted: %s", *part.tp, exc.detail)
