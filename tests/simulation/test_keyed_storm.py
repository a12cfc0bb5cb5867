"""Idempotency keys under crashes, zombies, rebalances and failing transactions, on virtual time (DELIVERY P-17)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace.consumers.key_table import WHOLE, KeyTable
from headrace.consumers.keys import KeyTables
from headrace.consumers.remembered_answers import RememberedAnswers, Screened
from headrace.schemas.batch import Entry
from headrace.streams.log import Mode
from keyed_storm import storm
from rule_kit import first_broken, hold
from simulated import TRANSACTION_FAULTS
from virtual_loop import run_virtual

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))
CHUNK = 20


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Callable[[int], int]]:
    """Plays one seed; the seed stands in front of whatever went wrong."""

    def of(**weather: object) -> Callable[[int], int]:
        def one(seed: int) -> int:
            try:
                return run_virtual(storm(seed, tmp_path, **weather))  # type: ignore[arg-type]  # its keywords
            except BaseException as exc:
                exc.add_note(f"seed {seed}: replay with storm({seed}, folder, **{weather})")
                raise

        return one

    return of


@pytest.mark.parametrize("chunk", range(max(1, SEEDS // CHUNK)))
def test_P17_exactly_once_each_key_runs_once_and_its_answers_are_equal(chunk: int, play) -> None:
    """In the committed view, whatever strikes: one execution per key, one answer per record, and all of a key equal."""
    one = play(mode=Mode.EXACTLY_ONCE, faults=8, faults_of=TRANSACTION_FAULTS)
    assert sum(one(seed) for seed in range(50_000 + chunk * CHUNK, 50_000 + (chunk + 1) * CHUNK))


@pytest.mark.parametrize("chunk", range(max(1, SEEDS // CHUNK)))
def test_P17_at_least_once_the_answers_of_a_key_are_equal(chunk: int, play) -> None:
    """Nothing is lost, and who uses a key for something else is told so whoever answers."""
    one = play(mode=Mode.AT_LEAST_ONCE, faults=6)
    assert sum(one(seed) for seed in range(60_000 + chunk * CHUNK, 60_000 + (chunk + 1) * CHUNK))


KILLS = {"mode": Mode.EXACTLY_ONCE, "faults": 10, "faults_of": ("crash", "rebalance")}


def test_P17_a_takeover_that_reads_no_answers_runs_keys_twice(
    play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the next owner begins with nothing."""
    monkeypatch.setattr(KeyTables, "restored", lambda *_: None)
    seed = first_broken(play(**KILLS), "ran more than once", "different answers")
    monkeypatch.undo()
    hold(play(**KILLS), seed, most=3)


def test_P17_a_key_that_is_not_known_before_its_answer_runs_twice(
    play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a repeat in flight does not follow the first."""
    calm = KILLS | {"faults": 0}

    def unaware(
        self: RememberedAnswers, table: KeyTable, entry: Entry, screened: Screened
    ) -> None:
        self.keys.lead(table, WHOLE, entry)
        screened.queue.append(entry)

    monkeypatch.setattr(RememberedAnswers, "_follow", unaware)
    seed = first_broken(play(**calm), "ran more than once", "different answers")
    monkeypatch.undo()
    hold(play(**calm), seed, most=3)
