"""The gateway over gRPC at 1, 16, 64 and 256 calls in flight, batch 1, raw contents, with a worker behind it.

Beside it, in the same run, an empty grpc.aio handler of ModelInfer: what gRPC alone costs. The same client drives
both, and checks every answer of ours.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers
from benchmarks.brokers import EMBEDDED, KAFKA, Broker, broker, free_port
from benchmarks.contest import Worker, fresh_tag
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import ROOT, BenchmarkFailed, Process, started, wait_for
from benchmarks.workload import MODEL

NAME = "grpc_gateway"
ON_BROKERS = (KAFKA, EMBEDDED)
IN_FLIGHT = (1, 16, 64, 256)
JUDGED = 64
# The embedded broker answers a long poll late, and a call needs two: its figure informs.
BARS = {KAFKA: Bar("ratio", 0.5)}
P50_BARS = {KAFKA: Bar("value", 6.0, at_most=True)}


class Running(NamedTuple):
    """A gateway that serves.

    Attributes:
        port: Of its gRPC.
        process: Its process.
    """

    port: int
    process: Process


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the rate by calls in flight beside the empty handler's, the p50 of single calls, and the gateway's CPU."""
    write_repository(folder / "models")
    seconds = 2.0 if quick else 4.0
    rounds = 1 if quick else 3
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as ours,
        empty_handler(folder) as empty,
    ):
        for in_flight in IN_FLIGHT:
            rates, others, ratios, cpus_us, p50s = [], [], [], [], []
            for _ in range(rounds if in_flight == JUDGED else 1):
                cpu_s = ours.process.cpu_s()
                found = drive(ours.port, seconds, in_flight)
                cpus_us.append(1e6 * (ours.process.cpu_s() - cpu_s) / found["answers"])
                other = drive(empty, seconds, in_flight, "--any-answer")["rate"]
                rates.append(found["rate"])
                others.append(other)
                ratios.append(found["rate"] / other)
                p50s.append(found["p50_ms"])
            yield Figure(
                f"{NAME}.{in_flight}",
                kind,
                statistics.median(rates),
                "requests/s",
                "empty grpc.aio handler",
                statistics.median(others),
                BARS.get(kind) if in_flight == JUDGED else None,
                statistics.median(ratios),
            )
            yield Figure(f"{NAME}.{in_flight}.cpu", kind, statistics.median(cpus_us), "µs/request")
            bar = P50_BARS.get(kind) if in_flight == 1 else None
            yield Figure(f"{NAME}.{in_flight}.p50", kind, statistics.median(p50s), "ms", bar=bar)


@contextlib.contextmanager
def serving(running: Broker, worker: Worker, folder: Path) -> Iterator[Running]:
    """Run worker and gateway for the time of a block, entered once the gateway serves the model."""
    tag, port, http_port = fresh_tag(), free_port(), free_port()
    running.create_topics(worker.topics(tag), 4)
    argv = [
        *(sys.executable, "-m", "headrace.deploy.cli", "--debug", "gateway"),
        *("--bootstrap-servers", running.bootstrap, "--topic-prefix", tag),
        *("--kafka-config", str(running.properties)),
        *("--http-port", str(http_port), "--grpc-port", str(port)),
        *("--metrics-port", str(free_port()), "--log-level", "warning"),
    ]
    with (
        started(worker.argv(tag, running), folder / f"{tag}-worker.log") as worker_process,
        started(argv, folder / f"{tag}-gateway.log") as process,
    ):
        ready = f"http://127.0.0.1:{http_port}/v2/models/{MODEL}/ready"
        wait_for(
            lambda: peers.answers(ready),
            60.0,
            "ready gateway",
            process,
            worker_process,
            every_s=0.1,
        )
        yield Running(port, process)


@contextlib.contextmanager
def empty_handler(folder: Path) -> Iterator[int]:
    """Run the empty handler for the time of a block; yields its port."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.empty_grpc", "--port", str(port)]
    with started(argv, folder / "empty-grpc.log") as process:
        wait_for(lambda: _listens(port), 30.0, "listening handler", process, every_s=0.1)
        yield port


def drive(port: int, seconds: float, in_flight: int, *options: str) -> dict[str, float]:
    """Call a server for some seconds; returns ``rate`` in requests/s, ``p50_ms``, ``p99_ms`` and ``answers`` in all."""
    argv = [
        *(sys.executable, "-m", "benchmarks.grpc_client", "--port", str(port)),
        *("--in-flight", str(in_flight), "--seconds", str(seconds), *options),
    ]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0:
        raise BenchmarkFailed(f"the gRPC client failed: {run.stderr[-1500:]}")
    found: dict[str, float] = json.loads(run.stdout)
    if found["wrong"] or found["failure"] or not found["rate"]:
        raise BenchmarkFailed(f"the gRPC client on port {port} saw {found}")
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
