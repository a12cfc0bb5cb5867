"""Workers that are killed between answer and commit, and repeats behind them, on Apache Kafka (DELIVERY P-17)."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from headrace.schemas.record import SOURCE, TP
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Mode, Span
from headrace.streams.topology import Topology
from keyed_kit import header, record, value_of
from service_kit import Producer, write_models
from worker_process import worker_process

pytestmark = pytest.mark.kafka

ECHO = """
backend: "identity"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
KEYS = 10
KILLS = 2


async def answers(log, topic, sources, committed):
    """Read every answer until each of these sources has one; returns source → answers."""
    async with asyncio.timeout(90):
        while True:
            found = defaultdict(list)
            spans = {TP(topic, number): Span(EARLIEST, LATEST) for number in range(2)}
            async with log.reader(spans, committed=committed) as reader:
                while not reader.done():
                    for block in await reader.poll(1_000, 0.5):
                        for one in block.records:
                            found[header(one, SOURCE).decode()].append(one)
            if found.keys() >= set(sources):
                return found
            await asyncio.sleep(0.2)  # another process answers


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE])
async def test_P17_SIGKILL_between_answer_and_commit_and_a_repeat_behind_it(
    kafka_properties, unique, tmp_path, mode
):
    """Every repeat has the first answer; in exactly_once each key ran once in the committed view."""
    is_exact = mode is Mode.EXACTLY_ONCE
    topology = Topology(prefix=unique("k"), partitions=2)
    root = write_models(tmp_path / "models", {"m": ECHO})
    # Answers are out long before their positions are committed, but for those of transactions.
    options = ("--delivery", mode.value, "--commit-interval-ms", "3000")
    sources: list[str] = []
    keys: dict[str, str] = {}
    async with KafkaLog(kafka_properties) as log:
        producer = Producer(log, kafka_properties)

        async def send(key: str) -> None:
            out = record(topology, float(key), key)
            (source,) = await producer.send([out])
            sources.append(source)
            keys[source] = key

        for kill in range(KILLS + 1):
            folder = tmp_path / f"worker-{kill}"
            async with worker_process(
                root, kafka_properties, topology.prefix, folder=folder, options=options
            ) as process:
                for number in range(KEYS):
                    await send(str(kill * KEYS // 2 + number))  # half of them are repeats
                found = await answers(log, topology.results("m"), sources[-1:], is_exact)
                if kill < KILLS:
                    await process.kill()
                else:
                    found = await answers(log, topology.results("m"), sources, is_exact)
    said, ran = defaultdict(set), defaultdict(set)
    for source, records in found.items():
        assert len(records) == 1 or not is_exact, f"{source} has {len(records)} answers"
        for one in records:
            said[keys[source]].add(value_of(one))
            if header(one, "replayed") is None:
                ran[keys[source]].add(source)
    assert set(found) == set(sources)
    assert {key: {float(key)} for key in said} == said
    repeated = [key for key in ran if list(keys.values()).count(key) > 1]
    assert len(repeated) >= KEYS
    assert {key: len(ran[key]) for key in ran} == dict.fromkeys(ran, 1)
