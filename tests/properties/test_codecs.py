"""Properties of the wire formats: what is written is read, and the fast paths are the general path."""

import io
import json

import fastavro
import numpy as np
from headrace.schemas import avro, v2proto
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.codec import decode_response, encode_request, encode_response
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, CONTENT_TYPES, JSON, PROTOBUF
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.tensor import Datatype, Tensor
from headrace.schemas.v2json import all_binary, all_json, parse_request, write_request
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import (
    NAMES,
    PARAMETERS,
    TP0,
    Rec,
    entry,
    fp32,
    raw,
    request,
    signature,
    tensor_config,
    tensors,
)

quick = settings(deadline=None, max_examples=120)
IN_JSON = tuple(
    one for one in Datatype if one not in (Datatype.FP16, Datatype.BF16, Datatype.BYTES)
)
REQUEST = fastavro.parse_schema(json.loads(avro.schema_text("infer_request")))
RESPONSE = fastavro.parse_schema(json.loads(avro.schema_text("infer_response")))
IDS = st.one_of(st.just(""), NAMES, st.text(st.characters(codec="utf-8"), max_size=200))
OUTPUTS = st.lists(st.builds(RequestedOutput, NAMES, PARAMETERS), max_size=3).map(tuple)


def fastavro_bytes(schema, datum):
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, datum)
    return target.getvalue()


def tensor_datum(tensor):
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
        "data": bytes(tensor.data),
    }


def infer_requests(datatypes=tuple(Datatype)):
    return st.builds(
        InferRequest,
        st.lists(tensors(datatypes), max_size=3).map(tuple),
        OUTPUTS,
        IDS,
        model_name=st.just(""),
        model_version=st.just(""),
        parameters=PARAMETERS,
        sequence_id=st.one_of(st.just(0), st.integers(1, 2**64 - 1), NAMES),
        sequence_start=st.just(False),
        sequence_end=st.just(False),
        priority=st.integers(0, 2**64 - 1),
        timeout_us=st.integers(0, 2**64 - 1),
        binary_data_output=st.booleans(),
    )


def infer_responses():
    return st.builds(
        InferResponse, st.lists(tensors(), max_size=3).map(tuple), IDS, NAMES, NAMES, PARAMETERS
    )


# ----- round trips


@quick
@given(infer_requests())
def test_B51_B55_requests_pass_the_binary_formats_bit_for_bit(made):
    assert parse_request(*write_request(made, all_binary)) == made
    assert v2proto.parse_request(v2proto.write_request(made)) == made
    bare = InferRequest(
        made.inputs,
        made.outputs,
        made.id,
        parameters=made.parameters,
        binary_data_output=made.binary_data_output,
    )
    assert avro.parse_request(avro.write_request(made)) == bare


@quick
@given(infer_responses(), st.sampled_from([AVRO, BINARY, PROTOBUF]))
def test_responses_pass_the_binary_formats_bit_for_bit(made, content_type):
    found = encode_response(made, content_type, all_binary)
    headers = [("content-type", found.content_type.encode())]
    if found.length is not None:
        headers.append(("inference-header-content-length", str(found.length).encode()))
    assert decode_response(found.value, headers) == made


@quick
@given(infer_requests(IN_JSON))
def test_requests_pass_JSON_with_every_number_intact(made):
    body, length = write_request(made, all_json)
    assert length is None
    found = parse_request(body, None)
    assert found.outputs == made.outputs
    assert found.parameters == made.parameters
    for one, other in zip(found.inputs, made.inputs, strict=True):
        assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
        np.testing.assert_array_equal(
            one.numpy(), other.numpy()
        )  # NaN is NaN, whatever its payload


# ----- our Avro writer is fastavro's


@quick
@given(infer_requests())
def test_requests_are_written_as_fastavro_writes_them(made):
    parameters = dict(made.parameters)
    if made.binary_data_output:
        parameters["binary_data_output"] = True
    assert avro.write_request(made) == fastavro_bytes(
        REQUEST,
        {
            "id": made.id or None,
            "parameters": parameters,
            "inputs": [tensor_datum(tensor) for tensor in made.inputs],
            "outputs": [
                {"name": output.name, "parameters": dict(output.parameters)}
                for output in made.outputs
            ],
            "route": None,
        },
    )


@quick
@given(infer_responses())
def test_responses_are_written_as_fastavro_writes_them(made):
    assert avro.write_response(made) == fastavro_bytes(
        RESPONSE,
        {
            "id": made.id or None,
            "model_name": made.model_name,
            "model_version": made.model_version,
            "parameters": made.parameters,
            "outputs": [tensor_datum(tensor) for tensor in made.outputs],
            "error": None,
        },
    )


@st.composite
def executed(draw):
    """A batch with its outputs: of several datatypes, with strings, variable sizes and padding rows."""
    specs = [
        tensor_config(f"o{i}", datatype, draw(st.sampled_from([(2,), (-1,), (1, 3)])))
        for i, datatype in enumerate(
            draw(st.lists(st.sampled_from(Datatype), min_size=1, max_size=3))
        )
    ]
    signed = signature(outputs=specs)
    rows = draw(st.one_of(st.just([1, 1, 1]), st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    entries = [entry(n, id=draw(IDS), offset=i) for i, n in enumerate(rows)]
    outputs = {}
    for spec in signed.outputs:
        size = draw(st.integers(0, 3))
        shape = (sum(rows), *(size if dim < 0 else dim for dim in spec.dims))
        data = draw(raw(spec.datatype, int(np.prod(shape))))
        outputs[spec.name] = Tensor(spec.name, spec.datatype, shape, data).numpy()
    return Batch(signed, entries), outputs, draw(PARAMETERS)


@quick
@given(executed())
def test_the_batch_writer_writes_what_the_general_writer_would(made):
    batch, outputs, parameters = made
    answers = ResponseEncoder(batch.signature).encode(
        batch, Responses(outputs, parameters=parameters)
    )
    assert [one for one, _, _ in answers] == batch.entries
    row = 0
    for one, value, headers in answers:
        rows = slice(row, row + one.rows)
        row += one.rows
        expected = InferResponse(
            tuple(
                Tensor.from_numpy(spec.name, outputs[spec.name][rows], spec.datatype)
                for spec in batch.signature.outputs
            ),
            one.id,
            "m",
            "1",
            parameters,
        )
        assert value == avro.write_response(expected)
        assert decode_response(value, headers) == expected


# ----- the fast path is the general path

SIGNED = signature(
    [
        tensor_config("x"),
        tensor_config("n", Datatype.INT8, (-1,), optional=True),
    ]
)


def outcome(decoder, record):
    """All that a record became, in comparable form."""
    by_version, failures, *_ = decoder.decode(TP0, 1, [record])
    if failures:
        ((one, error, dead),) = failures
        return vars(one), type(error), error.detail, dead
    ((version, (one,)),) = by_version.items()
    said = dict(vars(one))
    said["data"] = [data if data is None else bytes(data) for data in one.data]
    return version, said


def general_and_fast(learned, record):
    """Decode by a decoder that knows no layout, and by one that has learned from these values."""
    fresh = RequestDecoder({1: SIGNED}, model_name="m")
    taught = RequestDecoder({1: SIGNED}, model_name="m")
    taught.decode(TP0, 1, [Rec(value) for value in learned])
    return outcome(fresh, record), outcome(taught, record)


BASE = st.builds(
    lambda values, tail, optional, **rest: avro.write_request(
        InferRequest(
            (fp32(*values), Tensor("n", Datatype.INT8, (1, len(tail)), tail))[: 1 + optional],
            **rest,
        )
    ),
    st.tuples(*[st.floats(width=32)] * 4),
    st.binary(max_size=5),
    st.booleans(),
    id=st.one_of(st.just(""), st.text(st.characters(codec="utf-8"), max_size=70)),
    parameters=st.one_of(
        PARAMETERS,
        st.sampled_from([{"priority": 5}, {"sequence_id": "a", "sequence_start": True}]),
    ),
    outputs=st.sampled_from([(), (RequestedOutput("y"),), (RequestedOutput("q"),)]),
)
HEADERS = st.lists(
    st.sampled_from([("id", b"h"), ("priority", b"3"), ("x-a", b"1"), ("sequence-id", b"5")]),
    max_size=2,
).map(tuple)


@st.composite
def mutations(draw):
    """A value, and the same with some bytes changed, removed or added."""
    value = draw(BASE)
    changed = bytearray(value)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(changed)))
        removed = draw(st.integers(0, 2))
        changed[place : place + removed] = draw(st.binary(max_size=2))
    return value, bytes(changed)


@settings(deadline=None, max_examples=400)
@given(mutations(), HEADERS)
def test_B41_any_change_of_any_byte_means_the_same_by_both_paths(pair, headers):
    value, changed = pair
    general, fast = general_and_fast([value], Rec(changed, headers))
    assert general == fast


@quick
@given(st.lists(BASE, min_size=1, max_size=6), BASE, HEADERS)
def test_values_mean_the_same_whatever_was_learned_before(learned, value, headers):
    general, fast = general_and_fast([*learned, value], Rec(value, headers))
    assert general == fast


def test_every_single_byte_of_a_usual_record_set_to_any_value():
    """The same, exhaustively for one record: each byte and a spread of values."""
    value = avro.write_request(request(id="ab"))
    taught = RequestDecoder({1: SIGNED}, model_name="m")
    taught.decode(TP0, 1, [Rec(value)])
    recognised = 0
    for place in range(len(value)):
        for byte in (0, 1, 2, 3, 4, 5, 0x7F, 0x80, 0xFF):
            changed = value[:place] + bytes([byte]) + value[place + 1 :]
            fresh = RequestDecoder({1: SIGNED}, model_name="m")
            record = Rec(changed)
            recognised += taught._versions[""].layouts.fill(entry(), changed)
            assert outcome(fresh, record) == outcome(taught, record), (place, byte)
    assert recognised > 100  # the data's bytes, at least, are free


@quick
@given(
    st.binary(max_size=80),
    st.sampled_from(CONTENT_TYPES),
    st.one_of(st.none(), st.integers(0, 90)),
)
def test_B32_random_bytes_never_raise(value, content_type, length):
    headers = [("content-type", content_type.encode()), ("reply-topic", b"r")]
    if length is not None:
        headers.append(("inference-header-content-length", str(length).encode()))
    decoder = RequestDecoder({1: SIGNED}, model_name="m")
    found = decoder.decode(TP0, 1, [Rec(value, tuple(headers))])
    for failure in found.failures:
        assert failure.entry.reply_topic == "r"
        assert failure.error.detail.encode()


@quick
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "id",
                    "content-type",
                    "accept",
                    "priority",
                    "sequence-id",
                    "sequence-id-type",
                    "kafka_replyPartition",
                    "x-a",
                    "reply-topic",
                    "deadline-ms",
                    "attempt",
                    "other",
                ]
            ),
            st.one_of(st.none(), st.binary(max_size=20)),
        ),
        max_size=4,
    )
)
def test_B32_random_headers_never_raise_and_reply_addresses_survive(headers):
    value = avro.write_request(request())
    record = Rec(value, (*headers, ("kafka_replyTopic", b"r")))
    found = RequestDecoder({1: SIGNED}, model_name="m").decode(TP0, 1, [record])
    (one,) = [failure.entry for failure in found.failures] + found.by_version.get(1, [])
    assert one.reply_topic == "r"
    assert one.content_type in CONTENT_TYPES


@quick
@given(
    st.lists(st.floats(width=32), min_size=4, max_size=4),
    IDS,
    st.sampled_from([AVRO, BINARY, PROTOBUF, JSON]),
)
def test_all_formats_make_the_same_entry(values, name, content_type):
    value, headers = encode_request(
        InferRequest((fp32(*values),), id=name, sequence_id=7), content_type
    )
    decoder = RequestDecoder({1: signature()}, model_name="m")
    (one,) = decoder.decode(TP0, 1, [Rec(value, tuple(headers))]).by_version[1]
    np.testing.assert_array_equal(
        np.frombuffer(one.data[0], np.float32), np.array(values, np.float32)
    )
    assert (one.id, one.sequence_id, one.rows) == (name, 7, 1)
