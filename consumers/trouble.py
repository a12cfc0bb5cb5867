"""Why a model's worker does not serve, over all of its memberships: readiness shows it.

A membership that ended because something will fail again, such as a right that is missing, is followed by one that
looks well until it meets the same. So such a trouble stays until something was settled, or nothing was left to settle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from headrace.consumers.partition import Partition
from headrace.schemas.errors import LogError

CALM_S = 5.0
"""A membership that is so old and has nothing in flight does not meet what has ended the one before, seconds."""


class Trouble:
    """The trouble of one model.

    Attributes:
        text: A clause, ``""`` where there is none.
    """

    def __init__(self, text: str, now_s: Callable[[], float] = time.monotonic) -> None:
        """Start with one; ``now_s`` is monotonic."""
        self.text = text
        self._now_s = now_s
        self._is_lasting = False
        self._joined_s: float | None = None

    def __repr__(self) -> str:
        """Show it."""
        return f"Trouble({self.text!r}{', lasting' if self._is_lasting else ''})"

    def failed(self, exc: LogError) -> None:
        """Take note of what has ended a membership."""
        self.text = f"the log failed: {exc.detail}"
        self._is_lasting = not exc.retriable

    def joined(self) -> None:
        """Take note of a new membership."""
        self._joined_s = self._now_s()
        if not self._is_lasting:
            self.text = ""

    def left(self) -> None:
        """Take note that a membership has ended."""
        self._joined_s = None
        self.text = self.text or "it has left its group"

    def settled(self, parts: Collection[Partition]) -> None:
        """Take note that some records were settled, or have gone into a transaction: then they are still settling."""
        if self._is_lasting and not any(part.settling for part in parts):
            self._mended()

    def look(self, parts: Collection[Partition]) -> None:
        """Take note of a membership that has nothing to do."""
        if not self._is_lasting or self._joined_s is None:
            return
        is_calm = all(part.active and not part.in_flight for part in parts)
        if is_calm and self._now_s() - self._joined_s >= CALM_S:
            self._mended()

    def _mended(self) -> None:
        self.text, self._is_lasting = "", False
