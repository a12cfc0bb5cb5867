"""Batch-1 calls over HTTP with binary tensors, 1 to 256 in flight, with a worker behind the gateway.

With the peers, Triton serves the same network on the same cores; else an empty aiohttp handler shows what the HTTP
alone costs. The same light client drives both in turn, and checks every answer of a model; Triton's own load generator
has the last word, without a bar.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers
from benchmarks.brokers import EMBEDDED, KAFKA, broker
from benchmarks.calls import Service, drive, empty_handler, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository

NAME = "gateway"
ON_BROKERS = (KAFKA, EMBEDDED)
IN_FLIGHT = (1, 16, 64, 256)
BUSY = 64
# The embedded broker answers a long poll late, and a call needs two: its figures inform.
RATE_BARS = {KAFKA: Bar("ratio", 0.5)}
P50_BARS = {KAFKA: Bar("value", 6.0, at_most=True)}


class Other(NamedTuple):
    """What the gateway is compared with.

    Attributes:
        name: In figures.
        port: Where it listens.
        options: Of the client.
        found: The peers; None without them.
    """

    name: str
    port: int
    options: tuple[str, ...]
    found: peers.Peers | None


class Turn(NamedTuple):
    """One client's run against either of the two.

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
    turns: dict[int, list[Turn]] = defaultdict(list)
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as service,
        _other(folder) as other,
    ):
        # A broker answers single calls four times as slowly before it has compiled their way: they do not count.
        for in_flight in (BUSY, 1):
            _turn(service, other, seconds, in_flight, is_first=True)
        for n in range(rounds):
            for in_flight in IN_FLIGHT:
                turn = _turn(service, other, seconds, in_flight, is_first=n % 2 == 0)
                turns[in_flight].append(turn)
        for in_flight in IN_FLIGHT:
            yield from _figures(kind, in_flight, turns[in_flight], other)
        if other.found is not None:
            yield from _generated(kind, service, other, folder)


@contextlib.contextmanager
def _other(folder: Path) -> Iterator[Other]:
    found = peers.find()
    if isinstance(found, str):
        with empty_handler(folder) as port:
            yield Other("empty aiohttp handler", port, ("--any-answer",), None)
    else:
        with peers.triton(found, folder) as triton:
            yield Other("triton", triton.http_port, (), found)


def _turn(
    service: Service, other: Other, seconds: float, in_flight: int, *, is_first: bool
) -> Turn:
    theirs: dict[str, float] = {}
    if not is_first:
        theirs = drive(other.port, seconds, in_flight, *other.options)
    before = service.cpu_s()
    ours = drive(service.gateway.http_port, seconds, in_flight)
    cpu_us = {
        name: 1e6 * (after_s - before[name]) / ours["answered"]
        for name, after_s in service.cpu_s().items()
    }
    if is_first:
        theirs = drive(other.port, seconds, in_flight, *other.options)
    return Turn(ours, theirs, cpu_us)


def _figures(kind: str, in_flight: int, turns: Sequence[Turn], other: Other) -> Iterator[Figure]:
    name = f"{NAME}.{in_flight}"
    rate_bar = RATE_BARS.get(kind) if in_flight == BUSY and other.found is not None else None
    yield _figure(name, kind, ("rate", "requests/s"), turns, other, rate_bar)
    p50_bar = P50_BARS.get(kind) if in_flight == 1 else None
    yield _figure(f"{name}.p50", kind, ("p50_ms", "ms"), turns, other, p50_bar)
    for process in turns[0].cpu_us:
        cpu_us = statistics.median(turn.cpu_us[process] for turn in turns)
        yield Figure(f"{name}.{process}-cpu", kind, cpu_us, "µs/request")


def _figure(
    name: str,
    kind: str,
    measured: tuple[str, str],
    turns: Sequence[Turn],
    other: Other,
    bar: Bar | None,
) -> Figure:
    field, unit = measured
    return Figure(
        name,
        kind,
        statistics.median(turn.ours[field] for turn in turns),
        unit,
        other.name,
        statistics.median(turn.other[field] for turn in turns),
        bar,
        statistics.median(turn.ours[field] / turn.other[field] for turn in turns),
    )


def _generated(kind: str, service: Service, other: Other, folder: Path) -> Iterator[Figure]:
    """Let Triton's own load generator say what it sees of both."""
    assert other.found is not None
    rates = [
        float(peers.perf_analyzer(other.found, port, BUSY, folder)["Inferences/Second"])
        for port in (service.gateway.http_port, other.port)
    ]
    ours, theirs = rates
    name = f"{NAME}.perf-analyzer"
    yield Figure(name, kind, ours, "requests/s", other.name, theirs, None, ours / theirs)
