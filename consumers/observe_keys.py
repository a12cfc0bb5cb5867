"""What a worker counts of requests with an idempotency key, by model (DELIVERY P-17)."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.keys import KeyTables
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class KeyMetrics(Collector):
    """Read from each model's key tables when they are scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register it."""
        self._models: dict[str, KeyTables] = {}
        registry.register(self)

    def watch(self, model: str, keys: KeyTables) -> None:
        """Show a model's counts from now on, all 0 at first (MX-30)."""
        self._models[model] = keys

    def collect(self) -> Iterable[Metric]:
        """Return what is counted; called at each scrape."""
        remembered = GaugeMetricFamily(
            "headrace_remembered_answers",
            "Answers that are remembered under the idempotency keys of their requests.",
            labels=("model",),
        )
        replayed = CounterMetricFamily(
            "headrace_replayed_requests",
            "Repeats that were answered with the answer of the first request with their idempotency key.",
            labels=("model",),
        )
        forgotten = CounterMetricFamily(
            "headrace_forgotten_answers",
            "Remembered answers that went before their window was over, or did not fit, for want of room.",
            labels=("model",),
        )
        for model, keys in self._models.items():
            remembered.add_metric((model,), len(keys))
            replayed.add_metric((model,), keys.counts.replayed)
            forgotten.add_metric((model,), keys.counts.forgotten)
        return remembered, replayed, forgotten

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known at the first scrape."""
        return ()
