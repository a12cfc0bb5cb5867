"""SEMANTICS §2.3: infer requests and responses as JSON."""

import http.client
import json
import math

import numpy as np
import pytest
import tritonclient.http
from compat_kit import add_sub, eventually, given, infer, mixed, part, settled, simple_json, wanted
from compat_models import TYPES
from compat_rules import NEWER, rule, since

ECHO = part("INPUT0", "FP32", [1, 2], [1.0, 2.0])


@rule("PB-40")
@pytest.mark.parametrize("more", [{}, {"outputs": []}])
def test_no_outputs_means_all(target, more):
    answer = infer(target, "simple", *simple_json(), **more)
    assert [each["name"] for each in answer.json["outputs"]] == ["OUTPUT0", "OUTPUT1"]


@rule("PB-40")
def test_only_the_wanted_outputs_come(target):
    answer = infer(target, "simple", *simple_json(), outputs=[wanted("OUTPUT1")])
    (output,) = answer.json["outputs"]
    assert (output["name"], output["data"]) == ("OUTPUT1", list(range(-1, 15)))


@rule("PB-40")
def test_an_id_must_be_text(target):
    assert infer(target, "echo", ECHO, id=7).status == 500


@rule("PB-41")
@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4], [[[1, 2], [3, 4]]], [[1, 2, 3, 4]], [[[1], [2]], [[3], [4]]]]
)
def test_data_may_be_flat_or_nested(target, data):
    tensor = part("INPUT0", "FP32", [1, 2, 2], data)
    answer = infer(target, "optional", tensor, outputs=[wanted("OUTPUT0")])
    assert answer.json["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


@rule("PB-42")
def test_a_response_has_these_keys(target):
    answer = infer(target, "echo", ECHO, id="r-1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "id": "r-1",
        "model_name": "echo",
        "model_version": "1",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
        ],
    }


@rule("PB-42")
@pytest.mark.parametrize("more", [{}, {"id": ""}])
def test_a_response_has_no_id_unless_one_was_given(target, more):
    assert "id" not in infer(target, "echo", ECHO, **more).json


@rule("PB-43")
def test_outputs_come_in_the_order_of_the_configuration(target):
    answer = infer(target, "simple", *reversed(simple_json()))
    assert [each["name"] for each in answer.json["outputs"]] == ["OUTPUT0", "OUTPUT1"]


VALUES = {
    "BOOL": [True, False],
    "UINT8": [0, 2**8 - 1],
    "UINT16": [0, 2**16 - 1],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-(2**7), 2**7 - 1],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP32": [0.5, -1.25],
    "FP64": [0.1, -1e300],
    "BYTES": ["", 'é\n"x"'],
}
SIZES = {
    **dict.fromkeys(("BOOL", "UINT8", "INT8"), 1),
    **dict.fromkeys(("UINT16", "INT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("UINT32", "INT32", "FP32"), 4),
    **dict.fromkeys(("UINT64", "INT64", "FP64"), 8),
}


@rule("PB-45")
@pytest.mark.parametrize("datatype", VALUES)
def test_each_datatype_in_json(target, datatype):
    name, out = (f"{word}{TYPES.index(datatype)}" for word in ("INPUT", "OUTPUT"))
    answer = infer(
        target, "types", part(name, datatype, [2], VALUES[datatype]), outputs=[wanted(out)]
    )
    assert answer.status == 200
    (output,) = answer.json["outputs"]
    assert (output["datatype"], output["data"]) == (datatype, VALUES[datatype])


@rule("PB-44")
@pytest.mark.parametrize("datatype", SIZES)
def test_each_datatype_has_its_size_in_binary(target, datatype):
    name, out = (f"{word}{TYPES.index(datatype)}" for word in ("INPUT", "OUTPUT"))
    raw = bytes(range(SIZES[datatype] * 2)) if datatype != "BOOL" else b"\1\0"
    header = {
        "inputs": [part(name, datatype, [2], binary_data_size=len(raw))],
        "outputs": [wanted(out, binary_data=True)],
    }
    answer = target.post("/v2/models/types/infer", *mixed(header, raw))
    assert answer.status == 200
    assert answer.body.endswith(raw)


@rule("PB-45")
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_are_refused_in_json(target, datatype):
    number = TYPES.index(datatype)
    asked = [wanted(f"OUTPUT{number}")]
    answer = infer(target, "types", part(f"INPUT{number}", datatype, [1], [1.0]), outputs=asked)
    assert answer.status == 400
    header = {
        "inputs": [part(f"INPUT{number}", datatype, [1], binary_data_size=2)],
        "outputs": asked,
    }
    assert target.post("/v2/models/types/infer", *mixed(header, b"\0\0")).status == 400


@rule("PB-45", "PB-32")
@pytest.mark.parametrize(
    ("datatype", "value"),
    [("BOOL", 1), ("INT32", 1.5), ("INT32", "1"), ("INT32", True), ("FP32", "1"), ("BYTES", 1)],
)
def test_wrong_json_forms_are_500(target, datatype, value):
    number = TYPES.index(datatype)
    tensor = part(f"INPUT{number}", datatype, [1], [value])
    assert infer(target, "types", tensor, outputs=[wanted(f"OUTPUT{number}")]).status == 500


@rule("PB-46")
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_nan_and_infinities_pass_both_ways(target, datatype):
    number = TYPES.index(datatype)
    values = [math.nan, math.inf, -math.inf]
    tensor = part(f"INPUT{number}", datatype, [3], values)
    answer = infer(target, "types", tensor, outputs=[wanted(f"OUTPUT{number}")])
    assert answer.status == 200
    (output,) = answer.json["outputs"]
    assert b"NaN" in answer.body
    assert math.isnan(output["data"][0])
    assert output["data"][1:] == values[1:]


@rule("PB-47")
@pytest.mark.parametrize(
    "parameters",
    [
        {"priority": 1, "timeout": 5_000_000},
        {"mine": "text", "number": 1, "flag": True, "part": 0.5},
        {"sequence_id": 0, "sequence_start": False, "sequence_end": False},
    ],
)
def test_parameters_that_are_taken(target, parameters):
    assert infer(target, "echo", ECHO, parameters=parameters).status == 200


@rule("PB-47")
@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_custom_parameters_of_other_types_are_errors(target, value):
    assert 400 <= infer(target, "echo", ECHO, parameters={"mine": value}).status <= 500


@rule("PB-47")
@pytest.mark.parametrize("key", ["triton_enable_empty_final_response", "triton_mine"])
def test_reserved_parameters_are_400(target, key):
    answer = infer(target, "echo", ECHO, parameters={key: True})
    assert answer.status == 400
    assert "triton_" in answer.error


@rule("PB-47")
@pytest.mark.parametrize(
    "parameters",
    [{"sequence_start": 1}, {"priority": "high"}, {"timeout": -1}, {"sequence_id": 1.5}],
)
def test_standard_parameters_of_wrong_types_are_errors(target, parameters):
    assert 400 <= infer(target, "echo", ECHO, parameters=parameters).status <= 500


@rule("PB-49")
@since(NEWER)
def test_a_closed_connection_cancels_its_queued_request(target):
    """The one before it runs for a while, so that it waits; the model never executes it."""

    def executed():
        (stats,) = target.get("/v2/models/slow/stats").json["model_stats"]
        return stats["inference_count"]

    body = json.dumps({"inputs": [part("INPUT0", "FP32", [1, 1], [1.0])]})
    before = settled(executed)
    connections = [http.client.HTTPConnection(target.http, timeout=30) for _ in range(3)]
    for connection in connections:
        connection.request("POST", "/v2/models/slow/infer", body)
    connections[1].close()
    assert connections[0].getresponse().status == 200
    assert connections[2].getresponse().status == 200
    eventually(lambda: executed() >= before + 2, "both that were kept are counted")
    assert infer(target, "slow", part("INPUT0", "FP32", [1, 1], [1.0])).status == 200
    assert eventually(lambda: executed() >= before + 3 and executed(), "three") == before + 3
    for connection in connections:
        connection.close()


@rule("PB-40", "TC-05")
@pytest.mark.parametrize("binary", [True, False])
def test_the_client_infers(http, binary):
    one, two = add_sub(tritonclient.http)
    asked = [
        tritonclient.http.InferRequestedOutput(f"OUTPUT{i}", binary_data=binary) for i in range(2)
    ]
    result = http.infer("simple", [one, two], outputs=asked, request_id="r")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), [np.arange(1, 17)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), [np.arange(-1, 15)])
    assert result.get_response()["id"] == "r"


@rule("PB-44", "BN-06")
@pytest.mark.parametrize("binary", [True, False])
def test_the_client_sends_text(http, binary):
    values = np.array([["", "a", "é\0x"]], dtype=object)
    tensor = given(tritonclient.http, "INPUT0", values, "BYTES", binary_data=binary)
    asked = [tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=binary)]
    found = http.infer("strings", [tensor], outputs=asked).as_numpy("OUTPUT0").ravel()
    assert [x.decode() if isinstance(x, bytes) else x for x in found] == ["", "a", "é\0x"]
