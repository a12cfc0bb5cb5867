"""A model's outputs become the fields of results, in the order and under the names that the mapping says."""

import json

import numpy as np
import pytest
from headrace.schemas.avro import write_request
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.codec import decode_response
from headrace.schemas.errors import BackendError, InferError, QueueFull, WrongOutput
from headrace.schemas.mapping_encoder import MappingErrors
from headrace.schemas.mapping_json import JsonFormat
from headrace.schemas.record import AVRO
from headrace.schemas.tensor import Datatype
from mapping_kit import FIELDS, GOOD, decoder, encode, encoder, fail_one, plan, record
from wire_kit import TP0, Rec, request, signature, tensor_config

PASS = FIELDS + '[results]\npass = ["id", {path = "b.c", name = "c"}]\n'
Y = np.array([[0.5, 0.25], [1.5, -2.0]], np.float32)


def records(count=2):
    return [record(GOOD | {"id": f"r{i}"}, offset=i) for i in range(count)]


def values(text, outputs, model, count=2, labels=None):
    """Return the values of results alone."""
    return [value for value, _ in encode(text, records(count), outputs, model, labels)]


def test_results_have_what_is_passed_through_and_the_outputs():
    first, second = encode(PASS, records(), {"y": Y})
    assert first[0] == {"id": "r0", "c": 2.5, "y": [0.5, 0.25]}
    assert list(first[0]) == ["id", "c", "y"]
    assert second[0] == {"id": "r1", "c": 2.5, "y": [1.5, -2.0]}
    assert first[1] == {
        "content-type": b"application/json",
        "model-name": b"m",
        "model-version": b"1",
        "status": b"OK",
        "attempt": b"1",
        "source": b"headrace.m.requests/3/0",
    }


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_outputs_of_every_datatype(datatype):
    model = signature(
        outputs=[tensor_config("y", datatype, (2,)), tensor_config("z", datatype, (1,))]
    )
    array = np.array([[1, 0], [0, 1]])
    given = array.astype(np.float32).view("<u4") >> 16 if datatype is Datatype.BF16 else array
    given = given.astype(datatype.numpy)
    found = values(FIELDS, {"y": given, "z": given[:, :1]}, model)
    assert found == [{"y": [1, 0], "z": 1}, {"y": [0, 1], "z": 0}]
    kinds = {"b": bool, "f": float}
    kind = float if datatype is Datatype.BF16 else kinds.get(datatype.numpy.kind, int)
    assert type(found[0]["z"]) is kind


@pytest.mark.parametrize("dtype", [object, "S8", "U8"])
def test_texts(dtype):
    model = signature(
        outputs=[
            tensor_config("y", Datatype.BYTES, (2,)),
            tensor_config("z", Datatype.BYTES, (1,)),
        ]
    )
    words = ["Fähre", "b"] if dtype != "S8" else ["Fhre", "b"]
    array = np.array([words, words], dtype=dtype)
    found = values(FIELDS, {"y": array, "z": array[:, :1]}, model)
    assert found[1] == {"y": words, "z": words[0]}


def test_an_output_without_an_axis_of_its_own_and_one_of_several():
    model = signature(outputs=[tensor_config("y", dims=()), tensor_config("z", dims=(2, 1))])
    found = values(FIELDS, {"y": Y[:, 0], "z": Y[:, :, np.newaxis]}, model)
    assert found[0] == {"y": 0.5, "z": [[0.5], [0.25]]}


def test_a_model_without_a_batch_axis():
    model = signature(max_batch_size=0)
    assert values(FIELDS, {"y": Y[0]}, model, count=1) == [{"y": [0.5, 0.25]}]


def test_a_reshaped_output_has_the_shape_of_the_wire():
    model = signature(outputs=[tensor_config("y", dims=(2,), reshape=(1, 2))])
    assert values(FIELDS, {"y": Y[:, np.newaxis]}, model)[1] == {"y": [1.5, -2.0]}


def test_numbers_that_JSON_does_not_have_become_null():
    array = np.array([[np.nan, np.inf], [1, 2]], np.float32)
    assert values(FIELDS, {"y": array}, signature()) == [{"y": [None, None]}, {"y": [1, 2]}]


SCORES = np.array(
    [[0.1, 0.7, 0.2], [0.5, 0.5, 0.5], [np.nan, -1, np.nan], [3, np.nan, 4]], np.float32
)
THREE = signature(outputs=[tensor_config("y", dims=(3,))])


def test_CL01_the_largest_values_come_first_of_equal_ones_the_first():
    text = FIELDS + '[results.fields]\ntop = {output = "y", top_k = 2}'
    found = [
        value["top"] for value in values(text, {"y": SCORES}, THREE, 4, {"y": ["a", "", "c"]})
    ]
    assert [[(one["index"], one["label"]) for one in top] for top in found] == [
        [(1, None), (2, "c")],
        [(0, "a"), (1, None)],
        [(1, None), (0, "a")],
        [(2, "c"), (0, "a")],
    ]
    assert [one["score"] for one in found[1]] == [0.5, 0.5]
    assert found[2][1]["score"] is None


def test_CL01_no_more_classes_than_there_are():
    text = FIELDS + '[results.fields]\ntop = {output = "y", top_k = 9}'
    assert len(values(text, {"y": SCORES}, THREE, 4)[0]["top"]) == 3


def test_CL04_the_label_of_the_best_or_its_place():
    text = FIELDS + '[results.fields]\nbest = {output = "y", label = true}'
    found = values(text, {"y": SCORES}, THREE, 4, {"y": ["a", "", "c"]})
    assert [value["best"] for value in found] == ["1", "a", "1", "c"]


def test_a_single_whole_number_is_itself_the_place_of_its_label():
    text = FIELDS + '[results.fields]\nbest = {output = "y", label = true, labels = ["no", "yes"]}'
    model = signature(outputs=[tensor_config("y", Datatype.INT64, (1,))])
    found = values(text, {"y": np.array([[1], [0], [7]])}, model, 3)
    assert [value["best"] for value in found] == ["yes", "no", "7"]


def test_an_error_has_what_is_passed_through_and_a_sentence():
    failure = fail_one(PASS, record({"id": "r9"}))
    errors = MappingErrors(plan(PASS).passed, JsonFormat())
    value, headers = errors(failure.entry, failure.error, "m", "")
    said = json.loads(value)
    assert said == {"id": "r9", "c": None, "error": failure.error.detail}
    named = dict(headers)
    assert (named["status"], named["reason"]) == (b"INVALID_ARG", b"undecodable")
    with pytest.raises(InferError, match="field 'a' is missing"):
        decode_response(value, headers)


def test_an_error_of_a_record_that_passes_nothing_on_has_its_sentence():
    errors = MappingErrors(plan(PASS).passed, JsonFormat())
    entry = fail_one(PASS, Rec(b"?")).entry
    for passed in ((), (b"\xff", None)):
        entry.passed = passed
        assert json.loads(errors(entry, QueueFull("full" * 2000), "m", "1")[0])["error"][-1] == "…"


def test_B41_an_answer_that_cannot_be_written_fails_alone():
    rows = records(3)
    text = PASS
    decoded = decoder(text).decode(TP0, 1, rows)
    entries = decoded.by_version[1]
    entries[1].passed = ("r1", b"\xff")
    array = np.zeros((3, 2), np.float32)
    answers = encoder(text).encode(Batch(signature(), entries), Responses({"y": array}))
    assert [dict(headers)["status"] for _, _, headers in answers] == [b"OK", b"INVALID_ARG", b"OK"]
    assert "field 'c' cannot be written as JSON" in json.loads(answers[1][1])["error"]


def test_entries_that_failed_and_padding_are_left_out():
    entries = decoder(PASS).decode(TP0, 1, records(3)).by_version[1]
    batch = Batch(signature(), [entries[0], None, entries[1], entries[2]])
    outputs = {"y": np.arange(8, dtype=np.float32).reshape(4, 2)}
    answers = encoder(PASS).encode(batch, Responses(outputs, errors={2: BackendError("no")}))
    assert [(entry, json.loads(value)["y"]) for entry, value, _ in answers] == [
        (entries[0], [0, 1]),
        (entries[2], [6, 7]),
    ]
    some = Responses({"y": outputs["y"][:2]}, members=[2, 3], errors={3: BackendError("no")})
    ((entry, value, _),) = encoder(PASS).encode(batch, some)
    assert (entry, json.loads(value)["y"]) == (entries[1], [0, 1])


def test_answers_to_V2_requests_stand_between_the_others():
    own = (("content-type", AVRO.encode()),)
    rows = [*records(1), Rec(write_request(request()), own, offset=1), record(offset=2)]
    entries = decoder(PASS).decode(TP0, 1, rows).by_version[1]
    outputs = {"y": np.arange(6, dtype=np.float32).reshape(3, 2)}
    answers = encoder(PASS).encode(Batch(signature(), entries), Responses(outputs))
    assert [entry for entry, _, _ in answers] == entries
    assert json.loads(answers[2][1])["y"] == [4, 5]
    response = decode_response(answers[1][1], answers[1][2])
    assert response.outputs[0].numpy().tolist() == [[2, 3]]


def test_a_request_of_several_rows_beside_a_record():
    own = (("content-type", b"application/vnd.headrace.v2+avro"),)
    two = request()
    two = type(two)((type(two.inputs[0]).from_numpy("x", np.zeros((2, 4), np.float32)),))
    rows = [Rec(write_request(two), own, offset=0), record(offset=1)]
    entries = decoder(FIELDS).decode(TP0, 1, rows).by_version[1]
    outputs = {"y": np.arange(6, dtype=np.float32).reshape(3, 2)}
    answers = encoder(FIELDS).encode(Batch(signature(), entries), Responses(outputs))
    assert json.loads(answers[1][1])["y"] == [4, 5]


def test_responses_of_a_decoupled_model_are_numbered_and_may_be_empty():
    ((value, headers),) = encode(PASS, records(1), {"y": Y[:1]}, index=0, final=False)
    assert value["y"] == [0.5, 0.25]
    assert (headers["response-index"], headers["final"]) == (b"0", b"false")
    ((value, headers),) = encode(PASS, records(1), {}, index=1)
    assert (value, headers["final"]) == ({"id": "r0", "c": 2.5}, b"true")


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, "returned no output 'y'"),
        ({"y": Y, "z": Y}, "returned the unknown output 'z'"),
        ({"y": Y[:1]}, "returned shape [1, 2] for output 'y', expected 2 rows"),
        ({"y": Y[:, :1]}, "returned item shape [1] for output 'y', expected [2]"),
        ({"y": Y.astype(np.float64)}, "returned float64 for output 'y', expected FP32"),
    ],
)
def test_B36_an_output_that_does_not_fit_its_batch_is_the_models_fault(outputs, words):
    entries = decoder(FIELDS).decode(TP0, 1, records()).by_version[1]
    with pytest.raises(WrongOutput) as caught:
        encoder(FIELDS).encode(Batch(signature(), entries), Responses(outputs))
    assert words in caught.value.detail
