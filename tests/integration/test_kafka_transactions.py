"""Transactions on a real broker: of others, read past (FAULTS B24), and ours through stops, ends and refusals."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Mode, Outcome, Position, Span, TopicSpec
from log_kit import PATIENCE_S, join, outs, read, records_of, values
from transaction_process import LARGE, doomed

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


@pytest.fixture
async def topics(log, unique):
    """A topic of one partition, and one for what follows from it."""
    topic, target = unique("t"), unique("target")
    await log.ensure([TopicSpec(topic, 1), TopicSpec(target, 1)])
    return topic, target


@asynccontextmanager
async def taken_over(log, group, topic):
    """Join, and take the partition over once it is ours."""
    worker, source = join(log, group, topic)
    async with source:
        async with asyncio.timeout(PATIENCE_S):
            while not worker.epochs:
                await source.poll(1, 0.1)
        delivery = log.delivery(source, Mode.EXACTLY_ONCE)
        started = asyncio.get_running_loop().time()
        assert await delivery.take_over(dict(worker.epochs)) == {TP(topic, 0)}
        delivery.took_s = asyncio.get_running_loop().time() - started
        yield source, delivery, worker.epochs[TP(topic, 0)]


async def test_B27_a_worker_killed_in_the_middle_of_a_transaction_is_succeeded_at_once(
    log, topics, kafka_properties, unique
):
    """Its id is made again from group, topic and partition: no wait for the transaction's minute to be over."""
    (topic, target), group, owner = topics, unique("g"), TP(topics[0], 0)
    async with doomed(kafka_properties, group, topic, target, timeout_ms=60_000) as child:
        assert await child.heard() == "open"
        async with asyncio.timeout(PATIENCE_S):
            while await values(log, target, committed=False) != [LARGE]:
                pass
        assert await values(log, target) == []
        child.process.kill()
        await child.process.wait()
    async with taken_over(log, group, topic) as (source, delivery, epoch):
        assert delivery.took_s < AT_ONCE_S
        assert (await source.committed({owner}))[owner] is None
        delivery.put(owner, outs(target, 0, 1))
        assert await delivery.settle({owner: Position(1, "", epoch)}) == {owner: Outcome.SETTLED}
        assert await values(log, target) == [b"0"]


async def test_B23_a_worker_stopped_in_the_middle_of_a_transaction_commits_nothing_afterwards(
    log, topics, kafka_properties, unique
):
    """SIGSTOP for longer than its session, another owner goes on, SIGCONT: it is fenced, and knows that it is out."""
    (topic, target), group, owner = topics, unique("g"), TP(topics[0], 0)
    async with doomed(kafka_properties, group, topic, target, timeout_ms=60_000) as child:
        assert await child.heard() == "open"
        child.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while await values(log, target, committed=False) != [LARGE]:
                pass
        async with taken_over(log, group, topic) as (source, delivery, epoch):
            delivery.put(owner, outs(target, 0, 2))
            upto = {owner: Position(2, "", epoch)}
            assert await delivery.settle(upto) == {owner: Outcome.SETTLED}
            child.process.send_signal(signal.SIGCONT)
            child.go_on()
            assert await child.heard() == "fenced"
            assert (await source.committed({owner}))[owner].offset == 2
            assert await values(log, target) == [b"0", b"1"]
            # P-6: it did not take the id back.
            delivery.put(owner, outs(target, 0, 1, start=2))
            upto = {owner: Position(3, "", epoch)}
            assert await delivery.settle(upto) == {owner: Outcome.SETTLED}


async def test_B25_a_transaction_that_the_broker_aborts_for_its_age_is_run_again(
    log, topics, kafka_properties, unique
):
    """The timer runs out while the worker stands still: its settle is aborted, its second one counts, once."""
    (topic, target), group = topics, unique("g")
    patient = {**kafka_properties, "session.timeout.ms": "60000"}
    async with doomed(patient, group, topic, target, timeout_ms=1_000) as child:
        assert await child.heard() == "open"
        tp = TP(target, 0)
        async with log.source(unique("end"), {target}, join(log, "unused", target)[0]) as source:
            async with asyncio.timeout(PATIENCE_S):  # the broker looks every 10 s
                while (await source.end_offsets({tp}))[tp] < 2:
                    await source.poll(1, 0.1)
        child.go_on()
        assert await child.heard() == "aborted"
        assert await child.heard() == "settled"
        assert await values(log, target) == [LARGE, b"snapshot"]


async def test_P11_a_batch_that_the_broker_refuses_leaves_nothing_behind(log, topics, unique):
    """aiokafka would commit without it; the answer beside it and the offset are not committed either."""
    (topic, target), owner, small = topics, TP(topics[0], 0), unique("small")
    await log.ensure([TopicSpec(small, 1, {"max.message.bytes": "2000"})])
    async with taken_over(log, unique("g"), topic) as (source, delivery, epoch):
        delivery.put(owner, outs(target, 0, 1))
        delivery.put(owner, [Out(small, 0, None, LARGE[:9000])])
        with pytest.raises(LogError, match=f"{small}/0.*MessageSizeTooLarge") as refused:
            await delivery.settle({owner: Position(1, "", epoch)})
        assert not refused.value.retriable
        assert (await source.committed({owner}))[owner] is None
        assert await values(log, target) == []
        assert await delivery.take_over({owner: epoch}) == {owner}
        delivery.put(owner, [*outs(target, 0, 1), *outs(small, 0, 1)])
        assert await delivery.settle({owner: Position(1, "", epoch)}) == {owner: Outcome.SETTLED}
        assert [await values(log, name) for name in (target, small)] == [[b"0"], [b"0"]]


async def test_P11_metadata_that_the_broker_refuses_leaves_nothing_behind(log, topics, unique):
    """A finished set above ``offset.metadata.max.bytes``: named, and nothing is committed."""
    (topic, target), owner = topics, TP(topics[0], 0)
    async with taken_over(log, unique("g"), topic) as (source, delivery, epoch):
        delivery.put(owner, outs(target, 0, 1))
        with pytest.raises(LogError, match="OffsetMetadataTooLarge") as refused:
            await delivery.settle({owner: Position(1, "x" * 5000, epoch)})
        assert not refused.value.retriable
        assert (await source.committed({owner}))[owner] is None
        assert await values(log, target) == []


async def test_P13_replies_go_on_after_one_that_the_broker_refused(log, topics, unique):
    """A refused batch breaks an idempotent producer for its partition: it is replaced."""
    topic, owner, small = topics[0], TP(topics[0], 0), unique("small")
    await log.ensure([TopicSpec(small, 1, {"max.message.bytes": "2000"})])
    async with taken_over(log, unique("g"), topic) as (_, delivery, epoch):
        for offset, size in enumerate((10, 9000, 11), 1):
            delivery.put(owner, [Out(small, 0, None, LARGE[:size])], after_commit=True)
            upto = {owner: Position(offset, "", epoch)}
            assert await delivery.settle(upto) == {owner: Outcome.SETTLED}
        await delivery.flush()
        assert [len(value) for value in await values(log, small)] == [10, 11]


async def test_P5_64_partitions_are_taken_over_at_once(log, unique):
    """Also where every one of them was left in the middle of a transaction."""
    topic, target = unique("t"), unique("target")
    await log.ensure([TopicSpec(topic, 64), TopicSpec(target, 1)])
    worker, source = join(log, unique("g"), topic)
    async with source:
        upto = {tp: Position(1, "", epoch) for tp, epoch in worker.epochs.items()}
        for _ in range(2):
            delivery = log.delivery(source, Mode.EXACTLY_ONCE)
            async with asyncio.timeout(AT_ONCE_S):
                assert len(await delivery.take_over(dict(worker.epochs))) == 64
            for tp in upto:
                delivery.put(tp, outs(target, 0, 1))
            assert set((await delivery.settle(upto)).values()) == {Outcome.SETTLED}
    async with asyncio.timeout(PATIENCE_S):  # a commit is answered before its markers are written
        while len(await values(log, target)) < 128:
            pass
    assert len(await values(log, target)) == 128
