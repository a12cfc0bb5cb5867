"""What a record of a mapped topic says beside its inputs: id, version, priority, sequence, and what comes back.

Compiled once per mapping, called once per record. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from headrace.schemas.batch import Entry
from headrace.schemas.errors import UndecodableRecord
from headrace.schemas.headers import MAX_UINT64, checked_id
from headrace.schemas.infer import SequenceId
from headrace.schemas.mapping import Condition, ModelMapping, SequenceMapping
from headrace.schemas.mapping_path import FieldPath, Fields, Getter, optional, shown
from headrace.schemas.record import Record

Say: TypeAlias = Callable[[Entry, Record, Fields], None]
"""Sets attributes of an entry; raises `UndecodableRecord` where a field is not what it should be."""


def compile_said(mapping: ModelMapping) -> list[Say]:
    """Return what sets an entry's attributes, in the order in which errors need them: what comes back first.

    Args:
        mapping: Fitted to the model: its sequence has a type.
    """
    says: list[Say] = []
    if mapping.results.passed:
        says.append(_passed([optional(field.path) for field in mapping.results.passed]))
    request = mapping.request
    if request.id is not None:
        says.append(_id(request.id))
    if mapping.sequence is not None:
        says += _sequence(mapping.sequence)
    if request.version is not None:
        says.append(_version(request.version))
    if request.priority is not None:
        says.append(_priority(request.priority))
    return says


def _wrong(path: FieldPath, value: object, expected: str) -> UndecodableRecord:
    return UndecodableRecord(f"field '{path.text}' is {shown(value)}, expected {expected}")


def _passed(getters: list[Getter]) -> Say:
    def say(entry: Entry, _: Record, fields: Fields) -> None:
        entry.passed = tuple([get(fields) for get in getters])

    return say


def _text(path: FieldPath, what: str) -> Callable[[Fields], str]:
    """Return a function that gives a text, or a whole number as text; ``""`` where the field is missing."""
    get = optional(path)

    def text(fields: Fields) -> str:
        value = get(fields)
        if isinstance(value, str):
            return value
        if value is None:
            return ""
        if type(value) is int and value.bit_length() <= 64:
            return str(value)
        raise _wrong(path, value, f"a text or a whole number for the {what}")

    return text


def _id(path: FieldPath) -> Say:
    text = _text(path, "request's id")

    def say(entry: Entry, _: Record, fields: Fields) -> None:
        entry.id = checked_id(text(fields))

    return say


def _version(path: FieldPath) -> Say:
    text = _text(path, "model's version")

    def say(entry: Entry, _: Record, fields: Fields) -> None:
        entry.model_version = text(fields)

    return say


def _priority(path: FieldPath) -> Say:
    get = optional(path)

    def say(entry: Entry, _: Record, fields: Fields) -> None:
        value = get(fields)
        if value is None:
            return
        if type(value) is not int or not 0 <= value <= MAX_UINT64:
            raise _wrong(path, value, f"a whole number from 0 to {MAX_UINT64} for the priority")
        entry.priority = value

    return say


def _sequence(mapping: SequenceMapping) -> list[Say]:
    says = [_sequence_id(mapping)]
    if mapping.start is not None:
        is_start = _is_met(mapping.start)

        def start(entry: Entry, _: Record, fields: Fields) -> None:
            if is_start(fields):
                entry.sequence_start = True

        says.append(start)
    if mapping.end is not None:
        is_end = _is_met(mapping.end)

        def end(entry: Entry, _: Record, fields: Fields) -> None:
            if is_end(fields):
                entry.sequence_end = True

        says.append(end)
    return says


def _is_met(condition: Condition) -> Callable[[Fields], bool]:
    """Return whether a record's field has one of the values; true is not 1 here, and 1.0 is."""
    get = optional(condition.path)
    values = frozenset([(type(value) is bool, value) for value in condition.values])

    def is_met(fields: Fields) -> bool:
        value = get(fields)
        try:
            return (type(value) is bool, value) in values
        except TypeError:  # a list or an object, which is none of them
            return False

    return is_met


def _sequence_id(mapping: SequenceMapping) -> Say:
    read = _number_of if mapping.id_type == "uint64" else _name_of
    path = mapping.id
    if path is None:

        def say_key(entry: Entry, record: Record, _: Fields) -> None:
            entry.sequence_id = _from_key(record.key, read)

        return say_key
    get = optional(path)

    def say(entry: Entry, _: Record, fields: Fields) -> None:
        value = get(fields)
        found = read(value)
        if not found:
            raise _wrong(path, value, f"{_EXPECTED[read]} for the sequence id")
        entry.sequence_id = found

    return say


def _from_key(key: bytes | None, read: Callable[[object], SequenceId]) -> SequenceId:
    found: SequenceId = 0
    with suppress(UnicodeDecodeError):
        found = read(None if key is None else key.decode())
    if not found:
        word = "no key" if key is None else f"the key {key[:60]!r}"
        raise UndecodableRecord(
            f"the record has {word}, expected {_EXPECTED[read]}, which is its sequence id"
        )
    return found


def _name_of(value: object) -> SequenceId:
    """Return a sequence id that is text, ``""`` where the value is none."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int and value.bit_length() <= 64 else ""


def _number_of(value: object) -> SequenceId:
    """Return a sequence id that is a number, 0 where the value is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_UINT64 else 0


_EXPECTED: Mapping[Callable[[object], SequenceId], str] = {
    _name_of: "a text that is not empty",
    _number_of: f"a whole number from 1 to {MAX_UINT64}",
}
