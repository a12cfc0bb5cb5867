"""V2 JSON with and without binary tensors (SEMANTICS §2.3, §2.4), texts and kinds of what is wrong."""

import json
import math
import struct

import numpy as np
import pytest
from headrace.schemas.errors import (
    Code,
    InferError,
    InvalidRequest,
    MalformedRequest,
    QueueFull,
    Unsupported,
)
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.tensor import Datatype, Tensor, join_bytes, split_bytes
from headrace.schemas.v2json import (
    all_binary,
    all_json,
    parse_request,
    parse_response,
    wants_binary,
    write_error,
    write_request,
    write_response,
)
from wire_kit import request, signature, tensor_config


def parse(**document):
    return parse_request(json.dumps(document).encode(), None)


def one_input(datatype, shape, data, **rest):
    """Parse a request with one input."""
    item = {"name": "x", "datatype": datatype, "shape": shape, "data": data, **rest}
    return parse(inputs=[item]).inputs[0]


def with_tail(tail, *inputs, **document):
    head = json.dumps({"inputs": list(inputs), **document}).encode()
    return head + tail, len(head)


def binary_input(size, name="x", datatype="FP32", shape=(1, 1), **rest):
    parameters = {"binary_data_size": size}
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "parameters": parameters,
        **rest,
    }


# ----- JSON requests


def test_PB40_a_whole_request():
    made = parse(
        id="r",
        parameters={
            "sequence_id": 7,
            "sequence_start": True,
            "priority": 3,
            "timeout": 9,
            "k": 1.5,
        },
        inputs=[{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]}],
        outputs=[{"name": "y"}, {"name": "z", "parameters": {"binary_data": True, "n": 1}}],
    )
    assert made == InferRequest(
        (Tensor("x", Datatype.FP32, (1, 2), struct.pack("<2f", 1, 2.5)),),
        (RequestedOutput("y"), RequestedOutput("z", {"binary_data": True, "n": 1})),
        "r",
        sequence_id=7,
        sequence_start=True,
        priority=3,
        timeout_us=9,
        parameters={"k": 1.5},
    )


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [[1, 2, 3], 4]]
)
def test_PB41_data_is_flat_or_nested(data):
    assert one_input("INT8", [2, 2], data).data == bytes([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("datatype", "data", "raw"),
    [
        ("BOOL", [True, False], b"\x01\x00"),
        ("UINT8", [0, 255], b"\x00\xff"),
        ("INT8", [-128, 127], b"\x80\x7f"),
        ("UINT16", [65535], b"\xff\xff"),
        ("INT16", [-2], b"\xfe\xff"),
        ("INT32", [-(2**31)], b"\x00\x00\x00\x80"),
        ("UINT32", [2**32 - 1], b"\xff" * 4),
        ("INT64", [-(2**63), 2**63 - 1], struct.pack("<2q", -(2**63), 2**63 - 1)),
        ("UINT64", [2**64 - 1, 2**53 + 1], struct.pack("<2Q", 2**64 - 1, 2**53 + 1)),
        ("FP32", [1, 0.1], struct.pack("<2f", 1, 0.1)),
        ("FP64", [1e300, 10**30], struct.pack("<2d", 1e300, 1e30)),
        ("FP32", [10**30], struct.pack("<f", 1e30)),
        ("FP32", [1e300], struct.pack("<f", math.inf)),
        ("BYTES", ["", "é", "\x00"], join_bytes([b"", "é".encode(), b"\x00"])),
        ("FP32", [], b""),
        ("BYTES", [], b""),
        ("INT8", [[], []], b""),
    ],
)
def test_PB45_JSON_values_become_raw_bytes(datatype, data, raw):
    shape = [len(data)] if not data or not isinstance(data[0], list) else [2, 0]
    assert one_input(datatype, shape, data).data == raw


def test_PB46_nan_and_infinity_are_read_and_written():
    body = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[NaN,Infinity,-Infinity]}]}'
    )
    (tensor,) = parse_request(body, None).inputs
    assert np.isnan(tensor.numpy()[0])
    assert tensor.numpy()[1:].tolist() == [math.inf, -math.inf]
    written, length = write_response(InferResponse((tensor,)))
    assert b'"data":[NaN,Infinity,-Infinity]' in written
    assert length is None


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("BOOL", [1]),
        ("BOOL", ["true"]),
        ("INT32", [1.0]),
        ("INT32", [True]),
        ("UINT8", ["1"]),
        ("FP32", ["1"]),
        ("FP32", [True]),
        ("FP64", [None]),
        ("BYTES", [1]),
        ("BYTES", [None]),
        ("FP32", [{"a": 1}]),
        ("FP32", 1.0),
        ("FP32", None),
        ("FP32", "1"),
    ],
)
def test_PB45_wrong_JSON_types_are_malformed(datatype, data):
    with pytest.raises(MalformedRequest, match="Unable to parse 'data'") as caught:
        one_input(datatype, [1], data)
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("datatype", "number"),
    [
        ("UINT8", -1),
        ("UINT8", 256),
        ("INT64", 2**63),
        ("UINT64", 2**64),
        ("INT32", 10**400),
        ("FP64", 10**400),
    ],
)
def test_a_number_out_of_range_is_refused_and_never_wrapped(datatype, number):
    body = '{"inputs":[{"name":"x","datatype":"%s","shape":[1],"data":[%d]}]}' % (datatype, number)  # noqa: UP031  # braces
    with pytest.raises(InvalidRequest, match="'x' has an element out of range"):
        parse_request(body.encode(), None)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_B51_half_floats_are_refused_in_JSON_and_the_binary_extension_is_named(datatype):
    with pytest.raises(
        InvalidRequest, match=f"receiving {datatype} data via JSON.*binary data format.*'x'"
    ) as caught:
        one_input(datatype, [1], [1.0])
    assert caught.value.code is Code.INVALID_ARG
    tensor = Tensor("y", Datatype(datatype), (1,), b"\x01\x00")
    with pytest.raises(InvalidRequest, match=f"sending {datatype} data via JSON.*output 'y'"):
        write_response(InferResponse((tensor,)), all_json)
    with pytest.raises(InvalidRequest, match="input 'y'"):
        write_request(InferRequest((tensor,)), all_json)


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
def test_B51_half_floats_pass_bit_for_bit_in_binary(datatype):
    bits = struct.pack("<4H", 0x0001, 0x83FF, 0x7F81, 0xFFC1)
    made = InferRequest((Tensor("x", datatype, (4,), bits),))
    assert parse_request(*write_request(made)) == made


def nested(depth, leaf="1"):
    return (
        '{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":'
        + "[" * depth
        + leaf
        + "]" * depth
        + "}]}"
    ).encode()


def test_PB38_nesting_is_limited():
    assert parse_request(nested(100), None).inputs[0].data == b"\x01"
    for depth in (101, 900, 100_000):
        with pytest.raises(
            MalformedRequest, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"
        ):
            parse_request(nested(depth), None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "failed to parse the request JSON buffer"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"\xff{}", "failed to parse the request JSON buffer"),
        (b'{"inputs":[]} x', "failed to parse the request JSON buffer"),
        (b"[]", "expected an object, got list"),
        (b"null", "expected an object"),
        (b"1" * 5000, "failed to parse the request JSON buffer"),
        (b'{"id":"\\ud800","inputs":[]}', "failed to parse the request JSON buffer"),
        (b'{"id":"\\uDC00","inputs":[]}', "failed to parse the request JSON buffer"),
        (b"{}", "Unable to parse 'inputs'"),
        (b'{"inputs":{}}', "Unable to parse 'inputs'"),
        (b'{"inputs":[1]}', "Unable to parse 'inputs'"),
        (b'{"inputs":[],"outputs":null}', "Unable to parse 'outputs'"),
        (b'{"inputs":[],"outputs":[{}]}', "Unable to parse 'name'"),
        (b'{"inputs":[],"id":1}', "Unable to parse 'id'"),
        (b'{"inputs":[],"parameters":[]}', "Unable to parse 'parameters'"),
        (b'{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}', "Unable to parse 'name'"),
        (b'{"inputs":[{"name":"x","shape":[1],"data":[1]}]}', "Unable to parse 'datatype'"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}', "Unable to parse 'shape'"),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"data":[1]}]}',
            "Unable to parse 'shape'",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1.0],"data":[1]}]}',
            "Unable to parse 'shape'",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[true],"data":[1]}]}',
            "Unable to parse 'shape'",
        ),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}', "Unable to parse 'data'"),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[1,2]}]}',
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
        ),
        (
            b'{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":1}}]}',
            "Unable to parse 'binary_data'",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}]}',
            "Unable to parse 'binary_data_size'",
        ),
    ],
)
def test_PB32_malformed_bodies_are_internal_errors_with_Tritons_texts(body, text):
    with pytest.raises(MalformedRequest, match=text) as caught:
        parse_request(body, None)
    assert caught.value.code is Code.INTERNAL
    assert caught.value.detail.encode()  # can be written anywhere


def test_an_escaped_pair_of_surrogates_is_text():
    assert parse(id="😀", inputs=[]).id == "😀"
    assert parse_request(b'{"id":"\\ud83d\\ude00","inputs":[]}', None).id == "😀"


def test_an_unknown_datatype_is_named():
    with pytest.raises(InvalidRequest, match="datatype 'FP8' is unknown"):
        one_input("FP8", [1], [1])


def test_an_absurd_shape_is_refused():
    with pytest.raises(InvalidRequest, match="claims more than"):
        one_input("FP32", [2**40, 2**40], [1])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "sequence_id",
            -1,
            "'sequence_id' is -1, expected an unsigned integer up to 18446744073709551615",
        ),
        ("sequence_id", 2**64, "unsigned integer"),
        ("sequence_id", True, "unsigned integer"),
        ("sequence_id", 1.0, "unsigned integer"),
        ("sequence_start", 1, "expected true or false"),
        ("priority", "1", "whole number"),
        ("timeout", -1, "whole number"),
        ("binary_data_output", "yes", "true or false"),
        ("triton_x", 1, "'triton_x' is reserved"),
        ("k", None, "'k' is of type NoneType, expected a string"),
        ("k", [1], "'k' is of type list"),
        ("k", {}, "'k' is of type dict"),
    ],
)
def test_PB47_wrong_parameters_are_named(name, value, text):
    with pytest.raises(InvalidRequest, match=text) as caught:
        parse(inputs=[], parameters={name: value})
    assert caught.value.code is Code.INVALID_ARG


def test_PB47_a_string_sequence_id_stays_a_string():
    assert parse(inputs=[], parameters={"sequence_id": "7"}).sequence_id == "7"


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_PB72_shared_memory_is_refused(where):
    item = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1],
        "parameters": {"shared_memory_region": "r"},
    }
    with pytest.raises(Unsupported, match=r"put 'x' .* shared memory, which is not offered here"):
        parse(**{"inputs": [], where: [item]})


# ----- binary


def test_BN01_BN02_binary_and_JSON_tensors_in_one_request():
    body, length = with_tail(
        b"abcdXY",
        binary_input(4, "a", "INT8", [4]),
        {"name": "j", "datatype": "INT8", "shape": [1], "data": [9]},
        binary_input(0, "e", "FP32", [0]),
        binary_input(2, "b", "FP16", [1]),
    )
    made = parse_request(body, length)
    assert {tensor.name: bytes(tensor.data) for tensor in made.inputs} == {
        "a": b"abcd",
        "j": b"\x09",
        "e": b"",
        "b": b"XY",
    }
    for tensor in made.inputs:
        tensor.check()


def test_binary_tensors_are_views_of_the_body():
    body, length = with_tail(b"abcd", binary_input(4))
    assert parse_request(body, length).inputs[0].data.obj is body


@pytest.mark.parametrize("length", [-1, 10_000])
def test_BN01_a_length_outside_of_the_body(length):
    with pytest.raises(InvalidRequest, match="inference-header-content-length is"):
        parse_request(b"{}", length)


@pytest.mark.parametrize(
    ("tail", "inputs", "text"),
    [
        (b"abc", [binary_input(4)], "unexpected size for input 'x', expecting 4 bytes.*only 3"),
        (b"", [binary_input(2**70)], "unexpected size for input 'x'"),
        (b"abcde", [binary_input(4)], "unexpected additional input data: 1 bytes"),
        (b"a", [], "unexpected additional input data"),
        (
            b"abcd",
            [binary_input(4, data=[1])],
            "both 'data' and 'binary_data_size', expected exactly one",
        ),
    ],
)
def test_PB36_sizes_that_do_not_fit(tail, inputs, text):
    body, length = with_tail(tail, *inputs)
    with pytest.raises(InvalidRequest, match=text) as caught:
        parse_request(body, length)
    assert caught.value.code is Code.INVALID_ARG


RAW = [
    (tensor_config("x", dims=(4,)), bytes(16), (1, 4)),
    (tensor_config("x", dims=(-1, 2)), bytes(24), (1, 3, 2)),
    (tensor_config("x", Datatype.INT8, (-1,)), b"", (1, 0)),
]


@pytest.mark.parametrize(("tensor", "body", "shape"), RAW)
def test_BN07_a_raw_body_is_the_sole_inputs_data(tensor, body, shape):
    made = parse_request(body, 0, signature([tensor]))
    assert made.inputs == (Tensor("x", tensor.datatype, shape, body),)
    assert made.binary_data_output
    signature([tensor]).admit(made.inputs)


def test_BN07_without_batching_and_with_one_string():
    plain = signature([tensor_config("x", Datatype.BYTES, (1,))], max_batch_size=0)
    made = parse_request(b"\x00raw", 0, plain)
    assert made.inputs == (Tensor("x", Datatype.BYTES, (1,), join_bytes([b"\x00raw"])),)


@pytest.mark.parametrize(
    ("signed", "body", "text"),
    [
        (None, b"abcd", "expected a model whose only input the body is"),
        (
            signature([tensor_config("x"), tensor_config("z")]),
            b"",
            "exactly 1 input, but model 'm' has 2 inputs",
        ),
        (
            signature([tensor_config("x", dims=(-1, -1))]),
            b"abcd",
            "at most one variable dimension",
        ),
        (
            signature([tensor_config("x")]),
            b"abc",
            "3 bytes for input 'x', expected a multiple of 4",
        ),
    ],
)
def test_BN07_raw_bodies_that_cannot_be_understood(signed, body, text):
    with pytest.raises(InvalidRequest, match=text):
        parse_request(body, 0, signed)


def test_BN07_a_raw_body_of_another_size_is_refused_by_admission():
    one = signature()
    with pytest.raises(InvalidRequest, match="Expected 16, got 8"):
        one.admit(parse_request(bytes(8), 0, one).inputs)


def test_BN03_BN04_which_outputs_are_binary():
    made = request(
        outputs=(RequestedOutput("a", {"binary_data": True}), RequestedOutput("b")),
        binary_data_output=True,
    )
    assert [wants_binary(made)(name) for name in "abc"] == [True, False, True]
    assert not wants_binary(request())("a")


# ----- responses

Y = Tensor("y", Datatype.FP32, (1, 2), struct.pack("<2f", 0.5, 0.1))


def test_PB42_a_JSON_response():
    body, length = write_response(InferResponse((Y,), "r", "m", "3", {"k": True}))
    assert length is None
    assert json.loads(body) == {
        "id": "r",
        "model_name": "m",
        "model_version": "3",
        "parameters": {"k": True},
        "outputs": [
            {
                "name": "y",
                "datatype": "FP32",
                "shape": [1, 2],
                "data": [0.5, float(np.float32(0.1))],
            }
        ],
    }
    assert b"id" not in write_response(InferResponse(()))[0]


def test_BN05_a_response_with_binary_tensors():
    empty = Tensor("e", Datatype.FP16, (0,), b"")
    body, length = write_response(InferResponse((Y, empty), "", "m", "3"), all_binary)
    assert body[length:] == Y.data
    assert json.loads(body[:length])["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "e", "datatype": "FP16", "shape": [0], "parameters": {"binary_data_size": 0}},
    ]
    assert write_response(InferResponse((empty,)), all_binary)[1] is None


@pytest.mark.parametrize("binary", [all_json, all_binary, lambda name: name == "s"])
def test_a_response_is_read_as_it_was_written(binary):
    words = Tensor("s", Datatype.BYTES, (2,), join_bytes([b"", "é".encode()]))
    made = InferResponse((Y, words), "r", "m", "3", {"k": 1})
    assert parse_response(*write_response(made, binary)) == made


def test_B55_strings_that_are_no_text_need_the_binary_form():
    tensor = Tensor("s", Datatype.BYTES, (1,), join_bytes([b"\x00\xff"]))
    with pytest.raises(InvalidRequest, match=r"no UTF-8 via JSON.*output 's'"):
        write_response(InferResponse((tensor,)))
    (back,) = parse_response(*write_response(InferResponse((tensor,)), all_binary)).outputs
    assert split_bytes("s", back.data) == [b"\x00\xff"]


def test_PB30_an_error_body():
    body = write_error("", QueueFull("full"))
    assert json.loads(body) == {"error": "full"}
    assert json.loads(write_error("r", QueueFull("full"))) == {"id": "r", "error": "full"}
    with pytest.raises(InferError, match="full"):
        parse_response(body, None)


def test_TC02_a_client_writes_all_three_sequence_parameters():
    body, _ = write_request(
        request(sequence_id=7, priority=1, timeout_us=2, binary_data_output=True), all_json
    )
    assert json.loads(body)["parameters"] == {
        "sequence_id": 7,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 1,
        "timeout": 2,
        "binary_data_output": True,
    }
