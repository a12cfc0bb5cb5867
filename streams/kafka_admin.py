"""Topics on Kafka: create them with their settings, or say which to create by hand; look at what is there.

Nothing here, and nothing else of ours, lets a metadata request create a topic (FAULTS B104).
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping, Sequence, Set
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.metadata import MetadataRequest
from headrace.schemas.errors import LogError
from headrace.streams.kafka_client import bounded, tame, translated
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, create_rights, topics_rights
from headrace.streams.log import TopicSpec

VISIBLE_S = 15.0  # how long a new topic may take until every broker knows it and its leaders


class KafkaAdmin:
    """Looks at topics and creates them."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Keep the settings; `start` connects."""
        self._settings = settings
        self._admin: AIOKafkaAdminClient | None = None

    async def start(self) -> None:
        """Connect."""
        admin = AIOKafkaAdminClient(**self._settings.client)
        tame(admin._client)  # noqa: SLF001  # it has no option for it
        try:
            await bounded(admin.start(), self._settings.request_timeout_s, "connecting to Kafka")
        except BaseException:
            await admin.close()
            raise
        self._admin = admin

    async def close(self) -> None:
        """Close."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def cluster(self) -> str:
        """Return the cluster's id, ``""`` where the broker tells none."""
        request = MetadataRequest([], allow_auto_topic_creation=False)
        response = await bounded(
            self._running()._send_request(request),  # noqa: SLF001  # see `topics`
            self._settings.request_timeout_s,
            "asking for the cluster's id",
        )
        return str(getattr(response, "cluster_id", None) or "")

    async def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """Return partition counts of the topics that exist, of all or of those named, as of now.

        Raises:
            LogError: Also where nobody may tell us of one of those named; of all, such ones are passed over.
        """
        there, hidden = await self._look(names)
        if hidden and names is not None:
            doing = f"looking at {', '.join(sorted(hidden))}"
            needs = self._settings.needs(*topics_rights(Operation.DESCRIBE, hidden))
            raise translated(TopicAuthorizationFailedError(hidden), doing, needs)
        return there

    async def _look(self, names: Sequence[str] | None) -> tuple[dict[str, int], set[str]]:
        """Return partition counts, and which of those named may not be looked at, whether they exist or not."""
        admin = self._running()

        async def ask() -> tuple[dict[str, int], set[str]]:
            request = MetadataRequest(
                None if names is None else list(names), allow_auto_topic_creation=False
            )
            while True:
                node = admin._client.get_random_node()  # noqa: SLF001  # it has no public way that creates nothing
                try:
                    response = await admin._client.send(node, request)  # noqa: SLF001  # as above
                except KafkaError as exc:
                    if not exc.retriable:
                        raise
                    await admin._client.force_metadata_update()  # noqa: SLF001  # as above
                    await asyncio.sleep(0.05)
                else:
                    return _seen(response)

        if names is not None and not names:
            return {}, set()
        return await bounded(ask(), self._settings.request_timeout_s, "listing topics")

    async def missing(self, names: Set[str]) -> Set[str]:
        """Return those that do not exist."""
        return names - (await self.topics(sorted(names))).keys()

    async def ensure(self, specs: Sequence[TopicSpec]) -> Sequence[str]:
        """Create what is missing; returns a sentence per existing topic that differs.

        Raises:
            LogError: Creation is refused; the sentence has a command for each topic that is missing.
        """
        there, hidden = await self._look([spec.name for spec in specs])
        missing = [spec for spec in specs if spec.name not in there]
        existing = [spec for spec in specs if spec.name in there]
        if missing:
            await self._create(missing, hidden)
        if hidden:
            await self.topics(sorted(hidden))  # says what is missing to look at them
        await self._until_visible([spec.name for spec in specs])
        settings = await self._settings_of([spec.name for spec in existing if spec.settings])
        return [
            sentence
            for spec in existing
            if (sentence := _difference(spec, there[spec.name], settings.get(spec.name)))
        ]

    async def _create(self, specs: Sequence[TopicSpec], hidden: Set[str]) -> None:
        # aiokafka's NewTopic refuses the broker's own default (-1) as a replication factor.
        request = CreateTopicsRequest(
            create_topic_requests=[
                (s.name, s.partitions, s.replication, [], list(s.settings.items())) for s in specs
            ],
            timeout=int(self._settings.request_timeout_s * 1000),
            validate_only=False,
        )
        doing = f"creating {', '.join(spec.name for spec in specs)}"
        response = await bounded(
            self._running()._send_to_controller(request),  # noqa: SLF001  # create_topics() takes NewTopic only
            self._settings.request_timeout_s,
            doing,
        )
        refused: dict[str, str] = {}
        for name, code, *message in response.topic_errors:
            error = kafka_errors.for_code(code)
            if error in RIGHTS:
                rights = create_rights(name, may_exist=name in hidden)
                refused[name] = self._settings.needs().clause(rights)
            elif error not in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
                refused[name] = (message[0] if message else None) or error.__name__
        if refused:
            why = "; ".join(sorted(set(refused.values())))
            commands = "\n".join(self._command(spec) for spec in specs if spec.name in refused)
            raise LogError(
                f"creating {', '.join(sorted(refused))} was refused ({why}); create by hand:\n{commands}",
                retriable=False,
            )

    async def _until_visible(self, names: Sequence[str]) -> None:
        """Wait until every broker that answers knows these topics, also those that somebody else has just created.

        The next question may go to another broker than the last one, and to that one the topic may still be missing.
        """
        brokers = self._running()._client.cluster.brokers()  # noqa: SLF001  # see `topics`
        await asyncio.gather(*[self._until_known(broker.nodeId, names) for broker in brokers])

    async def _until_known(self, node: int, names: Sequence[str]) -> None:
        request = MetadataRequest(list(names), allow_auto_topic_creation=False)
        with contextlib.suppress(
            KafkaError, TimeoutError
        ):  # it is away, and tells nobody anything
            async with asyncio.timeout(VISIBLE_S):
                while True:
                    response = await self._running()._client.send(node, request)  # noqa: SLF001  # see `topics`
                    there, hidden = _seen(response)
                    if set(names) <= there.keys() | hidden:
                        return
                    await asyncio.sleep(0.02)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete topics; those that do not exist are passed over."""
        response = await bounded(
            self._running().delete_topics(list(names)),
            self._settings.request_timeout_s,
            f"deleting {', '.join(names)}",
        )
        for name, code in response.topic_error_codes:
            error = kafka_errors.for_code(code)
            if error not in (kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError):
                needs = self._settings.needs(*topics_rights(Operation.DELETE, [name]))
                raise LogError(
                    translated(error(name), f"deleting {name}", needs).detail, retriable=False
                )
        await bounded(self._until_gone(names), VISIBLE_S, f"deleting {', '.join(names)}")

    async def _until_gone(self, names: Sequence[str]) -> None:
        while await self.topics(names):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)

    async def _settings_of(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return topics' settings; those that the broker does not tell are missing."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        try:
            responses = await bounded(
                self._running().describe_configs(resources),
                self._settings.request_timeout_s,
                "reading topic settings",
            )
        except (LogError, NotImplementedError):
            return {}  # not authorised to look, or not offered: then nothing can be compared
        found: dict[str, Mapping[str, str]] = {}
        for response in responses:
            for code, _, _, name, entries in response.resources:
                if code == 0:
                    found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    def _command(self, spec: TopicSpec) -> str:
        parts = [
            "kafka-topics.sh",
            *("--bootstrap-server", ",".join(self._settings.bootstrap)),
            *("--create", "--topic", spec.name, "--partitions", str(spec.partitions)),
        ]
        if spec.replication > 0:
            parts += ["--replication-factor", str(spec.replication)]
        for key, value in spec.settings.items():
            parts += ["--config", f"{key}={value}"]
        return shlex.join(parts)

    def _running(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            raise LogError("the log is not open", retriable=False)
        return self._admin


LEADER_NOT_AVAILABLE = 5  # the topic is there, a leader is being elected
NOT_ALLOWED = 29  # to look at the topic, if there is one
RIGHTS = (TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError)


def _seen(response: Any) -> tuple[dict[str, int], set[str]]:
    """Return the partition counts that a broker tells, and which topics it tells nothing about."""
    found = response.to_object()["topics"]
    there = {
        topic["topic"]: len(topic["partitions"])
        for topic in found
        if topic["error_code"] in (0, LEADER_NOT_AVAILABLE) and topic["partitions"]
    }
    return there, {topic["topic"] for topic in found if topic["error_code"] == NOT_ALLOWED}


def _difference(spec: TopicSpec, partitions: int, settings: Mapping[str, str] | None) -> str:
    found = []
    if partitions != spec.partitions:
        found.append(f"{partitions} partitions where {spec.partitions} are expected")
    for key, value in spec.settings.items() if settings is not None else ():
        has = settings.get(key) if settings is not None else None
        if has != value:
            found.append(f"{key}={has} where {value} is expected")
    return f"topic {spec.name} has {' and '.join(found)}" if found else ""
