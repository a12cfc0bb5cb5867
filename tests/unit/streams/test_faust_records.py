"""Requests and results as values of a stream: what is written is read, and foreign records are errors as values."""

import pytest
from headrace.schemas.claim_check import claim_for, write_claim
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import InferError, QueueFull, Reason, UndecodableRecord, Unsupported
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import AVRO, CONTENT_TYPES, JSON
from headrace.streams.faust_records import (
    key_of,
    read_request,
    read_result,
    write_request,
    write_result,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import Rec, fp32, request

quick = settings(deadline=None, max_examples=100)
FIELDS = {
    "id": "é1",
    "model_version": "3",
    "sequence_id": "7",
    "sequence_start": True,
    "sequence_end": True,
    "priority": 2,
    "timeout_us": 5_000,
    "parameters": {"a": 1},
}


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("sequence_id", [0, 7, "7"])
def test_a_request_is_read_as_it_was_written(content_type, sequence_id):
    """In every format, with all that headers carry."""
    written = request(1, 2, 3, 4, **FIELDS | {"sequence_id": sequence_id})
    value, headers = write_request(written, content_type)
    assert read_request(Rec(value, headers)) == written


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_a_result_is_read_as_it_was_written(content_type):
    """Responses, and errors by code, reason and sentence."""
    response = InferResponse((fp32(0.5, name="y"),), "é1", "m", "3", {"a": 1})
    assert read_result(Rec(*write_result(response, content_type))) == response
    error = read_result(Rec(*write_result(QueueFull("full, é"), content_type)))
    assert isinstance(error, QueueFull)
    assert (error.reason, error.detail) == (Reason.QUEUE_FULL, "full, é")


def test_headers_count_before_the_value():
    """As they do in a worker; what no header says is the value's."""
    value, _ = write_request(request(id="value's", priority=1), JSON)
    headers = [("content-type", JSON.encode()), ("id", b"header's"), ("sequence-id", b"9")]
    found = read_request(Rec(value, headers))
    assert (found.id, found.priority, found.sequence_id) == ("header's", 1, 9)


def test_the_key_is_the_sequence_id_as_text():
    """7 and "7" are together in one partition; anything else has no key of ours."""
    assert key_of(InferRequest((), sequence_id=7)) == key_of(InferRequest((), sequence_id="7"))
    assert key_of(InferRequest((), sequence_id="Zähler")) == "Zähler".encode()
    assert [key_of(value) for value in (InferRequest(()), InferResponse(()), b"x", None)] == [
        None
    ] * 4


@pytest.mark.parametrize("read", [read_request, read_result])
@pytest.mark.parametrize(
    ("value", "headers", "kind"),
    [
        (None, (), UndecodableRecord),
        (b"", (), UndecodableRecord),
        (b"\xff" * 10, (), UndecodableRecord),
        (b"\xff" * 10, [("content-type", b"application/x-protobuf")], InferError),
        (b"{", [("content-type", JSON.encode())], InferError),
        (b"x", [("content-type", b"text/plain")], InferError),
        (b"x", [("content-type", None)], InferError),
        (b"", [("claim-check", write_claim(claim_for("file:///x", b"v")))], Unsupported),
    ],
)
def test_B32_a_record_that_nobody_can_read_is_an_error_in_the_place_of_the_value(
    read, value, headers, kind
):
    """Nothing is raised into a stream."""
    assert isinstance(read(Rec(value, headers)), kind)


@quick
@given(
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                ["content-type", "id", "status", "sequence-id", "priority", "attempt"]
            ),
            st.none()
            | st.sampled_from([one.encode() for one in CONTENT_TYPES])
            | st.binary(max_size=9),
        ),
        max_size=4,
    ),
)
def test_B32_any_record_is_a_value(value, headers):
    """A request or a response, or the reason why it is none."""
    record = Rec(value, headers)
    assert isinstance(read_request(record), InferRequest | InferError)
    assert isinstance(read_result(record), InferResponse | InferError)


def test_headers_that_a_request_cannot_say_do_not_disturb():
    """Reply address, correlation id and those of others."""
    options = RequestOptions(reply_topic="t", correlation_id=b"\x00", extra=(("x-a", b"\xff"),))
    value, headers = encode_request(request(1, 2, 3, 4), AVRO, options)
    assert read_request(Rec(value, headers)) == request(1, 2, 3, 4)
