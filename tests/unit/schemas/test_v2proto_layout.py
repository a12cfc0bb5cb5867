"""Requests that are recognised are read as the general way reads them, and the rest is left to it."""

import pytest
from headrace.schemas import v2proto, v2proto_layout
from headrace.schemas.errors import InferError
from headrace.schemas.v2proto_layout import RequestLayouts
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2


def message(data=(b"abcd",), id="", shape=(1, 4), name="x", **fields):  # noqa: A002
    made = service_pb2.ModelInferRequest(model_name="m", model_version="1", id=id, **fields)
    for i in range(len(data)):
        made.inputs.add(name=f"{name}{i}", datatype="UINT8", shape=shape)
    made.raw_input_contents.extend(data)
    made.outputs.add(name="y").parameters["classification"].int64_param = 3
    return made


def learned(*made):
    layouts = RequestLayouts()
    for each in made:
        value = each.SerializeToString()
        layouts.learn(value, v2proto.parse_request(value))
    return layouts


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000, 3_000_000])
def test_another_id_and_other_contents_are_recognised(size):
    layouts = learned(message(data=(b"a", b"")))
    value = message(data=(bytes(size), b"zz"), id="é" * 200).SerializeToString()
    assert layouts.read(value) == v2proto.parse_request(value)


@pytest.mark.parametrize(
    "other",
    [
        message(shape=(1, 5)),
        message(name="z"),
        message(data=(b"", b"")),
        message(data=()),
    ],
)
def test_what_is_not_alike_is_not_recognised(other):
    assert learned(message()).read(other.SerializeToString()) is None


def test_parameters_and_typed_contents_are_never_remembered():
    """A sequence id would be a new layout with each sequence."""
    parameters = message()
    parameters.parameters["sequence_id"].int64_param = 7
    typed = message(data=(b"",))
    typed.ClearField("raw_input_contents")
    typed.inputs[0].contents.uint_contents.extend([1, 2, 3, 4])
    layouts = learned(parameters, typed)
    assert len(layouts) == 0


def test_what_is_remembered_is_bounded():
    layouts = RequestLayouts()
    for n in range(v2proto_layout.MAX_LAYOUTS + 1):
        value = message(name=f"n{n}").SerializeToString()
        layouts.learn(value, v2proto.parse_request(value))
    assert len(layouts) == 1
    value = message(name="x" * 2_000).SerializeToString()
    layouts.learn(value, v2proto.parse_request(value))
    assert len(layouts) == 1


PIECES = st.sampled_from(
    [
        part
        for made in (
            message(),
            message(data=(b"q" * 200, b"")),
            message(id="i"),
            message(shape=()),
        )
        for whole in [made.SerializeToString()]
        for part in (whole, whole[: len(whole) // 2], whole[len(whole) // 2 :])
    ]
)


@given(parts=st.lists(PIECES | st.binary(max_size=6), min_size=1, max_size=4))
def test_whatever_bytes_are_recognised_are_read_as_the_general_way_reads_them(parts):
    layouts = learned(message(), message(data=(b"q" * 200, b"")), message(shape=()))
    value = b"".join(parts)
    found = layouts.read(value)
    if found is None:
        return
    try:
        expected = v2proto.parse_request(value)
    except InferError as error:
        raise AssertionError("recognised, though it is no request") from error
    assert found == expected


@given(
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 400),
    id=st.text(max_size=5),
)
def test_damaged_requests_too(flips, cut, id):  # noqa: A002
    layouts = learned(message(), message(data=(b"q" * 200, b"")))
    value = bytearray(message(data=(b"q" * 200, b""), id=id).SerializeToString())
    for at, mask in flips:
        value[at % len(value)] ^= mask
    damaged = bytes(value[: max(1, len(value) - cut % 40)])
    found = layouts.read(damaged)
    if found is not None:
        assert found == v2proto.parse_request(damaged)
