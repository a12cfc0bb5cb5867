"""Every property of Kafka's clients by its fate: translated, ignored or refused, and why.

Source: Apache Kafka 4.1, consumer, producer, common and SSL configuration; librdkafka for its spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

# A settle's answers for one target go out as one batch, so it is larger than Kafka's default of 16 KiB.
DEFAULT_BATCH_BYTES = 512 * 1024
DEFAULT_REQUEST_BYTES = 1_048_576

Value: TypeAlias = object
Parse: TypeAlias = Callable[[str], Value]


def whole(text: str) -> int:
    """Parse a whole number, 0 or more."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def truth(text: str) -> bool:
    """Parse true or false."""
    return {"true": True, "false": False}[text.lower()]


def one_of(*words: str) -> Parse:
    """Make a parser that takes these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    parse.__doc__ = "one of " + ", ".join(words)
    return parse


def compression(text: str) -> str | None:
    """Parse a codec's name; none is None."""
    return None if text == "none" else str(one_of("gzip", "snappy", "lz4", "zstd")(text))


EXPECTED: Mapping[Parse, str] = {
    whole: "expected a whole number, 0 or more",
    truth: "expected true or false",
    compression: "expected one of none, gzip, snappy, lz4, zstd",
}

# Property → aiokafka's argument, parser, default (None: aiokafka's own).
CLIENT: Mapping[str, tuple[str, Parse, str | None]] = {
    "client.id": ("client_id", str, "headrace"),
    "request.timeout.ms": ("request_timeout_ms", whole, "30000"),
    "metadata.max.age.ms": ("metadata_max_age_ms", whole, "300000"),
    "retry.backoff.ms": ("retry_backoff_ms", whole, "100"),
    "connections.max.idle.ms": ("connections_max_idle_ms", whole, "540000"),
}
# Of every reader, and of group members.
FETCH: Mapping[str, tuple[str, Parse, str | None]] = {
    "fetch.min.bytes": ("fetch_min_bytes", whole, "1"),
    "fetch.max.bytes": ("fetch_max_bytes", whole, "52428800"),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", whole, "500"),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", whole, "1048576"),
    "check.crcs": ("check_crcs", truth, "true"),
    "client.rack": ("client_rack", str, None),
}
GROUP: Mapping[str, tuple[str, Parse, str | None]] = {
    "group.instance.id": ("group_instance_id", str, None),
    "session.timeout.ms": ("session_timeout_ms", whole, "45000"),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", whole, "3000"),
    "max.poll.interval.ms": ("max_poll_interval_ms", whole, "300000"),
}
PRODUCER: Mapping[str, tuple[str, Parse, str | None]] = {
    "compression.type": ("compression_type", compression, None),
    "linger.ms": ("linger_ms", whole, "0"),
    "batch.size": ("max_batch_size", whole, str(DEFAULT_BATCH_BYTES)),
    "max.request.size": ("max_request_size", whole, str(DEFAULT_REQUEST_BYTES)),
    "enable.idempotence": ("enable_idempotence", truth, "false"),
}
SECURITY = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
    }
)
IGNORED: Mapping[str, str] = {
    "max.poll.records": "polls are as large as the batcher takes",
    "retries": "produces are retried until request.timeout.ms",
    "delivery.timeout.ms": "produces are retried until request.timeout.ms",
    "buffer.memory": "what is in flight is bounded by the worker",
    "max.block.ms": "request.timeout.ms bounds it",
    "max.in.flight.requests.per.connection": "one request per broker is in flight, so order holds",
    "reconnect.backoff.ms": "retry.backoff.ms is used",
    "reconnect.backoff.max.ms": "retry.backoff.ms is used",
    "retry.backoff.max.ms": "retry.backoff.ms is used",
    "default.api.timeout.ms": "request.timeout.ms is used",
    "send.buffer.bytes": "the system's default is used",
    "receive.buffer.bytes": "the system's default is used",
    "socket.connection.setup.timeout.ms": "request.timeout.ms is used",
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms is used",
    "client.dns.lookup": "the system's resolver is used",
    "allow.auto.create.topics": "clients never create topics; Headrace creates its own with their settings",
    "exclude.internal.topics": "topics are named, never matched",
    "key.serializer": "Headrace writes bytes",
    "value.serializer": "Headrace writes bytes",
    "key.deserializer": "Headrace reads bytes",
    "value.deserializer": "Headrace reads bytes",
    "metric.reporters": "see Headrace's own metrics",
    "metrics.num.samples": "see Headrace's own metrics",
    "metrics.recording.level": "see Headrace's own metrics",
    "metrics.sample.window.ms": "see Headrace's own metrics",
    "enable.metrics.push": "see Headrace's own metrics",
    "auto.include.jmx.reporter": "see Headrace's own metrics",
    "ssl.protocol": "the newest TLS that both sides know is used",
    "ssl.enabled.protocols": "TLS 1.2 and newer are used",
    "ssl.cipher.suites": "the system's default is used",
    "ssl.provider": "it is Java's",
    "ssl.keymanager.algorithm": "it is Java's",
    "ssl.trustmanager.algorithm": "it is Java's",
    "ssl.secure.random.implementation": "it is Java's",
    "security.providers": "it is Java's",
    "auto.commit.interval.ms": "Headrace commits what is answered, see commit-interval",
    "compression.gzip.level": "the codec's own default is used",
    "compression.lz4.level": "the codec's own default is used",
    "compression.zstd.level": "the codec's own default is used",
    "metadata.max.idle.ms": "only topics that are in use are asked for",
    "metadata.recovery.strategy": "a log that cannot be reached is opened anew, from bootstrap.servers on",
    "metadata.recovery.rebootstrap.trigger.ms": "see metadata.recovery.strategy",
    "share.acknowledgement.mode": "Headrace uses no share groups",
}
IGNORED_FAMILIES: Mapping[str, str] = {
    "partitioner.": "Headrace names the partition of each record",
    "sasl.login.": "user and password need no renewal",
}
REFUSED: Mapping[str, str] = {
    "group.id": "Headrace names its consumer groups <prefix>.<model>",
    "enable.auto.commit": "Headrace commits only what is answered",
    "auto.offset.reset": "Headrace reads its own topics from where it stopped, the first time from their beginning",
    "isolation.level": "Headrace chooses it by what it reads",
    "partition.assignment.strategy": "Headrace uses the sticky assignor",
    "group.protocol": "Headrace uses the classic protocol",
    "group.remote.assignor": "Headrace uses the classic protocol",
    "transactional.id": "Headrace names its transactions",
    "transaction.timeout.ms": "Headrace bounds its transactions",
    "transaction.two.phase.commit.enable": "Headrace bounds its transactions",
    "interceptor.classes": "Java classes cannot be loaded",
    "partitioner.class": "Java classes cannot be loaded; a result goes to its request's partition number",
    "ssl.engine.factory.class": "Java classes cannot be loaded",
    "sasl.client.callback.handler.class": "Java classes cannot be loaded",
    "sasl.login.callback.handler.class": "Java classes cannot be loaded",
    "sasl.login.class": "Java classes cannot be loaded",
    "bootstrap.controllers": "Headrace talks to brokers, name them in bootstrap.servers",
}
REFUSED_FAMILIES: Mapping[str, str] = {
    "sasl.kerberos.": "GSSAPI is not supported; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
    "sasl.oauthbearer.": "OAUTHBEARER is not supported; use PLAIN or SCRAM-SHA-512",
}
HARMLESS_VALUES: Mapping[str, str] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "group.protocol": "classic",
}
