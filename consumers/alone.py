"""One suspect at a time in a process, and nothing that executes beside it (DELIVERY P-14).

Who brings a process down takes with it whatever runs there. So while a suspect is announced and until it has ended, no
instance of any model runs anything else: its death is its own, or has a reason outside. Others are held back from when
an instance could begin with it: those that execute end, it is announced, it runs. So they are while it is read, where
that may be what ends the process; and no other records are read meanwhile, either. An execution that hangs must not
stop all models for ever: others are waited for, and wait, for a bound at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from headrace.consumers.retry import piece_of
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.record import TP


class Executing(Protocol):
    """What is needed of a scheduler."""

    @property
    def busy(self) -> int:
        """Number of instances at work."""

    def dispatch_soon(self) -> None:
        """Give free instances their next batches."""


class Alone:
    """The turn of one process's suspects.

    Attributes:
        has_begun: The suspect has got to an instance.
    """

    def __init__(self, bound_s: float) -> None:
        """Start open, without a suspect.

        Args:
            bound_s: How long others that execute are waited for, and how long others then wait, seconds.
        """
        self.has_begun = False
        self._opened = asyncio.Event()
        self._opened.set()
        self._bound_s = bound_s
        self._reads = 0
        self._suspect: tuple[TP, int, int] | None = None
        self._announce: Callable[[], Awaitable[None]] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._schedulers: list[Executing] = []
        self._run: Callable[[], None] | None = None
        self._running: Batch | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        """Show who is suspected."""
        return f"Alone({self._suspect}, {'closed' if self.is_closed else 'open'})"

    @property
    def is_closed(self) -> bool:
        """Whether nothing but the suspect may begin now."""
        return not self._opened.is_set()

    @asynccontextmanager
    async def others(self) -> AsyncIterator[None]:
        """Let the block read records that are no suspects, once that may begin."""
        await self._opened.wait()
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1
            if self.is_closed:
                self.look()

    def join(self, scheduler: Executing) -> None:
        """Hold a scheduler's batches back while a suspect runs."""
        self._schedulers.append(scheduler)

    @asynccontextmanager
    async def turn(
        self, tp: TP, epoch: int, offset: int, announce: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Wait until no other record is the suspect; this one is while the block runs.

        Args:
            tp: Its partition.
            epoch: Ours, of that.
            offset: Its own.
            announce: Awaited before it runs; never raises.
        """
        async with self._turn:
            self._suspect, self.has_begun = (tp, epoch, offset), False
            self._announce = announce
            try:
                yield
            finally:
                # If it still executes, its partition is not ours any more: others wait for its end all the same.
                self._suspect = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Let nothing begin while the block reads the suspect, entered once nothing executes and it is announced."""
        entered = asyncio.Event()
        enter = self._run = entered.set
        # One whose partition has gone may still execute: its end opens nothing.
        self._running = None
        self._opened.clear()
        self._arm(self._go)
        self.look()
        try:
            await entered.wait()
            yield
        finally:
            if self._run is enter:
                self._run = None
            elif self._announcing is not None and not entered.is_set():
                self._announcing.cancel()
            if self._running is None:  # else it took so long that others began, and it among them
                self._open()

    def row(self, batch: Batch) -> int | None:
        """Return the suspect's row of a batch that is about to run, None without it."""
        if self._suspect is None:
            return None
        for row, entry in enumerate(batch.entries):
            if entry is not None and self._is_suspect(entry):
                return row
        return None

    def close(self, suspect: Batch, run: Callable[[], None]) -> None:
        """Let nothing more begin, and run the suspect once nothing executes."""
        self.has_begun = True
        self._opened.clear()
        self._running, self._run = suspect, run
        self._arm(self._go)
        self.look()

    def look(self) -> None:
        """Take note that something has ended; called while it is closed."""
        if self._run is None or self._reads:
            return
        if not any(scheduler.busy for scheduler in self._schedulers):
            self._go()

    def ended(self, batch: Batch) -> None:
        """Take note that a batch has ended; called while it is closed, and the suspect's opens it."""
        if batch is self._running:
            self._open()

    def _open(self) -> None:
        """Let others begin: the suspect has ended, or takes too long."""
        self._running = None
        self._opened.set()
        self._disarm()
        for scheduler in self._schedulers:
            scheduler.dispatch_soon()

    def _go(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        assert self._announce is not None
        self._disarm()
        self._announcing = asyncio.create_task(self._begin(self._announce, run))

    async def _begin(
        self, announce: Callable[[], Awaitable[None]], run: Callable[[], None]
    ) -> None:
        await announce()
        self._arm(self._open)
        run()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, then: Callable[[], None]) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(self._bound_s, then)

    def _is_suspect(self, entry: Entry) -> bool:
        return (entry.tp, entry.epoch, entry.record.offset) == self._suspect


def split(batch: Batch, row: int, *, keeps_rows: bool) -> tuple[Batch, Batch | None]:
    """Return one row of a batch as a batch of its own, and the rest; None where the others are padding.

    Args:
        batch: As its batcher made it.
        row: A request's.
        keeps_rows: A row is a sequence's own place in the model's memory: both keep all rows, with padding for others.
    """
    others = [n for n, entry in enumerate(batch.entries) if entry is not None and n != row]
    if not keeps_rows:
        return piece_of(batch, [row]), piece_of(batch, others) if others else None
    alone = [entry if n == row else None for n, entry in enumerate(batch.entries)]
    rest = [None if n == row else entry for n, entry in enumerate(batch.entries)]
    signature, states = batch.signature, batch.states
    return Batch(signature, alone, states), Batch(signature, rest, states) if others else None
