"""SEMANTICS §2.9: the generate extension."""

import gzip
import http.client
import json

import pytest
from compat_models import FAULT
from compat_rules import rule

GENERATE = "/v2/models/{}/generate"
STREAM = "/v2/models/{}/generate_stream"


def events(answer):
    """Return the events of a stream as JSON."""
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    pieces = answer.body.decode().split("\n\n")
    assert pieces.pop() == ""
    assert all(piece.startswith("data: ") for piece in pieces)
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


@rule("GN-01", "GN-03")
def test_keys_are_inputs_and_outputs_come_by_name(target):
    answer = target.post(GENERATE.format("strings"), {"INPUT0": "some text", "id": "r-1"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "id": "r-1",
        "model_name": "strings",
        "model_version": "1",
        "OUTPUT0": "some text",
    }


@rule("GN-01")
@pytest.mark.parametrize(
    "body",
    [
        {"parameters": {"INPUT0": [1.0, 2.0]}},
        {"INPUT0": [1.0, 2.0], "mine": 1, "text": "x", "flag": True},
        {"INPUT0": [1.0, 2.0], "parameters": {"mine": 1, "temperature": 0.5}},
    ],
)
def test_other_keys_are_parameters_and_parameters_may_hold_inputs(target, body):
    answer = target.post(GENERATE.format("echo"), body)
    assert (answer.status, answer.json["OUTPUT0"]) == (200, [1.0, 2.0])
    assert "id" not in answer.json


@rule("GN-02", "GN-03")
@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        ("echo", [1.0], 1.0),
        ("echo", 1.5, 1.5),
        ("echo", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ("matrix", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ("scores", [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),
        ("strings", ["a", "b"], ["a", "b"]),
    ],
)
def test_shapes_come_from_the_configuration(target, model, value, expected):
    answer = target.post(GENERATE.format(model), {"INPUT0": value})
    assert answer.status == 200
    assert answer.json["OUTPUT0"] == expected


@rule("GN-02")
@pytest.mark.parametrize(
    ("model", "value"),
    [("optional", [1.0, 2.0, 3.0]), ("optional", 1.0), ("scores", [1.0] * 5)],
)
def test_a_value_that_does_not_fit_is_400(target, model, value):
    answer = target.post(GENERATE.format(model), {"INPUT0": value})
    assert answer.status == 400
    assert answer.error


@rule("GN-02")
@pytest.mark.parametrize("value", [{"a": 1}, "text", None])
def test_a_value_of_a_wrong_type_is_an_error(target, value):
    assert 400 <= target.post(GENERATE.format("echo"), {"INPUT0": value}).status <= 500


@rule("GN-01", "PB-32")
@pytest.mark.parametrize("body", [b"{", b"", b"[]"])
def test_malformed_json(target, body):
    assert 400 <= target.post(GENERATE.format("echo"), body).status <= 500


@rule("GN-04")
@pytest.mark.parametrize("count", [0, 2])
def test_generate_wants_exactly_one_response(target, count):
    answer = target.post(GENERATE.format("repeat"), {"INPUT0": 7, "COUNT": count})
    # Triton has sent 200 with the first response by then, and answers the error under it.
    assert answer.status in (200, 500)
    assert "generate expects model to produce exactly 1 response" in answer.error


@rule("GN-04", "GN-06")
def test_generate_takes_one_response_of_a_decoupled_model(target):
    answer = target.post(GENERATE.format("repeat"), {"INPUT0": 7, "COUNT": 1})
    assert (answer.status, answer.json["OUTPUT0"]) == (200, 7)


@rule("GN-04")
@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_compressed_body_is_refused(target, path):
    body = gzip.compress(json.dumps({"INPUT0": [1.0]}).encode())
    answer = target.post(path.format("echo"), body, {"Content-Encoding": "gzip"})
    assert answer.status == 400


@rule("GN-05", "GN-06")
@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_has_an_event_for_each_response(target, count):
    answer = target.post(STREAM.format("repeat"), {"INPUT0": 7, "COUNT": count, "id": "r"})
    found = events(answer)
    assert len(found) == count
    for event in found:
        assert event["OUTPUT0"] == 7
        assert (event["model_name"], event["model_version"]) == ("repeat", "1")
        assert event["id"] == "r"


@rule("GN-05")
def test_a_stream_without_responses_is_empty(target):
    """DC-02."""
    answer = target.post(STREAM.format("repeat"), {"INPUT0": 7, "COUNT": 0})
    assert (answer.status, answer.body) == (200, b"")


@rule("GN-06")
def test_a_stream_of_a_normal_model_has_one_event(target):
    (event,) = events(target.post(STREAM.format("echo"), {"INPUT0": [1.0, 2.0]}))
    assert event["OUTPUT0"] == [1.0, 2.0]


@rule("GN-05")
def test_an_error_first_has_its_code(target):
    """By 2.51 the code is always 400; Triton writes it as an event, whatever the code."""
    answer = target.post(STREAM.format("repeat"), {"INPUT0": FAULT, "COUNT": 1})
    assert answer.status in (400, 500)
    found = json.loads(answer.body.removeprefix(b"data: "))
    assert "scripted error" in found["error"]


@rule("GN-05")
def test_a_later_error_is_an_event(target):
    found = events(target.post(STREAM.format("late"), {"INPUT0": 7, "COUNT": 5}))
    assert len(found) == 3
    assert found[0]["OUTPUT0"] == 7
    assert "scripted error" in found[-1]["error"]


@rule("GN-05", "PB-33")
@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_an_unknown_model_is_404(target, path):
    answer = target.post(path.format("nobody"), {"INPUT0": [1.0]})
    assert answer.status in (400, 404)
    assert "nobody" in answer.error


@rule("GN-07")
def test_a_tensor_given_twice_is_400(target):
    body = {"INPUT0": [1.0], "parameters": {"INPUT0": [2.0]}}
    assert target.post(GENERATE.format("echo"), body).status == 400


@rule("GN-07")
def test_missing_inputs_are_the_usual_error(target):
    answer = target.post(GENERATE.format("simple"), {"INPUT0": [1] * 16})
    assert answer.status == 400
    assert "expected 2 inputs but got 1 inputs for model 'simple'" in answer.error


@rule("GN-06")
def test_a_closed_stream_leaves_the_server_well(target):
    connection = http.client.HTTPConnection(target.http, timeout=30)
    body = json.dumps({"INPUT0": 7, "COUNT": 200})
    connection.request("POST", STREAM.format("repeat"), body)
    answer = connection.getresponse()
    assert answer.read(6) == b"data: "
    connection.close()
    assert len(events(target.post(STREAM.format("repeat"), {"INPUT0": 7, "COUNT": 2}))) == 2
