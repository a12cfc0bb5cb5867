"""Requests onto a topic: a backlog as fast as the client allows, or a steady pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaProducer
from headrace.streams.kafka_names import DEFAULT_BATCH_BYTES

from benchmarks.formats import Format, Request

# Records per produced batch: what a producer with a linger of some ms at these rates would send.
_BATCH_BYTES = 65536
# What the worker sends its own records in.
_WORKER_BATCH_BYTES = DEFAULT_BATCH_BYTES


def preload(bootstrap: str, topic: str, partitions: int, count: int, requests: Format) -> None:
    """Produce the requests numbered 0…count-1, request n to partition n % partitions, and await all."""
    asyncio.run(_preload(bootstrap, topic, partitions, count, requests))


async def _preload(
    bootstrap: str, topic: str, partitions: int, count: int, requests: Format
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=_BATCH_BYTES
    )
    await producer.start()
    try:
        await asyncio.gather(
            *(
                _send(producer, topic, p, map(requests.request, range(p, count, partitions)))
                for p in range(partitions)
            )
        )
    finally:
        await producer.stop()


def produce(bootstrap: str, topic: str, records: Iterable[Request]) -> None:
    """Produce records to partition 0 in order, and await all; they are made as they are sent."""
    asyncio.run(_produce(bootstrap, topic, records))


async def _produce(bootstrap: str, topic: str, records: Iterable[Request]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=_WORKER_BATCH_BYTES
    )
    await producer.start()
    try:
        await _send(producer, topic, 0, records)
    finally:
        await producer.stop()


async def _send(
    producer: AIOKafkaProducer, topic: str, partition: int, records: Iterable[Request]
) -> None:
    batch = producer.create_batch()
    sent = None
    for key, value, headers in records:
        while batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
            if sent is not None:
                await sent
            sent = await producer.send_batch(batch, topic, partition=partition)
            batch = producer.create_batch()
    if sent is not None:
        await sent
    if batch.record_count():
        await (await producer.send_batch(batch, topic, partition=partition))


def pace(
    bootstrap: str,
    topic: str,
    partitions: int,
    numbers: Sequence[int],
    requests: Format,
    per_s: float,
) -> npt.NDArray[np.float64]:
    """Produce one request every 1/per_s seconds.

    Returns:
        Monotonic time in seconds of each request, taken before it is handed to the client.
    """
    return asyncio.run(_pace(bootstrap, topic, partitions, numbers, requests, per_s))


async def _pace(
    bootstrap: str,
    topic: str,
    partitions: int,
    numbers: Sequence[int],
    requests: Format,
    per_s: float,
) -> npt.NDArray[np.float64]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
    await producer.start()
    sent_at = np.zeros(len(numbers))
    pending = []
    try:
        start = time.monotonic() + 0.1
        for place, number in enumerate(numbers):
            await asyncio.sleep(max(0.0, start + place / per_s - time.monotonic()))
            key, value, headers = requests.request(number)
            sent_at[place] = time.monotonic()
            pending.append(
                await producer.send(
                    topic, value, key=key, partition=number % partitions, headers=headers
                )
            )
        await asyncio.gather(*pending)
    finally:
        await producer.stop()
    return sent_at
