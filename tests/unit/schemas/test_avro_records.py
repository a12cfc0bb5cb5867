"""Avro records of other people: framing, schemas of writer and reader, what is refused (FAULTS B34, B35)."""

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pytest
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.avro_schema import read_schema, with_references
from headrace.schemas.errors import (
    ConfigError,
    InvalidRequest,
    Reason,
    SchemaNeeded,
    UndecodableRecord,
)
from headrace.schemas.framing import framed


def record(name: str, *fields: tuple, **more) -> str:
    """Return the text of a record's schema: fields are name, type and, if there is one, default."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": made, **more})


def written(schema: str, value: dict) -> bytes:
    """Return what fastavro writes."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


V1 = record("Order", ("id", "long"), ("price", "double"))
V2 = record("Order", ("id", "long"), ("price", "double"), ("note", ["null", "string"], None))


def test_B34_old_records_get_the_new_schemas_default():
    """With the new schema alone they could not be read; the writer's schema comes by its id."""
    orders = FramedAvro(V2)
    old = framed(1) + written(V1, {"id": 7, "price": 1.5})
    new = framed(2) + written(V2, {"id": 8, "price": 2.5, "note": "gift"})
    assert orders.missing([old, new, None, b"", old]) == {1, 2}
    orders.learn(1, V1)
    orders.learn(2, V2)
    assert orders.missing([old, new]) == set()
    assert orders.read(old) == {"id": 7, "price": 1.5, "note": None}
    assert orders.read(new) == {"id": 8, "price": 2.5, "note": "gift"}


def test_B34_without_a_schema_of_ones_own_each_record_is_what_its_writer_wrote():
    orders = FramedAvro()
    orders.learn(1, V1)
    orders.learn(2, V2)
    assert orders.read(framed(1) + written(V1, {"id": 7, "price": 1.5})) == {"id": 7, "price": 1.5}
    new = framed(2) + written(V2, {"id": 8, "price": 2.5, "note": "gift"})
    assert orders.read(new) == {"id": 8, "price": 2.5, "note": "gift"}


def test_B34_an_unknown_id_is_an_error_of_its_own_and_one_not_fetched_yet_is_none_of_the_records():
    orders = FramedAvro(V2)
    value = framed(9) + b"\x00"
    with pytest.raises(SchemaNeeded) as needed:
        orders.read(value)
    assert (needed.value.schema_id, needed.value.retriable) == (9, True)
    orders.learn(9, None)
    with pytest.raises(UndecodableRecord, match="schema 9, and the registry has none") as unknown:
        orders.read(value)
    assert unknown.value.reason is Reason.UNKNOWN_SCHEMA
    assert orders.missing([value]) == set()
    orders.forget()
    assert orders.missing([value]) == {9}, "it may have come since"


def test_B35_plain_records_may_begin_with_a_zero_byte():
    """Byte 0 is 0: a stripper that guesses would take five bytes off."""
    schema = record("R", ("a", "long"), ("b", "string"))
    value = written(schema, {"a": 0, "b": "abcdefgh"})
    assert value[0] == 0
    assert PlainAvro(schema).read(value) == {"a": 0, "b": "abcdefgh"}


def test_B35_framed_records_are_told_by_their_first_byte():
    orders = FramedAvro(V1)
    orders.learn(1, V1)
    plain = written(V1, {"id": 7, "price": 1.5})
    for bad, begin in (
        (plain, "its first byte is 14"),
        (b"", "its first byte is missing"),
        (b"\x00\x00\x00", "is followed by 2 bytes"),
    ):
        assert orders.missing([bad]) == set()
        with pytest.raises(UndecodableRecord, match=begin):
            orders.read(bad)


def test_B35_framed_protobuf_is_never_taken_for_avro():
    """A message index of several entries stands where Avro would have its record; the schema is no JSON at all."""
    orders = FramedAvro(V1)
    orders.learn(3, 'syntax = "proto3"; message M { message N { int32 a = 1; } }')
    with pytest.raises(UndecodableRecord, match="schema 3 of the registry, which cannot be used"):
        orders.read(framed(3) + b"\x04\x02\x00" + b"\x08\x07")


def test_more_behind_a_record_and_less_than_one_are_errors():
    orders = PlainAvro(V1)
    value = written(V1, {"id": 7, "price": 1.5})
    with pytest.raises(UndecodableRecord, match="9 bytes with more behind it"):
        orders.read(value + b"\x00")
    with pytest.raises(UndecodableRecord, match="no Avro record 'Order'"):
        orders.read(value[:-1])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (record("Order", ("id", "string"), ("price", "double")), "long is not|string"),
        (record("Order", ("id", "long"), ("price", "double"), ("more", "int")), "more"),
        (record("Parcel", ("id", "long"), ("price", "double")), "'Parcel'"),
    ],
)
def test_a_schema_that_does_not_fit_says_which(other, why):
    orders = FramedAvro(other)
    orders.learn(1, V1)
    with pytest.raises(UndecodableRecord, match="cannot be read as the mapping's") as error:
        orders.read(framed(1) + written(V1, {"id": 7, "price": 1.5}))
    assert error.match(why)
    assert len(error.value.detail) < 400


@pytest.mark.parametrize(
    "reader",
    [
        record("Order", ("price", ["null", "double"]), ("id", "long"), ("more", "int", 3)),
        record("Order", ("id", ["null", "double"]), ("price", "double")),
        record("Order", ("price", "double"), ("cost", "double", -1.0)).replace(
            '"name": "cost"', '"name": "cost", "aliases": ["price"]'
        ),
    ],
)
def test_what_is_resolved_once_is_what_fastavro_resolves_with_each_record(reader):
    value = written(V1, {"id": 7, "price": 1.5})
    orders = FramedAvro(reader)
    orders.learn(1, V1)
    schemas = [fastavro.parse_schema(json.loads(text)) for text in (V1, reader)]
    expected = fastavro.schemaless_reader(io.BytesIO(value), *schemas)
    assert repr(sorted(orders.read(framed(1) + value).items())) == repr(sorted(expected.items()))


def test_what_java_notes_in_a_schema_changes_nothing():
    """Its classes' schemas say which class holds texts; such a schema is the same, and needs no resolution."""
    noted = record("R", ("s", {"type": "string", "avro.java.string": "String"}), doc="by Java")
    plain = record("R", ("s", "string"))
    assert read_schema(noted).canonical == read_schema(plain).canonical
    orders = FramedAvro(plain)
    orders.learn(1, noted)
    assert orders.read(framed(1) + written(noted, {"s": "x"})) == {"s": "x"}


def test_aliases_renamed_and_reordered_fields_are_resolved():
    newer = record("Parcel", ("cost", "double"), ("id", "long"), aliases=["Order"])
    newer = newer.replace('"name": "cost"', '"name": "cost", "aliases": ["price"]')
    orders = FramedAvro(newer)
    orders.learn(1, V1)
    value = framed(1) + written(V1, {"id": 7, "price": 1.5})
    assert orders.read(value) == {"cost": 1.5, "id": 7}


LOGICAL = {
    "ms": ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_123),
    "us": ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_123),
    "time": ({"type": "long", "logicalType": "time-micros"}, 3_723_004),
    "day": ({"type": "int", "logicalType": "date"}, 19_675),
    "dec": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, -12.34),
    "fix": (
        {
            "type": "fixed",
            "name": "F",
            "size": 8,
            "logicalType": "decimal",
            "precision": 9,
            "scale": 1,
        },
        0.5,
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, "12345678-1234-5678-1234-567812345678"),
}
OBJECTS = {
    "ms": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
    "us": dt.datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=dt.UTC),
    "time": dt.time(1, 2, 3, 4_567),
    "day": dt.date(2023, 11, 14),
    "dec": Decimal("-12.34"),
    "fix": Decimal("0.5"),
    "uuid": "12345678-1234-5678-1234-567812345678",
}


def test_logical_types_are_what_people_write_in_json_wherever_they_stand():
    inner = json.loads(record("In", *((name, kind) for name, (kind, _) in LOGICAL.items())))
    micros = LOGICAL["us"][0]
    schema = record(
        "R",
        ("one", inner),
        ("again", "In"),
        ("list", {"type": "array", "items": micros}),
        ("map", {"type": "map", "values": ["null", micros]}),
        ("either", ["null", "string", "In", {"type": "array", "items": micros}]),
    )
    expected = {name: value for name, (_, value) in LOGICAL.items()}
    us, us_read = OBJECTS["us"], LOGICAL["us"][1]
    for either, read in (("x", "x"), (None, None), (OBJECTS, expected), ([us], [us_read])):
        value = {
            "one": OBJECTS,
            "again": OBJECTS,
            "list": [us, us],
            "map": {"a": us, "b": None},
            "either": either,
        }
        assert PlainAvro(schema).read(written(schema, value)) == {
            "one": expected,
            "again": expected,
            "list": [us_read, us_read],
            "map": {"a": us_read, "b": None},
            "either": read,
        }


def test_a_converted_default_is_converted_once():
    """What fastavro hands out as a default is the schema's own object."""
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    inner = json.loads(record("In", ("t", micros)))
    orders = FramedAvro(
        record("R", ("a", "int"), ("i", inner, {"t": 5000}), ("y", "bytes", "\u00ff"))
    )
    orders.learn(1, record("R", ("a", "int")))
    for _ in range(3):
        assert orders.read(framed(1) + b"\x02") == {"a": 1, "i": {"t": 5}, "y": b"\xff"}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "no Avro schema"),
        ('"int"', "not that of a record"),
        ('["null", "int"]', "not that of a record"),
        ('{"type": "object", "properties": {}}', "no Avro schema"),
        ('{"type": "record", "fields": []}', "no Avro schema"),
        (record("R", ("a", "nothing")), "nothing"),
        (record("N", ("next", ["null", "N"])), "contains itself"),
        (record("R", ("a", {"type": "array", "items": "null"})), "take no bytes"),
        (
            record("R", ("a", {"type": "array", "items": json.loads(record("E"))})),
            "take no bytes",
        ),
        (
            record("R", ("a", {"type": "bytes", "logicalType": "decimal", "precision": 999, "scale": 999})),
            "scale 999",
        ),
        ("[" * 100_000, "no Avro schema"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used_say_why(schema, why):
    with pytest.raises(InvalidRequest, match=why):
        read_schema(schema)
    with pytest.raises(ConfigError, match=why):
        PlainAvro(schema)
    orders = FramedAvro(V1)
    orders.learn(1, schema)
    with pytest.raises(UndecodableRecord, match="cannot be used") as error:
        orders.read(framed(1) + b"\x00")
    assert error.match(why)


def test_a_schema_that_is_too_deep_is_refused():
    deep: object = "int"
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="more than 64 levels"):
        read_schema(record("R", ("a", deep)))


def test_only_so_many_are_known():
    orders = FramedAvro(max_readers=2)
    for number in range(4):
        orders.learn(number, V1)
    block = list(map(framed, range(4)))
    assert orders.missing(block) == set(), "a block may have more of them"
    orders.forget()
    assert orders.missing(block) == {0, 1}


def test_references_are_written_where_they_are_used_first():
    money = record("Money", ("amount", "long"), namespace="shop")
    line = record("Line", ("price", "shop.Money"), ("tax", "shop.Money"), namespace="shop")
    order = record("Order", ("lines", {"type": "array", "items": "shop.Line"}), namespace="shop")
    whole = with_references(order, {"shop.Line": line, "shop.Money": money})
    value = {"lines": [{"price": {"amount": 5}, "tax": {"amount": 1}}]}
    assert PlainAvro(whole).read(PlainAvro(whole).write(value)) == value
    assert "fastavro" not in whole
    with pytest.raises(InvalidRequest, match=r"shop\.Money"):
        with_references(order, {"shop.Line": line})


def test_what_is_written_is_framed_and_read_back():
    orders = FramedAvro(V2, writes_as=77)
    value = orders.write({"id": 7, "price": 1.5})
    assert value[:5] == b"\x00\x00\x00\x00\x4d"
    orders.learn(77, V2)
    assert orders.read(value) == {"id": 7, "price": 1.5, "note": None}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": 2**63, "price": 1.0}, "'id' of the result is 9223372036854775808, expected .* long"),
        ({"id": 1, "price": "x" * 999}, "'price' of the result is 'x{59}… ?, expected .* double"),
        ({"id": 1, "price": 1.0, "note": 5}, "'note' of the result is 5, expected .* null or string"),
        ({"price": 1.0}, "'id' of the result is None, expected .* long"),
    ],
)  # fmt: skip
def test_what_a_field_cannot_hold_is_named(wrong, why):
    with pytest.raises(InvalidRequest, match=why):
        PlainAvro(V2).write(wrong)
