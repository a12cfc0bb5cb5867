"""Requests of which workers die, in storms on virtual time: each is found, and nobody else is blamed (DELIVERY P-14).

Workers die as by SIGKILL, whatever else they were at, and a supervisor starts others in their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import rule_kit
from deadly_kit import DeadlyFleet, DeadlyReading
from echo_storm import CONFIG, UNREADABLE, storm
from headrace.consumers.alone import Alone
from headrace.consumers.attempts import Mark
from headrace.consumers.claimed_requests import ClaimedRequests
from headrace.consumers.partition import Partition
from headrace.consumers.reading import Reading
from headrace.schemas.record import Record
from headrace.schemas.requests import Decoded
from headrace.streams.log import Mode
from sequence_storm import play as play_sequences
from sequence_traffic import Repositories
from simulated import SETTINGS, TRANSACTION_FAULTS, Fleet
from virtual_loop import run_virtual

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "25"))
CHUNK = 5
CHUNKS = max(1, SEEDS // CHUNK // 5)
MODES = pytest.mark.parametrize("mode", list(Mode))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the echo model."""
    root = tmp_path_factory.mktemp("repository")
    (root / "echo" / "1").mkdir(parents=True)
    (root / "echo" / "config.pbtxt").write_text(CONFIG)
    return root


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repositories]:
    """Sequence models."""
    found = Repositories(tmp_path_factory.mktemp("sequences"))
    yield found
    found.close()


def play(seed: int, repository: Path, *, mode: Mode, **how: object) -> DeadlyFleet:
    """Run one seed, with some deadly records; the seed stands in front of whatever went wrong."""
    more = {"faults": 0, "deadly": 0.03, "within_s": 1000.0, "mode": mode, "made": [], **how}
    made: list[Fleet] = more["made"]
    try:
        run_virtual(storm(seed, repository, **more))  # type: ignore[arg-type]  # keyword arguments of storm
    except BaseException as exc:
        exc.add_note(f"seed {seed}: replay with play({seed}, repository, mode={mode!r}, **{how})")
        raise
    (fleet,) = made
    assert isinstance(fleet, DeadlyFleet)
    return fleet


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_deadly_records_are_quarantined_and_no_other_is(
    chunk: int, mode: Mode, repository: Path
) -> None:
    """Each good record has its result, and each deadly one its error and its dead letter (`echo_storm.check`).

    Each has cost as many workers alone as it may, and few before that: those whose neighbours made progress meanwhile,
    and the two without any that brought it under suspicion.
    """
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        fleet = play(seed, repository, mode=mode)
        assert all(count >= SETTINGS.max_crashes for count in fleet.alone.values())
        assert fleet.deaths <= 4 * SETTINGS.max_crashes * len(fleet.alone), (seed, fleet.alone)


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_whatever_else_fails_meanwhile(chunk: int, mode: Mode, repository: Path) -> None:
    """Crashes for other reasons, zombies, rebalances, failing commits and transactions: nobody else is blamed."""
    faults_of = {"faults_of": TRANSACTION_FAULTS} if mode is Mode.EXACTLY_ONCE else {}
    for seed in range(10_000 + chunk * CHUNK, 10_000 + (chunk + 1) * CHUNK):
        play(seed, repository, mode=mode, faults=seed % 7, **faults_of)


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_records_that_cannot_be_read_are_quarantined_unread(
    chunk: int, mode: Mode, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that end their worker when they run. Other faults may count as one of a record's deaths."""
    for seed in range(20_000 + chunk * CHUNK, 20_000 + (chunk + 1) * CHUNK):
        with monkeypatch.context() as planted:
            reading = DeadlyReading(planted, UNREADABLE)
            faults = seed % 3
            how = {"deadly": 0.01, "unreadable": 0.03, "faults": faults}
            play(seed, repository, mode=mode, made=reading.fleets, **how)
            counts = reading.alone.values()
            assert faults or all(count >= SETTINGS.max_crashes for count in counts), seed


def play_claimed(seed: int, repository: Path, *, mode: Mode, **how: object) -> DeadlyReading:
    """Run one seed where the values of many records are in a store, also some that cannot be read."""
    with pytest.MonkeyPatch.context() as planted:
        reading = DeadlyReading(planted, UNREADABLE)
        more = {"deadly": 0.01, "unreadable": 0.04, "claimed": 0.5, "made": reading.fleets, **how}
        play(seed, repository, mode=mode, **more)
    return reading


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_nor_are_those_whose_values_are_in_a_store(
    chunk: int, mode: Mode, repository: Path
) -> None:
    """Whoever dies of one has fetched it: the next ones do so while it is announced, the last one does not at all."""
    for seed in range(30_000 + chunk * CHUNK, 30_000 + (chunk + 1) * CHUNK):
        faults = seed % 3
        reading = play_claimed(seed, repository, mode=mode, faults=faults)
        counts = reading.alone.values()
        assert faults or all(count >= SETTINGS.max_crashes for count in counts), seed


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_a_sequence_whose_step_is_deadly_is_lost_and_no_other(
    chunk: int, mode: Mode, repositories: Repositories
) -> None:
    """Its later steps hear `sequence_lost` until it STARTs anew; all others go on where they were."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        play_sequences(seed, repositories, mode=mode, deadly=0.05, flaky=False, faults=seed % 5)


@MODES
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_P14_workers_that_are_killed_every_second_blame_no_record(
    chunk: int, mode: Mode, repository: Path
) -> None:
    """Many kills, and no deadly record: everything is answered as ever. An execution takes 0.3 s at most here."""
    kills = {
        "faults": 12,
        "faults_of": ("crash", "crash", "crash", "leave", "rebalance"),
        "records": 300,
        "seconds": 12.0,
    }
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        fleet = play(seed, repository, mode=mode, deadly=0.0, **kills)
        assert fleet.deaths == 0


def test_P14_beside_others_a_suspect_is_blamed_for_what_they_do(repository: Path) -> None:
    """One suspect per process, and nothing beside it: without that, somebody else is quarantined."""

    def run(seed: int) -> object:
        return play(seed, repository, mode=Mode.AT_LEAST_ONCE, deadly=0.1)

    def at_once(alone: Alone) -> None:
        alone._opened.set()
        if alone._run is not None:
            alone._go()

    rule_kit.needed((Alone, "look"), at_once, run, "dead letters of others", seeds=40)


def test_P14_unannounced_a_deadly_record_is_run_for_ever(repository: Path) -> None:
    """Alone as it is: nobody knows of its earlier deaths."""

    def run(seed: int) -> object:
        return play(seed, repository, mode=Mode.AT_LEAST_ONCE, records=30)

    rule_kit.needed((Mark, "announce"), lambda *_: None, run, "unanswered", seeds=20)


def test_P14_a_value_that_is_fetched_behind_its_announcement_is_fetched_for_ever(
    repository: Path,
) -> None:
    """In its partition's line it would be read when nobody says so any more."""

    def run(seed: int) -> object:
        how = {"faults": 0, "records": 15, "within_s": 60.0}
        return play_claimed(seed, repository, mode=Mode.AT_LEAST_ONCE, deadly=0.0, **how)

    async def later(claimed: ClaimedRequests, part: Partition, decoded: Decoded) -> Decoded:
        del claimed, part
        return decoded

    rule_kit.needed((ClaimedRequests, "whole"), later, run, "unanswered", seeds=20)


def test_P14_values_that_are_read_beside_a_suspect_cost_it_its_life(repository: Path) -> None:
    """What was fetched elsewhere is read when no suspect is announced: else somebody else is quarantined."""

    def run(seed: int) -> object:
        how = {"faults": 0, "records": 50, "deadly": 0.0, "unreadable": 0.2, "claimed": 0.9}
        return play_claimed(seed, repository, mode=Mode.AT_LEAST_ONCE, **how)

    async def at_once(reading: Reading, part: Partition, records: Sequence[Record]) -> Decoded:
        return reading._decoder.decode(part.tp, part.epoch, records)

    rule_kit.needed((Reading, "read_again"), at_once, run, "dead letters of others", seeds=40)
