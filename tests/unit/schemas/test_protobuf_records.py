"""Protobuf records of other people, by a descriptor set (FAULTS B35)."""

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from headrace.schemas.errors import ConfigError, UndecodableRecord, Unsupported
from headrace.schemas.framing import framed
from headrace.schemas.protobuf_records import ProtobufRecords
from proto_kit import LAST, LINE, MESSAGE, files, message_class

SET = files().SerializeToString()
DEFAULTS = {
    **dict.fromkeys(("i32", "i64", "u32", "u64", "s64", "x32"), 0),
    **dict.fromkeys(("d", "f"), 0.0),
    "many": [],
    "lines": [],
    "b": False,
    "s": "",
    "y": b"",
    "color": "NONE",
    "counts": {},
}


def test_a_message_is_its_fields_and_those_with_presence_may_be_missing():
    orders = ProtobufRecords(SET, MESSAGE)
    assert orders.read(b"") == DEFAULTS
    order = message_class(MESSAGE)(i64=-(2**62), s="é", y=b"\xff", color=1, many=[1, 2], has=0)
    order.lines.add(sku="a", price=1.5)
    order.at.FromJsonString("2023-11-14T22:13:20.123456Z")
    order.took.FromMilliseconds(-1500)
    order.maybe.value = 0.0
    order.free.update({"a": [1, None, "x"]})
    order.counts["a"] = 3
    order.parent.parent.s = "deep"
    assert orders.read(order.SerializeToString()) == {
        **DEFAULTS,
        "i64": -(2**62),
        "s": "é",
        "y": b"\xff",
        "color": "RED",
        "many": [1, 2],
        "has": 0,
        "lines": [{"sku": "a", "price": 1.5}],
        "at": 1_700_000_000_123,
        "took": -1500,
        "maybe": 0.0,
        "free": {"a": [1.0, None, "x"]},
        "counts": {"a": 3},
        "parent": {**DEFAULTS, "parent": {**DEFAULTS, "s": "deep"}},
    }


def test_an_unknown_enumeration_is_its_number_and_an_unknown_field_is_passed_over():
    order = message_class(MESSAGE)(color=9)
    value = order.SerializeToString() + b"\xf8\x07\x01"
    assert ProtobufRecords(SET, MESSAGE).read(value) == {**DEFAULTS, "color": 9}


@pytest.mark.parametrize(
    ("message", "index", "value"),
    [
        (MESSAGE, b"\x00", {"i32": 5}),
        (MESSAGE, b"\x02\x00", {"i32": 5}),
        (LAST, b"\x02\x02", {"a": 5}),
        (LINE, b"\x04\x00\x00", {"sku": "x", "price": 2.0}),
    ],
)
def test_B35_framed_messages_are_told_by_their_index(message, index, value):
    """Seven bytes and more stand before a message that is inside of another one."""
    records = ProtobufRecords(SET, message, is_framed=True)
    body = message_class(message)(**value).SerializeToString()
    found = records.read(framed(42) + index + body)
    assert found == (DEFAULTS if message == MESSAGE else {}) | value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "first byte is missing"),
        (b"\x08\x05\x00\x00\x00\x00", "first byte is 8"),
        (b"\x00\x00\x00", "followed by 2 bytes"),
        (framed(1), "ends within the index"),
        (framed(1) + b"\x02", "ends within the index"),
        (framed(1) + b"\x01\x00", "has -1 numbers"),
        (framed(1) + b"\xff\xff\xff\x0f\x00", "numbers, expected 1 to 32"),
        (framed(1) + b"\xff\xff\xff\xff\xff\xff\x0f", "ends within the index|malformed"),
        (framed(1) + b"\x02\x02", r"index \[1\] \(shop\.Last\), expected \[0\] \(shop\.Order\)"),
        (framed(1) + b"\x04\x00\x00", r"index \[0, 0\] \(shop\.Order\.Line\)"),
        (framed(1) + b"\x02\x0a", r"index \[5\], expected"),
        (framed(1) + b"\x00\xff\xff", "no Protobuf message shop.Order"),
    ],
)
def test_B35_what_is_framed_otherwise_is_refused(value, why):
    with pytest.raises(UndecodableRecord, match=why):
        ProtobufRecords(SET, MESSAGE, is_framed=True).read(value)


@pytest.mark.parametrize(
    ("descriptors", "message", "why"),
    [
        (b"\xff", MESSAGE, "expected a descriptor set"),
        (SET, "shop.Ordr", "no such message, expected shop.Order"),
        (files(imports=False).SerializeToString(), MESSAGE, "lacks google/protobuf/timestamp.proto"),
        (b"", MESSAGE, "no such message"),
    ],
)  # fmt: skip
def test_a_descriptor_set_that_cannot_be_used_says_why(descriptors, message, why):
    with pytest.raises(ConfigError, match=why):
        ProtobufRecords(descriptors, message)


def test_files_may_stand_in_any_order():
    found = files()
    turned = FileDescriptorSet(file=list(reversed(found.file)))
    assert ProtobufRecords(turned.SerializeToString(), MESSAGE).read(b"") == DEFAULTS


def test_results_are_not_written():
    with pytest.raises(Unsupported, match="not written in Protobuf"):
        ProtobufRecords(SET, MESSAGE).write({})
