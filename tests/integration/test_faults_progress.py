"""A worker that does not get on shows it, mends itself or ends (FAULTS B7, B8), and hands over in time (B11, B12)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import brokers
import pytest
from aiokafka import TopicPartition
from cluster import Cluster
from fault_kit import (
    KafkaLogs,
    Running,
    Stage,
    both_modes,
    check_answers,
    check_committed,
    until,
    write_model,
)
from headrace.deploy.failure import EXHAUSTED
from headrace.streams.log import Mode
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from worker_process import worker_process

pytestmark = pytest.mark.kafka

STALL_S = 2.0
"""``stall_timeout_s`` of these tests."""


def by_partition(running: Running) -> Mapping[str, Mapping[int, float]]:
    """Scrape a worker; returns each metric that bears a partition label → partition → value."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    text = generate_latest(running.worker.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "partition" in sample.labels:
                found[sample.name][int(sample.labels["partition"])] = sample.value
    return found


# B7: brokers are away for longer than sessions and requests last, and come back.

SESSION_S = 6.0
OUTAGE_S = SESSION_S + 2.0
RESUMED_S = 30.0


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of our own, which may be stopped."""
    try:
        made = Cluster(tmp_path_factory.mktemp("lone"), size=1)
    except brokers.Unavailable as missing:
        brokers.lacking(f"no Apache Kafka: {missing}")
    with made:
        yield made


@asynccontextmanager
async def served(
    properties: Mapping[str, str], prefix: str, repository: object, mode: Mode
) -> AsyncIterator[tuple[Stage, Running]]:
    """Run a stage and a worker in a mode; the stage itself waits longer for a broker that is coming up."""
    patient = KafkaLogs({**properties, "request.timeout.ms": "30000"})
    async with Stage(patient, prefix, mode=mode) as stage:
        stage.logs = KafkaLogs(properties)
        async with stage.worker(repository, stall_timeout_s=STALL_S) as running:
            yield stage, running


async def test_B7_a_broker_that_was_away_is_read_again_and_readiness_says_so(
    lone, unique, tmp_path
):
    """Both modes at once: not ready within the time-out, reading by itself within 30 s, and ready again."""
    properties = {
        "bootstrap.servers": lone.bootstrap,
        "session.timeout.ms": str(int(SESSION_S * 1000)),
        "heartbeat.interval.ms": "500",
        "request.timeout.ms": "2000",
        "fetch.max.wait.ms": "100",
    }
    repository = write_model(tmp_path / "models")
    loop = asyncio.get_running_loop()
    async with (
        served(properties, unique("b7"), repository, Mode.AT_LEAST_ONCE) as first,
        served(properties, unique("b7"), repository, Mode.EXACTLY_ONCE) as second,
    ):
        both = (first, second)
        for stage, _ in both:
            await stage.send(range(10))
            await stage.until_answered(stage.sent)
        await asyncio.to_thread(lone.kill, 1)
        back_at = loop.time() + OUTAGE_S
        for _, running in both:
            await until(lambda r=running: not r.worker.ready(), "the fall of readiness", 20)
            assert running.worker.troubles()
        await until(lambda: loop.time() > back_at, "the end of the outage")
        assert not any(running.worker.ready() for _, running in both)
        await asyncio.to_thread(lone.start, 1)
        for stage, _ in both:
            await stage.send(range(20, 30))
        for stage, running in both:
            await stage.until_answered(stage.sent, RESUMED_S)
            await until(running.worker.ready, "readiness", RESUMED_S)
            await stage.until_committed(stage.is_all_committed)
            check_answers(stage, stage.sent, once=running is second[1])


# B8: one partition of many is not fetched any more.


def leave_out(stage: Stage, running: Running, partition: int) -> None:
    """Make the client fetch nothing of a partition, underneath everything that is ours."""
    source = running.worker.models[stage.model].source
    source._consumer.pause(TopicPartition(stage.requests, partition))


@both_modes
async def test_B8_a_partition_that_is_not_fetched_is_seen_and_read_again(
    mode, kafka_properties, unique, tmp_path
):
    """A hundred records behind it: its gauge is 1 and readiness false within the window, then it is read again."""
    repository = write_model(tmp_path / "models", batch=8, delay_us=0)
    async with (
        Stage(KafkaLogs(kafka_properties), unique("b8"), partitions=4, mode=mode) as stage,
        stage.worker(repository, stall_timeout_s=STALL_S) as running,
    ):
        await stage.send(range(40))
        await stage.until_answered(stage.sent)
        assert set(by_partition(running)["headrace_stuck_partition"].values()) == {0.0}
        leave_out(stage, running, 1)
        await stage.send(range(100), partition=1)
        gauge: dict[int, float] = {}

        def is_seen() -> bool:
            gauge.update(by_partition(running)["headrace_stuck_partition"])
            return gauge[1] == 1

        await until(is_seen, "the gauge", 10)
        assert gauge == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}
        assert not running.worker.ready()
        assert any("/1 has had records" in trouble for trouble in running.worker.troubles())
        await stage.send(range(30))
        await stage.until_answered(stage.sent, 10)
        await until(running.worker.ready, "readiness", 10)
        assert set(by_partition(running)["headrace_stuck_partition"].values()) == {0.0}
        await stage.until_committed(stage.is_all_committed)
        check_answers(stage, stage.sent, once=True)


DEAF = """
import headrace.deploy.cli as cli
from headrace.streams.kafka_source import KafkaSource
resume = KafkaSource.resume

def deaf(self, tps):
    resume(self, {tp for tp in tps if tp.partition != 1})

KafkaSource.resume = deaf
cli.main()
"""
"""A worker that never fetches partition 1."""


async def test_B8_a_partition_that_cannot_be_mended_ends_the_process_with_its_own_status(
    kafka_properties, unique, tmp_path
):
    """503 first, then 75, by which an operator starts it again; the next one answers what was left."""
    repository = write_model(tmp_path / "models")
    async with Stage(KafkaLogs(kafka_properties), unique("b8")) as stage:
        async with worker_process(
            repository,
            kafka_properties,
            stage.topology.prefix,
            folder=tmp_path / "process",
            options=("--stall-timeout-secs", "1"),
            program=("-c", DEAF),
        ) as worker:
            read = await stage.send([1, 2], partition=0)
            left = await stage.send([3, 4], partition=1)
            await stage.until_answered(read)
            await worker.until_readiness(503)
            assert await worker.exited() == EXHAUSTED, worker.tail()
            assert "/1 has had records" in worker.tail()
        assert not stage.answers.keys() & set(left)
        async with stage.worker(repository):
            await stage.until_answered(stage.sent)
        check_answers(stage, stage.sent, once=True)


# B11 and B12: a member joins while another one's execution takes longer than a revocation waits.

GRACE_S = 1.0
OVERHEAD_S = 10.0
"""What a join takes beside the grace on a busy machine; the execution ends when the test says so, and not before."""


@both_modes
async def test_B11_B12_a_revocation_waits_no_longer_than_its_grace(
    mode, kafka_properties, unique, tmp_path
):
    """What executes is run by the new owner and has one answer; the metrics of what went have gone, too."""
    gate = tmp_path / "gate"
    slow = write_model(tmp_path / "slow", block_until_file=gate, block_limit_ms=120_000)
    quick = write_model(tmp_path / "quick")
    loop = asyncio.get_running_loop()
    async with Stage(KafkaLogs(kafka_properties), unique("b11"), partitions=4, mode=mode) as stage:
        async with stage.worker(slow, revoke_grace_s=GRACE_S) as first:
            await stage.send(range(4))
            await until(lambda: first.executions and first.in_flight() == 4, "an execution")
            before = by_partition(first)
            assert before
            assert all(set(series) == {0, 1, 2, 3} for series in before.values())
            joins_at = loop.time()
            async with stage.worker(quick, revoke_grace_s=GRACE_S) as second:
                await until(
                    lambda: len(first.partitions()) == len(second.partitions()) == 2, "shares"
                )
                assert loop.time() - joins_at < GRACE_S + OVERHEAD_S
                assert not gate.exists()
                for running in (first, second):
                    mine = by_partition(running)
                    assert mine.keys() == before.keys()
                    assert all(set(series) == running.partitions() for series in mine.values())
                for running, times in ((first, 2), (second, 1)):
                    labels = {"model": stage.model}
                    name = "headrace_rebalance_seconds_count"
                    assert running.worker.registry.get_sample_value(name, labels) == times
                handed = [key for key in stage.sent if key[0] in second.partitions()]
                await stage.until_answered(handed)
                check_committed(stage, await stage.committed())
                gate.touch()
                await stage.until_answered(stage.sent)
                await stage.until_committed(stage.is_all_committed)
        await stage.read_all()
        check_answers(stage, stage.sent, once=True)
