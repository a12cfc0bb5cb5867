"""Dead letters: an extra copy of an input that could not be decoded, with where it came from and why.

The original bytes, key and headers are kept; what we add has names of its own, so a redrive can strip it.
"""

from __future__ import annotations

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError
from headrace.schemas.record import Out

PREFIX = "dead-letter-"
MAX_DETAIL_CHARS = 2000
"""An error's sentence in a header is cut there."""


def dead_letter(
    entry: Entry, error: InferError, *, model_name: str, topic: str, partitions: int
) -> Out:
    """Return the record for the dead-letter topic.

    Args:
        entry: The refused entry; only its record and partition are read.
        error: Why.
        model_name: Whose topic it came from.
        topic: The dead-letter topic.
        partitions: Its partition count; the input's partition number is used modulo.
    """
    record = entry.record
    tp = entry.tp
    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    headers += [
        (f"{PREFIX}source", f"{tp.topic}/{tp.partition}/{record.offset}".encode()),
        (f"{PREFIX}timestamp", str(record.timestamp).encode()),
        (f"{PREFIX}model", model_name.encode()),
        (f"{PREFIX}version", entry.model_version.encode()),
        (f"{PREFIX}status", error.code.encode()),
        (f"{PREFIX}reason", error.reason.encode()),
        (f"{PREFIX}detail", error.detail[:MAX_DETAIL_CHARS].encode()),
        (f"{PREFIX}class", type(error).__name__.encode()),
        (f"{PREFIX}attempts", b"1"),
    ]
    return Out(topic, tp.partition % partitions, record.key, record.value, headers)
