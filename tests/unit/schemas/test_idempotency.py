"""Idempotency keys: what makes two requests the same, and which answers are kept (DELIVERY P-17)."""

import pytest
from headrace.schemas import avro
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import (
    BackendError,
    BackendUnavailable,
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    InferError,
    InstanceDied,
    InvalidRequest,
    KeyReused,
    OutOfMemory,
    QueueFull,
    Reason,
    Retriable,
    TooLarge,
    Unavailable,
    WrongOutput,
)
from headrace.schemas.headers import RequestOptions
from headrace.schemas.idempotency import is_kept, request_digest
from headrace.schemas.idempotency_key import MAX_KEY_BYTES, checked_key
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF
from headrace.schemas.tensor import Datatype, Tensor
from wire_kit import TP0, Rec, decoder, fp32, request

KEYED = RequestOptions(idempotency_key=b"k")


def digest(made: InferRequest, content_type: str = AVRO, **options: object) -> bytes:
    """Decode a request as a worker does, and return its digest."""
    options = {"idempotency_key": b"k"} | options
    value, headers = encode_request(made, content_type, RequestOptions(**options))
    (entry,) = decoder().decode(TP0, 1, [Rec(value, tuple(headers))]).keyed
    assert entry.digest == request_digest(entry)
    return entry.digest


SAME = digest(request(1, 2, 3, 4))


@pytest.mark.parametrize("content_type", [JSON, BINARY, PROTOBUF])
def test_P17_a_repeat_may_come_in_another_format(content_type):
    assert digest(request(1, 2, 3, 4), content_type) == SAME


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"id": "another"}, {}),
        ({"priority": 3}, {}),
        ({"timeout_us": 9}, {}),
        ({}, {"deadline_ms": 9}),
        ({}, {"reply_topic": "r", "correlation_id": b"c", "accept": JSON}),
        ({}, {"idempotency_key": b"another"}),
        ({}, {"extra": (("x-a", b"1"), ("traceparent", b"2"), ("attempt", b"3"))}),
    ],
)
def test_P17_a_repeat_may_differ_in_who_asks_and_how_it_waits(asked, options):
    """Ids, addresses, deadlines and queueing are of one try."""
    assert digest(request(1, 2, 3, 4, **asked), **options) == SAME


@pytest.mark.parametrize(
    "made",
    [
        request(1, 2, 3, 5),
        request(1, 2, 3, 4, parameters={"a": 1}),
        request(1, 2, 3, 4, parameters={"a": True}),
        request(1, 2, 3, 4, parameters={"a": "1"}),
        request(1, 2, 3, 4, model_version="1"),
        request(1, 2, 3, 4, outputs=(RequestedOutput("y"),)),
        request(1, 2, 3, 4, sequence_id=7),
        request(1, 2, 3, 4, sequence_id="7"),
        request(1, 2, 3, 4, sequence_id=7, sequence_start=True),
        request(1, 2, 3, 4, sequence_id=7, sequence_end=True),
        InferRequest((Tensor("x", Datatype.FP32, (2, 4), fp32(*[1] * 8).data),)),
    ],
    ids=repr,
)
def test_P17_another_request_has_another_digest(made):
    digests = {SAME, digest(made)}
    assert len(digests) == 2


def test_P17_only_records_with_a_key_are_noted():
    """In the order of their records; one that became no request is answered like any other."""
    good, headers = encode_request(request(1, 2, 3, 4), AVRO, KEYED)
    plain = avro.write_request(request(1, 2, 3, 4))
    records = [
        Rec(good, tuple(headers), offset=0),
        Rec(plain, offset=1),
        Rec(b"\xff", tuple(headers), offset=2),
        Rec(good, (*headers, ("id", b"x")), offset=3),
        Rec(good, (*headers, ("idempotency-key", b" ")), offset=4),
    ]
    found = decoder().decode(TP0, 1, records)
    assert [entry.record.offset for entry in found.keyed] == [0, 3]
    assert [failure.entry.record.offset for failure in found.failures] == [2, 4]
    assert decoder().decode(TP0, 1, records[1:3]).keyed == []
    assert decoder().decode(TP0, 1, records[1:2]).keyed == ()


KEPT = (BackendError("x"), WrongOutput("x"), InvalidRequest("x"))
KEPT += (TooLarge("x", reason=Reason.ANSWER_TOO_LARGE),)
UNKEPT = (
    *(kind("x") for kind in (QueueFull, Unavailable, Cancelled, DeadlineExceeded, Retriable)),
    *(kind("x") for kind in (BackendUnavailable, ExecutionTimeout, InstanceDied, OutOfMemory)),
    DeadlineExceeded("x", reason=Reason.DEADLINE_PASSED),
    Unavailable("x", reason=Reason.DRAINING),
    InvalidRequest("x", reason=Reason.REPLY_TOPIC_REFUSED),
    InvalidRequest("x", reason=Reason.SEQUENCE_UNKNOWN),
    InvalidRequest("x", reason=Reason.CLAIM_UNREACHABLE),
    KeyReused("x"),
)


def headers_of(error: InferError) -> list[tuple[str, bytes]]:
    return [("status", error.code.encode()), ("reason", error.reason.encode()), ("id", b"a")]


def test_P17_results_and_lasting_errors_are_kept_and_retriable_errors_are_not():
    assert is_kept([("status", b"OK")])
    assert [error for error in KEPT if not is_kept(headers_of(error))] == []
    assert [error for error in UNKEPT if is_kept(headers_of(error))] == []


def test_P17_a_key_is_visible_ASCII_of_bounded_length():
    longest = b"!~" + b"k" * (MAX_KEY_BYTES - 2)
    assert checked_key(longest) == longest
    for bad in (None, b"", longest + b"k", b"a b", b"\x7f", "\u00e9".encode(), b"a\n"):
        with pytest.raises(InvalidRequest, match="1 to 255 visible ASCII") as info:
            checked_key(bad, "Idempotency-Key")
        assert info.value.reason is Reason.INVALID_HEADER
        assert len(info.value.detail) < 400
