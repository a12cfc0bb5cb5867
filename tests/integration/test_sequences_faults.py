"""What sequences must stand on one worker: slots, backlog, silence, cancels and deadlines (FAULTS J, SEMANTICS KX)."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from fault_kit import OneMemoryLog, Running, until
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.record import CORRELATION_ID, DEADLINE_MS, TP, Header
from headrace.streams.cancels import Cancel, cancel_record
from headrace.streams.memory import MemoryLog
from sequence_kit import MODEL, SequenceStage, Step, check_steps, counts, write_sums

BLOCK = 1_000_000
"""The step that waits for its gate."""
IDLE_MS = 300
REST_S = 2.0
"""For so long nothing happens, seconds: several looks of the reaper."""


def gated(folder: Path, **more: object) -> tuple[Path, Path]:
    """Write an accumulator whose step `BLOCK` waits for a file; returns repository and file."""
    gate = folder / "gate"
    script = {"block_until_file": gate, "block_if": f"INPUT={BLOCK}", "block_limit_ms": 60_000}
    return write_sums(folder / "gated", **script, **more), gate


def batcher(running: Running) -> SequenceBatcher:
    """Return the batcher of the one version."""
    (version,) = running.worker.models[MODEL].answering.versions.values()
    found = version.scheduler.batcher
    assert isinstance(found, SequenceBatcher)
    return found


def live(running: Running, name: int) -> LiveSequence:
    """Return a live sequence."""
    (found,) = [
        lane
        for lane in running.worker.models[MODEL].sequences.sequences
        if lane.sequence_id == name
    ]
    return found


async def cancel(stage: SequenceStage, ids: Iterable[bytes]) -> None:
    """Cancel calls as a gateway does."""
    topic = stage.topology.cancels
    async with stage.log.publisher() as publisher:
        await publisher.publish([cancel_record(topic, 0, Cancel(MODEL, one)) for one in ids])


@pytest.fixture
async def stage():
    """A stage on the memory log, whose clock is the machine's."""
    async with SequenceStage(OneMemoryLog(MemoryLog()), "faults") as stage:
        yield stage


# Slots, and who gets one.


async def test_KX03_a_START_behind_an_END_waits_for_it(stage, tmp_path):
    """One id is one order: Triton would run both at the same time, and an idle instance is there."""
    repository, gate = gated(tmp_path, instances=2)
    async with stage.worker(repository) as running:
        await stage.step(
            Step(7, 1, start=True),
            Step(7, BLOCK, end=True),
            Step(7, 10, start=True),
            Step(7, 20, end=True),
        )
        await stage.step(Step(8, 5, start=True, end=True), partition=1)
        await stage.until_answered([(0, 0), (1, 0)])
        await until(lambda: len(running.executions) == 3, "the blocked step")
        assert len(batcher(running)) == 2
        assert not {(0, 2), (0, 3)} & stage.answers.keys()
        gate.touch()
        await stage.until_answered(stage.sent)
        check_steps(stage)
        assert counts(running).ended == 3


@pytest.mark.parametrize("oldest", [0, 1], ids=["direct", "oldest"])
async def test_KX04_sequences_share_few_slots_without_their_ENDs(stage, tmp_path, oldest):
    """300 that never end on one row or slot: each goes on; for a slot, partitions take turns."""
    async with stage.worker(write_sums(tmp_path, oldest=oldest)) as running:
        many = range(100, 400)
        await stage.step(*(Step(name, name, start=True) for name in many))
        await stage.step(Step(7, 1, start=True), Step(7, 2, end=True), partition=1)
        await stage.step(*(Step(name, 1) for name in many))
        await stage.until_answered(stage.sent)
        check_steps(stage)
        order = list(stage.answers)
        if oldest:  # the requests that share rows run in the order in which they were admitted
            assert order.index((1, 1)) < order.index((0, 599))
        assert counts(running).live == 300
        assert counts(running).parked >= 299 * oldest  # rows are shared without parking


@pytest.mark.parametrize("oldest", [0, 1], ids=["direct", "oldest"])
async def test_KX04_a_full_backlog_of_a_model_with_memory_of_its_own_says_so(
    stage, tmp_path, oldest
):
    """Its slots come only by END: what is beyond the bound is `queue_full`, and reading goes on to the END."""
    repository = write_sums(tmp_path, states=False, oldest=oldest)
    async with stage.worker(repository, max_backlogged_sequences=2) as running:
        await stage.step(Step(1, 1, start=True))
        await stage.until_answered(stage.sent)
        waiting = await stage.step(Step(2, 1, start=True), Step(3, 1, start=True))
        beyond = await stage.send_raw([stage.record(Step(name, 1, start=True)) for name in (4, 5)])
        await stage.until_answered(beyond)
        beyond += await stage.send_raw([stage.record(Step(4, 2))])
        await stage.until_answered(beyond)
        assert [stage.answer(key).reason for key in beyond] == [
            "queue_full",
            "queue_full",
            "sequence_unknown",
        ]
        assert "wait for a slot already, expected fewer" in stage.answer(beyond[0]).text
        assert not set(waiting) & stage.answers.keys()
        await stage.step(*(Step(name, 2, end=True) for name in (1, 2, 3)))
        await stage.until_answered(stage.sent)
        await stage.step(Step(4, 1, start=True, end=True))
        await stage.until_answered(stage.sent)
        check_steps(stage)
        assert len(batcher(running)) == 0
        assert counts(running).live == 0


# Silence.


async def test_B88_a_hundred_silent_sequences_are_reaped_once_each(tmp_path, logs, unique):
    """Idle for a second without END: markers are written once, slots are free, and the reaper rests."""
    repository = write_sums(tmp_path, states=False, batch=100, idle_s=1)
    async with (
        SequenceStage(logs, unique("b88")) as stage,
        stage.worker(repository, sequence_skew_s=0.1) as running,
    ):
        await stage.step(*(Step(name, 1, start=True) for name in range(1, 101)))
        await stage.until_answered(stage.sent)
        assert batcher(running).live == 100
        store = running.worker.models[MODEL].sequences.store
        await until(lambda: counts(running).expired == 100, "the expiry")
        await until(lambda: not len(store), "the markers")
        assert (counts(running).live, batcher(running).live) == (0, 0)
        written = counts(running).snapshots
        # Another one's expiry shows that the reaper has looked since.
        for turn in (1, 2):
            await stage.step(Step(200 + turn, 1, start=True))
            await until(lambda: counts(running).expired == 100 + turn, "the next expiry")  # noqa: B023
        await until(lambda: not len(store), "the next markers")
        assert counts(running).expired == 102
        # Each has a snapshot at most, and its marker.
        assert written + 2 <= counts(running).snapshots <= written + 2 * 2
        assert batcher(running).live == 0


async def test_B88_P1_silence_is_seen_where_the_requests_end_in_a_marker(stage, tmp_path):
    """A transaction's marker is no record to wait for: slots come free, and the position moves past it."""
    repository = write_sums(tmp_path, states=False, idle_s=1)
    async with stage.worker(repository, sequence_skew_s=0.1) as running:
        await stage.step(Step(7, 1, start=True))
        await stage.until_answered(stage.sent)
        stage.log.existing(TP(stage.requests, 0)).hole(1)
        await until(lambda: counts(running).expired == 1, "the expiry")
        await stage.until_committed(lambda found: 0 in found and found[0].offset == 2)
        assert batcher(running).live == 0


async def test_B88_the_reaper_rests_when_all_are_reaped(stage, tmp_path):
    """10,000 ended by silence cost an idle worker no time, and nothing is written or committed any more."""
    repository = write_sums(tmp_path, batch=64, idle_s=1)
    async with stage.worker(repository, sequence_skew_s=0.0) as running:
        await stage.step(*(Step(name, 1, start=True) for name in range(1, 10_001)))
        await until(lambda: counts(running).expired == 10_000, "the expiry")
        store = running.worker.models[MODEL].sequences.store
        await until(lambda: not len(store), "the markers")
        assert isinstance(stage.log, MemoryLog)
        states = TP(stage.topology.state(MODEL), 0)
        end = stage.log.existing(states).end
        used_s = await asyncio.to_thread(_used_s)
        assert stage.log.existing(states).end == end
        assert counts(running).expired == 10_000
    assert used_s < REST_S / 5


def _used_s() -> float:
    """Return the processor's time that this process uses within `REST_S`."""
    began = time.process_time()
    threading.Event().wait(REST_S)
    return time.process_time() - began


async def test_KX05_a_step_that_runs_for_longer_than_the_idle_time_ends_no_sequence(
    stage, tmp_path
):
    """Silence counts between records: what came in time runs, and the reaper leaves what is at work."""
    repository, gate = gated(tmp_path, idle_s=IDLE_MS / 1000, instances=2)
    async with stage.worker(repository, sequence_skew_s=0.0) as running:
        await stage.step(Step(7, 1, start=True), Step(7, BLOCK), Step(7, 3))
        await stage.step(Step(8, 1, start=True), partition=1)
        await until(lambda: counts(running).expired == 1, "the silent one's expiry")
        await stage.step(Step(8, 1, start=True), partition=1)
        await until(lambda: counts(running).expired == 2, "another look of the reaper")
        assert counts(running).live == 1
        gate.touch()
        await stage.until_answered(stage.sent)
        check_steps(stage)


async def test_B87_cancel_and_expiry_free_a_slot_once(stage, tmp_path):
    """1,000 sequences are cancelled while the reaper is after them: slots come out even, no sum has another's part."""
    rng = random.Random(87)
    repository = write_sums(tmp_path, states=False, batch=8, idle_s=0.05, execute_delay_ms=1)
    async with stage.worker(repository, sequence_skew_s=0.0) as running:
        for turn in range(20):
            names = range(1 + 50 * turn, 51 + 50 * turn)
            outs, asked = [], []
            for name in names:
                for value in (1, 2):
                    step = Step(name, value * 1000 + name, start=value == 1)
                    headers: list[Header] = [(CORRELATION_ID, b"%d" % name)]
                    outs.append(stage.record(step, headers=headers))
                    asked.append(step)
            keys = await stage.send_raw(outs)
            await cancel(stage, [b"%d" % name for name in names if rng.random() < 0.5])
            await stage.until_answered(keys)
            for key, step in zip(keys, asked, strict=True):
                _check_fate(stage, key, step)
        await until(lambda: counts(running).live == 0, "the end of all sequences")
        found = batcher(running)
        assert (found.live, found.backlogged, len(found)) == (0, 0, 0)
        taken = [found._holders._slots.take() for _ in range(9)]
        assert len(set(taken)) == 9, "a slot was free twice"
        assert taken[-1] < 0, "eight slots and no more"


def _check_fate(stage: SequenceStage, key: tuple[int, int], step: Step) -> None:
    """Check that a step was cancelled, came too late, or has its own sequence's sum."""
    answer = stage.answer(key)
    if answer.status == "OK":
        first = 1000 + step.sequence_id
        assert answer.values == ((first if step.start else first + step.value),)
    else:
        assert answer.reason in {"cancelled", "sequence_expired", "sequence_unknown"}, answer


# Cancels and deadlines.


async def test_SQ16_a_cancelled_step_takes_the_queued_ones_of_its_sequence_with_it(
    stage, tmp_path
):
    """What executes completes, another sequence goes on, and a START begins anew (SQ-18)."""
    repository, gate = gated(tmp_path, instances=2)
    async with stage.worker(repository) as running:
        await stage.step(Step(7, 1, start=True), Step(7, BLOCK))
        await stage.step(Step(8, 1, start=True), partition=1)
        await until(lambda: len(running.executions) == 3, "the blocked step")
        queued = await stage.send_raw(
            [
                stage.record(Step(7, 2), headers=[(CORRELATION_ID, b"c%d" % number)])
                for number in range(3)
            ]
        )
        await until(lambda: len(batcher(running)) == 3, "the queue")
        await cancel(stage, [b"c1"])
        await stage.step(Step(8, 2), partition=1)
        await until(lambda: not live(running, 7).is_open, "the cancel")
        gate.touch()
        await stage.until_answered(stage.sent)
        assert [stage.answer(key).status for key in queued] == ["CANCELLED"] * 3
        (late,) = await stage.send_raw([stage.record(Step(7, 3))])
        await stage.step(Step(7, 5, start=True, end=True))
        await stage.until_answered(stage.sent)
        assert stage.answer(late).reason == "sequence_unknown"
        check_steps(stage)
        assert batcher(running).live == 1


def overdue() -> Header:
    """Return the header of a deadline that has passed."""
    return (DEADLINE_MS, b"%d" % (time.time_ns() // 1_000_000 + 20))


async def test_P15_a_deadline_is_nothing_to_a_step_of_a_sequence_in_a_slot(stage, tmp_path):
    """A live sequence's step is never skipped: it would be a gap in the state."""
    repository, gate = gated(tmp_path)
    async with stage.worker(repository) as running:
        await stage.step(Step(7, 1, start=True), Step(7, BLOCK))
        await until(lambda: len(running.executions) == 2, "the blocked step")
        late = [overdue()]
        await stage.step(Step(7, 2), headers=late)
        await stage.step(Step(7, 3, end=True), timeout_us=1000)
        past_s = time.time() + 0.05
        await until(lambda: time.time() > past_s, "the deadline")
        gate.touch()
        await stage.until_answered(stage.sent)
        check_steps(stage)


@pytest.mark.parametrize("states", [True, False], ids=["declared", "own"])
async def test_SQ09_P15_in_the_backlog_it_ends_the_whole_sequence(stage, tmp_path, states):
    """All of its requests, those without a timeout too; what has the slot goes on."""
    repository, gate = gated(tmp_path, states=states)
    async with stage.worker(repository) as running:
        await stage.step(Step(7, 1, start=True), Step(7, BLOCK))
        await until(lambda: len(running.executions) == 2, "the blocked step")
        expired = await stage.send_raw(
            [
                stage.record(Step(8, 1, start=True), 1),
                stage.record(Step(8, 2), 1, timeout_us=20_000),
                stage.record(Step(8, 3), 1),
            ]
        )
        overdue_ones = await stage.send_raw(
            [
                stage.record(Step(9, 1, start=True), 1, headers=[overdue()]),
                stage.record(Step(9, 2), 1),
            ]
        )
        await stage.until_answered([*expired, *overdue_ones])
        assert len(running.executions) == 2
        for key in expired:
            answer = stage.answer(key)
            assert (answer.status, answer.reason) == ("UNAVAILABLE", "timeout_expired")
            assert "timeout of the corresponding sequence has been expired" in answer.text
        assert [stage.answer(key).reason for key in overdue_ones] == ["deadline_passed"] * 2
        gate.touch()
        await stage.step(Step(7, 2, end=True))
        await stage.step(Step(8, 5, start=True, end=True), partition=1)
        (late,) = await stage.send_raw([stage.record(Step(9, 3), 1)])
        await stage.until_answered(stage.sent)
        check_steps(stage)
        assert stage.answer(late).reason == "sequence_expired"
        assert counts(running).expired == 2


# Slots that become free without a batch's end.


async def test_B88_a_slot_that_silence_frees_goes_to_who_waits_for_it(stage, tmp_path):
    """With no other traffic: the backlogged sequence of a model with memory of its own runs at once."""
    repository = write_sums(tmp_path, states=False, idle_s=0.2)
    async with stage.worker(repository, sequence_skew_s=0.0) as running:
        await stage.step(Step(7, 1, start=True), Step(8, 10, start=True), Step(8, 20))
        await stage.until_answered(stage.sent, 10.0)
        check_steps(stage)
        assert counts(running).expired >= 1


async def test_P7_a_slot_of_a_dropped_partition_goes_to_who_waits_for_it(stage, tmp_path):
    """One partition is taken over anew; another one's sequence waits for the slot, and nothing else happens."""
    repository = write_sums(tmp_path, states=False)
    async with stage.worker(repository) as running:
        await stage.step(Step(7, 1, start=True))
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        await stage.step(Step(8, 10, start=True), partition=1)
        await until(lambda: batcher(running).backlogged == 1, "the backlog")
        assignment = running.worker.models[MODEL].assignment
        (part,) = [part for tp, part in assignment.partitions.items() if tp.partition == 0]
        assignment.again(part)
        await stage.until_answered(stage.sent, 10.0)
        check_steps(stage)
