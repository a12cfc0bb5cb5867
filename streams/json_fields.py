"""Fields of JSON objects that another process wrote: of the expected type, or a `TypeError` that says which is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]


def typed(body: JsonObject, name: str, kind: type, default: Any) -> Any:
    """Return a field of the given JSON type, or the default where it is missing.

    Raises:
        TypeError: It is of another type; the sentence names the field and its value.
    """
    value = body.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"field '{name}' is {value!r}, expected {kind.__name__}")
    return value


def required(body: JsonObject, name: str, kind: type) -> Any:
    """Return a field that must be there; see `typed`."""
    return typed(body, name, kind, None)


def whole_numbers(body: JsonObject, name: str) -> tuple[int, ...]:
    """Return a list of integers, empty where it is missing; see `typed`."""
    return tuple(typed({name: item}, name, int, None) for item in typed(body, name, list, []))


def object_of(item: object) -> JsonObject:
    """Return a JSON value that must be an object.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(item, dict):
        raise TypeError(f"{item!r} is no object")
    return item
