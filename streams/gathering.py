"""How long records gather before they are published: as long as calls keep coming, and a bound at most. Pure.

A publish, and all that follows from it in broker and worker, costs as much as dozens of records do. So where many calls
are open, waiting a moment for the next ones answers all of them sooner; where few are, it only makes them late. How
many are open is no count of callers: most of these are between two calls. So it is looked whether more come.
"""

from __future__ import annotations

from collections.abc import Callable

FEW_CALLS = 8
"""With fewer open calls, each publish begins at once."""

ENOUGH = 32
"""Records that make waiting for more pointless: what another one adds to each of them is little by then."""

ENOUGH_SHARE = 0.8
"""So is a record of nearly each call that was open at once lately: their callers wait."""

FORGETS = 8
"""Each publish forgets one part in so many of how many calls were open at once, and of how close together they came."""

LOOK_S = 0.0015
"""How often it is looked whether more have come, seconds, where they come close together."""

GAPS = 3
"""Else it is looked after so many of the usual gaps between two: where callers and machine are slow, a look that is too
early finds none, publishes what is there, and makes all of them slower still."""


class Gathering:
    """Says when what has gathered goes out."""

    def __init__(self, gather_s: float, open_calls: Callable[[], int]) -> None:
        """Start without calls.

        Args:
            gather_s: How long records may gather, seconds; 0 is not at all.
            open_calls: Returns how many calls are open.
        """
        self._gather_s = gather_s
        self._open_calls = open_calls
        self._peak = 0.0
        self._until_s = 0.0
        self._seen = 0
        self._gap_s = 0.0
        self._published_s = -1.0

    def is_enough(self, count: int) -> bool:
        """Whether these many records go out at once."""
        if not self._gather_s:
            return True
        self._peak = max(self._peak, self._open_calls())
        if self._peak < FEW_CALLS:
            return True
        return count >= min(ENOUGH, ENOUGH_SHARE * self._peak)

    def begin(self, count: int, now_s: float) -> float:
        """Take note that records begin to gather; returns when to look again, by the same clock."""
        self._until_s = now_s + self._gather_s
        self._seen = count
        return min(now_s + self._look_s(), self._until_s)

    def look(self, count: int, now_s: float) -> float | None:
        """Return when to look again whether more have come; None where none have, or it takes too long."""
        if count <= self._seen or now_s >= self._until_s:
            return None
        self._seen = count
        return min(now_s + self._look_s(), self._until_s)

    def published(self, count: int, now_s: float) -> None:
        """Take note that so many records, which had gathered, have gone out."""
        self._peak -= self._peak / FORGETS
        if self._published_s >= 0.0:
            self._gap_s += ((now_s - self._published_s) / count - self._gap_s) / FORGETS
        self._published_s = now_s

    def _look_s(self) -> float:
        """Return how long to wait for a further record; where hardly one would come in all of the time, a moment."""
        usual_s = GAPS * self._gap_s
        return usual_s if LOOK_S < usual_s <= self._gather_s else LOOK_S
