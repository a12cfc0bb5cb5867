"""What a worker shows of the sequences that it holds, as JSON on its own port: for people, not for programs' decisions.

A worker answers with a page of rows, `headrace sequences` merges the pages of all workers of a model. Fields that a
later release adds are ignored; what is no page at all is an error of the reader's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from headrace.schemas.infer import SequenceId

DEFAULT_LIMIT = 100
"""Rows of a page, unless asked for otherwise."""

MAX_LIMIT = 10_000
"""Rows of a page at most: about 1.5 MB of JSON, made while the worker's loop waits (FAULTS B2)."""

BACKLOG = "backlog"
"""Place of a sequence whose requests wait for a slot."""

IDLE = "idle"
"""Place of a sequence that holds no slot and has no request: its state is kept, and its next request finds one."""


def slot_name(slot: int) -> str:
    """Return the place of a sequence that holds a slot: ``slot 3``."""
    return f"slot {slot}"


NO_INSTANCE = -1
"""Of a sequence that holds no slot."""


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """One live sequence.

    Attributes:
        id: Its id; 7 and ``"7"`` are two sequences (SEMANTICS SQ-14).
        partition: Of the model's requests topic, by its key.
        place: `slot_name`, `BACKLOG` or `IDLE`.
        instance: Of the model, whose slot it is; `NO_INSTANCE` without a slot.
        steps: Requests that ran since START.
        idle_ms: Milliseconds since its last request's record timestamp (DELIVERY P-15).
        version: Model version that it is bound to.
        worker: Id of the worker that holds it.
    """

    id: SequenceId
    partition: int
    place: str
    instance: int
    steps: int
    idle_ms: int
    version: int
    worker: str

    @property
    def id_type(self) -> str:
        """``uint64`` or ``string``, as the header ``sequence-id-type`` spells it."""
        return "uint64" if isinstance(self.id, int) else "string"

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object; the id has its own JSON type, and ``id_type`` says it once more."""
        return {**asdict(self), "id_type": self.id_type}


@dataclass(frozen=True, slots=True)
class SequencePage:
    """Some of a model's live sequences.

    Attributes:
        rows: The most recently active ones, those first; at most as many as were asked for. Of 200,000 sequences
            these are the ones that somebody looks for.
        total: How many there are.
    """

    rows: tuple[SequenceRow, ...]
    total: int

    def to_json(self) -> bytes:
        """Return the body of the answer, in ASCII: ids are clients' words, and it may end on a terminal."""
        body = {"total": self.total, "sequences": [row.to_json() for row in self.rows]}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read one.

        Raises:
            ValueError: It is no page; says what is wrong.
        """
        try:
            document = _object(json.loads(body))
            rows = tuple(_row(item) for item in _field(document, "sequences", list))
            return cls(rows, _field(document, "total", int))
        except (TypeError, RecursionError) as exc:
            raise ValueError(str(exc)) from exc


def merged(pages: Iterable[SequencePage], limit: int) -> SequencePage:
    """Return the most recently active sequences of all workers; ties by partition, then by id.

    While a partition changes its owner a sequence may be shown twice, once for each worker that holds it.
    """
    pages = list(pages)
    rows = sorted(
        (row for page in pages for row in page.rows),
        key=lambda row: (row.idle_ms, row.partition, str(row.id), row.id_type, row.worker),
    )
    return SequencePage(tuple(rows[:limit]), sum(page.total for page in pages))


def limit_of(text: str | None) -> int:
    """Return the number of rows that a query's ``limit`` asks for, `DEFAULT_LIMIT` without one.

    Raises:
        ValueError: It is no whole number from 1 to `MAX_LIMIT`.
    """
    if text is None:
        return DEFAULT_LIMIT
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
    if not 1 <= number <= MAX_LIMIT:
        raise ValueError(f"limit is {text[:60]!r}, expected a whole number from 1 to {MAX_LIMIT}")
    return number


def _row(item: object) -> SequenceRow:
    body = _object(item)
    found = body.get("id")
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise TypeError(f"field 'id' is {found!r}, expected a whole number or a string")
    return SequenceRow(
        id=found,
        partition=_field(body, "partition", int),
        place=_field(body, "place", str),
        instance=_field(body, "instance", int),
        steps=_field(body, "steps", int),
        idle_ms=_field(body, "idle_ms", int),
        version=_field(body, "version", int),
        worker=_field(body, "worker", str),
    )


def _object(item: object) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise TypeError(f"{item!r} is no object")
    return item


def _field(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"field '{name}' is {value!r}, expected {kind.__name__}")
    return value
