"""Topics that were deleted come back as they were, and what others made of them is found out (FAULTS B104, R8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fault_kit import PATIENCE_S, OneMemoryLog, Stage, until, write_model
from headrace.schemas.record import Out
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog

NEVER_S = 3600.0


async def until_log(log: MemoryLog, condition: Callable[[], object]) -> None:
    """Wait for a condition on what a log holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            changed = log.changed
            if condition():
                return
            await changed.wait()


async def test_B104_every_topic_that_is_deleted_comes_back_with_its_old_partition_count(tmp_path):
    """Those that all models share too, whatever the counts that new topics would get."""
    log = MemoryLog()
    await log.ensure(
        [
            TopicSpec("b104.echo.requests", 3),
            TopicSpec("b104.echo.results", 3),
            TopicSpec("b104.replies", 5),
            TopicSpec("b104.dead-letters", 4),
        ]
    )
    repository = write_model(tmp_path / "models")
    async with (
        Stage(OneMemoryLog(log), "b104") as stage,
        stage.worker(repository, topic_check_interval_s=0.02) as running,
    ):
        before = dict(await log.topics())
        assert len(before) == 8
        for topic in before:
            log.delete(topic)
            await until_log(log, lambda name=topic: name in log._topics)
        assert await log.topics() == before
        for topic in before:
            log.delete(topic)
        await until_log(log, lambda: log._topics.keys() == before.keys())
        assert await log.topics() == before
        await running.until_ready()
        await stage.send([7.0], partition=1)
        results = stage.topology.results("echo")
        await until_log(log, lambda: log.records(results, 1))


async def make_again(log: MemoryLog, topic: str, partitions: int) -> None:
    """Delete a topic and make it with another partition count, as an operator does."""
    log.delete(topic)
    await log.ensure([TopicSpec(topic, partitions)])


@pytest.mark.parametrize("check_s", [NEVER_S, 0.02])
async def test_R8_a_results_topic_made_again_with_fewer_partitions_is_written_to(
    tmp_path, check_s
):
    """Found by the settle that fails, or by the check of topics; the answers are addressed anew."""
    log = MemoryLog()
    repository = write_model(tmp_path / "models")
    async with (
        Stage(OneMemoryLog(log), "r8") as stage,
        stage.worker(repository, topic_check_interval_s=check_s) as running,
    ):
        results = stage.topology.results("echo")
        await stage.send([1.0], partition=1)
        await until_log(log, lambda: log.records(results, 1))
        await until(lambda: running.in_flight() == 0, "the settle")
        model = running.worker.models["echo"]
        member = model.source
        await make_again(log, results, 1)
        if check_s != NEVER_S:
            await until(lambda: model.source not in (None, member), "the new membership")
        await stage.send([2.0], partition=1)
        await until_log(log, lambda: log.records(results, 0))
        await running.until_ready()


async def test_R8_a_dead_letter_topic_made_again_with_fewer_partitions_is_written_to(tmp_path):
    """One bad record must not stop its partition."""
    log = MemoryLog()
    repository = write_model(tmp_path / "models")
    async with (
        Stage(OneMemoryLog(log), "r8") as stage,
        stage.worker(repository, topic_check_interval_s=NEVER_S) as running,
    ):
        letters = stage.topology.dead_letters
        await make_again(log, letters, 1)
        await stage.send_raw([Out(stage.requests, 1, None, b"\xff" * 10, [])])
        await until_log(log, lambda: log.records(letters, 0))
        await running.until_ready()


async def test_a_request_topic_that_grew_is_announced_with_its_new_count(tmp_path):
    """Status records carry the count, and gateways send by it."""
    log = MemoryLog()
    repository = write_model(tmp_path / "models")
    async with (
        Stage(OneMemoryLog(log), "grow") as stage,
        stage.worker(repository, topic_check_interval_s=0.02) as running,
    ):
        model = running.worker.models["echo"]
        assert model.partition_count == 2
        await make_again(log, stage.requests, 3)
        await until(lambda: model.partition_count == 3, "the new count")
        results = stage.topology.results("echo")
        await running.until_ready()
        await stage.send_raw([Out(stage.requests, 0, None, b"\xff", [])])
        await until_log(log, lambda: log.records(results, 0))
