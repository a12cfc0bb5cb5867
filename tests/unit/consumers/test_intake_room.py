"""Intake looks for room by itself: what was in flight may go with its partition, and then nobody tells (P-7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.consumers.intake import FULL_WAIT_S, Intake
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.schemas.record import TP
from headrace.streams.log import Block
from virtual_loop import run_virtual

A, B = TP("t", 0), TP("t", 1)
ROOM = 10


class Silent:
    """A source without records that remembers what is paused."""

    def __init__(self) -> None:
        self.paused: set[TP] = set()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        del max_records
        await asyncio.sleep(timeout_s)
        return ()

    def pause(self, tps) -> None:
        self.paused |= tps

    def resume(self, tps) -> None:
        self.paused -= tps


def partition(tp: TP, in_flight: int) -> Partition:
    part = Partition(tp, 1, 1, OffsetLedger())
    part.active, part.paused, part.in_flight = True, False, in_flight
    part.ledger.begin(0)
    return part


@contextmanager
def polling(parts: dict[TP, Partition], source: Silent) -> Iterator[None]:
    async def lookup(topic: str) -> None:
        del topic

    intake = Intake(
        parts,
        decoder=None,  # type: ignore[arg-type]  # there are no records
        admission=None,  # type: ignore[arg-type]
        placement=Placement("r", 1, allowed=bool, lookup=lookup, max_topics=1),
        settings=WorkerSettings("w", max_queued_records=ROOM),
        clock=Clock(),
    )
    task = asyncio.create_task(intake.run(source))  # type: ignore[arg-type]  # as much of one as it uses
    yield
    task.cancel()


async def gone_with_its_partition(successor: Partition | None) -> set[TP]:
    """A full partition is taken away, maybe assigned anew; returns what is paused a moment later."""
    source = Silent()
    parts = {A: partition(A, ROOM), B: partition(B, 0)}
    with polling(parts, source):
        await asyncio.sleep(3 * FULL_WAIT_S)
        assert source.paused == {A, B}
        del parts[A]
        if successor is not None:
            parts[A] = successor
        await asyncio.sleep(3 * FULL_WAIT_S)
        return source.paused & parts.keys()


def test_P7_what_was_paused_for_a_partition_that_is_gone_is_read_again() -> None:
    """Nothing of the others is in flight, so nothing of them ends either."""
    assert run_virtual(gone_with_its_partition(None)) == set()


def test_P7_a_partition_that_comes_back_while_intake_waits_for_room_is_read() -> None:
    """The wait was for its former time: storms stood still for ever behind two rebalances in a row."""
    assert run_virtual(gone_with_its_partition(partition(A, 0))) == set()
