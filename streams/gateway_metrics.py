"""Headrace's own metrics of a gateway, by Prometheus' conventions: one prefix, seconds, ``_total`` (FAULTS B78).

No label takes a value that a client chose: a model's name is one only once the fleet knows the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.schemas.errors import Code
from headrace.streams.gateway import Gateway
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CALL_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
"""Upper bounds of the call duration histogram, seconds: from a memory log's hop to the default deadline."""


class GatewayMetrics(Collector):
    """Headrace's metrics of one gateway. Give it to the gateway as its observer, then `watch` the gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with ``registry``."""
        self._gateway: Gateway | None = None
        # Collected in this order, and ours drops the histogram's series of models that are gone.
        registry.register(self)
        self._durations = Histogram(
            "headrace_gateway_call_duration_seconds",
            "Time from the call's admission to its answer",
            ("model", "status"),
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._series: dict[tuple[str, Code], Histogram] = {}

    def watch(self, gateway: Gateway) -> None:
        """Show this gateway's counts from now on."""
        self._gateway = gateway

    def ended(self, model: str, code: Code, seconds: float) -> None:
        """Count a call that ended; see `headrace.streams.gateway.Observer`."""
        series = self._series.get((model, code))
        if series is None:
            series = self._series[model, code] = self._durations.labels(model, code.value)
        series.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Return what the gateway counts itself; called at each scrape."""
        gateway = self._gateway
        if gateway is None:
            return
        self._forget(set(gateway.fleet.models()))
        yield GaugeMetricFamily(
            "headrace_gateway_open_calls", "Calls that wait for their reply", gateway.open_calls
        )
        yield GaugeMetricFamily(
            "headrace_gateway_listening",
            "1 while the gateway reads its replies",
            int(gateway.is_listening),
        )
        yield GaugeMetricFamily(
            "headrace_gateway_stream_waiting_bytes",
            "Bytes of responses that wait for the clients of streams",
            gateway.waiting_bytes,
        )
        yield GaugeMetricFamily(
            "headrace_gateway_async_calls",
            "Accepted calls of all gateways that wait for their answers, as far as this one reads them",
            gateway.async_calls.table.waiting,
        )
        for name, text, value in (
            (
                "repeated_responses",
                "Responses of streams that came once more",
                gateway.repeated_responses,
            ),
            ("late_replies", "Replies that came after their call ended", gateway.late_replies),
            ("foreign_replies", "Other gateways' replies, dropped", gateway.foreign_replies),
            ("abandoned_calls", "Calls whose caller went away", gateway.abandoned),
            (
                "dropped_async_answers",
                "Accepted calls and their answers that were dropped before their time",
                gateway.async_calls.table.dropped,
            ),
            ("corrupt_statuses", "Status records that were no status", gateway.fleet.corrupt),
        ):
            yield CounterMetricFamily(f"headrace_gateway_{name}", text, value)
        refused = CounterMetricFamily(
            "headrace_gateway_refused_calls",
            "Calls that were refused before anything was produced",
            labels=("reason",),
        )
        for reason, count in gateway.refused.items():
            refused.add_metric((reason.value,), count)
        yield refused

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known at the first scrape."""
        return ()

    def _forget(self, models: set[str]) -> None:
        """Drop the series of models that are gone (FAULTS B12's kind)."""
        for model, code in [key for key in self._series if key[0] not in models]:
            del self._series[model, code]
            self._durations.remove(model, code.value)
