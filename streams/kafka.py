"""The log on Kafka's protocol by aiokafka: Apache Kafka, and the embedded broker.

This module makes the parts; what each does is in ``kafka_source``, ``kafka_reader``, ``kafka_producer``,
``kafka_delivery``, ``kafka_transaction`` and ``kafka_admin``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set
from typing import Self

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, UnsupportedSaslMechanismError
from headrace.schemas.errors import ConfigError, LogError
from headrace.schemas.record import TP
from headrace.streams.cover import Cover
from headrace.streams.kafka_admin import KafkaAdmin
from headrace.streams.kafka_client import EMBEDDED_CLUSTER, hush, translated
from headrace.streams.kafka_delivery import KafkaDelivery
from headrace.streams.kafka_follow_ups import KafkaFollowUps
from headrace.streams.kafka_foreign import read_any_header_name
from headrace.streams.kafka_producer import KafkaProducer, KafkaPublisher
from headrace.streams.kafka_properties import connection_arguments, translate
from headrace.streams.kafka_reader import KafkaReader
from headrace.streams.kafka_source import KafkaSource
from headrace.streams.kafka_transaction import KafkaTransactionalProducer, why_no_transactions
from headrace.streams.kafka_transaction_wire import TransactionWire
from headrace.streams.log import (
    Delivery,
    Feature,
    Mode,
    Rebalance,
    Source,
    Span,
    TopicSpec,
)
from headrace.streams.transaction import TRANSACTION_TIMEOUT_MS
from headrace.streams.transaction_delivery import TransactionalDelivery

logger = logging.getLogger("headrace.streams")

COMMIT_INTERVAL_MS = 500
REVOKE_GRACE_S = 5.0
APACHE_KAFKA = frozenset(
    {
        Feature.TRANSACTIONS,
        Feature.LOG_APPEND_TIME,
        Feature.COMPACTION,
        Feature.DELETE_TOPICS,
        Feature.COMMIT_METADATA,
    }
)
# It accepts the settings of the first two and does not act by them, and drops a commit's metadata, so that what
# was finished beyond a commit is answered again after a takeover (DELIVERY P-1).
EMBEDDED = frozenset({Feature.DELETE_TOPICS})
NO_TRANSACTIONS = (
    "exactly_once needs transactions, which the embedded broker does not have; use an Apache Kafka 4.0 or newer "
    "(bootstrap.servers), or at_least_once"
)
CONNECT_TIMEOUT_S = 10.0


class KafkaLog:
    """See `headrace.streams.log.Log`.

    Attributes:
        features: What the brokers can do, once entered.
        max_record_bytes: Largest record that is published (``max.request.size``).
        warnings: A sentence per Kafka property that is ignored.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        revoke_grace_s: float = REVOKE_GRACE_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        file: str = "",
    ) -> None:
        """Translate the properties.

        Args:
            properties: By Kafka's names; ``bootstrap.servers`` is needed.
            commit_interval_ms: What is settled is committed at most this often; 0 is at each settle.
            revoke_grace_s: How long a revocation waits for work in flight.
            connect_timeout_s: How long entering may try to reach a broker.
            transaction_timeout_ms: How long one transaction may take: then the broker aborts it.
            file: Where the properties are from, for error sentences.

        Raises:
            ConfigError: As `headrace.streams.kafka_properties.translate`.
        """
        self._settings = translate(properties, file=file)
        self.features = APACHE_KAFKA
        self.warnings = self._settings.warnings
        self._commit_interval_s = commit_interval_ms / 1000
        self._grace_s = revoke_grace_s
        self._connect_timeout_s = connect_timeout_s
        self._transaction_timeout_ms = transaction_timeout_ms
        self._why_no_transactions = ""
        self._producer = KafkaProducer(self._settings)
        self._follow_ups = KafkaFollowUps(self._settings)
        self._transactions = TransactionWire(self._settings)
        self._admin = KafkaAdmin(self._settings)
        self._epoch = 0
        self.max_record_bytes = self._producer.max_record_bytes

    def __repr__(self) -> str:
        """Show the brokers."""
        return f"KafkaLog({','.join(self._settings.bootstrap)})"

    async def __aenter__(self) -> Self:
        """Reach a broker; `LogError` with one sentence if none answers, or none lets us in."""
        hush()
        read_any_header_name()
        for warning in self.warnings:
            logger.warning("%s", warning)
        self._why_no_transactions = why_no_transactions(await self._reach())
        if self._why_no_transactions:
            self.features = APACHE_KAFKA - {Feature.TRANSACTIONS}
        await self._admin.start()
        try:
            is_embedded = await self._admin.cluster() == EMBEDDED_CLUSTER
        except BaseException:
            await self._admin.close()
            raise
        if is_embedded:
            self.features = EMBEDDED
            self._why_no_transactions = NO_TRANSACTIONS
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Send what is queued and close."""
        await self._producer.close()
        await self._follow_ups.close()
        await self._transactions.close()
        await self._admin.close()

    def source(self, group: str, topics: Set[str], on: Rebalance) -> KafkaSource:
        """Make a group member; a group's name is needed (FAULTS B76)."""
        if not group:
            raise ConfigError("a consumer group's name is needed", field="group")
        return KafkaSource(
            self._settings,
            group,
            topics,
            on,
            revoke_grace_s=self._grace_s,
            next_epoch=self._next_epoch,
            missing=self._admin.missing,
            ends_by_batch=self.features is EMBEDDED,
        )

    def reader(self, spans: Mapping[TP, Span], *, committed: bool = False) -> KafkaReader:
        """Make a reader."""
        return KafkaReader(
            self._settings,
            spans,
            committed=committed,
            missing=self._admin.missing,
            ends_by_batch=self.features is EMBEDDED,
        )

    def delivery(self, source: Source, mode: Mode, cover: Cover | None = None) -> Delivery:
        """Make the delivery of one of this log's sources.

        Raises:
            LogError: Exactly once is asked for, and the broker that was reached on entering cannot do it.
        """
        assert isinstance(source, KafkaSource), "a delivery belongs to a source of the same log"
        if mode is Mode.AT_LEAST_ONCE:
            return KafkaDelivery(
                self._producer, source, cover, commit_interval_s=self._commit_interval_s
            )
        self.require(mode)
        delivery = TransactionalDelivery(
            source,
            cover,
            make_producer=lambda owner: KafkaTransactionalProducer(
                self._transactions, source.group, owner, timeout_ms=self._transaction_timeout_ms
            ),
            check=self._producer.check_size,
            publish=self._follow_ups.publish,
            timeout_s=self._transaction_timeout_ms / 1000,
        )
        source.adopt(delivery)
        return delivery

    def require(self, mode: Mode) -> None:
        """Refuse exactly_once where the broker that was reached on entering cannot do it."""
        if mode is Mode.EXACTLY_ONCE and self._why_no_transactions:
            raise LogError(self._why_no_transactions, retriable=False)

    def publisher(self) -> KafkaPublisher:
        """Make a publisher."""
        return KafkaPublisher(self._producer)

    async def ensure(self, topics: Sequence[TopicSpec]) -> Sequence[str]:
        """Create what is missing; a warning per existing topic that differs."""
        return await self._admin.ensure(topics)

    async def partitions(self, topic: str) -> int | None:
        """Return the count as of now, None where there is no such topic."""
        return (await self._admin.topics([topic])).get(topic)

    async def topics(self) -> Mapping[str, int]:
        """Return all topics as of now."""
        return await self._admin.topics()

    async def delete(self, topics: Sequence[str]) -> None:
        """Delete topics."""
        await self._admin.delete(topics)

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    async def _reach(self) -> Mapping[int, tuple[int, int]]:
        """Connect to the first bootstrap server that lets us in: aiokafka alone would not say why none does.

        Returns:
            Key of a request → its first and last version that this broker takes.
        """
        failures = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_timeout_s
        arguments = connection_arguments(self._settings)
        for server in self._settings.bootstrap:
            host, _, port = server.rpartition(":")
            try:
                async with asyncio.timeout_at(deadline):
                    conn = await create_conn(host.strip("[]"), int(port), **arguments)
            except TimeoutError:
                failures.append(
                    LogError(
                        f"{server}: no answer within {self._connect_timeout_s:g} s", retriable=True
                    )
                )
            except UnsupportedSaslMechanismError:
                wanted = arguments.get("sasl_mechanism")
                failures.append(
                    LogError(f"{server} does not offer sasl.mechanism {wanted}", retriable=False)
                )
            except (OSError, KafkaError) as exc:
                failures.append(translated(exc, f"connecting to {server}"))
            else:
                versions: Mapping[int, tuple[int, int]] = conn._versions  # noqa: SLF001  # aiokafka tells nobody
                conn.close()
                return versions
        raise LogError(
            f"no Kafka broker can be used (bootstrap.servers): {'; '.join(f.detail for f in failures)}",
            retriable=all(failure.retriable for failure in failures),
        )
