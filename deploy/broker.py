"""Which broker a process talks to: the embedded one, or the Kafka that the settings name."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType

from headrace.deploy.settings import Settings, option_name, variable_name
from headrace.deploy.variables import kafka_variables
from headrace.schemas.errors import ConfigError
from headrace.streams.embedded import HOST, EmbeddedBroker
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import from_environment, read_properties
from headrace.streams.registry_settings import registry_properties
from headrace.streams.topology import SESSION_TIMEOUT_MS, MappedTopics, Topology

EMBEDDED_PROPERTIES = {"max.request.size": str(8_000_000)}
"""The embedded broker takes larger records than Kafka's default; images fit."""


def kafka_properties(settings: Settings) -> dict[str, str]:
    """Return the Kafka properties that the settings give: file, then environment, then options, the last wins.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    return registry_properties(_properties(settings))[1]


def schema_registry_properties(settings: Settings) -> dict[str, str]:
    """Return the properties of a Schema Registry that stand among them, without their prefix; none where none do.

    Raises:
        ConfigError: As `kafka_properties`.
    """
    return registry_properties(_properties(settings))[0]


def _properties(settings: Settings) -> dict[str, str]:
    properties: dict[str, str] = {}
    path = settings.kafka_config
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"the file cannot be read: {exc}", field=option_name("kafka_config"), value=path
            ) from exc
        properties |= read_properties(text, file=str(path))
    properties |= from_environment(kafka_variables())
    if settings.bootstrap_servers:
        properties["bootstrap.servers"] = settings.bootstrap_servers
    if settings.group_instance_id:
        properties["group.instance.id"] = settings.group_instance_id
    return properties


def named_kafka(settings: Settings) -> dict[str, str]:
    """Return the properties of the Kafka that the settings name.

    Raises:
        ConfigError: None is named, or the file of properties is wrong.
    """
    properties = kafka_properties(settings)
    if "bootstrap.servers" not in properties and settings.kafka_config is not None:
        raise ConfigError(
            f"expected bootstrap.servers in it, or {option_name('bootstrap_servers')} host:port",
            field=option_name("kafka_config"),
            value=settings.kafka_config,
        )
    if "bootstrap.servers" not in properties:
        raise ConfigError(
            f"no Kafka is named: give {option_name('bootstrap_servers')} host:port, "
            f"{variable_name('bootstrap_servers')}, or {option_name('kafka_config')} FILE with "
            "bootstrap.servers in it"
        )
    return properties


def open_log(properties: Mapping[str, str], settings: Settings) -> KafkaLog:
    """Return the log on a Kafka; entering it connects.

    Raises:
        ConfigError: A property is wrong.
    """
    return KafkaLog(
        properties,
        commit_interval_ms=settings.commit_interval_ms,
        revoke_grace_s=settings.revoke_grace_secs,
        file="" if settings.kafka_config is None else str(settings.kafka_config),
    )


def is_embedded(settings: Settings) -> bool:
    """Whether the settings name no Kafka, so that the embedded broker serves.

    Raises:
        ConfigError: A file of properties is given without brokers in it: whoever has one means a Kafka of their own.
    """
    if settings.kafka_config is not None:
        named_kafka(settings)
    return "bootstrap.servers" not in kafka_properties(settings)


def embedded_broker(settings: Settings) -> EmbeddedBroker:
    """Return the embedded broker; entering it starts it.

    The default port is Kafka's own, so that examples work as written; where it is taken another one does as well,
    since nobody asked for it. A port that was asked for is used or refused.
    """
    port = settings.broker_port
    if "broker_port" not in settings.model_fields_set and not _is_free(port):
        port = 0
    return EmbeddedBroker(port=port)


def embedded_properties(broker: EmbeddedBroker, settings: Settings) -> dict[str, str]:
    """Return the Kafka properties of clients of the embedded broker; what the settings say of them wins."""
    return {**EMBEDDED_PROPERTIES, **broker.properties, **kafka_properties(settings)}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def topology_of(
    settings: Settings, mapped: Mapping[str, MappedTopics] = MappingProxyType({})
) -> Topology:
    """Return the topic names of these settings; ``mapped`` are those of models on topics of other names."""
    own = (f"{settings.topic_prefix}.*",) if settings.allow_reply_topics else ()
    session = kafka_properties(settings).get("session.timeout.ms", "")
    return Topology(
        # A value that is no number is refused where the client's properties are read.
        session_timeout_ms=int(session) if session.isdecimal() else SESSION_TIMEOUT_MS,
        prefix=settings.topic_prefix,
        partitions=settings.partitions,
        mapped=mapped,
        reply_topics=own + settings.allow_reply_topics,
    )
