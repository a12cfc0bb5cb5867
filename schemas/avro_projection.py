"""The fields of one Avro record as another schema wants them, where that takes no more than taking and leaving fields.

fastavro resolves two schemas anew with each record, which more than doubles the time of reading it. Most schemas evolve
by fields that come with a default, go, get another name or may be null: then a record is read as it was written, and
the reader's fields are picked. Whatever is not certain to come out as fastavro would have it is left to fastavro.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form
from headrace.schemas.avro_schema import AvroSchema

Project: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From a record as it was written to the reader's fields."""

_WIDER = frozenset({('"int"', '"long"'), ('"float"', '"double"')})
"""Types whose values are the same for Python when they are read as the other one."""

_NULL = '"null"'


def projection(writer: AvroSchema, reader: AvroSchema) -> Project | None:
    """Return what makes the reader's fields of the writer's; None where their types must be resolved."""
    if _last(writer.name) != _last(reader.name):
        return None
    written = {item["name"]: item["type"] for item in writer.parsed["fields"]}
    taken: list[tuple[str, str]] = []
    defaults: dict[str, Any] = {}
    for item in reader.parsed["fields"]:
        name = item["name"]
        names = [one for one in (name, *item.get("aliases", ())) if one in written]
        if names and _is_same(written[names[0]], item["type"]):
            taken.append((name, names[0]))
        elif names or "default" not in item:
            return None
        else:
            defaults[name] = item["default"]
    if len({source for _, source in taken}) < len(taken):
        return None  # one is meant twice, by its name and by another field's alias

    def project(found: Mapping[str, Any]) -> dict[str, Any]:
        return {**defaults, **{name: found[source] for name, source in taken}}

    return project


def _is_same(written: Any, wanted: Any) -> bool:
    """Whether every value of a type is the same value when it is read as another one."""
    one, other = _canonical(written), _canonical(wanted)
    if one is None or other is None:
        return False
    if one == other or (one, other) in _WIDER:
        return True
    if not isinstance(wanted, list) or isinstance(written, list):
        return False
    branches = [branch for branch in map(_canonical, wanted) if branch != _NULL]
    return branches == [one]


def _canonical(kind: Any) -> str | None:
    """Return a type's canonical form; None where it names another type, which may differ behind its name."""
    try:
        return to_parsing_canonical_form(kind)
    except (UnknownType, SchemaParseException):
        return None


def _last(name: str) -> str:
    return name.rpartition(".")[2]
