"""What a consumer group has committed, asked without becoming a member: nobody is rebalanced for a look."""

from __future__ import annotations

from collections.abc import Mapping, Set

from aiokafka import AIOKafkaConsumer
from headrace.schemas.record import TP
from headrace.streams.kafka_client import bounded, hush, stop_consumer, tame
from headrace.streams.kafka_group import fetch_committed
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, Resource, Right, topics_rights
from headrace.streams.log import Position


async def committed_positions(
    settings: KafkaSettings, group: str, tps: Set[TP]
) -> Mapping[TP, Position | None]:
    """Return the committed offset and metadata of each partition, None where nothing was committed.

    The embedded broker drops the metadata.

    Raises:
        LogError: The coordinator cannot be reached, or does not let us look (it takes DESCRIBE on the group).
    """
    hush()
    # Without topics it never joins.
    consumer = AIOKafkaConsumer(**settings.client, group_id=group, enable_auto_commit=False)
    tame(consumer._client)  # noqa: SLF001  # it has no option for it
    doing = f"fetching committed offsets of group {group}"
    needs = settings.needs(
        Right(Operation.DESCRIBE, Resource.GROUP, group),
        *topics_rights(Operation.DESCRIBE, {tp.topic for tp in tps}),
    )
    try:
        await bounded(consumer.start(), settings.request_timeout_s, doing, needs)
        return await bounded(
            fetch_committed(consumer._coordinator, group, tps),  # noqa: SLF001  # see `kafka_group`
            settings.request_timeout_s,
            doing,
            needs,
        )
    finally:
        await stop_consumer(consumer)
