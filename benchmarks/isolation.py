"""What one row in a thousand that the model fails costs the others, beside the same worker and model without any.

The network is the workload's with one look-up more, by the first number of a row; for a poisoned row it lies outside of
the table, and ONNX Runtime fails the whole execution. The worker finds the row by halves: its neighbours get results,
and it gets an error and a dead letter.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, load, numpy_helper, save

from benchmarks.brokers import EMBEDDED, KAFKA, broker
from benchmarks.contest import Run, Worker, backlog
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.workload import INPUT, OUTPUT

NAME = "isolation"
PARTITIONS = 4
ON_BROKERS = (KAFKA, EMBEDDED)
BAR = Bar("ratio", 0.8)
_TABLE = 16
"""Entries of the look-up; negative places count from its end, and no row of the pool lies outside."""


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rate and CPU time per record with poisoned rows, beside those without."""
    write_brittle_repository(folder / "models")
    clean, poisoned = [
        Worker(folder / "models", name=name, format=name) for name in ("avro", "poisoned")
    ]
    count, rounds = (60_000, 1) if quick else (120_000, 3)
    pairs: list[tuple[Run, Run]] = []
    with broker(kind, folder) as running:
        for n in range(rounds):
            order = (clean, poisoned) if n % 2 == 0 else (poisoned, clean)
            done = {c.name: backlog(running, c, count, PARTITIONS, folder) for c in order}
            pairs.append((done["poisoned"], done["avro"]))
    yield _figure(NAME, kind, "records/s", [(a.rate, b.rate) for a, b in pairs], BAR)
    yield _figure(f"{NAME}.cpu", kind, "µs/record", [(a.cpu_us, b.cpu_us) for a, b in pairs])


def _figure(
    name: str, kind: str, unit: str, pairs: Sequence[tuple[float, float]], bar: Bar | None = None
) -> Figure:
    return Figure(
        name,
        kind,
        statistics.median(poisoned for poisoned, _ in pairs),
        unit,
        "no poisoned row",
        statistics.median(clean for _, clean in pairs),
        bar,
        statistics.median(poisoned / clean for poisoned, clean in pairs),
    )


def write_brittle_repository(folder: Path) -> None:
    """Write a model repository with the network that fails of a poisoned row."""
    path = write_repository(folder)
    model = load(str(path))
    graph = model.graph
    last = graph.node[-1]
    last.output[0] = "answer"
    for name, values in (
        ("FIRST", np.array([0], np.int64)),
        ("SECOND", np.array([1], np.int64)),
        ("AXIS", np.array([1], np.int64)),
        ("TABLE", np.zeros((_TABLE,), np.float32)),
    ):
        graph.initializer.append(numpy_helper.from_array(values, name))
    graph.node.extend(
        [
            helper.make_node("Slice", [INPUT, "FIRST", "SECOND", "AXIS"], ["number"]),
            helper.make_node("Cast", ["number"], ["place"], to=TensorProto.INT64),
            helper.make_node("Gather", ["TABLE", "place"], ["nothing"]),
            helper.make_node("Add", ["answer", "nothing"], [OUTPUT]),
        ]
    )
    checker.check_model(model)
    save(model, str(path))
