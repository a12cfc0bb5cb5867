"""Lag, rates and owners of partitions, from two looks."""

from __future__ import annotations

import pytest
from headrace.schemas.record import TP
from headrace.streams.partition_view import Look, partition_views
from headrace.streams.status import WorkerStatus

A, B = TP("t", 0), TP("t", 1)


def worker(name: str, *assigned: int) -> WorkerStatus:
    return WorkerStatus(name, "m", 0, assigned=assigned)


def test_rates_are_taken_between_two_looks_and_owners_are_who_says_so():
    before = Look(10.0, {A: 5, B: 0}, {A: 100, B: 0}, {A: 40})
    after = Look(14.0, {A: 5, B: 0}, {A: 140, B: 0}, {A: 120})
    first, second = partition_views(before, after, [worker("w2", 0), worker("w1", 0, 7)])
    assert (first.tp, first.first, first.end, first.committed, first.lag) == (A, 5, 140, 120, 20)
    assert (first.in_per_s, first.done_per_s) == (10.0, 20.0)
    assert first.workers == ("w1", "w2")
    assert (second.tp, second.committed, second.lag, second.workers) == (B, None, 0, ())


@pytest.mark.parametrize(
    ("first", "end", "committed", "lag"),
    [
        (30, 90, {}, 60),  # nothing committed: what is there
        (50, 90, {A: 40}, 40),  # retention took what was not read
        (0, 3, {A: 40}, 0),  # made anew
    ],
)
def test_lag_counts_records_that_are_there(first, end, committed, lag):
    look = Look(0.0, {A: first}, {A: end}, committed)
    (view,) = partition_views(look, look, [])
    assert view.lag == lag
    assert (view.in_per_s, view.done_per_s) == (0, 0)
