"""The memory log's group member, reader and delivery (`headrace.streams.memory` makes them)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import EARLIEST, LATEST, Block, Outcome, Position, Rebalance, Span

if TYPE_CHECKING:
    from headrace.streams.memory import MemoryLog
    from headrace.streams.memory_group import MemoryGroup


class MemorySource:
    """A group member that reads from memory; see `headrace.streams.log.Source` for the contract.

    Attributes:
        topics: What it subscribes to.
    """

    def __init__(
        self, log: MemoryLog, group: MemoryGroup, topics: Set[str], on: Rebalance
    ) -> None:
        """Keep the parts; entering joins."""
        self.topics = frozenset(topics)
        self.group = group
        self._log = log
        self._on = on
        self._epochs: dict[TP, int] = {}
        self._next: dict[TP, int] = {}
        self._paused: set[TP] = set()
        self._giving_up = False
        self._evicted = False
        self._crashed = False
        self._error: BaseException | None = None
        self._turn = 0
        self._deliveries: list[MemoryDelivery] = []

    def __repr__(self) -> str:
        """Show topics and counts."""
        return f"MemorySource({sorted(self.topics)}, {len(self._epochs)} partitions)"

    async def __aenter__(self) -> Self:
        """Join; returns after the rebalance. `LogError` names a topic that does not exist."""
        gone = self.topics - (await self._log.topics()).keys()
        if gone:
            raise LogError(f"topic {', '.join(sorted(gone))} does not exist", retriable=True)
        self.group.members.append(self)
        await asyncio.shield(self.group.rebalance())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Commit what was settled and leave; `Rebalance` is not told."""
        if self._crashed:
            return
        for delivery in self._deliveries:
            with suppress(LogError):
                await delivery.flush()
        self.group.remove(self)
        self._epochs.clear()
        self._log.wake()
        if self.group.members:
            self.group.rebalance()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out at most ``max_records``; waits up to ``timeout_s`` for the first."""
        await asyncio.sleep(0)  # a busy partition must not starve the loop
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            changed = self._log.changed
            self._check()
            blocks = self._take(max_records)
            left = deadline - loop.time()
            if blocks or left <= 0:
                return blocks
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    def _check(self) -> None:
        if self._crashed:
            raise LogError("this source has crashed", retriable=False)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._evicted:
            self._evicted = False
            gone = set(self._epochs)
            self._drop_all()
            if gone:
                self._on.lost(gone)
            self.group.members.append(self)
            self.group.rebalance()

    def _take(self, max_records: int) -> list[Block]:
        if self._giving_up:
            return []
        ready = sorted(self._epochs.keys() - self._paused)
        self._turn += 1
        start = self._turn % len(ready) if ready else 0
        blocks = []
        for tp in ready[start:] + ready[:start]:
            store = self._log.partition(tp)
            if store is None or max_records <= 0:
                continue
            at = self._next[tp]
            if not store.start <= at <= store.end:
                at = store.start
            records = store.read(at, store.end, max_records)
            self._next[tp] = records[-1].offset + 1 if records else store.end
            if records:
                max_records -= len(records)
                blocks.append(Block(tp, self._epochs[tp], records))
        return blocks

    def pause(self, tps: Set[TP]) -> None:
        """Stop handing out these; partitions that are not assigned are ignored."""
        self._paused |= tps & self._epochs.keys()

    def resume(self, tps: Set[TP]) -> None:
        """Hand these out again."""
        self._paused -= tps
        self._log.wake()

    def seek(self, tp: TP, offset: int) -> None:
        """Set the next offset; `LogError` if the partition is not assigned."""
        if tp not in self._epochs:
            raise LogError(f"{tp.topic}/{tp.partition} is not assigned", retriable=True)
        self._next[tp] = offset
        self._log.wake()

    def assignment(self) -> Mapping[TP, int]:
        """Partition → epoch, as this member believes."""
        return dict(self._epochs)

    async def committed(self, tps: Set[TP]) -> Mapping[TP, Position | None]:
        """Committed positions of the group."""
        await asyncio.sleep(0)
        return {tp: self.group.committed.get(tp) for tp in tps}

    async def end_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """Offset after the last record."""
        await asyncio.sleep(0)
        return {tp: self._log.existing(tp).end for tp in tps}

    async def beginning_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """First offset that is kept."""
        await asyncio.sleep(0)
        return {tp: self._log.existing(tp).start for tp in tps}

    # What the group calls.

    async def give_up(self) -> None:
        """Revoke everything; waits for the worker within the grace, then commits what it settled."""
        self._giving_up = True
        tps = set(self._epochs)
        grace = self._log.revoke_grace_s
        deadline = asyncio.get_running_loop().time() + grace
        try:
            if tps and not self._crashed:
                async with asyncio.timeout(grace):
                    await self._on.revoked(tps, deadline)
                    for delivery in self._deliveries:
                        await delivery.flush()
        except (TimeoutError, LogError):
            pass  # the grace is over, or nothing more can be committed: the records are read again
        except Exception as exc:  # noqa: BLE001  # a bug in the worker's callback: its next poll raises it
            self._error = exc
        finally:
            self._giving_up = False
            self._drop_all()

    def take_over(self, tps: Set[TP], epoch: int) -> None:
        """Own these partitions, paused."""
        for tp in tps:
            committed = self.group.committed.get(tp)
            self._epochs[tp] = epoch
            self._next[tp] = (
                self._log.existing(tp).start if committed is None else committed.offset
            )
        self._paused |= tps
        self._on.assigned(tps, epoch)
        self._log.wake()

    # What tests and simulations call, by the log.

    def evict(self) -> None:
        """Be a zombie: the group has forgotten this member, which learns it at its next poll."""
        self._evicted = True

    def crash(self) -> None:
        """Be dead: nothing is told to the worker and every call fails."""
        self._crashed = True
        self._drop_all()

    def rewind(self, tp: TP, records: int) -> None:
        """Hand out the last ``records`` of a partition again under the same epoch."""
        store = self._log.existing(tp)
        self.seek(tp, max(store.start, self._next[tp] - records))

    def adopt(self, delivery: MemoryDelivery) -> None:
        """Flush this delivery when partitions go."""
        self._deliveries.append(delivery)

    def _drop_all(self) -> None:
        self._epochs.clear()
        self._next.clear()
        self._paused.clear()


class MemoryReader:
    """Reads spans from memory; see `headrace.streams.log.Reader`."""

    def __init__(self, log: MemoryLog, spans: Mapping[TP, Span]) -> None:
        """Keep the spans; entering resolves them."""
        self._log = log
        self._spans = dict(spans)
        self._next: dict[TP, int] = {}
        self._turn = 0

    async def __aenter__(self) -> Self:
        """Resolve the starts; `LogError` names a partition that does not exist."""
        await asyncio.sleep(0)
        for tp, span in self._spans.items():
            store = self._log.existing(tp)
            special = {EARLIEST: store.start, LATEST: store.end}
            self._next[tp] = max(special.get(span.start, span.start), store.start)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out what the spans still hold."""
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            changed = self._log.changed
            blocks = self._take(max_records)
            left = deadline - loop.time()
            if blocks or left <= 0 or self.done():
                return blocks
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    def _take(self, max_records: int) -> list[Block]:
        tps = sorted(self._spans)
        self._turn += 1
        start = self._turn % len(tps) if tps else 0
        blocks = []
        for tp in tps[start:] + tps[:start]:
            store, end = self._log.existing(tp), self._spans[tp].end
            at = max(self._next[tp], store.start)
            limit = store.end if end is None else min(end, store.end)
            if max_records <= 0 or at >= limit:
                continue
            records = store.read(at, limit, max_records)
            self._next[tp] = records[-1].offset + 1 if records else limit
            if records:
                max_records -= len(records)
                blocks.append(Block(tp, 0, records))
        return blocks

    def positions(self) -> Mapping[TP, int]:
        """Next offsets."""
        return dict(self._next)

    def done(self) -> bool:
        """Whether each span has an end and is read to it; holes before the end count as read."""
        for tp, span in self._spans.items():
            if span.end is None:
                return False
            store, at = self._log.existing(tp), self._next[tp]
            if at < span.end and (store.end < span.end or store.read(at, span.end, 1)):
                return False
        return True


class MemoryDelivery:
    """Publishes and commits in memory, at least once; see `headrace.streams.log.Delivery`.

    A failed settle keeps its records: the next settle of that owner publishes them again.
    """

    def __init__(self, log: MemoryLog, source: MemorySource) -> None:
        """Keep the parts and have the source flush at revocations."""
        self._log = log
        self._source = source
        self._outs: dict[TP, list[Out]] = {}
        self._late: dict[TP, list[Out]] = {}
        self._locks: dict[TP, asyncio.Lock] = {}
        self._pending: dict[TP, Position] = {}
        self._committed_ms = log.clock_ms()
        source.adopt(self)

    def put(self, owner: TP, outs: Sequence[Out], *, after_ack: bool = False) -> None:
        """Buffer."""
        (self._late if after_ack else self._outs).setdefault(owner, []).extend(outs)

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Publish in order of the owners, then commit what is due."""
        outcomes: dict[TP, Outcome] = {}
        for owner, position in upto.items():
            if not self._owns(owner, position.epoch):
                self._forget(owner)
        for owner, position in upto.items():
            async with self._locks.setdefault(owner, asyncio.Lock()):
                outcomes[owner] = await self._settle(owner, position)
        now_ms = self._log.clock_ms()
        if now_ms - self._committed_ms >= self._log.commit_interval_ms:
            await self.flush()
        for owner, outcome in outcomes.items():
            if outcome is Outcome.SETTLED and not self._owns(owner, upto[owner].epoch):
                outcomes[owner] = Outcome.FENCED
        return outcomes

    async def _settle(self, owner: TP, position: Position) -> Outcome:
        if not self._owns(owner, position.epoch):
            # Since this call began: what is buffered may be the next epoch's.
            return Outcome.FENCED
        for buffer in (self._outs, self._late):
            outs = buffer.pop(owner, [])
            try:
                await self._log.produce(outs)
            except BaseException:
                buffer[owner] = outs + buffer.get(owner, [])
                raise
        self._pending[owner] = position
        return Outcome.SETTLED

    async def flush(self) -> None:
        """Commit everything settled; positions of an old epoch are dropped."""
        await asyncio.sleep(0)
        pending, self._pending = self._pending, {}
        due = {tp: at for tp, at in pending.items() if self._owns(tp, at.epoch)}
        self._committed_ms = self._log.clock_ms()
        try:
            self._log.commit(self._source.group, due)
        except LogError:
            self._pending = {**due, **self._pending}
            raise

    async def release(self, owner: TP, *, abort: bool) -> None:
        """Forget a partition, publishing and committing first what is there unless ``abort``."""
        if not abort and self._source.assignment().get(owner) is not None:
            await self._log.produce(self._outs.pop(owner, []))
            await self._log.produce(self._late.pop(owner, []))
            await self.flush()
        self._forget(owner)

    def _owns(self, owner: TP, epoch: int) -> bool:
        return self._source.group.owns(self._source, owner, epoch)

    def _forget(self, owner: TP) -> None:
        self._outs.pop(owner, None)
        self._late.pop(owner, None)
        self._pending.pop(owner, None)
