"""How a pool replaces instances that went away: bounds, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.backends.backend import Instance

LOOK_S = 1.0
"""How often idle instances are asked whether they are healthy, seconds."""

MAX_RENEWALS = 10
"""Failures in a row to make a new instance before its number counts as gone; it is tried on all the same."""


class InstancesExhausted(Exception):
    """Nothing of a model can execute any more, and only a new process can; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """How instances that went away are replaced.

    Attributes:
        renew: Makes the instance of a number anew; blocking, called in the new instance's thread. The flag says that
            the old one may be closed first: no thread is in it.
        changed: Called in the loop when an instance has come back.
        restarted: Called with each replacement.
        abandoned: Called with how many more (or fewer) given-up executions hang.
        exhausted: Called, maybe repeatedly, when nothing can execute any more.
        backoff_s: Pause before the second replacement in a row, seconds; it doubles with each further one.
        backoff_max_s: Longest pause.
        max_abandoned: Threads that may hang in given-up executions while their instances are replaced.
        max_starved: Single requests in a row that run out of memory before their instance is replaced.
        bound: What an instance does no other may do, for sequences have their places: one that cannot be replaced is
            as good as all.
    """

    renew: Callable[[int, bool], Instance]
    changed: Callable[[], None]
    restarted: Callable[[], None]
    abandoned: Callable[[int], None]
    exhausted: Callable[[InstancesExhausted], None]
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    max_abandoned: int = 4
    max_starved: int = 5
    bound: bool = False
