"""A transaction of one owner: what goes into it, in which order, and the producer that carries it (DELIVERY P-10…P-12).

A cut is what one settle takes of one owner: the records that were buffered, the snapshots as of now, the position
with its finished offsets. It is buffered first; then begin, send, position and the end of the transaction come in one
go, because readers wait for anybody's earliest open transaction (P-12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.schemas.record import TP, Out
from headrace.streams.committer import ROUND_BYTES
from headrace.streams.log import Position

TRANSACTION_TIMEOUT_MS = 10_000
"""After this long the broker aborts an open transaction, and we give a cut up: readers wait no longer for it."""


class ProducerFenced(Exception):
    """Another producer has our transactional id, the broker has aborted for us, or it has forgotten the id."""


class TransactionalProducer(Protocol):
    """The producer of one transactional id. All but `close` and `kill` raise `LogError` or `ProducerFenced`."""

    async def start(self) -> None:
        """Take the id: whoever had it is fenced, and what it left open is aborted when this returns."""

    async def begin(self) -> None:
        """Begin a transaction."""

    async def send(self, outs: Sequence[Out]) -> None:
        """Publish in order within the transaction, and await that every record is acknowledged (P-11)."""

    async def send_position(self, position: Position) -> None:
        """Commit the owner's position within the transaction; the first thing that the log hears of it."""

    async def commit(self) -> None:
        """End the transaction: everything is to be seen, or, where this fails, nobody knows."""

    async def abort(self) -> None:
        """End the transaction: nothing is ever to be seen."""

    async def close(self) -> None:
        """Close, within a bound."""

    def kill(self) -> None:
        """Send nothing more, as if the process were gone; `close` follows."""


@dataclass(slots=True, eq=False)
class Owner:
    """A partition from its takeover to its release.

    Attributes:
        tp: The partition.
        epoch: Under which it was taken over.
        producer: Of its transactional id.
        turn: Held by the cut that runs; the others follow in the order of the calls.
        replying: Sends the replies of the latest cut that had some.
        ended: Commits nothing more; what comes of it then is aborted or fenced.
        is_usable: Nothing has failed, so that the producer may serve the next takeover.
        committed: The latest position that this takeover committed.
    """

    tp: TP
    epoch: int
    producer: TransactionalProducer
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    replying: asyncio.Task[None] | None = None
    ended: bool = False
    is_usable: bool = True
    committed: Position | None = None


@dataclass(slots=True, eq=False)
class Cut:
    """What one settle takes of one owner."""

    owner: Owner
    position: Position
    outs: list[Out]
    replies: list[Out]
    snapshots: Iterator[Sequence[Out]]
    chunks: list[Sequence[Out]] = field(default_factory=list)  # that were taken

    def rounds(self) -> Iterator[Sequence[Out]]:
        """Return what is to be sent, the snapshots with or behind the last of the others, in parts of bounded size."""
        part = self.outs
        size = sum([len(out.value or b"") for out in part])
        while True:
            if size >= ROUND_BYTES:
                yield part
                part, size = [], 0
            chunk = next(self.snapshots, None)
            if chunk is None:
                break
            self.chunks.append(chunk)
            part = [*part, *chunk]
            size += sum([len(out.value or b"") for out in chunk])
        if part:
            yield part

    async def run(self) -> None:
        """Send and commit everything, as the owner's producer does it; nothing where nothing is new.

        Raises:
            ProducerFenced: As the producer.
            LogError: As the producer; only if it came from the commit, the cut may be committed.
        """
        producer = self.owner.producer
        if self.position == self.owner.committed and not self.outs:
            chunk = next(self.snapshots, None)
            if chunk is None:
                return
            self.outs = list(chunk)
            self.chunks.append(chunk)
        await producer.begin()
        # First the position: a broker that is still at the transaction before says so sooner than to records, and
        # nothing of either is to be seen before the commit.
        await producer.send_position(self.position)
        for outs in self.rounds():
            await producer.send(outs)
        await producer.commit()
