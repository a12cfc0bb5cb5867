"""CloudEvents: what is written is read, by us and by the specification's own Python package; what is wrong is named."""

import base64
import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest
from headrace.schemas.cloudevents import (
    STRUCTURED,
    CloudEvent,
    read_event,
    time_of,
    write_binary,
    write_structured,
)
from headrace.schemas.errors import InvalidRequest, Reason, UndecodableRecord, Unsupported
from hypothesis import given, settings
from hypothesis import strategies as st

quick = settings(deadline=None, max_examples=150)

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cn", "Cs")), min_size=1, max_size=30
)
RFC_TIMES = st.one_of(
    st.integers(0, 253402300799999).map(time_of),
    st.sampled_from(["2026-01-31t23:59:59.123456789z", "1985-04-12T23:20:50.52-08:00"]),
)
TYPES = ("application/json", "application/vnd.api+json; charset=utf-8", "text/plain", "image/png")
OWN = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "specversion")
NAMES = st.text("abcxyz019", min_size=1, max_size=20).filter(
    lambda name: name not in (*OWN, "data")
)
JSON_DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
DATA = st.one_of(st.none(), st.binary(max_size=40), JSON_DATA)
VALUES = st.one_of(TEXT, st.booleans(), st.integers(-(2**31), 2**31 - 1))
EVENTS = st.builds(
    CloudEvent,
    id=TEXT,
    source=TEXT,
    type=TEXT,
    subject=st.just("") | TEXT,
    time=st.just("") | RFC_TIMES,
    data_content_type=st.sampled_from(("", *TYPES)),
    data_schema=st.just("") | TEXT,
    extensions=st.dictionaries(NAMES, VALUES, max_size=4),
    data=DATA,
)
EVENT = CloudEvent(
    id="7",
    source="headrace.meter.requests/0/41",
    type="org.headrace.result",
    subject="meter-7",
    time="2026-01-31T23:59:59.5Z",
    data_content_type="application/json",
    extensions={"partitionkey": "meter-7", "retries": 2, "late": False},
    data=b'{"level":0.5}',
)


def as_text(value):
    return json.dumps(value) if isinstance(value, bool) else str(value)


@quick
@given(EVENTS)
def test_events_in_binary_mode_are_read_equal_with_extensions_as_text(event):
    """Attribute for attribute; headers have no types."""
    expected = {name: as_text(value) for name, value in event.extensions.items()}
    assert read_event(*write_binary(event)) == replace(event, extensions=expected)


@quick
@given(EVENTS)
def test_events_in_structured_mode_are_read_equal(event):
    """Types of extensions too; JSON data comes back in one spelling, any other byte by byte."""
    value, headers = write_structured(event)
    found = read_event(value, headers)
    assert replace(found, data=None) == replace(event, data=None)
    if found.data != event.data:
        assert "json" in event.media_type
        assert json.loads(found.data) == json.loads(event.data)


def test_headers_of_a_binary_event_are_those_of_the_binding():
    """Names, order and texts, as another producer would write them."""
    assert write_binary(EVENT) == (
        b'{"level":0.5}',
        [
            ("content-type", b"application/json"),
            ("ce_specversion", b"1.0"),
            ("ce_id", b"7"),
            ("ce_source", b"headrace.meter.requests/0/41"),
            ("ce_type", b"org.headrace.result"),
            ("ce_subject", b"meter-7"),
            ("ce_time", b"2026-01-31T23:59:59.5Z"),
            ("ce_partitionkey", b"meter-7"),
            ("ce_retries", b"2"),
            ("ce_late", b"false"),
        ],
    )


def test_a_structured_event_is_the_formats_json():
    """JSON data stands in it as JSON, other data as Base64."""
    value, headers = write_structured(EVENT)
    assert headers == [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    assert json.loads(value) == {
        "specversion": "1.0",
        "id": "7",
        "source": "headrace.meter.requests/0/41",
        "type": "org.headrace.result",
        "subject": "meter-7",
        "time": "2026-01-31T23:59:59.5Z",
        "datacontenttype": "application/json",
        "partitionkey": "meter-7",
        "retries": 2,
        "late": False,
        "data": {"level": 0.5},
    }
    value, _ = write_structured(replace(EVENT, data=b"\x00\xff", data_content_type="image/png"))
    assert json.loads(value)["data_base64"] == base64.b64encode(b"\x00\xff").decode()


@pytest.mark.parametrize("data", [b"{", b"NaN", b'"\\ud800"', b"1e999", b"\xff", b"[" * 50_000])
def test_data_that_only_calls_itself_json_goes_byte_by_byte(data):
    """It is not ours to mend, and nothing may be lost of it."""
    event = replace(EVENT, data=data)
    value, headers = write_structured(event)
    assert read_event(value, headers) == event


def test_the_examples_of_the_specification_are_read():
    """The JSON format's own: XML as text, data without a content type, Base64."""

    def read(**members):
        document = {"specversion": "1.0", "type": "t", "source": "/s", "id": "A234", **members}
        return read_event(json.dumps(document).encode(), [("content-type", STRUCTURED.encode())])

    xml = '<much wow="xml"/>'
    found = read(datacontenttype="application/xml", data=xml, comexampleother=5, subject=None)
    assert (found.data, found.extensions, found.subject) == (
        xml.encode(),
        {"comexampleother": 5},
        "",
    )
    found = read(data={"appinfoA": "abc"})
    assert (found.data, found.media_type) == (b'{"appinfoA":"abc"}', "application/json")
    assert read(datacontenttype="application/json", data=None).data == b"null"
    assert read(datacontenttype="text/json", data="x").data == b'"x"'
    assert read(data_base64="AAE=", datacontenttype="image/png").data == b"\x00\x01"
    assert read().data is None


def test_a_binary_event_without_a_value_has_no_data():
    """A tombstone is an event too; headers of others are nobody's attributes."""
    headers = [*write_binary(EVENT)[1], ("id", b"another"), ("x-trace", None)]
    assert read_event(None, headers) == replace(
        EVENT, data=None, extensions={"partitionkey": "meter-7", "retries": "2", "late": "false"}
    )


def binary(**changes):
    """Return the headers of an event, some of them changed, those of None left out."""
    headers = dict(write_binary(EVENT)[1]) | changes
    return [(name, raw) for name, raw in headers.items() if raw is not ...]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ce_id": ...}, "attribute 'id' is missing, expected text that is not empty"),
        ({"ce_type": b""}, "attribute 'type' is '', expected text that is not empty"),
        ({"ce_subject": b""}, "attribute 'subject' is ''"),
        (
            {"ce_source": b"a\x00b"},
            r"attribute 'source' is 'a\x00b', expected text without control",
        ),
        ({"ce_source": b"\xff"}, r"header 'ce_source' is '\xff', expected UTF-8 text"),
        ({"ce_source": None}, "header 'ce_source' is null, expected UTF-8 text"),
        ({"ce_specversion": b"0.3"}, "attribute 'specversion' is '0.3', expected the text '1.0'"),
        ({"ce_specversion": ...}, "attribute 'specversion' is missing"),
        ({"ce_time": b"2026-13-01T00:00:00Z"}, "attribute 'time' is '2026-13-01T00:00:00Z'"),
        ({"ce_time": b"2026-01-01 00:00:00"}, "expected a time of RFC 3339"),
        ({"ce_Subject": b"x"}, "attribute 'Subject' is no extension's name, expected a-z and 0-9"),
        ({"ce_": b"x"}, "attribute '' is no extension's name"),
        ({"ce_datacontenttype": b"text/plain"}, "header 'ce_datacontenttype' is no attribute"),
    ],
)
def test_what_is_wrong_with_a_binary_event_is_named(changes, said):
    """One sentence: which attribute, its value, what was expected."""
    with pytest.raises(InvalidRequest) as refused:
        read_event(b"{}", binary(**changes))
    assert said in str(refused.value)
    assert refused.value.reason is Reason.INVALID_HEADER


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"id": None}, "attribute 'id' is missing"),
        ({"id": 7}, "attribute 'id' is 7, expected text"),
        ({"specversion": 1.0}, "attribute 'specversion' is 1.0, expected the text '1.0'"),
        ({"time": "yesterday"}, "attribute 'time' is 'yesterday'"),
        (
            {"weight": 1.5},
            "attribute 'weight' is 1.5, expected text, true or false, or an integer",
        ),
        ({"big": 2**31}, "attribute 'big' is 2147483648"),
        ({"tags": ["a"]}, "attribute 'tags' is ['a']"),
        ({"my_name": "x"}, "attribute 'my_name' is no extension's name"),
        ({"data_base64": "!"}, "attribute 'data_base64' is '!', expected Base64"),
        ({"data": 1, "data_base64": ""}, "'data' and 'data_base64' are both there"),
        (
            {"data": 5, "datacontenttype": "text/plain"},
            "attribute 'data' is 5, expected text where",
        ),
    ],
)
def test_what_is_wrong_with_a_structured_event_is_named(members, said):
    """As in binary mode."""
    document = json.loads(write_structured(replace(EVENT, data=None))[0]) | members
    with pytest.raises(InvalidRequest) as refused:
        read_event(json.dumps(document).encode(), [("content-type", STRUCTURED.encode())])
    assert said in str(refused.value)
    assert refused.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the value is no CloudEvent in JSON"),
        (b"", "the value is no CloudEvent in JSON"),
        (b"[]", "expected an object, got list"),
        (b"{", "the value is no CloudEvent in JSON"),
        (b'{"id": "\xff"}', "the value is no CloudEvent in JSON"),
        (b'{"a": ' * 50_000, "the value is no CloudEvent in JSON"),
    ],
)
def test_B32_a_structured_value_that_is_no_json_object_is_undecodable(value, said):
    """Whatever the bytes are."""
    with pytest.raises(UndecodableRecord, match=said):
        read_event(value, [("content-type", STRUCTURED.encode())])


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents+avro",
        "application/cloudevents-batch+json",
        "application/cloudevents+json; charset=utf-16",
    ],
)
def test_other_formats_of_events_are_refused_by_name(content_type):
    """They are never read as something else."""
    with pytest.raises(Unsupported, match=r"header 'content-type' is 'application/cloudevents"):
        read_event(b"{}", [("content-type", content_type.encode())])


@quick
@given(value=st.none() | st.binary(max_size=60), name=TEXT, raw=st.none() | st.binary(max_size=20))
def test_B32_any_bytes_are_an_event_or_an_error_of_ours(value, name, raw):
    """Nothing else comes out of a foreign record."""
    for headers in (
        [("content-type", STRUCTURED.encode())],
        binary(**{f"ce_{name}": raw}),
        binary(**{"content-type": raw}),
    ):
        with suppress(InvalidRequest, Unsupported):
            assert isinstance(read_event(value, headers), CloudEvent)


def test_an_event_cannot_be_made_wrong():
    """The writers need no checks of their own."""
    for wrong in (
        {"id": ""},
        {"time": "now"},
        {"extensions": {"id": "x"}},
        {"extensions": {"a": 0.5}},
    ):
        with pytest.raises(InvalidRequest, match="attribute"):
            replace(EVENT, **wrong)


def test_time_of_is_the_records_timestamp():
    """Milliseconds, in UTC."""
    assert time_of(1_769_903_999_005) == "2026-01-31T23:59:59.005Z"
    assert replace(EVENT, time=time_of(0)).time == "1970-01-01T00:00:00.000Z"


# The specification's own package.

PEERS = st.builds(
    CloudEvent,
    id=TEXT,
    source=TEXT,
    type=TEXT,
    subject=st.just("") | TEXT,
    time=st.integers(0, 253402300799).map(lambda second: time_of(second * 1_000)),
    data_content_type=st.sampled_from(TYPES[:2]),
    extensions=st.dictionaries(NAMES, TEXT, max_size=3),
    data=st.dictionaries(TEXT, st.integers(0, 9) | TEXT, max_size=3).map(
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    ),
)


def attributes(event):
    """Return an event's attributes as the package has them."""
    found = {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "specversion": "1.0",
        "datacontenttype": event.data_content_type,
        "time": datetime.fromisoformat(event.time),
        **event.extensions,
    }
    return found | ({"subject": event.subject} if event.subject else {})


@settings(deadline=None, max_examples=60)
@given(PEERS)
def test_the_package_reads_what_we_write_and_we_what_it_writes(event):
    """In both modes."""
    kafka = pytest.importorskip("cloudevents.core.bindings.kafka")
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent as Peer

    for write in (write_binary, write_structured):
        value, headers = write(event)
        found = kafka.from_kafka(kafka.KafkaMessage(dict(headers), None, value), JSONFormat())
        assert found.get_attributes() == attributes(event)
        assert found.get_data() == json.loads(event.data)

    peer = Peer(attributes(event), json.loads(event.data))
    for write in (kafka.to_binary, kafka.to_structured):
        message = write(peer, JSONFormat(), key_mapper=lambda _: None)
        found = read_event(message.value, list(message.headers.items()))
        assert attributes(found) == attributes(event)
        assert json.loads(found.data) == json.loads(event.data)
