"""What a client makes of arrays, and of answers: numpy in and out."""

from __future__ import annotations

import numpy as np
import pytest
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.client import Answer
from headrace.streams.client_values import nothing_like, tensor_of


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([[1, 2]], Datatype.FP32, np.float32([[1, 2]])),
        ([[1, 2]], Datatype.UINT8, np.uint8([[1, 2]])),
        (np.float64([0.5]), Datatype.FP16, np.float16([0.5])),
        (np.int64([-7]), Datatype.INT16, np.int16([-7])),
        ([], Datatype.INT32, np.int32([])),
        ([True, False], Datatype.BOOL, np.array([True, False])),
        (3, Datatype.INT64, np.int64(3)),
        (np.float32([1.5]), None, np.float32([1.5])),
    ],
)
def test_an_array_becomes_a_tensor_of_the_model_s_datatype(value, datatype, expected):
    tensor = tensor_of("x", value, datatype)
    assert tensor.numpy().dtype == expected.dtype
    assert np.array_equal(tensor.numpy(), expected)


def test_bytes_keep_their_zeros_and_text_is_utf_8():
    tensor = tensor_of("x", [[b"a\0", "ä"]], Datatype.BYTES)
    assert tensor.shape == (1, 2)
    assert tensor.numpy().tolist() == [[b"a\0", "ä".encode()]]


def test_bf16_comes_from_floats_or_from_its_bits():
    bits = tensor_of("x", [1.0, -2.0], Datatype.BF16).data
    assert bytes(bits) == np.uint16([0x3F80, 0xC000]).tobytes()
    assert tensor_of("x", np.uint16([0x3F80, 0xC000]), Datatype.BF16).data == bits


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        ([1.5], Datatype.INT32, "input 'x' takes INT32 elements, got float64"),
        ([1], Datatype.BOOL, "input 'x' takes BOOL elements, got int64"),
        ([300, -1], Datatype.UINT8, "input 'x' takes UINT8 elements, got -1 to 300"),
        ([1e6], Datatype.FP16, "input 'x' takes FP16 elements, got float64 beyond its range"),
        (["1"], Datatype.FP32, "input 'x' takes FP32 elements, got <U1"),
        ([[1], [1, 2]], Datatype.FP32, "input 'x' cannot be made an array"),
        (np.complex64([1]), None, "numpy dtype complex64 has no V2 datatype"),
    ],
)
def test_what_would_lose_a_value_is_refused(value, datatype, text):
    with pytest.raises(InvalidRequest) as caught:
        tensor_of("x", value, datatype)
    assert text in str(caught.value)


def test_an_answer_is_a_mapping_of_arrays():
    tensors = (
        Tensor.from_numpy("y", np.float32([[1, 2]])),
        Tensor.from_numpy("label", np.array([b"cat"], dtype=object)),
    )
    answer = Answer(InferResponse(tensors, "r", "m", "3"))
    assert list(answer) == ["y", "label"]
    assert answer["y"].tolist() == [[1.0, 2.0]]
    assert answer["label"].tolist() == [b"cat"]
    assert (answer.response.id, answer.final, answer.is_replayed) == ("r", True, False)
    assert repr(answer).startswith("Answer(m version 3, [Tensor('y', FP32, [1, 2], 8 bytes)")
    with pytest.raises(KeyError):
        answer["z"]


def test_nothing_like_a_request_has_its_shapes_and_says_nothing():
    request = InferRequest(
        (
            Tensor.from_numpy("x", np.int32([[1, 2]])),
            Tensor.from_numpy("s", np.array([[b"a", b"bc"]], dtype=object)),
        )
    )
    blank = nothing_like(request)
    assert [tensor.numpy().tolist() for tensor in blank] == [[[0, 0]], [[b"", b""]]]
