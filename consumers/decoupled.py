"""Numbers a decoupled model's responses per request, and closes those that were left open (SEMANTICS DC-01). Pure.

A request's answers carry ``response-index`` from 0 and ``final`` on the last. A model that gave no response, or
did not mark its last as final, gets an empty final one, so that each request ends in the log as it ends in Triton.
Behind a final response or an error of its own a request gets nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from headrace.consumers.batcher import Refusal
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import Cancelled


class Numbering:
    """Numbers the responses of one execution as they come."""

    __slots__ = ("_batch", "_counts", "_open")

    def __init__(self, batch: Batch) -> None:
        """Start before the first response to this batch."""
        self._batch = batch
        self._counts = [0] * len(batch)
        self._open = {index for index, entry in enumerate(batch.entries) if entry is not None}

    def take(self, responses: Responses) -> list[tuple[Responses, int]]:
        """Return the parts of some responses whose members stand at one index, and that index."""
        counts = self._counts
        given = list(range(len(counts)) if responses.members is None else responses.members)
        members = [member for member in given if member in self._open]
        parts = []
        for index in sorted({counts[member] for member in members}):
            chosen = [member for member in members if counts[member] == index]
            parts.append((only(self._batch, responses, chosen), index))
        for member in members:
            counts[member] += 1
            if responses.final or member in responses.errors:
                self._open.discard(member)
        return parts

    def rest(self) -> list[tuple[Responses, int]]:
        """Return the empty final responses to those that are open still."""
        counts = self._counts
        open_members = sorted(self._open)
        return [
            (Responses({}, members=[m for m in open_members if counts[m] == index]), index)
            for index in sorted({counts[member] for member in open_members})
        ]


def numbered(batch: Batch, emitted: Sequence[Responses]) -> Iterator[tuple[Responses, int]]:
    """Yield the responses of an execution that has ended, each with the index that all its members share.

    Args:
        batch: As it was executed.
        emitted: In the order of the model. One whose members stand at different indices is split.
    """
    numbering = Numbering(batch)
    for responses in emitted:
        yield from numbering.take(responses)
    yield from numbering.rest()


def only(batch: Batch, responses: Responses, chosen: Sequence[int]) -> Responses:
    """Return the part of some responses that concerns the chosen members, in their order."""
    members = range(len(batch)) if responses.members is None else responses.members
    if len(chosen) == len(members):
        return responses
    keep = np.concatenate(
        [
            np.full(1 if (e := batch.entries[member]) is None else e.rows, member in chosen)
            for member in members
        ]
    )
    return replace(
        responses,
        outputs={name: array[keep] for name, array in responses.outputs.items()},
        members=chosen,
        errors={member: error for member, error in responses.errors.items() if member in chosen},
    )


def narrowed(
    batch: Batch, responses: Responses, keep: Callable[[Entry], bool]
) -> Responses | None:
    """Return the part of some responses that concerns the entries to keep; None where there are none."""
    members = range(len(batch)) if responses.members is None else responses.members
    chosen = [m for m in members if (entry := batch.entries[m]) is not None and keep(entry)]
    return only(batch, responses, chosen) if chosen else None


def not_left(
    batch: Batch, numbered_responses: Iterable[tuple[Responses, int]]
) -> Iterator[tuple[Responses, int]]:
    """Yield what has not left while the execution went on, or while an earlier try of the same requests did."""
    for responses, index in numbered_responses:
        kept = narrowed(batch, responses, lambda entry: entry.streamed <= index)  # noqa: B023  # called at once
        if kept is not None:
            yield kept, index


def may_leave(batch: Batch, parts: Iterable[tuple[Responses, int]]) -> list[tuple[Responses, int]]:
    """Return what may leave while its execution goes on, and count it as having left.

    Errors wait for the end, where they are counted and kept as dead letters; so does everything under an idempotency
    key, whose responses are remembered together (DELIVERY P-17), and what nobody waits for any more.
    """
    leaving = []
    for responses, index in parts:
        failed = {id(batch.entries[member]) for member in responses.errors}

        def goes(entry: Entry, index: int = index, failed: set[int] = failed) -> bool:
            return (
                entry.streamed == index
                and id(entry) not in failed
                and not entry.is_cancelled
                and not entry.idempotency_key
            )

        kept = narrowed(batch, responses, goes)
        if kept is None:
            continue
        leaving.append((kept, index))
        for member in range(len(batch)) if kept.members is None else kept.members:
            entry = batch.entries[member]
            assert entry is not None
            entry.streamed = index + 1
    return leaving


def not_gone(batch: Batch, responses: Responses, index: int) -> None:
    """Take note that what `may_leave` counted could not leave."""
    for member in range(len(batch)) if responses.members is None else responses.members:
        entry = batch.entries[member]
        if entry is not None:
            entry.streamed = min(entry.streamed, index)


def cancelled(batch: Batch, left: Iterable[tuple[Responses, int]]) -> list[Refusal]:
    """Return who was cancelled while it ran, of those whose final response has not left (SEMANTICS CX-02)."""
    found: dict[int, Refusal] = {}
    for responses, _ in left:
        for member in range(len(batch)) if responses.members is None else responses.members:
            entry = batch.entries[member]
            if entry is not None and entry.is_cancelled:
                error = Cancelled("Request cancelled while the model ran it")
                found.setdefault(member, Refusal(entry, error))
    return list(found.values())
