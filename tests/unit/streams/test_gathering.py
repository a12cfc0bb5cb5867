"""How long records gather: no longer than more come, and not at all where few calls are open (FAULTS B93)."""

import pytest
from headrace.streams.gathering import (
    ENOUGH,
    ENOUGH_SHARE,
    FEW_CALLS,
    GAPS,
    LOOK_S,
    Gathering,
)

GATHER_S = 0.015


class Calls:
    """So many are open."""

    def __init__(self, count):
        self.count = count

    def __call__(self):
        return self.count


@pytest.mark.parametrize("count", range(FEW_CALLS))
def test_B93_few_calls_never_wait(count):
    gathering = Gathering(GATHER_S, Calls(count))
    assert gathering.is_enough(1)


def test_B93_without_a_bound_nothing_waits():
    assert Gathering(0.0, Calls(500)).is_enough(1)


@pytest.mark.parametrize(
    ("count", "enough"), [(8, 7), (16, 13), (39, 32), (64, ENOUGH), (1000, ENOUGH)]
)
def test_B93_nearly_all_that_were_open_are_enough_and_so_are_many(count, enough):
    gathering = Gathering(GATHER_S, Calls(count))
    assert not gathering.is_enough(enough - 1)
    assert gathering.is_enough(enough)
    assert enough == min(ENOUGH, -(-int(10 * ENOUGH_SHARE) * count // 10))


def test_B93_it_waits_as_long_as_more_come_and_no_longer_than_its_bound():
    gathering = Gathering(GATHER_S, Calls(100))
    at_s = gathering.begin(1, 5.0)
    assert at_s == 5.0 + LOOK_S
    count = 1
    looks = 0
    while (next_s := gathering.look(count := count + 1, at_s)) is not None:
        assert at_s < next_s <= 5.0 + GATHER_S
        at_s = next_s
        looks += 1
    assert at_s == 5.0 + GATHER_S
    assert looks == round(GATHER_S / LOOK_S) - 1
    assert gathering.look(count, gathering.begin(count, 9.0)) is None, "no more came"


def test_B93_many_calls_are_forgotten_once_they_are_gone():
    calls = Calls(64)
    gathering = Gathering(GATHER_S, calls)
    assert not gathering.is_enough(1)
    calls.count = 1
    waited = 0
    while not gathering.is_enough(1):
        gathering.published(1, float(waited))
        waited += 1
    assert waited < 20


@pytest.mark.parametrize(
    ("gap_s", "look_s"),
    [
        (0.0001, LOOK_S),
        (0.002, GAPS * 0.002),
        (0.0049, GAPS * 0.0049),
        (0.0051, LOOK_S),
        (0.5, LOOK_S),
    ],
)
@pytest.mark.parametrize("count", [1, 3, 32])
def test_B93_it_looks_after_a_few_usual_gaps_unless_they_are_as_long_as_the_bound(
    gap_s, look_s, count
):
    gathering = Gathering(GATHER_S, Calls(100))
    now_s = 7.0
    for _ in range(100):
        gathering.published(count, now_s)
        now_s += count * gap_s
    assert gathering.begin(1, now_s) - now_s == pytest.approx(look_s, rel=0.01)
    assert gathering.look(2, now_s) - now_s == pytest.approx(look_s, rel=0.01)
