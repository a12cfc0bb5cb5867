"""Dead letters: an extra copy of an input that could not be decoded, with where it came from and why.

The original bytes, key and headers are kept; what we add has names of its own, so a redrive can strip it.
"""

from __future__ import annotations

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError
from headrace.schemas.record import TP, Header, Headers, Out

PREFIX = "dead-letter-"
MAX_DETAIL_CHARS = 2000
"""An error's sentence in a header is cut there."""


RECORD_OVERHEAD_BYTES = 128
"""What a record of its own batch takes beside key, value and headers, rounded up."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of a record's size as the producer counts it, bytes."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(len(name.encode()) + len(item or b"") + 10 for name, item in headers)


def dead_letter(
    entry: Entry, error: InferError, *, model_name: str, target: TP, max_record_bytes: int
) -> Out:
    """Return the record for the dead-letter topic.

    Args:
        entry: The refused entry; only its record and partition are read.
        error: Why.
        model_name: Whose topic it came from.
        target: The dead-letter topic's partition.
        max_record_bytes: Largest record: a value that our headers push above it is left out, and a header says so;
            then the key and the record's own headers, if these alone are too much.
    """
    record = entry.record
    tp = entry.tp
    theirs = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    ours: list[Header] = [
        (f"{PREFIX}source", f"{tp.topic}/{tp.partition}/{record.offset}".encode()),
        (f"{PREFIX}timestamp", str(record.timestamp).encode()),
        (f"{PREFIX}model", model_name.encode()),
        (f"{PREFIX}version", entry.model_version.encode()),
        (f"{PREFIX}status", error.code.encode()),
        (f"{PREFIX}reason", error.reason.encode()),
        (f"{PREFIX}detail", error.detail[:MAX_DETAIL_CHARS].encode("utf-8", "backslashreplace")),
        (f"{PREFIX}class", type(error).__name__.encode()),
        (f"{PREFIX}attempts", b"1"),
    ]
    value = record.value
    if value is None and record.key is None:
        value = b""  # neither key nor value is no record; the reason says that the value was null
    key = record.key
    if record_bytes(key, value, [*theirs, *ours]) > max_record_bytes:
        ours.append((f"{PREFIX}omitted-bytes", str(len(value or b"")).encode()))
        value = b""
    if record_bytes(key, value, [*theirs, *ours]) > max_record_bytes:
        ours.append((f"{PREFIX}omitted-headers", str(len(theirs)).encode()))
        ours.append((f"{PREFIX}omitted-key-bytes", str(len(key or b"")).encode()))
        theirs, key = [], None
    return Out(target.topic, target.partition, key, value, [*theirs, *ours])
