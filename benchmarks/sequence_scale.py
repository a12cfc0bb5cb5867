"""What scheduling a step costs among 100,000 live sequences, as a multiple of the same among 10.

From a decoded block to staged states: routing, offering, taking batches, ending them, and the looks at the timer and
for silent sequences. The configuration is one and the same, as a user has one: 64 rows, hence 64 slots of ``direct``;
``oldest`` has a slot for each of 100,000 sequences. Each sequence has one step under way, as one has whose caller waits
for its answer: so a block of 10 sequences has 10 records, and one of many sequences is as large as a poll gives.

The sequences step in turns, so that each is the one that was touched the longest ago. Figures without a bar show what
else may be meant: the sequences in random order, where every one of many costs the processor a look into memory that it
cannot foresee, whatever is scheduled; full blocks at both sizes, where of 10 sequences most steps only queue behind
others; and such blocks with batches of ten rows at both sizes, so that many gain nothing by fuller batches. With
``direct`` among many, each step takes the slot of another sequence that is parked for it; among few, none does.

The few and the many take turns too, and each repetition gives a ratio. Times are the thread's own.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from headrace.deploy.process import COLLECT_AFTER

from benchmarks.figures import Bar, Figure
from benchmarks.sequence_parts import BLOCK_RECORDS, Parts
from benchmarks.workload import MAX_BATCH_ROWS

NAME = "sequence-scale"
ON_BROKERS = ()
FEW, MANY = 10, 100_000
BAR = Bar("ratio", 1.3, at_most=True)
BLOCKS = 20
"""Blocks of one repetition, about 10,000 steps."""
BLOCKS_PER_COMMIT = 3
"""A worker at full load commits about so often."""


class _Load:
    """Steps of some live sequences, as many as wanted."""

    def __init__(self, strategy: str, live: int, rows: int) -> None:
        """Start all sequences; batches have at most so many rows."""
        self._live = live
        self.block = min(live, BLOCK_RECORDS)
        self._rng = np.random.default_rng(live)
        self._parts = Parts(strategy, live, rows=rows, candidates=MANY)
        self._parts.run(range(live))
        self._commit()
        self._rest: list[int] = []

    def step_us(self, *, shuffled: bool) -> float:
        """Run some blocks; returns the time of a step's scheduling, µs."""
        parts, clock = self._parts, time.thread_time
        spent_s = 0.0
        blocks = BLOCKS * BLOCK_RECORDS // self.block
        for number in range(blocks):
            entries = parts.decode(self._numbers(shuffled=shuffled))
            began_s = clock()
            parts.admit(entries)
            parts.reap()
            batch = parts.take()
            spent_s += clock() - began_s
            while batch is not None:
                parts.execute(batch)
                began_s = clock()
                parts.finish(batch)
                batch = parts.take()
                spent_s += clock() - began_s
            parts.settle()
            if number % (blocks * BLOCKS_PER_COMMIT // BLOCKS) == 0:
                self._commit()
        return 1e6 * spent_s / (blocks * self.block)

    def _numbers(self, *, shuffled: bool) -> list[int]:
        """Return the requests of a block; in either order all sequences step before any steps again."""
        while len(self._rest) < self.block:
            turn = self._rng.permutation(self._live) if shuffled else np.arange(self._live)
            # Those of the first round are STARTs.
            self._rest += (self._live + turn).tolist()
        found, self._rest = self._rest[: self.block], self._rest[self.block :]
        return found

    def _commit(self) -> None:
        for _ in self._parts.commit():
            pass


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:  # noqa: ARG001  # all benchmarks are called alike
    """Yield a step's scheduling time among many sequences beside that among few, for both strategies."""
    rounds = 5 if quick else 21
    for strategy in ("direct", "oldest"):
        name = f"{NAME}.{strategy}"
        with _calm_collector():
            pair = _Load(strategy, FEW, MAX_BATCH_ROWS), _Load(strategy, MANY, MAX_BATCH_ROWS)
            yield _figure(name, pair, rounds, bar=BAR)
            yield _figure(f"{name}.shuffled", pair, rounds, shuffled=True)
            pair[0].block = BLOCK_RECORDS
            yield _figure(f"{name}.full-blocks", pair, rounds)
            pair = _Load(strategy, FEW, FEW), _Load(strategy, MANY, FEW)
            pair[0].block = BLOCK_RECORDS
            yield _figure(f"{name}.ten-rows", pair, rounds)


def _figure(
    name: str,
    loads: tuple[_Load, _Load],
    rounds: int,
    *,
    shuffled: bool = False,
    bar: Bar | None = None,
) -> Figure:
    few, many = loads
    pairs = [
        (few.step_us(shuffled=shuffled), many.step_us(shuffled=shuffled)) for _ in range(rounds)
    ]
    return Figure(
        name,
        "",
        statistics.median(many_us for _, many_us in pairs),
        "µs/step",
        f"{FEW} sequences",
        statistics.median(few_us for few_us, _ in pairs),
        bar,
        statistics.median(many_us / few_us for few_us, many_us in pairs),
    )


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Set the cycle collector for a block as the worker's process does before its first record."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
