"""Decoding blocks of records: versions, failures that can be answered, and the fast path's learning."""

import pytest
from headrace.schemas import avro
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import Code, NotFound, Reason
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF
from headrace.schemas.tensor import Datatype, Tensor, join_bytes
from wire_kit import (
    TP0,
    Rec,
    decode_one,
    decoder,
    fail_one,
    fp32,
    request,
    signature,
    tensor_config,
)

JSON_HEADER = (("content-type", b"application/json"),)
PROTOBUF_HEADER = (("content-type", b"application/x-protobuf"),)
BINARY_HEADER = (("content-type", b"application/octet-stream"),)
GOOD = avro.write_request(request())


def test_entries_come_in_record_order_with_their_coordinates():
    records = [Rec(avro.write_request(request(i, 0, 0, 0)), offset=i) for i in range(5)]
    found = decoder().decode(TP0, 9, records).by_version
    assert list(found) == [1]
    assert [entry.record for entry in found[1]] == records
    assert {(entry.tp, entry.epoch, entry.rows) for entry in found[1]} == {(TP0, 9, 1)}
    assert [bytes(entry.data[0]) for entry in found[1]] == [
        fp32(i, 0, 0, 0).data for i in range(5)
    ]


def test_an_empty_block_decodes_to_nothing():
    assert decoder().decode(TP0, 1, []) == ({}, [], (), ())


def test_MR07_the_highest_version_serves_those_who_name_none():
    both = decoder(signature(version=9), signature(version=10))
    said = [
        Rec(GOOD),
        Rec(GOOD, (("model-version", b"9"),)),
        Rec(GOOD, (("model-version", b"010"),)),
    ]
    found = both.decode(TP0, 1, [*said, said[0]])
    assert not found.failures
    assert {version: len(entries) for version, entries in found.by_version.items()} == {
        10: 3,
        9: 1,
    }


def test_MR07_a_version_in_the_value_counts_and_the_header_wins():
    both = (signature(version=1), signature(version=2))
    value, headers = encode_request(request(model_name="m", model_version="1"), PROTOBUF)
    bare = [header for header in headers if header[0] != "model-version"]
    assert decode_one(Rec(value, tuple(bare)), *both).model_version == "1"
    other = (*bare, ("model-version", b"2"))
    found = decoder(*both).decode(TP0, 1, [Rec(value, other)])
    assert list(found.by_version) == [2]


@pytest.mark.parametrize("version", ["7", "abc", "-1", "1 ", "²"])
def test_PB33_an_unknown_version_is_answered_with_Tritons_text(version):
    failure = fail_one(Rec(GOOD, (("model-version", version.encode()),)))
    assert isinstance(failure.error, NotFound)
    assert failure.error.reason is Reason.UNKNOWN_VERSION
    assert failure.error.detail == f"Request for unknown model: 'm' version {version} is not found"
    assert not failure.dead_letter


def test_PB33_no_version_at_all():
    (failure,) = decoder_without_versions().decode(TP0, 1, [Rec(GOOD)]).failures
    assert "'m' has no available versions" in failure.error.detail
    assert failure.error.code is Code.NOT_FOUND


def decoder_without_versions():
    from headrace.schemas.requests import RequestDecoder

    return RequestDecoder({}, model_name="m")


def test_a_value_that_names_another_model_is_refused():
    value, headers = encode_request(request(model_name="n"), PROTOBUF)
    failure = fail_one(Rec(value, tuple(headers)))
    assert failure.error.reason is Reason.UNKNOWN_MODEL
    assert (
        failure.error.detail
        == "Request for unknown model: 'n' is not found, the model of this topic is 'm'"
    )
    assert not failure.dead_letter


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY, PROTOBUF])
def test_every_format_decodes_to_the_same_entry(content_type):
    made = request(
        id="i",
        sequence_id=7,
        sequence_start=True,
        priority=2,
        timeout_us=3,
        parameters={"k": "v", "n": 1.5, "b": True, "i": -4},
        outputs=(RequestedOutput("y", {"p": 1}),),
    )
    value, headers = encode_request(made, content_type, RequestOptions(reply_topic="r"))
    found = decode_one(Rec(value, tuple(headers)))
    assert found.content_type == content_type
    assert bytes(found.data[0]) == made.inputs[0].data
    for name in (
        "id",
        "sequence_id",
        "sequence_start",
        "priority",
        "timeout_us",
        "parameters",
        "outputs",
    ):
        assert getattr(found, name) == getattr(made, name), name
    assert found.reply_topic == "r"
    assert bool(found.awaited)


@pytest.mark.parametrize("content_type", [AVRO, JSON, PROTOBUF])
def test_what_a_header_says_wins_over_the_value(content_type):
    standard = {"priority": 9, "sequence_id": "nine", "timeout": 9}
    made = request(id="value", parameters=standard)
    value, _ = encode_request(made, content_type)
    headers = (
        ("content-type", content_type.encode()),
        ("id", b"header"),
        ("priority", b"0"),
        ("sequence-id", b"4"),
    )
    made = decoder()
    records = [Rec(value, headers), Rec(value, headers)]  # the second Avro one by the fast path
    for found in made.decode(TP0, 1, records).by_version[1]:
        assert (found.id, found.priority, found.sequence_id) == ("header", 0, 4)
        assert found.timeout_us == 9
        assert found.parameters == {}


# ----- bad input


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (None, ()),
        (b"", ()),
        (b"\xff" * 10, ()),
        (b"\x00", ()),
        (b"\x02", ()),
        (b"\x02\x04", ()),
        (b"\x80" * 40, ()),
        (b"\x02\x05" + GOOD[1:], ()),
        (b"\x02\x04\xff\xfe" + GOOD[1:], ()),
        (GOOD[:-1], ()),
        (GOOD[:20], ()),
        (GOOD + b"\x00", ()),
        (b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", ()),
        (None, JSON_HEADER),
        (b"", PROTOBUF_HEADER),
        (b"\xff" * 10, JSON_HEADER),
        (b'{"inputs"', JSON_HEADER),
        (b"[" * 100_000, JSON_HEADER),
        (b"null", JSON_HEADER),
        (GOOD, JSON_HEADER),
        (b"\xff" * 10, PROTOBUF_HEADER),
        (b"\xff" * 10, BINARY_HEADER),
        (GOOD, (("content-type", b"text/plain"),)),
        (GOOD, (("id", b"\xff"),)),
        (GOOD, (("id", None),)),
        (GOOD, (("x-a", None),)),
    ],
)
def test_B32_B33_B41_what_cannot_be_decoded_is_one_dead_letter_and_one_answer(value, headers):
    failure = fail_one(Rec(value, (*headers, ("reply-topic", b"r"), ("correlation-id", b"\xff"))))
    assert failure.dead_letter
    assert failure.error.code in (Code.INVALID_ARG, Code.INTERNAL)
    assert failure.entry.reply_topic == "r"
    assert failure.entry.correlation == (("correlation-id", b"\xff"),)
    assert failure.entry.rows == 0
    assert failure.entry.data == ()
    assert 10 < len(failure.error.detail) < 400


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_B32_Avro_that_is_cut_anywhere_is_refused(cut):
    assert fail_one(Rec(GOOD[:cut])).error.reason is Reason.UNDECODABLE


def tensor(name="x", datatype=Datatype.FP32, shape=(1, 4), data=bytes(16)):
    return Tensor(name, datatype, shape, data)


WRONG = {
    "unknown name": (tensor("q"),),
    "missing": (),
    "twice": (tensor(), tensor()),
    "datatype": (tensor(datatype=Datatype.INT32),),
    "rank": (tensor(shape=(4,)),),
    "dimension": (tensor(shape=(1, 5), data=bytes(20)),),
    "negative dimension": (tensor(shape=(1, -4)),),
    "too many rows": (tensor(shape=(9, 4), data=bytes(144)),),
    "no rows": (tensor(shape=(0, 4), data=b""),),
    "short data": (tensor(data=bytes(15)),),
    "no shape": (tensor(shape=()),),
}


@pytest.mark.parametrize("content_type", [AVRO, BINARY, PROTOBUF])
@pytest.mark.parametrize("wrong", WRONG)
def test_B38_B41_B53_a_wrong_request_is_answered_and_is_no_dead_letter(wrong, content_type):
    value, headers = encode_request(InferRequest(WRONG[wrong], model_name="m"), content_type)
    failure = fail_one(Rec(value, tuple(headers)))
    if wrong == "negative dimension" and content_type == BINARY:
        assert failure.error.code is Code.INTERNAL  # PB-32
        return
    assert failure.error.code is Code.INVALID_ARG
    assert failure.error.reason is Reason.INVALID_REQUEST
    assert not failure.dead_letter


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (
            tensor(datatype=Datatype.INT64, data=bytes(32)),
            "'x' data-type is 'INT64', but model 'm' expects 'FP32'",
        ),
        (tensor(shape=(1, 1, 4)), r"Expected \[-1,4\], got \[1,1,4\]"),
        (tensor("z"), "unexpected inference input 'z'"),
    ],
)
def test_B53_the_text_names_tensor_expected_and_got(tensor, text):
    failure = fail_one(Rec(avro.write_request(InferRequest((tensor,)))))
    assert failure.error.detail
    import re

    assert re.search(text, failure.error.detail)


@pytest.mark.parametrize("data", [b"\x05\x00\x00\x00abc", b"\x01\x00", join_bytes([b"a"] * 2)])
def test_B38_B55_broken_strings_are_refused_before_admission(data):
    words = signature([tensor_config("s", Datatype.BYTES, (1,))])
    made = InferRequest((Tensor("s", Datatype.BYTES, (1, 1), data),))
    failure = fail_one(Rec(avro.write_request(made)), words)
    assert failure.error.code is Code.INVALID_ARG
    assert "'s'" in failure.error.detail


def test_PB35_an_unknown_requested_output():
    failure = fail_one(Rec(avro.write_request(request(outputs=(RequestedOutput("q"),)))))
    assert "unexpected inference output 'q'" in failure.error.detail


@pytest.mark.parametrize("extra", [0, 1])
def test_a_value_above_the_limit_is_refused_without_reading_it(extra):
    record = Rec(GOOD + bytes(extra))
    found = decoder(max_record_bytes=len(GOOD)).decode(TP0, 1, [Rec(GOOD), record])
    if not extra:
        assert not found.failures
        return
    ((_, error, dead),) = found.failures
    assert error.reason is Reason.TOO_LARGE
    assert f"{len(GOOD) + 1} bytes, expected at most {len(GOOD)}" in error.detail
    assert not dead


def test_the_route_is_reserved():
    value = GOOD[:-1] + b"\x02\x02r"
    failure = fail_one(Rec(value))
    assert failure.error.reason is Reason.UNSUPPORTED_ROUTE
    assert failure.error.code is Code.UNSUPPORTED


def test_an_unexpected_exception_of_a_parser_is_a_failure_and_our_own_bug_is_not():
    class Bad(dict):
        def __init__(self, error):
            super().__init__()
            self.error = error

        def __iter__(self):
            raise self.error

    ((entry, error, dead),) = decoder().decode(TP0, 1, [Rec(GOOD, Bad(KeyError("k")))]).failures
    assert (error.reason, dead, entry.content_type) == (Reason.UNDECODABLE, True, AVRO)
    with pytest.raises(AssertionError, match="our bug"):
        decoder().decode(TP0, 1, [Rec(GOOD, Bad(AssertionError("our bug")))])


# ----- the fast path


def layouts(of):
    return of._versions[""].layouts


def test_a_layout_is_learned_once_and_then_recognised():
    made = decoder()
    records = [Rec(avro.write_request(request(i, 2, 3, 4)), offset=i) for i in range(10)]
    made.decode(TP0, 1, records)
    assert len(layouts(made)) == 1
    assert layouts(made).fill(decode_one(records[0]), records[5].value)


def test_ids_in_the_value_keep_the_layout():
    made = decoder()
    names = ["", "a", "é" * 31, "b" * 63, "b" * 64, "c" * 5000]
    found = made.decode(TP0, 1, [Rec(avro.write_request(request(id=name))) for name in names])
    assert [entry.id for entry in found.by_version[1]] == names
    assert len(layouts(made)) == 1


def test_several_inputs_in_any_order_and_optional_ones():
    pair = signature(
        [
            tensor_config("a"),
            tensor_config("b", Datatype.INT8, (2,)),
            tensor_config("c", optional=True),
        ]
    )
    b = Tensor("b", Datatype.INT8, (1, 2), b"hi")
    for inputs in ((fp32(1, 2, 3, 4, name="a"), b), (b, fp32(5, 6, 7, 8, name="a"))):
        made = decoder(pair)
        value = avro.write_request(InferRequest(inputs))
        first, second = made.decode(TP0, 1, [Rec(value), Rec(value)]).by_version[1]
        assert len(layouts(made)) == 1
        assert first.data == second.data
        assert second.data[1:] == (b"hi", None)
        assert first.shapes == second.shapes


def test_large_data_is_a_view_of_the_record():
    wide = signature([tensor_config("x", Datatype.UINT8, (100_000,))])
    value = avro.write_request(
        InferRequest((Tensor("x", Datatype.UINT8, (1, 100_000), bytes(100_000)),))
    )
    _, second = decoder(wide).decode(TP0, 1, [Rec(value), Rec(value)]).by_version[1]
    assert isinstance(second.data[0], memoryview)
    assert second.data[0].obj is value


def test_the_layouts_are_bounded():
    loose = signature([tensor_config("x", Datatype.UINT8, (-1,))])
    made = decoder(loose)
    for size in list(range(200)) * 2:
        value = avro.write_request(
            InferRequest((Tensor("x", Datatype.UINT8, (1, size), bytes(size)),))
        )
        found = made.decode(TP0, 1, [Rec(value)])
        assert found.by_version[1][0].shapes == ((size,),)
    assert len(layouts(made)) == 64


def test_layouts_of_one_length_are_few_and_the_newest_stay():
    made = decoder()
    values = [avro.write_request(request(parameters={"k": f"{i:03}"})) for i in range(50)]
    for i, value in enumerate(values):
        (entry,) = made.decode(TP0, 1, [Rec(value)]).by_version[1]
        assert entry.parameters == {"k": f"{i:03}"}
    assert len(layouts(made)) == 4


def test_long_constant_bytes_are_not_kept():
    made = decoder()
    made.decode(TP0, 1, [Rec(avro.write_request(request(parameters={"k": "v" * 10_000})))])
    assert len(layouts(made)) == 0


def test_strings_never_take_the_fast_path():
    words = signature([tensor_config("s", Datatype.BYTES, (1,))])
    made = decoder(words)
    good = avro.write_request(
        InferRequest((Tensor("s", Datatype.BYTES, (1, 1), join_bytes([b"ab"])),))
    )
    bad = good.replace(join_bytes([b"ab"]), b"\x03\x00\x00\x00ab")
    found = made.decode(TP0, 1, [Rec(good), Rec(bad), Rec(good)])
    assert len(found.by_version[1]) == 2
    assert len(found.failures) == 1
    assert len(layouts(made)) == 0


def test_a_foreign_writers_blocks_are_read_by_the_general_path():
    # Avro allows arrays in blocks that carry their size in bytes: count -1, size, item, 0.
    head, data = avro.request_pieces(request())[0], fp32(1, 2, 3, 4).data
    item = head[2:] + data
    value = b"\x00\x00" + avro.long(-1) + avro.long(len(item)) + item + b"\x00\x00\x00"
    assert decode_one(Rec(value)).data == (data,)
