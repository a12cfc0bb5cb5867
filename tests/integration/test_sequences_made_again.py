"""Topics of a sequence model that are deleted and made again, or are too narrow (FAULTS B104)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_kit import PATIENCE_S, OneMemoryLog, Running, until
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.record import TP
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from sequence_kit import MODEL, SequenceStage, Step, check_steps, counts, write_sums

OFTEN_S = 0.02
NEVER_S = 3600.0


@pytest.fixture
async def stage():
    """A stage on the memory log."""
    async with SequenceStage(OneMemoryLog(MemoryLog()), "again") as stage:
        yield stage


async def until_log(log: MemoryLog, condition: Callable[[], object]) -> None:
    """Wait for a condition on what a log holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            changed = log.changed
            if condition():
                return
            await changed.wait()


def store_is_clean(running: Running) -> bool:
    """Whether every state is written."""
    keeper = running.worker.models[MODEL].sequences
    assert keeper is not None
    return not len(keeper.store)


@pytest.mark.parametrize("while_served", [True, False])
async def test_B104_states_of_an_earlier_requests_topic_close_no_record_of_the_next(
    stage, tmp_path, while_served
):
    """Ids that are used again get their answers, and no takeover finds the old states any more."""
    repository = write_sums(tmp_path)
    log, states = stage.log, TP(stage.topology.state(MODEL), 0)

    async def serve_old() -> None:
        await stage.step(Step(7, 1, start=True), *(Step(7, 1) for _ in range(9)))
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        await stage.read_all()
        stage.started_anew()
        stage.answers.clear()
        stage.sent.clear()
        stage.steps.clear()
        log.delete(stage.requests)

    async def serve_new(running: Running) -> None:
        await stage.step(Step(7, 100, start=True), Step(7, 1), Step(8, 5, start=True))
        await stage.until_answered(stage.sent)
        check_steps(stage)
        await until(lambda: store_is_clean(running), "the snapshots")
        (old,) = {r.key for r in log.records(*states) if r.value is None}
        assert [r.value is None for r in log.records(*states) if r.key == old][-1]

    if while_served:
        async with stage.worker(repository, topic_check_interval_s=OFTEN_S) as running:
            await serve_old()
            await until_log(log, lambda: log.partition(TP(stage.requests, 0)) is not None)
            await running.until_ready()
            await serve_new(running)
    else:
        async with stage.worker(repository, topic_check_interval_s=NEVER_S):
            await serve_old()
        async with stage.worker(repository) as running:
            await serve_new(running)


@pytest.mark.parametrize("by_us", [True, False], ids=["by us", "by another worker"])
async def test_B104_a_state_topic_made_again_holds_every_state_again(stage, tmp_path, by_us):
    """Also of sequences that are silent for long, and of those that ended: the next owner knows them."""
    repository = write_sums(tmp_path)
    log, states = stage.log, stage.topology.state(MODEL)
    async with stage.worker(repository, topic_check_interval_s=OFTEN_S) as first:
        for partition in (0, 1):
            await stage.step(Step(7, 1, start=True), Step(8, 2, start=True), partition=partition)
            await stage.step(Step(9, 3, start=True, end=True), partition=partition)
        await stage.until_answered(stage.sent)
        await until(lambda: store_is_clean(first), "the snapshots")
        topic = first.worker.models[MODEL].sequences._topic
        await until(lambda: all(topic._ends.get(TP(states, p)) for p in (0, 1)), "a look")
        log.delete(states)
        if not by_us:
            await log.ensure([TopicSpec(states, 2)])
        await until_log(
            log,
            lambda: all(
                log.partition(TP(states, p)) and len({r.key for r in log.records(states, p)}) == 3
                for p in (0, 1)
            ),
        )
        await first.kill()
    async with stage.worker(repository) as second:
        assert counts(second).restored == 4
        for partition in (0, 1):
            await stage.step(Step(7, 10), Step(8, 20, end=True), partition=partition)
        await stage.until_answered(stage.sent)
        check_steps(stage)


async def test_B104_a_state_topic_with_too_few_partitions_is_said_until_they_are_there(
    stage, tmp_path: Path
):
    """Readiness names topic, counts and the command, and it serves once an operator has mended it."""
    log, states = stage.log, stage.topology.state(MODEL)
    await log.ensure([TopicSpec(states, 1)])
    models = Repository([write_sums(tmp_path)])
    assert not models.load()
    settings = WorkerSettings("w", restart_backoff_s=0.1)
    running = Running(Worker(log, models, stage.topology, settings), log, models)
    await until(lambda: running.worker.troubles() and running.worker.models, "the start")
    await until(lambda: "--alter" in "".join(running.worker.troubles()), "the sentence")
    (trouble,) = running.worker.troubles()
    assert f"state topic {states} has 1 partitions, expected 2 as {stage.requests} has" in trouble
    assert f"--topic {states} --partitions 2" in trouble
    assert not running.worker.ready()
    log.delete(states)
    await log.ensure([TopicSpec(states, 2)])
    await running.until_ready()
    await stage.step(Step(7, 1, start=True), partition=1)
    await stage.until_answered(stage.sent)
    await running.stop()
    models.close()
