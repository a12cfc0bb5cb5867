"""Headers: every name of the record contract, both directions, and what is wrong with them."""

import pytest
from headrace.schemas.batch import Entry
from headrace.schemas.errors import (
    Code,
    InferError,
    InvalidRequest,
    QueueFull,
    Reason,
    Unsupported,
)
from headrace.schemas.headers import (
    RequestOptions,
    header_length,
    read_headers,
    request_headers,
)
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, TP
from headrace.schemas.result_headers import ResultHeaders, decoupled_headers
from wire_kit import entry, request

ALL = (
    ("content-type", b"application/json"),
    ("accept", b"application/x-protobuf"),
    ("id", "é1".encode()),
    ("model-version", b"3"),
    ("sequence-start", b"true"),
    ("sequence-end", b"false"),
    ("priority", b"2"),
    ("timeout-us", b"18446744073709551615"),
    ("deadline-ms", b"1700000000000"),
    ("reply-topic", b"replies"),
    ("reply-partition", b"7"),
    ("correlation-id", b"\xff\x00"),
    ("idempotency-key", b"key-1"),
    ("sequence-id", b"7"),
    ("attempt", b"1"),
)

CLAIM = b'{"url":"s3://a/b","size":1,"sha256":"%b"}' % (b"0" * 64)


def read(*headers):
    """Read headers that must be good, and return what they set."""
    made = Entry()
    assert not isinstance(read_headers(made, headers), InferError)
    return vars(made)


def refused(*headers):
    made = Entry()
    error = read_headers(made, headers)
    assert isinstance(error, InferError)
    return error, vars(made)


def test_every_header_finds_its_attribute():
    assert read(*ALL) == {
        "content_type": JSON,
        "accept": PROTOBUF,
        "id": "é1",
        "model_version": "3",
        "sequence_start": True,
        "sequence_end": False,
        "priority": 2,
        "timeout_us": 2**64 - 1,
        "deadline_ms": 1_700_000_000_000,
        "reply_topic": "replies",
        "reply_partition": 7,
        "correlation_id": b"\xff\x00",
        "correlation": (("correlation-id", b"\xff\x00"),),
        "idempotency_key": b"key-1",
        "sequence_id": 7,
    }
    assert read(*ALL, ("attempt", b"3"))["attempt"] == 3


@pytest.mark.parametrize(
    ("headers", "attempt"),
    [
        ([("attempt", b"2")], 2),
        ([("attempt", b"2"), ("x-a", b"1"), ("correlation-id", b"c")], 2),
        ([("x-a", b"1"), ("attempt", b"2"), ("attempt", b"7")], 7),
        ([("x-a", b"1"), ("attempt", b"2"), ("attempt", b"1")], 1),
        ([("attempt", b"2147483647")], 2_147_483_647),
    ],
)
def test_an_answer_says_which_attempt_its_request_was(headers, attempt):
    """At the place of a first one's, and what comes back untouched is as it would be without."""
    made = Entry()
    assert read_headers(made, headers) is None
    made.tp, made.record = TP("t", 0), entry().record
    found = ResultHeaders("m", "3").ok(made, AVRO)
    assert [raw for name, raw in found if name == "attempt"] == [b"%d" % attempt]
    assert found[4] == ("attempt", b"%d" % attempt)
    assert found[6:] == [header for header in headers if header[0] != "attempt"]


def test_an_attempt_is_known_also_where_too_much_should_come_back():
    error, said = refused(("attempt", b"2"), ("x-big", bytes(40_000)))
    assert "bytes, expected at most" in error.detail
    assert (said["attempt"], said["correlation"]) == (2, (("attempt", b"2"),))


def test_without_headers_only_the_default_content_type_is_set():
    assert read() == {"content_type": AVRO}
    assert read(("unknown", b"\xff"), ("Kafka-Thing", b"")) == {"content_type": AVRO}


def test_spring_kafkas_request_and_reply_headers_are_understood():
    said = read(
        ("kafka_replyTopic", b"r"),
        ("kafka_replyPartition", b"\x00\x00\x01\x02"),
        ("kafka_correlationId", bytes(range(16))),
    )
    assert said["reply_topic"] == "r"
    assert said["reply_partition"] == 258
    assert said["correlation_id"] == bytes(range(16))
    assert said["correlation"] == (("kafka_correlationId", bytes(range(16))),)


def test_R10_opaque_headers_come_back_untouched_in_their_order():
    opaque = (
        ("x-b", b"\xff\xfe"),
        ("traceparent", b"00-1-2-01"),
        ("kafka_correlationId", b"\x80"),
        ("x-b", b""),
        ("tracestate", b"a=1"),
        ("correlation-id", b"c"),
    )
    made = entry()
    assert read_headers(made, opaque) is None
    assert made.correlation == opaque
    assert tuple(ResultHeaders("m", "1").ok(made, AVRO)[-6:]) == opaque


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"application/vnd.headrace.v2+avro", AVRO),
        (b"Application/JSON", JSON),
        (b"application/json; charset=utf-8", JSON),
        (b"application/octet-stream ;a=b;", BINARY),
        (b"APPLICATION/X-PROTOBUF", PROTOBUF),
    ],
)
def test_media_types_are_compared_without_case_and_parameters(raw, expected):
    assert read(("content-type", raw))["content_type"] == expected
    assert read(("accept", raw))["accept"] == expected


@pytest.mark.parametrize("raw", [b"", b"*/*"])
def test_an_accept_that_says_nothing_is_none(raw):
    assert read(("accept", raw)) == {"content_type": AVRO}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("sequence-id", b"7")], 7),
        ([("sequence-id", b"0")], 0),
        ([("sequence-id", b"")], ""),
        ([("sequence-id", b"18446744073709551615")], 2**64 - 1),
        ([("sequence-id", b"18446744073709551616")], "18446744073709551616"),
        ([("sequence-id", b"-7")], "-7"),
        ([("sequence-id", "é".encode())], "é"),
        ([("sequence-id", b"7"), ("sequence-id-type", b"string")], "7"),
        ([("sequence-id-type", b"uint64"), ("sequence-id", b"7")], 7),
        ([("sequence-id-type", b"uint64")], 0),
    ],
)
def test_a_sequence_id_is_a_number_or_a_string(headers, expected):
    found = read(*headers)["sequence_id"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("id", b"a\xff", "UTF-8 text"),
        ("id", None, "UTF-8 text"),
        ("reply-topic", b"\xc3", "UTF-8 text"),
        ("model-version", None, "UTF-8 text"),
        ("content-type", None, "UTF-8 text"),
        ("accept", None, "UTF-8 text"),
        ("priority", b"high", "a whole number from 0 to 18446744073709551615"),
        ("priority", b"18446744073709551616", "a whole number"),
        ("priority", b"9" * 5000, "a whole number"),
        ("priority", b"1_0", "a whole number"),
        ("timeout-us", b" 1", "a whole number"),
        ("timeout-us", b"-1", "a whole number"),
        ("timeout-us", b"", "a whole number"),
        ("deadline-ms", b"1.5", "a whole number from 0 to 9223372036854775807"),
        ("deadline-ms", None, "a whole number"),
        ("reply-partition", b"2147483648", "a whole number from 0 to 2147483647"),
        ("kafka_replyPartition", b"\x00\x00\x01", "4 bytes"),
        ("kafka_replyPartition", b"\xff\xff\xff\xff", "4 bytes"),
        ("kafka_replyPartition", None, "4 bytes"),
        ("sequence-start", b"yes", "true or false"),
        ("sequence-end", None, "true or false"),
        ("sequence-id", b"\xff", "UTF-8 text"),
        ("sequence-id", None, "UTF-8 text"),
        ("sequence-id-type", b"int", "uint64 or string"),
        ("sequence-id-type", None, "uint64 or string"),
        ("attempt", b"one", "a whole number"),
        ("attempt", b"0", "a whole number from 1 to 2147483647"),
        ("attempt", b"2147483648", "a whole number from 0 to 2147483647"),
        ("correlation-id", None, "any bytes"),
        ("kafka_correlationId", None, "any bytes"),
        ("idempotency-key", None, "1 to 255 visible ASCII characters"),
        ("idempotency-key", b"", "1 to 255 visible ASCII characters"),
        ("idempotency-key", b"a b", "1 to 255 visible ASCII characters"),
        ("idempotency-key", b"\xfe", "1 to 255 visible ASCII characters"),
        ("idempotency-key", b"k" * 256, "1 to 255 visible ASCII characters"),
        ("x-a", None, "any bytes"),
        ("traceparent", None, "any bytes"),
    ],
)
def test_B32_a_bad_header_is_named_with_its_value_and_what_was_expected(name, raw, expected):
    error, said = refused((name, raw), ("reply-topic", b"r"), ("x-z", b"z"))
    assert isinstance(error, InvalidRequest)
    assert error.reason is Reason.INVALID_HEADER
    assert f"header '{name}' is " in error.detail
    assert expected in error.detail
    assert len(error.detail) < 250
    assert said["reply_topic"] == "r"  # the error can be answered
    assert ("x-z", b"z") in said["correlation"]


def test_a_value_is_shown_escaped_and_shortened():
    error, _ = refused(("priority", b"\x00\xff" + b"a" * 100))
    assert r"'\x00\xffaaa" in error.detail
    assert "…" in error.detail
    assert "null" in refused(("priority", None))[0].detail


def test_a_sequence_id_that_its_type_does_not_fit():
    error, _ = refused(("sequence-id", b"seven"), ("sequence-id-type", b"uint64"))
    assert "header 'sequence-id' is 'seven', expected a whole number" in error.detail


def test_the_first_of_several_errors_is_told():
    error, _ = refused(("priority", b"a"), ("timeout-us", b"b"))
    assert "'priority'" in error.detail


@pytest.mark.parametrize("name", ["content-type", "accept"])
def test_B32_an_unknown_content_type_lists_those_that_exist(name):
    error, said = refused((name, b"text/html"), ("id", b"1"))
    assert error.reason is Reason.UNKNOWN_CONTENT_TYPE
    assert f"header '{name}' is 'text/html', expected one of {AVRO}" in error.detail
    assert said == {"content_type": AVRO, "id": "1"}


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("content-type", AVRO.encode() + b"; framing=confluent", Reason.UNSUPPORTED_FRAMING),
        ("content-type", AVRO.encode() + b";Framing = Confluent", Reason.UNSUPPORTED_FRAMING),
        ("accept", AVRO.encode() + b"; framing=confluent", Reason.UNSUPPORTED_FRAMING),
        ("claim-check", CLAIM, Reason.UNSUPPORTED_CLAIM_CHECK),
    ],
)
def test_B35_what_is_not_offered_yet_says_so(name, raw, reason):
    error, _ = refused((name, raw))
    assert isinstance(error, Unsupported)
    assert error.code is Code.UNSUPPORTED
    assert error.reason is reason
    assert f"header '{name}'" in error.detail


def test_BN01_the_length_of_the_JSON_part():
    assert header_length((("a", b"1"), ("inference-header-content-length", b"12"))) == 12
    assert header_length(()) is None
    with pytest.raises(InvalidRequest, match="inference-header-content-length"):
        header_length((("inference-header-content-length", b"-1"),))


def test_result_headers_say_whose_answer_it_is():
    made = entry(id="r1", offset=42, correlation=(("x-a", b"1"),))
    assert ResultHeaders("m", "3").ok(made, JSON, (("extra", b"e"),)) == [
        ("content-type", b"application/json"),
        ("model-name", b"m"),
        ("model-version", b"3"),
        ("status", b"OK"),
        ("attempt", b"1"),
        ("source", b"headrace.m.requests/3/42"),
        ("id", b"r1"),
        ("extra", b"e"),
        ("x-a", b"1"),
    ]


def test_a_request_without_id_is_answered_without_id():
    assert "id" not in dict(ResultHeaders("m", "3").ok(entry(), AVRO))


def test_a_block_of_headers_is_what_each_entry_would_get():
    entries = [entry(offset=1, id="a"), entry(offset=2), entry(offset=3, tp=TP("other", 0))]
    headers = ResultHeaders("m", "3")
    assert headers.ok_block(entries, AVRO) == [headers.ok(one, AVRO) for one in entries]
    assert dict(headers.ok_block(entries, AVRO)[2])["source"] == b"other/0/3"


def test_error_headers_carry_code_and_reason():
    found = dict(ResultHeaders("m", "3").error(entry(), AVRO, QueueFull("full")))
    assert found["status"] == b"UNAVAILABLE"
    assert found["reason"] == b"queue_full"
    assert found["source"] == b"headrace.m.requests/3/0"
    assert found["attempt"] == b"1"


@pytest.mark.parametrize("correlation", [(), (("x-a", b"1"), ("x-b", b"2"))])
def test_a_result_and_an_error_say_which_attempt_they_answer(correlation):
    """At the place of a first one's, and nothing else changes."""
    first, third = (entry(id="r", correlation=correlation) for _ in range(2))
    third.set_attempt(2)
    third.set_attempt(3)
    headers = ResultHeaders("m", "3")
    usual, raised = headers.ok_block([first, third], JSON, (("extra", b"e"),))
    assert raised == [(name, b"3" if name == "attempt" else raw) for name, raw in usual]
    refused = headers.error(third, AVRO, QueueFull("full"))
    assert [raw for name, raw in refused if name == "attempt"] == [b"3"]
    third.set_attempt(1)
    assert headers.ok(third, JSON) == headers.ok(first, JSON)


def test_decoupled_responses_are_numbered():
    assert decoupled_headers(0, final=False) == (("response-index", b"0"), ("final", b"false"))
    assert decoupled_headers(12, final=True) == (("response-index", b"12"), ("final", b"true"))


def test_a_clients_headers_are_read_as_they_were_meant():
    made = request(
        id="é",
        model_version="2",
        sequence_id="7",
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout_us=5,
    )
    options = RequestOptions(
        accept=JSON,
        deadline_ms=9,
        reply_topic="r",
        reply_partition=0,
        correlation_id=b"\xff",
        idempotency_key=b"k",
        extra=(("x-a", b"1"), ("traceparent", b"t")),
    )
    assert read(*request_headers(made, BINARY, options, 17)) == {
        "content_type": BINARY,
        "accept": JSON,
        "id": "é",
        "model_version": "2",
        "sequence_id": "7",
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout_us": 5,
        "deadline_ms": 9,
        "reply_topic": "r",
        "reply_partition": 0,
        "correlation_id": b"\xff",
        "idempotency_key": b"k",
        "correlation": (("correlation-id", b"\xff"), ("x-a", b"1"), ("traceparent", b"t")),
    }


def test_a_plain_request_needs_one_header():
    assert request_headers(request(), AVRO) == [("content-type", AVRO.encode())]
    assert read(*request_headers(request(sequence_id=7), AVRO))["sequence_id"] == 7
