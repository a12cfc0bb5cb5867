"""Each rule of the delivery protocol for sequences is needed: without it a storm breaks what the rule promises.

The names are those of the counterexamples of DELIVERY. Every test takes one rule of the real code away, plays storms of
the weather in which it matters until one fails in the expected way, and plays the same seeds with the rule in force.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence, Set

import pytest
import rule_kit
from headrace.consumers.assignment import Assignment
from headrace.consumers.model_sequences import ModelSequences
from headrace.consumers.partition import Partition
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import read_head
from headrace.streams.cover import Cover
from headrace.streams.log import Position, Reader, Span
from headrace.streams.memory import MemoryRecord
from headrace.streams.memory_source import MemorySource
from sequence_log import LaggingSource, SequenceLog
from sequence_storm import play
from sequence_traffic import Repositories


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repositories]:
    """Models of every configuration that a scenario asks for."""
    made = Repositories(tmp_path_factory.mktemp("repositories"))
    yield made
    made.close()


def first_broken(
    repositories: Repositories,
    *how: str,
    log: type[SequenceLog] = SequenceLog,
    **weather: object,
) -> int:
    """Return the first seed that fails in one of these ways."""
    return rule_kit.first_broken(lambda seed: play(seed, repositories, log=log, **weather), *how)


def hold(repositories: Repositories, seed: int, **weather: object) -> None:
    """Play the seeds up to this one with every rule in force."""
    rule_kit.hold(lambda seed: play(seed, repositories, **weather), seed)


class BlindLog(SequenceLog):
    """Lets bad commits pass, so that a storm must find what follows from them."""

    sees_commits = False


class TombstoneLog(BlindLog):
    """END leaves a tombstone at once, no marker."""

    def append(self, outs: Sequence[Out]) -> None:
        """Empty what says that a sequence has ended."""
        for out in outs:
            is_snapshot = out.topic == self._states and out.value is not None
            if is_snapshot and read_head(out.value).flag == Flag.ENDED:
                out.value = None
        super().append(outs)


def test_D2_an_END_without_marker_makes_a_step_unknown(repositories: Repositories) -> None:
    """P-2: a crash behind a commit that a slow sequence held back, and the step before END is read again."""
    weather = {
        "faults_of": ("crash",),
        "faults": 6,
        "ids": 3,
        "ends": 0.25,
        "records": 60,
        "seconds": 2.0,
        "idle_ms": 10_000,
        "snapshot_every": 1,
        "commit_interval_ms": 200,
    }
    seed = first_broken(repositories, "sequence_unknown, expected", log=TombstoneLog, **weather)
    hold(repositories, seed, **weather)


class Bare:
    """A cover that holds no commit back."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        self.settled, self.saved, self.committed = cover.settled, cover.saved, cover.committed

    def snapshots(self, owner: TP, position: Position) -> Iterator[Sequence[Out]]:
        """Nothing."""
        return iter(())


class UncoveredLog(BlindLog):
    """Commits what is answered, whatever is snapshotted."""

    def delivery(self, source, mode, cover=None):
        """Let snapshots come when they come."""
        return super().delivery(source, mode, Bare(cover))


class SeenLog(UncoveredLog):
    """The same, seen at the commit itself."""

    sees_commits = True


def test_D3_a_commit_without_its_snapshots_makes_a_step_unknown(
    repositories: Repositories,
) -> None:
    """P-3: snapshots every so many steps are none of the commit's."""
    weather = {
        "faults_of": ("crash",),
        "faults": 2,
        "snapshot_every": 3,
        "idle_ms": 10_000,
        "records": 40,
    }
    seed = first_broken(repositories, "answered:", log=UncoveredLog, **weather)
    hold(repositories, seed, **weather)
    first_broken(repositories, "not covered:", log=SeenLog, **weather)


class LastReader:
    """Of each sequence, only what was written last."""

    def __init__(self, log: SequenceLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader
        self.positions, self.done = reader.positions, reader.done

    async def __aenter__(self):
        """Open."""
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *exc):
        """Close."""
        await self._reader.__aexit__(*exc)

    async def poll(self, max_records, timeout_s):
        """Leave out the others."""
        blocks = await self._reader.poll(max_records, timeout_s)
        for block in blocks:
            last = {record.offset for record in self._log.last(block.tp.partition)}
            block.records = [record for record in block.records if record.offset in last]
        return [block for block in blocks if block.records]


class LastLog(BlindLog):
    """Of several owners' snapshots the last one in the log wins, as in any other compacted topic."""

    def last(self, partition: int) -> list[MemoryRecord]:
        """Return the records that count then."""
        by_owner = {record.key: record for record in self.records(self._states, partition)}
        written = sorted(by_owner.values(), key=lambda record: record.offset)
        snapshots = [(self._snapshot(record), record) for record in written]
        return list({s.key: record for s, record in snapshots if s.state is not None}.values())

    def reader(self, spans: Mapping[TP, Span], *, committed: bool = False):
        """Make a reader of the state topic that sees nothing else."""
        reader = super().reader(spans, committed=committed)
        return LastReader(self, reader) if self._states in {tp.topic for tp in spans} else reader

    def states(self, partition: int) -> dict[bytes, SequenceState]:
        """Say what the next owner would go on with then."""
        found = [self._snapshot(record) for record in self.last(partition)]
        return {snap.key: snap.state for snap in found if snap.state is not None}


ZOMBIES = {
    "faults_of": ("freeze", "freeze", "compact"),
    "faults": 5,
    "workers": 2,
    "partitions": 1,
    "ids": 8,
    "records": 60,
    "seconds": 1.0,
    "idle_ms": 10_000,
    "commit_interval_ms": 20,
    "flaky": False,
    "lags_s": (0.0,),
}


def test_D4b_a_zombies_late_snapshot_wins_where_the_last_one_counts(
    repositories: Repositories,
) -> None:
    """P-4: the greatest input offset counts, whoever wrote it when."""
    seed = first_broken(repositories, "at rest:", "answered:", log=LastLog, **ZOMBIES)
    hold(repositories, seed, **ZOMBIES)


def test_M5_a_zombies_late_snapshot_replaces_the_owners_under_one_key(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-4: the nonce of the takeover in the key; else compaction keeps the zombie's record and drops the owner's."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "00000000")
    seed = first_broken(repositories, "at rest:", "answered:", log=BlindLog, **ZOMBIES)
    monkeypatch.undo()
    hold(repositories, seed, **ZOMBIES)


def test_D5_a_state_that_is_read_before_the_position_lacks_a_step(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-5: first the position, then the state, then the membership; else a takeover mixes two owners' times."""
    weather = {**ZOMBIES, "faults_of": ("trap",), "faults": 1}
    restore, fence = ModelSequences.restore, Assignment._fence

    async def state_first(self, parts):
        await restore(self._stateful, parts)
        return await fence(self, parts)

    async def nothing(self, parts):
        pass

    async def unchecked(self, positions):
        return positions.keys()

    monkeypatch.setattr(Assignment, "_fence", state_first)
    monkeypatch.setattr(ModelSequences, "restore", nothing)
    monkeypatch.setattr(LaggingSource, "confirm", unchecked)
    seed = first_broken(repositories, "answered:", log=BlindLog, **weather)
    monkeypatch.undo()
    hold(repositories, seed, **weather)


def test_D7_a_reaper_by_the_wall_clock_expires_what_was_in_time(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-15: while the partition lags, silence says nothing; between record timestamps it does."""
    weather = {"faults_of": ("crash", "hold"), "faults": 4, "idle_ms": 150, "seconds": 1.0}

    async def look(self):
        for part in self._partitions.values():
            if part.active:
                self._stage(part, self.sequences.reap(part.tp, self._clock.wall_ms()))

    monkeypatch.setattr(ModelSequences, "_look", look)
    seed = first_broken(repositories, "sequence_expired, expected", **weather)
    monkeypatch.undo()
    hold(repositories, seed, **weather)


def test_D7_a_reaper_that_does_not_see_what_is_decoded_expires_what_was_in_time(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-15: a partition that is admitted to its end is not read to its end."""
    weather = {
        "faults_of": ("crash", "rebalance"),
        "faults": 6,
        "ids": 3,
        "partitions": 1,
        "records": 60,
        "seconds": 1.0,
        "idle_ms": 150,
        "commit_interval_ms": 20,
        "lags_s": (0.0, 0.0, 0.3),
    }
    monkeypatch.setattr(Partition, "decoding", property(lambda _: 0, lambda *_: None))
    seed = first_broken(repositories, "sequence_expired, expected", **weather)
    monkeypatch.undo()
    hold(repositories, seed, **weather)


def test_D8_an_outcome_of_luck_differs_where_it_is_not_recorded_first(
    repositories: Repositories,
) -> None:
    """P-16: with `record_answers`, what was answered is in the snapshot and is answered again."""
    weather = {
        "faults_of": ("crash", "rebalance"),
        "faults": 4,
        "flaky": True,
        "lags_s": (0.0, 0.01, 0.1),
    }
    seed = first_broken(repositories, "answered:", record_answers=False, **weather)
    hold(repositories, seed, record_answers=True, **weather)


class CarelessSource(LaggingSource):
    """An empty group takes whatever is committed, with generation -1."""

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit unasked if there is nobody."""
        await self._log.lag(self)
        if self.group.members:
            return await MemorySource.commit(self, positions)
        self._log.commit(self.group, positions)
        return frozenset()


class CarelessLog(SequenceLog):
    """A coordinator that is not asked who commits."""

    def source(self, group, topics, on):
        """Make a member that does not ask."""
        return CarelessSource(self, self._group(group), topics, on)


def test_D10_a_commit_that_names_no_generation_goes_backwards(repositories: Repositories) -> None:
    """P-8: a lost owner's commit into an empty group."""
    weather = {
        "faults_of": ("orphan",),
        "faults": 3,
        "workers": 2,
        "records": 60,
        "flaky": False,
        "lags_s": (0.0, 0.0, 0.0, 0.3),
    }
    seed = first_broken(repositories, "backwards", log=CarelessLog, **weather)
    hold(repositories, seed, **weather)


class Hasty(Bare):
    """A cover that takes every answer for acknowledged."""

    def snapshots(self, owner: TP, position: Position) -> Iterator[Sequence[Out]]:
        """Save what is still on its way too."""
        self.settled(owner, position)
        return self._cover.snapshots(owner, position)


class HastyLog(SequenceLog):
    """Snapshots do not wait for the answers that they cover."""

    def delivery(self, source, mode, cover=None):
        """Let them overtake."""
        return super().delivery(source, mode, Hasty(cover))


def test_M1_a_snapshot_before_its_answer_loses_the_answer(repositories: Repositories) -> None:
    """P-3: who finds the snapshot closes the record, and nobody answers it."""
    weather = {
        "faults_of": ("crash",),
        "faults": 4,
        "commit_interval_ms": 20,
        "lags_s": (0.0, 0.01, 0.1),
        "record_answers": False,
        "flaky": False,
    }
    seed = first_broken(repositories, "no answer", "unanswered", log=HastyLog, **weather)
    hold(repositories, seed, **weather)
