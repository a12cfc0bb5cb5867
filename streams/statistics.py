"""Triton's inference statistics, summed over the fleet's live workers (SEMANTICS §2.7, KX-11). Pure.

A sum covers every worker that lives and has the version loaded. One that leaves takes its part along, as with Triton a
reload begins at 0 (MC-14); the figures of each worker by itself are there for whoever must tell the two apart.
"""

from __future__ import annotations

from typing import Any

from headrace.schemas.errors import InvalidRequest
from headrace.streams.counts import BatchCounts, ModelCounts, ResponseCounts
from headrace.streams.fleet import Fleet
from headrace.streams.model_view import LOADED, version_number


def statistics(
    fleet: Fleet, now_ms: int, model: str = "", version: str = "", *, by_worker: bool = False
) -> dict[str, Any]:
    """Return the statistics of READY versions, as V2 JSON has them (ST-01).

    Args:
        fleet: What workers say.
        now_ms: Milliseconds since the epoch.
        model: Which one; ``""`` is all.
        version: Which of its versions; ``""`` is all.
        by_worker: Give each item a field ``workers`` too: the same figures of each worker, under its name.

    Raises:
        InvalidRequest: The model, or this version of it, is not READY (ST-06).
    """
    if not model:
        found = [
            (name, number) for name in fleet.models() for number in _ready(fleet, name, now_ms)
        ]
    else:
        found = [(model, number) for number in _asked(fleet, model, version, now_ms)]
    return {
        "model_stats": [
            _item(fleet, name, number, now_ms, by_worker=by_worker) for name, number in found
        ]
    }


def _ready(fleet: Fleet, model: str, now_ms: int) -> list[int]:
    view = fleet.view(model, now_ms)
    return view.ready_versions if view is not None else []


def _asked(fleet: Fleet, model: str, version: str, now_ms: int) -> list[int]:
    ready = _ready(fleet, model, now_ms)
    if not ready:
        raise InvalidRequest(f"requested model '{model}' is not available")
    if not version:
        return ready
    number = version_number(version)
    if number not in ready:
        raise InvalidRequest(
            f"requested model version is not available for model '{model}': version {version:.20}, "
            f"expected one of {', '.join(map(str, ready))}"
        )
    return [number]


def _item(
    fleet: Fleet, model: str, number: int, now_ms: int, *, by_worker: bool
) -> dict[str, Any]:
    total = ModelCounts()
    workers = []
    for status in fleet.workers(model, now_ms):
        for version in status.versions:
            if version.version == number and version.state in LOADED:
                total.add(version.counts)
                workers.append({"worker": status.worker, **_figures(version.counts)})
    item = {"name": model, "version": str(number), **_figures(total)}
    if by_worker:
        item["workers"] = workers
    return item


def _figures(counts: ModelCounts) -> dict[str, Any]:
    success = counts.success
    return {
        "last_inference": counts.last_inference_ms,
        "inference_count": counts.inference_count,
        "execution_count": counts.exec_count,
        "inference_stats": {
            "success": _duration(success, counts.request_ns),
            "fail": _duration(sum(counts.failure.values()), counts.fail_ns),
            "queue": _duration(success, counts.queue_ns),
            "compute_input": _duration(success, counts.compute_input_ns),
            "compute_infer": _duration(success, counts.compute_infer_ns),
            "compute_output": _duration(success, counts.compute_output_ns),
            # No response cache is offered yet; Triton's clients expect the fields.
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "response_stats": {
            str(index): _response(part) for index, part in sorted(counts.responses.items())
        },
        "batch_stats": [_batch(rows, part) for rows, part in sorted(counts.batches.items())],
        "memory_usage": [],
    }


def _batch(rows: int, part: BatchCounts) -> dict[str, Any]:
    return {
        "batch_size": rows,
        "compute_input": _duration(part.count, part.compute_input_ns),
        "compute_infer": _duration(part.count, part.compute_infer_ns),
        "compute_output": _duration(part.count, part.compute_output_ns),
    }


def _response(part: ResponseCounts) -> dict[str, Any]:
    computed = part.success + part.fail
    return {
        "compute_infer": _duration(computed, part.compute_infer_ns),
        "compute_output": _duration(computed, part.compute_output_ns),
        "success": _duration(part.success, part.success_ns),
        "fail": _duration(part.fail, part.fail_ns),
        "empty_response": _duration(part.empty, part.empty_ns),
        "cancel": _duration(part.cancel, part.cancel_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
