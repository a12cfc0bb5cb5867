"""Each rule of exactly_once is needed: without it a storm breaks what the rule promises.

The names are those of the counterexamples of DELIVERY. Every test takes one rule of the real code away, plays storms of
the weather in which it matters until one fails in the expected way, and plays the same seeds with the rule in force.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import rule_kit
from echo_storm import CONFIG, LaggingLog, storm
from headrace.consumers import assignment
from headrace.consumers.assignment import Assignment
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.model_sequences import ModelSequences
from headrace.consumers.partition import Partition
from headrace.consumers.state_store import StateStore
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag
from headrace.schemas.snapshot import read_head
from headrace.streams.log import Mode, Outcome, Position
from headrace.streams.memory_source import MemorySource
from headrace.streams.memory_transactions import MemoryTransactionalProducer
from headrace.streams.transaction import Cut
from headrace.streams.transaction_delivery import TransactionalDelivery
from rule_kit import first_broken
from sequence_log import SequenceLog
from sequence_storm import play
from sequence_traffic import Repositories
from simulated import SETTINGS, CheckedLog
from virtual_loop import run_virtual

Play = Callable[..., Callable[[int], object]]


def hold(play_one: Callable[[int], object], seed: int) -> None:
    """Play the seed, and a few before it, with every rule in force."""
    rule_kit.hold(play_one, seed, most=5)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repositories]:
    """Models of every configuration that a scenario asks for."""
    made = Repositories(tmp_path_factory.mktemp("repositories"))
    yield made
    made.close()


@pytest.fixture
def steps(repositories: Repositories) -> Play:
    """Plays storms of sequences in exactly_once."""

    def of(log: type[SequenceLog] = SequenceLog, **weather: object) -> Callable[[int], object]:
        return lambda seed: play(seed, repositories, log=log, mode=Mode.EXACTLY_ONCE, **weather)

    return of


@pytest.fixture
def requests(tmp_path: Path) -> Play:
    """Plays storms of stateless requests in exactly_once."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(CONFIG)

    def of(log: type[LaggingLog] = LaggingLog, **weather: object) -> Callable[[int], object]:
        async def run(seed: int) -> CheckedLog:
            made = log(random.Random(seed))
            return await storm(seed, tmp_path, log=made, mode=Mode.EXACTLY_ONCE, **weather)  # type: ignore[arg-type]  # its keywords

        return lambda seed: run_virtual(run(seed))

    return of


TWICE = "has 2 answers"
KILLS = {"faults": 12, "faults_of": ("crash", "rebalance"), "records": 60}


def test_D1_M6_without_the_finished_set_a_record_is_answered_twice(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-1: record 1 is committed before 0, the worker dies, and 1 runs again."""
    monkeypatch.setattr(OffsetLedger, "_metadata", lambda _: "")
    seed = first_broken(requests(**KILLS), TWICE)
    monkeypatch.undo()
    hold(requests(**KILLS), seed)


class SlowSource(MemorySource):
    """A member whose fetches take their time: positions are committed before all above them is read again."""

    async def poll(self, max_records: int, timeout_s: float):
        """Fetch late."""
        await self._log.fetch()
        return await super().poll(max_records, timeout_s)


class SlowLog(LaggingLog):
    """A log of such members."""

    async def fetch(self) -> None:
        """Wait as long as a fetch takes."""
        await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.03)))

    def source(self, group, topics, on):
        """Make one."""
        return SlowSource(self, self._group(group), topics, on)


def test_M6_a_finished_set_of_what_was_read_since_the_seek_back_is_not_enough(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-1: what a takeover has restored is committed on, whether it was read again or not."""
    weather = {**KILLS, "settings": replace(SETTINGS, max_poll_records=1)}

    def metadata(self: OffsetLedger) -> str:
        read = sum(start < self._next for start in self._starts)
        starts, ends = self._starts, self._ends
        self._starts, self._ends = starts[:read], ends[:read]
        try:
            return whole(self)
        finally:
            self._starts, self._ends = starts, ends

    whole = OffsetLedger._metadata
    monkeypatch.setattr(OffsetLedger, "_metadata", metadata)
    seed = first_broken(requests(SlowLog, **weather), TWICE)
    monkeypatch.undo()
    hold(requests(SlowLog, **weather), seed)


ZOMBIES = {"faults": 12, "faults_of": ("zombie", "rebalance"), "records": 80}


def test_D5b_a_position_that_is_read_before_the_takeover_is_answered_twice(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-5: the old owner's transaction commits in between."""
    fence, read = Assignment._fence, assignment.read_positions
    found: dict[TP, Position] = {}

    async def fence_late(self: Assignment, parts: Sequence[Partition]) -> list[Partition]:
        assert self._source is not None
        found.update(await read(self._source, parts, self._marks, from_end=False))
        return await fence(self, parts)

    async def early(source: object, parts: Sequence[Partition], marks: object, *, from_end: bool):
        del source, marks, from_end
        return {part: found[part] for part in [part.tp for part in parts]}

    monkeypatch.setattr(Assignment, "_fence", fence_late)
    monkeypatch.setattr(assignment, "read_positions", early)
    seed = first_broken(requests(**ZOMBIES), TWICE, "backwards")
    monkeypatch.undo()
    hold(requests(**ZOMBIES), seed)


def test_D6_a_fenced_owner_that_drops_its_partition_is_stuck(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-6: a zombie's late start fences the owner, and learns that it has lost: nobody answers."""
    again = Assignment.again

    def drop(self: Assignment, part: Partition, outcome: Outcome = Outcome.ABORTED) -> None:
        if outcome is Outcome.PRODUCER_FENCED and self.partitions.get(part.tp) is part:
            part.active = False
            self._drop(part.tp)
            self._remove(part)
            self._start(self._forget(part))
        else:
            again(self, part, outcome)

    monkeypatch.setattr(Assignment, "again", drop)
    seed = first_broken(requests(**ZOMBIES), "unanswered", seeds=20)
    monkeypatch.undo()
    hold(requests(**ZOMBIES), seed)


class LateLog(LaggingLog):
    """A broker before 4.0: a transaction's position becomes visible a while after its marker, and nobody waits."""

    def complete(self, transaction, *, committed):
        """Let the position come late."""
        positions = dict(transaction.positions)
        group = self._group(transaction.group)
        before = {tp: group.committed.get(tp) for tp in positions}
        super().complete(transaction, committed=committed)
        if not committed:
            return
        for tp, at in positions.items():
            if before[tp] is None:
                del group.committed[tp]
            else:
                group.committed[tp] = before[tp]
            asyncio.get_running_loop().call_later(0.05, self._show, group, tp, at)

    def _show(self, group, tp, at):
        known = group.committed.get(tp)
        if known is None or known.offset <= at.offset:
            group.committed[tp] = at

    def _is_committed(self, source):
        return True  # of a reply nothing is known here


def test_D9_a_position_that_is_shown_late_is_answered_twice(requests: Play) -> None:
    """P-9: as brokers before 4.0 did."""
    seed = first_broken(requests(LateLog, **KILLS), TWICE, "backwards")
    hold(requests(**KILLS), seed)


def test_P13_a_reply_that_is_sent_before_the_commit_answers_what_is_not(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aborted answer would have reached its caller, and another one follows."""
    transact = TransactionalDelivery._transact

    async def reply_first(self, cut):
        await self._reply(cut)
        cut.replies = []
        return await transact(self, cut)

    monkeypatch.setattr(TransactionalDelivery, "_transact", reply_first)
    seed = first_broken(requests(faults=0), "replied:", seeds=3)
    monkeypatch.undo()
    hold(requests(faults=0), seed)


ABORTS = {
    "faults_of": ("transact", "expire", "position"),
    "faults": 6,
    "partitions": 1,
    "idle_ms": 10_000,
    "commit_interval_ms": 20,
    "records": 60,
    "ends": 0.0,
    "lags_s": (0.0, 0.01, 0.1),
}


def test_M2_an_abort_that_keeps_the_state_applies_steps_twice(
    steps: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-10: state returns to the last committed cut."""
    again = Assignment.again

    def keep(self: Assignment, part: Partition, outcome: Outcome = Outcome.ABORTED) -> None:
        remove = self._remove
        self._remove = lambda part, **_: remove(part, keep=True)  # type: ignore[method-assign]  # the planted bug
        try:
            again(self, part, outcome)
        finally:
            del self._remove

    monkeypatch.setattr(Assignment, "again", keep)
    monkeypatch.setattr(StateStore, "aborted", lambda *_: None)
    seed = first_broken(steps(**ABORTS), "answered:", "no answer")
    monkeypatch.undo()
    hold(steps(**ABORTS), seed)


def test_M3_an_abort_that_keeps_what_executes_answers_twice(
    steps: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-10: the epoch advances, and what returns of the old one is dropped."""
    monkeypatch.setattr(Assignment, "_begin", same_epoch(Assignment._begin))
    seed = first_broken(steps(**ABORTS), "answered:", "saved:", "was never admitted", "at rest:")
    monkeypatch.undo()
    hold(steps(**ABORTS), seed)


def same_epoch(begin):
    """Let a partition's later takeovers have the epoch of its first one."""

    def begin_anew(self: Assignment, tps: Set[TP], source_epoch: int, **more: object) -> None:
        begin(self, tps, source_epoch, **more)
        for tp in tps:
            self.partitions[tp].epoch = 1

    return begin_anew


def test_M4_a_snapshot_as_of_the_end_covers_what_is_not_answered(
    steps: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-10: what is saved is as of the last record of the cut."""
    weather = {**ABORTS, "faults_of": ("crash", "transact")}
    snapshots = StateStore.snapshots

    def late(self, owner, position):
        def chunks():
            part = self._parts.get(owner)
            if part is not None:
                part.dirty.update(part.settling)
                part.dirty.update(part.staged)
                yield from snapshots(self, owner, position)

        return chunks() if owner in self._parts else None

    def rounds(self):
        if self.outs:
            yield self.outs
        for chunk in self.snapshots:
            self.chunks.append(chunk)
            yield chunk

    monkeypatch.setattr(StateStore, "snapshots", late)
    monkeypatch.setattr(Cut, "rounds", rounds)
    seed = first_broken(steps(**weather), "no answer", "unanswered", "answered:", "saved:")
    monkeypatch.undo()
    hold(steps(**weather), seed)


def test_D5_a_state_that_is_read_before_the_takeover_lacks_a_step(
    steps: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-5: the old owner's transaction commits in between, and its position is read behind it."""
    weather = {
        **ABORTS,
        "faults_of": ("freeze",),
        "faults": 3,
        "seconds": 2.0,
        "workers": 2,
    }
    fence, restore = Assignment._fence, ModelSequences.restore

    async def state_first(self: Assignment, parts: Sequence[Partition]) -> list[Partition]:
        await restore(self._stateful, parts)
        await asyncio.sleep(0.7)  # its end has to come within the new owner's two steps
        return await fence(self, parts)

    async def nothing(self, parts):
        pass

    monkeypatch.setattr(Assignment, "_fence", state_first)
    monkeypatch.setattr(ModelSequences, "restore", nothing)
    broken = ("answered:", "no answer", "at rest:", "saved:", "not covered:")
    seed = first_broken(steps(**weather), *broken)
    monkeypatch.undo()
    hold(steps(**weather), seed)


class TombstoneLog(SequenceLog):
    """END leaves a tombstone at once, no marker."""

    sees_commits = False

    def write(self, outs: Sequence[Out], transaction: object = None) -> None:
        """Empty what says that a sequence has ended."""
        for out in outs:
            is_snapshot = out.topic == self._states and out.value is not None
            if is_snapshot and read_head(out.value).flag == Flag.ENDED:
                out.value = None
        super().write(outs, transaction)  # type: ignore[arg-type]  # as the log's


def test_D2e_without_markers_and_finished_set_a_step_is_unknown(
    steps: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-1 and P-2: either is enough for this one."""
    weather = {
        "faults_of": ("crash",),
        "faults": 6,
        "ids": 3,
        "ends": 0.25,
        "records": 60,
        "seconds": 2.0,
        "idle_ms": 10_000,
        "commit_interval_ms": 20,
    }
    monkeypatch.setattr(OffsetLedger, "_metadata", lambda _: "")
    seed = first_broken(steps(TombstoneLog, **weather), "sequence_unknown, expected", "answered:")
    monkeypatch.undo()
    hold(steps(**weather), seed)


def test_P11_a_commit_that_does_not_wait_for_its_records_loses_them(
    requests: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client that commits after a batch was refused: the position is there, the answers are not."""
    weather = {"faults": 4, "faults_of": ("produce",), "records": 60}
    send = MemoryTransactionalProducer.send

    async def careless(self, outs):
        with suppress(Exception):  # the planted bug
            await send(self, outs)

    monkeypatch.setattr(MemoryTransactionalProducer, "send", careless)
    seed = first_broken(requests(**weather), "no answer", "unanswered")
    monkeypatch.undo()
    hold(requests(**weather), seed)
