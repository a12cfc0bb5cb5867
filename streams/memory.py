"""The log in memory: deterministic, with faults on demand; for simulations and for tests of what is built on us.

It keeps the contract of `headrace.streams.log` (one suite runs over all three logs) and has no thread, no clock
and no randomness of its own: time comes from ``clock_ms``, and what happens is decided by the order of calls.
Group members, readers and deliveries are in `headrace.streams.memory_source`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Self

from headrace.schemas.errors import ConfigError, LogError
from headrace.schemas.record import TP, Out
from headrace.streams.cover import Cover
from headrace.streams.log import (
    Delivery,
    Feature,
    Mode,
    Position,
    Rebalance,
    Source,
    Span,
    TopicSpec,
)
from headrace.streams.memory_delivery import MemoryDelivery, MemoryPublisher
from headrace.streams.memory_group import MemoryGroup
from headrace.streams.memory_partition import MemoryPartition, MemoryRecord
from headrace.streams.memory_reader import MemoryReader
from headrace.streams.memory_source import MemorySource
from headrace.streams.memory_transactions import (
    Fault,
    MemoryTransaction,
    MemoryTransactionalProducer,
    MemoryTransactions,
    Step,
)
from headrace.streams.transaction import TRANSACTION_TIMEOUT_MS
from headrace.streams.transaction_delivery import TransactionalDelivery

MAX_RECORD_BYTES = 1_048_576  # Kafka's default of max.request.size


class MemoryLog:
    """Topics, groups and faults in one process; see `headrace.streams.log.Log`.

    Attributes:
        features: Everything.
        changed: Set and replaced whenever a waiting poll should look again.
        clock_ms: Timestamps of records, ms since the epoch.
        revoke_grace_s: How long `Rebalance.revoked` may take.
        commit_interval_ms: Settled positions are committed at most this often by the loop's clock; 0 is at each
            settle.
        transaction_timeout_ms: How long one transaction may take, by ``clock_ms``: then it is aborted.
        max_record_bytes: Largest key + value.
        transactions: Those that are open, and faults among them.
    """

    features = frozenset(Feature)

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        revoke_grace_s: float = 5.0,
        commit_interval_ms: int = 0,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Start without topics."""
        self.transaction_timeout_ms = transaction_timeout_ms
        self.clock_ms = clock_ms
        self.revoke_grace_s = revoke_grace_s
        self.commit_interval_ms = commit_interval_ms
        self.max_record_bytes = max_record_bytes
        self.changed = asyncio.Event()
        self._topics: dict[str, list[MemoryPartition]] = {}
        self._settings: dict[str, dict[str, str]] = {}
        self._groups: dict[str, MemoryGroup] = {}
        self._epoch = 0
        self._users = 0
        self.failing: dict[Step, Fault] = {step: Fault() for step in Step}
        self.transactions = MemoryTransactions(self)
        self._refusal = ""
        self._gate = asyncio.Event()
        self._gate.set()

    def __repr__(self) -> str:
        """Show the counts."""
        return f"MemoryLog({len(self._topics)} topics, {len(self._groups)} groups)"

    async def __aenter__(self) -> Self:
        """Nothing to connect; it may be entered by several users, as a broker is by several processes."""
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End running rebalances behind the last user: those of others go on when one leaves."""
        self._users -= 1
        if self._users:
            return
        for group in self._groups.values():
            await group.close()

    def source(self, group: str, topics: Set[str], on: Rebalance) -> MemorySource:
        """Make a group member; a group id is needed (B76)."""
        if not group:
            raise ConfigError("a consumer group's name is needed", field="group")
        return MemorySource(self, self._group(group), topics, on)

    def reader(self, spans: Mapping[TP, Span], *, committed: bool = False) -> MemoryReader:
        """Make a reader."""
        return MemoryReader(self, spans, committed=committed)

    def delivery(self, source: Source, mode: Mode, cover: Cover | None = None) -> Delivery:
        """Make the delivery of one of this log's sources."""
        assert isinstance(source, MemorySource), "a delivery belongs to a source of the same log"
        if mode is Mode.AT_LEAST_ONCE:
            return MemoryDelivery(self, source, cover)
        delivery = TransactionalDelivery(
            source,
            cover,
            make_producer=lambda owner: MemoryTransactionalProducer(self, source, owner),
            check=self.check_size,
            publish=self.produce,
            timeout_s=self.transaction_timeout_ms / 1000,
        )
        source.adopt(delivery)
        return delivery

    def require(self, mode: Mode) -> None:
        """Everything can be done in memory."""

    def publisher(self) -> MemoryPublisher:
        """Make a publisher."""
        return MemoryPublisher(self)

    async def ensure(self, topics: Sequence[TopicSpec]) -> Sequence[str]:
        """Create what is missing; a warning per existing topic that differs."""
        await asyncio.sleep(0)
        missing = [spec for spec in topics if spec.name not in self._topics]
        if missing and self._refusal:
            wanted = "; ".join(
                f"{s.name} with {s.partitions} partitions and {dict(s.settings)}" for s in missing
            )
            raise LogError(f"{self._refusal}: create by hand {wanted}", retriable=False)
        warnings = []
        for spec in topics:
            if spec.name in self._topics:
                warnings += self._differences(spec)
            else:
                self._topics[spec.name] = [MemoryPartition() for _ in range(spec.partitions)]
                self._settings[spec.name] = dict(spec.settings)
        if missing:
            self._rebalance_readers_of({spec.name for spec in missing})
        return warnings

    async def partitions(self, topic: str) -> int | None:
        """Return the count, None where there is no such topic."""
        await asyncio.sleep(0)
        return len(self._topics[topic]) if topic in self._topics else None

    async def topics(self) -> Mapping[str, int]:
        """Return all topics."""
        await asyncio.sleep(0)
        return {name: len(parts) for name, parts in self._topics.items()}

    # What sources, readers, deliveries and publishers use.

    def partition(self, tp: TP) -> MemoryPartition | None:
        """Return a partition's records, None where it does not exist."""
        self.transactions.expire()
        parts = self._topics.get(tp.topic, [])
        return parts[tp.partition] if 0 <= tp.partition < len(parts) else None

    def existing(self, tp: TP) -> MemoryPartition:
        """Return a partition's records; `LogError` where it does not exist."""
        store = self.partition(tp)
        if store is None:
            raise LogError(
                f"{tp.topic}/{tp.partition} does not exist",
                retriable=False,
                topics=frozenset({tp.topic}),
            )
        return store

    def wake(self) -> None:
        """Let waiting polls look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def produce(self, outs: Sequence[Out]) -> None:
        """Append and acknowledge, unless a fault says otherwise."""
        await asyncio.sleep(0)
        if not outs:
            return
        await self._gate.wait()
        self.failing[Step.PRODUCE].meet("produce", lambda: self.append(outs))

    async def travel(self, step: Step, source: MemorySource) -> None:
        """Let a transaction's request reach the log, or its answer come back: a simulation may take its time here.

        Args:
            step: Of which kind it is.
            source: Whose it is.
        """
        del source
        await asyncio.sleep(0)
        if step is Step.PRODUCE:
            await self._gate.wait()

    def check_size(self, out: Out) -> None:
        """Check one record's size; `LogError` if it is too large."""
        size = len(out.key or b"") + len(out.value or b"")
        if size > self.max_record_bytes:
            raise LogError(
                f"a record of {size} bytes for {out.topic}/{out.partition} is above the limit of "
                f"{self.max_record_bytes} bytes (max.request.size)",
                retriable=False,
            )

    def append(self, outs: Sequence[Out]) -> None:
        """Append at once, all or, if one has no partition or is too large, none."""
        self.write(outs)

    def write(self, outs: Sequence[Out], transaction: MemoryTransaction | None = None) -> None:
        """Do what `append` does, within a transaction if one is named."""
        for out in outs:
            self.existing(TP(out.topic, out.partition))
            self.check_size(out)
        now_ms = self.clock_ms()
        for out in outs:
            self.existing(TP(out.topic, out.partition)).append(out, now_ms, transaction)
        self.wake()

    def complete(self, transaction: MemoryTransaction, *, committed: bool) -> None:
        """End a transaction: write its markers, and store its positions if it is committed."""
        for tp in sorted({TP(out.topic, out.partition) for out in transaction.outs}):
            store = self.partition(tp)
            if store is not None:
                store.complete(transaction, committed=committed)
        if committed:
            self._group(transaction.group).committed.update(transaction.positions)
        self.wake()

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Store positions, unless a fault says otherwise; who may commit is checked before."""
        if not positions:
            return
        self.failing[Step.COMMIT].meet("commit", lambda: group.committed.update(positions))

    # Faults and looks for tests and simulations.

    def records(
        self, topic: str, partition: int, *, committed: bool = False
    ) -> Sequence[MemoryRecord]:
        """Return everything that a partition holds, or what is ``committed`` of it."""
        store = self.existing(TP(topic, partition))
        return store.read(store.start, store.end, store.end, committed=committed)

    def committed(self, group: str) -> Mapping[TP, Position]:
        """Return what a group has committed."""
        return dict(self._group(group).committed)

    def fail_produce(
        self, times: int = 1, *, written: bool = False, retriable: bool = True
    ) -> None:
        """Let the next produces fail; ``written``: the records are there and only the answer is lost."""
        self.failing[Step.PRODUCE] = Fault(times, done=written, retriable=retriable)

    def fail_commit(
        self, times: int = 1, *, written: bool = False, retriable: bool = True
    ) -> None:
        """Let the next commits fail, transactions' too; ``written``: it is done and only the answer is lost."""
        self.failing[Step.COMMIT] = Fault(times, done=written, retriable=retriable)

    def hold_produce(self) -> None:
        """Let produces wait until `free_produce`."""
        self._gate.clear()

    def free_produce(self) -> None:
        """Let held produces go on."""
        self._gate.set()

    def refuse_creation(self, reason: str = "topic creation is not authorised") -> None:
        """Refuse to create topics from now on; ``""`` allows it again."""
        self._refusal = reason

    async def rebalance(self, group: str, *, rotate: bool = False) -> None:
        """Force a rebalance and wait for it; ``rotate`` hands everybody's partitions to the next member."""
        await asyncio.shield(self._group(group).rebalance(rotate=rotate))

    def compact(self, topic: str, *, tombstones: bool = False) -> None:
        """Compact a topic as far as its ``min.compaction.lag.ms`` allows; ``tombstones`` removes those as well."""
        lag_ms = int(self._settings[topic].get("min.compaction.lag.ms", "0"))
        for store in self._topics[topic]:
            store.compact(self.clock_ms() - lag_ms, tombstones=tombstones)

    def evict(self, source: MemorySource, *, learns_after_s: float = 0.0) -> None:
        """Expire a member's session: others get its partitions, and it learns so (`lost`) at a poll of its own.

        Args:
            source: The member.
            learns_after_s: Until then it goes on as a zombie does: it reads and publishes, and its commits are
                refused. 0 is at its next poll.
        """
        source.group.remove(source)
        source.evict(learns_after_s)
        source.group.rebalance()
        self.wake()

    def crash(self, source: MemorySource) -> None:
        """Drop a member as a killed process would: its worker is told nothing and its calls fail."""
        source.group.remove(source)
        source.crash()
        if source.group.members:
            source.group.rebalance()
        self.wake()

    def redeliver(self, source: MemorySource, tp: TP, records: int) -> None:
        """Hand out a partition's last records again under the same epoch."""
        source.rewind(tp, records)

    def delete(self, topic: str) -> None:
        """Delete a topic with its committed positions; groups that read it rebalance."""
        self._topics.pop(topic, None)
        self._settings.pop(topic, None)
        for group in self._groups.values():
            group.committed = {tp: at for tp, at in group.committed.items() if tp.topic != topic}
        self._rebalance_readers_of({topic})

    def _rebalance_readers_of(self, topics: Set[str]) -> None:
        for group in self._groups.values():
            if any(topics & member.topics for member in group.members):
                group.rebalance()
        self.wake()

    def _group(self, name: str) -> MemoryGroup:
        if name not in self._groups:
            self._groups[name] = MemoryGroup(
                name,
                lambda: [TP(t, i) for t, parts in self._topics.items() for i in range(len(parts))],
                self._next_epoch,
            )
        return self._groups[name]

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def _differences(self, spec: TopicSpec) -> list[str]:
        found = []
        if len(self._topics[spec.name]) != spec.partitions:
            found.append(f"{len(self._topics[spec.name])} partitions, {spec.partitions} expected")
        has = self._settings[spec.name]
        found += [
            f"{key} = {has.get(key)}, {value} expected"
            for key, value in spec.settings.items()
            if has.get(key) != value
        ]
        return [f"topic {spec.name} has {'; '.join(found)}"] if found else []
