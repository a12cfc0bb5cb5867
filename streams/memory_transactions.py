"""The memory log's transactions: a coordinator, a producer as Kafka's, and a fault for each of its steps.

A transactional id has an epoch that rises with each start: whoever has an older one is fenced. An open transaction
hides what is behind it from readers of what is committed, and its marker takes an offset
(`headrace.streams.memory_partition`). One that is older than its timeout is aborted when somebody looks next, and its
producer is fenced, as a broker does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import Position
from headrace.streams.transaction import ProducerFenced

if TYPE_CHECKING:
    from headrace.streams.memory import MemoryLog
    from headrace.streams.memory_source import MemorySource


class Step(StrEnum):
    """What a producer asks the log to do; produces and commits are plain ones, too."""

    START = "start"
    PRODUCE = "produce"
    POSITION = "position"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(slots=True)
class Fault:
    """The next ``times`` calls fail; ``done``: their effect happens all the same, only the answer is lost."""

    times: int = 0
    done: bool = False
    retriable: bool = True

    def meet(self, what: str, effect: Callable[[], None]) -> None:
        """Do it, unless the fault strikes; `LogError` if it does."""
        struck = self.times > 0
        self.times -= struck
        if not struck or self.done:
            effect()
        if struck:
            raise LogError(f"{what} failed (injected)", retriable=self.retriable)


@dataclass(slots=True, eq=False)
class MemoryTransaction:
    """An open transaction.

    Attributes:
        id: Transactional id.
        group: Whose positions it holds.
        begun_ms: When the log first heard of it.
        timeout_ms: It is aborted when it is older.
        outs: What it has written.
        positions: What it commits.
        timer: Wakes those that wait for its end.
    """

    id: str
    group: str
    begun_ms: int
    timeout_ms: int
    outs: list[Out] = field(default_factory=list)
    positions: dict[TP, Position] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class MemoryTransactions:
    """The coordinator of a log's transactions."""

    def __init__(self, log: MemoryLog) -> None:
        """Start without any."""
        self._log = log
        self._epochs: dict[str, int] = {}
        self._open: dict[str, MemoryTransaction] = {}
        self._last = 0

    def __repr__(self) -> str:
        """Show the counts."""
        return f"MemoryTransactions({len(self._epochs)} ids, {len(self._open)} open)"

    def start(self, name: str) -> int:
        """Give out an id: abort what is open under it, fence who had it; returns the epoch."""
        self._last += 1
        self._epochs[name] = self._last
        self._complete(name, committed=False)
        return self._last

    def transaction(self, name: str, epoch: int, group: str) -> MemoryTransaction:
        """Return the transaction of an id, begun now if none is open; `ProducerFenced` unless it is the epoch's."""
        self.check(name, epoch)
        found = self._open.get(name)
        if found is None:
            timeout_ms = self._log.transaction_timeout_ms
            found = MemoryTransaction(name, group, self._log.clock_ms(), timeout_ms)
            # The loop's clock may be another one: then who waits looks when something else wakes it.
            found.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._log.wake)
            self._open[name] = found
        return found

    def end(self, name: str, epoch: int, *, committed: bool) -> None:
        """Commit or abort what is open under an id; `ProducerFenced` unless it is the epoch's."""
        self.check(name, epoch)
        self._complete(name, committed=committed)

    def check(self, name: str, epoch: int) -> None:
        """Raise `ProducerFenced` unless this epoch has the id."""
        self.expire()
        if self._epochs.get(name) != epoch:
            raise ProducerFenced(name)

    def expire(self) -> None:
        """Abort what is older than its timeout."""
        if not self._open:
            return
        now_ms = self._log.clock_ms()
        for name, transaction in list(self._open.items()):
            if now_ms - transaction.begun_ms >= transaction.timeout_ms:
                self.time_out(name)

    # Faults and looks for tests and simulations.

    def open(self) -> Sequence[str]:
        """Return the ids with an open transaction."""
        self.expire()
        return sorted(self._open)

    def time_out(self, name: str) -> None:
        """Abort an id's transaction as if it were too old: its producer is fenced."""
        self.start(name)

    def forget(self, name: str) -> None:
        """Forget an id, as a broker does after a week without use: its producer is fenced."""
        self._complete(name, committed=False)
        self._epochs.pop(name, None)

    def _complete(self, name: str, *, committed: bool) -> None:
        transaction = self._open.pop(name, None)
        if transaction is None:
            return
        if transaction.timer is not None:
            transaction.timer.cancel()
        self._log.complete(transaction, committed=committed)


class MemoryTransactionalProducer:
    """See `headrace.streams.transaction.TransactionalProducer`."""

    def __init__(self, log: MemoryLog, source: MemorySource, owner: TP) -> None:
        """Keep the parts; the id is made as on Kafka."""
        self._log = log
        self._source = source
        self._owner = owner
        self._group = source.group.name
        self._id = f"{self._group}:{owner.topic}:{owner.partition}"
        self._epoch = -1
        self._is_killed = False

    def __repr__(self) -> str:
        """Show the transactional id."""
        return f"MemoryTransactionalProducer({self._id}, epoch={self._epoch})"

    async def start(self) -> None:
        """Take the id."""

        def start() -> None:
            self._epoch = self._log.transactions.start(self._id)

        await self._ask(Step.START, start)

    async def begin(self) -> None:
        """Begin; the log hears of it by what is sent."""
        self._raise_if_killed()

    async def send(self, outs: Sequence[Out]) -> None:
        """Append within the transaction."""

        def append() -> None:
            for out in outs:
                self._log.existing(TP(out.topic, out.partition))
                self._log.check_size(out)
            transaction = self._transaction()
            transaction.outs.extend(outs)
            self._log.write(outs, transaction)

        await self._ask(Step.PRODUCE, append)

    async def send_position(self, position: Position) -> None:
        """Store with the transaction."""

        def store() -> None:
            self._transaction().positions[self._owner] = position

        await self._ask(Step.POSITION, store)

    async def commit(self) -> None:
        """Commit."""
        end = self._log.transactions.end
        await self._ask(Step.COMMIT, lambda: end(self._id, self._epoch, committed=True))

    async def abort(self) -> None:
        """Abort."""
        end = self._log.transactions.end
        await self._ask(Step.ABORT, lambda: end(self._id, self._epoch, committed=False))

    def kill(self) -> None:
        """Send nothing more."""
        self._is_killed = True

    async def close(self) -> None:
        """Send nothing more."""
        self._is_killed = True

    def _transaction(self) -> MemoryTransaction:
        return self._log.transactions.transaction(self._id, self._epoch, self._group)

    async def _ask(self, step: Step, effect: Callable[[], None]) -> None:
        self._raise_if_killed()
        await self._log.travel(step, self._source)
        self._raise_if_killed()
        self._log.failing[step].meet(step, effect)
        await self._log.travel(step, self._source)

    def _raise_if_killed(self) -> None:
        if self._is_killed:
            raise LogError("the producer is closed", retriable=True)
