"""The whole worker on the memory log, on virtual time, in storms of traffic and faults; seeds are replayable.

`HEADRACE_SEEDS=100000` runs as many; a failing seed is in the test's id and message, and
`storm(SEED, …)` replays it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from echo_storm import CONFIG, storm
from headrace.schemas.record import TP, Out
from headrace.streams.log import Mode, Outcome, Position
from headrace.streams.memory_delivery import MemoryDelivery
from simulated import TRANSACTION_FAULTS, CheckedLog
from virtual_loop import run_virtual

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "60"))
CHUNK = 20


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the echo model."""
    root = tmp_path_factory.mktemp("repository")
    (root / "echo" / "1").mkdir(parents=True)
    (root / "echo" / "config.pbtxt").write_text(CONFIG)
    return root


def play(seed: int, repository: Path, **how: object) -> CheckedLog:
    """Run one seed; the seed stands in front of whatever went wrong."""
    try:
        return run_virtual(storm(seed, repository, **how))  # type: ignore[arg-type]  # keyword arguments of storm
    except BaseException as exc:
        exc.add_note(f"seed {seed}: replay with storm({seed}, repository, **{how})")
        raise


@pytest.mark.parametrize("chunk", range(max(1, SEEDS // CHUNK // 4)))
def test_without_faults_each_record_has_exactly_one_answer(chunk: int, repository: Path) -> None:
    """Every kind of record, good or bad, in any interleaving; everything is committed at the end."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        play(seed, repository, faults=0)


@pytest.mark.parametrize("chunk", range(max(1, SEEDS // CHUNK)))
def test_B97_with_faults_nothing_is_lost(chunk: int, repository: Path) -> None:
    """Crashes, evictions, rebalances and failing produces and commits: at least one answer each, all equal.

    Covers B4, B19, B22, B97, B99 and B100 on the memory log: `CheckedLog` checks every commit.
    """
    for seed in range(10_000 + chunk * CHUNK, 10_000 + (chunk + 1) * CHUNK):
        play(seed, repository, faults=6)


EXACTLY_ONCE = {"mode": Mode.EXACTLY_ONCE, "faults_of": TRANSACTION_FAULTS}


@pytest.mark.parametrize("chunk", range(max(1, SEEDS // CHUNK)))
def test_P10_exactly_once_each_record_has_one_answer_in_the_committed_view(
    chunk: int, repository: Path
) -> None:
    """Whatever step of a transaction fails, is lost or fenced, and whoever dies, hangs or comes back: 0, 0, 0.

    Covers B23, B25, B27, B97: nothing lost, duplicated or orphaned, dead letters included, no transaction left open; a
    gateway's call has one answer behind its commit, or, where something failed in between, none (P-13).
    """
    for seed in range(20_000 + chunk * CHUNK, 20_000 + (chunk + 1) * CHUNK):
        play(seed, repository, faults=seed % 9, **EXACTLY_ONCE)


class EagerDelivery(MemoryDelivery):
    """The planted bug: it commits before the answers are acknowledged."""

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Commit first."""
        self._log.commit(self._source.group, upto)
        return await super().settle(upto)


class EagerLog(CheckedLog):
    """A log with that delivery."""

    def delivery(self, source, mode, cover=None):
        """Make the planted one."""
        del mode
        return EagerDelivery(self, source, cover)


def test_the_simulation_catches_a_commit_before_its_answers(repository: Path) -> None:
    """The planted bug of B22 fails within a few seeds: the test can fail."""

    assert "is committed and has no answer" in failure_of(EagerLog, repository, faults=3)


class ForgetfulLog(CheckedLog):
    """The planted bug: the answers of error records never leave."""

    def append(self, outs: Sequence[Out]) -> None:
        """Drop them."""
        super().append([out for out in outs if dict(out.headers).get("reason") is None])


def test_the_simulation_catches_a_lost_answer(repository: Path) -> None:
    """B18's planted bug: an exception must not pass for an answer."""

    assert "has no answer" in failure_of(ForgetfulLog, repository, faults=0)


def failure_of(planted: type[CheckedLog], repository: Path, *, faults: int) -> str:
    """Return how the first failing of a few seeds fails on a log with a planted bug."""

    async def run(seed: int) -> None:
        await storm(seed, repository, faults=faults, log=planted())

    for seed in range(5):
        try:
            run_virtual(run(seed))
        except (AssertionError, BaseExceptionGroup) as exc:
            return _texts(exc)
        finally:
            gc.collect()  # the failed tasks are reported here, not in the middle of another test
    return "no seed failed"


def _texts(exc: BaseException) -> str:
    if isinstance(exc, BaseExceptionGroup):
        return " ".join(_texts(inner) for inner in exc.exceptions)
    return str(exc)
