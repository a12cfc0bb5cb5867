"""The memory log's delivery, at least once, and its publisher (`headrace.streams.memory` makes both)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Self

from headrace.schemas.record import TP, Out
from headrace.streams.committer import Committer
from headrace.streams.cover import Cover
from headrace.streams.delivery_buffers import redirect
from headrace.streams.log import Outcome, Position
from headrace.streams.memory_source import MemorySource

if TYPE_CHECKING:
    from headrace.streams.memory import MemoryLog


class MemoryDelivery:
    """Publishes and commits in memory, at least once; see `headrace.streams.log.Delivery`.

    A failed settle keeps its records: the next settle of that owner publishes them again. As with Kafka's plain
    producer, nobody is asked before a record is appended: a zombie publishes until it learns what it is, and only
    its commits are refused.
    """

    def __init__(self, log: MemoryLog, source: MemorySource, cover: Cover | None = None) -> None:
        """Keep the parts and have the source flush at revocations."""
        self._log = log
        self._source = source
        self._outs: dict[TP, list[Out]] = {}
        self._late: dict[TP, list[Out]] = {}
        self._locks: dict[TP, asyncio.Lock] = {}
        self._committer = Committer(
            source, log.produce, cover, interval_s=log.commit_interval_ms / 1000
        )
        source.adopt(self)

    def __repr__(self) -> str:
        """Show the counts."""
        buffered = sum(map(len, self._outs.values())) + sum(map(len, self._late.values()))
        return f"MemoryDelivery({buffered} records buffered, {len(self._committer)} positions pending)"

    async def take_over(self, owners: Mapping[TP, int]) -> Set[TP]:
        """Return them: at least once nothing of an earlier owner is to be ended."""
        return owners.keys()

    def assigned(self, kept: Set[TP]) -> None:
        """Take no note: the worker releases what it has not any more."""

    def put(
        self,
        owner: TP,
        outs: Sequence[Out],
        *,
        after_ack: bool = False,
        after_commit: bool = False,
    ) -> None:
        """Buffer."""
        del after_commit  # at least once it is an answer like the others
        (self._late if after_ack else self._outs).setdefault(owner, []).extend(outs)

    def redirect(self, topics: Set[str], change: Callable[[Out], None]) -> None:
        """Change what is buffered for these topics."""
        redirect((self._outs, self._late), topics, change)

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Publish in order of the owners, then take over their positions for the next commit."""
        committer = self._committer
        committer.raise_failure()
        released = {tp: committer.times_released(tp) for tp in upto}
        outcomes: dict[TP, Outcome] = {}
        for owner, position in upto.items():
            outcomes[owner] = committer.outcome(owner, position)
            if outcomes[owner] is Outcome.FENCED:
                self._forget(owner)
        for owner, position in upto.items():
            async with self._locks.setdefault(owner, asyncio.Lock()):
                # It may be fenced since this call began: then what is buffered is the next epoch's.
                is_same = released[owner] == committer.times_released(owner)
                if is_same and committer.outcome(owner, position) is Outcome.SETTLED:
                    await self._publish(owner)
        for owner, position in upto.items():
            outcomes[owner] = committer.take_over(owner, position, released[owner])
        if await committer.commit_when_due():
            for owner, position in upto.items():
                if outcomes[owner] is Outcome.SETTLED:
                    outcomes[owner] = committer.outcome(owner, position)
        return outcomes

    async def _publish(self, owner: TP) -> None:
        for buffer in (self._outs, self._late):
            outs = buffer.pop(owner, [])
            try:
                await self._log.produce(outs)
            except BaseException:
                buffer[owner] = outs + buffer.get(owner, [])
                raise

    async def flush(self) -> None:
        """Commit everything settled; positions of an old epoch are dropped."""
        await self._committer.flush()

    async def release(self, owner: TP, *, abort: bool) -> None:
        """Forget a partition, publishing first what is there unless ``abort``; what was settled is committed."""
        if not abort:
            await self._publish(owner)
        self._outs.pop(owner, None)
        self._late.pop(owner, None)
        try:
            await self._committer.release(owner)
        finally:
            self._forget(owner)

    def stop(self) -> None:
        """Commit nothing more by itself."""
        self._committer.stop()

    async def close(self) -> None:
        """Stop, and wait until that is done."""
        await self._committer.close()

    def _forget(self, owner: TP) -> None:
        self._outs.pop(owner, None)
        self._late.pop(owner, None)


class MemoryPublisher:
    """Produces into memory; see `headrace.streams.log.Publisher`."""

    def __init__(self, log: MemoryLog) -> None:
        """Keep the log."""
        self._log = log

    async def __aenter__(self) -> Self:
        """Nothing to connect."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to flush: `publish` returned after the acknowledgement."""

    async def publish(self, outs: Sequence[Out]) -> None:
        """Append all."""
        await self._log.produce(outs)
