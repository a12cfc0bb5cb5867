"""A path that no record can have is refused at start, where the format says which fields there are."""

import json

import pytest
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping_fields import check_fields, in_order
from headrace.schemas.mapping_json import JsonFormat, RawFormat
from headrace.schemas.protobuf_records import ProtobufRecords
from mapping_kit import SOURCE, mapped
from proto_kit import LAST, MESSAGE, files, message_class

CARD = {
    "type": "record",
    "name": "Card",
    "fields": [{"name": "age", "type": "int"}, {"name": "at", "type": ["null", "long"]}],
}
CASH = {"type": "record", "name": "Cash", "fields": [{"name": "coins", "type": "int"}]}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "namespace": "shop",
        "fields": [
            {"name": "amount", "type": {"type": "double"}},
            {"name": "card", "type": ["null", CARD], "default": None},
            {"name": "second", "type": "Card"},
            {"name": "means", "type": [CASH, "Card", "string"]},
            {"name": "items", "type": {"type": "array", "items": "Card"}},
            {"name": "more", "type": {"type": "map", "values": "Card"}},
        ],
    }
)
AVRO = PlainAvro(SCHEMA)
PROTOBUF = ProtobufRecords(files().SerializeToString(), MESSAGE)


def mapping(path, rest="", source=SOURCE):
    return mapped(f'{source}[inputs.x]\nfield = "{path}"\n{rest}')


@pytest.mark.parametrize(
    ("known", "paths"),
    [
        (AVRO, "amount card card.age second.at means.coins means.age items items[3].age"),
        (AVRO, "more.anything.age more"),
        (FramedAvro(SCHEMA), "card.age"),
        (FramedAvro(), "whatever.there[0].is"),
        (PROTOBUF, "d lines lines[0].sku at maybe has parent.parent.parent.s"),
        (PROTOBUF, "free.any.thing counts.any"),
        (JsonFormat(), "whatever.there[0].is"),
        (RawFormat(), "value"),
    ],
)
def test_what_a_record_may_have_is_taken(known, paths):
    for path in paths.split():
        check_fields(mapping(path), known.names)


@pytest.mark.parametrize(
    ("known", "path", "words"),
    [
        (AVRO, "amuont", "no field 'amuont' there, did you mean 'amount'?"),
        (AVRO, "x", "expected one of amount, card, second, means, items, more"),
        (AVRO, "card.aeg", "no field 'aeg' there, did you mean 'age'?"),
        (AVRO, "second.x", "expected one of age, at"),
        (AVRO, "means.coin", "did you mean 'coins'?"),
        (AVRO, "items[0].x", "expected one of age, at"),
        (AVRO, "items.age", "no field 'age' there, nothing is inside of 'items'"),
        (AVRO, "amount.x", "nothing is inside of 'amount'"),
        (AVRO, "card.age.x", "nothing is inside of 'age'"),
        (AVRO, "more.anything.x", "expected one of age, at"),
        (FramedAvro(SCHEMA), "amuont", "did you mean 'amount'?"),
        (PROTOBUF, "lines[0].skew", "did you mean 'sku'?"),
        (PROTOBUF, "lines.sku", "nothing is inside of 'lines'"),
        (PROTOBUF, "parent.parent.colour", "did you mean 'color'?"),
        (PROTOBUF, "at.seconds", "nothing is inside of 'at'"),
        (PROTOBUF, "maybe.value", "nothing is inside of 'maybe'"),
        (PROTOBUF, "counts.a.b", "nothing is inside of 'a'"),
        (ProtobufRecords(files().SerializeToString(), LAST), "b", "expected a"),
        (RawFormat(), "vlaue", "did you mean 'value'?"),
        (RawFormat(), "value.x", "nothing is inside of 'value'"),
    ],
)
def test_what_no_record_can_have_is_refused_with_the_nearest_name(known, path, words):
    with pytest.raises(ConfigError) as caught:
        check_fields(mapping(path), known.names)
    said = str(caught.value)
    assert said.startswith(f"fraud.toml: inputs.x = {path}: ")
    assert words in said


@pytest.mark.parametrize(
    ("rest", "where"),
    [
        ('[request]\nid = "bad"', "request.id"),
        ('[request]\nversion = "bad"', "request.version"),
        ('[request]\npriority = "bad"', "request.priority"),
        ('[sequence]\nid = { field = "bad" }', "sequence.id"),
        ('[sequence]\nid = "key"\nstart = { field = "bad", equals = 1 }', "sequence.start"),
        ('[sequence]\nid = "key"\nend = { field = "bad", equals = 1 }', "sequence.end"),
        ('[results]\npass = ["bad"]', "results.pass"),
        ('[inputs.y]\nfields = ["amount", { path = "bad", default = 1 }]', "inputs.y"),
    ],
)
def test_wherever_a_mapping_names_it(rest, where):
    with pytest.raises(ConfigError) as caught:
        check_fields(mapping("amount", rest), AVRO.names)
    assert str(caught.value).startswith(f"fraud.toml: {where} = bad: ")


def test_an_events_attributes_are_its_own():
    events = SOURCE.replace("offset_reset", "cloudevents = true\noffset_reset")
    rest = '[request]\nid = "cloudevent.id"'
    check_fields(mapping("amount", rest, events), AVRO.names)
    with pytest.raises(ConfigError, match=r"request\.id"):
        check_fields(mapping("amount", rest), AVRO.names)


def test_a_record_stands_in_its_schemas_order():
    order = message_class(MESSAGE)(s="x", d=1.5, i32=2)
    order.parent.i64 = 7
    order.free.update({"b": 1, "a": 2})
    found = in_order(PROTOBUF.read(order.SerializeToString()), PROTOBUF.names)
    assert list(found) == [name for name in PROTOBUF.names(()) if name in found]
    assert list(found)[-2:] == ["counts", "parent"]
    assert list(found["parent"])[:4] == ["d", "f", "i32", "i64"]
    record = {"more": {"z": {"at": 1, "age": 2}, "y": {}}, "amount": 1.0}
    assert str(in_order(record, AVRO.names)) == (
        "{'amount': 1.0, 'more': {'z': {'age': 2, 'at': 1}, 'y': {}}}"
    )
    assert in_order(record, JsonFormat().names) == record
