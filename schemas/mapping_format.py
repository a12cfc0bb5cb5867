"""What a mapping asks of a format: a record's bytes to a mapping of fields, and back. Nothing else knows bytes.

A format is prepared once, from `FormatSettings`, and called once per record. It is pure: it reads no file, asks no
registry and keeps no clock. What must be fetched before a value can be read (a schema by its id) it names, and
whoever has a registry brings it before the block is decoded; so `RecordFormat.read` never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.schemas.tensor import Datatype, Shape

FORMATS = ("json", "avro", "protobuf", "raw", "v2")
"""Words for ``format`` in a mapping file."""

RESULT_FORMATS = ("json", "avro", "v2")
"""Words for the format of results."""


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """The part of a mapping file that says how a topic's values are written.

    Attributes:
        word: One of `FORMATS`.
        schema: Avro: the text of the schema that records are read with (the reader's); ``""`` is each writer's own.
        framing: Avro: ``confluent`` (magic byte 0, 4-byte schema id) or ``""`` (the value is the record alone, which
            takes a schema).
        registry: URL of the Schema Registry; ``""`` where there is none.
        subject: Under which a result's schema is registered; ``""`` is ``<topic>-value``.
        descriptors: Protobuf: the bytes of a compiled ``FileDescriptorSet``.
        message: Protobuf: full name of the message.
    """

    word: str
    schema: str = ""
    framing: str = ""
    registry: str = ""
    subject: str = ""
    descriptors: bytes = b""
    message: str = ""


class ResultField(NamedTuple):
    """A field of the results that a mapping writes.

    Attributes:
        name: As it stands in the record.
        datatype: Of the values; None of a field that is passed through, which may hold anything. BYTES are text where
            ``is_text``.
        dims: ``()`` is a single value, else nested lists of so many levels, -1 is any size.
        is_optional: May be null. An answer that is an error has the fields that are passed through and the text
            ``error``, and no other.
        is_text: BYTES that are UTF-8, such as labels.
        is_classes: A list of objects of ``label`` (text or None), ``index`` (a whole number) and ``score`` (a float):
            the best classes, the best first. Then ``datatype`` and ``dims`` say nothing.
    """

    name: str
    datatype: Datatype | None
    dims: Shape = ()
    is_optional: bool = True
    is_text: bool = False
    is_classes: bool = False


class RecordFormat(Protocol):
    """Reads and writes the values of one topic."""

    @property
    def content_type(self) -> str:
        """What the header ``content-type`` of a written record says."""

    def names(self, steps: Sequence[str | int]) -> Sequence[str] | None:
        """Return the names of the fields that an object in its records can have, None where nothing is known of them.

        Args:
            steps: Of the way to the object, as `headrace.schemas.mapping_path.FieldPath` has them; none are those of
                the record itself. Where the way leads to no object, there are no names.
        """

    def read(self, value: bytes) -> Mapping[str, object]:
        """Return a record's fields.

        Args:
            value: Never None; may be empty.

        Returns:
            Names to values: dict, list, str, bytes, bool, int, float, None, nested. Logical types are what people
            write in JSON for them (a timestamp is ms since the epoch, a decimal a float); an enum is its name. Fresh
            for each call: the caller may keep parts of it.

        Raises:
            UndecodableRecord: The bytes are no such record; the sentence says where and what was expected.
            InferError: Of another kind, such as a schema that does not fit.
        """

    def write(self, record: Mapping[str, object]) -> bytes:
        """Return the bytes of a result.

        Args:
            record: `ResultField` by `ResultField` that the format was made for, by name; those that are left out are
                null, which only optional ones may be. Values as `read` gives them.

        Raises:
            InferError: The format cannot hold a value; the sentence names field and value.
        """


@runtime_checkable
class RegistryFormat(RecordFormat, Protocol):
    """A format whose records name schemas by id."""

    def missing(self, values: Iterable[bytes | None]) -> Set[int]:
        """Return the ids of the schemas that reading these values takes and that are not known yet.

        Values that are no such records name none; `read` says what is wrong with them. Of a value whose schema is not
        known it raises `SchemaNeeded`.
        """

    def learn(self, schema_id: int, schema: str | None) -> None:
        """Take a schema that was fetched; None is a registry's word that there is none: `read` raises that then."""

    def forget(self) -> None:
        """Forget, once a block was read, which schemas there were none of, and those known that are too many.

        The registry may have one for the next block.
        """


class Schemas(Protocol):
    """A Schema Registry, as the worker and the commands use it; remembers what it has fetched."""

    async def fetch(self, schema_id: int) -> str | None:
        """Return the text of a schema, None where the registry has none of that id.

        Raises:
            LogError: It does not answer (retriable), or refuses us (not).
        """

    async def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id; one that is there already keeps its id.

        Raises:
            ConfigError: It is not compatible with the subject's former ones; the sentence has the registry's reason.
            LogError: As `fetch`.
        """
