"""Kafka's own property names (`client.properties`, ``HEADRACE_KAFKA_…``) into what aiokafka takes.

Every name of Kafka's is either translated, or ignored with a warning where it changes nothing that one could
notice, or refused with the reason; a name that is not Kafka's is refused with a suggestion. Names of librdkafka
for certificates and passwords are understood, too.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.schemas.errors import ConfigError
from headrace.streams.kafka_names import (
    CLIENT,
    EXPECTED,
    FETCH,
    GROUP,
    HARMLESS_VALUES,
    IGNORED,
    PRODUCER,
    REFUSED,
    SECURITY,
    Parse,
    Value,
)

ENVIRONMENT_PREFIX = "HEADRACE_KAFKA_"
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
    found = {
        name: re.sub(r"\\(.)", r"\1", value)
        for name, value in re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
    }
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
