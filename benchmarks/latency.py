"""From Kafka to Kafka at a low, steady rate: how long one record takes, beside the bare loop.

From before the request is handed to the producer until the observer's poll holds the answer, so three clients'
own times are in it for both contenders.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.contest import Contender, Loop, Worker, check, serving
from benchmarks.figures import Bar, Figure
from benchmarks.formats import FORMATS
from benchmarks.models import write_repository
from benchmarks.traffic import pace

NAME = "latency"
ON_BROKERS = (
    KAFKA,
)  # the embedded broker's long poll is not woken by new records: no claim there
PARTITIONS = 4
REQUESTS_PER_S = 50.0
MAX_P50_MS = 5.0


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield p50 and p99 of the worker, beside the loop's."""
    model = write_repository(folder / "models")
    loop, worker = Loop(model), Worker(folder / "models")
    count, rounds = (200, 1) if quick else (400, 2)
    runs: list[tuple[list[float], list[float]]] = []
    with broker(kind, folder) as running:
        for _ in range(rounds):
            loop_ms = _percentiles_ms(running, loop, count, folder)
            runs.append((loop_ms, _percentiles_ms(running, worker, count, folder)))
    for place, name in enumerate((NAME, f"{NAME}.p99")):
        value = statistics.median(worker_ms[place] for _, worker_ms in runs)
        against = statistics.median(loop_ms[place] for loop_ms, _ in runs)
        bar = Bar("value", MAX_P50_MS, at_most=True) if name == NAME else None
        yield Figure(name, kind, value, "ms", "loop", against, bar, value / against)


def _percentiles_ms(
    running: Broker, contender: Contender, count: int, folder: Path
) -> list[float]:
    numbers = range(1, count + 1)
    with serving(running, contender, count + 1, PARTITIONS, folder) as (_, eyes, source):
        sent_at_s = pace(
            running.bootstrap,
            source,
            PARTITIONS,
            numbers,
            FORMATS[contender.format](),
            REQUESTS_PER_S,
        )
        seen = eyes.seen()
    check(contender.name, seen, range(count + 1))
    order = np.argsort(seen.numbers)
    waits_ms = 1e3 * (seen.arrivals_s[order][1:] - sent_at_s)
    return [float(np.percentile(waits_ms, share)) for share in (50, 99)]
