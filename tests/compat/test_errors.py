"""SEMANTICS §2.2: which error is which number, with the fragments that clients match on."""

import json

import pytest
import tritonclient.http
from compat_kit import SIXTEEN, given, infer, mixed, part, simple_json, wanted
from compat_models import FAULT
from compat_rules import NEWER, rule, since

ECHO = part("INPUT0", "FP32", [1, 2], [1.0, 2.0])


@rule("PB-30", "TC-04")
def test_an_error_is_json_with_its_text(target, http):
    answer = target.get("/v2/models/nobody")
    assert answer.status == 404
    with pytest.raises(tritonclient.http.InferenceServerException) as caught:
        http.get_model_metadata("nobody")
    assert (caught.value.message(), caught.value.status()) == (answer.error, "404")


@rule("PB-30")
@since(NEWER)  # 2.51 calls most of them text/plain
@pytest.mark.parametrize("path", ["/v2/models/nobody/config", "/v2/nothing", "/v2/models/nobody"])
def test_errors_are_json(target, path):
    assert target.get(path).headers["content-type"] == "application/json"


@rule("PB-31")
@pytest.mark.parametrize(
    ("status", "ask"),
    [
        (400, lambda t: infer(t, "echo", part("INPUT0", "INT32", [1, 1], [1]))),
        (404, lambda t: t.get("/v2/models/nobody/config")),
        (503, lambda t: t.post("/v2/repository/models/echo/load")),
        (501, lambda t: infer(t, "repeat", *repeat_json())),
        (500, lambda t: infer(t, "echo", part("INPUT0", "FP32", [1, 1], [FAULT]))),
    ],
)
def test_codes_are_numbers(target, status, ask):
    answer = ask(target)
    assert answer.status == status
    assert answer.error


def repeat_json():
    return part("INPUT0", "INT32", [1], [1]), part("COUNT", "INT32", [1], [1])


@rule("PB-32")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "failed to parse the request JSON buffer"),
        (b"no json", "failed to parse the request JSON buffer"),
        (b"{}", "Unable to parse 'inputs'"),
        (b"[]", ""),
        (b'{"inputs": 1}', "Unable to parse 'inputs'"),
        (b'{"inputs": [{"datatype": "FP32", "shape": [1, 1], "data": [1]}]}', "Unable to parse"),
        (b'{"inputs": [{"name": "INPUT0", "shape": [1, 1], "data": [1]}]}', "Unable to parse"),
        (b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": [1]}]}', "Unable to parse"),
    ],
)
def test_malformed_json_is_500(target, body, text):
    answer = target.post("/v2/models/echo/infer", body)
    assert answer.status == 500
    assert text in answer.error


@rule("PB-32")
@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (part("INPUT0", "FP32", [1, -1], [1.0]), "Unable to parse 'shape'"),
        (part("INPUT0", "FP32", ["1", 1], [1.0]), ""),
        (part("INPUT0", "FP32", [1, 2], [1.0]), "Shape does not match true shape of 'data' field"),
        (part("INPUT0", "FP32", [1, 1], ["one"]), ""),
        (part("INPUT0", "FP32", [1, 1], 1.0), ""),
    ],
)
def test_wrong_json_types_and_shapes_are_500(target, tensor, text):
    answer = infer(target, "echo", tensor)
    assert answer.status == 500
    assert text in answer.error


@rule("PB-33")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nobody", "Request for unknown model: 'nobody' is not found"),
        ("nobody/versions/1", "Request for unknown model: 'nobody'"),
        ("echo/versions/7", "'echo' version 7 is not found"),
    ],
)
@pytest.mark.parametrize("body", [b"no json", b'{"inputs": []}'])
def test_the_model_is_looked_up_before_the_body_is_parsed(target, path, text, body):
    answer = target.post(f"/v2/models/{path}/infer", body)
    assert answer.status == 404
    assert text in answer.error


@rule("PB-33")
def test_a_known_model_without_a_ready_version(strict):
    answer = infer(strict, "broken", part("INPUT0", "FP32", [1, 4], [1.0] * 4))
    assert answer.status == 404
    assert "'broken' has no available versions" in answer.error


@rule("PB-33")
def test_a_known_version_that_is_not_ready(strict):
    answer = infer(strict, "broken/versions/1", part("INPUT0", "FP32", [1, 4], [1.0] * 4))
    assert answer.status == 503
    assert "is not at ready state" in answer.error


TWO_BY_TWO = part("INPUT0", "FP32", [1, 2, 2], [1.0] * 4)


@rule("PB-34", "PB-37")
@pytest.mark.parametrize(
    ("model", "inputs", "text"),
    [
        ("simple", simple_json()[:1], "expected 2 inputs but got 1 inputs for model 'simple'"),
        ("simple", [], "expected 2 inputs but got 0 inputs for model 'simple'"),
        (
            "simple",
            [*simple_json(), part("MORE", "INT32", [1, 1], [1])],
            "expected 2 inputs but got 3 inputs for model 'simple'",
        ),
        (
            "simple",
            [simple_json()[0], part("MORE", "INT32", [1, 16], [1] * 16)],
            "unexpected inference input 'MORE' for model 'simple'",
        ),
        (
            "optional",
            [TWO_BY_TWO, {**TWO_BY_TWO, "name": "A"}, {**TWO_BY_TWO, "name": "B"}],
            "expected number of inputs between 1 and 2 but got 3 inputs for model 'optional'",
        ),
        (
            "echo",
            [part("INPUT0", "INT32", [1, 1], [1])],
            "inference input 'INPUT0' data-type is 'INT32', but model 'echo' expects 'FP32'",
        ),
        (
            "simple",
            [part("INPUT0", "INT32", [1, 17], [1] * 17), simple_json()[1]],
            "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,17]",
        ),
        (
            "scores",
            [part("INPUT0", "FP32", [4], [1.0] * 4)],
            "unexpected shape for input 'INPUT0' for model 'scores'. Expected [-1,4], got [4]",
        ),
        (
            "echo",
            [part("INPUT0", "FP32", [9, 1], [1.0] * 9)],
            "inference request batch-size must be <= 8 for 'echo'",
        ),
        (
            "simple",
            [part("INPUT0", "INT32", [2, 16], [1] * 32), simple_json()[1]],
            "batch size does not match other inputs for 'simple'",
        ),
        ("echo", [part("INPUT0", "FP99", [1, 1], [1.0])], ""),
    ],
)
def test_wrong_inputs_are_400(target, model, inputs, text):
    answer = infer(target, model, *inputs)
    assert answer.status == 400
    assert text in answer.error


@rule("PB-34")
def test_the_byte_size_must_be_that_of_the_shape(target):
    header = {"inputs": [part("INPUT0", "FP32", [1, 3], binary_data_size=8)]}
    answer = target.post("/v2/models/echo/infer", *mixed(header, bytes(8)))
    assert answer.status == 400
    assert "input byte size mismatch for input 'INPUT0'" in answer.error


@rule("PB-34", "BN-06")
@pytest.mark.parametrize("count", [1, 3])
def test_bytes_elements_must_be_as_many_as_the_shape_says(target, count):
    raw = b"\x01\0\0\0x" * 2
    header = {"inputs": [part("INPUT0", "BYTES", [1, count], binary_data_size=len(raw))]}
    answer = target.post("/v2/models/strings/infer", *mixed(header, raw))
    assert answer.status == 400
    assert "INPUT0" in answer.error


@rule("PB-34", "PB-31")
def test_the_client_gets_the_text_of_a_wrong_input(http):
    with pytest.raises(
        tritonclient.http.InferenceServerException, match="expects 'FP32'"
    ) as error:
        http.infer("echo", [given(tritonclient.http, "INPUT0", SIXTEEN, "INT32")])
    assert error.value.status() == "400"


@rule("PB-35")
def test_an_unknown_output_is_400(target):
    answer = infer(target, "simple", *simple_json(), outputs=[wanted("NOTHING")])
    assert answer.status == 400
    assert "unexpected inference output 'NOTHING' for model 'simple'" in answer.error


@rule("PB-35")
@since(NEWER)  # 2.51 answers it once
def test_an_output_asked_for_twice_is_400(target):
    answer = infer(target, "simple", *simple_json(), outputs=[wanted("OUTPUT0")] * 2)
    assert answer.status == 400
    assert "already exists in request" in answer.error


@rule("PB-35")
def test_an_input_given_twice_is_400(target):
    answer = infer(target, "echo", ECHO, ECHO)
    assert answer.status == 400
    assert "already exists in request" in answer.error


@rule("PB-36")
def test_bytes_beyond_the_tensors(target):
    header = {"inputs": [part("INPUT0", "FP32", [1, 2], binary_data_size=8)]}
    answer = target.post("/v2/models/echo/infer", *mixed(header, bytes(9)))
    assert answer.status == 400
    assert "unexpected additional input data" in answer.error


@rule("PB-36")
def test_fewer_bytes_than_announced(target):
    header = {"inputs": [part("INPUT0", "FP32", [1, 2], binary_data_size=8)]}
    answer = target.post("/v2/models/echo/infer", *mixed(header, bytes(7)))
    assert answer.status == 400
    assert "unexpected size for input 'INPUT0'" in answer.error


@rule("PB-36")
def test_data_and_a_size_at_once(target):
    header = {"inputs": [part("INPUT0", "FP32", [1, 2], [1.0, 2.0], binary_data_size=8)]}
    assert target.post("/v2/models/echo/infer", *mixed(header, bytes(8))).status == 400


@rule("PB-36")
def test_no_data_at_all(target):
    assert infer(target, "echo", part("INPUT0", "FP32", [1, 2])).status in (400, 500)


@rule("PB-38")
@since(NEWER)
def test_nested_data_deeper_than_100(target):
    body = {"inputs": [part("INPUT0", "FP32", [1, 1], "deep")]}
    text = json.dumps(body).replace('"deep"', "[" * 101 + "1" + "]" * 101).encode()
    answer = target.post("/v2/models/echo/infer", text)
    assert 400 <= answer.status <= 500
    assert infer(target, "echo", ECHO).status == 200


@rule("PB-38")
def test_absurd_nesting_elsewhere(target):
    deep = b"[" * 100_000 + b"]" * 100_000
    answer = target.post("/v2/repository/index", b'{"ready": ' + deep + b"}")
    assert answer.status in (400, 500)
    assert target.get("/v2/health/live").status == 200
