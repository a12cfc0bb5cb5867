"""CloudEvents in, CloudEvents out, where the mapping says so."""

import json

import numpy as np
import pytest
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.cloudevents import CloudEvent, read_event, write_binary, write_structured
from headrace.schemas.errors import ConfigError, SchemaNeeded
from headrace.schemas.mapping_encoder import MappingErrors
from headrace.schemas.mapping_events import read_event_fields
from headrace.schemas.mapping_json import JsonFormat
from mapping_kit import FIELDS, GOOD, SOURCE, decode_one, decoder, encoder, fail_one, mapped, plan
from wire_kit import TP0, Rec, signature

EVENTS = FIELDS.replace("offset_reset", "cloudevents = true\noffset_reset") + (
    '[request]\nid = "cloudevent.id"\n[results]\npass = ["cloudevent.subject"]\n'
)
OUT = EVENTS + '[results.cloudevent]\nmode = "MODE"\ntype = "payment.scored"\nsource = "/fraud"\n'
GIVEN = CloudEvent(
    id="e-1",
    source="/shop",
    type="payment.made",
    subject="card-9",
    data_content_type="application/json",
    extensions={"tenant": "a"},
    data=json.dumps(GOOD).encode(),
)


def event_record(write, event=GIVEN):
    value, headers = write(event)
    return Rec(value, tuple(headers), offset=5)


@pytest.mark.parametrize("write", [write_binary, write_structured])
def test_the_data_is_the_record_and_attributes_are_fields(write):
    entry = decode_one(EVENTS, event_record(write))
    assert (entry.id, entry.passed) == ("e-1", ("card-9",))
    assert np.frombuffer(entry.data[0], "<f4").tolist() == [1, 2.5, -3, 4000]
    fields = read_event_fields(event_record(write), JsonFormat().read)
    assert fields["cloudevent"]["tenant"] == "a"


def test_what_is_no_event_is_answered():
    good = event_record(write_binary)
    failure = fail_one(EVENTS, Rec(json.dumps(GOOD).encode()), good=good)
    assert failure.error.detail.startswith("attribute 'specversion' is missing")
    failure = fail_one(
        EVENTS, event_record(write_binary, CloudEvent("i", "s", "t", data=b"?")), good=good
    )
    assert failure.error.detail


def test_a_null_value_is_passed_over_as_elsewhere():
    assert len(decoder(EVENTS).decode(TP0, 1, [Rec(None)]).skipped) == 1


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_results_and_errors_are_events(mode):
    text = OUT.replace("MODE", mode)
    entry = decode_one(text, event_record(write_binary))
    outputs = {"y": np.array([[0.5, 0.25]], np.float32)}
    answers = encoder(text).encode(Batch(signature(), [entry]), Responses(outputs))
    answers += encoder(text).encode(
        Batch(signature(), [entry]), Responses(outputs, final=False), response_index=3
    )
    found = [read_event(value, headers) for _, value, headers in answers]
    place = "headrace.m.requests/3/5"
    assert [event.id for event in found] == [place, f"{place}/3"]
    assert (found[0].type, found[0].source) == ("payment.scored", "/fraud")
    assert json.loads(found[0].data) == {"subject": "card-9", "y": [0.5, 0.25]}
    headers = answers[0][2]
    assert headers[0][0] == "content-type"
    assert dict(headers)["status"] == b"OK"
    fitted = plan(text)
    errors = MappingErrors(fitted.passed, JsonFormat(), fitted.mapping.results.event)
    failure = fail_one(text, Rec(b"?"), good=event_record(write_binary))
    event = read_event(*errors(failure.entry, failure.error, "m", "1"))
    assert json.loads(event.data)["error"] == failure.error.detail


def test_B34_a_schema_inside_a_structured_event_is_not_waited_for():
    def read(_):
        raise SchemaNeeded("schema 7 is not known", 7)

    with pytest.raises(SchemaNeeded):
        read_event_fields(event_record(write_binary), read)
    with pytest.raises(Exception, match="expected binary mode"):
        read_event_fields(event_record(write_structured), read)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FIELDS + "[results.cloudevent]", "results.cloudevent.type: expected what happened"),
        (
            FIELDS + '[results.cloudevent]\ntype = "t"\nmode = "b"',
            "results.cloudevent.mode = 'b': expected one of binary, structured",
        ),
        (
            FIELDS + '[results.cloudevent]\ntype = "t\\n"\nsource = "s"',
            "results.cloudevent.type = 't\\n': ",
        ),
        (
            FIELDS + '[results]\nformat = "v2"\n[results.cloudevent]\ntype = "t"\nsource = "s"',
            "results.cloudevent = ",
        ),
        (
            SOURCE.replace('"json"', '"v2"\ncloudevents = true'),
            "source.cloudevents: expected none",
        ),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(ConfigError) as caught:
        mapped(text)
    assert words in str(caught.value)
