"""Fits a mapping to what its format knows of the records: a path must lead to a field that they can have. Pure.

An Avro schema and a descriptor set say which fields there are, so a mistyped name is found at start, not by the first
record. JSON says nothing: there a field that is missing is each record's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping import ModelMapping
from headrace.schemas.mapping_events import EVENT_FIELD
from headrace.schemas.mapping_path import FieldPath, Fields
from headrace.schemas.mapping_tables import nearest

NamesAt: TypeAlias = Callable[[Sequence[str | int]], Sequence[str] | None]
"""See `headrace.schemas.mapping_format.RecordFormat.names`."""


def check_fields(mapping: ModelMapping, names: NamesAt) -> None:
    """Refuse a path to a field that no record can have, one with a default too: it would always be the default.

    Args:
        mapping: As it was read; not of V2 requests.
        names: Of the source's format.

    Raises:
        ConfigError: The sentence has the nearest name.
    """
    for where, path in _paths(mapping):
        if mapping.source.events and path.steps[0] == EVENT_FIELD:
            continue  # an event may have any attribute
        for place, step in enumerate(path.steps):
            known = names(path.steps[:place])
            if isinstance(step, int) or known is None or step in known:
                continue
            expected = nearest(step, known)
            if place and not known:
                expected = f"nothing is inside of '{path.steps[place - 1]}'"
            raise ConfigError(
                f"the {mapping.source.format.word} records have no field '{step}' there, {expected}",
                file=mapping.file,
                field=where,
                value=path.text,
            )


def in_order(record: Fields, names: NamesAt, steps: tuple[str, ...] = ()) -> Fields:
    """Return a record whose fields stand as in the schema; as it was read, those with defaults stand apart."""
    known = names(steps)
    found: dict[str, object] = {}
    for name in record if known is None else [name for name in known if name in record]:
        value = record[name]
        if isinstance(value, Mapping):
            value = in_order(value, names, (*steps, name))
        found[name] = value
    return found


def _paths(mapping: ModelMapping) -> Iterator[tuple[str, FieldPath]]:
    """Yield every path, and where it stands in the file."""
    for one in mapping.inputs:
        for field in one.fields:
            yield f"inputs.{one.name}", field.path
    request, sequence = mapping.request, mapping.sequence
    said = [
        ("request.id", request.id),
        ("request.version", request.version),
        ("request.priority", request.priority),
    ]
    if sequence is not None:
        said.append(("sequence.id", sequence.id))
        for key, condition in (("start", sequence.start), ("end", sequence.end)):
            said.append((f"sequence.{key}", None if condition is None else condition.path))
    yield from ((where, path) for where, path in said if path is not None)
    for passed in mapping.results.passed:
        yield "results.pass", passed.path
