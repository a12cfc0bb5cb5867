"""Executions of a decoupled model while they run: what they emit leaves at once, and cancels reach them.

The instance's thread hands each response over to the loop, which numbers it and lets it go (at_least_once only: in
exactly_once the responses of a request become visible together). What a request was given before its execution failed
has left; if the request is run again, it is given only what comes behind that. An execution is ahead of the log by
`MAX_AHEAD` emissions at most: then its thread waits until they are acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import TypeAlias

from headrace.consumers.decoupled import Numbering, may_leave
from headrace.consumers.execution import Ticket
from headrace.consumers.partition import Partition
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.record import TP

MAX_AHEAD = 64
"""Emissions of one execution that may be on their way to the log."""

Parts: TypeAlias = list[tuple[Responses, int]]
Told: TypeAlias = Callable[[Batch, Parts, Callable[[], None]], None]
"""Lets numbered responses to a piece of a batch leave; calls back when they are acknowledged, or never will be."""


class Emission:
    """What one execution emits. `heard` is called in the instance's thread, everything else in the loop."""

    __slots__ = ("_loop", "_numbering", "_piece", "_room", "_told", "batch", "is_over", "ticket")

    def __init__(self, batch: Batch, ticket: Ticket | None, told: Told) -> None:
        """Belong to the running loop and a batch that is given to an instance."""
        self.batch = batch
        self.ticket = ticket
        self.is_over = False
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(MAX_AHEAD)
        self._piece: Batch | None = None
        self._numbering = Numbering(batch)

    def heard(self, piece: Batch, responses: Responses) -> None:
        """Hand over what was emitted; waits where too much is on its way."""
        self._room.acquire()
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._hear, piece, responses)

    def _hear(self, piece: Batch, responses: Responses) -> None:
        leaving: Parts = []
        if not self.is_over and (self.ticket is None or not self.ticket.is_void):
            if piece is not self._piece:
                self._piece, self._numbering = piece, Numbering(piece)
            with suppress(
                Exception
            ):  # whatever a plug-in gave: its execution's end says what is wrong with it
                leaving = may_leave(piece, self._numbering.take(responses))
        if leaving:
            self._told(piece, leaving, self._room.release)
        else:
            self._room.release()

    def close(self) -> None:
        """Hear nothing more."""
        self.is_over = True


class Emitting:
    """The executions of one decoupled model version that run."""

    def __init__(self, told: Told | None) -> None:
        """Start with none; ``told`` None keeps the responses of an execution until its end."""
        self._told = told
        self._running: dict[Batch, Emission | None] = {}

    def begin(
        self, batch: Batch, ticket: Ticket | None
    ) -> Callable[[Batch, Responses], None] | None:
        """Take note of an execution; returns what it is to tell of its responses."""
        emission = None if self._told is None else Emission(batch, ticket, self._told)
        self._running[batch] = emission
        return None if emission is None else emission.heard

    def end(self, batch: Batch) -> None:
        """Take note that an execution has ended, or was given up."""
        emission = self._running.pop(batch, None)
        if emission is not None:
            emission.close()

    def cancel(self, ids: Set[bytes]) -> None:
        """Let the model see that nobody waits for these requests any more (SEMANTICS CX-01)."""
        for batch in self._running:
            for entry in batch.entries:
                if entry is not None and entry.correlation_id in ids:
                    entry.is_cancelled = True


class Unacknowledged:
    """What has left and whose settle has not ended: the executions that it comes from may have to wait for that."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._waiting: list[tuple[list[tuple[Partition, int]], Callable[[], None]]] = []

    def add(self, parts: Set[Partition], release: Callable[[], None]) -> None:
        """Wait for the next settles of these partitions to end; not at all where there is none."""
        if not parts:
            release()
            return
        self._waiting.append(([(part, part.settles_begun + 1) for part in parts], release))

    def settled(self, partitions: Mapping[TP, Partition]) -> None:
        """Release what was waited for: settles have ended, or partitions are not ours any more."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for settles, release in waiting:
            if any(
                part.settles_ended < number and partitions.get(part.tp) is part
                for part, number in settles
            ):
                self._waiting.append((settles, release))
            else:
                release()
