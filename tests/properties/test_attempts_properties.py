"""Attempts in commit metadata: the codec, and what any history of owners leaves behind (DELIVERY P-14)."""

from __future__ import annotations

from headrace.consumers.attempts import (
    MAX_CRASHES,
    MAX_DEATHS,
    MAX_PAIR_BYTES,
    NONE,
    Attempts,
    Marks,
    read_attempts,
)
from headrace.consumers.ledger import (
    METADATA_BYTES,
    RESERVED_BYTES,
    VERSION,
    OffsetLedger,
    decode_metadata,
    encode_metadata,
)
from headrace.schemas.record import TP
from headrace.streams.log import Position
from hypothesis import given, settings
from hypothesis import strategies as st

T0 = TP("t", 0)
offsets = st.integers(1, 2**63 - 1)
owners = st.text("0123456789abcdef", max_size=4)
crashes = st.integers(1, MAX_CRASHES)
attempts = st.one_of(
    st.tuples(crashes, owners),
    st.tuples(crashes, owners, offsets),
    st.tuples(crashes, owners, offsets, offsets, st.integers(0, MAX_DEATHS)),
).map(lambda fields: Attempts(*fields))


@given(attempts, st.lists(st.integers(1, 2**40), max_size=60).filter(lambda n: len(n) % 2 == 0))
def test_P14_what_is_written_beside_F_is_read_and_fits(said: Attempts, lengths: list[int]) -> None:
    """Both, whatever each is; within the bound together."""
    max_bits = (METADATA_BYTES - RESERVED_BYTES) * 6 - 8
    finished = encode_metadata(lengths, max_bits=max_bits)
    text = f"{finished or VERSION};{said.pair()}"
    assert read_attempts(text) == said
    assert decode_metadata(text) == decode_metadata(finished)
    assert len(said.pair()) <= MAX_PAIR_BYTES
    assert len(text) <= METADATA_BYTES


@given(st.text(max_size=40))
def test_P14_no_text_makes_reading_fail(text: str) -> None:
    """Nor what is made of it too long."""
    read = read_attempts(text)
    assert read == NONE or len(read.pair()) <= MAX_PAIR_BYTES


class Step(str):
    """What an owner does next."""

    __slots__ = ()


steps = st.lists(
    st.sampled_from([Step(s) for s in ("crash", "leave", "again", "finish", "announce", "above")]),
    max_size=60,
)


class Partition:
    """One partition and its owners, one after the other, beside the plain counts of what has happened to them."""

    def __init__(self, end: int, span: int) -> None:
        self.end, self.span = end, span
        self.marks = Marks(span=span)
        self.ledger = OffsetLedger(max_span=100, block_records=1)
        self.at = Position(0)
        self.crashes = self.until = 0
        self.deaths: dict[int, int] = {}
        self.announced = -1

    def take_over(self) -> None:
        """Read what is committed, and admit everything."""
        self.ledger.restore(self.at)
        mark = self.marks.take_over(T0, self.at.metadata, self.at.offset, self.end)
        self.ledger.say(mark)
        self.ledger._next = max(self.ledger._next, self.end)
        if self.crashes >= 2 and self.until <= self.at.offset < self.end:
            self.until = min(self.end, self.at.offset + self.span)
        if mark is None:
            self.crashes = self.until = 0
        else:
            self.at = self.ledger.position()

    def work(self, step: Step) -> None:
        """Finish the lowest record, or the highest one; or announce the lowest."""
        ledger, mark = self.ledger, self.ledger.mark
        if step == "announce":
            if mark is not None and mark.is_suspected(ledger.low):
                self.announced = ledger.low
                mark.announce(self.announced)
                ledger.say(mark)
            return
        unfinished = [n for n in range(ledger.low, self.end) if not ledger.is_finished(n)]
        if unfinished:
            before = ledger.low
            ledger.finish([unfinished[0 if step == "finish" else -1]])
            if ledger.low > before and ledger.low >= self.until:
                self.crashes = self.until = 0

    def change(self, step: Step) -> None:
        """Let the owner crash, hand over, or take the partition over again itself."""
        ledger, mark = self.ledger, self.ledger.mark
        if step == "crash" and mark is not None:
            self.crashes += 1
            if self.announced == ledger.low:
                self.deaths[ledger.low] = self.deaths.get(ledger.low, 0) + 1
        if step == "leave" and mark is not None:
            mark.withdraw()
            ledger.say(mark)
            self.at = ledger.position()
        if step != "again":
            self.marks = Marks(span=self.span)
        self.announced = -1
        self.take_over()

    def check(self) -> None:
        """Compare what the owner knows with what has happened."""
        if (mark := self.ledger.mark) is not None:
            assert mark.known.crashes == self.crashes
            assert mark.known.end == self.until
            assert mark.deaths(self.ledger.low) == self.deaths.get(self.ledger.low, 0)


@settings(max_examples=300)
@given(steps, st.integers(1, 30), st.integers(1, 12))
def test_P14_any_history_of_owners_counts_what_it_says(
    history: list[Step], end: int, span: int
) -> None:
    """Crashes since the last progress; deaths of the one announced record; a range that stays until it is passed."""
    partition = Partition(end, span)
    partition.take_over()
    for step in history:
        if step in ("crash", "leave", "again"):
            partition.change(step)
            partition.check()
        else:
            partition.work(step)
            partition.at = partition.ledger.position()
