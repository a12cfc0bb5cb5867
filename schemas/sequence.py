"""What is remembered of a sequence between two of its steps: pure values, saved and restored as they are.

A `SequenceState` belongs to the sequence, not to the process: it is what a snapshot holds (DESIGN §6). Keys carry
the type of the id, for 7 and ``"7"`` are different sequences (SEMANTICS SQ-14, KX-12).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.schemas.infer import SequenceId
from headrace.schemas.tensor import Shape

if TYPE_CHECKING:
    from headrace.schemas.remembered import Recent

MAX_ID_BYTES = 128
"""Bytes of a sequence id that is text, Triton's own bound: it stands in keys, in every snapshot, and in answers."""


class Flag(IntEnum):
    """Whether a sequence goes on. All but `LIVE` are markers: no state, kept until their tombstone (DELIVERY P-2)."""

    LIVE = 0
    ENDED = 1
    EXPIRED = 2
    LOST = 3


class SequenceState(NamedTuple):
    """A sequence as of one of its requests.

    Attributes:
        offset: Of that request in its partition; it and all earlier ones of the sequence are finished.
        flag: Whether the sequence goes on.
        timestamp_ms: The request's record timestamp: idleness counts from it (DELIVERY P-15).
        version: Model version that the sequence is bound to.
        steps: Requests that ran since START.
        tensors: Raw little-endian bytes of one item per declared state, in the order of the configuration; none
            where the model declares no state and in markers.
        shapes: Their shapes without the batch axis; one tuple shared by all where the dims are fixed.
        recent: Idempotency keys and answers of its latest requests that had one; only in what is stored (P-17).
    """

    offset: int
    flag: Flag
    timestamp_ms: int
    version: int
    steps: int
    tensors: tuple[bytes, ...] = ()
    shapes: tuple[Shape, ...] = ()
    recent: Recent = ()

    def marked(self, flag: Flag, offset: int) -> SequenceState:
        """Return the marker that follows this state: without tensors, at a later offset."""
        return SequenceState(offset, flag, self.timestamp_ms, self.version, self.steps)


def sequence_key(sequence_id: SequenceId) -> bytes:
    """Return the type-tagged id, ``u:7`` or ``s:7``: the name of a sequence in every table and state record."""
    if isinstance(sequence_id, int):
        return b"u:%d" % sequence_id
    return b"s:" + sequence_id.encode()


def sequence_id_of(key: bytes) -> SequenceId:
    """Return the id of a type-tagged key.

    Raises:
        ValueError: `sequence_key` makes no such key: no tag, no id, no number behind ``u:``, or one in another form.
    """
    found: SequenceId = 0
    tag, _, text = key.partition(b":")
    if tag == b"u":
        found = int(text)
    elif tag == b"s":
        found = text.decode()
    if not found or sequence_key(found) != key or key.startswith(b"u:-"):
        raise ValueError(f"the key {key[:80]!r} is no sequence's, expected u:NUMBER or s:TEXT")
    return found
