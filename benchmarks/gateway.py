"""Batch-1 calls with binary tensors, 1 to 256 in flight, over HTTP and, beside Triton, over gRPC; a worker behind.

With the peers, Triton serves a network of the same shape on the same cores; else an empty aiohttp handler shows what
HTTP alone costs. The same light client drives both in turn, and checks every answer of ours; then Triton's own load
generator says what it sees, without a bar.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers
from benchmarks.brokers import EMBEDDED, KAFKA, broker
from benchmarks.calls import HTTP_CLIENT, Service, drive, empty_handler, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import Skipped

NAME = "gateway"
ON_BROKERS = (KAFKA, EMBEDDED)
GRPC_CLIENT = "benchmarks.grpc_client"
IN_FLIGHT = (1, 16, 64, 256)
BUSY = 64
# The embedded broker answers a long poll late, and a call needs two: its figures inform.
P50_BARS = {KAFKA: Bar("value", 6.0, at_most=True)}


class Road(NamedTuple):
    """A protocol, and both servers of it.

    Attributes:
        name: Of its figures.
        client: Module of the client.
        ours: The gateway's port.
        other: The port of what it is compared with.
        bar: Of the rate at `BUSY`, on Apache Kafka.
    """

    name: str
    client: str
    ours: int
    other: int
    bar: Bar | None


class Other(NamedTuple):
    """What the gateway is compared with.

    Attributes:
        name: In figures.
        http_port: Where it listens.
        grpc_port: The same for gRPC; 0 where it does not.
        found: The peers; None without them.
    """

    name: str
    http_port: int
    grpc_port: int
    found: peers.Peers | None


class Turn(NamedTuple):
    """One client's run against each of the two.

    Attributes:
        ours: What the client says of the gateway.
        other: The same of the other.
        cpu_us: CPU time per request by process, µs.
    """

    ours: dict[str, float]
    other: dict[str, float]
    cpu_us: dict[str, float]


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rates and p50 by calls in flight, and where the CPU time goes."""
    write_repository(folder / "models")
    seconds, rounds = (2.0, 1) if quick else (4.0, 3)
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as service,
        _other(folder) as other,
    ):
        roads = list(_roads(service, other))
        plan = [(road, in_flight) for road in roads for in_flight in IN_FLIGHT]
        # A broker answers single calls four times as slowly before it has compiled their way: they do not count.
        for in_flight in (BUSY, 1):
            _turn(service, roads[0], seconds, in_flight, is_first=True)
        turns: list[list[Turn]] = [[] for _ in plan]
        for n in range(rounds):
            for (road, in_flight), done in zip(plan, turns, strict=True):
                done.append(_turn(service, road, seconds, in_flight, is_first=n % 2 == 0))
        for (road, in_flight), done in zip(plan, turns, strict=True):
            yield from _figures(kind, road, in_flight, done, other.name)
        if other.found is not None:
            yield from _generated(kind, roads, other, folder)


@contextlib.contextmanager
def _other(folder: Path) -> Iterator[Other]:
    found = peers.find(peers.TRITON)
    if isinstance(found, str):
        with empty_handler(folder) as port:
            yield Other("empty aiohttp handler", port, 0, None)
    else:
        with peers.triton(found, folder) as triton:
            yield Other("triton", triton.http_port, triton.grpc_port, found)


def _roads(service: Service, other: Other) -> Iterator[Road]:
    gateway, is_triton = service.gateway, other.found is not None
    http_bar = Bar("ratio", 0.5) if is_triton else None
    yield Road(NAME, HTTP_CLIENT, gateway.http_port, other.http_port, http_bar)
    if is_triton:
        grpc_bar = Bar("ratio", 0.2)
        yield Road(f"{NAME}.grpc", GRPC_CLIENT, gateway.grpc_port, other.grpc_port, grpc_bar)


def _turn(service: Service, road: Road, seconds: float, in_flight: int, *, is_first: bool) -> Turn:
    def other() -> dict[str, float]:
        return drive(road.other, seconds, in_flight, "--any-answer", client=road.client)

    theirs = {} if is_first else other()
    before = service.cpu_s()
    ours = drive(road.ours, seconds, in_flight, client=road.client)
    cpu_us = {
        name: 1e6 * (after_s - before[name]) / ours["answered"]
        for name, after_s in service.cpu_s().items()
    }
    return Turn(ours, theirs or other(), cpu_us)


def _figures(
    kind: str, road: Road, in_flight: int, turns: Sequence[Turn], against: str
) -> Iterator[Figure]:
    name = f"{road.name}.{in_flight}"
    bars = {
        "rate": road.bar if in_flight == BUSY and kind == KAFKA else None,
        "p50_ms": P50_BARS.get(kind) if in_flight == 1 else None,
    }
    for field, suffix, unit in (("rate", "", "requests/s"), ("p50_ms", ".p50", "ms")):
        yield Figure(
            name + suffix,
            kind,
            statistics.median(turn.ours[field] for turn in turns),
            unit,
            against,
            statistics.median(turn.other[field] for turn in turns),
            bars[field],
            statistics.median(turn.ours[field] / turn.other[field] for turn in turns),
        )
    for process in turns[0].cpu_us:
        cpu_us = statistics.median(turn.cpu_us[process] for turn in turns)
        yield Figure(f"{name}.{process}-cpu", kind, cpu_us, "µs/request")


def _generated(kind: str, roads: Sequence[Road], other: Other, folder: Path) -> Iterator[Figure]:
    """Let Triton's own load generator say what it sees of both; nothing where it is not there."""
    assert other.found is not None
    with contextlib.suppress(Skipped):
        for road in roads:
            protocol = "http" if road.client == HTTP_CLIENT else "grpc"
            ours, theirs = (
                float(
                    peers.perf_analyzer(other.found, port, BUSY, folder, protocol)[
                        "Inferences/Second"
                    ]
                )
                for port in (road.ours, road.other)
            )
            name = f"{road.name}.perf-analyzer"
            yield Figure(name, kind, ours, "requests/s", other.name, theirs, None, ours / theirs)
