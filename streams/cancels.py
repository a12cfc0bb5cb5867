"""Cancel records: a caller went away, so its request may be dropped wherever it still waits.

A gateway writes one for a closed or cancelled call; every worker reads the cancels topic from its end, without a
group, and offers the ids to its batchers (SEMANTICS QT-07, CX-01). A cancel is a wish: a request that executes
or is answered already ignores it.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.schemas.record import CORRELATION_ID, MODEL_NAME, Headers, Out, Record


class Cancel(NamedTuple):
    """Which request of which model; the correlation id is the opaque bytes of its own header."""

    model: str
    correlation_id: bytes


def cancel_record(topic: str, partition: int, cancel: Cancel) -> Out:
    """Return the record that cancels a request: no value, everything in headers.

    The key is the correlation id, so the topic may be compacted or not; an empty value rather than a null keeps
    it from being a tombstone there.
    """
    headers: Headers = (
        (MODEL_NAME, cancel.model.encode()),
        (CORRELATION_ID, cancel.correlation_id),
    )
    return Out(topic, partition, cancel.correlation_id, b"", headers)


def read_cancel(record: Record) -> Cancel | None:
    """Read a cancel record; None where it is none, so that a stranger's record harms nobody."""
    found = dict(record.headers)
    model, correlation_id = found.get(MODEL_NAME), found.get(CORRELATION_ID)
    if not model or not correlation_id:
        return None
    try:
        return Cancel(model.decode(), correlation_id)
    except UnicodeDecodeError:
        return None
