"""What `headrace dlq` makes of clients' bytes that end on a terminal."""

import pytest
from headrace.deploy.dlq_report import PREVIEW_BYTES, preview_lines, request_lines, time_text
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF
from letter_kit import letter

NOW_MS = 1_893_499_200_000  # 2030-01-01T12:00:00Z


def test_times_are_shown_in_utc():
    assert time_text(NOW_MS) == "2030-01-01T12:00:00Z"
    assert time_text(-1) == "none"
    assert time_text(2**62) == str(2**62)


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY, PROTOBUF, "text/html"])
@pytest.mark.parametrize("value", [b"\x00", b"\xff" * 10, b"{}", b"[" * 3_000, bytes(1_000)])
def test_B32_bytes_that_are_no_request_are_shown_all_the_same(content_type, value):
    lines = list(
        request_lines(letter(value=value, headers=(("content-type", content_type.encode()),)))
    )
    assert lines
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("value", [None, b""])
def test_without_bytes_there_is_nothing_to_show(value):
    assert list(request_lines(letter(value=value))) == []
    assert list(preview_lines(value)) == []


def test_a_preview_is_bounded_and_cuts_no_character_in_two():
    head, line = preview_lines("é".encode() * 1_000 + b"a")
    assert head == f"value as text (the first {PREVIEW_BYTES} of 2001 bytes):"
    assert line == "  " + "é" * (PREVIEW_BYTES // 2)
    head, line = preview_lines(b"a" + "é".encode() * 1_000)
    assert line == "  a" + "é" * ((PREVIEW_BYTES - 1) // 2)
    head, *rows = preview_lines(b"\xff" * 1_000)
    assert head == f"value (the first {PREVIEW_BYTES} of 1000 bytes):"
    assert len(rows) == PREVIEW_BYTES // 16
    assert rows[-1].startswith("  000000f0  ff ff")
