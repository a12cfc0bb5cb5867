"""CloudEvents as records, in binary and structured mode: attributes and data to value and headers, and back.

A mapping says whether a topic's records are events; nothing here guesses that. Which of the two modes a record has is
said by its ``content-type``, as the binding wants it: structured where it begins with ``application/cloudevents``,
else binary. What comes in is checked as strictly as the specification says and no further: ``source`` and
``dataschema`` are texts here, whose URI syntax nobody relies on. A record's key is the caller's. Pure.

Source: CloudEvents 1.0.2, core specification, Kafka protocol binding, JSON event format.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from headrace.schemas.errors import (
    InferError,
    InvalidRequest,
    MalformedRequest,
    Reason,
    UndecodableRecord,
    Unsupported,
)
from headrace.schemas.headers import find_header, text_of
from headrace.schemas.json_text import read_object
from headrace.schemas.record import CONTENT_TYPE, JSON, Header, Headers

SPEC_VERSION = "1.0"
PREFIX = "ce_"
"""Of the header of each attribute in binary mode."""

MEDIA_PREFIX = "application/cloudevents"
STRUCTURED = "application/cloudevents+json"
STRUCTURED_HEADER = b"application/cloudevents+json; charset=UTF-8"

DATA, DATA_BASE64 = "data", "data_base64"
SPECVERSION, DATACONTENTTYPE = "specversion", "datacontenttype"
_FIELDS = {
    "id": "id",
    "source": "source",
    "type": "type",
    "subject": "subject",
    "time": "time",
    DATACONTENTTYPE: "data_content_type",
    "dataschema": "data_schema",
}
"""Attribute → field of `CloudEvent`."""
_REQUIRED = ("id", "source", "type")

_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
_ILLEGAL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that no attribute's text has; those of the planes above the first are told by their low bits."""
_MAX_INTEGER = 2**31 - 1
_SHOWN_CHARS = 60
_JSON_SUFFIX = "+json"
_UTF_8 = ("utf-8", "utf8")

Attribute: TypeAlias = str | int | bool
"""Value of an extension attribute; in binary mode all of them are text."""


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event; what it is made of is checked when it is made.

    Attributes:
        id: Unique among the events of its source; never empty, and so are ``source`` and ``type``.
        source: Where it comes from, a URI reference.
        type: What happened.
        subject: Of what in the source; ``""`` is none, here and below.
        time: When, RFC 3339, as it was spelled.
        data_content_type: Media type of ``data``.
        data_schema: URI of the schema that ``data`` has.
        extensions: Further attributes by name.
        data: As ``data_content_type`` says; None is none, a tombstone in binary mode.

    Raises:
        InvalidRequest: An attribute is not what the specification allows; the sentence names it.
    """

    id: str
    source: str
    type: str
    subject: str = ""
    time: str = ""
    data_content_type: str = ""
    data_schema: str = ""
    extensions: Mapping[str, Attribute] = field(default_factory=dict)
    data: bytes | None = None

    def __post_init__(self) -> None:
        """Check the attributes."""
        for name, attribute in _FIELDS.items():
            value = getattr(self, attribute)
            if not isinstance(value, str):
                raise _wrong(name, value, "text")
            if not value and name in _REQUIRED:
                raise _wrong(name, value, "text that is not empty")
            if value:
                _check_text(name, value)
        if self.time:
            _check_time(self.time)
        for name, extension in self.extensions.items():
            _check_extension(name, extension)

    @property
    def media_type(self) -> str:
        """Media type of the data in lower case and without its parameters; ``""`` where none is said."""
        return _media_type(self.data_content_type)


def time_of(timestamp_ms: int) -> str:
    """Return a record's timestamp, milliseconds since the epoch, as the attribute ``time``."""
    seconds, ms = divmod(timestamp_ms, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


def read_event(value: bytes | None, headers: Headers) -> CloudEvent:
    """Read a record as an event, in the mode that its ``content-type`` says.

    Args:
        value: The record's; None is an event without data in binary mode.
        headers: The record's; the last of several of one name counts. Others than the event's are not looked at.

    Raises:
        InvalidRequest: An attribute is missing or wrong; the sentence names it.
        UndecodableRecord: A structured event's value is no JSON object.
        Unsupported: Another event format than JSON, or a batch.
    """
    raw = find_header(headers, CONTENT_TYPE)
    content_type = "" if raw is None else text_of(CONTENT_TYPE, raw)
    media = _media_type(content_type)
    if not media.startswith(MEDIA_PREFIX):
        return _read_binary(value, headers, content_type)
    if media != STRUCTURED or _charset(content_type) not in _UTF_8:
        raise Unsupported(
            f"header '{CONTENT_TYPE}' is {_shown(content_type)}, expected {STRUCTURED} in UTF-8, or no CloudEvents "
            "format for an event in binary mode"
        )
    return _read_structured(value or b"")


def write_binary(event: CloudEvent) -> tuple[bytes | None, list[Header]]:
    """Write an event in binary mode: its data as the value, its attributes as headers."""
    headers: list[Header] = []
    if event.data_content_type:
        headers.append((CONTENT_TYPE, event.data_content_type.encode()))
    headers.append((PREFIX + SPECVERSION, SPEC_VERSION.encode()))
    for name, attribute in _FIELDS.items():
        text = getattr(event, attribute)
        if text and name != DATACONTENTTYPE:
            headers.append((PREFIX + name, text.encode()))
    for name, extension in event.extensions.items():
        text = json.dumps(extension) if isinstance(extension, bool) else str(extension)
        headers.append((PREFIX + name, text.encode()))
    return event.data, headers


def write_structured(event: CloudEvent) -> tuple[bytes, list[Header]]:
    """Write an event in structured mode: one JSON object as the value.

    Data that calls itself JSON, and is, stands in it as JSON, in one spelling; any other as Base64, byte by byte.
    """
    document: dict[str, object] = {SPECVERSION: SPEC_VERSION}
    for name, attribute in _FIELDS.items():
        if text := getattr(event, attribute):
            document[name] = text
    document |= event.extensions
    end = b"}"
    if event.data is not None:
        spelled = _as_json(event.data) if _is_json(event.media_type) else None
        if spelled is None:
            document[DATA_BASE64] = base64.b64encode(event.data).decode()
        else:
            end = b',"%b":%b}' % (DATA.encode(), spelled)
    return _dumped(document)[:-1] + end, [(CONTENT_TYPE, STRUCTURED_HEADER)]


def _read_binary(value: bytes | None, headers: Headers, content_type: str) -> CloudEvent:
    texts: dict[str, str] = {}
    for header, raw in headers:
        if header.startswith(PREFIX):
            name = header.removeprefix(PREFIX)
            if name in (DATACONTENTTYPE, DATA):
                raise InvalidRequest(
                    f"header '{header}' is no attribute of an event in binary mode, expected header '{CONTENT_TYPE}' "
                    "and the record's value",
                    reason=Reason.INVALID_HEADER,
                )
            texts[name] = text_of(header, raw)
    if content_type:
        texts[DATACONTENTTYPE] = content_type
    return _event(texts, value, Reason.INVALID_HEADER)


def _read_structured(value: bytes) -> CloudEvent:
    try:
        document = read_object(value, dict)
    except MalformedRequest as exc:
        raise UndecodableRecord(
            f"the value is no CloudEvent in JSON: {exc.detail.partition(': ')[2]}"
        ) from exc
    members = {name: item for name, item in document.items() if item is not None}
    data: bytes | None = None
    if DATA_BASE64 in members:
        data = _from_base64(members.pop(DATA_BASE64))
        if DATA in members:
            raise InvalidRequest("'data' and 'data_base64' are both there, expected one of them")
    elif DATA in document:
        members.pop(DATA, None)
        # Without a content type such data is JSON, says the format.
        media = members.setdefault(DATACONTENTTYPE, JSON)
        data = _from_member(document[DATA], str(media))
    return _event(members, data, Reason.INVALID_REQUEST)


def _event(members: dict[str, str], data: bytes | None, reason: Reason) -> CloudEvent:
    """Make an event of its attributes; ``reason`` is the word for what is wrong with them."""
    try:
        version = members.pop(SPECVERSION, None)
        if version != SPEC_VERSION:
            raise _wrong(SPECVERSION, version, f"the text {SPEC_VERSION!r}")
        for name in _REQUIRED:
            if name not in members:
                raise _wrong(name, None, "text that is not empty")
        for name in _FIELDS:
            if members.get(name) == "":
                raise _wrong(name, "", "text that is not empty, or no such attribute")
        known = {_FIELDS[name]: members.pop(name) for name in _FIELDS if name in members}
        return CloudEvent(**known, extensions=members, data=data)
    except InferError as error:
        error.reason = reason
        raise


def _from_member(data: object, content_type: str) -> bytes:
    if _is_json(_media_type(content_type)):
        try:
            return _dumped(data)
        except (ValueError, RecursionError) as exc:
            raise _wrong(DATA, data, "JSON whose numbers are finite") from exc
    if not isinstance(data, str):
        raise _wrong(DATA, data, f"text where {DATACONTENTTYPE} is {_shown(content_type)}")
    return data.encode()


def _from_base64(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _wrong(DATA_BASE64, text, "Base64")


def _as_json(data: bytes) -> bytes | None:
    """Return the one spelling of JSON data; None where it is none that every reader reads alike."""
    try:
        return _dumped(json.loads(data.decode()))
    except (ValueError, RecursionError):
        return None


def _dumped(document: object) -> bytes:
    """Return JSON; `ValueError` where a number is not finite or a text holds half a surrogate pair."""
    return json.dumps(
        document, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def _is_json(media: str) -> bool:
    return media in (JSON, "text/json") or media.endswith(_JSON_SUFFIX)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _charset(content_type: str) -> str:
    for parameter in content_type.lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset":
            return value.strip().strip('"')
    return _UTF_8[0]


def _check_text(name: str, text: str) -> None:
    if _ILLEGAL.search(text) or (
        not text.isascii() and any(ord(character) & 0xFFFE == 0xFFFE for character in text)
    ):
        raise _wrong(name, text, "text without control characters and surrogates")


def _check_time(text: str) -> None:
    found = _TIME.fullmatch(text)
    try:
        datetime.fromisoformat("T".join(found.groups()))  # type: ignore[union-attr]  # None is met below
    except (AttributeError, ValueError):
        raise _wrong("time", text, "a time of RFC 3339 such as 2026-01-31T23:59:59.5Z") from None


def _check_extension(name: str, value: object) -> None:
    if not _NAME.fullmatch(name) or name in _FIELDS or name in (DATA, SPECVERSION):
        raise InvalidRequest(
            f"attribute {_shown(name)} is no extension's name, expected a-z and 0-9, and not the name of another "
            "attribute"
        )
    if isinstance(value, str):
        _check_text(name, value)
    elif not isinstance(value, int) or not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
        raise _wrong(name, value, "text, true or false, or an integer of 32 bits")


def _wrong(name: str, value: object, expected: str) -> InvalidRequest:
    if value is None:
        return InvalidRequest(f"attribute '{name}' is missing, expected {expected}")
    return InvalidRequest(f"attribute '{name}' is {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"
