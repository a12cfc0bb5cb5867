"""What each record of a sequence model must be answered, from the order of its partition's log alone.

The model that the storms serve folds: ``state' = state · k + x`` in 64 bits that wrap, output = state', with ``k`` by
model version. So a step that is skipped, repeated, reordered or fed another id's state shows in every later answer.
Nothing of the worker is used here but the words for what can go wrong.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.schemas.errors import Reason
from headrace.schemas.infer import SequenceId
from headrace.schemas.sequence import Flag, sequence_key

INITIAL = 7
FACTORS = {1: 31, 2: 1_000_003}
"""Model version → what it multiplies by."""


def folded(state: int, value: int, version: int = 1) -> int:
    """Return the state after a step, as 64 signed bits."""
    wrapped = (state * FACTORS[version] + value) & 0xFFFF_FFFF_FFFF_FFFF
    return wrapped - (1 << 64) if wrapped >> 63 else wrapped


CLOSED = {Flag.EXPIRED: Reason.SEQUENCE_EXPIRED, Flag.LOST: Reason.SEQUENCE_LOST}
"""How an id's sequence ended → what a step without START hears; of an ended one that it is unknown."""


class Asked(NamedTuple):
    """A record as the client meant it.

    Attributes:
        sequence_id: 0 is none.
        value: The input.
        timestamp_ms: Of the record.
        start: It says START.
        end: It says END.
        refused: It can be no step of any sequence, whatever came before: why.
        fails: The model fails on it.
        version: Model version that it asks for; 0 is the newest.
        deadly: The worker dies of it.
    """

    sequence_id: SequenceId
    value: int
    timestamp_ms: int
    start: bool = False
    end: bool = False
    refused: Reason | None = None
    fails: bool = False
    version: int = 0
    deadly: bool = False


class Known(NamedTuple):
    """What is known of an id after one of its records."""

    state: int
    flag: Flag
    timestamp_ms: int
    version: int


class Due(NamedTuple):
    """What a record must be answered; no ``reason`` is a success, and then ``value`` is the output.

    Attributes:
        is_step: It was run, well or not: a snapshot must cover it (P-3).
        after: Its sequence after it; None where nothing is known of the id.
    """

    reason: Reason | None
    value: int
    is_step: bool
    after: Known | None


class Oracle:
    """One partition, read in offset order.

    Attributes:
        known: Type-tagged id → what is known of it.
    """

    def __init__(self, idle_ms: int) -> None:
        """Start at the beginning of the log.

        Args:
            idle_ms: A gap between record timestamps above this ends a sequence (P-15).
        """
        self.known: dict[bytes, Known] = {}
        self._idle_ms = idle_ms

    def next(self, asked: Asked) -> Due:
        """Say what the next record must be answered."""
        key = sequence_key(asked.sequence_id)
        before = self.known.get(key)
        if asked.refused is not None:
            return Due(asked.refused, 0, is_step=False, after=before)
        if (
            before is not None
            and before.flag is Flag.LIVE
            and asked.timestamp_ms - before.timestamp_ms > self._idle_ms
        ):
            before = before._replace(flag=Flag.EXPIRED)
        if not asked.start and (before is None or before.flag is not Flag.LIVE):
            if before is None:
                return Due(Reason.SEQUENCE_UNKNOWN, 0, is_step=False, after=None)
            self.known[key] = before
            reason = CLOSED.get(before.flag, Reason.SEQUENCE_UNKNOWN)
            return Due(reason, 0, is_step=False, after=before)
        if asked.deadly:
            # Nobody knows what its sequence would be: it is lost (P-14). An id that was unknown stays so.
            if before is not None:
                before = self.known[key] = before._replace(flag=Flag.LOST)
            return Due(Reason.WORKER_CRASHED, 0, is_step=before is not None, after=before)
        version = asked.version or max(FACTORS)
        state = INITIAL
        if not asked.start:
            assert before is not None
            state, version = before.state, before.version
        flag = Flag.ENDED if asked.end else Flag.LIVE
        if not asked.fails:
            state = folded(state, asked.value, version)
        after = self.known[key] = Known(state, flag, asked.timestamp_ms, version)
        if asked.fails:
            return Due(Reason.BACKEND_FAILED, 0, is_step=True, after=after)
        return Due(None, state, is_step=True, after=after)

    def live(self) -> dict[bytes, Known]:
        """Return the sequences that a later owner would go on with."""
        return {key: known for key, known in self.known.items() if known.flag is Flag.LIVE}
