"""The memory log's group member (`headrace.streams.memory` makes it)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.committer import Adopted
from headrace.streams.log import Block, Position, Rebalance

if TYPE_CHECKING:
    from headrace.streams.memory import MemoryLog
    from headrace.streams.memory_group import MemoryGroup


class Stoppable(Adopted, Protocol):
    """What a source needs of its deliveries."""

    def stop(self) -> None:
        """Commit nothing more, as if the process were gone."""


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
        self._left_at: float | None = None
        self._evicted = False
        self._learns_at = 0.0
        self._crashed = False
        self._error: BaseException | None = None
        self._turn = 0
        self._deliveries: list[Stoppable] = []
        self._former: tuple[int, frozenset[TP]] = (-1, frozenset())
        self._kept: frozenset[TP] = frozenset()

    def __repr__(self) -> str:
        """Show topics and counts."""
        return f"MemorySource({sorted(self.topics)}, {len(self._epochs)} partitions)"

    async def __aenter__(self) -> Self:
        """Join; returns after the rebalance. `LogError` names a topic that does not exist."""
        gone = self.topics - (await self._log.topics()).keys()
        if gone:
            raise LogError(f"topic {', '.join(sorted(gone))} does not exist", retriable=True)
        self._left_at = asyncio.get_running_loop().time()
        self.group.members.append(self)
        await asyncio.shield(self.group.rebalance())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Commit what was settled and leave; `Rebalance` is not told."""
        try:
            for delivery in self._deliveries:
                with suppress(LogError):
                    await delivery.flush()
                await delivery.close()
        finally:
            if not self._crashed:
                self.group.remove(self)
                self._drop_all()
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
        if self._evicted and asyncio.get_running_loop().time() >= self._learns_at:
            self._evicted = False
            self._left_at = asyncio.get_running_loop().time()
            gone = set(self._epochs)
            self._drop_all()
            self._tell_deliveries(frozenset())
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
            records = store.read(at, store.end, max_records, committed=True)
            self._next[tp] = records[-1].offset + 1 if records else max(at, store.stable)
            if records:
                max_records -= len(records)
                blocks.append(Block(tp, self._epochs[tp], records))
        return blocks

    def counted(self, there: Mapping[str, int]) -> None:
        """Do nothing: topics in memory keep their partitions."""

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

    def position(self, tp: TP) -> int:
        """Return the next offset to hand out, -1 where none is known."""
        return self._next.get(tp, -1)

    def assignment(self) -> Mapping[TP, int]:
        """Partition → epoch, as this member believes."""
        return dict(self._epochs)

    def left_at(self) -> float | None:
        """Since when a rebalance is under way."""
        return self._left_at

    async def committed(self, tps: Set[TP]) -> Mapping[TP, Position | None]:
        """Committed positions of the group."""
        await asyncio.sleep(0)
        return {tp: self.group.committed.get(tp) for tp in tps}

    async def end_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """Last stable offset."""
        await asyncio.sleep(0)
        return {tp: self._log.existing(tp).stable for tp in tps}

    async def beginning_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """First offset that is kept."""
        await asyncio.sleep(0)
        return {tp: self._log.existing(tp).start for tp in tps}

    async def confirm(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit what was read, once more; returns the partitions that the group still counts as ours."""
        return positions.keys() - await self.commit(positions)

    async def still_assigned(self, epochs: Mapping[TP, int]) -> Set[TP]:
        """Ask the group."""
        await asyncio.sleep(0)
        return {
            tp
            for tp, epoch in epochs.items()
            if self.owns(tp, epoch) and self.group.owns(self, tp, epoch)
        }

    def kept(self) -> Set[TP]:
        """Return the partitions of the last assignment that were ours in the generation before it, too."""
        return self._kept & self._epochs.keys()

    # What deliveries use.

    def adopt(self, delivery: Stoppable) -> None:
        """Flush this delivery when partitions go."""
        self._deliveries.append(delivery)

    def owns(self, tp: TP, epoch: int) -> bool:
        """Say whether a partition is ours under this epoch, as far as this member knows."""
        return self._epochs.get(tp) == epoch

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit and return the partitions that were refused: not ours under that epoch (P-8)."""
        await asyncio.sleep(0)
        due = {
            tp: at
            for tp, at in positions.items()
            if self.owns(tp, at.epoch) and self.group.owns(self, tp, at.epoch)
        }
        self._log.commit(self.group, due)
        return positions.keys() - due.keys()

    # What the group calls.

    async def give_up(self) -> None:
        """Revoke everything; waits for the worker within the grace, then commits what it settled."""
        self._giving_up = True
        self._left_at = asyncio.get_running_loop().time()
        tps = set(self._epochs)
        # A zombie is told of rebalances only when it has learned, and has lost everything by then.
        self._former = (self.group.generation, frozenset(tps))
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
        """Own these partitions, paused; there may be none."""
        generation, before = self._former
        is_next = self.group.generation == generation + 1
        self._kept = before & tps if is_next else frozenset()
        self._tell_deliveries(self._kept)
        if not tps:
            self._left_at = None
            return
        for tp in tps:
            committed = self.group.committed.get(tp)
            self._epochs[tp] = epoch
            self._next[tp] = (
                self._log.existing(tp).start if committed is None else committed.offset
            )
        self._paused |= tps
        self._on.assigned(tps, epoch)
        self._left_at = None
        self._log.wake()

    # What tests and simulations call, by the log.

    def evict(self, learns_after_s: float) -> None:
        """Be a zombie: the group has forgotten this member, which learns it at its first poll after that time."""
        loop = asyncio.get_running_loop()
        self._evicted = True
        self._learns_at = loop.time() + learns_after_s
        loop.call_at(self._learns_at, self._log.wake)

    def crash(self) -> None:
        """Be dead: nothing is told to the worker and every call fails."""
        self._crashed = True
        self._drop_all()
        for delivery in self._deliveries:
            delivery.stop()

    def rewind(self, tp: TP, records: int) -> None:
        """Hand out the last ``records`` of a partition again under the same epoch."""
        store = self._log.existing(tp)
        self.seek(tp, max(store.start, self._next[tp] - records))

    def _tell_deliveries(self, kept: Set[TP]) -> None:
        for delivery in self._deliveries:
            delivery.assigned(kept)

    def _drop_all(self) -> None:
        self._epochs.clear()
        self._next.clear()
        self._paused.clear()
