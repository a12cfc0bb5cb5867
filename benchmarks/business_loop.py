"""What a mapping is compared with: the loop that one writes by hand for records of one's own.

It parses each record (orjson where it is installed, else the standard library's parser; fastavro), makes one array per
poll, calls the model once, and writes each result with the same libraries. At least once, as `benchmarks.loop` is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import io
import json
import signal
from collections.abc import Callable
from importlib import import_module
from operator import itemgetter
from typing import Any

import fastavro
import numpy as np
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.business import FIELDS, INPUT, OUTPUT, RESULT_SCHEMA, SCHEMA
from benchmarks.loop import COMMIT_INTERVAL_S, open_session

Read = Callable[[bytes], Any]
Write = Callable[[dict[str, Any]], bytes]


def json_library() -> str:
    """Return the name of the JSON parser that is used."""
    return "orjson" if importlib.util.find_spec("orjson") else "json"


def parsers(word: str) -> tuple[Read, Write]:
    """Return what reads a record and writes a result."""
    if word == "json":
        if json_library() == "orjson":
            orjson = import_module("orjson")
            return orjson.loads, orjson.dumps
        return json.loads, lambda result: json.dumps(result, separators=(",", ":")).encode()
    payment = fastavro.parse_schema(json.loads(SCHEMA))
    score = fastavro.parse_schema(json.loads(RESULT_SCHEMA))

    def write(result: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, score, result)
        return out.getvalue()

    return lambda value: fastavro.schemaless_reader(io.BytesIO(value), payment, None), write


async def consume(args: argparse.Namespace, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set."""
    session = open_session(args.model)
    read, write = parsers(args.format)
    features = itemgetter(*FIELDS)
    consumer = AIOKafkaConsumer(
        args.input,
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
    )
    producer = AIOKafkaProducer(bootstrap_servers=args.bootstrap, acks="all")
    await consumer.start()
    await producer.start()
    loop = asyncio.get_running_loop()
    pending: list[asyncio.Future[object]] = []
    commit_at = loop.time() + COMMIT_INTERVAL_S
    try:
        while not stop.is_set():
            polled = await consumer.getmany(timeout_ms=100, max_records=args.batch)
            records = [record for part in polled.values() for record in part]
            if records:
                parsed = [read(record.value) for record in records]
                rows = np.array([features(fields) for fields in parsed], np.float32)
                answers = session.run(None, {INPUT: rows})[0].tolist()
                for record, fields, answer in zip(records, parsed, answers, strict=True):
                    value = write({"payment": fields["payment"], OUTPUT: answer})
                    pending.append(await producer.send(args.output, value, key=record.key))
            if pending and loop.time() >= commit_at:
                await asyncio.gather(*pending)
                pending.clear()
                await consumer.commit()
                commit_at = loop.time() + COMMIT_INTERVAL_S
    finally:
        if pending:
            await asyncio.gather(*pending)
            await consumer.commit()
        await consumer.stop()
        await producer.stop()


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await consume(args, stop)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--format", choices=("json", "avro"), required=True)
    parser.add_argument("--group", default="loop")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(args))


if __name__ == "__main__":
    main()
