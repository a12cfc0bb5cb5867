"""The end of a partition as it truly is, on the embedded broker too.

Where Kafka tells the log's end, the embedded broker tells the last batch's first offset plus one, as the latest
offset and as the high watermark alike. There the last batch is fetched and its own last offset taken.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Set

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from headrace.schemas.record import TP

MAX_BYTES = 52_428_800  # of the whole answer; with a small limit the broker sends nothing
MAX_WAIT_MS = 100


async def end_offsets(
    consumer: AIOKafkaConsumer, tps: Set[TP], *, by_batch: bool
) -> dict[TP, int]:
    """Return the offset after the last record of each partition, the last stable one of a read-committed consumer.

    Args:
        consumer: A started one.
        tps: Partitions.
        by_batch: The broker tells only where the last batch begins.
    """
    told = await consumer.end_offsets([TopicPartition(*tp) for tp in tps])
    ends = {TP(*tp): offset for tp, offset in told.items()}
    if by_batch:
        ends |= await _after_last_batches(consumer, ends)
    return ends


async def _after_last_batches(consumer: AIOKafkaConsumer, told: dict[TP, int]) -> dict[TP, int]:
    client = consumer._client  # noqa: SLF001  # aiokafka has no public way to fetch once
    by_leader: dict[int, dict[str, list[tuple[int, int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for tp, offset in told.items():
        leader = client.cluster.leader_for_partition(TopicPartition(*tp))
        if leader is not None and leader >= 0 and offset > 0:
            by_leader[leader][tp.topic].append((tp.partition, offset - 1, 1))
    answers = await asyncio.gather(
        *[
            client.send(
                node, FetchRequest(MAX_WAIT_MS, 1, MAX_BYTES, 0, list(topics.items()), rack_id="")
            )
            for node, topics in by_leader.items()
        ],
        return_exceptions=True,
    )
    ends = {}
    for answer in answers:
        if isinstance(answer, KafkaError | OSError):
            continue  # then what the broker said stands
        if isinstance(answer, BaseException):
            raise answer
        for topic, partitions in answer.topics:
            for partition, code, _, *_, raw in partitions:
                batches = MemoryRecords(raw or b"")
                while code == 0 and batches.has_next():
                    ends[TP(topic, partition)] = batches.next_batch().next_offset
    return ends
