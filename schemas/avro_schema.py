"""Other people's Avro schemas, prepared for reading: checked, without logical types, with what these mean instead.

fastavro would make objects of logical types (datetime, Decimal) that no tensor takes. Read without them, a value is
what it is in the record, and only where that is not what the mapping's contract says it is converted: timestamps and
times in micro- or nanoseconds become milliseconds, decimals become floats. A date stays days since the epoch.

Refused are schemas by which a record of a few bytes could end or stop the process: those that contain themselves
(fastavro's recursion is the C stack's, and has no limit) and lists of things that take no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fastavro
from fastavro.repository import AbstractSchemaRepository, SchemaRepositoryError
from fastavro.schema import load_schema, to_parsing_canonical_form
from headrace.schemas.errors import InvalidRequest, UndecodableRecord

Convert: TypeAlias = Callable[[Any], Any]
"""Makes of a value that was read what the mapping's contract says."""

MAX_DEPTH = 64
"""Levels of records, lists and maps inside each other."""

MAX_SCHEMA_CHARS = 2 * 2**20
"""Of a schema's text."""

MAX_SCALE = 300
"""Decimal places of a decimal."""

SHOWN = 200
"""Characters of a parser's words that an error repeats."""

_NUMBERS = {"int": int, "long": int, "float": float, "double": float, "boolean": bool}
_TYPES: Mapping[str, type] = {
    **_NUMBERS,
    **dict.fromkeys(("string", "enum"), str),
    **dict.fromkeys(("bytes", "fixed"), bytes),
    **dict.fromkeys(("map", "record", "error"), dict),
    "array": list,
}
_PER_MS = {
    "timestamp-micros": 1000,
    "local-timestamp-micros": 1000,
    "time-micros": 1000,
    "timestamp-nanos": 1_000_000,
    "local-timestamp-nanos": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that records can be read with.

    Attributes:
        text: As given.
        parsed: For fastavro; without logical types.
        canonical: The same for all schemas that read and write the same bytes.
        convert: For a record that was read with it; None where nothing is to be converted.
        name: Full name of the record.
    """

    text: str
    canonical: str = field(repr=False)
    parsed: Any = field(repr=False)
    convert: Convert | None
    name: str


def read_schema(text: str) -> AvroSchema:
    """Prepare a schema.

    Raises:
        InvalidRequest: It is no Avro schema, not that of a record, or one that is refused; the sentence says which.
    """
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidRequest(
            f"the schema has {len(text)} characters, expected at most {MAX_SCHEMA_CHARS}"
        )
    try:
        return _prepared(text)
    except InvalidRequest:
        raise
    except Exception as exc:
        # Besides its own errors fastavro raises whatever it trips over: KeyError, TypeError, AttributeError, …
        raise InvalidRequest(f"the text is no Avro schema: {_words(exc)}") from exc


def _prepared(text: str) -> AvroSchema:
    parsed = fastavro.parse_schema(json.loads(text))
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise InvalidRequest("the Avro schema is not that of a record, expected one of fields")
    stripped, convert = _Walk().type(parsed, 0)
    again: Any = fastavro.parse_schema(stripped)
    for record in again["__named_schemas"].values():
        _mend_defaults(record)
    _mend_defaults(again)
    return AvroSchema(text, to_parsing_canonical_form(again), again, convert, parsed["name"])


def with_references(text: str, others: Mapping[str, str]) -> str:
    """Return a schema that stands alone.

    Args:
        text: May name types that it does not define.
        others: Schemas by the full name of the type that each defines.

    Raises:
        InvalidRequest: One of them is no schema, or lacks a type.
    """
    try:
        whole = load_schema("", repo=_Others(text, others))
    except Exception as exc:  # as above
        raise InvalidRequest(
            f"the schema and those that it refers to fit not together: {_words(exc)}"
        ) from exc
    return json.dumps(_plain(whole))


class _Others(AbstractSchemaRepository):
    """Gives fastavro the schemas of references; ``""`` is the one that refers."""

    def __init__(self, text: str, others: Mapping[str, str]) -> None:
        self._texts = {**others, "": text}

    def load(self, name: str) -> Any:
        """Return a schema."""
        if name not in self._texts:
            raise SchemaRepositoryError(f"no schema defines {name[:SHOWN]}")
        return json.loads(self._texts[name])


def _plain(schema: Any) -> Any:
    """Return a schema without what fastavro adds."""
    if isinstance(schema, Mapping):
        return {key: _plain(value) for key, value in schema.items() if not key.startswith("__")}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


class _Walk:
    """One way through a parsed schema, which has full names everywhere."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Convert | None, Any]] = {}  # type, converter, definition
        self._open: set[str] = set()

    def type(self, schema: Any, depth: int) -> tuple[Any, Convert | None]:
        """Return a type without logical types, and its converter."""
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"the Avro schema is more than {MAX_DEPTH} levels deep, expected fewer"
            )
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            if schema in self._open:
                raise InvalidRequest(
                    f"the Avro schema's type '{schema}' contains itself, which is not read here: a record could be "
                    "deeper than the process can bear"
                )
            known = self._known.get(schema)
            return schema, None if known is None else known[1]
        kind = schema["type"]
        if not isinstance(kind, str) or kind not in _COMPLEX:
            # A primitive with attributes, or a type inside a "type".
            inner, convert = self.type(kind, depth + 1)
            return inner, _logical(schema) or convert
        made, convert = getattr(self, f"_{_COMPLEX[kind]}")(schema, depth)
        if "name" in schema:
            self._known[schema["name"]] = (kind, convert, schema)
        return made, convert

    def _record(self, schema: Any, depth: int) -> tuple[Any, Convert | None]:
        name = schema["name"]
        self._open.add(name)
        fields, converts = [], dict[str, Convert]()
        for item in schema["fields"]:
            made, convert = self.type(item["type"], depth + 1)
            fields.append({**item, "type": made})
            if convert is not None:
                converts[item["name"]] = convert
        self._open.discard(name)
        made = {**_plain(schema), "fields": fields}
        if not converts:
            return made, None
        items = tuple(converts.items())

        def convert_record(found: Any) -> Any:
            # A copy: what is read may be the schema's own default.
            return {**found, **{name: convert(found[name]) for name, convert in items}}

        return made, convert_record

    def _array(self, schema: Any, depth: int) -> tuple[Any, Convert | None]:
        made, convert = self.type(schema["items"], depth + 1)
        if self._takes_nothing(schema["items"]):
            raise InvalidRequest(
                "the Avro schema has a list of things that take no bytes, which is not read here: a record of a few "
                "bytes could have any number of them"
            )
        whole = {"type": "array", "items": made}
        if convert is None:
            return whole, None
        return whole, lambda found: [convert(item) for item in found]

    def _map(self, schema: Any, depth: int) -> tuple[Any, Convert | None]:
        made, convert = self.type(schema["values"], depth + 1)
        whole = {"type": "map", "values": made}
        if convert is None:
            return whole, None
        return whole, lambda found: {key: convert(item) for key, item in found.items()}

    def _other(self, schema: Any, _depth: int) -> tuple[Any, Convert | None]:
        """Enumerations and fixed ones."""
        made = {key: value for key, value in _plain(schema).items() if key not in _LOGICAL}
        return made, _logical(schema)

    def _union(self, branches: Sequence[Any], depth: int) -> tuple[Any, Convert | None]:
        found = [self.type(branch, depth) for branch in branches]
        by_type: dict[type, list[tuple[frozenset[str] | None, Convert | None]]] = {}
        for branch, (_, convert) in zip(branches, found, strict=True):
            kind, fields = self._kind(branch)
            by_type.setdefault(_TYPES.get(kind, type(None)), []).append((fields, convert))
        made = [made for made, _ in found]
        if not any(convert for _, convert in found):
            return made, None

        def convert_union(value: Any) -> Any:
            # Which branch it was is not told; of records, it shows in the fields.
            for fields, convert in by_type.get(type(value), ()):
                if fields is None or fields == value.keys():
                    return value if convert is None else convert(value)
            return value

        return made, convert_union

    def _kind(self, schema: Any) -> tuple[str, frozenset[str] | None]:
        """Return a branch's type, and of a record its fields."""
        if isinstance(schema, str):
            known = self._known.get(schema)
            return (schema, None) if known is None else self._kind(known[2])
        if not isinstance(schema["type"], str):
            return self._kind(schema["type"])
        if "fields" not in schema:
            return schema["type"], None
        return "record", frozenset(item["name"] for item in schema["fields"])

    def _takes_nothing(self, schema: Any) -> bool:
        if isinstance(schema, str):
            known = self._known.get(schema)
            return schema == "null" or (known is not None and self._takes_nothing(known[2]))
        if isinstance(schema, list):
            return False  # its branch takes a byte
        if "fields" in schema:
            return all(self._takes_nothing(item["type"]) for item in schema["fields"])
        if schema["type"] == "fixed":
            return bool(schema["size"] == 0)
        return schema["type"] not in _COMPLEX and self._takes_nothing(schema["type"])


_COMPLEX: Mapping[str, str] = {
    **dict.fromkeys(("record", "error"), "record"),
    **dict.fromkeys(("enum", "fixed"), "other"),
    "array": "array",
    "map": "map",
}
_LOGICAL = frozenset({"logicalType", "precision", "scale"})


def _logical(schema: Mapping[str, Any]) -> Convert | None:
    word = schema.get("logicalType")
    if word == "decimal" and schema["type"] in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if type(scale) is not int or not 0 <= scale <= MAX_SCALE:
            raise InvalidRequest(
                f"the Avro schema has a decimal of scale {scale!r:.20}, expected 0 to {MAX_SCALE}: it becomes a float"
            )
        unit: int = 10**scale
        return lambda found: int.from_bytes(found, "big", signed=True) / unit
    parts = _PER_MS.get(word) if isinstance(word, str) and schema["type"] == "long" else None
    return None if parts is None else (lambda found: found // parts)


def _mend_defaults(record: Any) -> None:
    """Make bytes of the defaults of bytes, which a schema writes as text; fastavro hands them out as they are."""
    for item in record.get("fields", ()):
        kind = item["type"][0] if isinstance(item["type"], list) else item["type"]
        if isinstance(kind, Mapping):
            _mend_defaults(kind)
            kind = kind["type"]
        if kind in ("bytes", "fixed") and isinstance(item.get("default"), str):
            item["default"] = item["default"].encode("latin-1", "replace")


def _words(exc: Exception) -> str:
    text = str(exc)
    return f"{type(exc).__name__}" + (f", {text[:SHOWN]}" if text else "")


def misfit(reader: AvroSchema, writer: AvroSchema, exc: Exception) -> UndecodableRecord:
    """Return the error of a record whose schema does not fit the one that it is read with."""
    text = str(exc)
    if len(text) > SHOWN:  # fastavro repeats both schemas
        text = "one of its types is another than the reader's"
    return UndecodableRecord(
        f"the record is written with schema '{writer.name}', which cannot be read as the mapping's '{reader.name}': "
        f"{text}"
    )
