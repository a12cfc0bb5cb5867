"""Exactly-once delivery: each owner's cut is one transaction (DELIVERY P-5…P-13).

Each owner has a transactional producer of its own; one cut of it runs at a time, in the order of the settles, and those
of different owners run side by side.

After anything but a commit the producer is done for: it aborts what it can, and the owner is taken over again with a
new one. Nothing else would know what became of a transaction whose end was not answered.

The memory log and Kafka share this module, so that simulations run the very code that commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol, TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.cover import Cover
from headrace.streams.delivery_buffers import redirect
from headrace.streams.log import Outcome, Position
from headrace.streams.transaction import Cut, Owner, ProducerFenced, TransactionalProducer

logger = logging.getLogger("headrace.streams")

MAX_STARTS = 64
"""Producers of one delivery that start side by side."""

ABORT_S = 5.0
"""How long an abort may take: the takeover that follows aborts, too."""


class Member(Protocol):
    """What is needed of a source."""

    def owns(self, tp: TP, epoch: int) -> bool:
        """Say whether a partition is ours under this epoch, as far as this member knows."""

    async def still_assigned(self, epochs: Mapping[TP, int]) -> Set[TP]:
        """Ask the group which partitions are ours under these epochs; `LogError` if nobody answers."""


_Ended: TypeAlias = tuple[Outcome, LogError | None]


class TransactionalDelivery:
    """See `headrace.streams.log.Delivery`, where it says exactly_once."""

    def __init__(
        self,
        member: Member,
        cover: Cover | None,
        *,
        make_producer: Callable[[TP], TransactionalProducer],
        check: Callable[[Out], None],
        publish: Callable[[Sequence[Out]], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        """Keep the parts.

        Args:
            member: Whose positions they are.
            cover: What must be committed with a position.
            make_producer: Makes an owner's transactional producer; `TransactionalProducer.start` follows.
            check: Checks a record's size; `LogError` if it is above the limit.
            publish: Publishes outside of transactions and awaits the acknowledgement.
            timeout_s: Longest time of one transaction.
        """
        self._member = member
        self._cover = cover
        self._make_producer = make_producer
        self._check = check
        self._publish = publish
        self._timeout_s = timeout_s
        self._starts = asyncio.Semaphore(MAX_STARTS)
        self._owners: dict[TP, Owner] = {}
        self._outs: dict[TP, list[Out]] = {}
        self._late: dict[TP, list[Out]] = {}
        self._replies: dict[TP, list[Out]] = {}
        self._running: dict[asyncio.Task[Any], TP] = {}  # transactions, and replies behind them
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """Show the counts."""
        buffers = (self._outs, self._late, self._replies)
        buffered = sum([len(outs) for buffer in buffers for outs in buffer.values()])
        return (
            f"TransactionalDelivery({len(self._owners)} producers, {buffered} records buffered, "
            f"{len(self._running)} transactions)"
        )

    async def take_over(self, owners: Mapping[TP, int]) -> Set[TP]:
        """Start producers where none is usable; returns what is ours, `LogError` if one cannot be started."""
        starting: list[Coroutine[Any, Any, None]] = []
        for tp, epoch in owners.items():
            if not self._member.owns(tp, epoch):
                continue
            self._forget(tp)
            before = self._owners.get(tp)
            if before is not None and before.is_usable and not before.turn.locked():
                # Nobody else can have had it since (`assigned`, P-7); an earlier takeover's cuts must not count.
                before.ended = True
                self._owners[tp] = Owner(tp, epoch, before.producer)
            else:
                starting.append(self._start(tp, epoch))
        failures = await asyncio.gather(*starting, return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure
        return {
            tp
            for tp, epoch in owners.items()
            if self._member.owns(tp, epoch) and self._live(tp, epoch) is not None
        }

    async def _start(self, tp: TP, epoch: int) -> None:
        self._retire(tp)
        async with self._starts:
            if not self._member.owns(tp, epoch):
                return  # starting it would fence whoever has the partition now
            producer = self._make_producer(tp)
            try:
                await producer.start()
            except ProducerFenced as exc:
                self._close(producer, kill=True)
                raise LogError(
                    f"taking over {tp.topic}/{tp.partition} failed: another producer took its transactional id",
                    retriable=True,
                ) from exc
            except BaseException:
                self._close(producer, kill=True)
                raise
        if self._member.owns(tp, epoch):
            self._retire(tp)
            self._owners[tp] = Owner(tp, epoch, producer)
        else:
            self._close(producer, kill=True)

    def assigned(self, kept: Set[TP]) -> None:
        """Take note of a new assignment: of what was ours before, nobody else can have had ``kept`` since."""
        for tp in self._owners.keys() - kept:
            self._retire(tp)

    def put(
        self,
        owner: TP,
        outs: Sequence[Out],
        *,
        after_ack: bool = False,
        after_commit: bool = False,
    ) -> None:
        """Buffer."""
        assert not (after_ack and after_commit), "it is either in the transaction or behind it"
        buffer = self._replies if after_commit else self._late if after_ack else self._outs
        buffer.setdefault(owner, []).extend(outs)

    def redirect(self, topics: Set[str], change: Callable[[Out], None]) -> None:
        """Change what is buffered for these topics."""
        redirect((self._outs, self._late), topics, change)

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Take a cut of each owner and commit it in a transaction."""
        outcomes: dict[TP, Outcome] = {}
        admitted: list[tuple[Owner, Position]] = []
        for tp in sorted(upto):
            owner = self._live(tp, upto[tp].epoch)
            if owner is not None and self._member.owns(tp, owner.epoch):
                admitted.append((owner, upto[tp]))
                continue
            self._forget(tp)
            outcomes[tp] = self._outcome_without(tp, upto[tp].epoch)
        for owner, _ in admitted:
            for buffer in (self._outs, self._late, self._replies):
                for out in buffer.get(owner.tp, ()):
                    self._check(out)
        cuts = {owner.tp: self._take(owner, position) for owner, position in admitted}
        outcomes |= await self._settle_all(cuts)
        return outcomes

    async def _settle_all(self, cuts: Mapping[TP, Cut | None]) -> Mapping[TP, Outcome]:
        tasks = {tp: asyncio.create_task(self._settle(cut)) for tp, cut in cuts.items()}
        for tp, task in tasks.items():
            self._track(task, tp)
        # Given up half-way, a transaction would stay open before everybody's readers.
        results = await asyncio.shield(asyncio.gather(*tasks.values(), return_exceptions=True))
        outcomes: dict[TP, Outcome] = {}
        failures: list[BaseException] = []
        for tp, result in zip(tasks, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(result)
                continue
            outcomes[tp], error = result
            if error is not None:
                failures.append(error)
        if failures:
            raise failures[0]
        return outcomes

    def _track(self, task: asyncio.Task[Any], tp: TP) -> None:
        self._running[task] = tp
        task.add_done_callback(self._running.pop)

    def _take(self, owner: Owner, position: Position) -> Cut | None:
        """Take a cut, without a wait: what comes later belongs to the next one. None where its state is forgotten."""
        tp = owner.tp
        outs = self._outs.pop(tp, []) + self._late.pop(tp, [])
        replies = self._replies.pop(tp, [])
        snapshots: Iterator[Sequence[Out]] | None = iter(())
        if self._cover is not None:
            self._cover.settled(tp, position)
            snapshots = self._cover.snapshots(tp, position)
        if snapshots is None:
            self._end(owner)
            return None
        return Cut(owner, position, outs, replies, snapshots)

    async def _settle(self, cut: Cut | None) -> _Ended:
        if cut is None:
            return Outcome.ABORTED, None
        owner = cut.owner
        async with owner.turn:
            if owner.ended:
                return self._outcome_without(owner.tp, owner.epoch), None
            ended = await self._transact(cut)
            if ended[0] is Outcome.SETTLED and cut.replies:
                await self._follow(cut)
            return ended

    async def _transact(self, cut: Cut) -> _Ended:
        owner = cut.owner
        # Nothing in the transaction says which generation admitted its records (P-8).
        if not self._member.owns(owner.tp, owner.epoch):
            self._end(owner)
            return Outcome.FENCED, None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        error: LogError | None = None
        is_fenced = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await cut.run()
        except ProducerFenced:
            # The broker fences whose transaction it has aborted for its age, too (FAULTS B25).
            is_fenced = loop.time() - begun < self._timeout_s
        except TimeoutError:
            logger.warning(
                "the transaction of %s/%d took longer than %g s", *owner.tp, self._timeout_s
            )
        except LogError as exc:
            error = exc
            logger.warning("the transaction of %s/%d failed: %s", *owner.tp, exc)
        except BaseException:
            owner.is_usable = False
            owner.ended = True
            raise
        else:
            self._committed(cut)
            return Outcome.SETTLED, None
        return await self._failed(owner, error, is_fenced=is_fenced)

    def _committed(self, cut: Cut) -> None:
        owner = cut.owner
        owner.committed = cut.position
        # Under another takeover by now the cover holds another state of the same sequences.
        if self._cover is None or self._owners.get(owner.tp) is not owner:
            return
        if self._member.owns(owner.tp, owner.epoch):
            for chunk in cut.chunks:
                self._cover.saved(owner.tp, chunk)
            self._cover.committed(owner.tp, cut.position)

    async def _failed(self, owner: Owner, error: LogError | None, *, is_fenced: bool) -> _Ended:
        """End an owner whose transaction did not commit, as far as we know."""
        owner.is_usable = False
        self._end(owner)
        outcome = self._outcome_without(owner.tp, owner.epoch)
        if is_fenced:
            if outcome is Outcome.ABORTED and await self._is_assignee(owner):
                outcome = Outcome.PRODUCER_FENCED
            else:
                outcome = Outcome.FENCED
        else:
            try:
                async with asyncio.timeout(min(ABORT_S, self._timeout_s)):
                    await owner.producer.abort()
            except (ProducerFenced, LogError, TimeoutError) as exc:
                logger.info("the transaction of %s/%d is left open: %r", *owner.tp, exc)
        owner.producer.kill()
        is_lasting = error is not None and not error.retriable and outcome is Outcome.ABORTED
        return outcome, error if is_lasting else None

    async def _is_assignee(self, owner: Owner) -> bool:
        """Ask the group: a member that has not heard of its loss must not fence the new owner in turn (P-6)."""
        try:
            return bool(await self._member.still_assigned({owner.tp: owner.epoch}))
        except LogError:
            return self._member.owns(owner.tp, owner.epoch)

    async def _follow(self, cut: Cut) -> None:
        """Begin to send a cut's replies, once those of the cut before are sent; the next cut need not wait (P-13)."""
        owner = cut.owner
        if owner.replying is not None:
            await owner.replying
        owner.replying = task = asyncio.create_task(self._reply(cut))
        self._track(task, owner.tp)

    async def _reply(self, cut: Cut) -> None:
        try:
            await self._publish(cut.replies)
        except LogError as exc:
            logger.warning(
                "%d replies of %s/%d are lost, their calls time out: %s",
                len(cut.replies),
                *cut.owner.tp,
                exc,
            )

    async def flush(self) -> None:
        """Wait for the transactions that run and the replies behind them; each has its own bound."""
        while self._running:
            await asyncio.wait(self._running)

    async def release(self, owner: TP, *, abort: bool) -> None:
        """Forget a partition: drop what is buffered, wait for what runs; its producer stays until `assigned`."""
        del abort  # what is buffered belongs to no position, whatever becomes of it
        self._forget(owner)
        while running := [task for task, tp in self._running.items() if tp == owner]:
            await asyncio.wait(running)
        found = self._owners.get(owner)
        if found is not None:
            found.ended = True

    def stop(self) -> None:
        """Send nothing more, as a killed process: what is open stays open."""
        for task in self._running:
            task.cancel()
        for owner in self._owners.values():
            owner.ended, owner.is_usable = True, False
            owner.producer.kill()

    async def close(self) -> None:
        """Wait for the transactions that run, and close every producer."""
        await self.flush()
        for tp in list(self._owners):
            self._retire(tp)
        if self._closing:
            await asyncio.wait(self._closing)

    def _live(self, tp: TP, epoch: int) -> Owner | None:
        owner = self._owners.get(tp)
        is_live = owner is not None and owner.epoch == epoch and not owner.ended
        return owner if is_live else None

    def _outcome_without(self, tp: TP, epoch: int) -> Outcome:
        return Outcome.ABORTED if self._member.owns(tp, epoch) else Outcome.FENCED

    def _end(self, owner: Owner) -> None:
        """Let nothing more of this takeover be committed, and tell the cover, once."""
        is_told = owner.ended
        owner.ended = True
        if self._cover is not None and not is_told and self._owners.get(owner.tp) is owner:
            self._cover.aborted(owner.tp)

    def _forget(self, tp: TP) -> None:
        self._outs.pop(tp, None)
        self._late.pop(tp, None)
        self._replies.pop(tp, None)

    def _retire(self, tp: TP) -> None:
        """Have no producer for a partition any more."""
        owner = self._owners.pop(tp, None)
        if owner is not None:
            owner.ended = True
            self._close(owner.producer, kill=owner.turn.locked() or not owner.is_usable)

    def _close(self, producer: TransactionalProducer, *, kill: bool) -> None:
        if kill:
            producer.kill()
        task = asyncio.create_task(producer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
