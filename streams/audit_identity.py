"""Which request a record answers: what its headers say, read once and without a copy (DESIGN §4).

An answer's identity is its ``source`` (``topic/partition/offset`` of the accepted request) together with its
``response-index``, which only models of 0..n responses write. ``attempt`` says how often the request was tried and is
no part of it: a repeat stays a repeat. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.schemas.dead_letter import SOURCE as DEAD_LETTER_SOURCE
from headrace.schemas.headers import find_header
from headrace.schemas.record import ATTEMPT, FINAL, RESPONSE_INDEX, SOURCE, Headers

WHOLE = -1
"""Index of an answer without ``response-index``: the only one of its request, or the error that ends its responses."""

MAX_DIGITS = 18
"""Digits of an offset or an index that are believed; Kafka's own offsets have 19 at most."""


class Identity(NamedTuple):
    """Whose answer a record is.

    Attributes:
        partition: ``topic/partition`` of the request, as the header spells it.
        offset: Its offset there.
        response: Number of this response from 0, or `WHOLE`.
        final: No response follows it.
        attempt: How often the request had been tried, this time included; 1 where nothing is said.
    """

    partition: bytes
    offset: int
    response: int = WHOLE
    final: bool = True
    attempt: int = 1


def identity_of(headers: Headers) -> Identity | None:
    """Return whose answer a record is; None where no header says so in a form that can be read."""
    source = index = final = attempt = None
    for name, raw in headers:
        if name == SOURCE:
            source = raw
        elif name == RESPONSE_INDEX:
            index = raw
        elif name == FINAL:
            final = raw
        elif name == ATTEMPT:
            attempt = raw
    place = _place(source)
    number = WHOLE if index is None else _number(index)
    if place is None or number is None:
        return None
    partition, offset = place
    if attempt is None or attempt == b"1":
        return Identity(partition, offset, number, final != b"false")
    return Identity(partition, offset, number, final != b"false", _number(attempt) or 1)


def dead_letter_of(headers: Headers) -> tuple[bytes, int] | None:
    """Return ``topic/partition`` and offset of the request that a dead letter keeps, None of any other record."""
    return _place(find_header(headers, DEAD_LETTER_SOURCE))


def source_prefix(topic: str, partition: int) -> bytes:
    """Return how a ``source`` spells a partition."""
    return f"{topic}/{partition}".encode()


def _place(source: bytes | None) -> tuple[bytes, int] | None:
    if source is None:
        return None
    partition, _, digits = source.rpartition(b"/")
    offset = _number(digits)
    return None if offset is None or b"/" not in partition else (partition, offset)


def _number(raw: bytes) -> int | None:
    return int(raw) if raw and raw.isdigit() and len(raw) <= MAX_DIGITS else None
