"""The gateway over gRPC at 1, 16, 64 and 256 calls in flight, batch 1, raw contents, with a worker behind it.

Beside it, in the same run, an empty grpc.aio handler of ModelInfer: what gRPC alone costs. The same client drives
both in turn, and checks every answer of ours.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import EMBEDDED, KAFKA, broker, free_port
from benchmarks.calls import drive, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import Process, started, wait_for

NAME = "grpc-gateway"
CLIENT = "benchmarks.grpc_client"
ON_BROKERS = (KAFKA, EMBEDDED)
IN_FLIGHT = (1, 16, 64, 256)
JUDGED = 64
# The embedded broker answers a long poll late, and a call needs two: its figures inform.
RATE_BARS = {KAFKA: Bar("ratio", 0.5)}
P50_BARS = {KAFKA: Bar("value", 6.0, at_most=True)}


class Turn(NamedTuple):
    """One client's run against either of the two.

    Attributes:
        rate: Of the gateway, requests/s.
        other: Of the empty handler.
        p50_ms: Of the gateway.
        cpu_us: CPU time per request by process, µs.
    """

    rate: float
    other: float
    p50_ms: float
    cpu_us: dict[str, float]


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rates beside the empty handler's, p50 and CPU time per request, by calls in flight."""
    write_repository(folder / "models")
    seconds, rounds = (2.0, 1) if quick else (4.0, 3)
    turns: dict[int, list[Turn]] = defaultdict(list)
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as service,
        empty_handler(folder) as empty,
    ):
        port = service.gateway.grpc_port
        # A broker answers single calls four times as slowly before it has compiled their way: they do not count.
        drive(port, seconds, JUDGED, client=CLIENT)
        for in_flight in IN_FLIGHT * rounds:
            before = service.cpu_s()
            ours = drive(port, seconds, in_flight, client=CLIENT)
            cpu_us = {
                name: 1e6 * (after - before[name]) / ours["answered"]
                for name, after in service.cpu_s().items()
            }
            spent = empty.process.cpu_s()
            other = drive(empty.port, seconds, in_flight, "--any-answer", client=CLIENT)
            cpu_us["empty handler"] = 1e6 * (empty.process.cpu_s() - spent) / other["answered"]
            turns[in_flight].append(Turn(ours["rate"], other["rate"], ours["p50_ms"], cpu_us))
    for in_flight in IN_FLIGHT:
        yield from _figures(kind, in_flight, turns[in_flight])


def _figures(kind: str, in_flight: int, turns: list[Turn]) -> Iterator[Figure]:
    yield Figure(
        f"{NAME}.{in_flight}",
        kind,
        statistics.median(turn.rate for turn in turns),
        "requests/s",
        "empty grpc.aio handler",
        statistics.median(turn.other for turn in turns),
        RATE_BARS.get(kind) if in_flight == JUDGED else None,
        statistics.median(turn.rate / turn.other for turn in turns),
    )
    p50_ms = statistics.median(turn.p50_ms for turn in turns)
    bar = P50_BARS.get(kind) if in_flight == 1 else None
    yield Figure(f"{NAME}.{in_flight}.p50", kind, p50_ms, "ms", bar=bar)
    for name in turns[0].cpu_us:
        cpu_us = statistics.median(turn.cpu_us[name] for turn in turns)
        yield Figure(f"{NAME}.{in_flight}.cpu.{name}", kind, cpu_us, "µs/request")


class Empty(NamedTuple):
    """The empty handler: where it listens, and its process."""

    port: int
    process: Process


@contextlib.contextmanager
def empty_handler(folder: Path) -> Iterator[Empty]:
    """Run the empty handler for the time of a block."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.empty_grpc", "--port", str(port)]
    with started(argv, folder / "empty-grpc.log") as process:
        wait_for(lambda: _listens(port), 30.0, "listening handler", process, every_s=0.1)
        yield Empty(port, process)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
