"""The Avro form: its schemas, its bytes beside fastavro's own, and what is wrong."""

import io
import json
import struct

import fastavro
import pytest
from headrace.schemas import avro
from headrace.schemas.errors import (
    InferError,
    InvalidRequest,
    QueueFull,
    UndecodableRecord,
    Unsupported,
)
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.tensor import Datatype, Tensor
from wire_kit import request

REQUEST = fastavro.parse_schema(json.loads(avro.schema_text("infer_request")))
RESPONSE = fastavro.parse_schema(json.loads(avro.schema_text("infer_response")))


def read(value, schema=REQUEST):
    return fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def write(datum, schema=REQUEST):
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, datum)
    return target.getvalue()


def test_the_field_order_is_the_contract():
    fields = json.loads(avro.schema_text("infer_request"))
    assert fields["namespace"] == "headrace.v2"
    assert [field["name"] for field in fields["fields"]] == [
        "id",
        "parameters",
        "inputs",
        "outputs",
        "route",
    ]
    fields = json.loads(avro.schema_text("infer_response"))
    assert [field["name"] for field in fields["fields"]] == [
        "id",
        "model_name",
        "model_version",
        "parameters",
        "outputs",
        "error",
    ]


def test_a_producer_may_leave_out_what_has_a_default():
    tensor = {"name": "x", "datatype": "INT8", "shape": [1, 2], "data": b"ab"}
    found = avro.parse_request(write({"inputs": [tensor]}))
    assert found == InferRequest((Tensor("x", Datatype.INT8, (1, 2), b"ab"),))


def test_a_request_is_what_others_read():
    made = request(
        id="é",
        parameters={"b": True, "i": -5, "f": 2.5, "s": "t"},
        outputs=(RequestedOutput("y", {"binary_data": True}), RequestedOutput("z")),
        binary_data_output=True,
    )
    assert read(avro.write_request(made)) == {
        "id": "é",
        "parameters": {"b": True, "i": -5, "f": 2.5, "s": "t", "binary_data_output": True},
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 4],
                "data": struct.pack("<4f", 1, 2, 3, 4),
            }
        ],
        "outputs": [
            {"name": "y", "parameters": {"binary_data": True}},
            {"name": "z", "parameters": {}},
        ],
        "route": None,
    }
    assert avro.parse_request(avro.write_request(made)) == made
    assert read(avro.write_request(made, with_id=False))["id"] is None


def test_standard_parameters_in_the_value_become_fields():
    tensor = {"name": "x", "datatype": "INT8", "shape": [0], "data": b""}
    standard = {"sequence_id": "s", "sequence_end": True, "priority": 2, "timeout": 3, "k": "v"}
    found = avro.parse_request(write({"inputs": [tensor], "parameters": standard}))
    assert (found.sequence_id, found.sequence_end, found.priority, found.timeout_us) == (
        "s",
        True,
        2,
        3,
    )
    assert found.parameters == {"k": "v"}


def test_a_response_is_what_others_read():
    made = InferResponse((Tensor("y", Datatype.INT8, (2, 1), b"ab"),), "r", "m", "3", {"k": 1})
    value = avro.write_response(made)
    assert read(value, RESPONSE) == {
        "id": "r",
        "model_name": "m",
        "model_version": "3",
        "parameters": {"k": 1},
        "outputs": [{"name": "y", "datatype": "INT8", "shape": [2, 1], "data": b"ab"}],
        "error": None,
    }
    assert avro.parse_response(value) == made


def test_an_error_is_a_response_with_its_field_set():
    value = avro.write_error("r", ("m", "3"), QueueFull("full"))
    assert read(value, RESPONSE) == {
        "id": "r",
        "model_name": "m",
        "model_version": "3",
        "parameters": {},
        "outputs": [],
        "error": {"code": "UNAVAILABLE", "reason": "queue_full", "message": "full"},
    }
    with pytest.raises(InferError, match="full"):
        avro.parse_response(value)


@pytest.mark.parametrize(
    "number", [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31, 2**63 - 1, -(2**63)]
)
def test_longs_are_zigzag(number):
    assert avro.long(number) == write(number, "long")


def test_an_integer_beyond_64_bits_is_refused():
    with pytest.raises(InvalidRequest, match=f"parameter 'k' is {2**63}"):
        avro.write_request(request(parameters={"k": 2**63}))


def test_the_route_is_reserved_for_ensembles():
    with pytest.raises(Unsupported, match="field 'route' is set"):
        avro.parse_request(write({"inputs": [], "route": b"r"}))


def test_more_bytes_than_one_record_are_refused():
    with pytest.raises(UndecodableRecord, match="with more behind it"):
        avro.parse_request(avro.write_request(request()) + b"\x00")


def test_B33_what_is_no_Avro_is_one_sentence():
    with pytest.raises(UndecodableRecord, match="value of 3 bytes is no Avro InferRequest"):
        avro.parse_request(b"\xff\xff\xff")
    with pytest.raises(UndecodableRecord, match="InferResponse"):
        avro.parse_response(b"\x02")


def test_an_unknown_datatype_is_no_decoding_error():
    tensor = {"name": "x", "datatype": "FP8", "shape": [1], "data": b"a"}
    with pytest.raises(InvalidRequest, match="'FP8' is unknown"):
        avro.parse_request(write({"inputs": [tensor]}))


def test_a_value_may_begin_with_the_byte_that_others_take_for_framing():
    """B35: nothing is guessed from a first byte of zero, which is what an absent id looks like."""
    value = avro.write_request(request())
    assert value[0] == 0
    assert avro.parse_request(value) == request()
