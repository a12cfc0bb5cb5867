"""Requests whose execution failed in a way that may pass, until they are tried again. Pure.

They wait here and not in the batcher, so that nobody waits behind them; what must keep its order does: a step of a
sequence counts as running until its last try, so the next step stays in its queue (DELIVERY P-18). What is held was
admitted, so its number is bounded by what intake admits.
"""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError
from headrace.schemas.record import TP

LOOK_NS = 100_000_000
"""How often deadlines are looked at of what is due and has no instance: so much too late they may be noticed."""


@dataclass(frozen=True, slots=True)
class RetryBounds:
    """How often and how soon a request is tried again.

    Attributes:
        max_attempts: Tries of a request in this process, the first one included.
        backoff_ns: Pause before the second try; it doubles with each further one.
        backoff_max_ns: Longest pause.
    """

    max_attempts: int = 3
    backoff_ns: int = 100_000_000
    backoff_max_ns: int = 5_000_000_000


class Held(NamedTuple):
    """Requests that wait for their next try, together.

    Attributes:
        not_before_ns: Monotonic time from which on they may run.
        batch: Without padding rows.
        error: Of their last try; None where they did not run at all.
    """

    not_before_ns: int
    batch: Batch
    error: InferError | None


class Retries:
    """What is tried again of one model version."""

    def __init__(
        self, bounds: RetryBounds, *, jitter: Callable[[], float] = random.random
    ) -> None:
        """Start with nothing.

        Args:
            bounds: How often and how soon.
            jitter: A number from 0 to 1, another one each time: a pause is shortened by up to half of it, so that what
                failed together does not come back together.
        """
        self._bounds = bounds
        self._jitter = jitter
        self._held: list[Held] = []
        # Failed tries of what is held or runs again; an entry leaves with its last outcome.
        self._tries: dict[Entry, int] = {}

    def __bool__(self) -> bool:
        """Whether something is held, or runs again."""
        return bool(self._held or self._tries)

    def __len__(self) -> int:
        """Return the number of held requests."""
        return sum(len(held.batch) for held in self._held)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Retries({len(self)} held, {len(self._tries)} tried before)"

    def hold(
        self, batch: Batch, error: InferError, now_ns: int, *, singly: bool = False
    ) -> list[int]:
        """Hold what may be tried again of requests that failed together; raises the attempt of each.

        Args:
            batch: Without padding rows.
            error: Of this try.
            now_ns: Monotonic time.
            singly: Each runs alone at its next try: nobody knows which of them brought the instance down.

        Returns:
            Rows of the others: their last try is used, or their deadline comes before the next one.
        """
        over: list[int] = []
        together: dict[int, list[int]] = {}
        for row, entry in enumerate(batch.entries):
            assert entry is not None, "padding is not tried again"
            tries = self._tries.get(entry, 0) + 1
            pause_ns = self._pause_ns(tries)
            late = entry.expires_ns and now_ns + pause_ns > entry.expires_ns
            if tries >= self._bounds.max_attempts or late:
                over.append(row)
                continue
            self._tries[entry] = tries
            entry.set_attempt(entry.attempt + 1)
            together.setdefault(tries, []).append(row)
        for tries, rows in together.items():
            for some in [[row] for row in rows] if singly else [rows]:
                pause_ns = round(self._pause_ns(tries) * (1 - self._jitter() / 2))
                held = Held(now_ns + pause_ns, piece_of(batch, some), error)
                insort(self._held, held, key=_not_before)
        return over

    def put_back(self, batch: Batch, now_ns: int) -> None:
        """Hold requests that did not run: their instance was gone before their turn."""
        insort(self._held, Held(now_ns, batch, None), key=_not_before)

    def take(self, now_ns: int) -> Batch | None:
        """Remove and return what may run now, the longest due first; None where nothing may."""
        if not self._held or self._held[0].not_before_ns > now_ns:
            return None
        return self._held.pop(0).batch

    def ended(self, batch: Batch) -> None:
        """Forget the tries of requests that got their last outcome."""
        if self._tries:
            for entry in batch.entries:
                if entry is not None:
                    self._tries.pop(entry, None)

    def expire(self, now_ns: int) -> Sequence[Held]:
        """Remove and return the requests whose deadline has passed while no instance was free for them."""
        return self._split(lambda entry: 0 < entry.expires_ns < now_ns)

    def drop(self, tp: TP) -> Sequence[Held]:
        """Remove and return a partition's requests: it is not ours any more."""
        return self._split(lambda entry: entry.tp == tp)

    def wake_at(self, now_ns: int) -> int | None:
        """Return the soonest time after now at which something may run, or deadlines are to be looked at."""
        due = bisect_right(self._held, now_ns, key=_not_before)
        if due:
            return now_ns + LOOK_NS
        return self._held[0].not_before_ns if self._held else None

    def _split(self, leaves: Callable[[Entry], bool]) -> list[Held]:
        found: list[Held] = []
        kept: list[Held] = []
        for held in self._held:
            rows = [row for row, e in enumerate(held.batch.entries) if e is not None and leaves(e)]
            if not rows:
                kept.append(held)
                continue
            found.append(held._replace(batch=piece_of(held.batch, rows)))
            others = [row for row in range(len(held.batch)) if row not in rows]
            if others:
                kept.append(held._replace(batch=piece_of(held.batch, others)))
        self._held = kept
        for held in found:
            self.ended(held.batch)
        return found

    def _pause_ns(self, tries: int) -> int:
        doubled = self._bounds.backoff_ns << min(tries - 1, 40)
        return min(doubled, self._bounds.backoff_max_ns)


def _not_before(held: Held) -> int:
    return held.not_before_ns


def piece_of(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some rows of a batch as a batch of their own."""
    states = [batch.states[row] for row in rows] if batch.states else ()
    return Batch(batch.signature, [batch.entries[row] for row in rows], states)
