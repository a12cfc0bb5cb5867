"""Field paths: ``address.lat``, ``items[0].price``, ``meta["odd.name"]``, as functions of a record. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

Fields: TypeAlias = Mapping[str, object]
"""A record's fields by name."""

Getter: TypeAlias = Callable[[Fields], object]

MAX_SHOWN_CHARS = 60
"""Characters of a value that an error repeats."""

MAX_SHOWN_BITS = 190
"""Bits of a number whose digits are shown."""

MAX_STEPS = 32
"""Steps of a path at most."""

RULE = 'expected names with dots between, [0] for the place in a list, ["odd.name"] for any other name'

_STEP = re.compile(
    r"""(?P<name>[^.\[\]"]+) | \[(?P<place>\d{1,9})\] | \["(?P<odd>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE,
)


class _Missing:
    """The one value of a field that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()


class FieldPath(NamedTuple):
    """Where a field is.

    Attributes:
        text: As it was written.
        steps: Names, and places in lists; at least one, the first is a name.
    """

    text: str
    steps: tuple[str | int, ...]

    @property
    def name(self) -> str:
        """The last name: what the field is called by itself."""
        return next(step for step in reversed(self.steps) if isinstance(step, str))


def parse_path(text: str) -> FieldPath:
    """Read a path.

    Raises:
        ValueError: It is none; the text is the rule.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "." and steps:
            at += 1
        elif steps and text[at] != "[":
            raise ValueError(RULE)
        found = _STEP.match(text, at)
        if found is None or (text[at - 1 : at] == "." and found["name"] is None):
            raise ValueError(RULE)
        if found["place"] is not None:
            steps.append(int(found["place"]))
        elif found["odd"] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", found["odd"]))
        else:
            steps.append(found["name"].strip())
        at = found.end()
    if not steps or isinstance(steps[0], int) or "" in steps or len(steps) > MAX_STEPS:
        raise ValueError(RULE)
    return FieldPath(text, tuple(steps))


def getter(path: FieldPath) -> Getter:
    """Return a function that takes a field out of a record; it raises `LookupError` or `TypeError` where it is not."""
    return _getter(path.steps)


def _getter(steps: tuple[str | int, ...]) -> Getter:
    last = steps[-1]
    if len(steps) == 1:
        return itemgetter(last)
    before = _getter(steps[:-1])
    if isinstance(last, str):
        return lambda record: before(record)[last]  # type: ignore[index]  # a TypeError says that it is no object
    return lambda record: _item(before(record), last)


def _item(value: object, place: int) -> object:
    if not isinstance(value, list):  # a text has places too
        raise TypeError
    return value[place]


def find(record: Fields, path: FieldPath) -> object:
    """Return a field, `MISSING` where it is not; slower than a `getter`, for what is rare."""
    value: object = record
    for step in path.steps:
        try:
            value = value[step] if isinstance(step, str) else _item(value, step)  # type: ignore[index]  # as above
        except (LookupError, TypeError):
            return MISSING
    return value


def optional(path: FieldPath) -> Getter:
    """Return a function that takes a field out of a record, None where it is not there."""
    if len(path.steps) == 1:
        name = path.name
        return lambda record: record.get(name)
    get = getter(path)

    def found(record: Fields) -> object:
        try:
            return get(record)
        except (LookupError, TypeError):
            return None

    return found


def shown(value: object) -> str:
    """Return a value as an error repeats it: its kind and size where it is long, in JSON's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Mapping():
            text = f"an object of {len(value)} fields"
        case list():
            text = f"a list of {len(value)}"
        case bytes() | bytearray() | memoryview():
            text = f"{len(value)} bytes"
        case int() if (
            value.bit_length() > MAX_SHOWN_BITS
        ):  # its digits may be too many to be written
            text = f"a number of {value.bit_length()} bits"
        case str():
            text = repr(value[: MAX_SHOWN_CHARS + 1])
        case _:
            text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
