"""What a mapping file says, as plain values: how records that people already have become requests, and results again.

`headrace.schemas.mapping_file` reads them, `headrace.schemas.mapping_check` fits them to a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.schemas.mapping_format import FormatSettings
from headrace.schemas.mapping_path import FieldPath
from headrace.schemas.tensor import Datatype, Shape

ENCODINGS = ("number", "list", "nested", "base64", "string", "bytes")
"""Words for ``encoding``: how an input's values stand in a record."""

OFFSET_RESETS = ("earliest", "latest")
TOMBSTONES = ("skip", "error")
EVENT_MODES = ("binary", "structured")
ID_TYPES = ("string", "uint64")
ERROR_FIELD = "error"
"""The field of a result that says what went wrong."""

NO_DEFAULT: Final = object()
"""A field that must be there; None is a default like any other, of fields that may be null."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: where it is, and what stands for it where it is missing or null, or `NO_DEFAULT`."""

    path: FieldPath
    default: object = NO_DEFAULT


@dataclass(frozen=True, slots=True)
class SourceMapping:
    """Where records come from.

    Attributes:
        topic: Its name.
        format: How its values are written.
        offset_reset: Where to begin the first time, ``earliest`` or ``latest``.
        tombstones: What becomes of null values: ``skip`` passes over them, ``error`` answers with an error.
        events: Records are CloudEvents, in binary or structured mode; ``format`` is of their data.
    """

    topic: str
    format: FormatSettings
    offset_reset: str
    tombstones: str
    events: bool = False


@dataclass(frozen=True, slots=True)
class InputMapping:
    """How one input is made.

    Attributes:
        name: Of the input.
        fields: One, or with ``number`` and ``string`` several: its elements in order.
        encoding: One of `ENCODINGS`; ``""`` is what fits the input.
        datatype: What the input must have; None says nothing.
        shape: Without the batch axis; None is the input's own.
        allow_nan: Numbers need not be finite.
    """

    name: str
    fields: tuple[Field, ...]
    encoding: str = ""
    datatype: Datatype | None = None
    shape: Shape | None = None
    allow_nan: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """True of a record whose field has one of the values."""

    path: FieldPath
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class SequenceMapping:
    """Which sequence a record is a step of.

    Attributes:
        id: The field that is the sequence id; None is the record's key.
        id_type: ``string`` or ``uint64``; ``""`` is what the model's CORRID control takes, else ``string``.
        start: What begins a sequence; None: the first record of an id, or the first after its sequence ended.
        end: What ends it; None: its silence alone (``max_sequence_idle_microseconds`` of the model).
    """

    id: FieldPath | None
    id_type: str = ""
    start: Condition | None = None
    end: Condition | None = None


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """What else a record says of its request; missing fields say nothing."""

    id: FieldPath | None = None
    version: FieldPath | None = None
    priority: FieldPath | None = None


@dataclass(frozen=True, slots=True)
class PassedField:
    """A field of the record that comes back in its result under ``name``; null where it is missing."""

    name: str
    path: FieldPath


@dataclass(frozen=True, slots=True)
class ResultMapping:
    """One field of a result.

    Attributes:
        name: Of the field.
        output: Of the model.
        top_k: So many of its largest values, with places and labels; 0 is its values themselves.
        is_label: The label of its largest value alone.
        labels: By place; empty are the model's own.
    """

    name: str
    output: str
    top_k: int = 0
    is_label: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventMapping:
    """Results are CloudEvents.

    Attributes:
        mode: ``binary`` or ``structured``.
        type: What happened.
        source: Where they come from, a URI reference.
    """

    mode: str
    type: str
    source: str


@dataclass(frozen=True, slots=True)
class ResultsMapping:
    """How results are written.

    Attributes:
        topic: Where to; ``""`` is the model's usual results topic.
        format: How.
        passed: Fields of the record.
        fields: Fields of the result; empty is every output under its own name.
        event: How they are events; None where they are none.
    """

    topic: str
    format: FormatSettings
    passed: tuple[PassedField, ...] = ()
    fields: tuple[ResultMapping, ...] = ()
    event: EventMapping | None = None


@dataclass(frozen=True, slots=True)
class ModelMapping:
    """A whole file; ``sequence`` is None where it has no such table."""

    file: str
    source: SourceMapping
    inputs: tuple[InputMapping, ...]
    request: RequestMapping
    sequence: SequenceMapping | None
    results: ResultsMapping
