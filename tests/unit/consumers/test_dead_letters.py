"""A dead letter made of an entry and its error: everything that an operator needs beside the untouched original."""

from __future__ import annotations

import pytest
from headrace.consumers.dead_letters import dead_letter, record_bytes
from headrace.schemas.dead_letter import read_dead_letter
from headrace.schemas.errors import BackendError, UndecodableRecord
from headrace.schemas.record import TP
from headrace.streams.memory_partition import MemoryRecord
from service_parts import PlainRecord, make_entry

SOURCE = TP("requests", 5)


def letter_of(record, error=None, *, limit=9_000, attempt=1, entry_version="", **more):
    """Write the letter of a record; returns it as it is produced, and as it is read again."""
    entry = make_entry()
    entry.tp, entry.record, entry.model_version = SOURCE, record, entry_version
    entry.set_attempt(attempt)
    error = error or UndecodableRecord("bad bytes")
    out = dead_letter(
        entry, error, model_name="m", target=TP("dead", 1), max_record_bytes=limit, **more
    )
    stored = MemoryRecord("dead", 1, 9, 99, out.key, out.value, tuple(out.headers))
    return out, read_dead_letter(stored)


def test_B31_a_dead_letter_says_which_record_it_is_and_why_and_where_it_failed() -> None:
    """Original topic, partition, offset, key and headers, error class, model and version, attempts."""
    record = PlainRecord("requests", 5, 42, 1234, b"k", b"\xff\x00", (("x-a", b"1"),))
    error = BackendError("instance 'm_0' failed: ValueError: row 7")
    out, letter = letter_of(record, error, attempt=3, version="2")
    assert (out.topic, out.partition, out.key, out.value) == ("dead", 1, b"k", b"\xff\x00")
    assert (letter.source, letter.offset, letter.timestamp_ms) == (SOURCE, 42, 1234)
    assert (letter.model, letter.version, letter.attempts) == ("m", "2", 3)
    assert (letter.status, letter.reason) == ("INTERNAL", "backend_failed")
    assert (letter.error_class, letter.detail) == ("BackendError", error.detail)
    assert (letter.key, letter.value, letter.headers) == (b"k", b"\xff\x00", record.headers)
    assert letter.is_whole


def test_the_version_is_the_one_that_was_asked_for_where_none_ran() -> None:
    assert letter_of(PlainRecord(value=b"v"), entry_version="7")[1].version == "7"


def test_a_letter_that_dies_again_keeps_the_letter_that_it_was_untouched() -> None:
    """Names of ours that a client used are the client's; ours are the last of their name for any other reader."""
    first, _ = letter_of(PlainRecord("requests", 5, 42, 1, b"k", b"v", (("x-a", b"1"),)))
    record = PlainRecord("requests", 5, 43, 2, first.key, first.value, tuple(first.headers))
    out, again = letter_of(record, BackendError("once more"), attempt=2)
    assert again.headers == tuple(first.headers)
    assert (again.offset, again.attempts, again.detail) == (43, 2, "once more")
    assert dict(out.headers)["dead-letter-source"] == b"requests/5/43"
    assert dict(out.headers)["dead-letter-reason"] == b"backend_failed"


@pytest.mark.parametrize("key", [b"k", None])
def test_B32_a_null_value_is_read_back_as_null(key) -> None:
    """Without a key it is written as an empty one: a record with neither cannot be produced."""
    out, letter = letter_of(PlainRecord(key=key, value=None))
    assert out.value == (None if key else b"")
    assert (letter.key, letter.value) == (key, None)
    assert letter_of(PlainRecord(key=key, value=b""))[1].value == b""


def test_a_dead_letter_above_the_limit_says_what_it_leaves_out() -> None:
    """Our headers must not push a record over the limit and stop the partition."""
    out, letter = letter_of(PlainRecord(key=b"k", value=b"v" * 900), limit=1000)
    assert (out.value, letter.omitted_bytes) == (b"", 900)
    assert (letter.key, letter.omitted_key_bytes) == (b"k", 0)
    assert not letter.is_whole
    record = PlainRecord(key=b"k" * 900, value=b"v", headers=(("x-a", bytes(900)),))
    out, letter = letter_of(record, limit=1000)
    assert record_bytes(out.key, out.value, out.headers) <= 1000
    omitted = (letter.omitted_bytes, letter.omitted_key_bytes, letter.omitted_headers)
    assert (omitted, letter.headers, letter.key) == ((1, 900, 1), (), None)
