"""Topics on several brokers: each broker learns of them on its own, and whoever is asked next may be any."""

import asyncio

import pytest
from aiokafka.protocol.metadata import MetadataRequest
from chaos.scene import CLIENT
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import TopicSpec

pytestmark = pytest.mark.kafka


async def unknown(cluster, node, names):
    """Return the topics that a broker does not know."""
    answer = await cluster.ask_node(node, MetadataRequest(names, allow_auto_topic_creation=False))
    return {topic["topic"] for topic in answer.to_object()["topics"] if topic["error_code"]}


async def test_topics_that_are_ensured_are_known_to_every_broker(three, unique):
    """Two that start together: the one that finds the topics made must not meet a broker without them."""
    cluster, _ = three
    properties = {"bootstrap.servers": cluster.bootstrap, **CLIENT}
    for _ in range(5):
        specs = [TopicSpec(unique("topic"), 6) for _ in range(20)]
        names = [spec.name for spec in specs]

        async def start(names=names, specs=specs):
            async with KafkaLog(properties) as log:
                nodes = await cluster.known()  # to others no client is sent
                await log.ensure(specs)
                return [await unknown(cluster, node, names) for node in nodes]

        for found in await asyncio.gather(start(), start(), start()):
            assert found
            assert not any(found)
