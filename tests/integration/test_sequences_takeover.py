"""Partitions that change hands while steps of sequences are queued, run, or are on their way (DELIVERY P-1…P-8).

The next owner goes on exactly behind the last finished step; on partitions that stay, nothing is read again.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from fault_kit import KafkaLogs, OneMemoryLog, Running, check_answers, until
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import StateKind, pack_snapshot, state_key
from headrace.streams.memory import MemoryLog
from sequence_kit import (
    MODEL,
    SequenceStage,
    Step,
    check_folds,
    check_steps,
    codec,
    counts,
    write_folds,
    write_sums,
)

BLOCK = 1_000_000
"""The step that waits for its gate."""


def gated(folder: Path, **more: object) -> tuple[Path, Path]:
    """Write an accumulator whose step `BLOCK` waits for a file; returns repository and file."""
    gate = folder / "gate"
    root = write_sums(
        folder / "gated",
        block_until_file=gate,
        block_if=f"INPUT={BLOCK}",
        block_limit_ms=60_000,
        **more,
    )
    return root, gate


def queue_of(name: int, steps: int) -> list[Step]:
    """Return a blocking step of a live sequence and those that wait behind it, the last one with END."""
    return [
        Step(name, BLOCK),
        *(Step(name, value) for value in range(1, steps)),
        Step(name, steps, end=True),
    ]


def steps_run(*workers: Running) -> int:
    """Return the steps that these workers' models have begun; batches must be of one row."""
    return sum(len(worker.executions) for worker in workers)


# Revoked with steps in flight.


async def test_B16_P5_the_next_owner_continues_behind_the_last_finished_step(
    tmp_path, logs, unique
):
    """50 steps are queued on each partition, one runs: it is finished by the old owner, no queued one runs there."""
    repository, gate = gated(tmp_path, oldest=8, instances=2)
    async with SequenceStage(logs, unique("b16")) as stage, AsyncExitStack() as stack:
        first = await stack.enter_async_context(stage.worker(repository, revoke_grace_s=30.0))
        for partition in (0, 1):
            await stage.step(Step(7 + partition, 1, start=True), partition=partition)
        await stage.until_answered(stage.sent)
        for partition in (0, 1):
            await stage.step(*queue_of(7 + partition, 50), partition=partition)
        await until(lambda: first.in_flight() == 2 * 51, "the queue")
        await until(lambda: steps_run(first) == 2 + 2, "the blocked steps")
        joining = asyncio.create_task(
            stack.enter_async_context(stage.worker(repository, revoke_grace_s=30.0))
        )
        await until(lambda: not first.partitions(), "the revocation")
        await until(lambda: first.in_flight() == 2, "only what runs is waited for")
        assert not stage.answers.keys() & {(0, 1), (1, 1)}
        gate.touch()
        second = await joining
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        check_steps(stage)
        check_answers(stage, stage.sent, once=True)
        assert steps_run(first, second) == len(stage.sent), "each step ran once"
        assert second.partitions()
        assert first.partitions()


async def test_B16_a_step_that_outlasts_the_grace_is_run_by_the_next_owner(tmp_path):
    """What the old owner makes of it then is dropped: one answer, and one line of snapshots."""
    gate_repository, gate = gated(tmp_path, oldest=8)
    log = MemoryLog()
    async with SequenceStage(OneMemoryLog(log), "grace") as stage:
        log.revoke_grace_s = 0.2
        async with stage.worker(gate_repository, revoke_grace_s=0.2) as first:
            await stage.step(Step(7, 1, start=True), partition=0)
            await stage.until_answered(stage.sent)
            await stage.step(*queue_of(7, 5), partition=0)
            await until(lambda: steps_run(first) == 2, "the blocked step")
            async with stage.worker(write_sums(tmp_path / "open", oldest=8)) as second:
                await log.rebalance(stage.group, rotate=0 not in second.partitions())
                await until(lambda: 0 in second.partitions(), "the takeover")
                await stage.until_answered(stage.sent)
                await stage.until_committed_all()
                saved = log.records(stage.topology.state(MODEL), 0)
                gate.touch()
                await until(first.worker.models[MODEL].answering.idle, "the end of the old step")
                await stage.step(Step(8, 1, start=True), partition=1)
                await stage.until_answered(stage.sent)
                assert log.records(stage.topology.state(MODEL), 0) == saved
        check_steps(stage)
        check_answers(stage, stage.sent, once=True)


async def test_P7_of_lost_partitions_nothing_is_published(tmp_path):
    """An evicted worker drops queue, state and what runs; it takes over anew and each step has one answer."""
    repository, gate = gated(tmp_path, oldest=8, instances=2)
    log = MemoryLog()
    async with (
        SequenceStage(OneMemoryLog(log), "lost", partitions=1) as stage,
        stage.worker(repository) as running,
    ):
        await stage.step(Step(7, 1, start=True), Step(9, 3, start=True))
        await stage.until_committed_all()
        await stage.step(*queue_of(7, 3), Step(9, 4))
        await until(lambda: steps_run(running) == 4, "the blocked step")
        await stage.until_answered([(0, 6)])
        log.evict(running.worker.models[MODEL].source)
        await until(lambda: steps_run(running) >= 5, "the blocked step of the new epoch")
        gate.touch()
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        await until(running.worker.models[MODEL].answering.idle, "all executions' ends")
        check_steps(stage)
        assert len(stage.answers[0, 2]) == 1, (
            "the blocked step's result of the old epoch is dropped"
        )


# Another worker joins: most stays where it is.


async def live_on_all(stage: SequenceStage) -> None:
    """Begin a sequence on every partition."""
    for partition in range(stage.topology.partitions):
        name = 7 + partition
        await stage.step(Step(name, 1, start=True), Step(name, 2), partition=partition)
    await stage.until_answered(stage.sent)
    await stage.until_committed_all()


async def test_P7_sequences_of_kept_partitions_go_on_without_being_read_again(
    tmp_path, logs, unique
):
    """Those of the moved ones are restored by the joiner."""
    repository = write_sums(tmp_path, batch=4)
    async with (
        SequenceStage(logs, unique("kept"), partitions=4) as stage,
        stage.worker(repository) as first,
    ):
        await live_on_all(stage)
        async with stage.worker(repository) as second:
            await until(lambda: len(first.partitions()) == 2, "the split")
            await until(lambda: len(second.partitions()) == 2, "the split")
            for partition in range(4):
                await stage.step(Step(7 + partition, 3), partition=partition)
            await stage.until_answered(stage.sent)
            check_steps(stage)
            assert counts(first).restored == 0
            assert counts(second).restored == 2
            assert (counts(first).live, counts(second).live) == (2, 2)


@pytest.mark.parametrize("oldest", [0, 4], ids=["direct", "oldest"])
async def test_P7_memory_of_a_models_own_survives_on_kept_partitions(
    tmp_path, logs, unique, oldest
):
    """Sums go on where the partition stays; where it moves the sequence is lost, and says so."""
    repository = write_sums(tmp_path, states=False, oldest=oldest, batch=4)
    async with (
        SequenceStage(logs, unique("own"), partitions=4) as stage,
        stage.worker(repository) as first,
    ):
        await live_on_all(stage)
        async with stage.worker(repository) as second:
            await until(lambda: len(first.partitions()) == 2, "the split")
            await until(lambda: len(second.partitions()) == 2, "the split")
            kept, moved = first.partitions(), second.partitions()
            for partition in kept:
                await stage.step(Step(7 + partition, 3), partition=partition)
            gone = await stage.send_raw(
                [stage.record(Step(7 + partition, 3), partition) for partition in moved]
            )
            await stage.until_answered(stage.sent)
            check_steps(stage)
            assert {stage.answer(key).reason for key in gone} == {"sequence_lost"}
            assert (counts(first).lost, counts(second).lost) == (0, 2)


# The state topic at a takeover.


@pytest.mark.kafka
async def test_B24_a_takeover_from_a_state_topic_that_ends_in_an_aborted_transaction(
    tmp_path, kafka_properties, unique
):
    """It completes at once, and nothing aborted is taken for a state."""
    repository = write_folds(tmp_path)
    async with SequenceStage(KafkaLogs(kafka_properties), unique("b24")) as stage:
        async with stage.worker(repository):
            for partition in (0, 1):
                await stage.step(Step(7, 1, start=True), Step(7, 2), partition=partition)
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        aborted = SequenceState(10**6, Flag.LIVE, 0, 2, 9, (bytes(8),), ((1,),))
        value = pack_snapshot(codec(), aborted, None)
        async with AIOKafkaProducer(
            bootstrap_servers=kafka_properties["bootstrap.servers"],
            transactional_id=unique("tx"),
        ) as producer:
            await producer.begin_transaction()
            for partition in (0, 1):
                for name in (b"u:7", b"u:8"):
                    await producer.send_and_wait(
                        stage.topology.state(MODEL),
                        value,
                        key=state_key(StateKind.SEQUENCE, name, b"00000000"),
                        partition=partition,
                    )
            await producer.abort_transaction()
        began = asyncio.get_running_loop().time()
        async with stage.worker(repository) as second:
            for partition in (0, 1):
                await stage.step(Step(7, 3, end=True), Step(8, 1, start=True), partition=partition)
            await stage.until_answered(stage.sent, 10.0)
            assert asyncio.get_running_loop().time() - began < 10
            assert counts(second).restored == 2
        check_folds(stage)


async def test_B96_states_are_rebuilt_while_the_request_queue_is_full(tmp_path, logs, unique):
    """2,000 snapshots come in with a partition while another one's records fill the queue behind a blocked step."""
    blocked, gate = gated(tmp_path, oldest=8, instances=1)
    names = range(100, 2100)
    options = {"max_queued_records": 8, "revoke_grace_s": 0.3}
    async with SequenceStage(logs, unique("b96")) as stage, AsyncExitStack() as stack:
        async with AsyncExitStack() as leaving:
            one = await leaving.enter_async_context(
                stage.worker(write_sums(tmp_path / "open", batch=64))
            )
            for partition in (0, 1):
                await stage.step(
                    *(Step(n + 5000 * partition, n, start=True) for n in names),
                    partition=partition,
                )
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
            two = await stack.enter_async_context(stage.worker(blocked, **options))
            await until(lambda: len(two.partitions()) == 1, "the split")
            (ours,) = two.partitions()
            theirs = 1 - ours
            await until(lambda: one.partitions() == {theirs}, "the first one's share")
            await stage.step(
                Step(7, 1, start=True), Step(7, BLOCK), *(Step(7, 1),) * 100, partition=ours
            )
            await until(lambda: two.in_flight() >= 8, "the full queue")
            before = counts(two).restored
        await until(lambda: two.partitions() == {0, 1}, "the takeover of the other partition")
        assert counts(two).restored >= before + len(names)
        await until(lambda: two.in_flight() >= 8, "the full queue")
        assert not gate.exists()
        gate.touch()
        await stage.step(*(Step(n + 5000 * theirs, 1) for n in (100, 2099)), partition=theirs)
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        check_steps(stage)


# Handed over by a death.


async def test_KX07_steps_that_are_answered_twice_are_answered_equally(tmp_path):
    """Killed between answers and commit: the next owner runs them again, from the states that were committed (P-16)."""
    log = MemoryLog()
    repository = write_folds(tmp_path)
    async with SequenceStage(OneMemoryLog(log), "twice") as stage:
        async with stage.worker(repository) as first:
            await stage.step(Step(7, 1, start=True), Step("7", 1, start=True), Step(7, 2))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
            await first.stop()
        log.commit_interval_ms = 600_000
        async with stage.worker(repository) as second:
            again = await stage.step(*(Step(n, v) for v in range(1, 6) for n in (7, "7")))
            await stage.until_answered(again)
            await second.kill()
        log.commit_interval_ms = 0
        async with stage.worker(repository):
            await stage.step(Step(7, 9, end=True), Step("7", 9, end=True))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
            await stage.read_all()
        check_folds(stage)
        twice = {key for key, found in stage.answers.items() if len(found) == 2}
        assert twice == set(again)


async def test_P3_what_a_snapshot_covers_is_not_run_again(tmp_path):
    """Killed between snapshot and commit: the records come again, and are closed as the state stands behind them."""
    log = MemoryLog()
    repository = write_folds(tmp_path)
    async with SequenceStage(OneMemoryLog(log), "once") as stage:
        async with stage.worker(repository) as first:
            log.fail_commit(10**6)
            await stage.step(Step(7, 1, start=True), *(Step(7, value) for value in range(5)))
            await stage.until_answered(stage.sent)
            store = first.worker.models[MODEL].sequences.store
            await until(lambda: counts(first).snapshots and not len(store), "the snapshot")
            await first.kill()
        log.fail_commit(0)
        async with stage.worker(repository):
            await stage.step(Step(7, 9, end=True))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
            await stage.read_all()
        check_folds(stage)
        check_answers(stage, stage.sent, once=True)


async def test_KX06_KX12_a_takeover_restores_every_sequence_under_its_own_type(
    tmp_path, logs, unique
):
    """7 and "7" go on, each with its own sum; what has ended is unknown."""
    repository = write_sums(tmp_path, batch=4)
    async with SequenceStage(logs, unique("kx06")) as stage:
        async with stage.worker(repository):
            await stage.step(Step(7, 1, start=True), Step("7", 100, start=True))
            await stage.step(Step(9, 1, start=True), Step(9, 1, end=True))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        async with stage.worker(repository) as second:
            await stage.step(Step(7, 2), Step("7", 200))
            (ended,) = await stage.send_raw([stage.record(Step(9, 1))])
            await stage.until_answered(stage.sent)
            assert stage.answer(ended).reason == "sequence_unknown"
            assert counts(second).restored == 2
        check_steps(stage)
