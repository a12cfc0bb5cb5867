"""``inference.ModelInferRequest`` and ``ModelInferResponse`` as record values (SEMANTICS GR-01)."""

import struct

import pytest
from headrace.schemas import v2proto
from headrace.schemas.errors import (
    InferError,
    InvalidRequest,
    QueueFull,
    UndecodableRecord,
    Unsupported,
)
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.tensor import Datatype, Tensor, join_bytes
from tritonclient.grpc import service_pb2
from wire_kit import request


def message(datatype="FP32", shape=(2,), raw=(), **contents):
    made = service_pb2.ModelInferRequest()
    item = made.inputs.add(name="x", datatype=datatype, shape=shape)
    if contents:
        item.contents.SetInParent()
    for field, values in contents.items():
        getattr(item.contents, field).extend(values)
    made.raw_input_contents.extend(raw)
    return made


def parse(made):
    return v2proto.parse_request(made.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "field", "values", "raw"),
    [
        ("BOOL", "bool_contents", [True, False], b"\x01\x00"),
        ("INT8", "int_contents", [-1, 2], b"\xff\x02"),
        ("INT16", "int_contents", [-2, 3], struct.pack("<2h", -2, 3)),
        ("INT32", "int_contents", [-2, 3], struct.pack("<2i", -2, 3)),
        ("INT64", "int64_contents", [-2, 2**60], struct.pack("<2q", -2, 2**60)),
        ("UINT8", "uint_contents", [0, 255], b"\x00\xff"),
        ("UINT16", "uint_contents", [1, 65535], struct.pack("<2H", 1, 65535)),
        ("UINT32", "uint_contents", [1, 2**32 - 1], struct.pack("<2I", 1, 2**32 - 1)),
        ("UINT64", "uint64_contents", [1, 2**64 - 1], struct.pack("<2Q", 1, 2**64 - 1)),
        ("FP32", "fp32_contents", [1.5, 0.1], struct.pack("<2f", 1.5, 0.1)),
        ("FP64", "fp64_contents", [1.5, 0.1], struct.pack("<2d", 1.5, 0.1)),
        ("BYTES", "bytes_contents", [b"", b"\x00\xff"], join_bytes([b"", b"\x00\xff"])),
    ],
)
def test_GR01_typed_and_raw_contents_mean_the_same(datatype, field, values, raw):
    expected = Tensor("x", Datatype(datatype), (2,), raw)
    assert parse(message(datatype, **{field: values})).inputs == (expected,)
    assert parse(message(datatype, raw=[raw])).inputs == (expected,)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_B51_half_floats_are_raw_only(datatype):
    with pytest.raises(
        InvalidRequest, match=f"{datatype} has no typed contents, expected raw_input_contents"
    ):
        parse(message(datatype, fp32_contents=[1.0, 2.0]))
    bits = struct.pack("<2H", 0x0001, 0x7F81)
    assert parse(message(datatype, raw=[bits])).inputs[0].data == bits


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            message(raw=[bytes(8)], fp32_contents=[1, 2]),
            "contents field must not be specified when using raw_input_contents for 'x'",
        ),
        (message(raw=[b"", b""]), "expected 1 raw_input_contents, one per input, got 2"),
        (
            message(int_contents=[1, 2]),
            "unexpected int_contents for input 'x', expected fp32_contents",
        ),
        (message("INT8", int_contents=[1, 128]), "'x' has an element out of range, expected INT8"),
        (message("UINT16", uint_contents=[65536, 0]), "expected UINT16 from 0 to 65535"),
        (message("FP8"), "datatype 'FP8' is unknown"),
    ],
)
def test_wrong_contents_are_named(made, text):
    with pytest.raises(InvalidRequest, match=text):
        parse(made)


def test_an_input_without_data_is_left_for_admission():
    assert parse(message()).inputs == (Tensor("x", Datatype.FP32, (2,), b""),)


def test_a_whole_request_passes():
    made = request(
        id="r",
        model_name="m",
        model_version="3",
        outputs=(RequestedOutput("y", {"p": 1}),),
        parameters={"b": True, "i": -5, "u": 2**64 - 1, "f": 2.5, "s": "t"},
        sequence_id="7",
        sequence_start=True,
        priority=2**64 - 1,
        timeout_us=4,
    )
    assert v2proto.parse_request(v2proto.write_request(made)) == made


def test_a_parameter_without_a_value_is_refused():
    made = message(raw=[bytes(8)])
    made.parameters["k"].SetInParent()
    with pytest.raises(InvalidRequest, match="parameter 'k' is of type NoneType"):
        parse(made)


def test_PB47_reserved_names():
    made = message(raw=[bytes(8)])
    made.parameters["triton_x"].bool_param = True
    with pytest.raises(InvalidRequest, match="'triton_x' is reserved"):
        parse(made)


def test_PB72_inputs_in_shared_memory_have_no_contents():
    """They take no place among the raw contents either; outputs go there only where somebody can write them."""
    made = message(raw=[bytes(8)])
    made.inputs.add(name="S", datatype="UINT8", shape=[4])
    for name, value in (("region", "r"), ("byte_size", 4), ("offset", 2)):
        parameter = made.inputs[1].parameters[f"shared_memory_{name}"]
        setattr(parameter, "string_param" if name == "region" else "int64_param", value)
    made.outputs.add(name="O").parameters["shared_memory_region"].string_param = "r"
    found = v2proto.from_message(made, lambda name, span: f"{name} {span}".encode())
    assert bytes(found.inputs[1].data) == b"S SharedSpan(region='r', offset=2, byte_size=4)"
    assert found.outputs[0].parameters == {"shared_memory_region": "r"}
    with pytest.raises(Unsupported, match="input 'S' is kept in shared memory"):
        v2proto.from_message(made)
    made.inputs[1].contents.uint_contents.append(1)
    with pytest.raises(InvalidRequest, match="But set 'contents' 'shared_memory_region' for 'S'"):
        v2proto.from_message(made, lambda name, span: b"")
    response = InferResponse((Tensor("O", Datatype.UINT8, (4,), b"abcd"),))
    assert v2proto.to_message(response, {"O"}).raw_output_contents == [b""]
    assert v2proto.to_message(response).raw_output_contents == [b"abcd"]


def test_PB72_shared_memory_is_refused():
    made = message()
    made.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(Unsupported, match="shared memory"):
        parse(made)


def test_B33_what_is_no_message():
    with pytest.raises(
        UndecodableRecord, match=r"value of 4 bytes is no inference\.ModelInferRequest"
    ):
        v2proto.parse_request(b"\xff" * 4)


def test_a_response_is_read_as_it_was_written():
    made = InferResponse(
        (Tensor("y", Datatype.BF16, (1,), b"\x81\x7f"), Tensor("e", Datatype.FP32, (0,), b"")),
        "r",
        "m",
        "3",
        {"k": 1},
    )
    value = v2proto.write_response(made)
    assert v2proto.parse_response(value) == made
    assert list(service_pb2.ModelInferResponse.FromString(value).raw_output_contents) == [
        b"\x81\x7f",
        b"",
    ]


def test_typed_contents_of_a_response_are_read():
    made = service_pb2.ModelInferResponse()
    made.outputs.add(name="y", datatype="INT8", shape=[1]).contents.int_contents.append(7)
    assert v2proto.parse_response(made.SerializeToString()).outputs == (
        Tensor("y", Datatype.INT8, (1,), b"\x07"),
    )


def test_a_response_with_another_number_of_contents():
    made = service_pb2.ModelInferResponse(raw_output_contents=[b"a"])
    with pytest.raises(UndecodableRecord, match="expected 0 raw_output_contents"):
        v2proto.parse_response(made.SerializeToString())


def test_an_error_is_a_string_parameter():
    value = v2proto.write_error("r", ("m", "3"), QueueFull("full"))
    found = service_pb2.ModelInferResponse.FromString(value)
    assert (found.id, found.model_name, found.model_version) == ("r", "m", "3")
    assert found.parameters["error"].string_param == "full"
    with pytest.raises(InferError, match="full"):
        v2proto.parse_response(value)


def test_bytes_do_not_depend_on_the_order_of_parameters():
    one = InferRequest((), parameters={"a": 1, "b": 2})
    two = InferRequest((), parameters={"b": 2, "a": 1})
    assert v2proto.write_request(one) == v2proto.write_request(two)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("id", ["", "r", "é" * 100])
def test_what_is_written_without_a_message_is_what_a_message_writes(size, id):  # noqa: A002
    """Lengths around those at which a number takes one byte more."""
    outputs = (
        Tensor("é", Datatype.UINT8, (1, size), memoryview(bytes(size))),
        Tensor("none", Datatype.BYTES, (), b""),
        Tensor("wide", Datatype.INT64, (-1, 2**62), b"x"),
    )
    for made in (InferResponse(outputs, id, "m", "12"), InferResponse((), id)):
        expected = v2proto.to_message(made).SerializeToString(deterministic=True)
        assert v2proto.write_response(made) == expected
