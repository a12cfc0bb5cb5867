"""Decoupled responses are numbered per request, and every request ends with a final one."""

from __future__ import annotations

import numpy as np
from headrace.consumers.decoupled import (
    Numbering,
    cancelled,
    may_leave,
    not_gone,
    not_left,
    numbered,
)
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import BackendError
from service_parts import make_entry, make_signature

SIGNATURE = make_signature()


def batch(rows: list[int]) -> Batch:
    return Batch(SIGNATURE, [make_entry(rows=n, offset=i) for i, n in enumerate(rows)])


def column(*values: float) -> dict[str, np.ndarray]:
    return {"OUTPUT0": np.array([[v, v] for v in values], np.float32)}


def told(batch_: Batch, emitted: list[Responses]) -> list[tuple[int, int, bool, int]]:
    """Member, index, final, rows of outputs: one line per answer, in order."""
    lines = []
    for responses, index in numbered(batch_, emitted):
        members = range(len(batch_)) if responses.members is None else responses.members
        rows = sum(len(a) for a in responses.outputs.values())
        lines += [(m, index, responses.final, rows) for m in members]
    return lines


def test_two_responses_to_all() -> None:
    """Indices 0 and 1, only the second final; nothing is added."""
    emitted = [Responses(column(1, 2), final=False), Responses(column(3, 4))]
    assert told(batch([1, 1]), emitted) == [
        (0, 0, False, 2),
        (1, 0, False, 2),
        (0, 1, True, 2),
        (1, 1, True, 2),
    ]


def test_no_response_ends_with_an_empty_final_one() -> None:
    """DC-02: zero responses are still an end."""
    assert told(batch([1, 1]), []) == [(0, 0, True, 0), (1, 0, True, 0)]


def test_an_unmarked_end_is_closed() -> None:
    """The empty final one follows with the next index, only for who needs it."""
    emitted = [Responses(column(1), members=[0], final=False), Responses(column(2), members=[1])]
    assert told(batch([1, 1]), emitted) == [(0, 0, False, 1), (1, 0, True, 1), (0, 1, True, 0)]


def test_members_at_different_indices_are_split_by_rows() -> None:
    """Each keeps its own rows, also of requests that are batches."""
    emitted = [
        Responses(column(1, 1), members=[0], final=False),
        Responses(column(2, 2, 3)),
    ]
    found = list(numbered(batch([2, 1]), emitted))
    assert [(list(r.members), i) for r, i in found[1:]] == [([1], 0), ([0], 1)]
    assert found[1][0].outputs["OUTPUT0"][:, 0].tolist() == [3]
    assert found[2][0].outputs["OUTPUT0"][:, 0].tolist() == [2, 2]


def test_behind_a_final_response_or_an_error_comes_nothing() -> None:
    """DC-01: a plug-in that goes on after its end adds nothing to the log."""
    emitted = [
        Responses(column(1, 2), errors={1: BackendError("it raised")}, final=False),
        Responses(column(3, 4)),
        Responses(column(5, 6)),
    ]
    assert told(batch([1, 1]), emitted) == [
        (0, 0, False, 2),
        (1, 0, False, 2),
        (0, 1, True, 1),
    ]


def leave(batch_: Batch, *emitted: Responses) -> list[tuple[list[int], int]]:
    """Let responses leave while the execution goes on; members and index of what does."""
    numbering = Numbering(batch_)
    return [
        (list(range(len(batch_)) if r.members is None else r.members), index)
        for responses in emitted
        for r, index in may_leave(batch_, numbering.take(responses))
    ]


def left(batch_: Batch, *emitted: Responses) -> list[tuple[list[int], int]]:
    """Members and index of what is left for the execution's end."""
    return [
        (list(range(len(batch_)) if r.members is None else r.members), index)
        for r, index in not_left(batch_, numbered(batch_, emitted))
    ]


def test_what_has_left_leaves_no_more_when_the_requests_run_again() -> None:
    """B31: the second try begins with index 0, which its clients have."""
    entries = batch([1, 1])
    first = Responses(column(1, 2), final=False)
    assert leave(entries, first) == [([0, 1], 0)]
    alone = Batch(SIGNATURE, [entries.entries[1]])
    one, last = Responses(column(2), final=False), Responses(column(2))
    assert leave(alone, one, last) == [([0], 1)]
    assert left(alone, one, last) == []
    assert left(entries, first) == [([0], 1)]


def test_errors_and_what_is_remembered_wait_for_the_end() -> None:
    """Errors become dead letters there, and responses under a key are remembered together (P-17)."""
    entries = batch([1, 1, 1])
    entries.entries[2].idempotency_key = b"k"
    emitted = Responses(column(1, 2, 3), errors={1: BackendError("it raised")})
    assert leave(entries, emitted) == [([0], 0)]
    assert left(entries, emitted) == [([1, 2], 0)]


def test_what_could_not_be_written_is_left_and_so_is_all_behind_it() -> None:
    """Or a gap would stand in the middle of a stream, and nobody would say why."""
    entries = batch([1])
    first, second = Responses(column(1), final=False), Responses(column(2))
    numbering = Numbering(entries)
    ((gone, index),) = may_leave(entries, numbering.take(first))
    not_gone(entries, gone, index)
    assert may_leave(entries, numbering.take(second)) == []
    assert left(entries, first, second) == [([0], 0), ([0], 1)]


def test_CX02_who_was_cancelled_ends_with_that_unless_its_end_has_left() -> None:
    """One error for each, whatever is left of its responses."""
    entries = batch([1, 1])
    for entry in entries.entries:
        entry.is_cancelled = entry is not entries.entries[1]
    more = [Responses(column(1, 2), final=False), Responses(column(3, 4))]
    assert leave(entries, more[0]) == [([1], 0)]
    found = cancelled(entries, not_left(entries, numbered(entries, more)))
    assert [refusal.entry for refusal in found] == [entries.entries[0]]
    entries.entries[0].streamed = 2
    assert cancelled(entries, not_left(entries, numbered(entries, more))) == []
