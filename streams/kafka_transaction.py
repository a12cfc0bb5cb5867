"""The transactional producer of one partition, over the connections that all of a log's transactions share.

aiokafka's own has a client of its own for each transactional id, sends five requests in a row for each transaction and
commits although a batch was refused. Here each request of a transaction is awaited and its answer looked at, the end
comes last (DELIVERY P-11), and a cluster that speaks the second protocol is asked for a position, the batches and the
end alone.

The position goes first. A transaction may not begin while the markers of the one before are being written: asked for a
position, a broker says so at once and is asked again soon, while a broker that is given a batch keeps it for 20 ms
before it looks again. And beside each other the two would make a broker refuse one of them where both wait for the same
coordinator.

A transactional id is ``<group>:<topic>:<partition>``: the next owner of the partition, whoever that is, finds by it
what this one has left open (FAULTS B27); topics have no colon.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from aiokafka import errors as kafka_errors
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, Response
from aiokafka.protocol.transaction import InitProducerIdRequest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka_batches import by_target, pack, transactional_batch
from headrace.streams.kafka_client import refusing, translated
from headrace.streams.kafka_rights import Operation, Resource, Right, topics_rights
from headrace.streams.kafka_transaction_dialects import Identity, codes
from headrace.streams.kafka_transaction_errors import (
    FENCED,
    LASTING,
    Code,
    code_of_all,
    code_of_parts,
    error_of,
    may_pass,
)
from headrace.streams.kafka_transaction_wire import TransactionWire
from headrace.streams.log import Position
from headrace.streams.transaction import ProducerFenced

# EndTxn of version 5 came with Apache Kafka 4.0. Before, a committed position could be seen late by the next owner.
END_TXN = 26
NEEDED_END_TXN = 5
# How soon a transaction is begun again where the markers of the one before are still being written: it takes a broker
# few milliseconds, and an awaited reply waits for it. Each further time takes twice as long, up to the back-off: a
# broker that is busy with markers is not made busier by questions.
AGAIN_S = 0.003
# How soon a request is sent again that was refused for another reason, unless retry.backoff.ms is shorter. Kafka's
# default of 100 ms would make that the latency of an awaited reply.
RETRY_BACKOFF_S = 0.02
SEQUENCES = 2**31  # they begin again at 0


def why_no_transactions(versions: Mapping[int, tuple[int, int]]) -> str:
    """Say why a broker cannot do exactly_once, ``""`` if it can (DELIVERY P-9).

    Args:
        versions: Key of a request → its first and last version that the broker takes.
    """
    _, last = versions.get(END_TXN, (0, -1))
    if last >= NEEDED_END_TXN:
        return ""
    found = f"takes EndTxn up to version {last}" if last >= 0 else "has no transactions at all"
    return (
        f"exactly_once needs the transactions of Apache Kafka 4.0 or newer (EndTxn version {NEEDED_END_TXN}), and this "
        f"broker {found}; use such a broker, or at_least_once"
    )


def transactional_id(group: str, owner: TP) -> str:
    """Name the transactions of a group's partition."""
    return f"{group}:{owner.topic}:{owner.partition}"


class KafkaTransactionalProducer:
    """See `headrace.streams.transaction.TransactionalProducer`; one takeover's."""

    def __init__(self, wire: TransactionWire, group: str, owner: TP, *, timeout_ms: int) -> None:
        """Keep the parts.

        Args:
            wire: Of the log.
            group: Consumer group that the owner's positions belong to.
            owner: The partition.
            timeout_ms: After this long the broker aborts an open transaction.
        """
        settings = wire.settings
        self._wire = wire
        self._group = group
        self._owner = owner
        self._id = transactional_id(group, owner)
        self._timeout_ms = timeout_ms
        self._request_timeout_ms = int(str(settings.client["request_timeout_ms"]))
        self._max_record_bytes = int(str(settings.producer["max_request_size"]))
        retry_ms = int(str(settings.client["retry_backoff_ms"]))
        self._backoff_s = min(RETRY_BACKOFF_S, retry_ms / 1000)
        self._needs = settings.needs(
            Right(Operation.WRITE, Resource.TRANSACTIONAL_ID, self._id),
            Right(Operation.READ, Resource.GROUP, group),
            *topics_rights(Operation.READ, [owner.topic]),
            others=Operation.WRITE,
        )
        self._who = Identity(self._id, -1, -1)
        self._sequences: dict[TP, int] = defaultdict(int)
        self._named: set[TP] = (
            set()
        )  # partitions that the transaction was told of, in the first protocol
        self._is_open = False  # the brokers may have heard of it
        self._is_killed = False
        self._lane: int | None = None

    def __repr__(self) -> str:
        """Show the transactional id."""
        return f"KafkaTransactionalProducer({self._id})"

    async def start(self) -> None:
        """Take the id; returns behind the markers of what was open under it."""
        doing, bound_s = f"taking transactional id {self._id}", self._request_timeout_ms / 1000
        with self._translated(doing), self._in_lane():
            await self._wire.start()
            try:
                async with asyncio.timeout(bound_s):
                    await self._take_id()
            except TimeoutError as exc:
                raise LogError(f"{doing} took longer than {bound_s:g} s", retriable=True) from exc

    async def _take_id(self) -> None:
        request = InitProducerIdRequest(self._id, self._timeout_ms)
        response = await self._of_coordinator(request)
        self._who = Identity(self._id, response.producer_id, response.producer_epoch)

    async def begin(self) -> None:
        """Begin; the brokers hear of it by what is sent."""
        if self._lane is None:
            self._lane = self._wire.take_lane()

    async def send_position(self, position: Position) -> None:
        """Commit offset and metadata with the transaction."""
        with self._translated(f"committing offsets of group {self._group}"):
            self._is_open = True
            dialect = self._wire.dialect
            naming = dialect.add_offsets(self._who, self._group)
            if naming is not None:
                await self._of_coordinator(naming)
            request = dialect.commit_position(self._who, self._group, self._owner, position)
            await self._answered(self._ask_group, request, code_of_parts)

    async def send(self, outs: Sequence[Out]) -> None:
        """Publish and await every acknowledgement."""
        with self._translated("publishing"):
            batches = await self._packed(outs)
            new = [tp for tp in batches if tp not in self._named]
            naming = self._wire.dialect.add_partitions(self._who, new)
            self._is_open = True
            if naming is not None and new:
                await self._of_coordinator(naming, code_of_parts)
                self._named.update(new)
            await self._produce(batches)

    async def _packed(self, outs: Sequence[Out]) -> dict[TP, deque[bytes]]:
        """Return each partition's batches, numbered on from those before."""
        create = partial(transactional_batch, self._wire.settings.producer)
        _, producer_id, epoch = self._who
        packed: dict[TP, deque[bytes]] = {}
        for target, records in by_target(outs).items():
            tp = TP(*target)
            await self._known(tp)
            packed[tp] = deque()
            for batch in pack(records, create, self._max_record_bytes):
                sequence = self._sequences[tp]
                self._sequences[tp] = (sequence + batch.record_count()) % SEQUENCES
                batch._set_producer_state(producer_id, epoch, sequence)  # noqa: SLF001  # as aiokafka's sender
                packed[tp].append(batch._build())  # noqa: SLF001  # as above
        return packed

    async def _known(self, tp: TP) -> None:
        try:
            await self._wire.known(tp)
        except KafkaError as exc:
            doing = f"publishing to {tp.topic}/{tp.partition}"
            raise self._said(exc, doing, tp.topic) from exc

    async def _produce(self, batches: dict[TP, deque[bytes]]) -> None:
        """Send one batch of a partition after the other, those of one leader together, until all are acknowledged.

        One leader after the other: two that ask the coordinator at the same time about a transaction that is new to
        them would be sent away by it.
        """
        while batches:
            is_refused = False
            for leader, tps in self._by_leader(batches).items():
                done = await self._produced(leader, {tp: batches[tp][0] for tp in tps})
                is_refused |= len(done) < len(tps)
                for tp in done:
                    batches[tp].popleft()
                    if not batches[tp]:
                        del batches[tp]
            if is_refused:
                await asyncio.sleep(self._backoff_s)

    def _by_leader(self, batches: Mapping[TP, deque[bytes]]) -> dict[int, list[TP]]:
        leaders: dict[int, list[TP]] = {}
        for tp in batches:
            leaders.setdefault(self._wire.leader(tp), []).append(tp)
        return leaders

    async def _produced(self, leader: int, batches: Mapping[TP, bytes]) -> list[TP]:
        """Send a batch to each; returns which are acknowledged, those that are not may be sent again."""
        if leader < 0:
            await self._wire.look_again()
            return []
        request = self._wire.dialect.produce(self._who, batches, self._request_timeout_ms)
        try:
            response = await self._request(leader, request)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            await self._wire.look_again()
            return []
        done = []
        is_moved = False
        for tp, code in codes(response):
            error = error_of(code, tp.topic)
            if error is None or isinstance(error, kafka_errors.DuplicateSequenceNumber):
                done.append(tp)
            elif not may_pass(error):
                doing = f"publishing to {tp.topic}/{tp.partition}"
                raise self._said(error, doing, tp.topic) from error
            else:
                is_moved |= error.invalid_metadata
        if is_moved:
            await self._wire.look_again()
        return done

    async def commit(self) -> None:
        """Commit."""
        with self._translated("committing"):
            await self._end(is_commit=True)

    async def abort(self) -> None:
        """Abort."""
        with self._translated("aborting"):
            if self._is_open:
                await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        dialect = self._wire.dialect
        response = await self._of_coordinator(dialect.end(self._who, is_commit=is_commit))
        after = dialect.after(self._who, response)
        if after is not None:
            self._who = after
            self._sequences.clear()
        self._named.clear()
        self._is_open = False
        self._leave()

    async def _of_coordinator(self, request: Request, code: Code = code_of_all) -> Response:
        return await self._answered(self._ask_coordinator, request, code)

    async def _answered(
        self, ask: Callable[[Request], Awaitable[Response]], request: Request, code: Code
    ) -> Response:
        """Ask until the answer is not one that may pass; `KafkaError` if it is a refusal."""
        again_s = AGAIN_S
        while True:
            pause_s = self._backoff_s
            try:
                response = await ask(request)
                error = error_of(*code(response))
            except KafkaError as exc:
                error = exc
            if error is None:
                return response
            if isinstance(error, kafka_errors.ConcurrentTransactions):
                pause_s, again_s = again_s, min(2 * again_s, self._backoff_s)
            elif not may_pass(error):
                raise error
            else:
                self._wire.forget_coordinator(CoordinationType.TRANSACTION, self._id)
                self._wire.forget_coordinator(CoordinationType.GROUP, self._group)
                if error.invalid_metadata or isinstance(error, kafka_errors.NodeNotReadyError):
                    await self._wire.look_again()
            await asyncio.sleep(pause_s)

    async def _ask_coordinator(self, request: Request) -> Response:
        node = await self._wire.coordinator(CoordinationType.TRANSACTION, self._id)
        return await self._request(node, request)

    async def _ask_group(self, request: Request) -> Response:
        node = await self._wire.coordinator(CoordinationType.GROUP, self._group)
        return await self._request(node, request)

    async def _request(self, node: int, request: Request) -> Response:
        if self._is_killed:
            raise LogError("the producer was killed", retriable=True)
        assert self._lane is not None, "a transaction has begun"
        return await self._wire.request(self._lane, node, request)

    def kill(self) -> None:
        """Send nothing more."""
        self._is_killed = True

    async def close(self) -> None:
        """Leave what is open: the next owner ends it."""
        self._is_killed = True
        self._leave()
        self._wire.forget_coordinator(CoordinationType.TRANSACTION, self._id)

    def _leave(self) -> None:
        if self._lane is not None:
            self._wire.leave_lane(self._lane)
            self._lane = None

    @contextmanager
    def _in_lane(self) -> Iterator[None]:
        self._lane = self._wire.take_lane()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FENCED as exc:
            raise ProducerFenced(f"{self._id}: {type(exc).__name__}") from exc
        except (KafkaError, OSError) as exc:
            raise self._said(exc, doing) from exc

    def _said(self, exc: BaseException, doing: str, topic: str = "") -> LogError | ProducerFenced:
        """Say what it was; whatever else there is, such as an unknown transaction, is gone with this producer."""
        if isinstance(exc, FENCED):
            return ProducerFenced(f"{self._id}: {type(exc).__name__}")
        said = translated(exc, f"the transaction of {self._id}: {doing}", self._needs)
        topics = refusing(exc, topic) - {""}
        return LogError(said.detail, retriable=not isinstance(exc, LASTING), topics=topics)
