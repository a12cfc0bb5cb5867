"""Sequences with durable state against the same worker on a model of the same size without any, in one run.

Every record is one step of one of 64 or 1,000 sequences that all stay live; their states are snapshotted as the
worker does by default, before each commit, and in figures of their own, without a bar, after every step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import recurrent
from benchmarks.brokers import EMBEDDED, KAFKA, Broker, broker
from benchmarks.contest import Run, Worker, backlog
from benchmarks.figures import Bar, Figure
from benchmarks.formats import steps
from benchmarks.models import write_repository

NAME = "sequences-vs-stateless"
PARTITIONS = 4
ON_BROKERS = (KAFKA, EMBEDDED)
BAR = Bar("ratio", 0.7)
STRATEGIES = ("direct", "oldest")
LIVE = (64, 1000)
_STATELESS = "stateless"


@dataclass(frozen=True)
class _Pair:
    """One round's runs of one contender and of the stateless worker."""

    run: Run
    stateless: Run


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rates and CPU times per record of sequences, beside the stateless worker's."""
    write_repository(folder / "models")
    with broker(kind, folder) as running:
        for every in (0, 1):
            yield from _measure(running, folder, every, quick=quick)


def _measure(running: Broker, folder: Path, every: int, *, quick: bool) -> Iterator[Figure]:
    contenders = [Worker(folder / "models", name=_STATELESS)]
    for strategy in STRATEGIES:
        models = folder / f"{strategy}-every-{every}"
        recurrent.write_repository(models, strategy, every=every)
        contenders += [
            Worker(
                models,
                name=f"{strategy}-{live}",
                format=steps(live),
                model=recurrent.MODEL,
            )
            for live in LIVE
        ]
    # Long enough that the first fetches, and the partition that ends last, count for little.
    count, rounds = (60_000, 1) if quick else (120_000, 3)
    pairs: dict[str, list[_Pair]] = {}
    # The first run after a broker's start is a quarter slower, whoever makes it: it does not count.
    backlog(running, contenders[0], count // 4, PARTITIONS, folder)
    for n in range(rounds):
        # Turned around each round: whoever goes first has the colder caches.
        order = contenders if n % 2 == 0 else contenders[::-1]
        done = {c.name: backlog(running, c, count, PARTITIONS, folder) for c in order}
        stateless = done.pop(_STATELESS)
        for name, run in done.items():
            pairs.setdefault(name, []).append(_Pair(run, stateless))
    for name in sorted(pairs):
        what = name if every == 0 else f"{name}.every-{every}"
        bar = BAR if every == 0 else None
        yield from _figures(f"{NAME}.{what}", running.kind, pairs[name], bar)


def _figures(name: str, kind: str, pairs: Sequence[_Pair], bar: Bar | None) -> Iterator[Figure]:
    yield Figure(
        name,
        kind,
        statistics.median(pair.run.rate for pair in pairs),
        "records/s",
        _STATELESS,
        statistics.median(pair.stateless.rate for pair in pairs),
        bar,
        statistics.median(pair.run.rate / pair.stateless.rate for pair in pairs),
    )
    yield Figure(
        f"{name}.cpu",
        kind,
        statistics.median(pair.run.cpu_us for pair in pairs),
        "µs/record",
        _STATELESS,
        statistics.median(pair.stateless.cpu_us for pair in pairs),
        ratio=statistics.median(pair.run.cpu_us / pair.stateless.cpu_us for pair in pairs),
    )
