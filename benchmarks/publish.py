"""How much faster many records are published at once than one after the other, each awaited (FAULTS B93).

All three ways go through the log's own publisher, in turns within a round: all records in one publish, each in one of
its own while the others are under way, and each in one of its own behind the one before.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import uvloop
from headrace.schemas.record import Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Publisher

from benchmarks.brokers import EMBEDDED, KAFKA, Broker, broker
from benchmarks.contest import fresh_tag
from benchmarks.figures import Bar, Figure

NAME = "publish"
ON_BROKERS = (KAFKA, EMBEDDED)
PARTITIONS = 4
RECORDS = 1000
VALUE_BYTES = 200
BAR = Bar("ratio", 20)

Way = Callable[[Publisher, Sequence[Out]], Awaitable[object]]


async def one_publish(publisher: Publisher, outs: Sequence[Out]) -> None:
    """Publish all at once."""
    await publisher.publish(outs)


async def concurrent(publisher: Publisher, outs: Sequence[Out]) -> None:
    """Publish each by itself, and await all together."""
    await asyncio.gather(*(publisher.publish([out]) for out in outs))


async def in_turn(publisher: Publisher, outs: Sequence[Out]) -> None:
    """Publish each by itself once the one before is acknowledged."""
    for out in outs:
        await publisher.publish([out])


WAYS: Sequence[Way] = (one_publish, concurrent, in_turn)


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the records per second of both fast ways beside the slow one."""
    rounds = 3 if quick else 9
    with broker(kind, folder) as running:
        rates = uvloop.run(_rates(running, rounds))
    slow = rates[in_turn]
    for way in (one_publish, concurrent):
        ratio = statistics.median(fast / one for fast, one in zip(rates[way], slow, strict=True))
        value, against = statistics.median(rates[way]), statistics.median(slow)
        # What answers at once publishes at once; single calls beside each other cost their own time on loopback.
        bar = BAR if kind == KAFKA and way is one_publish else None
        name = f"{NAME}.{way.__name__}"
        yield Figure(name, kind, value, "records/s", "one by one", against, bar, ratio)


async def _rates(running: Broker, rounds: int) -> dict[Way, list[float]]:
    """Return each way's records per second in every round, [rounds]."""
    topic = fresh_tag()
    await asyncio.to_thread(running.create_topics, [topic], PARTITIONS)
    outs = [Out(topic, n % PARTITIONS, b"%d" % n, bytes(VALUE_BYTES)) for n in range(RECORDS)]
    rates: dict[Way, list[float]] = {way: [] for way in WAYS}
    async with (
        KafkaLog({"bootstrap.servers": running.bootstrap}) as log,
        log.publisher() as publisher,
    ):
        await in_turn(publisher, outs)  # connections, and the broker's own compiler
        for n in range(rounds):
            for way in WAYS[:: -1 if n % 2 else 1]:
                started_s = time.perf_counter()
                await way(publisher, outs)
                rates[way].append(len(outs) / (time.perf_counter() - started_s))
    return rates
