"""The memory log of the sequence storms: it takes its time, and checks every snapshot and every commit as it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from headrace.consumers.ledger import OffsetLedger
from headrace.schemas.codec import decode_response
from headrace.schemas.errors import Reason
from headrace.schemas.infer import SequenceId
from headrace.schemas.record import REASON, REPLY_TOPIC, TP, Out
from headrace.schemas.sequence import Flag, SequenceState, sequence_key
from headrace.schemas.snapshot import SequenceCodec, StateKind, split_state_key, unpack_snapshot
from headrace.streams.cover import Cover
from headrace.streams.log import Delivery, Mode, Position, Rebalance, Source
from headrace.streams.memory import MemoryRecord
from headrace.streams.memory_delivery import MemoryDelivery
from headrace.streams.memory_group import MemoryGroup
from headrace.streams.memory_source import MemorySource
from headrace.streams.memory_transactions import MemoryTransaction, Step
from sequence_oracle import Asked, Due, Oracle
from sequence_traffic import MODEL, NOW_AND_THEN, Scenario, Sending
from simulated import CheckedLog


class Snapshot(NamedTuple):
    """A record of the state topic: a sequence as somebody saw it, None is a tombstone."""

    partition: int
    key: bytes
    state: SequenceState | None


class Violation(AssertionError):
    """A promise was broken; the text begins with which."""


class LaggingSource(MemorySource):
    """A group member whose coordinator takes its time to answer."""

    async def committed(self, tps: Set[TP]) -> Mapping[TP, Position | None]:
        """Fetch late, answer late; spring the trap first."""
        if (trap := self._log.trap) is not None:
            self._log.trap = None
            trap(self)
        await self._log.lag(self)
        found = await super().committed(tps)
        await self._log.lag(self)
        return found

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit late, answer late."""
        await self._log.lag(self)
        refused = await super().commit(positions)
        await self._log.lag(self)
        return refused


class _Port:
    """The log as one source's delivery uses it."""

    def __init__(self, log: SequenceLog, source: MemorySource) -> None:
        self._log = log
        self._source = source
        self.commit_interval_ms = log.commit_interval_ms

    async def produce(self, outs: Sequence[Out]) -> None:
        """Append late, acknowledge late."""
        if outs:
            await self._log.lag(self._source)
            await self._log.produce(outs)
            await self._log.lag(self._source)


class LaggingDelivery(MemoryDelivery):
    """A delivery whose brokers take their time to answer."""

    def __init__(self, log: SequenceLog, source: MemorySource, cover: Cover | None) -> None:
        super().__init__(_Port(log, source), source, cover)  # type: ignore[arg-type]  # as much of a log as it uses


class SequenceLog(CheckedLog):
    """A log that knows what every record is due, and checks every snapshot and every commit.

    Attributes:
        scenario: Of the storm.
        sent: Partition → its records in offset order.
        dues: Partition → what they must be answered, as far as luck does not decide.
        trap: Called once with whoever takes partitions over next, when it asks for their positions.
        violations: What was seen to be broken; whoever was at it may have been killed.
        sees_commits: Whether commits are checked; off, a storm must find what follows from a bad one.
    """

    sees_commits = True

    def __init__(self, scenario: Scenario, codec: SequenceCodec, rng: random.Random) -> None:
        is_exact = scenario.mode is Mode.EXACTLY_ONCE
        super().__init__(
            commit_interval_ms=scenario.commit_interval_ms,
            replies=scenario.topology.replies if is_exact else "",
        )
        self.scenario = scenario
        self.sent: dict[int, list[Asked]] = {p: [] for p in range(scenario.partitions)}
        self.dues: dict[int, list[Due]] = {p: [] for p in range(scenario.partitions)}
        self.trap: Callable[[MemorySource], None] | None = None
        self.violations: list[str] = []
        self.snapshots: list[Snapshot] = []
        self._requests = scenario.topology.requests(MODEL)
        self._states = scenario.topology.state(MODEL)
        self._oracles = {p: Oracle(scenario.idle_ms) for p in range(scenario.partitions)}
        self._covered: dict[tuple[int, bytes], int] = {}
        self._codec = codec
        self._frozen: dict[MemorySource, asyncio.Event] = {}
        self._rng = rng

    def send(self, sending: Sending) -> None:
        """Append a request and ask the oracle."""
        partition = sending.out.partition
        asked = sending.asked._replace(timestamp_ms=self.clock_ms())
        if self.replies and dict(sending.out.headers).get(REPLY_TOPIC) == self.replies.encode():
            offset = len(self.sent[partition])
            self.calls.add(f"{self._requests}/{partition}/{offset}")
        self.append([sending.out])
        self.sent[partition].append(asked)
        self.dues[partition].append(self._oracles[partition].next(asked))

    async def lag(self, source: MemorySource | None = None) -> None:
        """Wait as long as a broker's answer takes, and until the member that waits for it is not frozen."""
        await asyncio.sleep(self._rng.choice(self.scenario.lags_s))
        while source is not None and (frozen := self._frozen.get(source)) is not None:
            await frozen.wait()

    def freeze(self, source: MemorySource, seconds: float) -> None:
        """Let nothing of a member reach the log for a while, as if its process was stopped."""
        if source not in self._frozen:
            self._frozen[source] = asyncio.Event()
            asyncio.get_running_loop().call_later(seconds, self._thaw, source)

    def _thaw(self, source: MemorySource) -> None:
        self._frozen.pop(source).set()

    def source(self, group: str, topics: Set[str], on: Rebalance) -> LaggingSource:
        """Make a group member."""
        return LaggingSource(self, self._group(group), topics, on)

    async def travel(self, step: Step, source: MemorySource) -> None:
        """Let a transaction's requests and answers take their time, too."""
        await self.lag(source)
        await super().travel(step, source)

    def delivery(self, source: Source, mode: Mode, cover: Cover | None = None) -> Delivery:
        """Make a delivery that is as late, and as frozen, as its source."""
        assert isinstance(source, MemorySource)
        if mode is Mode.EXACTLY_ONCE:
            return super().delivery(source, mode, cover)
        return LaggingDelivery(self, source, cover)

    async def partitions(self, topic: str) -> int | None:
        """Look up a reply topic late: a block that names it is decoded for so long."""
        if topic == self.scenario.topology.replies:
            await self.lag()
        return await super().partitions(topic)

    def append(self, outs: Sequence[Out]) -> None:
        """Note snapshots."""
        super().append(outs)
        self._note_snapshots(outs)

    def complete(self, transaction: MemoryTransaction, *, committed: bool) -> None:
        """Note committed snapshots, and check what is committed with them."""
        if committed:
            self._note_snapshots(transaction.outs)
        try:
            if committed:
                self._check_cover(transaction.positions)
            super().complete(transaction, committed=committed)
        except AssertionError as exc:
            self.violations.append(str(exc))
            raise

    def _note_snapshots(self, outs: Sequence[Out]) -> None:
        for out in outs:
            if out.topic == self._states:
                snapshot = self._snapshot(out)
                self.snapshots.append(snapshot)
                if snapshot.state is not None:
                    place = (snapshot.partition, snapshot.key)
                    self._covered[place] = max(self._covered.get(place, -1), snapshot.state.offset)

    def _snapshot(self, record: Out | MemoryRecord) -> Snapshot:
        assert record.key is not None
        kind, key, _ = split_state_key(record.key)
        assert kind == StateKind.SEQUENCE
        state = None if record.value is None else unpack_snapshot(self._codec, record.value)[0]
        return Snapshot(record.partition, key, state)

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Check, then store."""
        try:
            self._check_cover(positions)
            super().commit(group, positions)
        except AssertionError as exc:
            self.violations.append(str(exc))
            raise

    def _check_cover(self, positions: Mapping[TP, Position]) -> None:
        for tp, position in positions.items() if self.sees_commits else ():
            ledger = OffsetLedger(epoch=0)
            ledger.restore(position)
            asked = self.sent[tp.partition]
            for offset, due in enumerate(self.dues[tp.partition]):
                if due.is_step and (offset < position.offset or ledger.is_finished(offset)):
                    key = sequence_key(asked[offset].sequence_id)
                    if self._covered.get((tp.partition, key), -1) < offset:
                        raise Violation(
                            f"not covered: {tp.partition}@{offset} is committed, {key!r} is saved as of "
                            f"{self._covered.get((tp.partition, key))}"
                        )

    def compact_states(self, *, tombstones: bool) -> None:
        """Compact the state topic up to now, whatever lag its settings ask for."""
        for number in range(self.scenario.partitions):
            store = self.existing(TP(self._states, number))
            store.compact(self.clock_ms(), tombstones=tombstones)

    def sources(self) -> Set[str]:
        """Name every record as results do."""
        return {
            f"{self._requests}/{partition}/{offset}"
            for partition, sent in self.sent.items()
            for offset in range(len(sent))
        }

    def check(self) -> None:
        """Check what is there in the end: each answer, their order, and the state topic.

        Raises:
            Violation: The first promise that is broken.
        """
        for partition, sent in self.sent.items():
            oracle = Oracle(self.scenario.idle_ms)
            dues = [
                oracle.next(asked._replace(fails=self._failed(partition, offset, asked)))
                for offset, asked in enumerate(sent)
            ]
            for offset, due in enumerate(dues):
                self._check_answers(partition, offset, due)
            self._check_snapshots(partition, dues)
            self._check_rest(partition, oracle)
        self._check_order()

    def _failed(self, partition: int, offset: int, asked: Asked) -> bool:
        """Say whether the model failed on a record: where luck decides, the first answer does."""
        if asked.value < NOW_AND_THEN:
            return asked.fails
        (_, headers, _), *_ = self.answers[
            f"{self._requests}/{partition}/{offset}"
        ]  # none is a call
        return dict(headers).get(REASON) == Reason.BACKEND_FAILED.encode()

    def _check_answers(self, partition: int, offset: int, due: Due) -> None:
        source = f"{self._requests}/{partition}/{offset}"
        answers = self.answers.get(source, [])
        is_lost_call = (
            self.faults and source in self.calls and not answers
        )  # its caller is told 504
        is_exact = self.faults == 0 or self.scenario.mode is Mode.EXACTLY_ONCE
        if is_exact and len(answers) != 1 and not is_lost_call:
            raise Violation(f"answered: {partition}@{offset} {len(answers)} times")
        for _, headers, value in answers:
            reason = dict(headers).get(REASON, b"").decode()
            found: object = reason
            if not reason:
                (output,) = decode_response(value, headers).outputs
                found = output.numpy().item()
            expected = due.value if due.reason is None else due.reason.value
            if found != expected:
                raise Violation(
                    f"answered: {partition}@{offset} ({self.sent[partition][offset]}) {found}, "
                    f"expected {expected}"
                )

    def _check_snapshots(self, partition: int, dues: Sequence[Due]) -> None:
        """Check every live state that anybody ever wrote: it is its sequence's as of the record that it names."""
        for written, key, state in self.snapshots:
            if written != partition or state is None or state.flag is not Flag.LIVE:
                continue
            after = dues[state.offset].after
            named = self.sent[partition][state.offset].sequence_id
            if (
                sequence_key(named) != key
                or after is None
                or after.flag is not Flag.LIVE
                or value_of(state) != after.state
            ):
                raise Violation(f"saved: {partition} {key!r} {state}, expected {after}")

    def _check_rest(self, partition: int, oracle: Oracle) -> None:
        found = self.states(partition)
        now_ms = self.clock_ms()
        for key, known in oracle.live().items():
            state = found.pop(key, None)
            if (
                state is not None
                and state.flag is Flag.EXPIRED
                and now_ms - known.timestamp_ms > self.scenario.idle_ms
            ):
                continue  # the reaper was sure already
            if state is None or state.flag is not Flag.LIVE or value_of(state) != known.state:
                raise Violation(f"at rest: {partition} {key!r} is {state}, expected {known}")
        for key, state in found.items():
            if state.flag is Flag.LIVE:
                raise Violation(f"at rest: {partition} {key!r} is {state}, expected no such one")

    def states(self, partition: int) -> dict[bytes, SequenceState]:
        """Fold the state topic as it is now, by P-4: the greatest offset wins, a marker beats a live one."""
        best: dict[bytes, SequenceState] = {}
        for record in self.records(self._states, partition, committed=True):
            snapshot = self._snapshot(record)
            state = snapshot.state
            if state is None:
                continue
            known = best.get(snapshot.key)
            rank = (state.offset, state.flag is not Flag.LIVE)
            if known is None or rank > (known.offset, known.flag is not Flag.LIVE):
                best[snapshot.key] = state
        return best

    def _check_order(self) -> None:
        """Check that each sequence's answers were first seen in the order of its requests (SQ-20, P-18)."""
        last: dict[tuple[int, SequenceId, bool], int] = {}
        for source in self.answers:
            partition, offset = map(int, source.split("/")[1:])
            asked = self.sent[partition][offset]
            # Calls are answered behind the commit: between them and the others there is no order (P-13).
            place = (partition, asked.sequence_id, source in self.calls)
            if asked.sequence_id and last.get(place, -1) > offset:
                raise Violation(
                    f"out of order: {partition}@{offset} after {last[place]} of {place[1]!r}"
                )
            last[place] = offset


def value_of(state: SequenceState) -> int:
    """Return the one number that the model's state is."""
    (raw,) = state.tensors
    return int(np.frombuffer(raw, "<i8")[0])
