"""What one process counts of one model version, and its form in status records (SEMANTICS §2.7, §3).

Durations are nanoseconds, as Triton's statistics have them; its metrics are the same numbers in microseconds. What is
counted by batch size or by response is bounded, for each change of it travels in a status record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from headrace.streams.json_fields import JsonObject, typed

MAX_BATCH_SIZES = 1024
"""Batch sizes that are counted apart; batches of further sizes are in the totals only."""

MAX_RESPONSE_INDEXES = 128
"""Responses of a request that are counted apart (a decoupled model may give any number); later ones are not."""


class Failure(StrEnum):
    """Why a counted request failed: the ``reason`` label of SEMANTICS MX-02."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class BatchCounts:
    """Executions of one batch size (SEMANTICS ST-02).

    Attributes:
        count: How many.
        compute_input_ns: Cumulative time to gather their inputs, ns.
        compute_infer_ns: Cumulative time in the model, ns.
        compute_output_ns: Cumulative time to split and encode their outputs, ns.
    """

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class ResponseCounts:
    """The responses of one index that a decoupled model gave (SEMANTICS DC-03).

    Attributes:
        success: With outputs.
        success_ns: From the execution's start, or the response before it, until they were given, ns.
        fail: Errors.
        fail_ns: The same for these.
        empty: That only say that nothing follows.
        empty_ns: The same for these.
        cancel: That were not given because the request was cancelled while it ran.
        cancel_ns: How long it had run by then at most, ns.
        compute_infer_ns: Time in the model of those with outputs and of errors, ns.
        compute_output_ns: Time to encode them, ns.
    """

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    empty: int = 0
    empty_ns: int = 0
    cancel: int = 0
    cancel_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class ModelCounts:
    """Counters of one model version in one process, incremented by its worker (SEMANTICS MX-01…MX-10, ST-01…ST-05).

    Attributes:
        success: Requests answered OK.
        failure: Failed requests by reason; all four reasons exist from the start (MX-02). What is refused
            before or at enqueue is not counted (MX-31).
        inference_count: Items: a request with batch size n adds n.
        exec_count: Executions of the model.
        last_inference_ms: When the last batch that ran was answered, ms since the epoch; 0 is never.
        request_ns: Cumulative time from admission to answer, ns.
        fail_ns: Cumulative time from admission to failure, ns (ST-05).
        queue_ns: Cumulative wait in the batcher, ns.
        compute_input_ns: Cumulative time to gather inputs, ns.
        compute_infer_ns: Cumulative time in the model, ns.
        compute_output_ns: Cumulative time to split and encode outputs, ns.
        pending: Requests that wait and do not execute yet; a gauge.
        batches: Rows of an execution → what is counted of such (ST-02).
        responses: Index → what is counted of such responses; only of decoupled models.
    """

    success: int = 0
    failure: dict[Failure, int] = field(default_factory=lambda: dict.fromkeys(Failure, 0))
    inference_count: int = 0
    exec_count: int = 0
    last_inference_ms: int = 0
    request_ns: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    pending: int = 0
    batches: dict[int, BatchCounts] = field(default_factory=dict)
    responses: dict[int, ResponseCounts] = field(default_factory=dict)

    def batch(self, rows: int) -> BatchCounts:
        """Return what is counted of executions with so many rows; beyond the bound something that nobody reads."""
        found = self.batches.get(rows)
        if found is None:
            found = BatchCounts()
            if len(self.batches) < MAX_BATCH_SIZES:
                self.batches[rows] = found
        return found

    def response(self, index: int) -> ResponseCounts:
        """Return what is counted of responses with this index; beyond the bound something that nobody reads."""
        if index >= MAX_RESPONSE_INDEXES:
            return ResponseCounts()
        return self.responses.setdefault(index, ResponseCounts())

    def add(self, other: ModelCounts) -> None:
        """Add another process's counts to these."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.last_inference_ms = max(self.last_inference_ms, other.last_inference_ms)
        for reason, count in other.failure.items():
            self.failure[reason] += count
        for rows, batch in other.batches.items():
            _add(self.batch(rows), batch)
        for index, response in other.responses.items():
            _add(self.response(index), response)


Part = TypeVar("Part", BatchCounts, ResponseCounts)

_PARTS = ("failure", "batches", "responses")
_NUMBERS = tuple(item.name for item in fields(ModelCounts) if item.name not in _PARTS)
_SUMS = tuple(name for name in _NUMBERS if name != "last_inference_ms")


def counts_json(counts: ModelCounts) -> dict[str, Any]:
    """Return counts as a status record carries them: parts as lists of numbers, in the order of their fields."""
    body: dict[str, Any] = {name: getattr(counts, name) for name in _NUMBERS}
    body["failure"] = counts.failure
    if counts.batches:
        body["batches"] = {str(rows): _numbers(part) for rows, part in counts.batches.items()}
    if counts.responses:
        body["responses"] = {str(at): _numbers(part) for at, part in counts.responses.items()}
    return body


def counts_of(body: JsonObject) -> ModelCounts:
    """Read counts; what is missing is 0, and numbers that a later release adds to a part are ignored.

    Raises:
        TypeError: A field is of the wrong type.
        ValueError: A batch size or an index is no number.
    """
    counts = ModelCounts(**{name: typed(body, name, int, 0) for name in _NUMBERS})
    failure = typed(body, "failure", dict, {})
    for reason in Failure:
        counts.failure[reason] = typed(failure, reason, int, 0)
    counts.batches = _parts(body, "batches", BatchCounts, MAX_BATCH_SIZES)
    counts.responses = _parts(body, "responses", ResponseCounts, MAX_RESPONSE_INDEXES)
    return counts


def _add(target: Part, other: Part) -> None:
    for item in fields(target):
        setattr(target, item.name, getattr(target, item.name) + getattr(other, item.name))


def _numbers(part: BatchCounts | ResponseCounts) -> list[int]:
    return [getattr(part, item.name) for item in fields(part)]


def _parts(body: JsonObject, name: str, kind: type[Part], limit: int) -> dict[int, Part]:
    found: dict[int, Part] = {}
    names = [item.name for item in fields(kind)]
    given: Mapping[str, object] = typed(body, name, dict, {})
    for key, numbers in list(given.items())[:limit]:
        found[int(key)] = kind(**dict(zip(names, _ints(name, numbers), strict=False)))
    return found


def _ints(name: str, numbers: object) -> Iterable[int]:
    return [
        typed({name: item}, name, int, None) for item in typed({name: numbers}, name, list, None)
    ]
