"""Dead letters for the tests of what reads them and sends them again."""

from __future__ import annotations

from headrace.schemas.dead_letter import DeadLetter, write_dead_letter
from headrace.schemas.record import TP
from headrace.streams.dead_letter_redrive import Options
from headrace.streams.log import EARLIEST, LATEST, Span, TopicSpec

DEAD = "t.dead-letters"
REQUESTS = "t.m.requests"
NO_LIMIT = 10**9


def letter(offset=0, *, partition=0, topic=REQUESTS, **more):
    """Return a letter of the model ``m``."""
    said = {
        "timestamp_ms": 5,
        "model": "m",
        "version": "1",
        "status": "INVALID_ARG",
        "reason": "undecodable",
        "error_class": "UndecodableRecord",
        "detail": "bad bytes",
        "attempts": 1,
        "key": b"k%d" % offset,
        "value": b"value %d" % offset,
        "headers": (("x-n", b"%d" % offset),),
    } | more
    return DeadLetter(source=TP(topic, partition), offset=offset, **said)


def stored(one, at=0, topic=DEAD):
    """Return a letter as the record that a worker writes, to a partition of the dead-letter topic."""
    return write_dead_letter(one, TP(topic, at), NO_LIMIT)


async def make_topics(log, *, dead=2, requests=2, topic=DEAD, source=REQUESTS):
    """Make the topics of a model's requests and of dead letters; 0 partitions leaves the requests out."""
    specs = [TopicSpec(topic, dead)]
    if requests:
        specs.append(TopicSpec(source, requests))
    await log.ensure(specs)


async def put(log, *outs):
    """Write records."""
    async with log.publisher() as publisher:
        await publisher.publish(outs)


async def records(log, topic):
    """Return everything that a topic holds, partition by partition."""
    count = await log.partitions(topic)
    spans = {TP(topic, number): Span(EARLIEST, LATEST) for number in range(count)}
    found = []
    async with log.reader(spans) as reader:
        while not reader.done():
            for block in await reader.poll(1000, 0.5):
                found += block.records
    return sorted(found, key=lambda record: (record.partition, record.offset))


def options(**more):
    """Return how letters are redriven: by default as the command does without options."""
    said = {
        "again": False,
        "without_deadline": False,
        "now_ms": 1_000,
        "max_record_bytes": 1_000_000,
    }
    return Options(**said | more)
