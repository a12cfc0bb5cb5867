"""What a worker counts of records that ended their workers, by model (DELIVERY P-14)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter


class AttemptMetrics:
    """Metrics of one worker process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self._quarantined = Counter(
            "headrace_quarantined_records",
            "Records that ended their worker too often: answered worker_crashed and kept as dead letters.",
            ("model",),
            registry=registry,
        )

    def model(self, name: str) -> Callable[[], None]:
        """Return what counts a record of a model that is not run any more; 0 at first (MX-30)."""
        return self._quarantined.labels(name).inc
