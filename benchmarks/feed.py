"""Requests at a steady pace, for ever: a process that keeps somebody busy while something else is measured."""

from __future__ import annotations

import argparse
import asyncio
import itertools

import uvloop
from aiokafka import AIOKafkaProducer

from benchmarks.formats import FORMATS

MAX_PENDING = 1000


async def feed(args: argparse.Namespace) -> None:
    """Produce request after request, request n to partition n % partitions."""
    requests = FORMATS[args.format]()
    producer = AIOKafkaProducer(bootstrap_servers=args.bootstrap, acks="all", linger_ms=0)
    await producer.start()
    loop = asyncio.get_running_loop()
    start = loop.time()
    pending: list[asyncio.Future[object]] = []
    try:
        for number in itertools.count(args.first):
            await asyncio.sleep(max(0.0, start + (number - args.first) / args.per_s - loop.time()))
            key, value, headers = requests.request(number)
            partition = number % args.partitions
            pending.append(await producer.send(args.topic, value, key, partition, headers=headers))
            if len(pending) >= MAX_PENDING:
                await asyncio.gather(*pending)
                pending.clear()
    finally:
        await producer.stop()


def main() -> None:
    """Read the options and run until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--per-s", type=float, required=True)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--format", choices=sorted(FORMATS), default="avro")
    uvloop.run(feed(parser.parse_args()))


if __name__ == "__main__":
    main()
