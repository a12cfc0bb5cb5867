"""What the worker is compared with: the consume → predict → produce loop that one writes by hand with raw bytes.

Value in: 128 little-endian float32; value out: 10 float32; the key is copied; no headers, no codec, no checks.
At least once: once per second it awaits the acknowledgement of all that it sent, then commits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal

import numpy as np
import onnxruntime
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

COMMIT_INTERVAL_S = 1.0


def open_session(path: str) -> onnxruntime.InferenceSession:
    """Load the model with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


async def consume(args: argparse.Namespace, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set."""
    session = open_session(args.model)
    consumer = AIOKafkaConsumer(
        args.input,
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=args.fetch_wait_ms,
        session_timeout_ms=6000,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=args.bootstrap, acks="all", linger_ms=args.linger_ms
    )
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
                joined = b"".join([record.value for record in records])
                rows = np.frombuffer(joined, np.float32).reshape(len(records), -1)
                answers = session.run(None, {"INPUT": rows})[0]
                for record, answer in zip(records, answers, strict=True):
                    pending.append(
                        await producer.send(args.output, answer.tobytes(), key=record.key)
                    )
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
    parser.add_argument("--group", default="loop")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--fetch-wait-ms", type=int, default=500)
    parser.add_argument("--linger-ms", type=int, default=0)
    parser.add_argument("--uvloop", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    runner = uvloop.run if args.uvloop else asyncio.run
    with contextlib.suppress(KeyboardInterrupt):
        runner(serve(args))


if __name__ == "__main__":
    main()
