"""The oracle of the sequence storms, by hand-written cases: a wrong oracle would pass a wrong worker."""

from __future__ import annotations

import pytest
from headrace.schemas.errors import Reason
from headrace.schemas.sequence import Flag
from sequence_oracle import FACTORS, INITIAL, Asked, Due, Oracle, folded

IDLE_MS = 10
NEWEST = max(FACTORS)
X, Y = 7, "7"


def start(name, value, at=0, **more):
    return Asked(name, value, at, start=True, **more)


def step(name, value, at=0, **more):
    return Asked(name, value, at, **more)


def fold(*values, version=NEWEST):
    state = INITIAL
    for value in values:
        state = folded(state, value, version)
    return state


def answers(*asked: Asked) -> list[object]:
    """What an oracle says to these in turn: the output or the reason."""
    oracle = Oracle(IDLE_MS)
    dues: list[Due] = [oracle.next(one) for one in asked]
    return [due.value if due.reason is None else due.reason for due in dues]


UNKNOWN, EXPIRED = Reason.SEQUENCE_UNKNOWN, Reason.SEQUENCE_EXPIRED

CASES = {
    "steps of two ids that look alike (KX-12)": (
        [start(X, 1), start(Y, 2), step(X, 3), step(Y, 4)],
        [fold(1), fold(2), fold(1, 3), fold(2, 4)],
    ),
    "no START first (SQ-03)": ([step(X, 1), start(X, 2)], [UNKNOWN, fold(2)]),
    "after END (SQ-05)": (
        [start(X, 1), step(X, 2, end=True), step(X, 3), start(X, 4)],
        [fold(1), fold(1, 2), UNKNOWN, fold(4)],
    ),
    "a sequence of one (SQ-06)": ([start(X, 1, end=True), step(X, 2)], [fold(1), UNKNOWN]),
    "START on a live id (SQ-04)": (
        [start(X, 1), step(X, 2), start(X, 3), step(X, 4)],
        [fold(1), fold(1, 2), fold(3), fold(3, 4)],
    ),
    "silence up to the limit (P-15)": (
        [start(X, 1, 0), step(X, 2, 10), step(X, 3, 20)],
        [fold(1), fold(1, 2), fold(1, 2, 3)],
    ),
    "silence above it, and it stays so (B89)": (
        [start(X, 1, 0), step(X, 2, 11), step(X, 3, 12), start(X, 4, 13), step(X, 5, 14)],
        [fold(1), EXPIRED, EXPIRED, fold(4), fold(4, 5)],
    ),
    "an error of the model (SQ-17)": (
        [start(X, 1), step(X, 2, fails=True), step(X, 3)],
        [fold(1), Reason.BACKEND_FAILED, fold(1, 3)],
    ),
    "an error at START (SQ-17, SQ-18)": (
        [start(X, 1), start(X, 2, fails=True), step(X, 3)],
        [fold(1), Reason.BACKEND_FAILED, fold(3)],
    ),
    "an error at END (SQ-05)": (
        [start(X, 1), step(X, 2, end=True, fails=True), step(X, 3)],
        [fold(1), Reason.BACKEND_FAILED, UNKNOWN],
    ),
    "an error counts as activity": (
        [start(X, 1, 0), step(X, 2, 8, fails=True), step(X, 3, 16)],
        [fold(1), Reason.BACKEND_FAILED, fold(1, 3)],
    ),
    "a bad request touches nothing, not even the time": (
        [start(X, 1, 0), step(X, 2, 8, refused=Reason.INVALID_REQUEST), step(X, 3, 16)],
        [fold(1), Reason.INVALID_REQUEST, EXPIRED],
    ),
    "the version on which it started": (
        [start(X, 1, version=1), step(X, 2), start(X, 3), step(X, 4)],
        [fold(1, version=1), fold(1, 2, version=1), fold(3), fold(3, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_record_of_a_log_has_its_due_answer(name: str) -> None:
    """The rules of SEMANTICS §4.6 and DELIVERY P-15, one log each."""
    asked, expected = CASES[name]
    assert answers(*asked) == expected


def test_what_a_later_owner_goes_on_with() -> None:
    """Live ones alone, ended and expired ones not; a failed step leaves its sequence live."""
    oracle = Oracle(IDLE_MS)
    for asked in (
        start("live", 1),
        start("ended", 2, end=True),
        start("expired", 3),
        step("expired", 4, 11),
        start("failed", 5, 20, fails=True),
        step("never", 6, 20),
    ):
        oracle.next(asked)
    assert set(oracle.live()) == {b"s:live", b"s:failed"}
    assert oracle.known[b"s:expired"].flag is Flag.EXPIRED


def test_the_fold_shows_a_skipped_a_repeated_and_a_swapped_step() -> None:
    """Else no storm could."""
    right = fold(1, 2, 3)
    wrong = {fold(1, 3), fold(1, 2, 2, 3), fold(2, 1, 3), fold(1, 2, 3, version=1), fold(2, 3)}
    assert right not in wrong
    assert len(wrong) == 5
