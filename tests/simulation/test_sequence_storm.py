"""Storms over a sequence model: whatever is interleaved, batched, killed and taken over, the answers are the log's.

`HEADRACE_SEEDS=100000` runs as many (`make simulate SEEDS=100000`); a failing seed is in the failure's
note, and `play(SEED, …)` replays it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from headrace.streams.log import Mode
from sequence_storm import play
from sequence_traffic import Repositories

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "2000"))
EXACTLY_ONCE_SEEDS = int(os.environ.get("HEADRACE_SEEDS", "100"))
CHUNK = 50


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repositories]:
    """Models of every configuration that a scenario asks for."""
    made = Repositories(tmp_path_factory.mktemp("repositories"))
    yield made
    made.close()


@pytest.mark.parametrize("chunk", range(-(-SEEDS // CHUNK)))
def test_B16_B87_B88_each_sequence_is_answered_as_if_alone_and_in_order(
    chunk: int, repositories: Repositories
) -> None:
    """Crashes, zombies, rebalances, failing produces and commits, compaction: every step counts once (P-1…P-8)."""
    for seed in range(chunk * CHUNK, min(SEEDS, (chunk + 1) * CHUNK)):
        play(seed, repositories)


@pytest.mark.parametrize("chunk", range(-(-EXACTLY_ONCE_SEEDS // CHUNK)))
def test_P10_exactly_once_each_step_is_answered_once_and_states_follow_its_commit(
    chunk: int, repositories: Repositories
) -> None:
    """The same weather and a transaction's own: aborts, fencings, expired, stolen and forgotten ids (P-5…P-13)."""
    for seed in range(chunk * CHUNK, min(EXACTLY_ONCE_SEEDS, (chunk + 1) * CHUNK)):
        play(seed, repositories, mode=Mode.EXACTLY_ONCE)
