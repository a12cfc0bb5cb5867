"""A closed loop of ModelInfer calls in a process of its own: one channel, some requests in flight.

Messages are prepared bytes and answers stay bytes, so that the server is what is measured; every answer is kept and
checked at the end. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import grpc
import grpc.aio
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks.workload import INPUT, MODEL, OUTPUT, POOL, SIZES, is_right, pool

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_ANSWER_BYTES = SIZES[-1] * 4


def request_bytes(row: np.ndarray) -> bytes:
    """Return a request with one row [128] as raw contents."""
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name=INPUT, datatype="FP32", shape=[1, SIZES[0]])
    message.raw_input_contents.append(row.tobytes())
    message.outputs.add(name=OUTPUT)
    return message.SerializeToString()


async def drive(args: argparse.Namespace) -> dict[str, float | str]:
    """Run the loop for the warm-up and then the measured seconds; returns the figures."""
    requests = [request_bytes(row) for row in pool()]
    numbers: list[int] = []
    answers: list[bytes] = []
    waits_s: list[float] = []
    failure = ""
    async with grpc.aio.insecure_channel(f"{args.host}:{args.port}") as channel:
        call = channel.unary_unary(METHOD, None, None)

        async def ask(first: int) -> None:
            nonlocal failure
            number = first % POOL
            while True:
                began = time.perf_counter()
                try:
                    answer = await call(requests[number])
                except grpc.aio.AioRpcError as error:
                    failure = f"{error.code()}: {error.details()}"
                    return
                waits_s.append(time.perf_counter() - began)
                numbers.append(number)
                answers.append(answer[-_ANSWER_BYTES:])
                number = (number + args.in_flight) % POOL

        tasks = [asyncio.create_task(ask(n)) for n in range(args.in_flight)]
        await asyncio.sleep(args.warm_up_s)
        began, before = time.perf_counter(), len(numbers)
        await asyncio.sleep(args.seconds)
        took_s, after = time.perf_counter() - began, len(numbers)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    wrong = 0
    if not args.any_answer:
        found = np.frombuffer(b"".join(answers), np.float32).reshape(-1, SIZES[-1])
        wrong = int((~is_right(np.array(numbers), found)).sum())
    waits_ms = 1e3 * np.array(waits_s[before:after])
    return {
        "rate": (after - before) / took_s,
        "p50_ms": float(np.percentile(waits_ms, 50)) if after > before else 0.0,
        "p99_ms": float(np.percentile(waits_ms, 99)) if after > before else 0.0,
        "answered": len(numbers),
        "wrong": wrong,
        "failure": failure,
    }


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--any-answer", action="store_true", help="the server is empty: check no values"
    )
    args = parser.parse_args()
    print(json.dumps(uvloop.run(drive(args))))


if __name__ == "__main__":
    main()
