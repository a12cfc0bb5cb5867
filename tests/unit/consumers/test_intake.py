"""Back-pressure of intake: what is held behind a full queue (SEMANTICS QT-01, DB-11), on a moved clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from batching_kit import batching, entry, signature
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.intake import HELD_SLICE, Intake
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.schemas.batch import Entry
from headrace.schemas.model_config import QueuePolicy
from headrace.schemas.record import TP

TP0 = TP("t", 0)
HELD = 1000


class OneQueue:
    """Admission by one batcher; counts what it is offered."""

    def __init__(self, **policy: object) -> None:
        self.batcher = DynamicBatcher(signature(8), batching(8, **policy))
        self.offered = 0

    def offer(self, version: int, entries: Sequence[Entry]):
        self.offered += len(entries)
        return self.batcher.offer(entries, 0)

    def refuse(self, refusals, *, dead_letters=()):
        raise AssertionError(f"nothing is refused: {refusals}")


class Quiet:
    """A source that nobody resumes while something is held."""

    def resume(self, tps):
        raise AssertionError(f"{tps} must stay paused")


@pytest.fixture
def part() -> Partition:
    part = Partition(TP0, 1, 1, OffsetLedger())
    part.active = True
    return part


def intake_of(part: Partition, admission: OneQueue) -> Intake:
    async def lookup(topic: str) -> None:
        del topic

    return Intake(
        {TP0: part},
        decoder=None,
        admission=admission,
        placement=Placement("r", 1, allowed=bool, lookup=lookup, max_topics=1),
        settings=WorkerSettings("w"),
        clock=Clock(),
    )


def hold(part: Partition, entries: Sequence[Entry]) -> None:
    for one in entries:
        one.model_version = "1"
    part.held.extend(entries)


def test_behind_a_full_queue_a_slice_is_offered_again_and_not_all_that_is_held(part):
    """Else each executed batch costs a pass over thousands of entries; the order stays."""
    admission = OneQueue(default_queue_policy=QueuePolicy(max_queue_size=8))
    entries = [entry(1, offset=i) for i in range(HELD)]
    hold(part, entries)
    intake = intake_of(part, admission)
    for taken in range(0, HELD - 8, 8):
        admission.offered = 0
        intake.room_made(Quiet())
        assert admission.offered <= HELD_SLICE
        assert list(part.held) == entries[taken + 8 :]
        assert admission.batcher.take(0, 0).entries == entries[taken : taken + 8]


def test_a_level_with_room_is_served_behind_one_that_is_full(part):
    """DB-11: the size counts by level, so what waits for one level keeps nobody of another out."""
    full = QueuePolicy(max_queue_size=8)
    admission = OneQueue(
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=full,
        priority_queue_policy={1: QueuePolicy()},
    )
    plain = [entry(1, offset=i, priority=2) for i in range(HELD)]
    urgent = entry(1, offset=HELD, priority=1)
    hold(part, [*plain, urgent])
    intake_of(part, admission).room_made(Quiet())
    assert urgent not in part.held
    assert list(part.held) == plain[8:]
    assert admission.batcher.take(0, 0).entries[0] is urgent
