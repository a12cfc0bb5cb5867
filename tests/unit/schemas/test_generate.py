"""Flat JSON into requests, and responses into flat JSON (SEMANTICS §2.9)."""

import json

import numpy as np
import pytest
from headrace.schemas.errors import InvalidRequest, MalformedRequest
from headrace.schemas.generate import parse_generate, write_generate
from headrace.schemas.infer import InferResponse
from headrace.schemas.tensor import Datatype, Tensor
from wire_kit import signature, tensor_config

CHAT = signature(
    [
        tensor_config("PROMPT", Datatype.BYTES, (-1,)),
        tensor_config("STREAM", Datatype.BOOL, (1,)),
        tensor_config("VECTOR", Datatype.FP32, (-1, 2, -1), optional=True),
        tensor_config("PAIR", Datatype.INT32, (2,), optional=True),
        tensor_config("HALF", Datatype.FP16, (-1,), optional=True),
    ]
)
PLAIN = signature([tensor_config("X", Datatype.INT32, (3,))], max_batch_size=0)


def parsed(body: object, signed=CHAT):
    text = body if isinstance(body, str) else json.dumps(body)
    return parse_generate(text.encode(), signed)


def shapes(body: object, signed=CHAT) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in parsed(body, signed).inputs}


def test_GN01_keys_that_name_inputs_are_tensors_and_all_others_parameters():
    """Nested ``parameters`` are walked the same way; ``id`` is the request's."""
    request = parsed(
        {
            "id": "mine",
            "PROMPT": "hello",
            "temperature": 0.5,
            "parameters": {"STREAM": True, "stop": "x", "priority": 3, "sequence_id": "s"},
        }
    )
    prompt, stream = request.inputs
    assert (prompt.name, prompt.numpy().tolist()) == ("PROMPT", [[b"hello"]])
    assert (stream.name, stream.numpy().tolist()) == ("STREAM", [[True]])
    assert request.parameters == {"temperature": 0.5, "stop": "x"}
    assert (request.id, request.priority, request.sequence_id) == ("mine", 3, "s")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"PROMPT": "a"}, {"PROMPT": (1, 1)}),
        ({"PROMPT": ["a", "b", "c"]}, {"PROMPT": (1, 3)}),
        ({"PROMPT": []}, {"PROMPT": (1, 0)}),
        ({"VECTOR": [1.0, 2, 3, 4, 5, 6]}, {"VECTOR": (1, 1, 2, 3)}),
        ({"PAIR": [1, 2]}, {"PAIR": (1, 2)}),
        ({"PAIR": [1, 2, 3, 4]}, {"PAIR": (2, 2)}),  # the batch axis varies like any other
    ],
)
def test_GN02_the_last_variable_dimension_takes_what_the_fixed_ones_leave(body, found):
    assert shapes(body) == found


@pytest.mark.parametrize(
    ("body", "signed"),
    [
        ({"PAIR": [1, 2, 3]}, CHAT),
        ({"PAIR": 1}, CHAT),
        ({"X": [1, 2]}, PLAIN),
        ({"X": [1, 2, 3, 4, 5, 6]}, PLAIN),
        ({"VECTOR": [1]}, CHAT),
    ],
)
def test_GN02_a_count_that_fits_no_shape_is_refused(body, signed):
    with pytest.raises(InvalidRequest, match="to tensor with proper shape"):
        parsed(body, signed)


@pytest.mark.parametrize(
    "body",
    [
        '{"PROMPT": "a", "STREAM": true, "PROMPT": "b"}',
        '{"PROMPT": "a", "parameters": {"PROMPT": "b"}}',
        '{"parameters": {"PROMPT": "b"}, "PROMPT": "a"}',
    ],
)
def test_GN07_a_tensor_that_is_given_twice_is_refused(body):
    with pytest.raises(InvalidRequest, match="input 'PROMPT' already exists in request"):
        parsed(body)


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        ({"PROMPT": 1}, "attempt to access JSON non-string as string"),
        ({"PROMPT": {"user": "x"}}, "attempt to access JSON non-string as string"),
        ({"PROMPT": [["a"]]}, "attempt to access JSON non-string as string"),
        ({"PROMPT": None}, "attempt to access JSON non-string as string"),
        ({"STREAM": "false"}, "attempt to access JSON non-boolean as boolean"),
        ({"PAIR": [1.5, 2]}, "attempt to access JSON non-signed-integer as signed-integer"),
        ({"parameters": 1}, "Expected JSON object for keyword: 'parameters'"),
        ({"id": 7}, "'id'"),
        ("[]", "failed to parse the request JSON buffer"),
        ("{", "failed to parse the request JSON buffer"),
        ('{"PROMPT": "\\ud800"}', "failed to parse the request JSON buffer"),
        ('{"x": ' + "[" * 100_000, "failed to parse the request JSON buffer"),
    ],
)
def test_PB32_what_is_of_the_wrong_type_is_malformed(body, fragment):
    with pytest.raises(MalformedRequest) as caught:
        parsed(body)
    assert fragment in caught.value.detail


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        ({"PARAMS": {"a": 0}}, "parameter 'PARAMS' has invalid type"),
        ({"list": [1]}, "parameter 'list' has invalid type"),
        (
            {"parameters": {"nested": {"twice": 1}}},
            "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
        ),
        ({"triton_x": 1}, "reserved"),
        ({"HALF": 1.0}, "FP16"),
        ({"PAIR": [1, 2**31]}, "out of range"),
    ],
)
def test_PB47_what_no_request_can_carry_is_refused(body, fragment):
    with pytest.raises(InvalidRequest) as caught:
        parsed(body)
    assert fragment in caught.value.detail
    assert not isinstance(caught.value, MalformedRequest)


def test_an_input_named_parameters_leaves_no_place_for_the_nested_ones():
    odd = signature([tensor_config("parameters", Datatype.INT32, (1,))])
    with pytest.raises(InvalidRequest, match="also given as input tensor name"):
        parsed({"parameters": 1}, odd)


def test_GN03_one_element_is_a_scalar_and_several_are_a_flat_list():
    """With the response's parameters beside them; no id where there is none."""
    outputs = (
        Tensor.from_numpy("TEXT", np.array([[b"h\xc3\xa9"]], dtype=object)),
        Tensor.from_numpy("LOGITS", np.array([[1.5, float("nan")]], np.float32)),
        Tensor.from_numpy("NONE", np.zeros((1, 0), np.int32)),
    )
    written = write_generate(InferResponse(outputs, "", "m", "2", {"finish": True}))
    assert b"\n" not in written
    found = json.loads(written)
    assert str(found.pop("LOGITS")) == "[1.5, nan]"
    assert found == {
        "model_name": "m",
        "model_version": "2",
        "finish": True,
        "TEXT": "hé",
        "NONE": [],
    }
    assert json.loads(write_generate(InferResponse((), "i", "m", "1")))["id"] == "i"


def test_PB45_halves_are_refused_on_the_way_out_too():
    half = Tensor.from_numpy("H", np.array([[1.5]], np.float16))
    with pytest.raises(InvalidRequest, match="FP16"):
        write_generate(InferResponse((half,), "", "m", "1"))
