"""The classification extension: an output's largest values with their places and labels (SEMANTICS §2.5)."""

import json

import numpy as np
import pytest
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Responses
from headrace.schemas.classification import MAX_ITEM_ELEMENTS, check_classes, classified
from headrace.schemas.codec import decode_response
from headrace.schemas.errors import InvalidRequest, MalformedRequest
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.record import BINARY, CONTENT_TYPES, JSON
from headrace.schemas.tensor import Datatype, Tensor, split_bytes
from headrace.schemas.v2json import parse_request as parse_json
from hypothesis import given
from hypothesis import strategies as st
from wire_kit import batch, entry, signature, tensor_config

LABELS = ("apple", "pear", "", "plum")


def words(tensor):
    """Return a classified output's elements as text."""
    return [word.decode() for word in split_bytes(tensor.name, tensor.data)]


def classes(values, count, labels=(), *, batched=True):
    """Classify an array."""
    return classified(Tensor.from_numpy("y", np.array(values)), count, labels, batched=batched)


def test_CL01_the_largest_values_come_first_with_place_and_label():
    """Six decimals, as C++ writes floats."""
    found = classes(np.float32([[1, 2.5, -7, 10], [0, 0, 0.125, 1e-9]]), 3, LABELS)
    assert (found.datatype, found.shape) == (Datatype.BYTES, (2, 3))
    assert words(found) == [
        *("10.000000:3:plum", "2.500000:1:pear", "1.000000:0:apple"),
        *("0.125000:2", "0.000000:3:plum", "0.000000:0:apple"),
    ]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (np.uint8([3, 255]), "255:1"),
        (np.int8([-128, -3]), "-3:1"),
        (np.uint64([2**64 - 1, 1]), "18446744073709551615:0"),
        (np.int64([-(2**63), -(2**63) + 1]), "-9223372036854775807:1"),
        (np.float64([1e30, 5]), "1000000000000000019884624838656.000000:0"),
        (np.float32([-np.inf, np.nan]), "-inf:0"),
        (np.float32([np.inf, np.nan]), "inf:0"),
    ],
)
def test_CL01_every_numeric_datatype_sorts_by_value(values, first):
    """Unsigned ones have no negative to sort by; what is no number comes last."""
    assert words(classes(values, 1, batched=False)) == [first]


def test_CL01_without_a_batch_axis_the_whole_output_is_one_item():
    found = classes(np.int32([[1, 4], [3, 2]]), 3, LABELS, batched=False)
    assert (found.shape, words(found)) == ((3,), ["4:1:pear", "3:2", "2:3:plum"])


@pytest.mark.parametrize(("shape", "got"), [((2, 0), (2, 0)), ((0, 4), (0, 3)), ((1, 2), (1, 2))])
def test_CL01_there_are_no_more_classes_than_values(shape, got):
    assert classes(np.zeros(shape, np.float32), 3).shape == got


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(1, 40))
def test_CL06_equal_values_keep_their_order(values, count):
    """Triton leaves it open; here an answer that is given twice is the same."""
    expected = sorted(range(len(values)), key=lambda place: (-values[place], place))[:count]
    found = words(classes(np.int16([values]), count))
    assert found == [f"{values[place]}:{place}" for place in expected]


@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BOOL, Datatype.FP16, Datatype.BF16])
def test_CL02_datatypes_without_classes_are_refused(datatype):
    check_classes("y", datatype, 0)
    with pytest.raises(InvalidRequest, match=f"unsupported type '{datatype}'"):
        check_classes("y", datatype, 1)


def test_CL02_an_item_with_too_many_elements_is_its_own_requests_error():
    """Only who asked for classes gets it; its neighbour gets the values."""
    signed = signature(outputs=[tensor_config("y", Datatype.INT8, (-1,))])
    asks = entry(outputs=(RequestedOutput("y", {"classification": 1}),))
    answers = ResponseEncoder(signed).encode(
        batch(asks, entry(), of=signed),
        Responses({"y": np.zeros((2, MAX_ITEM_ELEMENTS + 1), np.int8)}),
    )
    (_, value, headers), (_, other, said) = answers
    with pytest.raises(InvalidRequest, match="classification output tensor too large: output 'y'"):
        decode_response(value, headers)
    assert decode_response(other, said).outputs[0].shape == (1, MAX_ITEM_ELEMENTS + 1)


@pytest.mark.parametrize("classes", [-1, 2**32, True, "2", 1.5])
def test_CL03_a_number_of_classes_is_whole_and_unsigned(classes):
    signed = signature()
    with pytest.raises(InvalidRequest, match="parameter 'classification' of output 'y' is"):
        signed.check_outputs([RequestedOutput("y", {"classification": classes})])


@pytest.mark.parametrize("classes", [-1, True, "2", 1.5, None])
def test_CL03_PB32_a_wrong_type_in_json_is_malformed(classes):
    body = {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": classes}}]}
    with pytest.raises(MalformedRequest, match="Unable to set 'classification'"):
        parse_json(json.dumps(body).encode(), None)


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_CL05_every_format_carries_the_strings(content_type):
    """And 0 classes are the values themselves."""
    signed = signature(
        outputs=[tensor_config("a", dims=(4,)), tensor_config("b", Datatype.INT8, (2,))]
    )
    wanted = (
        RequestedOutput("a", {"classification": 2}),
        RequestedOutput("b", {"classification": 0}),
    )
    asks = entry(rows=2, outputs=wanted, content_type=content_type)
    usual = entry(content_type=content_type)
    ((_, value, headers), (_, other, said)) = ResponseEncoder(signed, {"a": LABELS}).encode(
        batch(asks, usual, of=signed),
        Responses(
            {
                "a": np.arange(12, dtype=np.float32).reshape(3, 4),
                "b": np.int8([[1, 2], [3, 4], [5, 6]]),
            }
        ),
    )
    a, b = decode_response(value, headers).outputs
    assert (a.datatype, a.shape) == (Datatype.BYTES, (2, 2))
    assert words(a) == ["3.000000:3:plum", "2.000000:2", "7.000000:3:plum", "6.000000:2"]
    assert (b.datatype, b.numpy().tolist()) == (Datatype.INT8, [[1, 2], [3, 4]])
    assert decode_response(other, said).outputs[0].datatype is Datatype.FP32


def test_CL05_strings_are_binary_where_that_is_asked_for():
    signed = signature()
    for parameters, expected in (({"binary_data": True}, BINARY), ({"binary_data": False}, JSON)):
        wanted = (RequestedOutput("y", {"classification": 1, **parameters}),)
        asks = entry(outputs=wanted, content_type=JSON)
        ((_, _, headers),) = ResponseEncoder(signed).encode(
            batch(asks, of=signed), Responses({"y": np.float32([[1, 2]])})
        )
        assert dict(headers)["content-type"].decode() == expected
