"""The worker with Avro, headers and at-least-once against the raw loop, alternated in one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import EMBEDDED, KAFKA, Broker, broker
from benchmarks.contest import Contender, Loop, Run, Worker, backlog
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository

NAME = "worker-vs-loop"
PARTITIONS = 4
ON_BROKERS = (KAFKA, EMBEDDED)
BARS = {KAFKA: Bar("ratio", 0.8), EMBEDDED: Bar("ratio", 0.7)}


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rate and CPU time per record of the worker, beside the loop's."""
    with broker(kind, folder) as running:
        yield from _measure(running, folder, quick=quick)


def _measure(running: Broker, folder: Path, *, quick: bool) -> Iterator[Figure]:
    model = write_repository(folder / "models")
    contenders: list[Contender] = [Loop(model), Worker(folder / "models")]
    count, rounds = (30_000, 2) if quick else (100_000, 3)
    runs: list[list[Run]] = []
    for n in range(rounds):
        # Turned around each round: whoever goes first has the colder caches.
        order = contenders if n % 2 == 0 else contenders[::-1]
        done = {c.name: backlog(running, c, count, PARTITIONS, folder) for c in order}
        runs.append([done["loop"], done["worker"]])
    yield Figure(
        NAME,
        running.kind,
        statistics.median(worker.rate for _, worker in runs),
        "records/s",
        "loop",
        statistics.median(loop.rate for loop, _ in runs),
        BARS[running.kind],
        statistics.median(worker.rate / loop.rate for loop, worker in runs),
    )
    yield Figure(
        f"{NAME}.cpu",
        running.kind,
        statistics.median(worker.cpu_us for _, worker in runs),
        "µs/record",
        "loop",
        statistics.median(loop.cpu_us for loop, _ in runs),
        ratio=statistics.median(worker.cpu_us / loop.cpu_us for loop, worker in runs),
    )
