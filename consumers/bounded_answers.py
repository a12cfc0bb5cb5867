"""Answers that do not fit into a record become errors that do (FAULTS B57)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.consumers.dead_letters import record_bytes
from headrace.schemas.answers import Answer
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, Reason, TooLarge
from headrace.schemas.record import Headers, Out

ErrorEncoder: TypeAlias = Callable[[Entry, InferError, str], tuple[bytes, Headers]]
"""Entry, error, model version → value and headers."""


def bound_answer(entry: Entry, out: Out, *, max_bytes: int, encode: ErrorEncoder) -> None:
    """Make an answer that does not fit an `answer_too_large` error instead.

    Args:
        entry: Whose answer it is.
        out: Changed in place.
        max_bytes: Largest record that the log publishes, key and headers included.
        encode: Writes error answers.
    """
    size = record_bytes(out.key, out.value, out.headers)
    if size <= max_bytes:
        return
    error = TooLarge(
        f"the answer of {size} bytes is above the limit of {max_bytes} bytes of a record before its "
        "compression (max.request.size); a larger one needs a store (--claim-check-url)",
        reason=Reason.ANSWER_TOO_LARGE,
    )
    out.value, out.headers = encode(entry, error, entry.model_version)
    if record_bytes(out.key, out.value, out.headers) > max_bytes:
        # What should come back untouched is itself too much: the source alone says whose answer this is.
        bare = Entry()
        bare.tp, bare.record, bare.content_type = entry.tp, entry.record, entry.content_type
        bare.accept = entry.accept
        bare.passed = None if entry.passed is None else ()
        bare.set_attempt(entry.attempt)
        out.key = None
        out.value, out.headers = encode(bare, error, "")


def bounded(answer: Answer, *, max_bytes: int, encode: ErrorEncoder) -> Answer:
    """Return an answer as it goes out: `bound_answer` of one that has no address yet."""
    entry, value, headers = answer
    out = Out("", 0, entry.record.key, value, headers)
    bound_answer(entry, out, max_bytes=max_bytes, encode=encode)
    return entry, out.value or b"", out.headers
