"""Decoupled responses are numbered per request, and every request ends with a final one."""

from __future__ import annotations

import numpy as np
from headrace.consumers.decoupled import numbered
from headrace.schemas.batch import Batch, Responses
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
