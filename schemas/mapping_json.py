"""The formats that need no schema: JSON objects, and raw bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import orjson
from headrace.schemas.errors import InvalidRequest, UndecodableRecord
from headrace.schemas.json_text import read_document
from headrace.schemas.mapping_path import MAX_SHOWN_CHARS
from headrace.schemas.record import BINARY, JSON

RAW_FIELD = "value"
"""The one field of a raw record: its bytes."""

_KINDS = bytes([0 if chr(byte) in "0123456789" else 1 + (byte == ord("-")) for byte in range(256)])
_LONG = bytes(19)
_TOO_LONG = (bytes(20), b"\x02" + _LONG)
"""Digits, each as 0, and a minus of integers that 64 bits may not hold."""

_AS_JSON_DOES = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
"""What Python's own encoder refuses, such as dates, is refused: nobody has said how it is to be written."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonFormat:
    """A value is a JSON object in UTF-8."""

    content_type = JSON

    def names(self, steps: Sequence[str | int]) -> None:
        """Know nothing of the fields before there is a record."""

    def read(self, value: bytes) -> Mapping[str, object]:
        """Return a record's fields; see `headrace.schemas.mapping_format.RecordFormat`.

        A number may be written ``NaN`` or ``Infinity``, as Python and others do: where an input is made of it, it is
        refused by its field.
        """
        try:
            document = _read(value)
        except RecursionError:
            raise UndecodableRecord("the value is no JSON object: it is nested too deep") from None
        except ValueError as exc:  # JSONDecodeError, Unicode errors, integers with too many digits
            raise UndecodableRecord(f"the value is no JSON object: {str(exc)[:200]}") from exc
        if not isinstance(document, dict):
            shown = value[:MAX_SHOWN_CHARS].decode(errors="replace")
            raise UndecodableRecord(f"the value is {shown!r}, expected a JSON object")
        return document

    def write(self, record: Mapping[str, object]) -> bytes:
        """Return a result's bytes; numbers that JSON does not have (NaN, infinities) become null."""
        try:
            return orjson.dumps(record, option=_AS_JSON_DOES)
        except orjson.JSONEncodeError:
            return _encode_plain(record)


def _read(value: bytes) -> object:
    """Read a JSON text; what the quick parser refuses, or would round without a word, the patient one reads."""
    kinds = value.translate(_KINDS)
    if _LONG in kinds and any(digits in kinds for digits in _TOO_LONG):
        return read_document(value)
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return read_document(value)


def _encode_plain(record: Mapping[str, object]) -> bytes:
    """Write a record some of whose values JSON does not have; bytes become text where they are some."""
    name = ""
    try:
        plain: dict[str, object] = {}
        for name, value in record.items():
            plain[name] = _finite(value.decode() if isinstance(value, bytes) else value)
            _encode(plain[name])
        return _encode(plain).encode()
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidRequest(
            f"field '{name}' cannot be written as JSON: {str(exc)[:200]}, expected a value that JSON has"
        ) from exc


def _finite(value: object) -> object:
    """Return a value with null for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return value


class RawFormat:
    """A value is bytes, such as an image: the field ``value`` has them."""

    content_type = BINARY

    def names(self, steps: Sequence[str | int]) -> Sequence[str]:
        """Return the one name; bytes have none inside."""
        return () if steps else (RAW_FIELD,)

    def read(self, value: bytes) -> Mapping[str, object]:
        """Return the one field."""
        return {RAW_FIELD: value}

    def write(self, record: Mapping[str, object]) -> bytes:
        """Results are no raw bytes: a mapping file cannot say so."""
        raise AssertionError(f"a result of {list(record)} cannot be raw bytes")
