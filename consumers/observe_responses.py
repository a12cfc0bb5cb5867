"""What is counted of a decoupled model's responses, each by its index within its request (SEMANTICS DC-03)."""

from __future__ import annotations

from headrace.consumers.encoding import Encoded
from headrace.consumers.execution import Execution, Part
from headrace.schemas.errors import Code, WrongOutput
from headrace.streams.counts import ModelCounts


def count_responses(counts: ModelCounts, execution: Execution, encoded: Encoded) -> None:
    """Count the responses of a batch that ran; a piece whose outputs fit nothing counts as a failure of each entry.

    Args:
        counts: Of the model version; its ``responses`` are added to.
        execution: What became of the batch.
        encoded: What is said of it; each response gets an equal share of the time that this took.
    """
    given = sum(len(part.batch) for part in execution.parts for _ in part.responses)
    share_ns = encoded.output_ns // given if given else 0
    unfit = {id(entry) for entry, error in encoded.failures if isinstance(error, WrongOutput)}
    for refusal in encoded.failures:
        if refusal.error.code is Code.CANCELLED:
            gone = counts.response(refusal.entry.streamed)
            gone.cancel += 1
            gone.cancel_ns += execution.ended_ns - execution.gathered_ns
    for part in execution.parts:
        if part.error is None and not any(id(entry) in unfit for entry in part.batch.entries):
            _count_part(counts, part, execution.gathered_ns, share_ns)
            continue
        failed = counts.response(0)
        for entry in part.batch.entries:
            if entry is not None:
                failed.fail += 1
                failed.fail_ns += execution.ended_ns - execution.gathered_ns


def _count_part(counts: ModelCounts, part: Part, begun_ns: int, share_ns: int) -> None:
    """Count what a piece of the batch gave; a request that is left open ends with an empty response (DC-01)."""
    entries = part.batch.entries
    indexes = [0] * len(entries)
    since = [begun_ns] * len(entries)
    is_open = [entry is not None for entry in entries]
    for responses, at_ns in zip(part.responses, part.times_ns, strict=True):
        for member in range(len(entries)) if responses.members is None else responses.members:
            if not is_open[member]:
                continue  # padding, or behind its final response: nobody gets it
            found = counts.response(indexes[member])
            took_ns = at_ns - since[member]
            if member in responses.errors:
                found.fail += 1
                found.fail_ns += took_ns
            elif responses.outputs:
                found.success += 1
                found.success_ns += took_ns
            else:
                found.empty += 1
                found.empty_ns += took_ns
            if member in responses.errors or responses.outputs:
                found.compute_infer_ns += took_ns
                found.compute_output_ns += share_ns
            indexes[member] += 1
            since[member] = at_ns
            if responses.final or member in responses.errors:
                is_open[member] = False
    for index, still_open in zip(indexes, is_open, strict=True):
        if still_open:
            counts.response(index).empty += 1
