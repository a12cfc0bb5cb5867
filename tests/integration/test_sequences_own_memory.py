"""Models with memory of their own never stop: their slots come by ENDs only, and those are always read (KX-04, P-1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_kit import OneMemoryLog
from headrace.schemas.errors import ConfigError
from headrace.streams.memory import MemoryLog
from sequence_kit import MODEL, SequenceStage, Step, reasons, write_sums

both = pytest.mark.parametrize("oldest", [0, 1], ids=["direct", "oldest"])


def own_memory(folder: Path, *, oldest: int = 0, versions: int = 1) -> Path:
    """Write an accumulator that remembers by itself and has one slot per version."""
    root = write_sums(folder / "sums", states=False, oldest=oldest)
    for number in range(2, versions + 1):
        (root / MODEL / str(number)).mkdir()
    with (root / MODEL / "config.pbtxt").open("a") as config:
        config.write("version_policy { all {} }\n")
    return root


@pytest.fixture
async def stage():
    """A stage on the memory log with one partition."""
    async with SequenceStage(OneMemoryLog(MemoryLog()), "own", partitions=1) as stage:
        yield stage


async def hold(stage: SequenceStage, *versions: int) -> None:
    """Start sequences 1, 2… on these versions: they take the slots, and their ENDs come last."""
    await stage.step(
        *(Step(name, name, start=True, version=on) for name, on in enumerate(versions, 1))
    )
    await stage.until_answered(stage.sent)


async def check_freed(stage: SequenceStage, *versions: int) -> set[str]:
    """Those that had the slots end well, and everything is answered; returns the reasons, "" where it had its turn."""
    ends = await stage.step(
        *(Step(name, 1, end=True, version=on) for name, on in enumerate(versions, 1))
    )
    await stage.until_answered(stage.sent)
    assert stage.values(ends) == [name + 1 for name in range(1, len(versions) + 1)]
    await stage.until_committed_all()
    return set(reasons(stage, stage.sent).values())


@both
async def test_KX04_bytes_that_wait_for_slots_leave_room_for_the_END(stage, tmp_path, oldest):
    """The backlog holds half of the bytes that intake admits; else polling would pause before the END."""
    repository = own_memory(tmp_path, oldest=oldest)
    others = [Step(name, 1, start=True, end=True) for name in range(10, 60)]
    size = len(stage.record(others[0]).value or b"")
    async with stage.worker(repository, max_queued_bytes=20 * size, max_poll_records=5):
        await hold(stage, 1)
        await stage.step(*others)
        assert await check_freed(stage, 1) == {"", "queue_full"}


@both
async def test_KX04_records_that_wait_on_all_versions_leave_room_for_the_ENDs(
    stage, tmp_path, oldest
):
    """Two versions' backlogs share half of the records that intake admits."""
    repository = own_memory(tmp_path, oldest=oldest, versions=2)
    async with stage.worker(repository, max_queued_records=40, max_poll_records=5):
        await hold(stage, 1, 2)
        await stage.step(
            *(Step(name, 1, start=True, end=True, version=1 + name % 2) for name in range(10, 70))
        )
        assert await check_freed(stage, 1, 2) == {"", "queue_full"}


@both
async def test_KX04_what_waits_on_one_of_many_partitions_leaves_room_for_the_END(tmp_path, oldest):
    """More than the partition's share of what intake admits waits for the slot, and the END comes behind it."""
    repository = own_memory(tmp_path, oldest=oldest)
    async with (
        SequenceStage(OneMemoryLog(MemoryLog()), "own", partitions=4) as stage,
        stage.worker(repository, max_queued_records=64, max_poll_records=8),
    ):
        await stage.until_answered(await stage.step(Step(1, 1, start=True), partition=0))
        others = [Step(name, 1, start=True, end=True) for name in range(10, 35)]
        await stage.step(*others, partition=0)
        ends = await stage.step(Step(1, 1, end=True), partition=0)
        await stage.until_answered(stage.sent)
        assert stage.values(ends) == [2]


@both
@pytest.mark.parametrize("span", [9, 12, 600], ids=["least", "below_two_polls", "wide"])
async def test_P1_a_sequence_that_waits_does_not_stop_its_partition(stage, tmp_path, oldest, span):
    """Whatever the span of a partition is: what holds it back is told `queue_full` before reading stops."""
    repository = own_memory(tmp_path, oldest=oldest)
    async with stage.worker(repository, max_partition_span=span, max_poll_records=8):
        await hold(stage, 1)
        await stage.step(Step(5, 1, start=True, end=True))
        for _ in range(10):  # one by one, so that reading passes every distance
            await stage.until_answered(await stage.step(Step(1, 0)))
        await stage.step(*(Step(1, 0) for _ in range(50)))
        assert await check_freed(stage, 1) == ({""} if span == 600 else {"", "queue_full"})


@both
async def test_P1_records_of_others_do_not_stop_a_partition_in_which_a_sequence_waits(
    stage, tmp_path, oldest
):
    """Another version's steps and steps of no sequence never come to the backlog that holds the partition back."""
    repository = own_memory(tmp_path, oldest=oldest, versions=2)
    async with stage.worker(repository, max_partition_span=12, max_poll_records=8):
        await hold(stage, 1, 2)
        (waits,) = await stage.step(Step(5, 1, start=True, end=True, version=1))
        for _ in range(10):
            await stage.until_answered(await stage.step(Step(2, 0)))
        await stage.until_answered([waits])
        (waits,) = await stage.step(Step(6, 1, start=True, end=True, version=2))
        for name in range(100, 120):
            lost = await stage.send_raw([stage.record(Step(name, 1))])
            await stage.until_answered(lost)
        found = await check_freed(stage, 1, 2)
        assert found == {"", "queue_full", "sequence_unknown"}


async def test_P1_a_span_that_would_stop_the_first_partition_is_refused_at_start(stage, tmp_path):
    """A model with memory of its own needs room for a block beyond what waits; others do without."""
    expected = "max_poll_records = 8: model 'echo' keeps memory of its own, .* at most 7, .*max_partition_span .8.*"
    bounds = {"max_partition_span": 8, "max_poll_records": 8}
    with pytest.raises(ConfigError, match=expected):
        async with stage.worker(own_memory(tmp_path), **bounds):
            raise AssertionError("it serves")
    async with stage.worker(write_sums(tmp_path / "declared"), **bounds):
        await stage.step(*(Step(name, 1, start=True) for name in range(30)), Step(7, 1, end=True))
        await stage.until_answered(stage.sent)
