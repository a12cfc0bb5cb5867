"""Records of a mapped topic become entries; bad ones become failures that name field, value and what was expected."""

import base64
import json
import struct

import numpy as np
import pytest
from headrace.schemas.avro import write_request
from headrace.schemas.errors import NotFound, Reason, TooLarge, UndecodableRecord
from headrace.schemas.record import AVRO, JSON
from headrace.schemas.tensor import Datatype, join_bytes
from mapping_kit import (
    FIELDS,
    GOOD,
    SOURCE,
    decode_one,
    decoder,
    fail_one,
    record,
    sequence_model,
)
from wire_kit import TP0, Rec, request, signature, tensor_config

X = SOURCE + "[inputs.x]\n"


def one(datatype, dims, **rest):
    return signature([tensor_config("x", datatype, dims)], **rest)


def data(text, fields, model):
    """Return data and shape of the one input."""
    entry = decode_one(text, record(fields), model)
    return bytes(entry.data[0]), entry.shapes[0]


def test_entries_come_in_record_order_with_their_coordinates():
    records = [record(GOOD | {"a": i}, offset=i) for i in range(5)]
    found = decoder(FIELDS).decode(TP0, 9, records).by_version
    assert list(found) == [1]
    assert [entry.record for entry in found[1]] == records
    assert {(e.tp, e.epoch, e.rows, e.content_type, e.passed) for e in found[1]} == {
        (TP0, 9, 1, JSON, ())
    }
    assert [bytes(e.data[0]) for e in found[1]] == [
        struct.pack("<4f", i, 2.5, -3, 4000) for i in range(5)
    ]


def test_entries_share_the_usual_shapes():
    model = signature()
    found = decoder(FIELDS, model).decode(TP0, 1, [record(), record()]).by_version[1]
    assert all(entry.shapes is model.usual_shapes for entry in found)


def test_an_empty_block_decodes_to_nothing():
    assert decoder(FIELDS).decode(TP0, 1, []) == ({}, [], (), [])


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_numbers_of_every_datatype(datatype):
    values = [True, False, True] if datatype is Datatype.BOOL else [1, 0, 3]
    expected = (
        (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
        if datatype is Datatype.BF16
        else np.array(values, datatype.numpy).tobytes()
    )
    model = one(datatype, (3,))
    assert data(X + 'field = "v"', {"v": values}, model) == (expected, (3,))
    fields = dict(zip("abc", values, strict=True))
    assert data(X + 'fields = ["a", "b", "c"]', fields, model) == (expected, (3,))
    text = base64.b64encode(expected).decode()
    assert data(X + 'field = "v"\nencoding = "base64"', {"v": text}, model) == (expected, (3,))


def test_true_and_false_are_numbers_where_the_model_wants_numbers():
    found, _ = data(X + 'fields = ["a", "b"]', {"a": True, "b": False}, one(Datatype.FP32, (2,)))
    assert found == struct.pack("<2f", 1, 0)


@pytest.mark.parametrize(
    ("said", "dims", "fields", "texts", "shape"),
    [
        ('field = "t"', (1,), {"t": "Grüße"}, ["Grüße"], (1,)),
        ('fields = ["t", "u"]', (2,), {"t": "a", "u": ""}, ["a", ""], (2,)),
        ('field = "t"', (-1,), {"t": ["a", "bc"]}, ["a", "bc"], (2,)),
        ('field = "t"', (-1,), {"t": []}, [], (0,)),
        ('field = "t"', (2, 1), {"t": [["a"], ["b"]]}, ["a", "b"], (2, 1)),
        ('field = "t"\nencoding = "base64"', (1,), {"t": "AAEC"}, ["\x00\x01\x02"], (1,)),
        ('field = "t"\nencoding = "base64"', (-1,), {"t": ""}, [""], (1,)),
    ],
)
def test_texts(said, dims, fields, texts, shape):
    found = data(X + said, fields, one(Datatype.BYTES, dims))
    assert found == (join_bytes([text.encode() for text in texts]), shape)


def test_raw_bytes_are_left_to_the_model():
    text = SOURCE.replace('"json"', '"raw"') + '[inputs.x]\nfield = "value"\nencoding = "bytes"'
    entry = decode_one(text, Rec(b"\x89PNG"), one(Datatype.BYTES, (1,)))
    assert bytes(entry.data[0]) == join_bytes([b"\x89PNG"])
    entry = decode_one(text, Rec(struct.pack("<4f", 1, 2, 3, 4)))
    assert (bytes(entry.data[0]), entry.shapes) == (struct.pack("<4f", 1, 2, 3, 4), ((4,),))


@pytest.mark.parametrize(
    ("dims", "value", "shape"),
    [
        ((2, 3), [[1, 2, 3], [4, 5, 6]], (2, 3)),
        ((-1, 3), [[1, 2, 3]], (1, 3)),
        ((-1, -1), [[1, 2], [3, 4], [5, 6]], (3, 2)),
        ((-1, -1), [], (0, 0)),
        ((2, -1, 2), [[[1, 2]], [[3, 4]]], (2, 1, 2)),
    ],
)
def test_nested_lists_have_the_shape_that_they_have(dims, value, shape):
    found = data(X + 'field = "v"', {"v": value}, one(Datatype.FP32, dims))
    assert found == (np.array(value, "<f4").tobytes(), shape)


def test_a_list_may_hold_a_whole_tensor():
    text = X + 'field = "v"\nencoding = "list"'
    assert data(text, {"v": [1, 2, 3, 4, 5, 6]}, one(Datatype.INT8, (-1, 3))) == (
        bytes([1, 2, 3, 4, 5, 6]),
        (2, 3),
    )


def test_an_optional_input_may_be_left_out():
    model = signature([tensor_config("x"), tensor_config("z", dims=(1,), optional=True)])
    entry = decode_one(FIELDS, record(), model)
    assert entry.data[1] is None
    assert entry.shapes == ((4,), None)
    entry = decode_one(FIELDS + '[inputs.z]\nfield = "a"', record(), model)
    assert entry.shapes is model.usual_shapes


def test_only_the_outputs_that_results_have_are_asked_for():
    model = signature(outputs=[tensor_config("y"), tensor_config("z")])
    assert decode_one(FIELDS, record(), model).outputs == ()
    entry = decode_one(FIELDS + '[results.fields]\ns = "z"', record(), model)
    assert [output.name for output in entry.outputs] == ["z"]


@pytest.mark.parametrize("fields", [{"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": {"c": None}}])
def test_a_default_stands_for_what_is_missing_or_null(fields):
    text = (
        X + 'fields = ["a", {path = "b.c", default = 7}, {path = "d", default = nan}]\nshape = [3]'
    )
    found, _ = data(text, fields, one(Datatype.FP32, (3,)))
    assert found == struct.pack("<3f", 1, 7, float("nan"))


def test_a_default_of_a_whole_list():
    text = X + 'field = "v"\ndefault = [0, 0, 0]'
    assert data(text, {}, one(Datatype.UINT8, (3,))) == (bytes(3), (3,))


def test_not_a_number_is_one_where_it_is_allowed():
    text = X + 'field = "v"\nallow_nan = true'
    found, _ = data(text, {"v": [float("nan"), float("inf")]}, one(Datatype.FP32, (2,)))
    assert found == struct.pack("<2f", float("nan"), float("inf"))


def test_a_sum_that_is_too_large_is_no_infinity():
    found, _ = data(X + 'field = "v"', {"v": [1.7e308, 1.7e308]}, one(Datatype.FP64, (2,)))
    assert found == struct.pack("<2d", 1.7e308, 1.7e308)


NUMBER = "a finite number that FP32 holds"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": None}, f"field 'a' is null, expected {NUMBER} for input 'x'"),
        ({"a": "1"}, f"field 'a' is '1', expected {NUMBER}"),
        ({"a": [1]}, "field 'a' is a list of 1"),
        ({"a": {}}, "field 'a' is an object of 0 fields"),
        ({"a": float("nan")}, f"field 'a' is nan, expected {NUMBER}"),
        ({"a": float("-inf")}, "field 'a' is -inf"),
        ({"a": 1e39}, f"field 'a' is 1e+39, expected {NUMBER}"),
        ({"a": 10**400}, f"field 'a' is a number of 1329 bits, expected {NUMBER}"),
        ({"b": 3}, f"field 'b.c' is missing, expected {NUMBER}"),
        ({"b": {}}, "field 'b.c' is missing"),
        ({"e": [1]}, "field 'e[1]' is missing"),
        ({"e": "12"}, "field 'e[1]' is missing"),
    ],
)
def test_a_field_that_fits_no_number_is_named(change, words):
    failure = fail_one(FIELDS, record(GOOD | change))
    assert isinstance(failure.error, UndecodableRecord)
    assert failure.dead_letter
    assert words in failure.error.detail


@pytest.mark.parametrize(
    ("datatype", "dims", "said", "value", "words"),
    [
        (Datatype.INT8, (1,), "", 128, "'v' is 128, expected a whole number from -128 to 127"),
        (Datatype.INT64, (1,), "", 2.0, "'v' is 2.0, expected a whole number from -92"),
        (Datatype.UINT64, (1,), "", -1, "'v' is -1, expected a whole number from 0 to 184"),
        (Datatype.BOOL, (1,), "", 1, "'v' is 1, expected true or false"),
        (Datatype.BYTES, (1,), "", 1, "'v' is 1, expected a text"),
        (Datatype.FP32, (3,), "", [1, 2], "'v' is a list of 2, expected a list of shape [3]"),
        (
            Datatype.FP32,
            (3,),
            "",
            [1, 2, 3, 4],
            "'v' is a list of 4, expected a list of shape [3]",
        ),
        (Datatype.FP32, (3,), "", [1, "x", 3], "'v[1]' is 'x', expected a finite number"),
        (Datatype.FP32, (3,), "", [1, 2, float("nan")], "'v[2]' is nan, expected a finite number"),
        (
            Datatype.FP32,
            (3,),
            "",
            "abc",
            "'v' is 'abc', expected a list of shape [3], each element",
        ),
        (
            Datatype.FP32,
            (-1,),
            "",
            {"0": 1},
            "'v' is an object of 1 fields, expected a list of shape",
        ),
        (Datatype.FP32, (-1,), "", [None], "'v[0]' is null, expected a finite number"),
        (Datatype.BYTES, (-1,), "", ["a", 3], "'v[1]' is 3, expected a text"),
        (Datatype.FP32, (2, 2), "", [[1, 2], [3]], "'v[1]' is a list of 1, expected a list of 2"),
        (Datatype.FP32, (2, 2), "", [[1, 2], 3], "'v[1]' is 3, expected a list of 2"),
        (Datatype.FP32, (2, 2), "", [[1, 2]], "'v' is a list of 1, expected a list of 2"),
        (Datatype.FP32, (2, 2), "", [[1, 2], [3, "x"]], "'v[1][1]' is 'x', expected a finite"),
        (Datatype.FP32, (2, 1), "", [[[1]], [[2]]], "'v[0][0]' is a list of 1, expected a finite"),
        (
            Datatype.FP32,
            (-1, -1),
            "",
            [[1], [2, 3]],
            "'v[1]' is a list of 2, expected a list of 1",
        ),
        (
            Datatype.FP32,
            (2,),
            "base64",
            "AAAA",
            "'v' is 3 bytes, expected base64 text of FP32 [2]",
        ),
        (Datatype.FP32, (2,), "base64", "a", "'v' is no base64 ("),
        (Datatype.FP32, (2,), "base64", "ä", "'v' is no base64 ("),
        (Datatype.FP32, (2,), "base64", 3, "'v' is 3, expected base64 text of FP32 [2]"),
        (Datatype.FP32, (2,), "bytes", "abc", "'v' is 'abc', expected bytes of FP32 [2]"),
        (Datatype.BYTES, (1,), "bytes", "abc", "'v' is 'abc', expected bytes for input 'x'"),
    ],
)
def test_a_value_that_does_not_fit_is_named(datatype, dims, said, value, words):
    text = X + 'field = "v"' + (f'\nencoding = "{said}"' if said else "")
    model = one(datatype, dims)
    decoded = decoder(text, model).decode(TP0, 1, [record({"v": value})])
    assert words in decoded.failures[0].error.detail
    assert decoded.failures[0].error.detail.endswith("for input 'x'")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff" * 10,
        b'{"a": "\xc3"}',
        b"[1]",
        b"3",
        b"null",
        b'{"a": 1',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        write_request(request()),
    ],
)
def test_B32_a_value_that_is_no_record_is_answered_and_kept(value):
    failure = fail_one(FIELDS, Rec(value))
    assert failure.error.reason is Reason.UNDECODABLE
    assert failure.dead_letter
    assert len(failure.error.detail) < 300


def test_B32_null_values_are_skipped_or_answered():
    records = [record(offset=0), Rec(None, offset=1), record(offset=2)]
    found = decoder(FIELDS).decode(TP0, 1, records)
    assert [entry.record.offset for entry in found.skipped] == [1]
    assert [entry.record.offset for entry in found.by_version[1]] == [0, 2]
    text = FIELDS.replace("offset_reset", 'tombstones = "error"\noffset_reset')
    failure = fail_one(text, Rec(None))
    assert failure.error.detail == "the value is null, expected a record"


def test_a_value_that_is_too_large():
    (failure,) = decoder(FIELDS, max_record_bytes=10).decode(TP0, 1, [record()]).failures
    assert isinstance(failure.error, TooLarge)
    assert not failure.dead_letter


def test_what_is_passed_through_is_there_even_where_an_input_is_not():
    text = FIELDS + '[results]\npass = ["id", "b", "gone"]'
    assert decode_one(text, record(GOOD | {"id": 7})).passed == (7, {"c": 2.5}, None)
    failure = fail_one(text, record({"id": 7}))
    assert failure.entry.passed == (7, None, None)
    assert fail_one(text, Rec(b"?")).entry.passed == (None, None, None)


REQUEST = FIELDS + '[request]\nid = "id"\nversion = "v"\npriority = "p"\n'


def test_id_version_and_priority_come_from_fields():
    models = (signature(version=1), signature(version=2))
    entry = decode_one(REQUEST, record(GOOD | {"id": "pay-1", "v": 1, "p": 3}), *models)
    assert (entry.id, entry.model_version, entry.priority) == ("pay-1", "1", 3)
    records = [record(GOOD | {"v": v}) for v in ("1", "2", None, "02")]
    found = decoder(REQUEST, *models).decode(TP0, 1, records).by_version
    assert {number: len(entries) for number, entries in found.items()} == {1: 1, 2: 3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": 1.5}, "field 'id' is 1.5, expected a text or a whole number for the request's id"),
        (
            {"v": True},
            "field 'v' is true, expected a text or a whole number for the model's version",
        ),
        ({"p": -1}, "field 'p' is -1, expected a whole number from 0 to"),
        ({"p": "1"}, "field 'p' is '1', expected a whole number from 0 to"),
    ],
)
def test_an_id_version_or_priority_that_is_none_is_named(change, words):
    assert words in fail_one(REQUEST, record(GOOD | change)).error.detail


def test_PB33_a_version_that_is_not_there():
    failure = fail_one(REQUEST, record(GOOD | {"v": 7}))
    assert isinstance(failure.error, NotFound)
    assert not failure.dead_letter


def test_headers_that_speak_to_Headrace_are_read_and_others_are_not():
    headers = (
        ("content-type", b"application/cloudevents+json"),
        ("id", b"\xff"),
        ("priority", b"high"),
        ("sequence-id", None),
        ("accept", b"text/html"),
        ("kafka_replyTopic", b"replies"),
        ("kafka_correlationId", b"\x00\xff"),
        ("x-tenant", b"a"),
        ("traceparent", b"t"),
        ("deadline-ms", b"7"),
    )
    entry = decode_one(FIELDS, record(headers=headers))
    assert (entry.reply_topic, entry.correlation_id, entry.deadline_ms) == (
        "replies",
        b"\x00\xff",
        7,
    )
    assert entry.correlation == headers[6:9]
    assert (entry.id, entry.priority, entry.accept, entry.content_type) == ("", 0, "", JSON)


def test_a_bad_header_of_ours_is_an_error_that_finds_its_way():
    headers = (("reply-topic", b"replies"), ("deadline-ms", b"soon"))
    failure = fail_one(FIELDS, record(headers=headers))
    assert failure.error.reason is Reason.INVALID_HEADER
    assert failure.entry.reply_topic == "replies"


def test_an_idempotency_key_is_noted_with_its_digest():
    found = decoder(FIELDS).decode(TP0, 1, [record(headers=(("idempotency-key", b"k"),))])
    (entry,) = found.keyed
    assert (entry.idempotency_key, len(entry.digest)) == (b"k", 16)


def test_a_claim_check_waits_for_its_value():
    claim = json.dumps({"url": "s3://b/x", "size": 3, "sha256": "0" * 64}).encode()
    (failure,) = decoder(FIELDS).decode(TP0, 1, [Rec(b"", (("claim-check", claim),))]).failures
    assert failure.error.reason is Reason.UNSUPPORTED_CLAIM_CHECK


def test_a_request_in_our_own_content_type_is_one_on_a_mapped_topic_too():
    own = (("content-type", AVRO.encode()), ("id", b"mine"))
    records = [
        record(offset=0),
        Rec(write_request(request(9, 8, 7, 6)), own, offset=1),
        Rec(b"?", offset=2),
        Rec(b"?", own, offset=3),
        record(offset=4),
    ]
    found = decoder(FIELDS).decode(TP0, 1, records)
    assert [entry.record.offset for entry in found.by_version[1]] == [0, 1, 4]
    assert [failure.entry.record.offset for failure in found.failures] == [2, 3]
    v2 = found.by_version[1][1]
    assert (v2.passed, v2.content_type, v2.id) == (None, AVRO, "mine")


def test_results_in_V2_are_those_of_V2_requests():
    entry = decode_one(FIELDS + '[results]\nformat = "v2"', record())
    assert (entry.passed, entry.content_type) == (None, AVRO)


SEQUENCE = FIELDS + '[sequence]\nid = "key"\n'


def test_a_sequence_id_from_the_key():
    entry = decode_one(SEQUENCE, record(key="fähre".encode()), sequence_model())
    assert (entry.sequence_id, entry.sequence_start, entry.sequence_end) == ("fähre", False, False)
    entry = decode_one(SEQUENCE, record(key=b"17"), sequence_model(Datatype.UINT64))
    assert entry.sequence_id == 17


@pytest.mark.parametrize(
    ("value", "corrid", "found"),
    [("a", None, "a"), (7, None, "7"), (7, Datatype.UINT64, 7), ("7", Datatype.INT32, 7)],
)
def test_a_sequence_id_from_a_field(value, corrid, found):
    text = FIELDS + '[sequence]\nid = {field = "car.id"}\n'
    entry = decode_one(text, record(GOOD | {"car": {"id": value}}), sequence_model(corrid))
    assert entry.sequence_id == found
    assert type(entry.sequence_id) is type(found)


@pytest.mark.parametrize(
    ("key", "corrid", "words"),
    [
        (None, None, "the record has no key, expected a text that is not empty"),
        (b"", None, "the record has the key b'', expected a text"),
        (b"\xff", None, "the record has the key b'\\xff', expected a text"),
        (b"a", Datatype.UINT64, "the key b'a', expected a whole number from 1 to"),
        (b"0", Datatype.UINT64, "the key b'0', expected a whole number from 1 to"),
        (b"-1", Datatype.UINT64, "the key b'-1', expected a whole number from 1 to"),
        (b"9" * 21, Datatype.UINT64, "expected a whole number from 1 to 18446744073709551615"),
    ],
)
def test_a_key_that_is_no_sequence_id(key, corrid, words):
    (failure,) = (
        decoder(SEQUENCE, sequence_model(corrid)).decode(TP0, 1, [record(key=key)]).failures
    )
    assert words in failure.error.detail


@pytest.mark.parametrize("value", [None, "", True, 1.5, [1], 1 << 70])
def test_a_field_that_is_no_sequence_id(value):
    text = FIELDS + '[sequence]\nid = {field = "car"}\n'
    (failure,) = (
        decoder(text, sequence_model()).decode(TP0, 1, [record(GOOD | {"car": value})]).failures
    )
    assert failure.error.detail.startswith("field 'car' is ")


def test_a_bad_step_knows_its_sequence_so_that_it_is_answered_in_its_turn():
    (failure,) = (
        decoder(SEQUENCE, sequence_model()).decode(TP0, 1, [record({}, key=b"s")]).failures
    )
    assert failure.entry.sequence_id == "s"


@pytest.mark.parametrize(
    ("value", "is_start"),
    [
        ("go", True),
        (1, True),
        (1.0, True),
        (True, False),
        ("stop", False),
        (None, False),
        ([], False),
    ],
)
def test_start_and_end_by_the_value_of_a_field(value, is_start):
    text = SEQUENCE + (
        'start = {field = "event", equals = ["go", 1]}\nend = {field = "last", equals = true}'
    )
    fields = GOOD | {"event": value, "last": is_start}
    entry = decode_one(text, record(fields, key=b"s"), sequence_model())
    assert (entry.sequence_start, entry.sequence_end) == (is_start, is_start)
