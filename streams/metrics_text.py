"""Triton's metric names in Prometheus' text format, written by hand (SEMANTICS §3, MX-01…MX-10).

Triton's counters have no ``_total`` and their values no decimal point, and its tests and dashboards match whole
lines; the Prometheus library renames the one and prints the other as a float. Labels stand in alphabetical order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace.streams.counts import Failure, ModelCounts

Labels: TypeAlias = Mapping[str, str]
Rows: TypeAlias = Callable[[ModelCounts], Iterable[tuple[Labels, int]]]


@dataclass(frozen=True, slots=True)
class Series:
    """The counts of one model version, with the labels that they are shown under.

    Attributes:
        model: Model name.
        version: Version number.
        tags: The configuration's ``metric_tags``; shown with ``_`` in front of each name.
        counts: What it has served.
    """

    model: str
    version: int
    tags: Labels
    counts: ModelCounts


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    text: str
    rows: Rows


def _plain(attribute: str) -> Rows:
    return lambda counts: (({}, getattr(counts, attribute)),)


def _microseconds(attribute: str) -> Rows:
    return lambda counts: (({}, getattr(counts, attribute) // 1_000),)


def _failures(counts: ModelCounts) -> Iterable[tuple[Labels, int]]:
    return [({"reason": reason.value}, counts.failure[reason]) for reason in Failure]


_FAMILIES = (
    _Family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        _plain("success"),
    ),
    _Family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        _failures,
    ),
    _Family(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        _plain("inference_count"),
    ),
    _Family(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        _plain("exec_count"),
    ),
    _Family(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds",
        _microseconds("request_ns"),
    ),
    _Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds",
        _microseconds("queue_ns"),
    ),
    _Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds",
        _microseconds("compute_input_ns"),
    ),
    _Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds",
        _microseconds("compute_infer_ns"),
    ),
    _Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds",
        _microseconds("compute_output_ns"),
    ),
    _Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model",
        _plain("pending"),
    ),
)


def triton_metrics(series: Iterable[Series]) -> str:
    """Return the text of all of Triton's model metrics; empty where no version is loaded (MX-30)."""
    shown = sorted(series, key=lambda item: (item.model, item.version))
    if not shown:
        return ""
    lines: list[str] = []
    for family in _FAMILIES:
        lines.append(f"# HELP {family.name} {family.text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for item in shown:
            common = {"model": item.model, "version": str(item.version)}
            common |= {f"_{name}": value for name, value in item.tags.items()}
            for extra, value in family.rows(item.counts):
                lines.append(f"{family.name}{_label_text(common | dict(extra))} {value}")
    return "\n".join(lines) + "\n"


def _label_text(labels: Labels) -> str:
    pairs = (f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    """Escape a label's value as the text format asks."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
