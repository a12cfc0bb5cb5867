"""A closed loop of V2 requests over HTTP, in a process of its own: one request in flight on each connection.

It writes prepared bytes and reads by content length on bare asyncio protocols, so that the server is what is
measured; every answer is kept and checked at the end. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import partial
from typing import cast

import numpy as np
import uvloop

from benchmarks.workload import INPUT, MODEL, OUTPUT, POOL, SIZES, is_right, pool

_ANSWER_BYTES = SIZES[-1] * 4
_LOOK_S = 0.02


def request_bytes(row: np.ndarray, host: str) -> bytes:
    """Return a POST of one row [128] as binary tensor data, with a binary answer asked for."""
    data = row.tobytes()
    tensor = {
        "name": INPUT,
        "shape": [1, SIZES[0]],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    header = json.dumps(
        {
            "inputs": [tensor],
            "outputs": [{"name": OUTPUT, "parameters": {"binary_data": True}}],
        }
    ).encode()
    head = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: {host}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(header) + len(data)}\r\n\r\n"
    )
    return head.encode() + header + data


class Tally:
    """What came back, over all connections.

    Attributes:
        numbers: Pool row of each answer.
        answers: Last bytes of each answer's body.
        waits_s: Seconds that each took.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.numbers: list[int] = []
        self.answers: list[bytes] = []
        self.waits_s: list[float] = []
        self.failure = ""


class Connection(asyncio.Protocol):
    """Sends the next request as soon as an answer is whole."""

    def __init__(self, requests: list[bytes], first: int, step: int, tally: Tally) -> None:
        """Take the requests first, first + step, … in turn."""
        self._requests = requests
        self._number = first % POOL
        self._step = step
        self._tally = tally
        self._buffer = b""
        self._sent_at_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._tally.failure = f"a connection was lost: {exc}"

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:", head.find(b"\r\ncontent-length:"))
        size = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + size:
            return
        body, self._buffer = self._buffer[end + 4 : end + 4 + size], b""
        tally = self._tally
        tally.waits_s.append(time.perf_counter() - self._sent_at_s)
        if head.split(b" ", 2)[1] != b"200":
            tally.failure = f"{head[:40]!r}: {body[:300]!r}"
        tally.numbers.append(self._number)
        tally.answers.append(body[-_ANSWER_BYTES:])
        self._number = (self._number + self._step) % POOL
        self._send()

    def close(self) -> None:
        """End the connection with whatever is in flight."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at_s = time.perf_counter()
        self._transport.write(self._requests[self._number])


async def drive(args: argparse.Namespace) -> dict[str, float | str]:
    """Run the loop for the warm-up and then the measured time; returns the figures."""
    requests = [request_bytes(row, args.host) for row in pool()]
    tally = Tally()
    loop = asyncio.get_running_loop()
    connections = []
    for n in range(args.in_flight):
        _, connection = await loop.create_connection(
            partial(Connection, requests, n, args.in_flight, tally),
            args.host,
            args.port[n % len(args.port)],
        )
        connections.append(connection)
    await asyncio.sleep(args.warm_up_s)
    began, before = time.perf_counter(), len(tally.numbers)
    await asyncio.sleep(args.seconds)
    while len(tally.numbers) < args.count and not tally.failure:  # noqa: ASYNC110  # an event would cost each answer
        await asyncio.sleep(_LOOK_S)
    took_s, after = time.perf_counter() - began, len(tally.numbers)
    for connection in connections:
        connection.close()
    wrong = 0
    if not args.any_answer:
        answers = np.frombuffer(b"".join(tally.answers), np.float32).reshape(-1, SIZES[-1])
        wrong = int((~is_right(np.array(tally.numbers), answers)).sum())
    waits_ms = 1e3 * np.array(tally.waits_s[before:after])
    return {
        "rate": (after - before) / took_s,
        "p50_ms": float(np.percentile(waits_ms, 50)) if after > before else 0.0,
        "p99_ms": float(np.percentile(waits_ms, 99)) if after > before else 0.0,
        "answered": len(tally.numbers),
        "wrong": wrong,
        "failure": tally.failure,
    }


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, nargs="+", required=True, help="connections take turns"
    )
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--count", type=int, default=0, help="go on until so many are answered")
    parser.add_argument(
        "--any-answer", action="store_true", help="the server is empty: check no values"
    )
    args = parser.parse_args()
    print(json.dumps(uvloop.run(drive(args))))


if __name__ == "__main__":
    main()
