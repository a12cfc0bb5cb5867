"""The ledger in any order of finishing: never backwards, the first unfinished offset, nothing lost in metadata."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from headrace.consumers.ledger import (
    OffsetLedger,
    decode_metadata,
    encode_metadata,
)
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


class Place(NamedTuple):
    """As much of a record as the ledger reads."""

    offset: int


class Journey(NamedTuple):
    """Which offsets exist, how they come in blocks, and in which order some of them finish, also in blocks."""

    offsets: list[int]
    blocks: list[int]
    finishing: list[list[int]]


@st.composite
def journeys(draw: st.DrawFn) -> Journey:
    """Logs with holes up to a million long; a part of the records never finishes."""
    steps = draw(
        st.lists(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3, 40, 1_000_000]), min_size=1, max_size=80)
    )
    at = draw(st.integers(0, 5))
    offsets = [at := at + step for step in steps]
    blocks = draw(st.lists(st.integers(1, 12), min_size=1, max_size=20))
    shuffled = draw(st.permutations(offsets))
    finishing = shuffled[: draw(st.integers(0, len(shuffled)))]
    sizes = draw(st.lists(st.integers(1, 10), min_size=1, max_size=10))
    cut: list[list[int]] = []
    while finishing:
        size = sizes[len(cut) % len(sizes)]
        cut.append(finishing[:size])
        finishing = finishing[size:]
    return Journey(offsets, blocks, cut)


def travel(make: Callable[..., OffsetLedger], journey: Journey) -> None:
    """Admit and finish in turn, and check each position against what is plainly known."""
    ledger = make(epoch=2)
    ledger.begin(journey.offsets[0])
    waiting = list(journey.offsets)
    known: set[int] = set()
    finished: set[int] = set()
    finishing = list(journey.finishing)
    low = -1
    turn = 0
    while waiting or finishing:
        if waiting:
            size = journey.blocks[turn % len(journey.blocks)]
            block, waiting = waiting[:size], waiting[size:]
            assert list(ledger.admit([Place(offset) for offset in block])) == [
                Place(offset) for offset in block
            ]
            known.update(block)
        while finishing and known.issuperset(finishing[0]):
            ledger.finish(finishing[0])
            finished.update(finishing.pop(0))
            low = check(ledger, known, finished, low)
        turn += 1
        low = check(ledger, known, finished, low)
    resume(ledger, make, journey, finished)


def check(ledger: OffsetLedger, known: set[int], finished: set[int], low: int) -> int:
    """The position is the first unfinished offset of what was read, and has not fallen."""
    unfinished = known - finished
    expected = min(unfinished) if unfinished else max(known) + 1
    position = ledger.position()
    assert position.offset == expected
    assert position.offset >= low
    assert position.epoch == 2
    assert all(ledger.is_finished(offset) == (offset in finished) for offset in known)
    return position.offset


def resume(
    ledger: OffsetLedger,
    make: Callable[..., OffsetLedger],
    journey: Journey,
    finished: set[int],
) -> None:
    """The next owner, who reads on from the position, runs exactly what is unfinished."""
    position = ledger.position()
    after = make(epoch=2)
    assert after.restore(position) == ""
    assert after.position() == position
    rest = [Place(offset) for offset in journey.offsets if offset >= position.offset]
    to_run = [place for place in rest if place.offset not in finished]
    assert list(after.admit(rest)) == to_run
    after.finish([place.offset for place in reversed(to_run)])
    assert after.position().offset == max(journey.offsets[-1] + 1, position.offset)
    assert after.position().metadata == ""


def hold(make: Callable[..., OffsetLedger], **options: object) -> None:
    """Try many journeys."""

    @settings(deadline=None, database=None, **options)
    @given(journeys())
    def journey(drawn: Journey) -> None:
        travel(make, drawn)

    journey()


def test_P1_position_and_metadata_hold_in_any_order() -> None:
    """With holes, blocks of any size, a part that never finishes, and a takeover at the end."""
    hold(OffsetLedger, max_examples=150)


class CommitsTheHighest(OffsetLedger):
    """Planted: the position jumps a gap (FAULTS B14)."""

    def finish(self, offsets):
        super().finish(offsets)
        if self._ends:
            self._low = self._ends[-1]


class StallsAtHoles(OffsetLedger):
    """Planted: what is not in the log is waited for."""

    def _step_over(self, start, end):
        pass


class ForgetsTheSet(OffsetLedger):
    """Planted: the metadata is dropped on restore (aiokafka's ``committed()``)."""

    def restore(self, position):
        return super().restore(replace(position, metadata=""))


class OverlooksNeighbours(OffsetLedger):
    """Planted: off by one, the offset after a finished run counts as finished."""

    def is_finished(self, offset):
        return super().is_finished(offset) or super().is_finished(offset - 1)


class GoesBackwards(OffsetLedger):
    """Planted: finishing an old block out of order lowers the position."""

    def finish(self, offsets):
        super().finish(offsets)
        self._low = min(self._low, *offsets)
        self._position = None


@pytest.mark.parametrize(
    "planted",
    [CommitsTheHighest, StallsAtHoles, ForgetsTheSet, OverlooksNeighbours, GoesBackwards],
)
def test_a_planted_bug_is_found(planted: type[OffsetLedger]) -> None:
    """The property can fail."""
    with pytest.raises(AssertionError):
        hold(
            planted,
            max_examples=3000,
            derandomize=True,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
        )


@pytest.mark.parametrize("seed", range(5))
def test_B14_a_fifth_never_finishes(seed: int) -> None:
    """FAULTS B14: 1,000 offsets in random order, 20 % never: the position never passes an unfinished one."""
    luck = random.Random(seed)
    ledger = OffsetLedger()
    ledger.begin(0)
    ledger.admit([Place(offset) for offset in range(1000)])
    order = luck.sample(range(1000), 800)
    unfinished = set(range(1000))
    low = 0
    for offset in order:
        ledger.finish([offset])
        unfinished.discard(offset)
        position = ledger.position()
        assert low <= position.offset == min(unfinished)
        low = position.offset
    after = OffsetLedger()
    assert after.restore(ledger.position()) == ""
    rest = [Place(offset) for offset in range(low, 1000)]
    assert {place.offset for place in after.admit(rest)} == unfinished


@settings(deadline=None, max_examples=40)
@given(
    st.integers(100, 200),
    st.integers(1, 8),
    st.sampled_from([(1,), (1, 2), (1, 1, 1, 30), (1, 500, 70_000), (5, 2, 3)]),
    st.integers(0, 2**32),
)
def test_B20_the_metadata_fits_in_any_order(
    max_bytes: int, block: int, steps: tuple[int, ...], seed: int
) -> None:
    """What `may_admit` let in fits, whatever finishes first; one long hole per block is within the reserve."""
    luck = random.Random(seed)  # its thousands of draws were too many and too slow for Hypothesis
    ledger = OffsetLedger(max_metadata_bytes=max_bytes, block_records=block)
    ledger.begin(0)
    at = 0
    left: list[int] = []
    while ledger.may_admit() and len(left) < 1000:
        offsets = list(range(at, at + block))
        ledger.admit([Place(offset) for offset in offsets])
        left += offsets
        at += block - 1 + luck.choice(steps)
    luck.shuffle(left)
    while left:
        some = luck.randint(1, 1 + len(left) // 10)
        ledger.finish(left[-some:])
        del left[-some:]
        position = ledger.position()
        assert len(position.metadata) <= max_bytes
        lengths = decode_metadata(position.metadata)
        assert lengths is not None
        whole = ledger._ends[-1] if ledger._ends else position.offset
        assert sum(lengths) + position.offset == whole, "the set was cut"


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 2**40), max_size=60))
def test_metadata_round_trips(lengths: list[int]) -> None:
    """Any stretches, in pairs."""
    pairs = lengths[: len(lengths) // 2 * 2]
    assert decode_metadata(encode_metadata(pairs, max_bits=10**6)) == pairs


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=60), st.text("h1;f=AZaz09-_", max_size=60).map("h1;f=".__add__)))
def test_any_metadata_is_read_without_an_exception(text: str) -> None:
    """Foreign text is None or a set in pairs, never an error."""
    lengths = decode_metadata(text)
    assert lengths is None or (len(lengths) % 2 == 0 and all(length > 0 for length in lengths))
