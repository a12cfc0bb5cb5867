"""A long backlog may not grow the worker: back-pressure bounds what it holds, and each record is answered once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import EMBEDDED, KAFKA, broker
from benchmarks.contest import PeakMemory, Worker, backlog, serving
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import pause

NAME = "burst"
ON_BROKERS = (KAFKA, EMBEDDED)
PARTITIONS = 4
MAX_GROWTH_MB = 100.0
_IDLE_S = 1.0


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the worker's resident growth over an idle one that has answered a single request."""
    write_repository(folder / "models")
    worker = Worker(folder / "models")
    count = 60_000 if quick else 300_000
    with broker(kind, folder) as running:
        with serving(running, worker, 1, PARTITIONS, folder) as (process, _, _):
            pause(_IDLE_S)
            idle = PeakMemory(process)
            idle.sample()
        run = backlog(running, worker, count, PARTITIONS, folder)
    yield Figure(
        NAME,
        kind,
        (run.peak_bytes - idle.bytes) / 1e6,
        "MB",
        "idle worker",
        idle.bytes / 1e6,
        Bar("value", MAX_GROWTH_MB, at_most=True),
    )
    yield Figure(f"{NAME}.rate", kind, run.rate, "records/s")
