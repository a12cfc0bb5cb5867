"""A member whose session may be over reads nothing and answers nothing until the group has said that it is not."""

from __future__ import annotations

import asyncio
import time

import brokers
import pytest
from cluster import Cluster
from headrace.schemas.record import TP
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Mode, Outcome, Position, TopicSpec
from log_kit import PATIENCE_S, join, outs, read, records_of, values
from tcp_proxy import proxies

pytestmark = pytest.mark.kafka

SELDOM = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "15000"}
QUICK = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "request.timeout.ms": "3000",
}


async def test_B23_what_comes_when_the_session_may_be_over_waits_for_the_group(
    kafka_properties, unique
):
    """As behind a freeze: what is fetched is not handed out, and an answer asks first; then nothing is missing."""
    topic = unique("t")
    owner = TP(topic, 0)
    async with KafkaLog({**kafka_properties, **SELDOM}) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(topic, 1), TopicSpec(f"{topic}-results", 1)])
        worker, source = join(log, topic, topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            await publisher.publish(outs(topic, 0, 2))
            assert len(records_of(await read(source, 2))) == 2
            frozen_s = 60.0
            source.membership._now_s = lambda: time.monotonic() + frozen_s
            await publisher.publish(outs(topic, 0, 3, start=2))
            assert await source.poll(10, 1.0) == ()
            source.membership._now_s = time.monotonic
            (block,) = await read(source, 3)
            assert [record.offset for record in block.records] == [2, 3, 4]
            source.membership._heard_s -= frozen_s
            assert not source.membership.is_certain()
            delivery.put(owner, outs(f"{topic}-results", 0, 1))
            settled = await delivery.settle({owner: Position(5, "", worker.epochs[owner])})
            assert settled == {owner: Outcome.SETTLED}
            assert source.membership.is_certain(), "the group was asked"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One node behind a proxy."""
    try:
        made = Cluster(tmp_path_factory.mktemp("cluster"), size=1)
    except brokers.Unavailable as missing:
        brokers.lacking(f"no Apache Kafka: {missing}")
    with made:
        yield made


async def test_B23_who_was_cut_off_beyond_the_session_answers_nothing_again(cluster, unique):
    """Another member has its partition and has answered. Its own answers are dropped, and it reads nothing of it."""
    topic = unique("t")
    results, owner = f"{topic}-results", TP(topic, 0)
    async with (
        proxies(cluster.proxies) as between,
        KafkaLog({"bootstrap.servers": cluster.proxied_bootstrap, **QUICK}) as cut_off,
        KafkaLog({"bootstrap.servers": cluster.bootstrap, **QUICK}) as log,
        log.publisher() as publisher,
    ):
        await log.ensure([TopicSpec(topic, 1), TopicSpec(results, 1)])
        zombie, source = join(cut_off, topic, topic)
        async with source:
            delivery = cut_off.delivery(source, Mode.AT_LEAST_ONCE)
            await publisher.publish(outs(topic, 0, 2))
            assert len(records_of(await read(source, 2))) == 2
            epoch = zombie.epochs[owner]
            for proxy in between.values():
                proxy.cut()
            worker, other = join(log, topic, topic)
            async with other:
                await publisher.publish(outs(topic, 0, 2, start=2))
                assert len(records_of(await read(other, 4))) == 4
                answering = log.delivery(other, Mode.AT_LEAST_ONCE)
                answering.put(owner, outs(results, 0, 4))
                at = Position(4, "", worker.epochs[owner])
                assert await answering.settle({owner: at}) == {owner: Outcome.SETTLED}
                delivery.put(owner, outs(results, 0, 2, start=10))
                for proxy in between.values():
                    await proxy.heal()
                async with asyncio.timeout(PATIENCE_S):
                    fenced = await delivery.settle({owner: Position(2, "", epoch)})
                    assert fenced == {owner: Outcome.FENCED}
                    while not (zombie.lost_tps or zombie.revoked_tps):
                        assert await source.poll(10, 0.2) == ()
                assert await values(log, results) == [b"0", b"1", b"2", b"3"]
