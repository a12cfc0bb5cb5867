"""Dead letters: an extra copy of an input that could not be served, with where it came from and why.

What such a record looks like is `headrace.schemas.dead_letter`'s; here it is made of an entry and its error.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.batcher import Refusal
from headrace.schemas.batch import Entry
from headrace.schemas.claim_check import original
from headrace.schemas.dead_letter import DeadLetter, record_bytes, write_dead_letter
from headrace.schemas.errors import InferError
from headrace.schemas.record import TP, Out

__all__ = ["dead_entries", "dead_letter", "record_bytes"]


def dead_letter(
    entry: Entry,
    error: InferError,
    *,
    model_name: str,
    target: TP,
    max_record_bytes: int,
    version: str = "",
) -> Out:
    """Return the record for the dead-letter topic.

    Args:
        entry: The entry that failed; its record, partition, version and attempt are read.
        error: Why.
        model_name: Whose topic it came from.
        target: The dead-letter topic's partition.
        max_record_bytes: Largest record, see `headrace.schemas.dead_letter.write_dead_letter`.
        version: The version that it failed on; ``""``: that of its sequence, else the one that was asked for.
    """
    record = original(entry.record)  # a claim, not the value that it stands for
    letter = DeadLetter(
        source=entry.tp,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        model=model_name,
        version=version or (str(entry.version) if entry.version else entry.model_version),
        status=error.code.value,
        reason=error.reason.value,
        error_class=type(error).__name__,
        detail=error.detail,
        attempts=entry.attempt,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )
    return write_dead_letter(letter, target, max_record_bytes)


def dead_entries(refusals: Iterable[Refusal]) -> list[Entry]:
    """Return the entries whose records are kept as dead letters too."""
    return [refusal.entry for refusal in refusals if refusal.entry.dead_letter]
