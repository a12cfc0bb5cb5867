"""When two answers to one request are equal (DELIVERY P-16), and what is said where they are not."""

from dataclasses import replace

import numpy as np
import pytest
from headrace.schemas.codec import encode_response
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import AVRO, BINARY, CONTENT_TYPE, JSON, REASON, STATUS
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.audit_compare import difference
from service_parts import PlainRecord


def record(*tensors, content_type=AVRO, version="1", parameters=(), headers=()):
    """Return a result record."""
    response = InferResponse(tensors, "id", "echo", version, dict(parameters))
    encoded = encode_response(response, content_type)
    own = [(CONTENT_TYPE, content_type.encode()), (STATUS, b"OK"), *headers]
    if encoded.length is not None:
        own.append(("inference-header-content-length", str(encoded.length).encode()))
    return PlainRecord(value=encoded.value, headers=own)


def tensor(*values, datatype=Datatype.FP32, name="OUT"):
    dtype = np.float32 if datatype is Datatype.BF16 else datatype.numpy
    return Tensor.from_numpy(name, np.array(values, dtype), datatype)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tensor(1.0, 2.0), tensor(1.0, 2.0)),
        (tensor(1.0, 2.0), tensor(1.000009, 2.0)),
        (tensor(0.0), tensor(0.000009)),
        (tensor(1e6), tensor(1e6 + 9)),
        (tensor(1.0, datatype=Datatype.FP64), tensor(1.000009, datatype=Datatype.FP64)),
        (tensor(7, datatype=Datatype.INT64), tensor(7, datatype=Datatype.INT64)),
    ],
)
def test_P16_floats_within_rounding_are_equal(one, other, content_type):
    first = record(one, content_type=content_type)
    assert difference(first, record(other, content_type=content_type)) == ""
    assert difference(first, record(other, content_type=content_type, version="2")) == ""


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (tensor(1.0, 2.0), tensor(1.0, 2.00003), "output 'OUT' has 2 and 2.0000"),
        (tensor(0.0), tensor(0.00002), "at element 0"),
        (tensor(INF), tensor(-INF), "output 'OUT' has inf and -inf at element 0"),
        (tensor(INF), tensor(3e38), "output 'OUT' has inf and 3"),
        (tensor(NAN), tensor(1.0), "output 'OUT' has nan and 1 at element 0"),
        (
            tensor(7, datatype=Datatype.INT64),
            tensor(8, datatype=Datatype.INT64),
            "output 'OUT' differs",
        ),
        (tensor(1.0), tensor(1.0, 1.0), "output 'OUT' is FP32 [1] and FP32 [2]"),
        (
            tensor(1.0),
            tensor(1.0, datatype=Datatype.FP64),
            "output 'OUT' is FP32 [1] and FP64 [1]",
        ),
        (tensor(1.0), tensor(1.0, name="Y"), "outputs are ['OUT'] and ['Y']"),
        (
            tensor(1.0, datatype=Datatype.BF16),
            tensor(1.5, datatype=Datatype.BF16),
            "output 'OUT' has 1 and 1.5 at element 0",
        ),
    ],
)
def test_P16_what_differs_is_said(one, other, said):
    assert said in difference(record(one), record(other))
    assert difference(record(other), record(one))


def test_special_floats_equal_themselves():
    bits = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert difference(record(tensor(NAN, INF, 0.0)), record(tensor(NAN, INF, -0.0))) == ""
    first, second = (record(Tensor.from_numpy("OUT", bits[k : k + 1])) for k in (0, 1))
    assert difference(first, second) == ""


def test_headers_that_tell_another_outcome_differ():
    good = record(tensor(1.0))
    bad = replace(good, headers=[(STATUS, b"INTERNAL"), (REASON, b"backend_failed")])
    assert difference(good, bad) == "header 'status' is 'OK' and 'INTERNAL'"
    worse = replace(bad, headers=[(STATUS, b"INTERNAL"), (REASON, b"out_of_memory")])
    assert difference(bad, worse) == "header 'reason' is 'backend_failed' and 'out_of_memory'"
    assert difference(good, replace(good, headers=[*good.headers, ("final", b"false")]))


def test_errors_of_one_kind_are_equal_whatever_their_sentence_says():
    """It may say by how much a deadline had passed."""
    headers = [(STATUS, b"UNAVAILABLE"), (REASON, b"deadline_passed")]
    one = PlainRecord(value=b"3 ms ago", headers=headers)
    assert difference(one, replace(one, value=b"4 ms ago")) == ""


def test_other_parameters_differ():
    one = record(tensor(1.0), parameters={"a": 1})
    other = record(tensor(1.0), parameters={"a": 2})
    assert difference(one, other) == "their parameters differ"


def test_values_in_a_format_of_the_users_own_are_compared_as_bytes():
    mine = PlainRecord(value=b"mine", headers=[(CONTENT_TYPE, b"text/csv")])
    assert difference(mine, mine) == ""
    said = difference(mine, replace(mine, value=b"other"))
    assert said == "their bytes differ, and are no responses that can be compared"


def test_an_empty_last_response_equals_itself_only():
    empty = PlainRecord(value=b"", headers=[(STATUS, b"OK")])
    assert difference(empty, empty) == ""
    assert difference(empty, record(tensor(1.0)))
