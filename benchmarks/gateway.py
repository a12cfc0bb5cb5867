"""The gateway over HTTP at 64 requests in flight, batch 1, binary tensors, with a worker behind it.

With the peers, Triton serves the same network on the same cores, and its own load generator drives both; else an
empty aiohttp handler shows what the HTTP alone costs, driven by our client. Our client checks every answer either way.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.brokers import EMBEDDED, KAFKA, Broker, broker, free_port
from benchmarks.contest import Worker, fresh_tag
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import ROOT, BenchmarkFailed, started, wait_for
from benchmarks.workload import MODEL

NAME = "gateway"
ON_BROKERS = (KAFKA, EMBEDDED)
IN_FLIGHT = 64
# The embedded broker answers a long poll late, and a call needs two: its figure informs.
BARS = {KAFKA: Bar("ratio", 0.25)}


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the gateway's rate, beside Triton's or an empty handler's, and its p50."""
    write_repository(folder / "models")
    seconds = 2.0 if quick else 4.0
    rounds = 1 if quick else 3
    found = peers.find()
    worker = Worker(folder / "models")
    with broker(kind, folder) as running, serving(running, worker, folder) as port:
        ours = drive(port, seconds)
        if isinstance(found, str):
            against = "empty aiohttp handler"
            with _empty_handler(folder) as empty:
                pairs = [
                    (
                        drive(port, seconds)["rate"],
                        drive(empty, seconds, IN_FLIGHT, "--any-answer")["rate"],
                    )
                    for _ in range(rounds)
                ]
        else:
            against = "triton"
            with peers.triton(found, folder) as triton:
                pairs = [
                    (
                        _perf_rate(found, port, folder),
                        _perf_rate(found, triton.http_port, folder),
                    )
                    for _ in range(rounds)
                ]
    yield Figure(
        NAME,
        kind,
        statistics.median(rate for rate, _ in pairs),
        "requests/s",
        against,
        statistics.median(other for _, other in pairs),
        None if isinstance(found, str) else BARS.get(kind),
        statistics.median(rate / other for rate, other in pairs),
    )
    yield Figure(f"{NAME}.p50", kind, ours["p50_ms"], "ms")


@contextlib.contextmanager
def serving(running: Broker, worker: Worker, folder: Path) -> Iterator[int]:
    """Run worker and gateway for the time of a block; yields the gateway's port once it serves the model."""
    tag, port = fresh_tag(), free_port()
    running.create_topics(worker.topics(tag), 4)
    argv = [
        *(sys.executable, "-m", "headrace.deploy.cli", "--debug", "gateway"),
        *("--bootstrap-servers", running.bootstrap, "--topic-prefix", tag),
        *("--kafka-config", str(running.properties)),
        *("--http-port", str(port), "--metrics-port", str(free_port()), "--log-level", "warning"),
    ]
    with (
        started(worker.argv(tag, running), folder / f"{tag}-worker.log") as worker_process,
        started(argv, folder / f"{tag}-gateway.log") as process,
    ):
        ready = f"http://127.0.0.1:{port}/v2/models/{MODEL}/ready"
        wait_for(
            lambda: peers.answers(ready),
            60.0,
            "ready gateway",
            process,
            worker_process,
            every_s=0.1,
        )
        yield port


@contextlib.contextmanager
def _empty_handler(folder: Path) -> Iterator[int]:
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.empty_gateway", "--port", str(port)]
    with started(argv, folder / "empty.log") as process:
        ready = f"http://127.0.0.1:{port}/ready"
        wait_for(lambda: peers.answers(ready), 30.0, "ready handler", process, every_s=0.1)
        yield port


def drive(
    port: int, seconds: float, in_flight: int = IN_FLIGHT, *options: str
) -> dict[str, float]:
    """Call a server for some seconds; returns ``rate`` in requests/s, ``p50_ms`` and ``p99_ms``."""
    argv = [
        *(sys.executable, "-m", "benchmarks.http_client", "--port", str(port)),
        *("--in-flight", str(in_flight), "--seconds", str(seconds), *options),
    ]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0:
        raise BenchmarkFailed(f"the HTTP client failed: {run.stderr[-1500:]}")
    found: dict[str, float] = json.loads(run.stdout)
    if found["wrong"] or found["failure"] or not found["rate"]:
        raise BenchmarkFailed(f"the HTTP client on port {port} saw {found}")
    return found


def _perf_rate(found: peers.Peers, port: int, folder: Path) -> float:
    return float(peers.perf_analyzer(found, port, IN_FLIGHT, folder)["Inferences/Second"])
