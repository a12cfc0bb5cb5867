"""How long to wait before a partition is taken over again whose transactions fail. Pure."""

from __future__ import annotations

from headrace.schemas.record import TP

CALM_S = 60.0
"""After so long without a failure the next one counts as the first, seconds."""


class Pauses:
    """Pauses by partition; each further failure doubles it."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        """Begin without failures."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures: dict[TP, tuple[int, float]] = {}  # in a row, and when

    def next_s(self, tp: TP, now_s: float, *, is_fenced: bool) -> float:
        """Return the pause after another failure, seconds.

        Args:
            tp: The partition.
            now_s: Monotonic time.
            is_fenced: Another producer has its transactional id: who takes it back at once would be fenced in turn
                (DELIVERY P-6). After other failures the first pause is none.
        """
        count, last = self._failures.get(tp, (0, now_s))
        count = count + 1 if now_s - last < CALM_S else 1
        self._failures[tp] = (count, now_s)
        doublings = count - 1 if is_fenced else count - 2
        if doublings < 0:
            return 0.0
        return min(self._first_s * 2.0 ** min(doublings, 40), self._longest_s)
