"""What commit metadata says of owners and records that ended together (DELIVERY P-14)."""

from __future__ import annotations

import pytest
from headrace.consumers.attempts import (
    MAX_CRASHES,
    MAX_DEATHS,
    MAX_PAIR_BYTES,
    NOBODY,
    NONE,
    SUSPECTED_FROM,
    Attempts,
    Mark,
    Marks,
    read_attempts,
)
from headrace.consumers.ledger import RESERVED_BYTES, VERSION, OffsetLedger, decode_metadata
from headrace.schemas.record import TP
from headrace.streams.log import Position

T0 = TP("t", 0)
SPAN = 100
END = 1000


class Owner:
    """A process that takes a partition over and may end at any time."""

    def __init__(self) -> None:
        self.marks = Marks(span=SPAN)
        self.ledger = OffsetLedger()

    def takes_over(self, at: Position, end: int = END) -> Owner:
        """Read, and say what is to be said; the position is then what is committed."""
        self.ledger = OffsetLedger()
        assert not self.ledger.restore(at)
        self.ledger.say(self.marks.take_over(T0, at.metadata, at.offset, end))
        return self

    @property
    def mark(self) -> Mark:
        """Its mark, which is in force."""
        assert self.ledger.mark is not None
        return self.ledger.mark

    def position(self) -> Position:
        """What it commits now."""
        self.ledger.say(self.ledger.mark)
        return self.ledger.position()

    def reads(self, first: int, end: int) -> None:
        """Admit some offsets."""
        self.ledger.advance(end)
        del first


def after(crashes: int, at: Position | None = None) -> Position:
    """Return what is committed after so many owners in a row have ended before they did anything."""
    at = at or Position(10)
    for _ in range(crashes):
        at = Owner().takes_over(at).position()
    return at


def test_P14_an_owner_writes_one_crash_more_before_it_admits() -> None:
    """The offset and F are as they were read."""
    finished = Position(10, "h1;f=Ww")  # 2 unfinished, 1 finished, 1 unfinished, 3 finished
    at = finished
    for crashes in range(1, 4):
        at = Owner().takes_over(at).position()
        assert at.offset == 10
        assert read_attempts(at.metadata).crashes == crashes
        assert decode_metadata(at.metadata) == [2, 1, 1, 3]


def test_P14_progress_resets_the_count() -> None:
    """What is finished above the committed offset is none: a record that kills slowly lets neighbours finish."""
    owner = Owner().takes_over(after(1))
    owner.ledger.advance(10)
    ledger = owner.ledger
    ledger.advance(11)
    assert ledger.position() == Position(11)
    assert ledger.mark is None


def test_P14_what_is_finished_above_the_committed_offset_is_no_progress() -> None:
    """The mark goes with F."""
    owner = Owner().takes_over(after(1))
    ledger = owner.ledger
    ledger.begin(10)
    ledger._next = 14  # as if four records had been admitted
    ledger.finish([12, 13])
    position = ledger.position()
    assert position.offset == 10
    assert decode_metadata(position.metadata) == [2, 2]
    assert read_attempts(position.metadata).crashes == 2


@pytest.mark.parametrize("crashes", [0, 1, 5])
def test_P14_a_clean_hand_over_takes_back_what_this_owner_said(crashes: int) -> None:
    """Of nobody who died it is 0; and rolling restarts add nothing to what crashes have left."""
    at = after(crashes)
    for _ in range(3):
        owner = Owner().takes_over(at)
        assert read_attempts(owner.position().metadata).crashes == crashes + 1
        owner.mark.withdraw()
        handed_over = owner.position()
        assert read_attempts(handed_over.metadata).crashes == crashes
        at = handed_over
    assert (at == Position(10)) == (crashes == 0)


def test_P14_a_process_does_not_take_itself_for_dead() -> None:
    """An aborted transaction, a lost membership: the same process reads what it wrote."""
    owner = Owner()
    at = after(1)
    for _ in range(5):
        at = owner.takes_over(at).position()
        assert read_attempts(at.metadata).crashes == 2
    assert read_attempts(Owner().takes_over(at).position().metadata).crashes == 3


def test_P14_nothing_is_written_where_nothing_is_to_be_read() -> None:
    """An idle partition costs no commit, and no owner of it is suspected of anything."""
    owner = Owner().takes_over(after(1), end=10)
    assert owner.ledger.mark is None


def test_P14_from_two_crashes_on_what_may_have_been_in_flight_is_suspected() -> None:
    """From the committed offset on, as far as admission may have been, and no further than the log was then."""
    assert not Owner().takes_over(after(1)).mark.is_suspected(10)
    mark = Owner().takes_over(after(2)).mark
    assert mark.is_suspected(10)
    assert mark.is_suspected(10 + SPAN - 1)
    assert not mark.is_suspected(10 + SPAN)
    assert not Owner().takes_over(after(2), end=13).mark.is_suspected(13)


def test_P14_the_suspects_stay_the_same_until_all_are_finished() -> None:
    """Whoever takes over, crashes or hands over; and then nothing is said any more."""
    at = Owner().takes_over(after(2), end=15).position()
    for withdraws in (False, True, False):
        owner = Owner().takes_over(at)
        ledger = owner.ledger
        ledger.advance(ledger.low + 1)
        if withdraws:
            owner.mark.withdraw()
        at = owner.position()
        assert read_attempts(at.metadata).end == 15
    owner = Owner().takes_over(at)
    owner.ledger.advance(15)
    assert owner.ledger.position() == Position(15)


def test_P14_a_death_counts_for_the_announced_record_alone() -> None:
    """Announced before it runs; taken back where it did not end its process."""
    at = after(2)
    for deaths in range(3):
        owner = Owner().takes_over(at)
        assert owner.mark.deaths(12) == deaths
        assert owner.mark.deaths(11) == owner.mark.deaths(13) == 0
        owner.mark.announce(12)
        at = owner.position()
        assert read_attempts(at.metadata)[3:] == (12, deaths + 1, False)
    waits = Owner().takes_over(at)  # it dies, too, before it announces anything
    assert Owner().takes_over(waits.position()).mark.deaths(12) == 3
    handed_over = Owner().takes_over(at)
    handed_over.mark.announce(12)
    handed_over.mark.withdraw()
    assert Owner().takes_over(handed_over.position()).mark.deaths(12) == 3
    lives = Owner().takes_over(at)
    lives.mark.announce(13)
    assert Owner().takes_over(lives.position()).mark.deaths(13) == 1
    assert Owner().takes_over(lives.position()).mark.deaths(12) == 0


def test_P14_an_announcement_is_no_death_for_the_process_that_made_it() -> None:
    """Its transaction was aborted, say."""
    owner = Owner().takes_over(after(2))
    owner.mark.announce(12)
    at = owner.position()
    assert owner.takes_over(at).mark.deaths(12) == 0
    assert Owner().takes_over(at).mark.deaths(12) == 1


def test_P14_a_death_while_a_record_was_read_is_told_from_one_while_it_ran() -> None:
    """The last one counts; and none does once its reading was taken back, for others run then."""
    at = after(SUSPECTED_FROM + 1)
    owner = Owner().takes_over(at)
    assert owner.mark.reads_alone
    assert not Owner().takes_over(after(SUSPECTED_FROM)).mark.reads_alone
    owner.mark.announce(10, reading=True)
    read = read_attempts(owner.position().metadata)
    assert (read.suspect, read.deaths, read.reading) == (10, 1, True)
    owner.mark.recall()
    taken_back = read_attempts(owner.position().metadata)
    assert (taken_back.suspect, taken_back.deaths, taken_back.reading) == (10, 0, False)
    owner.mark.announce(10, reading=True)
    second = Owner().takes_over(owner.position())
    assert (second.mark.deaths(10), second.mark.known.reading) == (1, True)
    second.mark.announce(10)
    ran = read_attempts(second.position().metadata)
    assert (ran.deaths, ran.reading) == (2, False)
    second.mark.announce(11)
    other = read_attempts(second.position().metadata)
    assert (other.suspect, other.deaths, other.reading) == (11, 1, False)


def test_P14_suspicion_can_be_lifted() -> None:
    """Nothing is said from then on."""
    owner = Owner().takes_over(after(2))
    owner.mark.lift()
    assert owner.position() == Position(10)


@pytest.mark.parametrize(
    "text",
    [
        *("c", "c=", "c=3", "c=x,ab", "c=-1,ab", "c=1,abcde", "c=1,ä", "c=1,ab,2,3", "c=1,ab,,"),
        *("c=1,ab,2,3,4,5", "c=1,ab,12345678901234567890", "a=3", "x;y"),
        *("c=1,ab,2,3,r", "c=1,ab,2r", "c=1r,ab", "c=1,ab,2,3,4rr", "c=1,ab,2,3r,4"),
    ],
)
def test_P14_what_is_not_understood_says_nothing(text: str) -> None:
    """Nobody is suspected for another's words, and F is read all the same."""
    assert read_attempts(f"{VERSION};f=Ww;{text}") == NONE
    assert decode_metadata(f"{VERSION};f=Ww;{text}") == [2, 1, 1, 3]


def test_P14_the_pair_has_room_in_the_reserve() -> None:
    """The largest there is, beside the version and the name of F."""
    offset = 2**63 - 1
    largest = Attempts(MAX_CRASHES, "ffff", offset, offset, MAX_DEATHS, reading=True)
    assert len(largest.pair()) == MAX_PAIR_BYTES
    assert len(f"{VERSION};f=;{largest.pair()}") <= RESERVED_BYTES
    grown = Marks(span=SPAN).take_over(T0, f"{VERSION};{largest.pair()}", 10, offset)
    assert grown is not None
    grown.announce(largest.suspect, reading=True)
    assert len(grown.written(10).pair()) == MAX_PAIR_BYTES
    assert NOBODY < 0
