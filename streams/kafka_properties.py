"""Kafka's own property names (`client.properties`, ``HEADRACE_KAFKA_…``) into what aiokafka takes.

Every name of Kafka's is either translated, or ignored with a warning where it changes nothing that one could
notice, or refused with the reason; a name that is not Kafka's is refused with a suggestion. Names of librdkafka
for certificates and passwords are understood, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.errors import ConfigError
from headrace.streams.kafka_names import (
    CLIENT,
    EXPECTED,
    FETCH,
    GROUP,
    HARMLESS_VALUES,
    IGNORED,
    IGNORED_FAMILIES,
    PRODUCER,
    REFUSED,
    REFUSED_FAMILIES,
    SECURITY,
    Parse,
    Value,
)
from headrace.streams.kafka_rights import Needs, Operation, Right
from headrace.streams.kafka_security import principal_of, security

ENVIRONMENT_PREFIX = "HEADRACE_KAFKA_"
SECRET_WORDS = ("password", "passphrase", "jaas", "secret", "key")
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Arguments for aiokafka's classes, by which of them takes them.

    Attributes:
        bootstrap: ``host:port`` of each bootstrap server.
        client: Of every client; the password is in here, so it is never shown.
        fetch: Of every consumer.
        group: Of consumers in a group.
        producer: Of producers.
        principal: Whom brokers take us for, as far as the properties say.
        warnings: A sentence per property that was ignored.
    """

    bootstrap: tuple[str, ...]
    client: Mapping[str, Value] = field(repr=False)
    fetch: Mapping[str, Value]
    group: Mapping[str, Value]
    producer: Mapping[str, Value]
    principal: str = ""
    warnings: tuple[str, ...] = field(default=())

    def needs(self, *rights: Right, others: Operation | None = None) -> Needs:
        """Return what our principal needs for something, to be named where brokers refuse it; see `Needs`."""
        return Needs(self.principal, rights, others)

    @property
    def request_timeout_s(self) -> float:
        """``request.timeout.ms`` in seconds."""
        return float(str(self.client["request_timeout_ms"])) / 1000


def connection_arguments(settings: KafkaSettings) -> dict[str, Any]:
    """Return the arguments of one bare connection to a broker, as `aiokafka.conn.create_conn` takes them."""
    arguments: dict[str, Any] = dict(settings.client)
    for name in ("bootstrap_servers", "metadata_max_age_ms", "retry_backoff_ms"):
        arguments.pop(name, None)
    arguments["max_idle_ms"] = arguments.pop("connections_max_idle_ms")
    return arguments


def read_properties(text: str, *, file: str = "") -> dict[str, str]:
    r"""Parse Java's properties format: ``name=value``, ``#`` and ``!`` comments, ``\\`` escapes and continues lines.

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
            # Not shown: where a line break is not escaped it may be half of a password.
            raise ConfigError("expected name=value", file=file, field=f"line {number}")
        name, value = match.groups()
        properties[name] = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, value)
    return properties


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what[1:], 16)) if len(what) > 1 else CONTROLS.get(what, what)


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
    client |= security(properties, file)
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
        principal=principal_of(properties, client),
        warnings=tuple(warnings),
    )


def _checked(properties: Mapping[str, str], file: str) -> list[str]:
    translated = {*CLIENT, *FETCH, *GROUP, *PRODUCER, *SECURITY, "bootstrap.servers", "acks"}
    warnings = []
    for name, value in properties.items():
        if name in translated:
            continue
        refused = REFUSED.get(name) or _of_family(name, REFUSED_FAMILIES)
        ignored = IGNORED.get(name) or _of_family(name, IGNORED_FAMILIES)
        if refused:
            if HARMLESS_VALUES.get(name) != value:
                shown = _shown(name, value)
                raise ConfigError(f"cannot be set: {refused}", file=file, field=name, value=shown)
        elif ignored:
            warnings.append(f"Kafka property {name} is ignored: {ignored}")
        else:
            near = difflib.get_close_matches(name, sorted({*translated, *IGNORED, *REFUSED}), 1)
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


def _of_family(name: str, families: Mapping[str, str]) -> str:
    return next((why for start, why in families.items() if name.startswith(start)), "")


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


def _shown(name: str, value: str) -> str:
    return "…" if any(word in name for word in SECRET_WORDS) else value
