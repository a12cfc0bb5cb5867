"""One producer's transactions on a real broker, in both of Kafka's protocols and over connections that break."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import translate
from headrace.streams.kafka_transaction import KafkaTransactionalProducer
from headrace.streams.kafka_transaction_dialects import First, Second
from headrace.streams.kafka_transaction_wire import LANES, TransactionWire
from headrace.streams.log import Position, TopicSpec
from headrace.streams.transaction import ProducerFenced
from log_kit import PATIENCE_S, outs, values

pytestmark = pytest.mark.kafka
LARGE = b"x" * 300_000


@pytest.fixture
async def log(kafka_properties):
    """An open log."""
    async with KafkaLog(kafka_properties) as log:
        yield log


@pytest.fixture
async def target(log, unique):
    """A topic for requests, whose partition owns the producer, and one of two partitions for what it writes."""
    requests, target = unique("requests"), unique("target")
    await log.ensure([TopicSpec(requests, 1), TopicSpec(target, 2)])
    return requests, target


@pytest.fixture(params=[First, Second])
async def wire(request, kafka_properties):
    """Speak one of the protocols, whichever the cluster has."""
    wire = TransactionWire(translate(kafka_properties))
    await wire.start()
    wire.dialect = request.param()
    yield wire
    await wire.close()


@asynccontextmanager
async def producing(wire, requests):
    """Take a partition's transactional id over."""
    producer = KafkaTransactionalProducer(wire, "g", TP(requests, 0), timeout_ms=30_000)
    async with asyncio.timeout(PATIENCE_S):
        await producer.start()
    try:
        yield producer
    finally:
        await producer.close()


async def until_values(log, topic, partition, expected):
    """Wait until this is what is committed: a commit is answered before its markers are written."""
    found = None
    async with asyncio.timeout(PATIENCE_S):
        while found is None or len(found) < len(expected):
            found = await values(log, topic, partition=partition)
    assert found == expected


async def transact(producer, target, value, *, partitions=(0, 1)):
    """Commit a position and a record for each partition."""
    async with asyncio.timeout(PATIENCE_S):
        await producer.begin()
        await producer.send_position(Position(value + 1, "", 1))
        for partition in partitions:
            await producer.send(outs(target, partition, 1, start=value))
        await producer.commit()


async def test_P9_the_cluster_says_which_protocol_it_has(kafka_properties):
    """Apache Kafka 4.1 finalises the second one unless it was told otherwise."""
    wire = TransactionWire(translate(kafka_properties))
    await wire.start()
    await wire.close()
    assert isinstance(wire.dialect, Second)


async def test_P10_transactions_follow_each_other_at_once(log, wire, target):
    """While the markers of the one before are being written, too; every record is there, once and in order."""
    requests, topic = target
    async with producing(wire, requests) as producer:
        for value in range(20):
            await transact(producer, topic, value)
    for partition in range(2):
        await until_values(log, topic, partition, [b"%d" % value for value in range(20)])


async def test_P10_what_is_aborted_is_never_seen(log, wire, target):
    """And the same producer goes on; of what nobody heard of nothing is to be aborted."""
    requests, topic = target
    async with producing(wire, requests) as producer:
        await producer.begin()
        await producer.abort()
        await producer.begin()
        await producer.send_position(Position(1, "", 1))
        await producer.send(outs(topic, 0, 1))
        await producer.abort()
        await transact(producer, topic, 7, partitions=(0,))
    await until_values(log, topic, 0, [b"7"])


async def test_P10_more_than_a_batch_of_one_partition_is_sent_in_order(log, wire, target):
    """One batch of a partition travels in a request, so these take three."""
    requests, topic = target
    async with producing(wire, requests) as producer:
        await producer.begin()
        await producer.send_position(Position(1, "", 1))
        large = [Out(topic, 0, b"%d" % n, LARGE + b"%d" % n) for n in range(5)]
        await producer.send([*large, *outs(topic, 1, 3)])
        await producer.commit()
    await until_values(log, topic, 0, [out.value for out in large])
    await until_values(log, topic, 1, [b"0", b"1", b"2"])


async def test_B23_whoever_had_the_id_before_is_fenced(log, wire, target):
    """In the middle of its transaction, of which nothing is seen; the new one is not disturbed."""
    requests, topic = target
    async with producing(wire, requests) as old:
        await old.begin()
        await old.send_position(Position(1, "", 1))
        await old.send(outs(topic, 0, 1))
        async with producing(wire, requests) as new:
            with pytest.raises(ProducerFenced):
                await old.commit()
            await transact(new, topic, 7, partitions=(0,))
    await until_values(log, topic, 0, [b"7"])


async def test_P11_requests_whose_answers_are_lost_are_sent_again_and_count_once(
    log, wire, target
):
    """The connection breaks behind each request of a transaction; whichever was done already is not done twice."""
    requests, topic = target
    send = wire.request
    is_lost = False

    async def lossy(lane, node, request):
        nonlocal is_lost
        is_lost = not is_lost
        if not is_lost:
            return await send(lane, node, request)
        await send(lane, node, request)
        connection = await wire._connection(lane, node)
        sent = asyncio.ensure_future(send(lane, node, request))
        await asyncio.sleep(0)  # it is on its way
        connection.close()
        return await sent

    async with producing(wire, requests) as producer:
        wire.request = lossy
        for value in range(5):
            await transact(producer, topic, value)
        wire.request = send
    for partition in range(2):
        await until_values(log, topic, partition, [b"%d" % n for n in range(5)])


async def test_a_request_that_is_given_up_takes_its_connection_with_it(wire, target):
    """Its answer might never come; what waits behind it is asked again over a new one."""
    requests, topic = target
    async with producing(wire, requests) as producer:
        await transact(producer, topic, 0)
        (lane, node) = next(iter(wire._connections))
        before = wire._connections[lane, node]
        await producer.begin()
        giving_up = asyncio.create_task(producer.send_position(Position(2, "", 1)))
        await asyncio.sleep(0)
        giving_up.cancel()
        await asyncio.wait([giving_up])
        assert not before.connected()
    async with producing(wire, requests) as producer:
        await transact(producer, topic, 1)


async def test_lanes_are_shared_when_there_are_more_producers(wire):
    """The lowest with the fewest users comes first, and one that was left is used again."""
    taken = [wire.take_lane() for _ in range(LANES + 2)]
    assert taken == [*range(LANES), 0, 1]
    wire.leave_lane(5)
    assert wire.take_lane() == 5
