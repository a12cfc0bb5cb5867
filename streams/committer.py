"""The second half of every at-least-once delivery: what is settled gets committed, at most every so often.

One round is: take the positions that are still ours, publish the snapshots that they need and await their
acknowledgement, commit, and only then tell so (DELIVERY P-3). No record of ours says more than the log holds: a
snapshot follows its answers, a position follows its snapshots.

The memory log and Kafka share this module, so that simulations run the very code that commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Protocol

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.cover import Cover
from headrace.streams.log import Outcome, Position

ROUND_BYTES = 512 * 1024
"""Snapshots are published in rounds of this many bytes of values, or one chunk: what the loop encodes and packs
without a pause (a batch of ``batch.size`` takes about 2 ms)."""


class Member(Protocol):
    """What is needed of a source."""

    def owns(self, tp: TP, epoch: int) -> bool:
        """Say whether a partition is ours under this epoch, as far as this member knows."""

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit and return the partitions that were refused; `LogError` if the outcome is unknown."""


class Adopted(Protocol):
    """What a source needs of its deliveries."""

    def assigned(self, kept: Set[TP]) -> None:
        """Take note of a new assignment: of what was ours before, nobody else can have had ``kept`` since."""

    async def flush(self) -> None:
        """Commit everything settled."""

    async def close(self) -> None:
        """Commit nothing more by itself, and wait until that is done."""


class Committer:
    """Keeps what is settled until it is committed."""

    def __init__(
        self,
        member: Member,
        publish: Callable[[Sequence[Out]], Awaitable[None]],
        cover: Cover | None,
        *,
        interval_s: float,
    ) -> None:
        """Keep the parts.

        Args:
            member: Whose positions they are.
            publish: Publishes and awaits the acknowledgement; `LogError` if that fails.
            cover: What must be durable before a position.
            interval_s: Positions are committed at most this often; 0 is at each settle.
        """
        self._member = member
        self._publish = publish
        self._cover = cover
        self._interval_s = interval_s
        self._pending: dict[TP, Position] = {}
        self._taken: Mapping[TP, Position] = {}  # by the flush that runs
        self._latest: dict[TP, Position] = {}  # committed or not
        self._fenced: dict[TP, int] = {}
        self._released: dict[TP, int] = {}
        self._error: LogError | None = None
        self._committing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._due = asyncio.Event()

    def __len__(self) -> int:
        """Count the partitions with a position to commit."""
        return len(self._pending)

    def outcome(self, owner: TP, position: Position) -> Outcome:
        """Say what a settle of this position may still become."""
        fenced = self._fenced.get(owner) == position.epoch
        ours = not fenced and self._member.owns(owner, position.epoch)
        return Outcome.SETTLED if ours else Outcome.FENCED

    def times_released(self, owner: TP) -> int:
        """Return how often a partition was released: a settle that began before the last time settles nothing."""
        return self._released.get(owner, 0)

    def take_over(self, owner: TP, position: Position, times_released: int) -> Outcome:
        """Commit this position from now on, unless it is fenced; every answer up to it is acknowledged.

        The cover is told in the same step: a commit that begins in between would not see the states that the
        position stands for.

        Args:
            owner: The partition.
            position: Of it.
            times_released: As it was when the settle began.
        """
        if times_released != self.times_released(owner):
            return Outcome.FENCED
        outcome = self.outcome(owner, position)
        if outcome is Outcome.FENCED:
            return outcome
        before = self._latest.get(owner)
        # Settles of one owner may come back in another order than they were called in, also behind a commit.
        if before is None or before.epoch != position.epoch or before.offset <= position.offset:
            self._latest[owner] = self._pending[owner] = position
            if self._cover is not None:
                self._cover.settled(owner, position)
        return outcome

    async def commit_when_due(self) -> bool:
        """Commit at once and return True, or within the interval by a task: a commit is a round trip."""
        if self._interval_s <= 0:
            await self.flush()
            return True
        self._due.set()
        if self._task is not None and self._task.done():
            self._task.result()  # it ends only by a bug
        if self._task is None:
            self._task = asyncio.create_task(self._commit_every_interval())
        return False

    def raise_failure(self) -> None:
        """Raise what the task could not commit, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def flush(self) -> None:
        """Commit everything settled now; one flush waits for the other.

        Raises:
            LogError: A snapshot or the commit failed; the positions are kept for the next time.
        """
        async with self._committing:
            taken, self._pending = self._pending, {}
            self._taken = taken
            due = {tp: at for tp, at in taken.items() if self._member.owns(tp, at.epoch)}
            self._fenced.update({tp: at.epoch for tp, at in taken.items() if tp not in due})
            try:
                if self._cover is not None:
                    await self._save(self._cover, due)
                refused = await self._member.commit(due) if due else frozenset()
            except BaseException:
                self._pending = {**due, **self._pending}
                raise
            finally:
                self._taken = {}
            for tp, at in due.items():
                if tp in refused:
                    self._fenced[tp] = at.epoch
                elif self._cover is not None and self._member.owns(tp, at.epoch):
                    self._cover.committed(tp, at)

    async def release(self, owner: TP) -> None:
        """Commit what is settled of a partition that goes, also by a flush that runs, and keep nothing of it.

        It may be taken over anew under the same epoch. A commit that came only then would move its position past steps
        that the new time has not run, or would make that time's own commits go back; so one that fails is dropped, as
        are settles that come back later, and the records are read again.

        Raises:
            LogError: A snapshot or the commit failed.
        """
        self._released[owner] = self.times_released(owner) + 1
        try:
            if owner in self._taken or owner in self._pending:
                await self.flush()
        finally:
            self._pending.pop(owner, None)
            self._latest.pop(owner, None)

    async def _save(self, cover: Cover, due: dict[TP, Position]) -> None:
        """Publish the snapshots that these positions need, all owners' in common rounds of bounded size.

        Positions that stand for forgotten states are removed: committed, they would lose steps (D3).
        """
        chunks: dict[TP, Iterator[Sequence[Out]]] = {}
        for tp, at in list(due.items()):
            found = cover.snapshots(tp, at)
            if found is None:
                del due[tp]
            else:
                chunks[tp] = found
        while chunks:
            taken = self._next_round(chunks, due)
            if taken:
                await self._publish([out for _, outs in taken for out in outs])
            for tp, outs in taken:
                # Under another epoch by now the cover holds another state of the same sequences.
                if self._member.owns(tp, due[tp].epoch):
                    cover.saved(tp, outs)

    def _next_round(
        self, chunks: dict[TP, Iterator[Sequence[Out]]], due: Mapping[TP, Position]
    ) -> list[tuple[TP, Sequence[Out]]]:
        """Take one chunk of each owner until the round is full; owners that have no more, or are gone, fall out."""
        taken: list[tuple[TP, Sequence[Out]]] = []
        size = 0
        for tp in list(chunks):
            if size >= ROUND_BYTES:
                # Those behind come first in the next round.
                chunks.update({tp: chunks.pop(tp) for tp, _ in taken if tp in chunks})
                break
            outs = next(chunks[tp], None) if self._member.owns(tp, due[tp].epoch) else None
            if outs is None:
                del chunks[tp]
            elif outs:
                taken.append((tp, outs))
                size += sum([len(out.value or b"") for out in outs])
        return taken

    def stop(self) -> None:
        """Commit nothing more by the task."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait until the task has ended."""
        self.stop()
        task, self._task = self._task, None
        if task is not None:
            with suppress(asyncio.CancelledError):
                await task

    async def _commit_every_interval(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(self._interval_s)
            self._due.clear()
            try:
                await self.flush()
            except LogError as error:
                self._error = error
                self._due.set()
