"""Opens many bidirectional gRPC streams, asks on each of them and reads every answer, in a process of its own.

No stream goes on before all have had an answer, and none ends before all have had all: they are open at once. Prints
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack

import grpc
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2 as pb

from benchmarks.workload import INPUT, MODEL, POOL, SIZES, is_right, pool

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
PER_CHANNEL = 100
"""Streams of one connection: as many as servers usually allow."""


def request_bytes(number: int) -> bytes:
    """Return a ModelInferRequest of one row of the pool, under its number as id."""
    request = pb.ModelInferRequest(model_name=MODEL, id=str(number))
    request.inputs.add(name=INPUT, datatype="FP32", shape=[1, SIZES[0]])
    request.raw_input_contents.append(pool()[number % POOL].tobytes())
    written: bytes = request.SerializeToString()
    return written


class Streams:
    """All streams of a run.

    Attributes:
        answers: Bytes of the answer to each request's number.
    """

    def __init__(self, count: int, each: int) -> None:
        """Plan so many streams, with so many requests on each."""
        self.answers: dict[int, bytes] = {}
        self._each = each
        self._together = asyncio.Barrier(count)

    async def run(self, channel: grpc.aio.Channel, first: int) -> None:
        """Run one stream with the requests first, first + 1, …"""
        call = channel.stream_stream(METHOD)()
        for number in range(first, first + self._each):
            await call.write(request_bytes(number))
            await self._read(call, number)
            if number == first:
                await self._together.wait()
        await self._together.wait()
        await call.done_writing()
        if await call.read() is not grpc.aio.EOF:
            raise RuntimeError(f"there is more than {self._each} answers on a stream")

    async def _read(self, call: grpc.aio.StreamStreamCall, number: int) -> None:
        raw = await call.read()
        if raw is grpc.aio.EOF:
            raise RuntimeError(f"a stream ended: {await call.code()}, {await call.details()}")
        answer = pb.ModelStreamInferResponse.FromString(raw)
        if answer.error_message:
            raise RuntimeError(answer.error_message)
        if answer.infer_response.id != str(number):
            raise RuntimeError(f"request {number} got the answer to {answer.infer_response.id!r}")
        self.answers[number] = answer.infer_response.raw_output_contents[0]


async def drive(args: argparse.Namespace) -> dict[str, float]:
    """Run the streams; returns the figures."""
    began_s = time.perf_counter()
    streams = Streams(args.streams, args.each)
    async with AsyncExitStack() as stack, asyncio.timeout(args.timeout_s):
        channels = [
            # Else channels to the same place share one connection.
            await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    f"127.0.0.1:{args.port}", [("grpc.use_local_subchannel_pool", 1)]
                )
            )
            for _ in range(-(-args.streams // PER_CHANNEL))
        ]
        async with asyncio.TaskGroup() as group:
            for n in range(args.streams):
                group.create_task(streams.run(channels[n // PER_CHANNEL], n * args.each))
    took_s = time.perf_counter() - began_s
    numbers = np.array(list(streams.answers))
    answers = np.frombuffer(b"".join(streams.answers.values()), np.float32)
    right = is_right(numbers, answers.reshape(-1, SIZES[-1]))
    return {"answered": len(numbers), "wrong": int((~right).sum()), "took_s": took_s}


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--each", type=int, default=3, help="requests on each")
    parser.add_argument("--timeout-s", type=float, default=120.0)
    print(json.dumps(uvloop.run(drive(parser.parse_args()))))


if __name__ == "__main__":
    main()
