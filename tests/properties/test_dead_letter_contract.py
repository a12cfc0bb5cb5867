"""Dead letters of anything: what is written is read back exactly, whatever a client calls its headers."""

from __future__ import annotations

import pytest
from headrace.schemas import dead_letter
from headrace.schemas.dead_letter import (
    DeadLetter,
    Redrive,
    RedriveState,
    read_dead_letter,
    read_mark,
    record_bytes,
    redriven,
    write_dead_letter,
    write_mark,
)
from headrace.schemas.record import TP
from headrace.streams.memory_partition import MemoryRecord
from hypothesis import given
from hypothesis import strategies as st

NO_LIMIT = 10**9
OURS = [
    value
    for name, value in vars(dead_letter).items()
    if name.isupper() and isinstance(value, str) and value.startswith("dead-letter-")
]
NAMES = st.one_of(st.sampled_from([*OURS, "attempt", "id", "x-a"]), st.text(max_size=8))
RAW = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"0", b"1", b"3", b"sent"]))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
HEADERS = st.lists(st.tuples(NAMES, RAW), max_size=6).map(tuple)
COUNTS = st.integers(0, 2**40)
LETTERS = st.builds(
    DeadLetter,
    source=st.builds(TP, st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), COUNTS),
    offset=COUNTS,
    timestamp_ms=st.integers(-1, 2**60),
    model=TEXT,
    version=TEXT,
    status=TEXT,
    reason=TEXT,
    error_class=TEXT,
    detail=TEXT,
    attempts=st.integers(1, 2**31),
    key=st.one_of(st.none(), st.binary(max_size=60)),
    value=st.one_of(st.none(), st.binary(max_size=200)),
    headers=HEADERS,
)


def stored(out, offset=0):
    """Return a record as a consumer gets it."""
    return MemoryRecord(
        out.topic, out.partition, offset, 1, out.key, out.value, tuple(out.headers)
    )


def written(letter, limit=NO_LIMIT):
    return stored(write_dead_letter(letter, TP("dead", 1), limit))


@given(LETTERS)
def test_B31_B32_what_is_written_is_read_back_exactly(letter):
    """Any key, value and headers, null values and names of ours included; and it is no mark."""
    record = written(letter)
    assert read_dead_letter(record) == letter
    assert read_mark(record) is None
    assert record.key == letter.key
    assert record.headers[: len(letter.headers)] == letter.headers
    assert (record.key, record.value) != (None, None)


@given(LETTERS, HEADERS)
def test_what_is_put_behind_our_headers_on_the_way_is_passed_over(letter, extra):
    """Unless it takes the name of the count, it changes nothing."""
    record = written(letter)
    behind = tuple(header for header in extra if header[0] != dead_letter.HEADERS)
    longer = MemoryRecord(*("dead", 1, 0, 1, record.key, record.value, (*record.headers, *behind)))
    assert read_dead_letter(longer) == letter


@given(LETTERS, st.integers(2, 9))
def test_a_letter_that_is_redriven_and_dies_again_is_two_plain_letters(letter, attempt):
    """The second one's original is the request that was sent: key and headers kept, one attempt header, raised."""
    sent = redriven(letter, attempt)
    assert TP(sent.topic, sent.partition) == letter.source
    assert (sent.key, sent.value) == (letter.key, letter.value)
    kept = [header for header in letter.headers if header[0] != "attempt"]
    assert sent.headers == [*kept, ("attempt", b"%d" % attempt)]
    again = DeadLetter(
        *(TP("again", 0), 7, 5, "m", "1", "INTERNAL", "backend_failed", "BackendError", "d"),
        *(attempt, sent.key, sent.value, tuple(sent.headers)),
    )
    assert read_dead_letter(written(again)) == again


@given(LETTERS, st.integers(700, 1_500))
def test_no_letter_is_above_the_limit_and_what_is_missing_is_counted(letter, limit):
    """Of what our headers push above it; they themselves have room."""
    bare = written(
        letter.__class__(**{**fields(letter), "key": None, "value": b"", "headers": ()})
    )
    if record_bytes(None, b"", bare.headers) + 120 > limit:
        return
    record = written(letter, limit)
    assert record_bytes(record.key, record.value, record.headers) <= limit
    found = read_dead_letter(record)
    assert len(found.value or b"") + found.omitted_bytes == len(letter.value or b"")
    assert len(found.key or b"") + found.omitted_key_bytes == len(letter.key or b"")
    assert len(found.headers) + found.omitted_headers == len(letter.headers)
    assert found.is_whole == (fields(found) == fields(letter))


def fields(letter):
    return {name: getattr(letter, name) for name in DeadLetter.__slots__}


@given(st.builds(Redrive, COUNTS, st.sampled_from(RedriveState), COUNTS), COUNTS)
def test_a_mark_is_read_back_and_is_no_letter(redrive, partition):
    record = stored(write_mark(TP("dead", partition), redrive))
    assert read_mark(record) == redrive
    with pytest.raises(ValueError, match="header 'dead-letter-headers' is missing"):
        read_dead_letter(record)


@given(
    st.one_of(st.none(), st.binary(max_size=20)),
    st.lists(st.tuples(st.sampled_from(OURS), RAW), max_size=16),
)
def test_B32_records_of_strangers_are_refused_or_read_and_nothing_else(value, headers):
    """Whatever they hold, a reader gets a letter, a mark, or a sentence."""
    record = MemoryRecord("dead", 0, 0, 1, b"k", value, tuple(headers))
    for read in (read_dead_letter, read_mark):
        assert "header 'dead-letter-" in refusal(read, record)


def refusal(read, record):
    """Return why a record is refused, or the beginning of any refusal where it is not."""
    try:
        read(record)
    except ValueError as exc:
        return str(exc)
    return "header 'dead-letter-"
