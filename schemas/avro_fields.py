"""Which fields the records of an Avro schema can have, at any place in them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.schemas.avro_schema import AvroSchema


def names_at(schema: AvroSchema, steps: Sequence[str | int]) -> Sequence[str] | None:
    """Return the names of an object's fields, None where it is a map, which may have any.

    Args:
        schema: Of the records.
        steps: Of the way to the object; none are those of the record itself.
    """
    named = schema.parsed["__named_schemas"]
    found = list(_branches(schema.parsed, named))
    for step in steps:
        found = [
            branch
            for one in found
            for inside in _inside(one, step)
            for branch in _branches(inside, named)
        ]
    if any(one["type"] == "map" for one in found):
        return None
    # Of a union with several records any may be there.
    return list(dict.fromkeys(item["name"] for one in found for item in one.get("fields", ())))


def _branches(schema: Any, named: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the types that a value may have, but null."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _branches(branch, named)
    elif isinstance(schema, str):
        if schema != "null":
            yield named.get(schema, {"type": schema})
    elif isinstance(schema["type"], str):
        yield schema
    else:
        yield from _branches(schema["type"], named)


def _inside(schema: Mapping[str, Any], step: str | int) -> Iterator[Any]:
    """Yield the type of what a step leads to, none where it leads nowhere."""
    if isinstance(step, int):
        if schema["type"] == "array":
            yield schema["items"]
    elif schema["type"] == "map":
        yield schema["values"]
    else:
        for item in schema.get("fields", ()):
            if item["name"] == step:
                yield item["type"]
