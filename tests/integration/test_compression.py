"""``compression.type`` by Kafka's own property: every codec both ways, with our client and with Kafka's own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import brokers
import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import LogError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, TP, Out
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Span, TopicSpec
from headrace.streams.topology import Topology
from service_kit import Tap, loaded, working, write_models

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's number of each, in the attributes of a batch."""

BROKERS = [
    pytest.param("embedded", marks=pytest.mark.embedded),
    pytest.param("kafka", marks=pytest.mark.kafka),
]
SOURCE = Path(__file__).parents[1] / "Compression.java"
RECORDS = [
    (b"k%d" % number, bytes([number]) * size, [("x-n", b"%d" % number)])
    for number, size in enumerate((1, 10, 1_000, 200_000, 70_000))
]
"""Key, value and headers; the values shrink well, and some are larger than a codec's block."""

ECHO = """
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
"""


@pytest.fixture(params=BROKERS)
def properties(request: pytest.FixtureRequest) -> Mapping[str, str]:
    return request.getfixturevalue(f"{request.param}_properties")


@asynccontextmanager
async def topics(properties: Mapping[str, str], *names: str) -> AsyncIterator[KafkaLog]:
    """Open a log and make topics of one partition."""
    async with KafkaLog(properties) as log:
        await log.ensure([TopicSpec(name, 1) for name in names])
        yield log


async def publish(properties: Mapping[str, str], codec: str, topic: str) -> None:
    """Write the records as Headrace does."""
    async with (
        KafkaLog({**properties, "compression.type": codec}) as log,
        log.publisher() as publisher,
    ):
        await publisher.publish([Out(topic, 0, key, value, h) for key, value, h in RECORDS])


async def read(log: KafkaLog, topic: str) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    """Return what a topic holds, as Headrace reads it."""
    found = []
    async with log.reader({TP(topic, 0): Span(EARLIEST, LATEST)}) as reader:
        while not reader.done():
            for block in await reader.poll(1000, 5.0):
                found += [(r.key, r.value, list(r.headers)) for r in block.records]
    return found


async def codecs_in(properties: Mapping[str, str], topic: str) -> set[int]:
    """Return the codecs of the batches that the broker hands out, as they are on the wire."""
    consumer = AIOKafkaConsumer(bootstrap_servers=properties["bootstrap.servers"])
    await consumer.start()
    try:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        await consumer.position(tp)
        client = consumer._client
        node = client.cluster.leader_for_partition(tp)
        asked = FetchRequest(500, 1, 50_000_000, 0, [(topic, [(0, 0, 50_000_000)])], rack_id="")
        response = await client.send(node, asked)
        records = MemoryRecords(response.topics[0][1][0][-1])
        found = set()
        while (batch := records.next_batch()) is not None:
            found.add(batch.compression_type)
        return found
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", CODECS)
async def test_what_we_compress_is_compressed_in_the_log_and_comes_back(properties, codec, unique):
    topic = unique(codec)
    async with topics(properties, topic) as log:
        await publish(properties, codec, topic)
        assert await codecs_in(properties, topic) == {CODECS[codec]}
        assert await read(log, topic) == RECORDS


async def test_without_the_property_nothing_is_compressed(properties, unique):
    topic = unique("plain")
    async with topics(properties, topic) as log:
        await publish(properties, "none", topic)
        assert await codecs_in(properties, topic) == {0}
        assert await read(log, topic) == RECORDS


async def test_one_topic_may_hold_every_codec(properties, unique):
    topic = unique("mixed")
    async with topics(properties, topic) as log:
        for codec in (*CODECS, "none"):
            await publish(properties, codec, topic)
        assert await codecs_in(properties, topic) == {0, *CODECS.values()}
        assert await read(log, topic) == RECORDS * 5


@pytest.mark.kafka
async def test_kafkas_own_client_reads_ours_and_we_read_its(kafka_properties, unique):
    """Java's libraries for the codecs are others than Python's: snappy has two framings, lz4 a checksum."""
    javac = shutil.which("javac")
    if javac is None:
        brokers.lacking("no javac: a JDK is needed to run Kafka's own client")
    names = {codec: (unique(codec), unique(f"{codec}-java")) for codec in CODECS}
    async with topics(
        kafka_properties, *(name for pair in names.values() for name in pair)
    ) as log:
        arguments = [kafka_properties["bootstrap.servers"]]
        for codec, (ours, theirs) in names.items():
            await publish(kafka_properties, codec, ours)
            arguments += [codec, ours, theirs, str(len(RECORDS))]
        process = await asyncio.create_subprocess_exec(
            *("java", "-Xmx256m", "-cp", f"{brokers.jars()}/*", str(SOURCE), *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 120)
        assert out.decode().split("\n")[:-1] == [f"{codec} {len(RECORDS)}" for codec in CODECS], (
            err
        )
        for codec, (_, theirs) in names.items():
            assert await codecs_in(kafka_properties, theirs) == {CODECS[codec]}
            assert await read(log, theirs) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
async def test_a_worker_reads_and_writes_compressed_records(
    properties, codec, unique, tmp_path: Path
):
    """A request that another client has compressed; results and commits of a worker that compresses, too."""
    topology = Topology(prefix=unique("packed"), partitions=1, reply_partitions=1)
    root = write_models(tmp_path / "models", {"echo": ECHO})
    array = np.zeros(20_000, np.float32)
    request = InferRequest((Tensor("INPUT0", Datatype.FP32, array.shape, array.tobytes()),))
    value, headers = encode_request(request, AVRO)
    async with (
        KafkaLog({**properties, "compression.type": codec}) as log,
        loaded(root) as repository,
        working(log, repository, topology),
        Tap(log, topology.results("echo")) as tap,
    ):
        topic = topology.requests("echo")
        async with AIOKafkaProducer(
            bootstrap_servers=properties["bootstrap.servers"], compression_type=codec
        ) as producer:
            sent = await producer.send_and_wait(topic, value, partition=0, headers=headers)
        source = f"{topic}/0/{sent.offset}"
        await tap.answered([source])
        (answer,) = tap.by_source()[source]
        outputs = decode_response(answer.value, answer.headers).outputs
        assert np.array_equal(outputs[0].numpy(), array)
        assert await codecs_in(properties, topology.results("echo")) == {CODECS[codec]}


async def test_B57_the_limit_counts_before_compression(properties, unique):
    """2 MB of zeros are a few kB in the log, and are refused all the same: aiokafka looks at what it is given."""
    topic = unique("zeros")
    async with topics(properties, topic):
        limit = {"compression.type": "zstd", "max.request.size": "1000000"}
        async with (
            KafkaLog({**properties, **limit}) as log,
            log.publisher() as publisher,
        ):
            with pytest.raises(LogError, match=r"above the limit of 1000000 bytes .*max\.request"):
                await publisher.publish([Out(topic, 0, None, bytes(2_000_000))])
            await publisher.publish([Out(topic, 0, None, bytes(900_000))])
