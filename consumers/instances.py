"""What a scheduler needs of the instances of a model version. No rules of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headrace.consumers.pool import Done, Work
from headrace.schemas.errors import InferError


class Instances(Protocol):
    """What the scheduler needs of a pool: `headrace.consumers.pool.Pool`, or a test's own."""

    @property
    def busy(self) -> int:
        """Number of instances at work."""

    @property
    def free(self) -> Collection[int]:
        """Numbers of the free instances, the longest free first."""

    def next_staging(self) -> int | None:
        """Number of an instance that is at work and has nothing else to do after that."""

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Run work on an instance, now or after what it is at, and call ``done`` in the loop."""

    def abandon(self, number: int, error: InferError) -> None:
        """Give up what an instance is at: its work is ``done`` with the error, and it is replaced."""
