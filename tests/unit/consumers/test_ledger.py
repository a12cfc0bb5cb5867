"""The offset ledger: what is committed, what travels in the metadata, and when admission pauses (DELIVERY P-1)."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from headrace.consumers.ledger import OffsetLedger, decode_metadata, encode_metadata
from headrace.streams.log import Position


class Place(NamedTuple):
    """As much of a record as the ledger reads."""

    offset: int


def records(*offsets: int) -> list[Place]:
    return [Place(offset) for offset in offsets]


def admitted(first: int, end: int, **bounds: int) -> OffsetLedger:
    """A ledger that has read [first, end)."""
    ledger = OffsetLedger(**bounds)
    ledger.begin(first)
    ledger.admit(records(*range(first, end)))
    return ledger


def resumed(position: Position) -> OffsetLedger:
    """What the next owner knows."""
    ledger = OffsetLedger()
    assert ledger.restore(position) == ""
    return ledger


def above(ledger: OffsetLedger, end: int) -> set[int]:
    """Finished offsets from the lowest unfinished one on."""
    return {offset for offset in range(ledger.low, end) if ledger.is_finished(offset)}


def test_in_order_the_position_follows() -> None:
    """The usual case: no metadata at all."""
    ledger = admitted(5, 15, epoch=3)
    ledger.finish(range(5, 9))
    assert ledger.position() == Position(9, "", 3)
    ledger.finish([9])
    assert ledger.position() == Position(10, "", 3)
    ledger.finish(list(range(10, 15)))
    assert (ledger.low, ledger.next_offset) == (15, 15)


def test_the_same_object_until_something_changes() -> None:
    """So that a caller sees cheaply that there is nothing to commit."""
    ledger = admitted(0, 10)
    ledger.finish([3])
    position = ledger.position()
    ledger.finish([])
    ledger.admit(records(10, 11))
    assert ledger.position() is position
    ledger.finish([4])
    assert ledger.position() is not position
    ledger.epoch = 9
    assert ledger.position().epoch == 9


def test_B13_a_slow_first_record_holds_the_position() -> None:
    """FAULTS B13: of offsets 0 to 4 the first is slow: it stays the position, the others travel along."""
    ledger = admitted(0, 5)
    for offset in (1, 2, 3, 4):
        ledger.finish([offset])
        assert ledger.position().offset == 0
    position = ledger.position()
    after = resumed(position)
    assert after.admit(records(0, 1, 2, 3, 4)) == records(0)
    after.finish([0])
    assert after.position() == Position(5, "", 0)


@pytest.mark.parametrize(
    ("finished", "low", "left"),
    [
        ([3, 1, 2], 0, {1, 2, 3}),
        ([0, 2, 4], 1, {2, 4}),
        ([2, 2, 2], 0, {2}),
        ([7, 6, 5, 4, 3, 2, 1, 0], 8, set()),
        ([0, 1, 5, 6, 2], 3, {5, 6}),
        ([5, 3, 4], 0, {3, 4, 5}),
        ([5, 9, 2, 8], 0, {2, 5, 8, 9}),  # as many as from first to last, and not a run
    ],
)
def test_any_order_of_finishing(finished: list[int], low: int, left: set[int]) -> None:
    """In one call or one by one, and what is finished twice counts once."""
    together, singly = admitted(0, 10), admitted(0, 10)
    together.finish(finished)
    for offset in finished:
        singly.finish([offset])
    for ledger in (together, singly):
        assert ledger.low == low
        assert above(ledger, 10) == left
    assert together.position() == singly.position()


def test_a_block_over_what_is_finished_in_part() -> None:
    """Runs join, overlap or enclose one another."""
    ledger = admitted(0, 100)
    ledger.finish(range(10, 20))
    ledger.finish(range(30, 40))
    ledger.finish(range(15, 35))
    assert above(ledger, 100) == set(range(10, 40))
    ledger.finish(range(50, 60))
    ledger.finish(range(5, 80))
    assert above(ledger, 100) == set(range(5, 80))
    ledger.finish(range(6))
    assert ledger.position() == Position(80, "", 0)
    ledger.finish([3, 79])
    ledger.finish(range(70, 90))
    assert ledger.position() == Position(90, "", 0)


def test_finishing_what_was_never_admitted_is_our_bug() -> None:
    """It would commit past a record that nobody has read."""
    ledger = admitted(0, 5)
    for offsets in ([5], [1, 3, 6], range(3, 7)):
        with pytest.raises(AssertionError, match="never admitted"):
            ledger.finish(offsets)
    assert ledger.position() == Position(0, "", 0)
    with pytest.raises(AssertionError, match="nothing was read"):
        OffsetLedger().position()


def test_holes_in_a_block_do_not_stall() -> None:
    """Compacted records and transaction markers count as finished."""
    ledger = OffsetLedger()
    ledger.begin(0)
    assert ledger.admit(records(0, 1, 4, 9)) == records(0, 1, 4, 9)
    ledger.finish([0, 1])
    assert ledger.low == 4
    ledger.finish([4])
    assert ledger.low == 9
    ledger.finish([9])
    assert ledger.position().offset == 10


def test_holes_between_blocks_do_not_stall() -> None:
    """Also a hole of millions; and one before the very first record."""
    ledger = OffsetLedger()
    ledger.begin(0)
    ledger.admit(records(7))
    assert ledger.position().offset == 7
    ledger.admit(records(5_000_000))
    ledger.finish([7])
    assert ledger.position().offset == 5_000_000
    ledger.finish([5_000_000])
    assert ledger.position().offset == 5_000_001


def test_a_hole_at_the_end_is_passed_once_reading_is() -> None:
    """A transaction's marker is the last offset: the next one to read is known, and nothing goes back."""
    ledger = admitted(0, 3)
    ledger.finish([0, 1])
    ledger.advance(10)
    assert ledger.low == 2
    ledger.finish([2])
    assert ledger.low == 10
    ledger.advance(4)
    assert (ledger.low, ledger.next_offset) == (10, 10)


def test_the_first_record_begins_where_nobody_did() -> None:
    """Without a committed position the log decides where reading starts."""
    ledger = OffsetLedger()
    assert ledger.may_admit()
    assert (ledger.low, ledger.next_offset) == (-1, -1)
    assert ledger.admit([]) == []
    ledger.admit(records(42, 43))
    assert ledger.position() == Position(42, "", 0)


def test_records_of_an_earlier_owner_are_closed_without_running() -> None:
    """P-1: F is restored whole; what it holds does not run again, the rest does."""
    before = admitted(100, 120)
    before.finish([100, 101, 105, 106, 110])
    after = resumed(before.position())
    assert (after.low, after.next_offset) == (102, 102)
    assert above(after, 120) == {105, 106, 110}
    assert after.admit(records(*range(102, 107))) == records(102, 103, 104)
    assert after.admit(records(*range(107, 120))) == records(107, 108, 109, *range(111, 120))
    after.finish([102, 103, 104])
    assert after.position().offset == 107
    assert after.admit(records(103, 120)) == records(120)


def test_reading_a_block_that_is_finished_altogether() -> None:
    """The position moves without an answer."""
    ledger = resumed(Position(4, encode_metadata([1, 6], max_bits=100)))
    assert ledger.admit(records(4)) == records(4)
    ledger.finish([4])
    assert ledger.position().offset == 11
    assert ledger.admit(records(*range(5, 11))) == []
    assert ledger.position().offset == 11
    assert ledger.admit(records(11)) == records(11)


def test_restore_is_a_seek_back() -> None:
    """The one way back: after an abort, to the last committed position (P-10)."""
    ledger = admitted(0, 10)
    ledger.finish([0, 4])
    committed = ledger.position()
    ledger.finish([1, 2, 5])
    assert ledger.restore(committed) == ""
    assert (ledger.low, ledger.next_offset) == (1, 1)
    assert above(ledger, 10) == {4}
    assert ledger.position() == committed


@pytest.mark.parametrize(
    "metadata",
    [
        "somebody else's note",
        "h2;f=SA",
        "h1;f=not base64!",
        "h1;f=é",
        "h1;f=A",  # no multiple of a byte
        "h1;f=AAAA",  # zeros only
        "h1;f=gA",  # an odd number of lengths
        "h1;f=AQ",  # the code breaks off
        "{}",
    ],
)
def test_foreign_or_damaged_metadata_is_an_empty_set_and_a_warning(metadata: str) -> None:
    """It is said once, and the work goes on from the committed offset."""
    ledger = OffsetLedger()
    warning = ledger.restore(Position(7, metadata))
    assert metadata in warning
    assert "offset 7" in warning
    assert ledger.position() == Position(7, "", 0)
    assert ledger.admit(records(7, 8)) == records(7, 8)


@pytest.mark.parametrize("metadata", ["h1;f={};a=3", "h1;a=3;f={}", "h1;x;f={};y=a=b"])
def test_further_pairs_are_passed_over(metadata: str) -> None:
    """Room for what comes later (P-14)."""
    lengths = [3, 2, 1, 70]
    packed = encode_metadata(lengths, max_bits=100).removeprefix("h1;f=")
    assert decode_metadata(metadata.format(packed)) == lengths
    assert decode_metadata("h1;a=3") == []


def test_the_format_is_kept() -> None:
    """Golden: committed positions outlive a release. 2 unfinished, 1 finished, 1 unfinished, 3 finished."""
    assert encode_metadata([2, 1, 1, 3], max_bits=100) == "h1;f=Ww"  # 010 1 1 011
    assert decode_metadata("h1;f=Ww") == [2, 1, 1, 3]
    assert decode_metadata("") == []
    assert encode_metadata([], max_bits=100) == ""


def test_B20_admission_stops_at_the_span() -> None:
    """FAULTS B20: one offset never finishes, everything else passes: the span stays within its bound."""
    ledger = OffsetLedger(max_span=1000, block_records=50)
    ledger.begin(0)
    at = passed = 0
    while ledger.may_admit():
        ledger.admit(records(*range(at, at + 50)))
        ledger.finish([offset for offset in range(at, at + 50) if offset])
        at += 50
        passed += 1
    assert passed == 20
    assert ledger.next_offset - ledger.low == 1000
    ledger.finish([0])
    assert ledger.may_admit()
    assert ledger.position() == Position(1000, "", 0)


def test_the_metadata_narrows_the_span() -> None:
    """With little room for metadata, fewer offsets may be open."""
    ledger = OffsetLedger(max_metadata_bytes=164, block_records=10)
    ledger.begin(0)
    at = 0
    while ledger.may_admit():
        ledger.admit(records(*range(at, at + 10)))
        at += 10
    assert (
        at == 220
    )  # 592 bits besides padding, 2 an offset, less a block with its markers and a long hole
    ledger.finish(range(1, at, 2))
    assert len(ledger.position().metadata) <= 164
    assert above(resumed(ledger.position()), at) == set(range(1, at, 2))


def test_something_may_always_be_admitted_when_nothing_is_open() -> None:
    """Bounds smaller than a block, or a restored set of another bound, do not stop the reading for ever."""
    ledger = OffsetLedger(max_span=10, block_records=100)
    ledger.begin(0)
    assert ledger.may_admit()
    ledger.admit(records(*range(100)))
    assert not ledger.may_admit()
    ledger.finish(range(1, 100))
    assert not ledger.may_admit()
    restored = OffsetLedger(max_span=10, block_records=100)
    assert restored.restore(ledger.position()) == ""
    assert restored.may_admit()
    ledger.finish([0])
    assert ledger.may_admit()


def test_a_restored_set_does_not_count_twice() -> None:
    """Reading again through what was finished does not widen the span, so it is not paused for it."""
    before = admitted(0, 900, max_span=1000, block_records=100)
    before.finish(range(1, 900))
    after = OffsetLedger(max_span=1000, block_records=100)
    after.restore(before.position())
    for first in range(0, 900, 100):
        assert after.may_admit()
        after.admit(records(*range(first, first + 100)))
    after.finish([0])
    assert after.low == 900


def test_a_long_hole_takes_little_of_the_span() -> None:
    """A million aborted records in the way are one run, not a million open offsets."""
    ledger = OffsetLedger(max_span=1000, block_records=10)
    ledger.begin(0)
    ledger.admit(records(0, 1_000_000))
    assert ledger.may_admit()
    ledger.finish([1_000_000])
    assert len(ledger.position().metadata) < 20
    assert above(resumed(ledger.position()), 5) == {1, 2, 3, 4}
    ledger.finish([0])
    assert ledger.may_admit()
    assert ledger._saved == 0


def test_reading_again_does_not_count_a_hole_twice() -> None:
    """A block that is handed out twice changes nothing but what is returned."""
    ledger = OffsetLedger()
    ledger.begin(0)
    ledger.admit(records(0, 1000))
    saved = ledger._saved
    assert saved > 900
    assert ledger.admit(records(0, 1000)) == records(0, 1000)
    assert ledger._saved == saved
    ledger.finish([0, 1000])
    assert ledger.admit(records(0, 1000, 1001)) == records(1001)
    assert ledger._saved == 0


def test_what_cannot_fit_is_left_out_from_the_top() -> None:
    """Bounds that were ignored: the commit still goes through, and the lowest runs are kept."""
    ledger = admitted(0, 10_000, max_metadata_bytes=164)
    ledger.finish(range(1, 10_000, 2))
    position = ledger.position()
    assert len(position.metadata) <= 164
    kept = above(resumed(position), 10_000)
    assert len(kept) > 200
    assert kept == set(range(1, 2 * len(kept), 2))
    none = admitted(0, 10, max_metadata_bytes=10)
    none.finish([5])
    assert none.position().metadata == ""


def test_repr_shows_where_it_stands() -> None:
    ledger = admitted(0, 10)
    ledger.finish([4])
    assert repr(ledger) == "OffsetLedger(low=0, next=10, 1 runs above)"


def test_P1_reach_is_how_far_reading_goes_on() -> None:
    """The lowest offset stays unfinished: at the reach a block is admitted still, an offset beyond it is not."""
    ledger = OffsetLedger(max_span=1000, block_records=50)
    assert ledger.reach == 950
    ledger.admit(records(*range(950)))
    assert ledger.may_admit()
    ledger.admit(records(950))
    assert not ledger.may_admit()
    # The metadata may have less room than the span.
    assert OffsetLedger(max_metadata_bytes=164, block_records=10).reach == 212
