"""Who counts a gateway's calls: `headrace.streams.gateway_metrics.GatewayMetrics`, or a test's own."""

from __future__ import annotations

from typing import Protocol

from headrace.schemas.errors import Code


class Observer(Protocol):
    """Told about calls, for metrics."""

    def ended(self, model: str, code: Code, seconds: float) -> None:
        """A call to a model of the fleet ended, so or so."""
