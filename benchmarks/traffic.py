"""Requests onto a topic: a backlog as fast as the client allows, or a steady pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaProducer

from benchmarks.formats import Format

# Records per produced batch: what a producer with a linger of some ms at these rates would send.
_BATCH_BYTES = 65536


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
                _preload_partition(producer, topic, p, range(p, count, partitions), requests)
                for p in range(partitions)
            )
        )
    finally:
        await producer.stop()


async def _preload_partition(
    producer: AIOKafkaProducer, topic: str, partition: int, numbers: range, requests: Format
) -> None:
    batch = producer.create_batch()
    sent = None
    for number in numbers:
        key, value, headers = requests.request(number)
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
