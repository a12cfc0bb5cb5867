"""What the client of a sequence is told when its request has none to run in. Pure.

Programs switch on the reason; the texts hold Triton's words for those that match on them (SEMANTICS SQ-03).
"""

from __future__ import annotations

from headrace.schemas.errors import InvalidRequest, QueueFull, Reason
from headrace.schemas.infer import SequenceId

START_FIRST = "must specify the START flag on the first request of the sequence"
"""What Triton says to a request of an unknown sequence."""

MAX_SHOWN_BYTES = 60


class SequenceWords:
    """The errors of one model."""

    def __init__(self, model_name: str, idle_ms: float) -> None:
        """Keep what they name: the model, and its longest silence in ms."""
        self._model_name = model_name
        self._idle_ms = idle_ms

    def _request(self, sequence_id: SequenceId) -> str:
        return f"inference request for sequence {sequence_id} to model '{self._model_name}' {START_FIRST}"

    def unknown(
        self, sequence_id: SequenceId, *, there: int | None = None, here: int = 0
    ) -> InvalidRequest:
        """Nothing is known of it, or it has ended; ``there``: it is live on another partition than ``here``."""
        where = "" if there is None else f" (it is live on partition {there}, and this is {here})"
        return InvalidRequest(self._request(sequence_id) + where, reason=Reason.SEQUENCE_UNKNOWN)

    def other_version(self, sequence_id: SequenceId, asked: int, bound: int) -> InvalidRequest:
        """A later request asks for another version than the sequence is on."""
        return InvalidRequest(
            f"{self._request(sequence_id)}: it asks for version {asked}, and the sequence is on version {bound}",
            reason=Reason.SEQUENCE_UNKNOWN,
        )

    def expired(self, sequence_id: SequenceId, silent_ms: float) -> InvalidRequest:
        """It was silent for too long; or, where it was not, it waited for a slot for longer than it had time."""
        if silent_ms > self._idle_ms:
            why = (
                f"{silent_ms / 1000:.3f} s after its last request, expected within {self._idle_ms / 1000:.3f} s "
                "(max_sequence_idle_microseconds)"
            )
        else:
            why = "a timeout or deadline of its requests passed while it waited for a slot"
        return InvalidRequest(
            f"{self._request(sequence_id)}: it expired, {why}", reason=Reason.SEQUENCE_EXPIRED
        )

    def lost(self, sequence_id: SequenceId, why: str) -> InvalidRequest:
        """Its state is gone; ``why`` is a clause."""
        return InvalidRequest(
            f"{self._request(sequence_id)}: it was lost, {why}", reason=Reason.SEQUENCE_LOST
        )

    def other_key(self, given: bytes | None, expected: bytes) -> InvalidRequest:
        """A record's key is not its sequence id (DESIGN §4)."""
        shown = "no key" if given is None else f"the key {given[:MAX_SHOWN_BYTES]!r}"
        return InvalidRequest(
            f"the record has {shown}, expected its sequence id {expected[:MAX_SHOWN_BYTES]!r}: records of one "
            "sequence must be in one partition",
            reason=Reason.INVALID_HEADER,
        )

    def too_many(self, live: int, limit: int) -> QueueFull:
        """A START found as many live sequences as there may be."""
        return QueueFull(
            f"model '{self._model_name}' has {live} live sequences, expected at most {limit} "
            "(max_live_sequences); start this one later"
        )
