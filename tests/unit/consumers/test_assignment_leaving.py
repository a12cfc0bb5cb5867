"""A partition that is revoked while it is being taken over stays unread (P-5, P-7)."""

from __future__ import annotations

import asyncio

from headrace.consumers.assignment import Assignment
from headrace.consumers.settings import WorkerSettings
from headrace.schemas.record import TP
from headrace.streams.log import Position
from virtual_loop import run_virtual

SLOW, BUSY = TP("t", 0), TP("t", 1)


class Member:
    """A group member that answers about one partition only when it is told to."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.resumed: set[TP] = set()

    def left_at(self) -> None:
        """It is joined."""

    def kept(self) -> set[TP]:
        return set()

    def assignment(self) -> dict[TP, int]:
        return {SLOW: 1, BUSY: 1}

    async def committed(self, tps):
        if SLOW in tps:
            await self.told.wait()
        return {tp: Position(0, "", 1) for tp in tps}

    async def end_offsets(self, tps):
        return dict.fromkeys(tps, 10)

    def seek(self, tp, offset) -> None:
        assert offset == 0

    def resume(self, tps) -> None:
        self.resumed |= tps


class Settling:
    """A settler and a delivery with nothing to do."""

    def hurry(self) -> None:
        """Nothing is buffered."""

    async def take_over(self, owners):
        return owners.keys()

    async def progress(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def forget(self, part) -> None:
        """Nothing is buffered."""

    async def flush(self) -> None:
        """Nothing is to be committed."""

    async def release(self, owner, *, abort: bool) -> None:
        """Nothing is kept."""


async def revoked_while_taken_over() -> set[TP]:
    tasks: list[asyncio.Task[None]] = []
    epochs = iter(range(1, 9))
    assignment = Assignment(
        settings=WorkerSettings("w"),
        start=lambda work: tasks.append(asyncio.create_task(work)),
        drop=lambda _: 0,
        next_epoch=lambda: next(epochs),
    )
    member, settling = Member(), Settling()
    assignment.attach(member, settling, settling)  # type: ignore[arg-type]  # as much of each as is used
    assignment.assigned({BUSY}, 1)
    await tasks[0]
    assert member.resumed == {BUSY}
    busy = assignment.partitions[BUSY]
    busy.in_flight = 1
    assignment.assigned({SLOW}, 1)
    deadline = asyncio.get_running_loop().time() + 10
    leaving = asyncio.create_task(assignment.revoked({SLOW, BUSY}, deadline))
    await asyncio.sleep(0)
    assert busy.is_leaving
    member.told.set()
    await tasks[1]
    assert SLOW in assignment.partitions
    busy.in_flight = 0
    await leaving
    assert not assignment.partitions
    return member.resumed


def test_P7_a_takeover_that_ends_within_a_revocation_begins_no_reading() -> None:
    """Another partition's step was still running, so the revocation waited: records must not come in meanwhile."""
    assert run_virtual(revoked_while_taken_over()) == {BUSY}
