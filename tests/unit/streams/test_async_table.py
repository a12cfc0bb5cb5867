"""Calls that are answered later: known from two records, bounded by number, bytes and time (B65)."""

import json

import pytest
from headrace.schemas.record import CORRELATION_ID, STATUS, TP
from headrace.streams.async_table import (
    AsyncBounds,
    AsyncCall,
    AsyncTable,
    acceptance,
    is_id,
    new_id,
)
from service_parts import PlainRecord

BOUNDS = AsyncBounds(window_ms=1_000, max_calls=3, max_bytes=500)
NOW = 1_000_000
PLACE = TP("t", 1)


def call(at_ms=NOW, **more):
    return AsyncCall(new_id(), "m", at_ms, at_ms + 1_000, {"": False}, **more)


def as_record(out):
    return PlainRecord(out.topic, out.partition, 0, 0, out.key, out.value, out.headers)


def answer(known, size=10, status=b"OK"):
    headers = ((CORRELATION_ID, known.id.encode()), (STATUS, status))
    return PlainRecord(value=b"a" * size, headers=headers)


@pytest.fixture
def table():
    return AsyncTable(BOUNDS)


def test_B65_another_gateway_knows_a_call_from_its_records(table):
    """With how its outputs are to be shown."""
    made = AsyncCall(new_id(), "modèle", NOW, NOW + 5, {"a": True, "": False})
    table.apply(as_record(acceptance(PLACE, made)), NOW)
    found = table.find(made.id, NOW)
    assert (found, found.is_answered, table.waiting) == (made, False, 1)
    assert (found.is_binary("a"), found.is_binary("b")) == (True, False)
    table.apply(answer(made), NOW)
    assert table.find(made.id, NOW).reply.value == b"a" * 10
    assert (table.waiting, len(table)) == (0, 1)


def test_B65_an_answer_that_comes_again_changes_nothing(table):
    """At least once, and equal (P-16)."""
    made = call()
    table.add(made)
    table.apply(answer(made), NOW)
    first, size = made.reply, table.size
    table.apply(answer(made), NOW)
    table.apply(as_record(acceptance(PLACE, made)), NOW)
    assert (made.reply, table.size, len(table)) == (first, size, 1)


@pytest.mark.parametrize(
    "record",
    [
        PlainRecord(),
        PlainRecord(headers=((CORRELATION_ID, b"\xff" * 32),)),
        PlainRecord(headers=((CORRELATION_ID, b"0" * 32),), value=b"{"),
        PlainRecord(headers=((CORRELATION_ID, b"0" * 32),), value=b"[]"),
        PlainRecord(
            headers=((CORRELATION_ID, b"0" * 32),), value=json.dumps({"at_ms": 1}).encode()
        ),
        PlainRecord(headers=((CORRELATION_ID, b"0" * 32),), value=None),
        PlainRecord(headers=((CORRELATION_ID, b"0" * 32), (STATUS, b"OK")), value=b"x"),
    ],
)
def test_a_stranger_s_record_says_nothing(table, record):
    table.apply(record, NOW)
    assert len(table) == 0


def test_above_its_number_the_oldest_answers_are_forgotten_first(table):
    """Those who wait keep their place as long as there is an answer to forget."""
    calls = [call() for _ in range(3)]
    for one in calls:
        table.add(one)
    assert table.is_full
    table.apply(answer(calls[1]), NOW)
    assert not table.is_full
    table.add(more := call())
    assert [table.find(one.id, NOW) is not None for one in (*calls, more)] == [
        *(True, False, True),
        True,
    ]
    table.add(another := call())
    assert table.find(calls[0].id, NOW) is None
    assert (len(table), table.find(another.id, NOW)) == (3, another)
    assert (table.size, table.dropped) == (0, 2)


def test_above_its_bytes_answers_are_gone_and_the_call_says_so(table):
    calls = [call() for _ in range(3)]
    for one in calls:
        table.add(one)
        table.apply(answer(one, size=150), NOW)
    assert [one.is_gone for one in calls] == [True, False, False]
    assert all(one.is_answered for one in calls)
    table.apply(answer(calls[0], size=1), NOW)
    assert calls[0].is_gone
    table.add(huge := call())
    table.apply(answer(huge, size=501), NOW)
    assert huge.is_gone
    assert table.size == 0


def test_what_is_older_than_its_topic_keeps_it_is_forgotten(table):
    table.add(old := call())
    table.add(young := call(NOW + 1_500))
    table.apply(answer(old), NOW)
    assert table.find(old.id, NOW + 2_000) is old
    assert table.find(old.id, NOW + 2_001) is None
    assert table.find(young.id, NOW + 2_001) is young
    assert (table.size, table.waiting) == (0, 1)


def test_ids_cannot_be_guessed_and_nothing_else_is_one():
    assert is_id(new_id())
    assert len({new_id() for _ in range(100)}) == 100
    for text in ("", "0" * 31, "0" * 33, "G" * 32, "é" * 16, f"{new_id()}\n"):
        assert not is_id(text)
