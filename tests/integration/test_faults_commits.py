"""Order and commits (FAULTS B13 to B22, B97, B99, B100, B103; DELIVERY P-1, P-5, P-7, P-8) on a whole worker.

Each scene runs on the real thing and, by the same code, on a log with a planted bug, where the check must raise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import pytest
from fault_kit import (
    OneMemoryLog,
    Running,
    Stage,
    both_modes,
    check_answers,
    check_committed,
    finished,
    until,
    write_model,
)
from fault_scenes import SLOW, check_end_in_the_middle, check_slow_head, slow_head
from headrace.consumers.execution import Execution
from headrace.consumers.ledger import decode_metadata, encode_metadata
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.committer import Committer
from headrace.streams.log import Position
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_group import MemoryGroup
from headrace.streams.memory_source import MemorySource
from planted_logs import BareLog, EagerLog, HighestLog, MutedLog, ReceiptLog

SHORT_S = 1.0
"""How long a scene with a planted bug waits for what never comes."""


# B13: a slow head is not skipped at a restart, and what was finished behind it does not run again.


@both_modes
async def test_B13_a_slow_head_is_answered_after_a_kill_and_nothing_else_runs_again(
    mode, tmp_path
):
    """The committed offset stays 0, with 1 to 4 in its metadata."""
    async with Stage(OneMemoryLog(MemoryLog()), "b13", mode=mode) as stage:
        check_slow_head(stage, await slow_head(stage, tmp_path))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (HighestLog, "committed beyond the unfinished 0"),
        (ReceiptLog, "committed beyond the unfinished 0"),
        (BareLog, "the commit says that set"),
    ],
)
async def test_B13_the_check_finds_planted_bugs(tmp_path, log, why):
    """Commits of the highest finished offset, at receipt, and without metadata."""
    async with Stage(OneMemoryLog(log()), "b13") as stage:
        seen = await slow_head(stage, tmp_path, SHORT_S)
        with pytest.raises(AssertionError, match=why):
            check_slow_head(stage, seen)


# B14: whatever the order of finishing, what is committed is below everything unfinished.

RECORDS = 1000


class HandPool:
    """Instances whose executions end when the test says so, on no thread."""

    def __init__(self, instances: Sequence[object], name: str) -> None:
        del name
        self._instance = instances[0]
        self.waiting: dict[int, tuple] = {}
        self._used: set[int] = set()

    def start(self, supervision: object = None) -> None:
        """Nothing to start."""
        del supervision

    @property
    def busy(self) -> int:
        """Number of executions at work."""
        return len(self.waiting)

    def next_staging(self) -> int | None:
        """Nothing ahead."""
        return None

    @property
    def free(self) -> list[int]:
        """There is always one."""
        return [number for number in range(10 * RECORDS) if number not in self._used]

    def healthy(self) -> bool:
        """Always."""
        return True

    def submit(self, number: int, work, done) -> None:
        """Keep it."""
        self._used.add(number)
        self.waiting[number] = (work, done)

    def finish(self, number: int) -> int:
        """Let one end; returns its offset."""
        work, done = self.waiting.pop(number)
        outcome = work(self._instance)
        done(number, outcome)
        assert isinstance(outcome, Execution)
        (entry,) = outcome.parts[0].batch.entries
        assert entry is not None
        return entry.record.offset

    async def close(self, timeout_s: float) -> bool:
        """Nothing to end."""
        del timeout_s
        return True


async def any_order(stage: Stage, folder: Path, seed: int) -> None:
    """Finish 800 of 1000 records in a random order and check each commit on the way."""
    rng = random.Random(seed)
    pools: list[HandPool] = []

    def pool(instances, name):
        pools.append(HandPool(instances, name))
        return pools[-1]

    async with stage.worker(write_model(folder / "models"), pool=pool) as running:
        await stage.send(range(RECORDS), partition=0)
        (hand,) = pools
        await until(lambda: len(hand.waiting) == RECORDS, "all executions")
        order = list(hand.waiting)
        rng.shuffle(order)
        unfinished = set(range(RECORDS))
        del order[RECORDS * 8 // 10 :]
        while order:
            for _ in range(min(len(order), rng.randrange(1, 40))):
                unfinished.discard(hand.finish(order.pop()))
            await until(lambda: running.in_flight() == len(unfinished), "the settle")
            check_below_unfinished((await stage.committed())[0], unfinished)
        await stage.until(lambda: len(stage.answers) == RECORDS - len(unfinished), "answers")
        await running.kill()


def check_below_unfinished(position: Position, unfinished: set[int]) -> None:
    """The committed offset is the lowest unfinished one, and no unfinished one counts as finished."""
    assert position.offset <= min(unfinished), f"{position} jumps the gap at {min(unfinished)}"
    assert not finished(position, RECORDS) & unfinished


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_B14_a_commit_never_jumps_a_gap_in_any_order_of_finishing(tmp_path, seed):
    """A fifth of 1000 records never ends; at each step the commit is at most the lowest of them."""
    async with Stage(OneMemoryLog(MemoryLog()), "b14") as stage:
        await any_order(stage, tmp_path, seed)


async def test_B14_the_check_finds_a_commit_that_jumps(tmp_path):
    """The planted bug commits behind the highest finished offset."""
    async with Stage(OneMemoryLog(HighestLog()), "b14") as stage:
        with pytest.raises(AssertionError, match="jumps the gap"):
            await any_order(stage, tmp_path, 1)


# B18: an exception is not an acknowledgement.


async def failing_record(stage: Stage, folder: Path) -> None:
    """Let the execution of offset 5 raise, among good ones in one batch, and wait until all is committed."""
    repository = write_model(folder / "models", batch=8, delay_us=2000, fail_if="INPUT0=5")
    async with stage.worker(repository):
        await stage.send(range(10), partition=0)
        await stage.until_committed(stage.is_all_committed)
        await stage.until_answered(stage.sent, SHORT_S, must=False)


def check_failing_record(stage: Stage) -> None:
    """Offset 5 has its error, the others their values."""
    check_answers(stage, stage.sent, once=True)
    for key in stage.sent:
        (answer,) = stage.answers[key]
        if key == (0, 5):
            assert (answer.status, answer.reason) == ("INTERNAL", "backend_failed")
        else:
            assert answer.values == (float(key[1]),)


@both_modes
async def test_B18_a_record_whose_execution_raises_is_answered(mode, tmp_path):
    """Its neighbours in the batch too."""
    async with Stage(OneMemoryLog(MemoryLog()), "b18", mode=mode) as stage:
        await failing_record(stage, tmp_path)
        check_failing_record(stage)


async def test_B18_the_check_finds_an_exception_that_counts_as_an_answer(tmp_path):
    """The planted bug finishes the offset and says nothing."""
    async with Stage(OneMemoryLog(MutedLog()), "b18") as stage:
        await failing_record(stage, tmp_path)
        with pytest.raises(AssertionError, match=r"request \(0, 5\) has no answer"):
            check_failing_record(stage)


# B19: no crash path commits.


async def end_in_the_middle(
    stage: Stage, folder: Path, *, how: str, patience_s: float = 60.0
) -> Mapping[int, Position]:
    """Answer 0 to 2, end while 3 executes and 4 waits; returns what is committed then."""
    gate = folder / "gate"
    repository = write_model(
        folder / "models", block_if=f"INPUT0={SLOW}", block_until_file=gate, block_limit_ms=20_000
    )
    async with stage.worker(repository, exit_timeout_s=0.1) as first:
        await stage.send([0, 1, 2], partition=0)
        await stage.until_committed(stage.is_all_committed)
        await stage.send([SLOW, 4], partition=0)
        await until(lambda: len(first.executions) == 4, "the execution of the slow one")
        await (first.kill() if how == "kill" else first.stop())
    committed = await stage.committed()
    gate.touch()
    async with stage.worker(repository):
        await stage.until_answered(stage.sent, patience_s, must=False)
    return committed


@both_modes
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_B19_neither_a_crash_nor_a_stop_commits_what_is_in_flight(mode, how, tmp_path):
    """The stop's budget is over before the execution is."""
    async with Stage(OneMemoryLog(MemoryLog()), "b19", mode=mode) as stage:
        check_end_in_the_middle(stage, await end_in_the_middle(stage, tmp_path, how=how))


async def test_B19_the_check_finds_a_commit_at_receipt(tmp_path):
    """The planted bug is Kafka's own default."""
    async with Stage(OneMemoryLog(ReceiptLog()), "b19") as stage:
        seen = await end_in_the_middle(stage, tmp_path, how="kill", patience_s=SHORT_S)
        with pytest.raises(AssertionError, match="committed with 3 in flight"):
            check_end_in_the_middle(stage, seen)


# B22: a stop in the middle of waiting records.


async def stop_midway(
    stage: Stage, folder: Path, patience_s: float = 60.0
) -> Mapping[int, Position]:
    """Stop with 20 records of 30 ms each half done and no time to finish them, then start again."""
    repository = write_model(folder / "models", execute_delay_ms=30)
    async with stage.worker(repository, exit_timeout_s=0.05) as first:
        await stage.send(range(20))
        await stage.until(lambda: len(stage.answers) >= 5, "five answers")
        await first.stop()
    committed = await stage.committed()
    await stage.read()
    check_committed(stage, committed)
    async with stage.worker(repository):
        await stage.until_answered(stage.sent, patience_s, must=False)
    return committed


@both_modes
async def test_B22_a_stop_in_the_middle_loses_nothing(mode, tmp_path):
    """What waited is not committed; twenty records have twenty answers after the next start."""
    async with Stage(OneMemoryLog(MemoryLog()), "b22", mode=mode) as stage:
        committed = await stop_midway(stage, tmp_path)
        assert not stage.is_all_committed(committed)
        check_answers(stage, stage.sent, once=True)


async def test_B22_the_check_finds_a_commit_at_receipt(tmp_path):
    """The planted bug commits what waits."""
    async with Stage(OneMemoryLog(ReceiptLog()), "b22") as stage:
        with pytest.raises(AssertionError, match="is committed and has no answer"):
            await stop_midway(stage, tmp_path, SHORT_S)


# R9: a stop commits only what the log has acknowledged.


async def stop_while_answers_travel(stage: Stage, folder: Path, log: MemoryLog) -> None:
    """Stop while the log keeps the answers' acknowledgement back, and look at the commits meanwhile."""
    async with stage.worker(write_model(folder / "models")) as running:
        log.hold_produce()
        await stage.send(range(4))
        await until(lambda: len(running.executions) == 4, "all executions")
        await until(running.worker.models["echo"].answering.idle, "their ends")
        running.ask_to_stop()
        await until(lambda: not running.worker.ready(), "the fall of readiness")
        check_committed(stage, await stage.committed())
        assert not running.task.done()
        log.free_produce()
        await until(running.task.done, "the end of the stop")
    await stage.read_all()
    assert stage.is_all_committed(await stage.committed())
    check_answers(stage, stage.sent, once=True)


async def test_R9_a_stop_flushes_its_answers_before_it_commits(tmp_path):
    """It is not ready at once, and waits for the acknowledgement; then it commits all and leaves."""
    log = MemoryLog()
    async with Stage(OneMemoryLog(log), "r9") as stage:
        await stop_while_answers_travel(stage, tmp_path, log)


async def test_R9_the_check_finds_a_commit_before_the_acknowledgement(tmp_path):
    """The planted bug commits first."""
    log = EagerLog()
    async with Stage(OneMemoryLog(log), "r9") as stage:
        with pytest.raises(AssertionError, match="is committed and has no answer"):
            await stop_while_answers_travel(stage, tmp_path, log)


# B97: a kill at every step of a record's journey.

STEPS = ("poll", "decode", "execute", "put", "acknowledged", "committed")


class TrapSource(MemorySource):
    """Springs the trap when it has handed out records."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[object]:
        """Hand out."""
        blocks = await super().poll(max_records, timeout_s)
        if blocks:
            await self._log.spring("poll")
        return blocks


class TrapLog(MemoryLog):
    """Kills its only member when a record's journey has come to a step; once."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step
        self.sprung = asyncio.Event()

    def _dies(self, step: str) -> bool:
        if step != self.step or self.sprung.is_set():
            return False
        for group in list(self._groups.values()):
            for member in list(group.members):
                self.crash(member)
        self.sprung.set()
        return True

    async def spring(self, step: str) -> None:
        """Die there, and never come back: the process is gone."""
        if self._dies(step):
            await asyncio.Event().wait()

    def source(self, group: str, topics: set[str], on) -> MemorySource:
        """Make one with the trap."""
        return TrapSource(self, self._group(group), topics, on)

    async def produce(self, outs: Sequence[Out]) -> None:
        """Die before the answers are written, or behind it."""
        answers = [out for out in outs if "source" in dict(out.headers)]
        if answers:
            await self.spring("put")
        await super().produce(outs)
        if answers:
            await self.spring("acknowledged")

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Die when the positions are stored."""
        super().commit(group, positions)
        if positions and self._dies("committed"):
            raise LogError("killed", retriable=False)


class TrapPool(HandPool):
    """Springs the trap when entries are queued, or when one executes."""

    log: TrapLog

    @property
    def free(self) -> list[int]:
        """Nobody is free while the trap is for what is queued."""
        if self.log.step == "decode" and not self.log.sprung.is_set():
            asyncio.get_running_loop().call_soon(self.log._dies, "decode")
            return []
        return super().free

    def submit(self, number: int, work, done) -> None:
        """Execute later in this loop, unless the process dies in it."""
        self._used.add(number)
        self.waiting[number] = (work, done)
        if not self.log._dies("execute"):
            asyncio.get_running_loop().call_soon(self.finish, number)


@pytest.mark.parametrize("step", STEPS)
async def test_B97_a_kill_at_any_step_loses_nothing(tmp_path, step):
    """Six records; the worker dies when the first of them are at the step, and another one takes over."""
    log = TrapLog(step)
    repository = write_model(tmp_path / "models", batch=2)

    def pool(instances, name):
        trapped = TrapPool(instances, name)
        trapped.log = log
        return trapped

    async with Stage(OneMemoryLog(log), "b97") as stage:
        async with stage.worker(repository, pool=pool) as first:
            await stage.send(range(6))
            await until(log.sprung.is_set, f"the step {step}")
            await first.kill()
        check_committed(stage, await _after_reading(stage))
        async with stage.worker(repository):
            await stage.until_committed(stage.is_all_committed)
            await stage.until_answered(stage.sent)
        check_answers(stage, stage.sent, once=step != "acknowledged")


async def _after_reading(stage: Stage) -> Mapping[int, Position]:
    committed = await stage.committed()
    await stage.read()
    return committed


# B99 and B100: a half-filled batch is state, at a rebalance and in a crash.

FOREVER_US = 600_000_000


async def revoked_half_batch(stage: Stage, folder: Path) -> list[Running]:
    """Let a second worker join while six records wait for a batch of 32; then stop both."""
    repository = write_model(folder / "models", batch=32, delay_us=FOREVER_US)
    is_planted = isinstance(stage.log, ReceiptLog)
    async with stage.worker(repository) as first:
        await stage.send(range(6))
        await until(lambda: first.in_flight() == 6, "the half-filled batch")
        async with stage.worker(repository) as second:
            await first.until_ready()
            await until(lambda: len(first.partitions()) == len(second.partitions()) == 1, "shares")
            if not is_planted:
                await until(lambda: first.in_flight() + second.in_flight() == 6, "reading again")
        if not is_planted:
            await until(lambda: first.in_flight() == 3, "reading its own again")
    await stage.until_answered(stage.sent, SHORT_S, must=not is_planted)
    return [first, second]


async def test_B99_a_revoked_half_filled_batch_is_answered_once_by_somebody(
    tmp_path, logs_in_modes, unique
):
    """What waited is dropped without a commit; its new owner reads it, and executes it when it is stopped."""
    logs, mode = logs_in_modes
    async with Stage(logs, unique("b99"), mode=mode) as stage:
        workers = await revoked_half_batch(stage, tmp_path)
        check_answers(stage, stage.sent, once=True)
        assert sum(sum(worker.executions) for worker in workers) == 6


async def test_B99_the_check_finds_a_commit_at_receipt(tmp_path):
    """The planted bug loses one batch window for each revoked partition."""
    async with Stage(OneMemoryLog(ReceiptLog()), "b99") as stage:
        await revoked_half_batch(stage, tmp_path)
        with pytest.raises(AssertionError, match="has no answer"):
            check_answers(stage, stage.sent, once=True)


@both_modes
async def test_B100_a_crash_with_a_partial_batch_loses_nothing(mode, tmp_path):
    """Three wait when the worker dies; five more fill the batch of the next one."""
    repository = write_model(tmp_path / "models", batch=8, delay_us=FOREVER_US)
    async with Stage(OneMemoryLog(MemoryLog()), "b100", mode=mode) as stage:
        async with stage.worker(repository) as first:
            await stage.send(range(3), partition=0)
            await until(lambda: first.in_flight() == 3, "the partial batch")
            await first.kill()
        for at in (await stage.committed()).values():
            assert at.offset == 0
            assert decode_metadata(at.metadata) == [], "nothing above it either"
        async with stage.worker(repository) as second:
            await stage.send(range(3, 8), partition=0)
            await stage.until_answered(stage.sent)
            assert second.executions == [8]
        check_answers(stage, stage.sent, once=True)


@both_modes
async def test_B103_equal_payloads_without_an_id_have_an_answer_each(mode, tmp_path):
    """Nothing is keyed on content."""
    async with Stage(OneMemoryLog(MemoryLog()), "b103", mode=mode) as stage:
        async with stage.worker(write_model(tmp_path / "models")) as running:
            (first,) = await stage.send([7], partition=0)
            (record,) = stage.log.records(stage.requests, 0)
            headers = [(name, value) for name, value in record.headers if name != "id"]
            twice = [Out(stage.requests, 0, None, record.value, headers)] * 2
            keys = await stage.send_raw(twice)
            await stage.until_answered([first, *keys])
            assert len(running.executions) == 3
        check_answers(stage, stage.sent, once=True)


# Takeover and loss.


class NotingSource(MemorySource):
    """Writes down what is asked of it, and when it tells that partitions are assigned."""

    def take_over(self, tps, epoch) -> None:
        """Tell."""
        self._log.notes.append("assigned: begin")
        super().take_over(tps, epoch)
        self._log.notes.append("assigned: end")

    async def committed(self, tps):
        """Look up."""
        self._log.notes.append("committed: asked")
        found = await super().committed(tps)
        self._log.notes.append("committed: told")
        return found

    def seek(self, tp, offset) -> None:
        """Seek."""
        self._log.notes.append(f"seek {offset}")
        super().seek(tp, offset)

    def resume(self, tps) -> None:
        """Resume."""
        self._log.notes.append("resume")
        super().resume(tps)


class NotingLog(MemoryLog):
    """A log of such sources."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def source(self, group, topics, on) -> MemorySource:
        """Make one."""
        return NotingSource(self, self._group(group), topics, on)


async def test_P5_an_assignment_is_only_noted_and_the_position_is_read_before_the_seek(tmp_path):
    """The callback of the group waits for nothing; then committed offset and F, seek, resume, in this order."""
    log = NotingLog()
    async with Stage(OneMemoryLog(log), "p5", partitions=1) as stage:
        group = log._group(stage.group)
        earlier = Position(2, encode_metadata([1, 1], max_bits=64))
        assert finished(earlier, 5) == {0, 1, 3}
        group.committed[TP(stage.requests, 0)] = earlier
        await stage.send(range(5), partition=0)
        async with stage.worker(write_model(tmp_path / "models")) as running:
            await stage.until_answered([(0, 2), (0, 4)])
            await until(lambda: running.in_flight() == 0, "the settle")
            assert log.notes == [
                "assigned: begin",
                "assigned: end",
                "committed: asked",
                "committed: told",
                "seek 2",
                "resume",
            ]
            assert len(running.executions) == 2
        assert sorted(stage.answers) == [(0, 2), (0, 4)]


async def test_P7_nothing_is_published_for_lost_partitions(tmp_path):
    """An evicted member drops what it executes: each record has the one answer of the new epoch."""
    log, gate = MemoryLog(), tmp_path / "gate"
    repository = write_model(tmp_path / "models", instances=8, block_until_file=gate)
    async with Stage(OneMemoryLog(log), "p7") as stage, stage.worker(repository) as running:
        await stage.send(range(4))
        await until(lambda: len(running.executions) == 4, "the first executions")
        log.evict(running.worker.models["echo"].source)
        await until(lambda: len(running.executions) == 8, "the executions after the loss")
        gate.touch()
        await stage.until_committed(stage.is_all_committed)
        await until(running.worker.models["echo"].answering.idle, "all executions' ends")
        await stage.until_answered(stage.sent)
        check_answers(stage, stage.sent, once=True)


class EpochLog(MemoryLog):
    """Notes commits under an epoch that is not the owner's."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: list[Position] = []

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Note, then store."""
        owners = {tp: epoch for tp, (_, epoch) in group._owners.items()}
        self.stale += [at for tp, at in positions.items() if owners.get(tp) != at.epoch]
        super().commit(group, positions)


class UnfencedSource(MemorySource):
    """Commits for partitions that it does not own."""

    def owns(self, tp: TP, epoch: int) -> bool:
        """Believe anything."""
        return True

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Ask nobody, as a commit without generation does."""
        self._log.commit(self.group, positions)
        return frozenset()


class UnfencedLog(EpochLog):
    """Planted bug of P-8: a member that does not ask who owns the partition."""

    def source(self, group, topics, on) -> MemorySource:
        """Make the planted one."""
        return UnfencedSource(self, self._group(group), topics, on)


async def late_settle(stage: Stage, folder: Path, log: EpochLog) -> None:
    """Let a member be evicted while its answers are on their way, and come back under a new epoch."""
    async with stage.worker(write_model(folder / "models")) as running:
        model = running.worker.models["echo"]
        log.hold_produce()
        await stage.send(range(4))
        await until(lambda: len(running.executions) == 4 and model.answering.idle(), "all runs")
        before = {tp: part.epoch for tp, part in model.partitions.items()}
        log.evict(model.source)
        await until(
            lambda: (
                {tp: p.epoch for tp, p in model.partitions.items() if p.active}.keys()
                == before.keys()
                and all(model.partitions[tp].epoch > epoch for tp, epoch in before.items())
            ),
            "the new epoch",
        )
        log.free_produce()
        await stage.until_committed(stage.is_all_committed)
        await stage.until_answered(stage.sent)


async def test_P8_a_settle_of_an_old_epoch_commits_nothing(tmp_path):
    """Its answers may be there twice, its positions are not."""
    log = EpochLog()
    async with Stage(OneMemoryLog(log), "p8") as stage:
        await late_settle(stage, tmp_path, log)
        assert not log.stale
        check_answers(stage, stage.sent, once=False)


async def test_P8_the_check_finds_a_commit_under_an_old_epoch(tmp_path, monkeypatch):
    """The planted delivery commits whatever it has, and whatever was released since it was settled."""
    monkeypatch.setattr(Committer, "times_released", lambda *_: 0)
    log = UnfencedLog()
    async with Stage(OneMemoryLog(log), "p8") as stage:
        await late_settle(stage, tmp_path, log)
        assert log.stale
