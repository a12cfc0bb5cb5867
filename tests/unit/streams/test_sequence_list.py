"""Pages of sequences: what a worker writes is read back, merged and bounded; other bytes are one kind of error."""

import json
from dataclasses import replace

import pytest
from headrace.streams.sequence_list import (
    BACKLOG,
    DEFAULT_LIMIT,
    IDLE,
    MAX_LIMIT,
    NO_INSTANCE,
    SequencePage,
    SequenceRow,
    limit_of,
    merged,
    slot_name,
)

ROW = SequenceRow(7, 2, slot_name(3), 1, 40, 1_500, 2, "w1")
ROWS = (
    ROW,
    replace(ROW, id="7", place=BACKLOG, instance=NO_INSTANCE),
    replace(ROW, id=2**64 - 1, place=IDLE, instance=NO_INSTANCE, worker=""),
    replace(ROW, id="é\x1b[31m\x9b"),
)


def test_KX12_a_page_is_read_back_with_the_types_of_its_ids():
    page = SequencePage(ROWS, 200_000)
    assert SequencePage.from_json(page.to_json()) == page
    assert [row.id_type for row in ROWS] == ["uint64", "string", "uint64", "string"]
    written = json.loads(page.to_json())["sequences"]
    assert written[0] == {
        "id": 7,
        "id_type": "uint64",
        "partition": 2,
        "place": "slot 3",
        "instance": 1,
        "steps": 40,
        "idle_ms": 1_500,
        "version": 2,
        "worker": "w1",
    }


def test_a_page_holds_nothing_that_a_terminal_obeys():
    """Ids are clients' words."""
    assert all(0x20 <= byte < 0x7F for byte in SequencePage(ROWS, 4).to_json())


def test_what_a_later_release_adds_is_ignored():
    document = json.loads(SequencePage((ROW,), 1).to_json())
    document["colour"] = document["sequences"][0]["colour"] = "blue"
    assert SequencePage.from_json(json.dumps(document).encode()) == SequencePage((ROW,), 1)


def test_pages_merge_into_the_most_recently_active_ones():
    """The rows of all workers in one order, cut to the limit; totals add up."""

    def page_of(total, *numbers):
        rows = [replace(ROW, id=n, idle_ms=10 * n, partition=9 - n) for n in numbers]
        return SequencePage(tuple(rows), total)

    first, second = page_of(30, 1, 3, 5), page_of(12, 2, 4)
    page = merged([first, second], 4)
    assert [row.id for row in page.rows] == [1, 2, 3, 4]
    assert page.total == 42
    assert merged([], 4) == SequencePage((), 0)


def test_ids_of_both_types_and_two_owners_sort_beside_each_other():
    """While a partition moves, the same sequence is in two pages, and is shown twice."""
    pages = [SequencePage((replace(ROW, id="7", worker=name), ROW), 2) for name in ("w2", "w1")]
    assert [(row.id, row.worker) for row in merged(pages, 9).rows] == [
        ("7", "w1"),
        ("7", "w2"),
        (7, "w1"),
        (7, "w1"),
    ]


@pytest.mark.parametrize(
    ("text", "limit"),
    [(None, DEFAULT_LIMIT), ("1", 1), ("10000", MAX_LIMIT), ("007", 7)],
)
def test_a_limit_is_taken(text, limit):
    assert limit_of(text) == limit


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "ten", "10001", "9" * 5_000, "٣"])
def test_another_limit_is_named_with_what_was_expected(text):
    with pytest.raises(
        ValueError, match=r"limit is '.*', expected a whole number from 1 to 10000"
    ):
        limit_of(text)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"total":1}',
        b'{"total":true,"sequences":[]}',
        b'{"total":1,"sequences":[7]}',
        SequencePage((replace(ROW, id=True),), 1).to_json(),
        SequencePage((replace(ROW, id=1.5),), 1).to_json(),
        SequencePage((replace(ROW, steps="1"),), 1).to_json(),
        SequencePage((replace(ROW, worker=None),), 1).to_json(),
        b"[" * 100_000,
    ],
)
def test_what_is_no_page_is_one_kind_of_error(value):
    with pytest.raises(ValueError, match=r"[a-z]"):
        SequencePage.from_json(value)
