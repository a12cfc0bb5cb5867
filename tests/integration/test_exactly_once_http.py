"""Calls over HTTP to a model that is delivered exactly once on Apache Kafka: replies follow commits (P-12, P-13)."""

from __future__ import annotations

import asyncio
import statistics
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import REPLY_TOPIC, TP, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import translate
from headrace.streams.kafka_transaction import KafkaTransactionalProducer
from headrace.streams.kafka_transaction_wire import TransactionWire
from headrace.streams.log import LATEST, Log, Mode, Span, TopicSpec
from headrace.streams.topology import Topology
from service_kit import Producer, Service, Tap, serving, until, write_models

pytestmark = pytest.mark.kafka

ECHO = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
SANE_S = 1.0
"""Median of a call on a machine that does much else; the broker's own part is some milliseconds."""


async def ask(session: aiohttp.ClientSession, url: str, value: float) -> float:
    """Call once; returns how long it took, seconds."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    begun = asyncio.get_running_loop().time()
    async with session.post(f"{url}/v2/models/m/infer", json={"inputs": [tensor]}) as response:
        assert response.status == 200, await response.text()
        (output,) = (await response.json())["outputs"]
    assert output["data"] == [value]
    return asyncio.get_running_loop().time() - begun


def record_of(topic: str, partition: int, value: float, reply_topic: str = "") -> Out:
    tensor = Tensor.from_numpy("INPUT0", np.array([[value]], np.float32))
    raw, headers = encode_request(InferRequest((tensor,)))
    named = [(REPLY_TOPIC, reply_topic.encode())] if reply_topic else []
    return Out(topic, partition, None, raw, [*headers, *named])


@asynccontextmanager
async def exactly_once(
    properties: Mapping[str, str], root: Path, *models: str
) -> AsyncIterator[Service]:
    """Serve models exactly once, with a gateway."""
    topology = Topology(prefix=f"e{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=1)
    write_models(root, dict.fromkeys(models, ECHO))
    async with (
        KafkaLog(properties) as log,
        serving(log, root, topology, delivery=Mode.EXACTLY_ONCE) as service,
    ):
        yield service


def outcomes(service: Service, outcome: str) -> float:
    """Return how many of the model's transactions ended so."""
    labels = {"model": "m", "outcome": outcome}
    return service.worker.registry.get_sample_value("headrace_transactions_total", labels) or 0.0


async def test_P13_a_call_is_answered_behind_its_commit_and_soon(kafka_properties, tmp_path):
    """One after the other, then many at once: each has one transaction or shares it, and none waits for an interval."""
    async with (
        exactly_once(kafka_properties, tmp_path, "m") as service,
        aiohttp.ClientSession() as session,
    ):
        took = [await ask(session, service.url, float(value)) for value in range(30)]
        await until(lambda: outcomes(service, "committed") >= 30, "a transaction of each")
        await asyncio.gather(*[ask(session, service.url, float(v)) for v in range(100, 150)])
        assert outcomes(service, "aborted") == outcomes(service, "fenced") == 0
    print(f"alone: p50 {statistics.median(took) * 1000:.1f} ms")  # noqa: T201  # for whoever measures
    assert statistics.median(took) < SANE_S


async def steal(service: Service, properties: Mapping[str, str]) -> None:
    """Take the transactional ids of a model's partitions, as a zombie that starts late does."""
    group, requests = service.topology.group("m"), service.topology.requests("m")
    wire = TransactionWire(translate(properties))
    for partition in range(2):
        thief = KafkaTransactionalProducer(wire, group, TP(requests, partition), timeout_ms=10_000)
        await thief.start()
        await thief.close()
    await wire.close()


async def test_P13_a_call_whose_transaction_is_fenced_gets_one_reply(kafka_properties, tmp_path):
    """What ran first is committed nowhere and replied nowhere; the second try's reply is the only one."""
    async with (
        exactly_once(kafka_properties, tmp_path, "m") as service,
        Tap(service.log, service.topology.replies) as tap,
        aiohttp.ClientSession() as session,
    ):
        for value in range(5):
            await steal(service, kafka_properties)
            await ask(session, service.url, float(value))
        await until(lambda: len(tap.by_source()) == 5, "every reply")
        assert outcomes(service, "fenced") > 0
        await until(lambda: outcomes(service, "committed") >= 5, "a transaction of each")
        assert [len(replies) for replies in tap.by_source().values()] == [1] * 5


async def feed(producer: Producer, topic: str) -> None:
    """Send records to a model for ever, in both partitions, and leave the loop that all share to others in between."""
    while True:
        await producer.send([record_of(topic, number % 2, float(number)) for number in range(20)])
        await asyncio.sleep(0.01)


async def test_P12_a_busy_neighbour_does_not_hold_replies_back(kafka_properties, tmp_path):
    """Its transactions are short and side by side with the call's: nothing waits for its interval."""
    async with (
        exactly_once(kafka_properties, tmp_path, "m", "busy") as service,
        aiohttp.ClientSession() as session,
    ):
        producer = Producer(service.log, kafka_properties)
        feeding = asyncio.create_task(feed(producer, service.topology.requests("busy")))
        try:
            await until(lambda: service.counts("busy").success > 0, "the neighbour's work")
            took = [await ask(session, service.url, float(value)) for value in range(30)]
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
    print(f"beside a busy one: p50 {statistics.median(took) * 1000:.1f} ms")  # noqa: T201  # as above
    assert statistics.median(took) < SANE_S


async def read_of(log: Log, topic: str, sources: Sequence[str]) -> dict[str, list[Record]]:
    """Read what is committed of a topic until each source has an answer there."""
    async with Tap(log, topic) as tap:
        await tap.answered(sources)
        return tap.by_source()


async def until_end(log: Log, tp: TP, end: int) -> None:
    """Wait until a partition's last stable offset is there, and no further."""
    found = 0
    async with asyncio.timeout(30):
        while found < end:
            async with log.reader({tp: Span(LATEST)}, committed=True) as reader:
                found = reader.positions()[tp]
    assert found == end


async def test_P13_a_reply_topic_of_the_clients_own_stays_inside_of_the_transaction(
    kafka_properties, tmp_path
):
    """Its answers lie before their transaction's marker, so the topic's end is one beyond each cut's last."""
    async with exactly_once(kafka_properties, tmp_path, "m") as service:
        topology = service.topology
        own = f"{topology.prefix}.own-replies"
        await service.log.ensure([TopicSpec(own, 1)])
        producer = Producer(service.log, kafka_properties)
        sources = await producer.send([record_of(topology.requests("m"), 0, 1.0, own)])
        found = await read_of(service.log, own, sources)
        assert [len(found[source]) for source in sources] == [1]
        await until_end(service.log, TP(own, 0), 2)
