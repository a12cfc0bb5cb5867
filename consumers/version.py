"""One version of a model at work: what a worker keeps of it. No rules of its own."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from headrace.consumers.claimed_answers import ClaimedAnswers
from headrace.consumers.encoding import Answer, Encoder, Encoding
from headrace.consumers.observe import ModelObserver
from headrace.consumers.ordering import PreserveOrdering
from headrace.consumers.scheduler import Scheduler
from headrace.streams.claims import Claims

Ordering: TypeAlias = PreserveOrdering[list[Answer]]


class Healthy(Protocol):
    """What is asked of a pool here."""

    def healthy(self) -> bool:
        """Whether every instance can execute."""

    def trouble(self) -> str:
        """Return why one cannot; asked where ``healthy`` says no."""


class Version:
    """One version of the model at work.

    Attributes:
        scheduler: Its queue and instances.
        pool: Its instances' threads.
        encoder: How its responses are written.
        encoding: Where they are written: in the loop, or large ones in a thread.
        observer: What is counted.
        decoupled: The model gives 0..n responses per request.
        ordering: Holds answers back for ``preserve_ordering``; None where they leave as they come.
    """

    __slots__ = ("decoupled", "encoder", "encoding", "observer", "ordering", "pool", "scheduler")

    def __init__(
        self,
        scheduler: Scheduler,
        pool: Healthy,
        encoder: Encoder,
        observer: ModelObserver,
        *,
        decoupled: bool = False,
        preserve_ordering: bool = False,
        claims: Claims | None = None,
    ) -> None:
        """Keep the parts; ``claims`` is where answers go that are too large for a record."""
        self.decoupled = decoupled
        self.ordering: Ordering | None = PreserveOrdering() if preserve_ordering else None
        self.scheduler = scheduler
        self.pool = pool
        self.encoder = encoder
        self.encoding = Encoding()
        if claims is not None:
            self.encoding.store = ClaimedAnswers(claims)
        self.observer = observer
