"""What a worker counts of its transactions, by model (exactly_once, DELIVERY P-10)."""

from __future__ import annotations

from headrace.streams.log import Outcome
from prometheus_client import CollectorRegistry, Counter, Histogram

SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of the duration histogram, seconds."""

OUTCOMES = {
    Outcome.SETTLED: "committed",
    Outcome.ABORTED: "aborted",
    Outcome.FENCED: "fenced",
    Outcome.PRODUCER_FENCED: "fenced",
}
"""Outcome → label."""


class TransactionMetrics:
    """Metrics of one worker process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self._ended = Counter(
            "headrace_transactions",
            "Transactions of a model's partitions that were committed, were aborted, or were refused because another "
            "worker has the partition.",
            ("model", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "headrace_transaction_seconds",
            "Time from the cut to the end of its transaction.",
            ("model",),
            buckets=SECONDS,
            registry=registry,
        )

    def model(self, name: str) -> ModelTransactions:
        """Return the counts of a model that is delivered exactly once, all 0 at first (MX-30)."""
        counters = {label: self._ended.labels(name, label) for label in set(OUTCOMES.values())}
        return ModelTransactions(counters, self._seconds.labels(name))


class ModelTransactions:
    """Counts of one model."""

    def __init__(self, counters: dict[str, Counter], seconds: Histogram) -> None:
        """Keep the model's own; ``counters`` by label."""
        self._counters = counters
        self._seconds = seconds

    def ended(self, outcome: Outcome, seconds: float) -> None:
        """Count a transaction."""
        self._counters[OUTCOMES[outcome]].inc()
        self._seconds.observe(seconds)
