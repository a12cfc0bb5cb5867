"""Real `headrace worker` processes on Apache Kafka that are killed, end themselves, or are told to stop.

FAULTS B13, B19, B22, B68, B69, B97, R9. What is left behind is taken over by a worker in this process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from fault_kit import (
    KafkaLogs,
    Stage,
    check_answers,
    check_committed,
    group_of,
    until,
    write_model,
)
from fault_scenes import SLOW, check_end_in_the_middle, check_slow_head, slow_head
from headrace.backends.identity import EXIT_STATUS
from headrace.consumers.ledger import decode_metadata
from headrace.streams.log import Mode
from worker_process import WorkerProcess, worker_process

pytestmark = pytest.mark.kafka

Started = Callable[..., object]


@pytest.fixture(params=[*Mode], ids=str)
async def stage(request, kafka_properties, unique):
    """A stage on Kafka with topics of its own, in either mode."""
    async with Stage(KafkaLogs(kafka_properties), unique("kill"), mode=request.param) as stage:
        yield stage


@pytest.fixture
def start(stage, kafka_properties, tmp_path) -> Started:
    """Starts a worker process on the stage, in its mode; takes its repository and options."""

    def start(repository: Path, options: Sequence[str] = ()) -> AbstractAsyncContextManager:
        return worker_process(
            repository,
            kafka_properties,
            stage.topology.prefix,
            folder=tmp_path / "process",
            options=("--delivery", str(stage.mode), *options),
        )

    return start


async def test_B13_SIGKILL_behind_a_slow_head_answers_it_later_and_runs_nothing_twice(
    stage, start, tmp_path
):
    """The committed offset is 0 with 1 to 4 in its metadata, on the broker's disk."""
    check_slow_head(stage, await slow_head(stage, tmp_path, start=start))


async def test_B19_a_model_that_ends_the_process_commits_nothing(stage, start, tmp_path):
    """`os._exit` in the runner: the offset stays, and the next worker answers."""
    deadly = write_model(tmp_path / "deadly", exit_if=f"INPUT0={SLOW}")
    async with start(deadly) as first:
        await stage.send([0, 1, 2], partition=0)
        await stage.until_committed(stage.is_all_committed)
        await stage.send([SLOW, 4], partition=0)
        assert await first.exited() == EXIT_STATUS
    committed = {0: (await stage.committed())[0]}
    async with stage.worker(write_model(tmp_path / "mended")):
        await stage.until_answered(stage.sent)
    check_end_in_the_middle(stage, committed)


async def test_B22_SIGTERM_in_the_middle_of_twenty_records_loses_none(stage, start, tmp_path):
    """The budget of the stop is shorter than the queue: the rest is left, and read again by the next worker."""
    repository = write_model(tmp_path / "models", execute_delay_ms=200)
    async with start(repository, options=("--exit-timeout-secs", "1")) as first:
        await stage.send(range(20))
        await stage.until(lambda: len(stage.answers) >= 3, "three answers")
        first.signal(signal.SIGTERM)
        assert await first.exited() == 0, first.tail()
    committed = await stage.committed()
    await stage.read_all()
    check_committed(stage, committed)
    assert not stage.is_all_committed(committed)
    async with stage.worker(repository) as second:
        await stage.until_answered(stage.sent)
        await stage.until_committed(stage.is_all_committed)
        assert len(second.executions) < 18
    check_answers(stage, stage.sent, once=True)


def blocked_model(folder: Path) -> tuple[Path, Path]:
    """Write a model whose executions wait for a gate; returns repository and gate."""
    gate = folder / "gate"
    return write_model(folder / "models", block_until_file=gate, block_limit_ms=60_000), gate


async def test_B68_SIGTERM_is_not_ready_then_finish_then_commit_then_leave(
    stage, start, tmp_path, kafka_properties
):
    """In this order, and with status 0; R9: the answers are out before their positions are committed."""
    repository, gate = blocked_model(tmp_path)
    bootstrap = kafka_properties["bootstrap.servers"]
    async with start(repository, options=("--stop-delay-secs", "2")) as worker:
        taken = await stage.send([1, 2], partition=0)
        await until_taken(worker, 2)
        worker.signal(signal.SIGTERM)
        await worker.until_readiness(503)
        # Not ready, and for the delay everything else goes on.
        taken += await stage.send([3], partition=0)
        await until_taken(worker, 3)
        await worker.until_printed("Stopping: what is in flight is finished first.")
        # Still a member with its work: nothing more is taken, nothing is committed.
        left = await stage.send([4, 5], partition=0)
        assert await group_of(bootstrap, stage.group) == ("Stable", 1)
        assert worker.process.returncode is None
        assert stage.answers == {}
        await check_nothing_committed(stage)
        gate.touch()
        assert await worker.exited() == 0, worker.tail()
    assert (await stage.committed())[0].offset == 3
    assert await group_of(bootstrap, stage.group) == ("Empty", 0)
    await stage.until_answered(taken)
    assert sorted(stage.answers) == taken
    check_committed(stage, await stage.committed())
    async with stage.worker(repository):
        await stage.until_answered(left)
    check_answers(stage, stage.sent, once=True)


async def check_nothing_committed(stage: Stage) -> None:
    """Positions say at most who took the partitions over: no record counts as finished."""
    for position in (await stage.committed()).values():
        assert position.offset == 0
        assert decode_metadata(position.metadata) == []


async def until_taken(worker: WorkerProcess, records: int) -> None:
    """Wait until a worker has taken so many records in."""
    async with asyncio.timeout(60):
        while await worker.metric("headrace_in_flight_records") < records:
            assert worker.process.returncode is None, worker.tail()


async def test_B69_a_second_signal_ends_at_once_and_commits_nothing(stage, start, tmp_path):
    """The job runs on elsewhere."""
    repository, gate = blocked_model(tmp_path)
    async with start(repository) as worker:
        await stage.send([1], partition=0)
        await until_taken(worker, 1)
        worker.signal(signal.SIGTERM)
        await worker.until_readiness(503)
        loop = asyncio.get_running_loop()
        insisted = loop.time()
        worker.signal(signal.SIGTERM)
        assert await worker.exited() == 1
        assert loop.time() - insisted < 1, "a second signal waits for nothing"
    await check_nothing_committed(stage)
    gate.touch()
    async with stage.worker(repository):
        await stage.until_answered(stage.sent)
    check_answers(stage, stage.sent, once=True)


async def test_B69_a_job_longer_than_the_drain_is_left_to_others(stage, start, tmp_path):
    """The stop keeps its budget, ends with status 0, and what it did not finish is not committed."""
    repository, gate = blocked_model(tmp_path)
    async with start(repository, options=("--exit-timeout-secs", "1")) as worker:
        await stage.send([1], partition=0)
        await until_taken(worker, 1)
        loop = asyncio.get_running_loop()
        told = loop.time()
        worker.signal(signal.SIGTERM)
        assert await worker.exited() == 0, worker.tail()
        assert loop.time() - told < 10
    await check_nothing_committed(stage)
    gate.touch()
    async with stage.worker(repository):
        await stage.until_answered(stage.sent)
    check_answers(stage, stage.sent, once=True)


async def test_B69_what_others_took_of_the_time_is_not_there_twice(stage, tmp_path):
    """A gateway in the same process waits for its calls first: the worker's drain has what is left."""
    repository, gate = blocked_model(tmp_path)
    async with stage.worker(repository, exit_timeout_s=600.0) as running:
        await stage.send([1], partition=0)
        await until(lambda: running.executions, "the execution")
        running.worker.exit_by(asyncio.get_running_loop().time() + 0.2)
        running.ask_to_stop()
        await until(running.task.done, "the end of the stop", 30)
        gate.touch()
    await check_nothing_committed(stage)


async def test_B97_SIGKILL_while_records_execute_loses_nothing(stage, start, tmp_path):
    """Thirty records in every state between poll and commit when the process dies."""
    repository = write_model(tmp_path / "models", batch=4, delay_us=0, execute_delay_ms=150)
    async with start(repository) as worker:
        await stage.send(range(30))
        await stage.until(lambda: len(stage.answers) >= 4, "the first answers")
        await worker.kill()
    committed = await stage.committed()
    await stage.read_all()
    check_committed(stage, committed)
    async with stage.worker(repository):
        await stage.until_answered(stage.sent)
        await stage.until_committed(stage.is_all_committed)
    check_answers(stage, stage.sent, once=False)
