"""The batcher port: pure objects that decide what runs next. No await, no clock, no logging.

A batcher is the only queue between a topic and a model version's instances. Times are monotonic nanoseconds
that the caller passes in; `Batcher.wake_at` says at which time alone the answer would change, so the loop
around it owns the one timer.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol

from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError
from headrace.schemas.record import TP


class Refusal(NamedTuple):
    """An entry that leaves the queue without executing, and the error that answers it."""

    entry: Entry
    error: InferError


class Batcher(Protocol):
    """Queue and batch forming of one model version, shared by its instances."""

    def offer(self, entries: Sequence[Entry], now_ns: int) -> Sequence[Refusal]:
        """Queue entries in order and set their ``admitted_ns``; returns those refused (queue full, QT-01)."""

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Return the batch that a free instance should run now, or None to wait.

        ``flush``: do not hold anything back for a better size or a delay (draining, revocation).
        """

    def done(self, batch: Batch, now_ns: int) -> None:
        """Tell that a batch taken earlier has been executed and answered, or given up."""

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Remove and return the entries whose queue timeout has passed (QT-04)."""

    def cancel(self, ids: Set[bytes]) -> Sequence[Refusal]:
        """Remove and return the queued entries with these correlation ids (QT-07)."""

    def drop(self, tp: TP) -> Sequence[Entry]:
        """Remove the queued entries of a partition without answering: it is revoked or lost."""

    def resize(self, instances: Set[int]) -> None:
        """Set which instances exist (SQ-21)."""

    def limit(self, rows: int) -> None:
        """Form no batch of more rows from now on, but for one request that has more; 0 is what the model allows.

        Where a row is a sequence's own place (``direct``), batches stay as they are, and run in pieces.
        """

    def wake_at(self) -> int | None:
        """Return the soonest time at which time alone changes the answer of `take` or `expire`."""

    def queues(self) -> Sequence[tuple[int, int, int]]:
        """Return level, queued entries and ``max_queue_size`` (0 is unlimited) of each priority level in use."""

    def __len__(self) -> int:
        """Return the number of queued entries, executing ones not counted."""
