"""Partitions that end in transactions, aborted and open ones: reading them ends all the same (FAULTS B24)."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Span, TopicSpec
from log_kit import join, read, records_of

pytestmark = pytest.mark.kafka
AT_ONCE_S = 5.0


@pytest.fixture
async def log(kafka_properties):
    """An open log."""
    async with KafkaLog(kafka_properties) as log:
        yield log


@pytest.fixture
async def state(log, unique):
    """A compacted topic of one partition that begins with two plain records."""
    name = unique("state")
    await log.ensure([TopicSpec(name, 1, {"cleanup.policy": "compact"})])
    async with log.publisher() as publisher:
        await publisher.publish([Out(name, 0, b"%d" % i, b"plain") for i in range(2)])
    return name


@asynccontextmanager
async def transactional(kafka_properties, unique):
    """Run somebody else's transactional producer."""
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_properties["bootstrap.servers"],
        transactional_id=unique("tx"),
        transaction_timeout_ms=60_000,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer, topic, value, count):
    for i in range(count):
        await producer.send_and_wait(topic, value, key=b"%d" % i, partition=0)


async def read_to_the_end(log, topic, start=EARLIEST):
    """Read to the end as of now within a bound; returns values and the final position."""
    tp, got = TP(topic, 0), []
    async with (
        asyncio.timeout(AT_ONCE_S),
        log.reader({tp: Span(start, LATEST)}, committed=True) as reader,
    ):
        while not reader.done():
            got += records_of(await reader.poll(100, AT_ONCE_S))
        return [record.value for record in got], reader.positions()[tp]


async def test_B24_a_state_partition_that_ends_in_an_aborted_transaction_is_read_to_its_end(
    log, state, kafka_properties, unique
):
    """Nothing aborted comes out, and nobody waits for records that never come."""
    async with transactional(kafka_properties, unique) as producer:
        await producer.begin_transaction()
        await send(producer, state, b"committed", 2)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await send(producer, state, b"aborted", 3)
        await producer.abort_transaction()
        values, position = await read_to_the_end(log, state)
    assert values == [b"plain"] * 2 + [b"committed"] * 2
    # Two plain ones, two and a marker, three and a marker.
    assert position == 9
    assert await read_to_the_end(log, state, start=5) == ([], 9)


async def test_B24_an_open_transaction_at_the_end_is_not_waited_for(
    log, state, kafka_properties, unique
):
    """The last stable offset is the end: what is open, or committed behind it, belongs to the next reader."""
    async with transactional(kafka_properties, unique) as producer:
        await producer.begin_transaction()
        await send(producer, state, b"aborted", 3)
        await producer.abort_transaction()
        async with transactional(kafka_properties, unique) as other:
            await other.begin_transaction()
            await send(other, state, b"open", 1)
            await producer.begin_transaction()
            await send(producer, state, b"behind", 1)
            await producer.commit_transaction()
            assert await read_to_the_end(log, state) == ([b"plain"] * 2, 6)
            await other.commit_transaction()
    values, position = await read_to_the_end(log, state)
    assert values == [b"plain"] * 2 + [b"open", b"behind"]
    assert position == 10


async def test_P1_a_group_member_is_past_the_marker_at_the_end(
    log, state, kafka_properties, unique
):
    """Nothing is handed out of it, and the position reaches the end all the same."""
    async with transactional(kafka_properties, unique) as producer, producer.transaction():
        await send(producer, state, b"committed", 1)
    _worker, source = join(log, unique("g"), state)
    tp = TP(state, 0)
    async with source:
        await read(source, 3)
        end = (await source.end_offsets({tp}))[tp]
        assert end == 4
        async with asyncio.timeout(AT_ONCE_S):
            while source.position(tp) < end:
                assert not await source.poll(1, 0.1)
        assert source.position(tp) == end
