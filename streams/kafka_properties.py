"""Kafka's own property names (`client.properties`, ``HEADRACE_KAFKA_…``) into what aiokafka takes.

Every name of Kafka's is either translated, or ignored with a warning where it changes nothing that one could
notice, or refused with the reason; a name that is not Kafka's is refused with a suggestion. Names of librdkafka
for certificates and passwords are understood, too.

Source: Apache Kafka 4.1, consumer, producer and SSL configuration.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from headrace.schemas.errors import ConfigError

ENVIRONMENT_PREFIX = "HEADRACE_KAFKA_"
DEFAULT_BATCH_BYTES = 512 * 1024
DEFAULT_REQUEST_BYTES = 1_048_576

Value: TypeAlias = object
Parse: TypeAlias = Callable[[str], Value]


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    parse.__doc__ = "one of " + ", ".join(words)
    return parse


def _compression(text: str) -> str | None:
    return None if text == "none" else str(_one_of("gzip", "snappy", "lz4", "zstd")(text))


EXPECTED: Mapping[Parse, str] = {
    _whole: "expected a whole number, 0 or more",
    _truth: "expected true or false",
    _compression: "expected one of none, gzip, snappy, lz4, zstd",
}

# Property → aiokafka's argument, parser, default (None: aiokafka's own).
CLIENT: Mapping[str, tuple[str, Parse, str | None]] = {
    "client.id": ("client_id", str, "headrace"),
    "request.timeout.ms": ("request_timeout_ms", _whole, "30000"),
    "metadata.max.age.ms": ("metadata_max_age_ms", _whole, "300000"),
    "retry.backoff.ms": ("retry_backoff_ms", _whole, "100"),
    "connections.max.idle.ms": ("connections_max_idle_ms", _whole, "540000"),
}
# Of every reader, and of group members.
FETCH: Mapping[str, tuple[str, Parse, str | None]] = {
    "fetch.min.bytes": ("fetch_min_bytes", _whole, "1"),
    "fetch.max.bytes": ("fetch_max_bytes", _whole, "52428800"),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", _whole, "500"),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _whole, "1048576"),
    "check.crcs": ("check_crcs", _truth, "true"),
    "client.rack": ("client_rack", str, None),
}
GROUP: Mapping[str, tuple[str, Parse, str | None]] = {
    "group.instance.id": ("group_instance_id", str, None),
    "session.timeout.ms": ("session_timeout_ms", _whole, "45000"),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", _whole, "3000"),
    "max.poll.interval.ms": ("max_poll_interval_ms", _whole, "300000"),
    "auto.offset.reset": (
        "auto_offset_reset",
        _one_of("earliest", "latest", "none"),
        "earliest",
    ),
}
PRODUCER: Mapping[str, tuple[str, Parse, str | None]] = {
    "compression.type": ("compression_type", _compression, None),
    "linger.ms": ("linger_ms", _whole, "0"),
    "batch.size": ("max_batch_size", _whole, str(DEFAULT_BATCH_BYTES)),
    "max.request.size": ("max_request_size", _whole, str(DEFAULT_REQUEST_BYTES)),
    "enable.idempotence": ("enable_idempotence", _truth, "false"),
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
}
REFUSED: Mapping[str, str] = {
    "group.id": "Headrace names its consumer groups <prefix>.<model>",
    "enable.auto.commit": "Headrace commits only what is answered",
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
    "sasl.kerberos.service.name": "GSSAPI is not supported; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
    "sasl.oauthbearer.token.endpoint.url": "OAUTHBEARER is not supported; use PLAIN or SCRAM-SHA-512",
}
HARMLESS_VALUES: Mapping[str, str] = {"enable.auto.commit": "false", "group.protocol": "classic"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Arguments for aiokafka's classes, by which of them takes them.

    Attributes:
        bootstrap: ``host:port`` of each bootstrap server.
        client: Of every client.
        fetch: Of every consumer.
        group: Of consumers in a group.
        producer: Of producers.
        warnings: A sentence per property that was ignored.
    """

    bootstrap: tuple[str, ...]
    client: Mapping[str, Value]
    fetch: Mapping[str, Value]
    group: Mapping[str, Value]
    producer: Mapping[str, Value]
    warnings: tuple[str, ...] = field(default=())

    @property
    def request_timeout_s(self) -> float:
        """``request.timeout.ms`` in seconds."""
        return float(str(self.client["request_timeout_ms"])) / 1000


def read_properties(text: str, *, file: str = "") -> dict[str, str]:
    r"""Parse Java's properties format: ``name=value``, ``#`` and ``!`` comments, ``\\`` at the end continues.

    Raises:
        ConfigError: A line has no name.
    """
    properties: dict[str, str] = {}
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    for number, raw in enumerate(joined.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"([^=:\s]+)\s*[=:\s]\s*(.*)$", line) or re.match(r"([^=:\s]+)()$", line)
        if match is None:
            raise ConfigError("expected name=value", file=file, field=f"line {number}", value=line)
        name, value = match.groups()
        properties[name] = re.sub(r"\\(.)", r"\1", value)
    return properties


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Collect ``HEADRACE_KAFKA_BOOTSTRAP_SERVERS`` and the like as ``bootstrap.servers`` and the like."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def translate(properties: Mapping[str, str], *, file: str = "") -> KafkaSettings:
    """Translate properties by Kafka's names.

    Raises:
        ConfigError: A name is unknown (with a suggestion), refused (with the reason), or a value is malformed.
    """
    warnings = _checked(properties, file)
    servers = tuple(
        s.strip() for s in properties.get("bootstrap.servers", "").split(",") if s.strip()
    )
    if not servers:
        raise ConfigError(
            "name at least one broker as host:port", file=file, field="bootstrap.servers"
        )
    for server in servers:
        if not re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\s/]+):\d{1,5}", server):
            raise ConfigError(
                "expected host:port", file=file, field="bootstrap.servers", value=server
            )
    client = _arguments(CLIENT, properties, file)
    client["bootstrap_servers"] = list(servers)
    client |= _security(properties, file)
    producer = _arguments(PRODUCER, properties, file)
    producer["max_batch_size"] = min(
        int(str(producer["max_batch_size"])), int(str(producer["max_request_size"]))
    )
    return KafkaSettings(
        bootstrap=servers,
        client=client,
        fetch=_arguments(FETCH, properties, file),
        group=_arguments(GROUP, properties, file),
        producer=producer,
        warnings=tuple(warnings),
    )


def _checked(properties: Mapping[str, str], file: str) -> list[str]:
    translated = {*CLIENT, *FETCH, *GROUP, *PRODUCER, *SECURITY, "bootstrap.servers", "acks"}
    warnings = []
    for name, value in properties.items():
        if name in REFUSED and HARMLESS_VALUES.get(name) != value:
            raise ConfigError(
                f"cannot be set: {REFUSED[name]}", file=file, field=name, value=_shown(name, value)
            )
        if name in IGNORED:
            warnings.append(f"Kafka property {name} is ignored: {IGNORED[name]}")
        elif name not in translated and name not in REFUSED:
            known = sorted({*translated, *IGNORED, *REFUSED})
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"is no Kafka property{hint}", file=file, field=name)
    if properties.get("acks", "all") not in ("all", "-1"):
        raise ConfigError(
            "expected all: an answer that is not on every in-sync replica could be lost",
            file=file,
            field="acks",
            value=properties["acks"],
        )
    return warnings


def _arguments(
    table: Mapping[str, tuple[str, Parse, str | None]], properties: Mapping[str, str], file: str
) -> dict[str, Value]:
    arguments: dict[str, Value] = {}
    for name, (argument, parse, default) in table.items():
        text = properties.get(name, default)
        if text is None:
            continue
        try:
            arguments[argument] = parse(text.strip())
        except (ValueError, KeyError) as exc:
            expected = EXPECTED.get(parse) or f"expected {parse.__doc__}"
            raise ConfigError(expected, file=file, field=name, value=text) from exc
    return arguments


def _security(properties: Mapping[str, str], file: str) -> dict[str, Value]:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"expected one of {', '.join(PROTOCOLS)}",
            file=file,
            field="security.protocol",
            value=protocol,
        )
    arguments: dict[str, Value] = {"security_protocol": protocol}
    if protocol.startswith("SASL"):
        arguments |= _sasl(properties, file)
    elif stray := [n for n in properties if n.startswith("sasl.")]:
        raise ConfigError(
            f"needs security.protocol = SASL_SSL or SASL_PLAINTEXT, which is {protocol}",
            file=file,
            field=stray[0],
        )
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _tls(properties, file)
    return arguments


def _sasl(properties: Mapping[str, str], file: str) -> dict[str, Value]:
    name = "sasl.mechanisms" if "sasl.mechanisms" in properties else "sasl.mechanism"
    mechanism = properties.get(name, "")
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"expected one of {', '.join(MECHANISMS)}", file=file, field=name, value=mechanism
        )
    jaas = properties.get("sasl.jaas.config", "")
    found = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', jaas))
    user = properties.get("sasl.username", found.get("username"))
    password = properties.get("sasl.password", found.get("password"))
    if user is None or password is None:
        raise ConfigError(
            'expected …LoginModule required username="…" password="…";'
            " (or sasl.username and sasl.password)",
            file=file,
            field="sasl.jaas.config",
        )
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def _tls(properties: Mapping[str, str], file: str) -> ssl.SSLContext:
    for store in ("truststore", "keystore"):
        name = f"ssl.{store}.location"
        kind = properties.get(f"ssl.{store}.type", "PEM" if name in properties else "")
        java = properties.get(name, "").endswith((".jks", ".p12", ".pfx"))
        if name in properties and (kind.upper() != "PEM" or java):
            raise ConfigError(
                f"Java key stores cannot be read; export it as PEM and set ssl.{store}.type=PEM",
                file=file,
                field=name,
                value=properties[name],
            )
    context = _trusting(properties, file)
    # Kafka's own way to say that the host name is not to be checked is the empty algorithm.
    if properties.get("ssl.endpoint.identification.algorithm", "https") in ("", "none"):
        context.check_hostname = False
    _present_certificate(context, properties, file)
    return context


def _trusting(properties: Mapping[str, str], file: str) -> ssl.SSLContext:
    name = next(
        (n for n in ("ssl.ca.location", "ssl.truststore.location") if n in properties), None
    )
    try:
        if name is not None:
            return ssl.create_default_context(cafile=properties[name])
        return ssl.create_default_context(cadata=properties.get("ssl.truststore.certificates"))
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"expected a file of PEM certificates ({exc})",
            file=file,
            field=name or "ssl.truststore.certificates",
            value=properties.get(name or "", ""),
        ) from exc


def _present_certificate(
    context: ssl.SSLContext, properties: Mapping[str, str], file: str
) -> None:
    if "ssl.keystore.key" in properties or "ssl.keystore.certificate.chain" in properties:
        raise ConfigError(
            "PEM text is not taken here; put key and chain into a file and name it in"
            " ssl.keystore.location",
            file=file,
            field="ssl.keystore.key",
        )
    name = next(
        (n for n in ("ssl.certificate.location", "ssl.keystore.location") if n in properties), None
    )
    if name is None:
        return
    password = properties.get("ssl.key.password", properties.get("ssl.keystore.password"))
    try:
        context.load_cert_chain(
            Path(properties[name]), properties.get("ssl.key.location"), password=password or ""
        )
    except OSError as exc:
        raise ConfigError(
            f"expected PEM files of certificate chain and key ({exc})",
            file=file,
            field=name,
            value=properties[name],
        ) from exc


def _shown(name: str, value: str) -> str:
    return "…" if "password" in name or "jaas" in name else value
