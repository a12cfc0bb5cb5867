"""Answers in arrival order across instances (SEMANTICS DB-03, DB-24)."""

from __future__ import annotations

import random

import pytest
from batching_kit import entry
from headrace.consumers.ordering import PreserveOrdering
from headrace.schemas.batch import Entry
from headrace.schemas.record import TP


@pytest.fixture
def entries() -> list[Entry]:
    return [entry(offset=i, tp=TP("t", i % 2)) for i in range(6)]


@pytest.fixture
def ordering(entries: list[Entry]) -> PreserveOrdering[int]:
    made: PreserveOrdering[int] = PreserveOrdering()
    made.admit(entries[:4])
    made.admit(entries[4:])
    return made


def offsets(released: list[tuple[Entry, int]]) -> list[int]:
    return [one.record.offset for one, _ in released]


def test_DB24_whatever_finishes_first_leaves_in_order(
    ordering: PreserveOrdering[int], entries: list[Entry]
) -> None:
    """The second batch waits for the first; then both leave, each with its own answer."""
    assert ordering.done(entries[3:], [3, 4, 5]) == []
    assert (len(ordering), ordering.held) == (6, 3)
    assert offsets(ordering.done(entries[:1], [0])) == [0]
    released = ordering.done([entries[2], entries[1]], [2, 1])
    assert released == [(one, one.record.offset) for one in entries[1:]]
    assert (len(ordering), ordering.held) == (0, 0)


def test_QT04_a_refused_entry_holds_nobody_back(
    ordering: PreserveOrdering[int], entries: list[Entry]
) -> None:
    """It is answered out of turn; those behind it go on. An entry that was never admitted is passed over."""
    ordering.done(entries[1:3], [1, 2])
    assert offsets(ordering.skip([entries[0], entry(offset=99)])) == [1, 2]
    assert ordering.skip([entries[4]]) == []
    assert offsets(ordering.done([entries[3]], [3])) == [3]
    assert len(ordering) == 1


def test_any_order_of_finishing_is_released_in_order() -> None:
    """A thousand entries, finished in a shuffled order, leave as they came and once each."""
    ordering: PreserveOrdering[int] = PreserveOrdering()
    entries = [entry(offset=i) for i in range(1000)]
    ordering.admit(entries)
    order = random.Random(7).sample(range(1000), 1000)
    released: list[tuple[Entry, int]] = []
    for i in order:
        released += ordering.done([entries[i]], [i])
        assert len(ordering) == 1000 - len(released)
    assert released == [(one, i) for i, one in enumerate(entries)]


def test_misuse_is_our_bug(ordering: PreserveOrdering[int], entries: list[Entry]) -> None:
    """Admitting twice, or finishing what was not admitted, fails loudly."""
    with pytest.raises(AssertionError):
        ordering.admit([entries[0]])
    with pytest.raises(KeyError):
        ordering.done([entry()], [0])
    with pytest.raises(ValueError, match="zip"):
        ordering.done(entries[:1], [])


def test_repr_shows_the_counts(ordering: PreserveOrdering[int], entries: list[Entry]) -> None:
    ordering.done([entries[3]], [3])
    assert repr(ordering) == "PreserveOrdering(5 awaited, 1 held)"
