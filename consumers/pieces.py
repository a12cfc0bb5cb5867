"""Pieces of a batch that failed, and which of them are run (FAULTS B31, B47, B80). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.consumers.retry import piece_of
from headrace.schemas.batch import Batch


class Waiting:
    """Pieces of a batch that are to be run, in the order of their entries."""

    def __init__(self, batch: Batch) -> None:
        """Start with a whole batch."""
        self._pieces = [batch]
        self._half: Batch | None = None

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._pieces)

    def pop(self) -> Batch:
        """Remove and return the first."""
        return self._pieces.pop()

    def put(self, pieces: Sequence[Batch]) -> None:
        """Put pieces before all others."""
        self._pieces.extend(reversed(pieces))

    def halve(self, pieces: Sequence[Batch]) -> None:
        """Put the halves of what failed; where the first then succeeds, the culprit is in the other one."""
        self.put(pieces)
        self._half = pieces[0]

    def succeeded(self, piece: Batch) -> None:
        """Take note of a run; the half that must fail by that is not run as it is, but halved at once."""
        if piece is not self._half:
            return
        self._half = None
        if len(self._pieces[-1]) > 1:
            self.halve(halves(self._pieces.pop()))


def halves(batch: Batch) -> list[Batch]:
    """Cut a batch, without its padding, in two."""
    rows = [row for row, entry in enumerate(batch.entries) if entry is not None]
    middle = len(rows) // 2
    return [piece_of(batch, rows[:middle]), piece_of(batch, rows[middle:])]


def within(batch: Batch, limit: int) -> list[Batch]:
    """Cut a batch, without its padding, into pieces of at most ``limit`` rows, or of one request that has more."""
    cuts: list[list[int]] = []
    size = 0
    for row, entry in enumerate(batch.entries):
        if entry is None:
            continue
        if not cuts or size + entry.rows > limit:
            cuts.append([])
            size = 0
        cuts[-1].append(row)
        size += entry.rows
    return [piece_of(batch, cut) for cut in cuts]
