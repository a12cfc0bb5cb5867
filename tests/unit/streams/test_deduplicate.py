"""Dropping answers that came before: by request and response, within a window, and never one that may be new."""

import pytest
from audit_kit import REQUESTS, answer, at, value_of
from headrace.schemas.errors import ConfigError
from headrace.streams import deduplicate
from headrace.streams.deduplicate import Deduplicator


def test_P16_the_first_copy_is_passed_on_whatever_attempt_and_value_say():
    first, other = answer(at(0, 3)), answer(at(0, 4))
    again = answer(at(0, 3), attempt=2, value=value_of((1.000001, 2.0)))
    once = Deduplicator()
    assert once.fresh([first, other, again]) == [first, other]
    assert once.fresh([other, answer(at(1, 4))])[0].partition == 1
    assert once.dropped == 2


def test_DC01_responses_are_told_apart_by_their_index():
    run = [answer(at(0, 3), index=i, final=i == 2) for i in range(3)]
    once = Deduplicator()
    assert once.fresh(run[:2]) == run[:2]
    assert once.fresh(run) == run[2:]
    error = answer(at(0, 3), status="INTERNAL")
    assert once.fresh([error, error]) == [error]


def test_what_names_no_request_is_passed_on():
    strange = [answer("nonsense"), answer("a/b"), answer("a/0/x")] * 2
    assert Deduplicator().fresh(strange) == strange


def test_what_has_left_the_window_is_passed_on_and_counted():
    once = Deduplicator(window=8)
    assert once.fresh([answer(at(0, 0)), answer(at(0, 7))])
    assert once.is_repeat(answer(at(0, 0)))
    assert not once.is_repeat(answer(at(0, 8)))
    assert not once.is_repeat(answer(at(0, 0)))
    assert (once.dropped, once.unsure) == (1, 1)


def test_partitions_are_bounded_and_the_one_that_was_silent_longest_goes():
    once = Deduplicator(max_partitions=2)
    for partition in (0, 1, 0, 2):
        once.is_repeat(answer(at(partition, 5)))
    assert once.is_repeat(answer(at(0, 5)))
    assert not once.is_repeat(answer(at(1, 5)))


def test_numbered_responses_are_bounded(monkeypatch):
    monkeypatch.setattr(deduplicate, "MAX_NUMBERED", 3)
    monkeypatch.setattr(deduplicate, "MAX_RESPONSES", 10)
    once = Deduplicator()
    for offset in range(4):
        once.is_repeat(answer(at(0, offset), index=0))
    assert [once.is_repeat(answer(at(0, offset), index=0)) for offset in (3, 0)] == [True, False]
    endless = answer(at(0, 9), index=10)
    assert once.fresh([endless, endless]) == [endless, endless]


def test_a_topic_that_was_made_again_is_forgotten():
    once = Deduplicator()
    run = [answer(at(0, 0)), answer(at(0, 1), index=0), answer("t.other.requests/0/0")]
    assert once.fresh(run) == run
    once.forget(REQUESTS)
    assert once.fresh(run) == run[:2]


@pytest.mark.parametrize("bound", [{"window": 12}, {"window": 4}, {"max_partitions": 0}])
def test_bounds_that_cannot_be_used_are_refused(bound):
    with pytest.raises(ConfigError, match=next(iter(bound))):
        Deduplicator(**bound)
