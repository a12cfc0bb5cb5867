"""The transactional producer of one partition by aiokafka, and the plain one for what follows a commit.

aiokafka's ``commit_transaction`` succeeds after a batch was refused, so every batch is awaited before it (DELIVERY
P-11). A refused batch leaves a gap in the sequence numbers, at which the broker refuses all that follow: such a
producer is never used again. A transactional id is ``<group>:<topic>:<partition>``: the next owner of the partition,
whoever that is, finds by it what this one has left open (FAULTS B27); topics have no colon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.errors import IllegalOperation, KafkaError
from aiokafka.producer import sender
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState
from aiokafka.structs import OffsetAndMetadata
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka_client import FATAL, refusing, translated
from headrace.streams.kafka_producer import KafkaProducer
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, Resource, Right, topics_rights
from headrace.streams.log import Position
from headrace.streams.transaction import ProducerFenced

FENCED = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
)
# What the next try would meet again, with whatever producer.
LASTING = (
    *FATAL,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.OffsetMetadataTooLargeError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidTransactionTimeout,
    kafka_errors.PolicyViolationError,
    kafka_errors.UnsupportedForMessageFormatError,
)
# EndTxn of version 5 came with Apache Kafka 4.0. Before, a committed position could be seen late by the next owner.
END_TXN = 26
NEEDED_END_TXN = 5
# How soon a transaction is begun again where the markers of the one before are still being written: it takes a broker
# few milliseconds, and an awaited reply waits for it.
AGAIN_S = 0.005
# Brokers refuse some batches and positions for a moment, while they ask the coordinator whether the transaction is
# open: one in ten of them, measured. Kafka's default of 100 ms would make that the latency of an awaited reply.
RETRY_BACKOFF_MS = 20
BROKEN = (TransactionState.FATAL_ERROR, TransactionState.ABORTABLE_ERROR)


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

    def __init__(self, settings: KafkaSettings, group: str, owner: TP, *, timeout_ms: int) -> None:
        """Keep the parts.

        Args:
            settings: Translated properties.
            group: Consumer group that the owner's positions belong to.
            owner: The partition.
            timeout_ms: After this long the broker aborts an open transaction.
        """
        self._group = group
        self._owner = owner
        self._id = transactional_id(group, owner)
        self._needs = settings.needs(
            Right(Operation.WRITE, Resource.TRANSACTIONAL_ID, self._id),
            Right(Operation.READ, Resource.GROUP, group),
            *topics_rights(Operation.READ, [owner.topic]),
            others=Operation.WRITE,
        )
        self._producer = KafkaProducer(
            settings,
            transactional_id=self._id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=min(RETRY_BACKOFF_MS, int(str(settings.client["retry_backoff_ms"]))),
        )

    def __repr__(self) -> str:
        """Show the transactional id."""
        return f"KafkaTransactionalProducer({self._id})"

    async def start(self) -> None:
        """Connect and take the id; returns behind the markers of what was open under it."""
        sender.BACKOFF_OVERRIDE = AGAIN_S  # it has no option for it
        with self._translated(f"taking transactional id {self._id}"):
            await self._producer.start()

    async def begin(self) -> None:
        """Begin; the broker hears of it by what is sent."""
        with self._translated("beginning"):
            self._raise_if_broken()
            await self._producer.running().begin_transaction()

    async def send(self, outs: Sequence[Out]) -> None:
        """Publish and await every acknowledgement."""
        with self._translated("publishing"):
            batches = await self._producer.batches(outs)
            futures = await self._producer.send(batches)
            try:
                await self._producer.acknowledged(batches, futures)
            except BaseException:
                for future in futures:
                    future.cancel()  # nobody looks at them any more
                raise

    async def send_position(self, position: Position) -> None:
        """Commit offset and metadata with the transaction."""
        at = OffsetAndMetadata(position.offset, position.metadata)
        with self._translated(f"committing offsets of group {self._group}"):
            self._raise_if_broken()
            await self._producer.running().send_offsets_to_transaction(
                {TopicPartition(*self._owner): at}, self._group
            )

    async def commit(self) -> None:
        """Commit."""
        with self._translated("committing"):
            self._raise_if_broken()
            await self._producer.running().commit_transaction()

    async def abort(self) -> None:
        """Abort."""
        with self._translated("aborting"):
            manager = self._manager()
            if manager.state is TransactionState.FATAL_ERROR:
                self._raise_if_broken()
            if manager.state in (
                TransactionState.IN_TRANSACTION,
                TransactionState.ABORTABLE_ERROR,
            ):
                await self._producer.running().abort_transaction()

    def kill(self) -> None:
        """Send nothing more."""
        self._producer.kill()

    async def close(self) -> None:
        """Close."""
        await self._producer.close()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (KafkaError, IllegalOperation, LogError, OSError) as exc:
            raise self._failure(exc, doing) from exc

    def _failure(self, exc: BaseException, doing: str) -> LogError | ProducerFenced:
        """Say what it was: aiokafka wraps it, or fails its futures with what followed from it."""
        own, broken = _chain(exc), _chain(self._broken_by())
        if fenced := [cause for cause in [*own, *broken] if isinstance(cause, FENCED)]:
            return ProducerFenced(f"{self._id}: {type(fenced[0]).__name__}")
        if isinstance(exc, LogError) and exc.__cause__ is None:
            return exc
        lasts = [cause for cause in [*own, *broken] if isinstance(cause, LASTING)]
        root = lasts[0] if lasts else (broken or own)[-1]
        is_named = isinstance(exc, LogError) and exc.__cause__ is root
        doing = f"the transaction of {self._id}: {doing}"
        said = translated(exc if is_named else root, doing, self._needs)
        # Whatever else there is, such as a transaction that the broker does not know, is gone with this producer.
        topics = exc.topics if isinstance(exc, LogError) else refusing(root, "") - {""}
        return LogError(said.detail, retriable=not lasts, topics=topics)

    def _raise_if_broken(self) -> None:
        """Raise what has ended this producer: aiokafka would fail an assertion."""
        if self._manager().state in BROKEN:
            raise self._broken_by() or KafkaError("the producer has failed")

    def _broken_by(self) -> BaseException | None:
        waiter = None if self._producer.is_closed else self._manager()._transaction_waiter  # noqa: SLF001  # no other way
        if waiter is None or not waiter.done() or waiter.cancelled():
            return None
        found: BaseException | None = waiter.exception()
        return found

    def _manager(self) -> TransactionManager:
        return self._producer.running()._txn_manager  # noqa: SLF001  # aiokafka shows no state


class KafkaFollowUps:
    """Publishes what follows a commit, such as replies, by an idempotent producer: none comes twice.

    One that a broker has refused a batch of is replaced; it closes behind the last of those that it serves.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Keep the settings."""
        self._settings = settings
        self._producer = self._made()
        self._serves: dict[KafkaProducer, int] = {}

    async def publish(self, outs: Sequence[Out]) -> None:
        """Publish in order and await all acknowledgements; `LogError` if any fails."""
        producer = self._producer
        self._serves[producer] = self._serves.get(producer, 0) + 1
        try:
            await producer.publish(outs)
        except LogError:
            if self._producer is producer:
                self._producer = self._made()
            raise
        finally:
            self._serves[producer] -= 1
            if not self._serves[producer]:
                del self._serves[producer]
                if self._producer is not producer:
                    await asyncio.shield(producer.close())

    async def close(self) -> None:
        """Send what is queued and close."""
        await self._producer.close()

    def _made(self) -> KafkaProducer:
        return KafkaProducer(self._settings, enable_idempotence=True)


def _chain(exc: BaseException | None) -> list[BaseException]:
    found = []
    while exc is not None:
        found.append(exc)
        exc = exc.__cause__
    return found
