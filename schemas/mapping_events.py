"""CloudEvents on a mapped topic: the record is the event's data, and its attributes are fields beside it. Pure.

Source: CloudEvents 1.0.2, Kafka protocol binding; the codec is `headrace.schemas.cloudevents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.schemas.batch import Entry
from headrace.schemas.cloudevents import (
    CloudEvent,
    read_event,
    time_of,
    write_binary,
    write_structured,
)
from headrace.schemas.errors import SchemaNeeded, Unsupported
from headrace.schemas.mapping import EventMapping
from headrace.schemas.mapping_path import Fields
from headrace.schemas.record import CONTENT_TYPE, RESPONSE_INDEX, Header, Record

EVENT_FIELD = "cloudevent"
"""The field that has an event's attributes, such as ``cloudevent.subject``."""


def read_event_fields(record: Record, read: Callable[[bytes], Fields]) -> Fields:
    """Return the fields of an event's data, and its attributes under `EVENT_FIELD`.

    Args:
        record: In binary or structured mode, as its ``content-type`` says.
        read: Reads the data.

    Raises:
        InferError: It is no event, or its data no record.
    """
    event = read_event(record.value, record.headers)
    attributes: dict[str, object] = {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject or None,
        "time": event.time or None,
        "dataschema": event.data_schema or None,
        **event.extensions,
    }
    try:
        fields = read(event.data or b"")
    except SchemaNeeded as exc:
        if event.data == record.value:
            raise
        # Whoever fetches schemas looks at values for their ids, and this one is inside.
        raise Unsupported(
            "the event is in structured mode and its data in Confluent's framing, expected binary mode"
        ) from exc
    return {**fields, EVENT_FIELD: attributes}


class EventWriter:
    """Makes events of results and errors."""

    def __init__(self, mapping: EventMapping, content_type: str) -> None:
        """Keep what they say; ``content_type`` is of their data."""
        self._mapping = mapping
        self._content_type = content_type

    def __call__(
        self, entry: Entry, value: bytes, headers: Sequence[Header]
    ) -> tuple[bytes, list[Header]]:
        """Return an answer as an event: its id is where its record lies, and the answer's number where it has one."""
        record = entry.record
        number = dict(headers).get(RESPONSE_INDEX)
        event = CloudEvent(
            id=f"{record.topic}/{record.partition}/{record.offset}"
            + ("" if number is None else f"/{number.decode()}"),
            source=self._mapping.source,
            type=self._mapping.type,
            time=time_of(record.timestamp),
            data_content_type=self._content_type,
            data=value,
        )
        if self._mapping.mode == "structured":
            made, own = write_structured(event)
        else:
            data, own = write_binary(event)
            made = data or b""
        kept = [header for header in headers if header[0] != CONTENT_TYPE]
        # The first header of every answer is its content type.
        first = [header for header in own if header[0] == CONTENT_TYPE]
        return made, [*first, *kept, *[header for header in own if header[0] != CONTENT_TYPE]]
