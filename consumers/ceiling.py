"""How many rows a batch may have after memory ran out, and when it may have more again (FAULTS B80). Pure."""

from __future__ import annotations


class Ceiling:
    """The remembered ceiling of one model version, shared by its instances: they share a machine's memory, too.

    It falls as soon as memory runs out and rises by itself: after each ``hold_ns`` without a memory error it doubles,
    until it is what the model allows and is forgotten.

    Attributes:
        rows: Rows that a batch may have; 0 is as many as the model allows.
    """

    __slots__ = ("_hold_ns", "_max_rows", "_rises_ns", "rows")

    def __init__(self, max_rows: int, hold_ns: int) -> None:
        """Start without a ceiling.

        Args:
            max_rows: The model's ``max_batch_size``; up to 1 there is nothing to lower.
            hold_ns: How long it holds before it rises by a step.
        """
        self.rows = 0
        self._max_rows = max_rows
        self._hold_ns = hold_ns
        self._rises_ns = 0

    def __repr__(self) -> str:
        """Show it."""
        return f"Ceiling({self.rows or 'none'} of {self._max_rows} rows)"

    def lower(self, rows: int, now_ns: int) -> bool:
        """Take note that no more than ``rows`` rows, at least 1, fitted; returns whether the ceiling fell."""
        self._rises_ns = now_ns + self._hold_ns
        if rows >= (self.rows or self._max_rows):
            return False
        self.rows = rows
        return True

    def rise(self, now_ns: int) -> bool:
        """Double it if it has held for long enough; returns whether it rose."""
        if not self.rows or now_ns < self._rises_ns:
            return False
        self._rises_ns = now_ns + self._hold_ns
        self.rows = 2 * self.rows if 2 * self.rows < self._max_rows else 0
        return True
