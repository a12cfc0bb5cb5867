"""The state that a worker keeps per assigned partition: ledger, and what is between admission and commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace.consumers.ledger import OffsetLedger
from headrace.schemas.batch import Entry
from headrace.schemas.record import TP


class Partition:
    """One assigned partition.

    Attributes:
        tp: Which.
        source_epoch: The source's epoch of the assignment: goes into commits (DELIVERY P-8).
        epoch: This worker's own count of takeovers: entries carry it, and a result of another is dropped.
        ledger: Finished and unfinished offsets.
        active: Taken over and not revoked: records may be admitted.
        is_leaving: It is being handed back.
        decoding: Blocks that were handed out and not routed: more are read than the sequences know of.
        in_flight: Admitted and not yet settled.
        in_flight_bytes: Their values' bytes.
        answered: Offsets whose answers are buffered for the next settle.
        answered_bytes: Their values' bytes.
        settling: Answered records whose settle is under way.
        settling_bytes: Their values' bytes.
        settles_begun: Settles that have fixed what they are about.
        settles_ended: How many of these have ended well.
        held: Entries that nobody awaits and whose queue is full: offered again when there is room.
        paused: The source does not hand out its records now.
    """

    __slots__ = (
        "active",
        "answered",
        "answered_bytes",
        "decoding",
        "epoch",
        "held",
        "in_flight",
        "in_flight_bytes",
        "is_leaving",
        "ledger",
        "paused",
        "settles_begun",
        "settles_ended",
        "settling",
        "settling_bytes",
        "source_epoch",
        "tp",
    )

    def __init__(self, tp: TP, source_epoch: int, epoch: int, ledger: OffsetLedger) -> None:
        """Start inactive, with nothing in flight."""
        self.tp = tp
        self.source_epoch = source_epoch
        self.epoch = epoch
        self.ledger = ledger
        self.active = False
        self.is_leaving = False
        self.decoding = 0
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.answered: list[int] = []
        self.answered_bytes = 0
        self.settling = 0
        self.settling_bytes = 0
        self.settles_begun = 0
        self.settles_ended = 0
        self.held: deque[Entry] = deque()
        self.paused = True

    def records_waiting(self, *, counts_settling: bool) -> int:
        """Return how many of its records take room of what may be admitted; ``counts_settling``: also what settles."""
        return self.in_flight if counts_settling else self.in_flight - self.settling

    def bytes_waiting(self, *, counts_settling: bool) -> int:
        """Return the same in bytes of their values."""
        return self.in_flight_bytes - (0 if counts_settling else self.settling_bytes)

    def let_go(self) -> int:
        """Forget what is held; returns how many records that were: whoever reads them next answers them."""
        count = records_of(self.held)
        self.held.clear()
        return count

    def __repr__(self) -> str:
        """Show where it stands."""
        state = "active" if self.active else "inactive"
        return (
            f"Partition({self.tp.topic}/{self.tp.partition}, epoch={self.epoch}, {state}, "
            f"in_flight={self.in_flight}, held={len(self.held)})"
        )


def records_of(entries: Iterable[Entry]) -> int:
    """Return how many admitted records these entries stand for: repeats that follow one hang on it (P-17)."""
    return sum([1 + len(entry.followers) for entry in entries])
