"""What all Kafka parts share: aiokafka's errors as ours, its habits tamed, connections within a bound.

Only the ``kafka_…`` modules import aiokafka, and each foreign exception becomes a `LogError` here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Collection, Iterable
from types import MethodType
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import create_conn
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.metadata import MetadataRequest
from headrace.schemas.errors import LogError
from headrace.streams import kafka_connections  # noqa: F401  # mends aiokafka's, once
from headrace.streams.kafka_rights import ABOUT, NOBODY, Needs, named_by

T = TypeVar("T")

METADATA_S = 2.0  # how long a topic that was just created may take to be known
LET_GO_S = 1.0  # how long a cancelled start may take to end by itself

EMBEDDED_CLUSTER = (
    "headrace-embedded"  # the embedded broker's cluster id, by which a client knows it
)

FATAL = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.UnsupportedSaslMechanismError,
    *ABOUT,
)


# What a topic answers to records that it will not take tomorrow, either. Among the errors that aiokafka does not know
# is INVALID_RECORD: a compacted topic takes no record without a key.
REFUSALS = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.PolicyViolationError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.UnknownError,
)


def translated(exc: BaseException, doing: str, needs: Needs = NOBODY) -> LogError:
    """Make one sentence of a client's exception.

    Args:
        exc: What aiokafka raised.
        doing: What was tried, such as ``"publishing to a.requests/0"``.
        needs: The rights that it takes, which are named where one is missing.
    """
    if isinstance(exc, LogError):
        return exc
    if missing := needs.missing(exc):
        return LogError(f"{doing} is not allowed: {missing}", retriable=False)
    name = type(exc).__name__
    text = str(exc).strip()
    if isinstance(exc, KafkaError) and text.startswith("["):
        # "[Error 29] TopicAuthorizationFailedError: …": the number tells nobody anything.
        text = text.partition("] ")[2]
    said = text if name in text else f"{name}: {text}" if text else name
    retriable = bool(getattr(exc, "retriable", False)) or isinstance(exc, OSError | TimeoutError)
    return LogError(f"{doing} failed: {said}", retriable=retriable and not isinstance(exc, FATAL))


def refusing(exc: BaseException, topic: str) -> frozenset[str]:
    """Return the topics that refuse for good what was to be published to this one; none where it is another reason.

    In a transaction one topic's refusal is what fails the others' records.
    """
    if not isinstance(exc, REFUSALS):
        return frozenset()
    is_named = isinstance(exc, kafka_errors.TopicAuthorizationFailedError)
    return frozenset(named_by(exc) if is_named else ()) or frozenset({topic})


async def bounded(
    awaitable: Awaitable[T], timeout_s: float, doing: str, needs: Needs = NOBODY
) -> T:
    """Await within a bound; anything that aiokafka raises, and lateness, become `LogError` (see `translated`)."""
    try:
        async with asyncio.timeout(timeout_s):
            return await awaitable
    except TimeoutError as exc:
        raise LogError(f"{doing} took longer than {timeout_s:g} s", retriable=True) from exc
    except (KafkaError, OSError) as exc:
        raise translated(exc, doing, needs) from exc


async def stop_consumer(consumer: AIOKafkaConsumer, *, timeout_s: float = 10.0) -> None:
    """Stop a consumer within a bound.

    aiokafka waits for a group join that is under way, which takes as long as the other members like; past the
    bound the join is cancelled and the member's session ends by itself.
    """
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.wait({stopping}, timeout=timeout_s)
    if not stopping.done():
        # Without a group there is none.
        joining = getattr(consumer._coordinator, "_coordination_task", None)  # noqa: SLF001  # there is no public way
        if joining is not None:
            joining.cancel()
        await asyncio.wait({stopping}, timeout=timeout_s)
        if consumer._fetcher is not None:  # noqa: SLF001  # as above
            await consumer._fetcher.close()  # noqa: SLF001  # as above
        await consumer._client.close()  # noqa: SLF001  # as above
    failure = None if stopping.cancelled() or not stopping.done() else stopping.exception()
    if failure is not None:
        logging.getLogger("headrace.streams").warning("a consumer stopped with %r", failure)


def hush() -> None:
    """Silence aiokafka's own logger unless somebody configured it.

    It logs tracebacks of conditions that we report as `LogError` or retry. To whoever wants its words in full it
    would also tell each request, and in the one by which SASL authenticates the password stands in the clear.
    """
    logger = logging.getLogger("aiokafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)
    logging.getLogger("aiokafka.conn").addFilter(_tells_no_secret)  # the same one is kept once


def _tells_no_secret(record: logging.LogRecord) -> bool:
    return "SaslAuthenticateRequest" not in record.getMessage()


def tame(client: AIOKafkaClient) -> None:
    """Take two habits from a client that is not connected yet.

    Its metadata requests create topics: aiokafka always allows it, so asking for a deleted topic would bring it back
    with the broker's default partitions and settings (FAULTS B104). And where its start is cancelled while it waits
    for the first metadata, nobody has the connection any more to close it.
    """
    client._metadata_update = MethodType(_update_metadata, client)  # noqa: SLF001  # no option for it
    client.bootstrap = MethodType(_bootstrap, client)


async def _bootstrap(client: AIOKafkaClient) -> None:
    """Do what `AIOKafkaClient.bootstrap` does; where that is cancelled, let it end first unless it takes too long."""
    starting = asyncio.create_task(AIOKafkaClient.bootstrap(client))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting}, timeout=LET_GO_S)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def _update_metadata(
    client: AIOKafkaClient, cluster: ClusterMetadata, topics: Iterable[str] | None
) -> bool:
    """Do what `AIOKafkaClient._metadata_update` does, with ``allow_auto_topic_creation`` false."""
    request = MetadataRequest(list(topics) if topics else None, allow_auto_topic_creation=False)
    bootstrap = next((key for key in client._conns if key[0] == "bootstrap"), None)  # noqa: SLF001  # as above
    nodes: list[Any] = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    for node in [*nodes, *(["bootstrap"] if bootstrap else [])]:
        conn = await client._get_conn(node)  # noqa: SLF001  # as above
        if conn is None:
            continue
        try:
            metadata = await conn.send(request)
        except (KafkaError, TimeoutError):
            continue
        if not metadata.brokers:
            return False
        cluster.update_metadata(metadata)
        if bootstrap in client._conns and client.cluster.brokers():  # noqa: SLF001  # as above
            client._conns.pop(bootstrap).close()  # noqa: SLF001  # as above
        return True
    cluster.failed_update(None)
    return False


async def known_target(client: AIOKafkaClient, topic: str, partition: int) -> None:
    """Wait a moment until a client knows a partition, where it was just created.

    Raises:
        LogError: It does not exist.
        TopicAuthorizationFailedError: We may not know of it.
    """
    known: Collection[int] | None = client.cluster.partitions_for_topic(topic)
    if known is not None and partition in known:
        return
    deadline = asyncio.get_running_loop().time() + METADATA_S
    while asyncio.get_running_loop().time() < deadline:
        await client.add_topic(topic)
        await client.force_metadata_update()
        known = client.cluster.partitions_for_topic(topic)
        if known is not None and partition in known:
            return
        if topic in client.cluster.unauthorized_topics:
            raise TopicAuthorizationFailedError(topic)
        await asyncio.sleep(0.05)
    what = f"partition {partition} of topic {topic}" if known else f"topic {topic}"
    raise LogError(f"{what} does not exist", retriable=False, topics=frozenset({topic}))


async def answers(host: str, port: int, *, timeout_s: float = 2.0) -> bool:
    """Say whether a broker listens there and answers a metadata request."""
    try:
        async with asyncio.timeout(timeout_s):
            conn = await create_conn(host, port, request_timeout_ms=int(timeout_s * 1000))
            try:
                await conn.send(MetadataRequest([], allow_auto_topic_creation=False))
            finally:
                conn.close()
    except (OSError, TimeoutError, KafkaError):
        return False
    return True


def own_sticky_assignor() -> type[StickyPartitionAssignor]:
    """Make a sticky assignor of one's own.

    aiokafka keeps a member's last assignment in attributes of the class, so all groups of a process, one per
    model here, would overwrite each other's.
    """

    class OwnStickyAssignor(StickyPartitionAssignor):  # type: ignore[misc]  # aiokafka is untyped
        """aiokafka's, with state of its own."""

        member_assignment = None
        generation = StickyPartitionAssignor.DEFAULT_GENERATION_ID
        _latest_partition_movements = None

    return OwnStickyAssignor
