"""Several gateway processes before one worker: what they answer together, and what a call costs each of them.

A gateway is one thread, so on its own core each adds its rate, as long as a call does not cost more for there being
others: that is what the bar holds, on any number of cores. Rates scale only where client, broker, worker and every
gateway have a core of their own; with fewer the rate only informs.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.calls import drive, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository

NAME = "gateways"
ON_BROKERS = (KAFKA,)
COUNTS = (1, 2, 4)
IN_FLIGHT = 64
"""For each gateway: batches are as full as those of one alone."""
OTHERS = 3
"""Processes beside the gateways that need a core: client, broker, worker."""
RATE_SHARE = 0.7
CPU_BAR = Bar("ratio", 1.25, at_most=True)


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rate and CPU time per request of 2 and 4 gateways, beside those of one."""
    write_repository(folder / "models")
    seconds, rounds = (2.0, 1) if quick else (4.0, 3)
    done: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
    with broker(kind, folder) as running:
        _run(running, folder, 1, seconds)  # the first after a broker's start is slower
        for n in range(rounds):
            for count in COUNTS if n % 2 == 0 else COUNTS[::-1]:
                done[count].append(_run(running, folder, count, seconds))
    for count in COUNTS[1:]:
        bar = Bar("ratio", RATE_SHARE * count) if (os.cpu_count() or 1) >= count + OTHERS else None
        for place, (suffix, unit, held) in enumerate(
            (("", "requests/s", bar), (".cpu", "µs/request", CPU_BAR))
        ):
            ours = [run[place] for run in done[count]]
            single = [run[place] for run in done[1]]
            yield Figure(
                f"{NAME}.{count}{suffix}",
                kind,
                statistics.median(ours),
                unit,
                "one gateway",
                statistics.median(single),
                held,
                statistics.median(a / b for a, b in zip(ours, single, strict=True)),
            )


def _run(running: Broker, folder: Path, count: int, seconds: float) -> tuple[float, float]:
    """Return rate and the gateways' CPU time per request, µs."""
    with serving(running, Worker(folder / "models"), folder, count) as service:
        ports = [endpoint.http_port for endpoint in service.gateways]
        before_s = service.cpu_s()["gateway"]
        seen = drive(ports, seconds, IN_FLIGHT * count)
        used_s = service.cpu_s()["gateway"] - before_s
        return seen["rate"], 1e6 * used_s / seen["answered"]
