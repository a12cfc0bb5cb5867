"""What becomes of requests whose execution failed: another try, or their last answer. Pure but for what it counts.

Which errors may pass says `InferError.retriable`. An instance that goes away with a batch, or that does not return
in time, leaves nobody to blame: its requests are tried again one by one. A model with memory of its own never sees a
request twice, so there every error is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.consumers.ceiling import Ceiling
from headrace.consumers.execution import Execution, Part
from headrace.consumers.retry import Retries, RetryBounds, piece_of
from headrace.schemas.batch import Batch
from headrace.schemas.errors import ExecutionTimeout, InferError, InstanceDied


@dataclass(frozen=True, slots=True)
class FaultBounds:
    """What a version's scheduler does about executions that fail or hang.

    Attributes:
        retry: How often and how soon a request is tried again.
        execution_timeout_ns: How long one run of the model may take; 0 is any time.
        ceiling_hold_ns: How long the ceiling of rows holds after a memory error before it rises by a step.
    """

    retry: RetryBounds = field(default_factory=RetryBounds)
    execution_timeout_ns: int = 0
    ceiling_hold_ns: int = 30_000_000_000


class Faults(Protocol):
    """Who counts: `headrace.consumers.observe.ModelObserver`."""

    def retried(self, requests: int) -> None:
        """So many requests are tried again."""

    def ran(self, sizes: Sequence[int]) -> None:
        """The model ran batches of so many rows without an answer that would be counted."""

    def timed_out(self) -> None:
        """An execution was given up."""

    def ceiling(self, rows: int) -> None:
        """Batches may have so many rows now; 0 is as many as the model allows."""


class NotBegun(Exception):
    """An instance went away before it began with this work; it may go to another one."""


class Sorted(NamedTuple):
    """Who has an outcome, and who is tried again.

    Attributes:
        batch: The entries that have their last outcome; None where there is none.
        execution: With these entries' parts only.
        held: Number of the others.
    """

    batch: Batch | None
    execution: Execution
    held: int


class Lost(NamedTuple):
    """What becomes of a batch that an instance took with it.

    Attributes:
        batch: The entries that have no further try; None where all do.
        error: Theirs; None where it did not run at all.
        held: Number of the others.
    """

    batch: Batch | None
    error: InferError | None
    held: int


class Recovery:
    """Decides for one model version.

    Attributes:
        retries: What is tried again.
        ceiling: Rows that a batch may have.
        repeatable: The model may see a request twice.
    """

    def __init__(
        self, retries: Retries, ceiling: Ceiling, faults: Faults | None, *, repeatable: bool
    ) -> None:
        """Keep the parts; ``faults`` counts, if somebody shall."""
        self.retries = retries
        self.ceiling = ceiling
        self.repeatable = repeatable
        self._faults = faults

    def learn(self, execution: Execution, now_ns: int) -> bool:
        """Take from an execution how many rows fit; returns whether batches must be smaller now."""
        if not execution.ceiling or not self.ceiling.lower(execution.ceiling, now_ns):
            return False
        self._show_ceiling()
        return True

    def rise(self, now_ns: int) -> bool:
        """Let batches grow again if it is time; returns whether they may."""
        if not self.ceiling.rise(now_ns):
            return False
        self._show_ceiling()
        return True

    def sort(self, batch: Batch, execution: Execution, now_ns: int) -> Sorted:
        """Hold what is tried again of a batch that ran, and return the rest."""
        if not execution.failed:
            self.retries.ended(batch)
            return Sorted(batch, execution, 0)
        parts: list[Part] = []
        held = 0
        for part in execution.parts:
            if part.error is None or not part.error.retriable or not self.repeatable:
                parts.append(part)
                continue
            piece = without_padding(part.batch)
            over = self.retries.hold(piece, part.error, now_ns)
            held += len(piece) - len(over)
            if over:
                parts.append(Part(piece_of(piece, over), (), part.error))
        if not held:
            self.retries.ended(batch)
            return Sorted(batch, execution, 0)
        self._retried(held)
        if not parts:
            if self._faults is not None:
                self._faults.ran(execution.sizes or (batch.rows,))
            return Sorted(None, execution, held)
        entries = [entry for part in parts for entry in part.batch.entries]
        states = [state for part in parts for state in part.batch.states]
        rest = Batch(batch.signature, entries, states)
        self.retries.ended(rest)
        return Sorted(rest, execution._replace(parts=parts), held)

    def lost(self, batch: Batch, exc: BaseException, now_ns: int) -> Lost:
        """Hold what is tried again of a batch whose instance is gone, and return the rest.

        Args:
            batch: What it was given.
            exc: `ExecutionTimeout`, `NotBegun`, or what ended its thread.
            now_ns: Monotonic time.
        """
        if isinstance(exc, NotBegun):
            self.retries.put_back(batch, now_ns)
            return Lost(None, None, len(batch))
        error = exc
        if not isinstance(error, InferError):
            name = batch.signature.model_name
            error = InstanceDied(f"the instance of model '{name}' died: {exc!r}")
            error.__cause__ = exc
        piece = without_padding(batch)
        if self._faults is not None:
            self._faults.ran((batch.rows,))
            if isinstance(exc, ExecutionTimeout):
                self._faults.timed_out()
        over = list(range(len(piece)))
        if self.repeatable:
            over = self.retries.hold(piece, error, now_ns, singly=True)
        held = len(piece) - len(over)
        self._retried(held)
        if not over:
            return Lost(None, error, held)
        rest = piece_of(piece, over)
        self.retries.ended(rest)
        return Lost(rest, error, held)

    def _retried(self, requests: int) -> None:
        if requests and self._faults is not None:
            self._faults.retried(requests)

    def _show_ceiling(self) -> None:
        if self._faults is not None:
            self._faults.ceiling(self.ceiling.rows)


def without_padding(batch: Batch) -> Batch:
    """Return a batch without its padding rows."""
    if None not in batch.entries:
        return batch
    return piece_of(batch, [row for row, entry in enumerate(batch.entries) if entry is not None])
