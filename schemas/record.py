"""The record contract: what a Kafka record of ours looks like, whatever client carries it.

`Record` is the shape of a consumed record (aiokafka's own class fits it, so nothing is copied per record),
`Out` of one to produce. Header names are spelled here and nowhere else (DESIGN §4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

Header: TypeAlias = tuple[str, bytes]
Headers: TypeAlias = Sequence[Header]


class TP(NamedTuple):
    """A topic's partition."""

    topic: str
    partition: int


class Record(Protocol):
    """A consumed record, as the client hands it out; ``timestamp`` in ms since the epoch."""

    @property
    def topic(self) -> str:
        """Topic name."""

    @property
    def partition(self) -> int:
        """Partition number."""

    @property
    def offset(self) -> int:
        """Offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch."""

    @property
    def key(self) -> bytes | None:
        """Key, or None."""

    @property
    def value(self) -> bytes | None:
        """Value; None is a tombstone."""

    @property
    def headers(self) -> Headers:
        """Headers in order; a value may be None on the wire (FAULTS B32)."""


class Out:
    """A record to produce.

    Attributes:
        topic: Target topic.
        partition: Target partition number.
        key: Key or None.
        value: Value or None (a tombstone).
        headers: In order.
    """

    __slots__ = ("headers", "key", "partition", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> None:
        """Keep the parts as they are."""
        self.topic = topic
        self.partition = partition
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        """Show target and sizes."""
        size = "null" if self.value is None else f"{len(self.value)} bytes"
        return f"Out({self.topic}/{self.partition}, key={self.key!r}, {size})"


# Request headers.
CONTENT_TYPE = "content-type"
ACCEPT = "accept"
ID = "id"
MODEL_VERSION = "model-version"
SEQUENCE_ID = "sequence-id"
SEQUENCE_ID_TYPE = "sequence-id-type"
SEQUENCE_START = "sequence-start"
SEQUENCE_END = "sequence-end"
PRIORITY = "priority"
TIMEOUT_US = "timeout-us"
DEADLINE_MS = "deadline-ms"
REPLY_TOPIC = "reply-topic"
REPLY_PARTITION = "reply-partition"
CORRELATION_ID = "correlation-id"
IDEMPOTENCY_KEY = "idempotency-key"
HEADER_LENGTH = "inference-header-content-length"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
CLAIM_CHECK = "claim-check"
# Spring Kafka's request/reply spelling: 4 bytes big-endian partition, opaque correlation id.
SPRING_REPLY_TOPIC = "kafka_replyTopic"
SPRING_REPLY_PARTITION = "kafka_replyPartition"
SPRING_CORRELATION_ID = "kafka_correlationId"
OPAQUE_PREFIX = "x-"
# Result headers.
SOURCE = "source"
MODEL_NAME = "model-name"
STATUS = "status"
REASON = "reason"
ATTEMPT = "attempt"
RESPONSE_INDEX = "response-index"
FINAL = "final"
REPLAYED = "replayed"

AVRO = "application/vnd.headrace.v2+avro"
JSON = "application/json"
BINARY = "application/octet-stream"
PROTOBUF = "application/x-protobuf"
CONTENT_TYPES = (AVRO, JSON, BINARY, PROTOBUF)
