"""SEMANTICS §2.4: tensors as bytes behind the JSON, raw bodies, compression."""

import gzip
import json
import zlib

import numpy as np
import pytest
import tritonclient.http
from compat_kit import LENGTH, given, mixed, pack, part, split, wanted
from compat_rules import NEWER, rule, since

ROW = np.array([[1.5, -2.0]], np.float32)
RAW = ROW.tobytes()
JSON_ECHO = {"inputs": [part("INPUT0", "FP32", [1, 2], [1.5, -2.0])]}
ECHO = {"inputs": [part("INPUT0", "FP32", [1, 2], binary_data_size=8)]}
BINARY = {"outputs": [wanted("OUTPUT0", binary_data=True)]}


def ask(target, model, header, *tensors, headers=None):
    body, more = mixed(header, *tensors)
    return target.post(f"/v2/models/{model}/infer", body, {**more, **(headers or {})})


@rule("BN-01")
def test_tensors_follow_the_json(target):
    answer = ask(target, "echo", ECHO, RAW)
    assert answer.json["outputs"][0]["data"] == [1.5, -2.0]


@rule("BN-01")
def test_without_the_header_the_whole_body_is_json(target):
    body, _ = mixed(ECHO, RAW)
    assert target.post("/v2/models/echo/infer", body).status in (400, 500)


@rule("BN-01")
@pytest.mark.parametrize("length", ["-1", "99999"])
def test_a_header_length_out_of_the_body_is_400(target, length):
    body, _ = mixed(ECHO, RAW)
    assert target.post("/v2/models/echo/infer", body, {LENGTH: length}).status == 400


@rule("BN-01")
@since(NEWER)  # 2.51 reads the digits in front
@pytest.mark.parametrize("length", ["many", "1e3"])
def test_a_header_length_that_is_no_number_is_400(target, length):
    body, _ = mixed(ECHO, RAW)
    assert target.post("/v2/models/echo/infer", body, {LENGTH: length}).status == 400


@rule("BN-01", "TC-05")
def test_the_header_may_be_spelled_in_any_case(target):
    body, headers = mixed(ECHO, RAW)
    lower = {key.lower(): value for key, value in headers.items()}
    assert target.post("/v2/models/echo/infer", body, lower).status == 200


@rule("BN-02")
def test_inputs_in_json_and_in_binary_at_once(target):
    four = np.arange(4, dtype=np.float32).tobytes()
    header = {
        "inputs": [
            part("INPUT0", "FP32", [1, 2, 2], [9.0] * 4),
            part("INPUT1", "FP32", [1, 2, 2], binary_data_size=16),
        ]
    }
    outputs = ask(target, "optional", header, four).json["outputs"]
    assert [each["data"] for each in outputs] == [[9.0] * 4, [0.0, 1.0, 2.0, 3.0]]


@rule("BN-02")
def test_tensors_come_in_the_order_of_the_inputs(target):
    header = {
        "inputs": [part(f"INPUT{i}", "FP32", [1, 2, 2], binary_data_size=16) for i in (1, 0)]
    }
    one, zero = (np.full(4, value, np.float32).tobytes() for value in (1, 0))
    outputs = ask(target, "optional", header, one, zero).json["outputs"]
    assert {each["name"]: each["data"][0] for each in outputs} == {"OUTPUT0": 0, "OUTPUT1": 1}


@rule("BN-02")
@pytest.mark.parametrize("binary", [False, True])
def test_an_empty_tensor_has_no_bytes(target, binary):
    header = {"inputs": [part("INPUT0", "FP32", [1, 0], binary_data_size=0)]}
    if binary:
        header |= BINARY
    answer = ask(target, "echo", header)
    assert answer.status == 200
    # BN-05: with no bytes behind it, the response is plain JSON.
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["outputs"][0]["shape"] == [1, 0]


@rule("BN-03", "BN-05")
def test_a_binary_output(target):
    answer = ask(target, "echo", ECHO | BINARY, RAW)
    assert answer.headers["content-type"] == "application/octet-stream"
    header, tensors = split(answer)
    (output,) = header["outputs"]
    assert output["parameters"] == {"binary_data_size": 8}
    assert "data" not in output
    assert tensors == RAW


@rule("BN-05")
def test_a_response_without_binary_tensors_is_plain_json(target):
    answer = ask(target, "echo", ECHO, RAW)
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH.lower() not in answer.headers


@rule("BN-04")
def test_binary_data_output_reaches_outputs_that_are_not_listed(target):
    answer = ask(target, "echo", ECHO | {"parameters": {"binary_data_output": True}}, RAW)
    assert split(answer)[1] == RAW


@rule("BN-04")
def test_binary_data_output_does_not_reach_a_listed_output(target):
    more = {"parameters": {"binary_data_output": True}, "outputs": [wanted("OUTPUT0")]}
    answer = ask(target, "echo", ECHO | more, RAW)
    assert answer.json["outputs"][0]["data"] == [1.5, -2.0]


@rule("BN-03")
def test_binary_and_json_outputs_at_once(target):
    row = np.arange(16, dtype=np.int32).tobytes()
    header = {
        "inputs": [part(f"INPUT{i}", "INT32", [1, 16], binary_data_size=64) for i in range(2)],
        "outputs": [wanted("OUTPUT0"), wanted("OUTPUT1", binary_data=True)],
    }
    shown, tensors = split(ask(target, "simple", header, row, row))
    found = {each["name"]: each for each in shown["outputs"]}
    assert found["OUTPUT0"]["data"] == list(range(0, 32, 2))
    assert found["OUTPUT1"]["parameters"] == {"binary_data_size": 64}
    assert tensors == bytes(64)


@rule("BN-06")
def test_bytes_elements_with_lengths(target):
    raw = pack(b"", b"a\0b", "é".encode())
    header = {"inputs": [part("INPUT0", "BYTES", [1, 3], binary_data_size=len(raw))]} | BINARY
    assert split(ask(target, "strings", header, raw))[1] == raw


@rule("BN-06")
def test_bf16_through_the_client(http):
    halves = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([1.0, -2.5], halves)
    tensor = given(tritonclient.http, "INPUT12", values, "BF16")
    asked = [tritonclient.http.InferRequestedOutput("OUTPUT12")]
    found = http.infer("types", [tensor], outputs=asked).as_numpy("OUTPUT12")
    np.testing.assert_array_equal(found, values)


@rule("BN-07")
def test_a_raw_body_is_the_sole_input(target):
    answer = target.post("/v2/models/echo/infer", RAW, {LENGTH: "0"})
    assert answer.status == 200
    header, tensors = split(answer)
    assert header["outputs"][0]["shape"] == [1, 2]
    assert tensors == RAW


@rule("BN-07")
def test_a_raw_body_of_bytes_is_one_element(target):
    answer = target.post("/v2/models/word/infer", b"some text", {LENGTH: "0"})
    assert answer.status == 200
    header, tensors = split(answer)
    assert header["outputs"][0]["shape"] == [1, 1]
    assert tensors == pack(b"some text")


@rule("BN-07")
@pytest.mark.parametrize("model", ["simple", "matrix", "types"])
def test_a_raw_body_for_several_inputs_or_open_dims_is_400(target, model):
    assert target.post(f"/v2/models/{model}/infer", RAW, {LENGTH: "0"}).status == 400


@rule("BN-07")
def test_a_raw_body_that_is_no_whole_number_of_elements_is_400(target):
    assert target.post("/v2/models/echo/infer", RAW[:-1], {LENGTH: "0"}).status == 400


@rule("BN-08")
@pytest.mark.parametrize(
    ("encoding", "fold"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compressed_request(target, encoding, fold):
    body, headers = mixed(ECHO, RAW)
    headers["Content-Encoding"] = encoding
    answer = target.post("/v2/models/echo/infer", fold(body), headers)
    assert answer.json["outputs"][0]["data"] == [1.5, -2.0]


@rule("BN-08")
def test_another_encoding_is_501_and_told_what_would_do(target):
    body = json.dumps(JSON_ECHO).encode()
    answer = target.post("/v2/models/echo/infer", body, {"Content-Encoding": "br"})
    assert answer.status == 501
    assert {"gzip", "deflate"} <= {
        word.strip() for word in answer.headers["accept-encoding"].split(",")
    }


@rule("BN-08")
@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("br", None),
        ("identity", None),
    ],
)
def test_the_response_is_compressed_as_asked(target, accept, encoding):
    values = np.zeros((1, 1_000), np.float32)
    header = {"inputs": [part("INPUT0", "FP32", [1, 1_000], binary_data_size=4_000)]} | BINARY
    headers = {"Accept-Encoding": accept}
    answer = ask(target, "echo", header, values.tobytes(), headers=headers)
    assert answer.status == 200
    assert answer.headers.get("content-encoding") == encoding
    unfold = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding]
    plain = unfold(answer.body)
    length = int(answer.headers[LENGTH.lower()])
    assert json.loads(plain[:length])["outputs"][0]["shape"] == [1, 1_000]
    assert plain[length:] == values.tobytes()


@rule("BN-08", "TC-05")
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_the_client_compresses_both_ways(http, algorithm):
    values = np.zeros((2, 4_000), np.float32)
    result = http.infer(
        "echo",
        [given(tritonclient.http, "INPUT0", values, "FP32")],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)
