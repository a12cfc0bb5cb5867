"""Records in Avro, as other people write them: plain with a given schema, or in Confluent's framing.

Whether they are framed is said by the mapping (FAULTS B35). A framed one names the schema that it was written with; it
is read with that *and* the mapping's own, so that old and new records come out alike, with the defaults of fields that
they lack (FAULTS B34). Readers are prepared once for each writer's schema. Nothing here asks a registry: `FramedAvro`
says which schemas are missing, and somebody brings them.

Source: Apache Avro 1.12 specification, "Binary encoding", "Schema resolution"; Confluent, "Wire format".
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.validation import validate
from headrace.schemas.avro_fields import names_at
from headrace.schemas.avro_projection import Project, projection
from headrace.schemas.avro_schema import AvroSchema, misfit, read_schema
from headrace.schemas.errors import (
    ConfigError,
    InferError,
    InvalidRequest,
    Reason,
    SchemaNeeded,
    UndecodableRecord,
)
from headrace.schemas.framing import CONFLUENT, HEAD_BYTES, framed, schema_id, schema_ids

PLAIN_TYPE = "application/avro"
FRAMED_TYPE = f"{PLAIN_TYPE}; framing={CONFLUENT}"
MAX_READERS = 1000
"""Writers' schemas that a format knows at a time; the others are brought again when they are met."""

MAX_SHOWN = 60
"""Characters of a value that an error repeats."""


class _Reader:
    """Reads records that were written with one schema."""

    __slots__ = ("_convert", "_parsed", "_project", "_reader", "_writer")

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None) -> None:
        self._writer = writer
        self._reader = reader
        self._convert = (reader or writer).convert
        self._project: Project | None = None
        self._parsed: Any = None
        # Schemas that differ in remarks and in what Java notes are the same.
        if reader is not None and reader.canonical != writer.canonical:
            self._project = projection(writer, reader)
            self._parsed = reader.parsed if self._project is None else None

    def read(self, value: bytes, at: int) -> dict[str, object]:
        """Read a record that begins at an offset and ends where the value does."""
        source = io.BytesIO(value)
        source.seek(at)
        try:
            found: Any = fastavro.schemaless_reader(source, self._writer.parsed, self._parsed)
            if self._project is not None:
                found = self._project(found)
            if self._convert is not None:
                found = self._convert(found)
        except SchemaResolutionError as exc:
            assert self._reader is not None
            raise misfit(self._reader, self._writer, exc) from exc
        except Exception as exc:
            # fastavro meets bad bytes with whatever its parser trips over; its texts hold addresses of objects, and
            # an answer that comes twice must be equal (DELIVERY P-16).
            raise UndecodableRecord(
                f"the value of {len(value)} bytes is no Avro record '{self._writer.name}': it goes wrong before byte "
                f"{source.tell()} ({type(exc).__name__})"
            ) from exc
        if source.tell() != len(value):
            raise UndecodableRecord(
                f"the value of {len(value)} bytes is an Avro record '{self._writer.name}' of {source.tell()} bytes "
                "with more behind it, expected one record"
            )
        fields: dict[str, object] = found
        return fields


class _Writer:
    """Writes records with one schema, each behind the same bytes."""

    def __init__(self, schema: AvroSchema, head: bytes) -> None:
        self._schema = schema
        self._head = head

    def write(self, record: Mapping[str, object]) -> bytes:
        out = io.BytesIO()
        out.write(self._head)
        try:
            fastavro.schemaless_writer(out, self._schema.parsed, record)
        except Exception as exc:  # whatever it trips over, as above
            raise self._misfit(record) from exc
        return out.getvalue()

    def _misfit(self, record: Mapping[str, object]) -> InvalidRequest:
        """Name the field that its type does not hold."""
        parsed = self._schema.parsed
        for item in parsed["fields"]:
            value = record.get(item["name"], item.get("default"))
            alone = {**parsed, "fields": [item]}
            if not validate({item["name"]: value}, alone, raise_errors=False):
                shown = repr(value)
                shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "…"
                return InvalidRequest(
                    f"field '{item['name']}' of the result is {shown}, expected what Avro's {_type_text(item['type'])} "
                    "holds"
                )
        return InvalidRequest(
            f"the result cannot be written as Avro record '{self._schema.name}', one of its values is too large"
        )


class PlainAvro:
    """Records that are nothing but themselves: everybody has the schema."""

    content_type = PLAIN_TYPE

    def __init__(self, schema: str) -> None:
        """Prepare.

        Raises:
            ConfigError: The schema is none that can be used.
        """
        self._schema = _configured(schema)
        self._reader = _Reader(self._schema, None)
        self._writer = _Writer(self._schema, b"")

    def names(self, steps: Sequence[str | int]) -> Sequence[str] | None:
        """See `headrace.schemas.mapping_format.RecordFormat`."""
        return names_at(self._schema, steps)

    def read(self, value: bytes) -> Mapping[str, object]:
        """Read a record; see `headrace.schemas.mapping_format.RecordFormat`."""
        return self._reader.read(value, 0)

    def write(self, record: Mapping[str, object]) -> bytes:
        """Write a record; see `headrace.schemas.mapping_format.RecordFormat`."""
        return self._writer.write(record)


class FramedAvro:
    """Records in Confluent's framing; a `headrace.schemas.mapping_format.RegistryFormat`."""

    content_type = FRAMED_TYPE

    def __init__(
        self,
        schema: str = "",
        *,
        writes_as: int | None = None,
        max_readers: int = MAX_READERS,
    ) -> None:
        """Prepare.

        Args:
            schema: That records are read with, and written; ``""`` reads each as it was written, and writes none.
            writes_as: The id under which it is registered; None writes none.
            max_readers: Writers' schemas that are known at a time, beside those of the blocks that are read now.

        Raises:
            ConfigError: The schema is none that can be used.
        """
        self._schema = _configured(schema) if schema else None
        self._known: OrderedDict[int, _Reader | str] = OrderedDict()  # or why it cannot be used
        self._absent: set[int] = set()
        self._max_readers = max_readers
        self._writer: _Writer | None = None
        if writes_as is not None:
            assert self._schema is not None
            self._writer = _Writer(self._schema, framed(writes_as))

    def names(self, steps: Sequence[str | int]) -> Sequence[str] | None:
        """See `headrace.schemas.mapping_format.RecordFormat`; each writer's own schema is known with its records."""
        return None if self._schema is None else names_at(self._schema, steps)

    def missing(self, values: Iterable[bytes | None]) -> Set[int]:
        """Return the ids of the schemas that are not known yet."""
        return schema_ids(values) - self._known.keys() - self._absent

    def learn(self, schema_id: int, schema: str | None) -> None:
        """See `headrace.schemas.mapping_format.RegistryFormat`."""
        if schema is None:
            self._absent.add(schema_id)
            return
        try:
            self._known[schema_id] = _Reader(read_schema(schema), self._schema)
        except InvalidRequest as exc:
            self._known[schema_id] = exc.detail

    def forget(self) -> None:
        """See `headrace.schemas.mapping_format.RegistryFormat`; those that were learned first go."""
        self._absent.clear()
        while len(self._known) > self._max_readers:
            self._known.popitem(last=False)

    def read(self, value: bytes) -> Mapping[str, object]:
        """Read a record; see `headrace.schemas.mapping_format.RecordFormat`.

        Raises:
            SchemaNeeded: Its schema is not known, or not any more: bring what is `missing` and read it again.
        """
        number = schema_id(value)
        reader = self._known.get(number)
        if type(reader) is _Reader:
            return reader.read(value, HEAD_BYTES)
        raise self._unreadable(number, reader)

    def write(self, record: Mapping[str, object]) -> bytes:
        """Write a record; see `headrace.schemas.mapping_format.RecordFormat`."""
        assert self._writer is not None
        return self._writer.write(record)

    def _unreadable(self, number: int, why: object) -> InferError:
        if why is not None:
            return UndecodableRecord(
                f"the value is written with schema {number} of the registry, which cannot be used: {why}"
            )
        if number in self._absent:
            return UndecodableRecord(
                f"the value is written with schema {number}, and the registry has none of that id, expected one that "
                "is registered",
                reason=Reason.UNKNOWN_SCHEMA,
            )
        return SchemaNeeded(
            f"the value is written with schema {number} of the registry, which was not fetched",
            number,
        )


def _configured(schema: str) -> AvroSchema:
    try:
        return read_schema(schema)
    except InvalidRequest as exc:
        raise ConfigError(exc.detail, field="schema") from exc


def _type_text(schema: Any) -> str:
    """Return a type's short name for people."""
    if isinstance(schema, list):
        return " or ".join(_type_text(branch) for branch in schema)
    if not isinstance(schema, str):
        return str(schema.get("name") or _type_text(schema["type"]))
    return schema
