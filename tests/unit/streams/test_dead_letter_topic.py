"""The dead-letter topic as it is read: what is found, in which order, and where reading ends."""

from __future__ import annotations

import itertools

import pytest
from headrace.schemas.dead_letter import Redrive, RedriveState, write_mark
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams import dead_letter_topic
from headrace.streams.dead_letter_topic import (
    LetterId,
    LetterState,
    Selection,
    find_letters,
    read_letters,
)
from headrace.streams.log import Span
from headrace.streams.memory import MemoryLog
from letter_kit import DEAD, letter, make_topics, put, stored
from virtual_loop import run_virtual


def log_of(*outs, dead=2):
    """Return a memory log with these records, each a millisecond after the one before."""
    times = itertools.count(1_000)
    log = MemoryLog(clock_ms=lambda: next(times))

    async def fill():
        async with log:
            await make_topics(log, dead=dead)
            for out in outs:
                await put(log, out)

    run_virtual(fill())
    return log


def find(log, **selection):
    return run_virtual(find_letters(log, DEAD, Selection(**selection)))


def ids(rows):
    return [str(row.id) for row in rows]


def mark(partition, offset, state, attempt=2):
    return write_mark(TP(DEAD, partition), Redrive(offset, state, attempt))


FOUR = (
    stored(letter(0, partition=0), 0),  # 0/0, at 1000 ms
    stored(letter(1, partition=3, model="n"), 1),  # 1/0, at 1001
    stored(letter(2, partition=2, reason="malformed"), 0),  # 0/1, at 1002
    stored(letter(3, partition=1), 1),  # 1/1, at 1003
)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["0/0", "0/1", "1/0", "1/1"]),
        ({"models": {"n"}}, ["1/0"]),
        ({"models": {"n", "m"}, "reasons": {"malformed"}}, ["0/1"]),
        ({"partitions": {1, 2}}, ["0/1", "1/1"]),
        ({"since_ms": 1_001, "until_ms": 1_003}, ["0/1", "1/0"]),
        ({"ids": {LetterId(1, 1), LetterId(0, 7), LetterId(9, 0)}}, ["1/1"]),
        ({"ids": {LetterId(9, 0)}}, []),
        ({"models": {"nobody"}}, []),
    ],
)
def test_letters_are_found_by_model_reason_partition_time_and_id(selection, expected):
    found = find(log_of(*FOUR), **selection)
    assert ids(found.rows) == expected


def test_the_latest_come_first_or_the_oldest_in_the_topics_order():
    found = find(log_of(*FOUR))
    assert ids(found.newest(3)) == ["1/1", "0/1", "1/0"]
    assert ids(found.oldest(3)) == ["0/0", "0/1", "1/0"]


def test_a_row_has_sizes_and_no_bytes():
    one = letter(4, key=None, value=b"v" * 9, headers=(("deadline-ms", b"77"), ("a", None)))
    (row,) = find(log_of(stored(one, 1))).rows
    assert (row.key_bytes, row.value_bytes, row.header_count, row.deadline_ms) == (None, 9, 2, 77)
    assert (row.letter.value, row.letter.headers) == (None, ())
    assert row.request_bytes == one.request_bytes
    assert row.to_json()["source"] == "t.m.requests/0/4"


def test_what_became_of_a_letter_is_what_its_last_mark_says():
    log = log_of(
        *FOUR,
        mark(0, 0, RedriveState.BEGUN),
        mark(0, 0, RedriveState.SENT),
        mark(1, 1, RedriveState.BEGUN),
        mark(1, 99, RedriveState.SENT),  # of a letter that retention took
    )
    states = {str(row.id): row.state for row in find(log).rows}
    assert states == {
        "0/0": LetterState.REDRIVEN,
        "0/1": LetterState.PENDING,
        "1/0": LetterState.PENDING,
        "1/1": LetterState.IN_DOUBT,
    }
    assert ids(find(log, states={LetterState.PENDING}).rows) == ["0/1", "1/0"]
    (row,) = find(log, ids={LetterId(0, 0)}).rows  # marks lie behind, and are read for it too
    assert row.state is LetterState.REDRIVEN


def test_records_of_others_are_counted_and_passed_over():
    log = log_of(Out(DEAD, 0, b"k", b"whatever"), *FOUR, Out(DEAD, 1, None, b"", [("a", b"b")]))
    found = find(log)
    assert len(found.rows) == 4
    assert found.others == 2


def test_a_missing_topic_is_a_sentence():
    with pytest.raises(LogError, match=rf"topic {DEAD} does not exist: no worker has been here"):
        find(MemoryLog())


def test_more_matches_than_memory_allows_are_refused(monkeypatch):
    monkeypatch.setattr(dead_letter_topic, "MAX_MATCHES", 3)
    with pytest.raises(LogError, match="more than 3 dead letters"):
        find(log_of(*FOUR))
    assert len(find(log_of(*FOUR), models={"m"}).rows) == 3


async def read(log, *wanted):
    return [(str(at), one.offset) async for at, one in read_letters(log, DEAD, wanted)]


def test_letters_are_read_whole_and_those_that_are_gone_are_passed_over():
    """Taken by retention, not written yet, no letter, or of no such partition: nobody waits for them."""
    log = log_of(*FOUR, Out(DEAD, 1, None, b"other"))
    wanted = [LetterId(1, at) for at in (0, 1, 2, 500)] + [LetterId(0, 1), LetterId(7, 0)]
    found = run_virtual(read(log, *wanted))
    assert sorted(found) == [("0/1", 2), ("1/0", 1), ("1/1", 3)]
    log.existing(TP(DEAD, 0)).trim(2)
    assert run_virtual(read(log, LetterId(0, 0), LetterId(0, 1))) == []
    assert run_virtual(read(log)) == []


def test_reading_that_makes_no_progress_ends_with_a_sentence():
    """A partition that has no leader hands out nothing, and says nothing."""

    async def stall():
        log = log_never_there
        async with log.reader({TP(DEAD, 0): Span(0, 9)}) as reader:
            return [block async for block in dead_letter_topic.read_blocks(reader, DEAD, 20.0)]

    log_never_there = log_of(FOUR[0])
    with pytest.raises(LogError, match="made no progress for 20 s"):
        run_virtual(stall())


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/1", "1/2/3", "-1/2", "1/x", "٣/1", "1/" + "9" * 30]
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(ValueError, match="expected partition/offset such as 0/42"):
        LetterId.of(text)


def test_an_id_is_typed_as_it_is_printed():
    assert LetterId.of(str(LetterId(3, 42))) == LetterId(3, 42)
