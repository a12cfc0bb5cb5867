"""What a worker shows of each partition that is its own (FAULTS B8, B12).

Read from the models when they are scraped, so that a partition's series go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.schemas.record import TP
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Watched(Protocol):
    """The worker of a model."""

    def stuck(self) -> Mapping[TP, bool]:
        """Return the partitions that are ours, and whether they have records and hand out none."""

    def crashes(self) -> Mapping[TP, int]:
        """Return the partitions that are ours, and how many owners in a row each has cost without progress."""


class PartitionMetrics(Collector):
    """Metrics of one worker process, by model and partition."""

    def __init__(self, models: Mapping[str, Watched], registry: CollectorRegistry) -> None:
        """Register them; ``models`` by name, as they come."""
        self._models = models
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return what is seen now; called at each scrape."""
        gauge = GaugeMetricFamily(
            "headrace_stuck_partition",
            "1 where a partition has records and hands out none, for every partition that is assigned.",
            labels=("model", "partition"),
        )
        for model, worker in self._models.items():
            for tp, is_stuck in worker.stuck().items():
                gauge.add_metric((model, str(tp.partition)), float(is_stuck))
        yield gauge
        crashes = GaugeMetricFamily(
            "headrace_crashes",
            "Workers that ended one after the other before the partition made progress.",
            labels=("model", "partition"),
        )
        for model, worker in self._models.items():
            for tp, count in worker.crashes().items():
                crashes.add_metric((model, str(tp.partition)), count)
        yield crashes

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known at the first scrape."""
        return ()
