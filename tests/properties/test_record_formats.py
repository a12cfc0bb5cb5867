"""What other people's libraries write is read equal, whatever the schema; whatever the bytes, an error is typed."""

import io
import json

import fastavro
import pytest
from google.protobuf import json_format
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.avro_results import result_schema
from headrace.schemas.errors import InferError
from headrace.schemas.framing import framed, message_index, schema_id
from headrace.schemas.mapping_format import ResultField
from headrace.schemas.protobuf_records import ProtobufRecords
from headrace.schemas.tensor import Datatype
from hypothesis import given, settings
from hypothesis import strategies as st
from proto_kit import MESSAGE, SCALARS, files, message_class

few = settings(max_examples=40, deadline=None)
FLOATS = st.floats(allow_nan=False, width=32)
PRIMITIVES = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": FLOATS,
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}
NAMES = st.sampled_from(["a", "b2", "camelCase", "snake_case", "type", "name", "X", "_"])


@st.composite
def typed(draw, depth: int = 3):
    """Return an Avro type and a strategy of its values."""
    kinds = [*PRIMITIVES, "fixed", "enum"]
    kind = draw(st.sampled_from([*kinds, *(["array", "map", "union", "record"] if depth else [])]))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    name = f"T{draw(st.uuids()).hex}"
    if kind == "fixed":
        size = draw(st.integers(1, 5))
        return {"type": kind, "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        symbols = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        return {"type": kind, "name": name, "symbols": symbols}, st.sampled_from(symbols)
    return draw(records(depth - 1)) if kind == "record" else draw(nested(kind, depth - 1))


@st.composite
def nested(draw, kind: str, depth: int):
    """Return a type that is made of another one, and a strategy of its values."""
    inner, values = draw(typed(depth))
    if kind == "array":
        return {"type": kind, "items": inner}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": kind, "values": inner}, st.dictionaries(NAMES, values, max_size=3)
    inner = inner if isinstance(inner, list) else [inner]
    return ["null", *(b for b in inner if b != "null")], st.none() | values


@st.composite
def records(draw, depth: int = 3):
    """Return a record's schema and a strategy of its values."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    fields = {name: draw(typed(depth)) for name in names}
    schema = {
        "type": "record",
        "name": f"R{draw(st.uuids()).hex}",
        "fields": [{"name": name, "type": kind} for name, (kind, _) in fields.items()],
    }
    return schema, st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})


def written(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@few
@given(data=st.data(), schema_id=st.integers(0, 2**32 - 1))
def test_B34_what_fastavro_writes_is_read_equal(data, schema_id):
    schema, values = data.draw(records())
    value = data.draw(values)
    body = written(schema, value)
    text = json.dumps(schema)
    plain = PlainAvro(text)
    assert plain.read(body) == value
    assert plain.read(plain.write(value)) == value
    framed_ones = FramedAvro(text, writes_as=schema_id)
    block = [framed(schema_id) + body, framed_ones.write(value)]
    assert framed_ones.missing(block) == {schema_id}
    framed_ones.learn(schema_id, text)
    assert [framed_ones.read(one) for one in block] == [value, value]


@few
@given(data=st.data())
def test_B34_a_newer_reader_sees_its_own_fields_whatever_the_writer_had(data):
    """Fields come, with a default, and go, in any order: all records have the reader's."""
    schema, values = data.draw(records(2))
    value = data.draw(values)
    kept = data.draw(st.lists(st.sampled_from(schema["fields"]), unique_by=lambda f: f["name"]))
    added = [
        {"name": f"new{at}", "type": ["null", "string"], "default": None}
        for at in range(data.draw(st.integers(0, 3)))
    ]
    fields = data.draw(st.permutations([*kept, *added]))
    orders = FramedAvro(json.dumps({**schema, "fields": fields}))
    orders.learn(1, json.dumps(schema))
    read = orders.read(framed(1) + written(schema, value))
    assert read == {
        **{field["name"]: value[field["name"]] for field in kept},
        **{field["name"]: None for field in added},
    }


def changed(draw, field: dict) -> dict:
    """Return a field with another type or name that may or may not be readable as the old one."""
    kind = field["type"]
    others = ["double", "long", ["null", "long"], ["null", "string"], ["long", "null", "double"]]
    if not isinstance(kind, list):
        others += [["null", kind], [kind, "null"]] * (kind != "null")
    return draw(
        st.sampled_from(
            [
                {**field, "name": "other", "aliases": [field["name"]]},
                *({**field, "type": other} for other in others),
            ]
        )
    )


@few
@given(data=st.data())
def test_B34_whatever_changes_a_record_is_read_as_fastavro_resolves_it(data):
    """Most changes are resolved once for all records, not with each; nobody can tell by the values."""
    schema, values = data.draw(records(2))
    value = data.draw(values)
    fields = [field for field in schema["fields"] if data.draw(st.booleans())]
    fields = [changed(data.draw, f) if data.draw(st.booleans()) else f for f in fields]
    fields = list({field["name"]: field for field in fields}.values())
    reader = {**schema, "fields": fields}
    body = written(schema, value)
    orders = FramedAvro(json.dumps(reader))
    orders.learn(1, json.dumps(schema))
    try:
        expected = fastavro.schemaless_reader(
            io.BytesIO(body), fastavro.parse_schema(schema), fastavro.parse_schema(reader)
        )
    except fastavro.read.SchemaResolutionError:
        with pytest.raises(InferError, match="cannot be read as the mapping's"):
            orders.read(framed(1) + body)
    else:
        read = orders.read(framed(1) + body)
        assert read == expected
        assert {k: type(v) for k, v in read.items()} == {k: type(v) for k, v in expected.items()}


@few
@given(data=st.data(), noise=st.binary(max_size=40))
def test_B35_any_bytes_are_read_or_refused_with_a_typed_error(data, noise):
    schema, values = data.draw(records(2))
    text = json.dumps(schema)
    orders = FramedAvro(text)
    orders.learn(1, text)
    body = written(schema, data.draw(values))
    cut = data.draw(st.integers(0, len(body)))
    orders_of_proto = ProtobufRecords(SET, MESSAGE, is_framed=True)
    for value in (noise, body[:cut] + noise, framed(1) + body[:cut] + noise, framed(1) + noise):
        for read in (PlainAvro(text).read, orders.read, PROTO.read, orders_of_proto.read):
            try:
                read(value)
            except InferError as error:
                assert error.detail  # noqa: PT017  # either way is right


SET = files().SerializeToString()
PROTO = ProtobufRecords(SET, MESSAGE)
Order = message_class(MESSAGE)
VALUES = {
    **dict.fromkeys(("i64", "s64"), PRIMITIVES["long"]),
    **dict.fromkeys(("u32", "x32"), st.integers(0, 2**32 - 1)),
    "d": PRIMITIVES["double"],
    "f": FLOATS,
    "i32": PRIMITIVES["int"],
    "u64": st.integers(0, 2**64 - 1),
    "b": PRIMITIVES["boolean"],
    "s": PRIMITIVES["string"],
    "y": PRIMITIVES["bytes"],
}


@few
@given(
    scalars=st.fixed_dictionaries({}, optional=VALUES),
    many=st.lists(PRIMITIVES["long"], max_size=4),
    counts=st.dictionaries(st.text(max_size=4), PRIMITIVES["int"], max_size=3),
)
def test_what_protobuf_writes_is_read_equal(scalars, many, counts):
    order = Order(**scalars, many=many, counts=counts)
    body = order.SerializeToString()
    read = PROTO.read(body)
    assert {name: read[name] for name in SCALARS} == {
        name: getattr(order, name) for name in SCALARS
    }
    assert (read["many"], read["counts"]) == (many, counts)
    listed = json_format.MessageToDict(
        order, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert read.keys() == listed.keys()
    assert ProtobufRecords(SET, MESSAGE, is_framed=True).read(framed(3) + b"\x00" + body) == read


@few
@given(index=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=32), tail=st.binary())
def test_B35_a_message_index_of_any_length_is_read_to_its_end(index, tail):
    def zigzag(number: int) -> bytes:
        rest = (number << 1) ^ (number >> 31)
        found = bytearray()
        while rest > 0x7F:
            found.append(rest & 0x7F | 0x80)
            rest >>= 7
        return bytes([*found, rest])

    value = framed(9) + zigzag(len(index)) + b"".join(map(zigzag, index))
    assert schema_id(value + tail) == 9
    assert message_index(value + tail) == (tuple(index), len(value))


RESULTS = {
    Datatype.BOOL: st.booleans(),
    Datatype.INT8: st.integers(-128, 127),
    Datatype.UINT32: st.integers(0, 2**32 - 1),
    Datatype.INT64: PRIMITIVES["long"],
    Datatype.FP32: FLOATS,
    Datatype.FP64: PRIMITIVES["double"],
    Datatype.BYTES: PRIMITIVES["bytes"],
}
ANY = st.booleans() | PRIMITIVES["long"] | PRIMITIVES["double"] | PRIMITIVES["string"]


@few
@given(data=st.data(), name=st.text(max_size=10))
def test_results_of_any_outputs_are_written_by_the_schema_that_is_made_of_them(data, name):
    fields, expected = [], {}
    for field in data.draw(st.lists(NAMES, unique=True, max_size=6)):
        datatype = data.draw(st.sampled_from([None, *RESULTS]))
        levels = data.draw(st.integers(0, 2))
        values = ANY if datatype is None else RESULTS[datatype]
        for _ in range(min(levels, 1) if datatype is None else levels):
            values = st.lists(values, max_size=3)
        expected[field] = data.draw(st.none() | values)
        fields.append(ResultField(field, datatype, (-1,) * levels))
    best = [{"label": "cat", "index": 3, "score": 0.1}, {"label": None, "index": 0, "score": 0.0}]
    fields.append(ResultField("best_classes", None, is_classes=True))
    expected["best_classes"] = data.draw(st.sampled_from([None, [], best]))
    plain = PlainAvro(result_schema(name, fields))
    assert plain.read(plain.write(expected)) == expected
    assert plain.read(plain.write({})) == dict.fromkeys(expected)
