"""Records in Protobuf, by a compiled descriptor set and a message's name, plain or in Confluent's framing.

A message becomes a mapping by the names of the ``.proto`` file: enumerations are names, 64-bit integers and bytes are
what they are, well-known types what JSON says for them (a timestamp is ms since the epoch, as of Avro). A field without
presence that is not on the wire has its default; one with presence is then missing, as a member of JSON would be.
Everything is looked up once per message type; the fields of unknown later versions are passed over.

Source: Protocol Buffers, "Encoding", "Field presence", "ProtoJSON"; Confluent, "Wire format".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from headrace.schemas.errors import ConfigError, UndecodableRecord, Unsupported
from headrace.schemas.framing import CONFLUENT, message_index, schema_id
from headrace.schemas.nearest import nearest_name

PLAIN_TYPE = "application/protobuf"
FRAMED_TYPE = f"{PLAIN_TYPE}; framing={CONFLUENT}"
Convert: TypeAlias = Callable[[Any], Any]
"""Makes of a field's value what the mapping's contract says."""

SHOWN = 200
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in (
        "Double",
        "Float",
        "Int64",
        "UInt64",
        "Int32",
        "UInt32",
        "Bool",
        "String",
        "Bytes",
    )
)
_AS_JSON = frozenset(
    f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "FieldMask", "Any")
)
_TIMES = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})


class ProtobufRecords:
    """Reads records of one message type; a `headrace.schemas.mapping_format.RecordFormat`.

    Attributes:
        content_type: As a header would say it.
        message: Full name of the message type.
    """

    def __init__(self, descriptors: bytes, message: str, *, is_framed: bool = False) -> None:
        """Prepare.

        Args:
            descriptors: A ``FileDescriptorSet``, as ``protoc --include_imports --descriptor_set_out=FILE`` writes it.
            message: Full name of the message type, package and all.
            is_framed: Values are in Confluent's framing.

        Raises:
            ConfigError: The set cannot be read, lacks a file, or has no such message type.
        """
        descriptor = _descriptor(descriptors, message)
        self.content_type = FRAMED_TYPE if is_framed else PLAIN_TYPE
        self.message = message
        self._is_framed = is_framed
        self._descriptor = descriptor
        self._index = _place(descriptor)
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self._convert = _Converters().message(descriptor)

    def names(self, steps: Sequence[str | int]) -> Sequence[str] | None:
        """See `headrace.schemas.mapping_format.RecordFormat`."""
        return _names_at(self._descriptor, steps)

    def read(self, value: bytes) -> Mapping[str, object]:
        """Read a record; see `headrace.schemas.mapping_format.RecordFormat`."""
        body = value[self._begin(value) :] if self._is_framed else value
        try:
            found = self._class.FromString(body)
            fields: dict[str, object] = self._convert(found)
        except (DecodeError, json_format.Error, ValueError, RecursionError) as exc:
            raise UndecodableRecord(
                f"the value of {len(value)} bytes is no Protobuf message {self.message} ({type(exc).__name__})"
            ) from exc
        return fields

    def write(self, record: Mapping[str, object]) -> bytes:
        """Refuse: results are written in other formats.

        Raises:
            Unsupported: Always.
        """
        del record
        raise Unsupported("results are not written in Protobuf, expected json, avro or v2")

    def _begin(self, value: bytes) -> int:
        """Return where a framed value's message begins."""
        schema_id(
            value
        )  # verifies the first byte; the message type is the mapping's, whatever the id
        index, begin = message_index(value)
        if index != self._index:
            raise UndecodableRecord(
                f"the value's message has index {list(index)}{_named(self._descriptor.file, index)}, expected "
                f"{list(self._index)} ({self.message})"
            )
        return begin


def _descriptor(descriptors: bytes, message: str) -> Descriptor:
    try:
        files = FileDescriptorSet.FromString(descriptors)
    except DecodeError as exc:
        raise ConfigError(
            "expected a descriptor set, as protoc --include_imports --descriptor_set_out=FILE writes it",
            field="descriptors",
        ) from exc
    pool = DescriptorPool()
    by_name = {file.name: file for file in files.file}
    added: set[str] = set()
    for name in by_name:
        _add(pool, by_name, name, added)
    try:
        found: Descriptor = pool.FindMessageTypeByName(message)
    except KeyError as exc:
        names = sorted(
            f"{file.package}.{kind.name}".lstrip(".")
            for file in files.file
            for kind in file.message_type
            if file.package != "google.protobuf"
        )
        near = nearest_name(message, names) or " or ".join(names)[:SHOWN] or "some"
        raise ConfigError(
            f"the descriptor set has no such message, expected {near}",
            field="message",
            value=message,
        ) from exc
    return found


def _add(
    pool: DescriptorPool,
    by_name: Mapping[str, FileDescriptorProto],
    name: str,
    added: set[str],
) -> None:
    """Add a file behind those that it imports."""
    if name in added:
        return
    added.add(name)
    file = by_name.get(name)
    if file is None:
        raise ConfigError(
            f"the descriptor set lacks {name}, which it imports: make it with protoc --include_imports",
            field="descriptors",
        )
    for needed in file.dependency:
        _add(pool, by_name, needed, added)
    try:
        pool.Add(file)
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"the descriptor set's {name} cannot be used: {str(exc)[:SHOWN]}", field="descriptors"
        ) from exc


def _names_at(kind: Descriptor | None, steps: Sequence[str | int]) -> Sequence[str] | None:
    """Return the names of the fields at a place inside of a message type; None is the type of a single value."""
    if kind is None or kind.full_name in _TIMES | _WRAPPERS:
        return ()
    if kind.full_name in _AS_JSON:
        return None
    if not steps:
        return [field.name for field in kind.fields]
    first, *rest = steps
    field = kind.fields_by_name.get(str(first))  # a message is no list, and no name is a number
    return () if field is None else _names_inside(field, rest)


def _names_inside(field: FieldDescriptor, steps: Sequence[str | int]) -> Sequence[str] | None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value = kind.fields_by_name["value"].message_type
        return _names_at(value, steps[1:]) if steps and isinstance(steps[0], str) else None
    if field.is_repeated and not (steps and isinstance(steps[0], int)):
        return ()  # a list itself has no names
    return _names_at(kind, steps[1:] if field.is_repeated else steps)


def _place(descriptor: Descriptor) -> tuple[int, ...]:
    """Return where a message type stands in its file: its number, behind those of the types that it is inside of."""
    outer = descriptor.containing_type
    if outer is None:
        return (_number(descriptor, descriptor.file.message_types_by_name.values()),)
    return (*_place(outer), _number(descriptor, _inside(outer)))


def _number(descriptor: Descriptor, kinds: Iterable[Descriptor]) -> int:
    return next(at for at, kind in enumerate(kinds) if kind.full_name == descriptor.full_name)


def _inside(descriptor: Descriptor) -> list[Descriptor]:
    """Return the message types that are written inside of one: those that stand for maps are not counted."""
    return [kind for kind in descriptor.nested_types if not kind.GetOptions().map_entry]


def _named(file: FileDescriptor, index: tuple[int, ...]) -> str:
    """Return the name that an index has in a file, for people; ``""`` where it has none."""
    kinds = list(file.message_types_by_name.values())
    name = ""
    for number in index:
        if not 0 <= number < len(kinds):
            return ""
        name = f" ({kinds[number].full_name})"
        kinds = _inside(kinds[number])
    return name


class _Converters:
    """Makes a function for each message type, once; a type may contain itself."""

    def __init__(self) -> None:
        self._known: dict[str, Convert] = {}

    def message(self, descriptor: Descriptor) -> Convert:
        """Return the function of a message type."""
        name = descriptor.full_name
        known = self._known.get(name)
        if known is not None:
            return known
        if name in _TIMES:
            convert: Convert = _milliseconds
        elif name in _WRAPPERS:
            convert = _wrapped
        elif name in _AS_JSON:
            convert = _as_json
        else:
            convert = self._fields(descriptor)
        self._known[name] = convert
        return convert

    def _fields(self, descriptor: Descriptor) -> Convert:
        always: list[tuple[str, Convert | None]] = []
        present: list[tuple[str, Convert | None]] = []

        def convert(found: Any) -> dict[str, object]:
            fields: dict[str, object] = {}
            for name, made in always:
                value = getattr(found, name)
                fields[name] = value if made is None else made(value)
            for name, made in present:
                if found.HasField(name):
                    value = getattr(found, name)
                    fields[name] = value if made is None else made(value)
            return fields

        self._known[descriptor.full_name] = convert  # before its fields, which may be of this type
        for field in descriptor.fields:
            pair = (field.name, self._field(field))
            (present if field.has_presence else always).append(pair)
        return convert

    def _field(self, field: FieldDescriptor) -> Convert | None:
        """Return the function of a field, None where the value is what it should be."""
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            value = self._single(kind.fields_by_name["value"])
            return lambda found: {
                str(key): item if value is None else value(item) for key, item in found.items()
            }
        single = self._single(field)
        if not field.is_repeated:
            return single
        return list if single is None else (lambda found: [single(item) for item in found])

    def _single(self, field: FieldDescriptor) -> Convert | None:
        if field.message_type is not None:
            return self.message(field.message_type)
        return None if field.enum_type is None else _names(field.enum_type)


def _names(enum: EnumDescriptor) -> Convert:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda found: names.get(found, found)


def _milliseconds(found: Any) -> int:
    return int(found.seconds * 1000 + found.nanos // 1_000_000)


def _wrapped(found: Any) -> object:
    return found.value


def _as_json(found: Any) -> object:
    return json_format.MessageToDict(found)
