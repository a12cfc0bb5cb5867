"""Results and errors as records: what each entry asked for, in its own format, and clients that read them."""

import json

import numpy as np
import pytest
from headrace.schemas import errors
from headrace.schemas.answers import ResponseEncoder, _heads, answer_instead, encode_error
from headrace.schemas.batch import Responses
from headrace.schemas.codec import MAX_DETAIL, decode_response, error_of
from headrace.schemas.errors import (
    BackendError,
    Code,
    DeadlineExceeded,
    InferError,
    InvalidRequest,
    QueueFull,
    Reason,
    SchemaNeeded,
    Unavailable,
    UndecodableRecord,
    WrongOutput,
)
from headrace.schemas.infer import InferResponse, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, CONTENT_TYPES, JSON, PROTOBUF
from headrace.schemas.tensor import Datatype, Tensor
from wire_kit import batch, entry, signature, tensor_config

ONE = signature()
TWO = signature(
    outputs=[tensor_config("a", dims=(1,)), tensor_config("b", Datatype.INT8, (2,))], version=3
)
HALF = signature(outputs=[tensor_config("y", Datatype.FP16, (1,))])


def two(rows):
    """Outputs of TWO, distinct in every row."""
    return {
        "b": np.arange(rows * 2, dtype=np.int8).reshape(rows, 2),
        "a": np.arange(rows, dtype=np.float32).reshape(rows, 1),
    }


def encode(signed, outputs, *entries, **rest):
    index = rest.pop("response_index", None)
    made = batch(*entries, of=signed)
    return ResponseEncoder(signed).encode(made, Responses(outputs, **rest), response_index=index)


def decoded(answers):
    return [decode_response(value, headers) for _, value, headers in answers]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_every_entry_gets_its_rows_in_its_own_format(content_type):
    entries = [entry(id="1"), entry(2, id="2"), entry()]
    for one in entries:
        one.content_type = content_type
    answers = encode(TWO, two(4), *entries)
    assert [one for one, _, _ in answers] == entries
    assert decoded(answers)[1] == InferResponse(
        (
            Tensor("a", Datatype.FP32, (2, 1), np.float32([1, 2]).tobytes()),
            Tensor("b", Datatype.INT8, (2, 2), bytes([2, 3, 4, 5])),
        ),
        "2",
        "m",
        "3",
    )
    assert [found.id for found in decoded(answers)] == ["1", "2", ""]
    said = dict(answers[0][2])
    assert said["content-type"].decode() == content_type
    assert (said["model-name"], said["model-version"], said["status"]) == (b"m", b"3", b"OK")


def test_a_mixed_batch_keeps_the_order_and_each_accept():
    entries = [
        entry(offset=0),
        entry(offset=1, accept=JSON),
        entry(offset=2, content_type=PROTOBUF),
        entry(offset=3, content_type=JSON, accept=AVRO),
        entry(offset=4, content_type=BINARY),
    ]
    answers = encode(TWO, two(5), *entries)
    types = [dict(headers)["content-type"].decode() for _, _, headers in answers]
    assert types == [AVRO, JSON, PROTOBUF, AVRO, BINARY]
    assert [one.record.offset for one, _, _ in answers] == [0, 1, 2, 3, 4]
    for i, found in enumerate(decoded(answers)):
        assert found.outputs[0].numpy().tolist() == [[i]]


def test_B37_each_gets_only_the_outputs_that_it_asked_for():
    a, b = (entry(outputs=(RequestedOutput(name),)) for name in "ab")
    both = entry(outputs=(RequestedOutput("b"), RequestedOutput("a")))
    found = decoded(encode(TWO, two(4), a, b, entry(), both))
    names = [[tensor.name for tensor in one.outputs] for one in found]
    assert names == [["a"], ["b"], ["a", "b"], ["a", "b"]]  # PB-43


def test_an_output_that_nobody_wants_may_be_missing():
    wanted = entry(outputs=(RequestedOutput("a"),))
    (found,) = decoded(encode(TWO, {"a": np.zeros((1, 1), np.float32)}, wanted))
    assert [tensor.name for tensor in found.outputs] == ["a"]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"a": np.zeros((2, 1), np.float32)}, "returned no output 'b'"),
        ({}, "returned no output 'a'"),
        ({**two(2), "c": np.zeros((2, 1))}, "unknown output 'c', expected"),
        ({**two(2), "a": np.zeros((1, 1), np.float32)}, "expected 2 rows"),
        ({**two(2), "a": np.zeros((2, 1))}, "returned float64"),
    ],
)
def test_B36_outputs_that_do_not_fit_fail_the_batch_before_anything_is_returned(outputs, text):
    with pytest.raises(WrongOutput, match=text):
        encode(TWO, outputs, entry(), entry(accept=JSON))


def test_members_that_failed_are_left_out_and_their_rows_skipped():
    failing = {1: InvalidRequest("no")}
    entries = [entry(offset=0), entry(2, offset=1), entry(offset=2)]
    answers = encode(TWO, two(4), *entries, errors=failing)
    assert [one.record.offset for one, _, _ in answers] == [0, 2]
    assert [found.outputs[0].numpy().tolist() for found in decoded(answers)] == [[[0]], [[3]]]


def test_a_response_for_some_members_has_only_their_rows():
    entries = [entry(offset=0), entry(2, offset=1), entry(offset=2), entry(offset=3)]
    failing = {3: InvalidRequest("no")}
    answers = encode(TWO, two(4), *entries, members=[1, 3, 2], errors=failing)
    assert [one.record.offset for one, _, _ in answers] == [1, 2]
    assert [found.outputs[0].numpy().tolist() for found in decoded(answers)] == [[[0], [1]], [[3]]]


def test_SQ11_padding_rows_are_not_answered():
    answers = encode(TWO, two(3), entry(offset=0), None, entry(offset=2, accept=JSON))
    assert [one.record.offset for one, _, _ in answers] == [0, 2]
    assert [found.outputs[0].numpy().tolist() for found in decoded(answers)] == [[[0]], [[2]]]


def test_what_stands_before_the_data_follows_its_length_even_where_shapes_are_one_object():
    shape = (1, 1)
    (spec,) = signature(outputs=[tensor_config("s", Datatype.BYTES, (1,))]).outputs
    one, two = _heads(b"", spec, [(shape, b"a"), (shape, b"ab")])
    assert (one[-1], two[-1]) == (2, 4)


def test_B48_zero_rows_of_boxes_are_a_result():
    boxes = signature(outputs=[tensor_config("boxes", dims=(-1, 6))])
    for content_type in CONTENT_TYPES:
        made = entry(content_type=content_type)
        (found,) = decoded(encode(boxes, {"boxes": np.zeros((1, 0, 6), np.float32)}, made))
        assert found.outputs == (Tensor("boxes", Datatype.FP32, (1, 0, 6), b""),)


def test_R5_R10_id_and_correlation_come_back_untouched():
    opaque = (("correlation-id", b"\xff\x00"), ("x-trace", b"\xfe"))
    for content_type in CONTENT_TYPES:
        one = entry(content_type=content_type, id="é", correlation=opaque)
        ((_, _, headers),) = encode(ONE, {"y": np.zeros((1, 2), np.float32)}, one)
        assert tuple(headers[-2:]) == opaque
        assert dict(headers)["id"] == "é".encode()
        _, headers = encode_error(one, QueueFull("full"), "m", "1")
        assert tuple(headers[-2:]) == opaque
    nameless = entry(correlation=opaque)
    ((_, _, headers),) = encode(ONE, {"y": np.zeros((1, 2), np.float32)}, nameless)
    assert "id" not in dict(headers)  # no invented one
    assert tuple(headers[-2:]) == opaque


# ----- JSON and binary


@pytest.mark.parametrize(
    ("said", "binary"),
    [
        ({"content_type": BINARY}, {"a", "b"}),
        (
            {
                "content_type": BINARY,
                "outputs": (RequestedOutput("a", {"binary_data": False}), RequestedOutput("b")),
            },
            {"b"},
        ),
        ({"content_type": JSON}, set()),
        ({"content_type": JSON, "binary_data_output": True}, {"a", "b"}),
        (
            {
                "content_type": JSON,
                "outputs": (RequestedOutput("a", {"binary_data": True}), RequestedOutput("b")),
            },
            {"a"},
        ),
        ({"content_type": BINARY, "accept": JSON}, set()),
        ({"content_type": JSON, "accept": JSON, "binary_data_output": True}, set()),
        ({"content_type": AVRO, "accept": BINARY}, {"a", "b"}),
    ],
)
def test_BN03_BN05_which_tensors_are_binary(said, binary):
    ((_, value, headers),) = encode(TWO, two(1), entry(**said))
    found = dict(headers)
    length = int(found.get("inference-header-content-length", len(value)))
    outputs = json.loads(value[:length])["outputs"]
    assert {item["name"] for item in outputs if "data" not in item} == binary
    assert found["content-type"].decode() == (BINARY if binary else JSON)


def test_B41_B51_an_answer_that_its_format_cannot_hold_fails_alone():
    entries = [entry(offset=i, content_type=JSON if i == 3 else AVRO) for i in range(8)]
    answers = encode(HALF, {"y": np.zeros((8, 1), np.float16)}, *entries)
    assert [one.record.offset for one, _, _ in answers] == list(range(8))
    states = [dict(headers)["status"] for _, _, headers in answers]
    assert states == [b"OK"] * 3 + [b"INVALID_ARG"] + [b"OK"] * 4
    with pytest.raises(InvalidRequest, match="binary data format for output 'y'"):
        decode_response(*answers[3][1:])


def test_B51_half_floats_pass_bit_for_bit():
    bits = np.array([[0x0001], [0x83FF], [0x7C01], [0xFE55]], "<u2")
    for content_type in (AVRO, BINARY, PROTOBUF):
        entries = [entry(content_type=content_type) for _ in bits]
        found = decoded(encode(HALF, {"y": bits.view(np.float16)}, *entries))
        assert [bytes(one.outputs[0].data) for one in found] == [row.tobytes() for row in bits]


# ----- decoupled


def test_DC01_responses_of_a_decoupled_model_are_numbered():
    for content_type in (AVRO, JSON):
        one = entry(content_type=content_type)
        ((_, _, headers),) = encode(
            ONE, {"y": np.zeros((1, 2), np.float32)}, one, response_index=4, final=False
        )
        found = dict(headers)
        assert (found["response-index"], found["final"]) == (b"4", b"false")


def test_DC01_the_last_response_may_be_empty():
    for content_type in CONTENT_TYPES:
        one = entry(content_type=content_type)
        answers = encode(ONE, {}, one, response_index=1, parameters={"k": 1})
        assert dict(answers[0][2])["final"] == b"true"
        assert decoded(answers) == [InferResponse((), "", "m", "1", {"k": 1})]


def test_PY03_response_parameters_are_written():
    for content_type in CONTENT_TYPES:
        one = entry(content_type=content_type)
        answers = encode(ONE, {"y": np.zeros((1, 2), np.float32)}, one, parameters={"k": "v"})
        assert decoded(answers)[0].parameters == {"k": "v"}


# ----- errors


def kinds(kind=InferError):
    """Every kind of error that an answer may carry; others stand for something inside the worker."""
    found = [kind, *(found for below in kind.__subclasses__() for found in kinds(below))]
    return [
        one for one in found if one.__module__ == InferError.__module__ and one is not SchemaNeeded
    ]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("kind", kinds())
def test_R4_an_error_is_raised_again_at_the_client_as_what_it_was(kind, content_type):
    one = entry(content_type=content_type, id="r")
    value, headers = encode_error(one, kind("what happened"), "m", "3")
    said = dict(headers)
    assert said["status"].decode() == kind.code
    assert said["reason"].decode() == kind.reason
    assert (said["model-name"], said["model-version"], said["id"]) == (b"m", b"3", b"r")
    with pytest.raises(InferError, match=r"^what happened$") as caught:
        decode_response(value, headers)
    assert type(caught.value) is kind or kind is InferError
    assert (caught.value.code, caught.value.reason) == (kind.code, kind.reason)
    assert caught.value.retriable == kind.retriable


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("is_error", [False, True])
def test_an_answer_that_cannot_be_delivered_becomes_the_error_that_says_so(content_type, is_error):
    """It says whose it is as before, and nothing of the value that it had."""
    one = entry(content_type=content_type, id="r", correlation=(("x-own", b"1"),))
    ((_, _, headers),) = encode(ONE, {"y": np.zeros((1, 2), np.float32)}, one)
    if is_error:
        _, headers = encode_error(one, QueueFull("full"), ONE.model_name, str(ONE.version))
    error = InvalidRequest("nobody takes it", reason=Reason.REPLY_TOPIC_REFUSED)
    expected, named = encode_error(one, error, ONE.model_name, str(ONE.version))
    value, found = answer_instead([*headers, ("claim-check", b"{}")], error)
    assert value == expected
    assert sorted(found) == sorted(named)
    with pytest.raises(InvalidRequest, match="nobody takes it"):
        decode_response(value, found)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_word_survives(reason):
    value, headers = encode_error(entry(), Unavailable("later", reason=reason), "m", "")
    with pytest.raises(InferError) as caught:
        decode_response(value, headers)
    assert caught.value.reason is reason
    assert caught.value.code is Code.UNAVAILABLE


def test_a_passed_deadline_is_told_from_a_queue_policys_timeout():
    found = error_of("UNAVAILABLE", "deadline_passed", "late")
    assert type(found) is DeadlineExceeded
    assert found.reason is Reason.DEADLINE_PASSED
    assert not found.retriable


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        ("INTERNAL", "a_word_of_a_later_release", BackendError),
        ("TEAPOT", "queue_full", InferError),
        ("INVALID_ARG", "queue_full", InvalidRequest),
        ("ALREADY_EXISTS", "", InferError),
    ],
)
def test_words_of_a_later_release_are_taken_by_their_code(code, reason, kind):
    assert type(error_of(code, reason, "text")) is kind


def test_the_taxonomy_is_covered_by_code():
    assert {error_of(code, "", "t").code for code in Code} == set(Code)
    assert errors.NotFound in {type(error_of(code, "", "t")) for code in Code}


def test_a_long_sentence_is_cut():
    long = InvalidRequest("x" * 100_000)
    value, headers = encode_error(entry(), long, "m", "")
    assert len(value) < MAX_DETAIL + 200
    assert dict(headers)["reason"] == b"invalid_request"


def test_an_error_for_somebody_who_accepts_another_format():
    value, headers = encode_error(entry(accept=JSON), QueueFull("full"), "m", "1")
    assert json.loads(value) == {"error": "full"}
    assert dict(headers)["content-type"] == JSON.encode()


@pytest.mark.parametrize(
    ("value", "headers", "text"),
    [
        (None, (), "value is empty"),
        (b"\xff", (), "no Avro InferResponse"),
        (
            b"{}",
            (("status", b"INTERNAL"), ("content-type", b"application/json")),
            "the value is no error",
        ),
    ],
)
def test_a_client_is_told_what_is_wrong_with_an_answer(value, headers, text):
    with pytest.raises(UndecodableRecord, match=text):
        decode_response(value, headers)
