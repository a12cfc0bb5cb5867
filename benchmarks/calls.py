"""Synchronous calls as benchmarks make them: a gateway, or several, with a worker behind, and a client in a process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.brokers import Broker, free_port
from benchmarks.contest import Worker, fresh_tag
from benchmarks.processes import ROOT, BenchmarkFailed, Process, started, wait_for

HTTP_CLIENT = "benchmarks.http_client"
PARTITIONS = 4


@dataclass(frozen=True)
class Endpoint:
    """A running gateway.

    Attributes:
        http_port: Of its V2 API.
        grpc_port: Of the same by gRPC.
        metrics_port: Of its metrics.
        process: Its process.
    """

    http_port: int
    grpc_port: int
    metrics_port: int
    process: Process


@dataclass(frozen=True)
class Service:
    """What answers calls.

    Attributes:
        gateways: In the order of their start.
        worker: Serves the model.
        broker: Between them.
    """

    gateways: Sequence[Endpoint]
    worker: Process
    broker: Broker

    @property
    def gateway(self) -> Endpoint:
        """The first gateway."""
        return self.gateways[0]

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time so far of gateways, worker and, if it is ours, broker, seconds."""
        found = {
            "gateway": sum(endpoint.process.cpu_s() for endpoint in self.gateways),
            "worker": self.worker.cpu_s(),
        }
        if self.broker.process is not None:
            found["broker"] = self.broker.process.cpu_s()
        return found


@contextlib.contextmanager
def serving(running: Broker, worker: Worker, folder: Path, gateways: int = 1) -> Iterator[Service]:
    """Run a worker and gateways for the time of a block, entered once all of them serve the model."""
    tag = fresh_tag()
    running.create_topics(worker.topics(tag), PARTITIONS)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            started(worker.argv(tag, running), folder / f"{tag}-worker.log")
        )
        endpoints = [
            _gateway(stack, running, tag, folder / f"{tag}-gateway-{n}.log")
            for n in range(gateways)
        ]
        for endpoint in endpoints:
            ready = f"http://127.0.0.1:{endpoint.http_port}/v2/models/{worker.model}/ready"
            wait_for(
                lambda url=ready: peers.answers(url),  # type: ignore[misc]  # bound, not closed over
                120.0,
                "ready gateway",
                endpoint.process,
                process,
                every_s=0.1,
            )
        yield Service(endpoints, process, running)


def _gateway(stack: contextlib.ExitStack, running: Broker, tag: str, log: Path) -> Endpoint:
    http_port, grpc_port, metrics_port = free_port(), free_port(), free_port()
    argv = [
        *(sys.executable, "-m", "headrace.deploy.cli", "--debug", "gateway"),
        *("--bootstrap-servers", running.bootstrap, "--topic-prefix", tag),
        *("--kafka-config", str(running.properties)),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--metrics-port", str(metrics_port), "--log-level", "warning"),
    ]
    return Endpoint(http_port, grpc_port, metrics_port, stack.enter_context(started(argv, log)))


def drive(
    ports: int | Sequence[int],
    seconds: float,
    in_flight: int,
    *options: str,
    client: str = HTTP_CLIENT,
) -> dict[str, float]:
    """Call servers for some seconds, or until a client's ``--count`` is reached, and check every answer.

    Returns:
        ``rate`` in requests/s, ``p50_ms``, ``p99_ms``, and ``answered``: all, those of the warm-up included.
    """
    every = [ports] if isinstance(ports, int) else ports
    argv = [
        *(sys.executable, "-m", client, "--port", *map(str, every)),
        *("--in-flight", str(in_flight), "--seconds", str(seconds), *options),
    ]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode != 0:
        raise BenchmarkFailed(f"{client} failed: {run.stderr[-1500:]}")
    found: dict[str, float] = json.loads(run.stdout)
    if found["wrong"] or found["failure"] or not found["rate"]:
        raise BenchmarkFailed(f"{client} on ports {every} saw {found}")
    return found


@contextlib.contextmanager
def empty_handler(folder: Path) -> Iterator[int]:
    """Run an aiohttp server that answers with zeros, for the time of a block; yields its port."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.empty_gateway", "--port", str(port)]
    with started(argv, folder / "empty.log") as process:
        ready = f"http://127.0.0.1:{port}/ready"
        wait_for(lambda: peers.answers(ready), 30.0, "ready handler", process, every_s=0.1)
        yield port
