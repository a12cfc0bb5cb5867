"""How late the loop runs its timers, and the gauges that are counted with that look (FAULTS B2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.consumers.observe import WorkerMetrics
from headrace.consumers.worker import ModelWorker

INTERVAL_S = 0.25
"""How often it is measured, seconds."""


async def watch_loop(models: Mapping[str, ModelWorker], metrics: WorkerMetrics) -> None:
    """Measure for ever; ends by cancellation."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        metrics.loop_lag.set(max(0.0, loop.time() - due))
        for name, worker in models.items():
            metrics.rebalances.labels(name).set(worker.assignment.rebalances)
            if worker.sequences is not None:
                worker.sequences.count()
            worker.answering.unacknowledged.settled(worker.partitions)  # one may be gone
            in_flight = sum(part.in_flight for part in worker.partitions.values())
            metrics.in_flight.labels(name).set(in_flight)
