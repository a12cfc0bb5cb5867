"""Real workers under steady traffic of sequences that die, freeze, and are restarted: no answer differs (P-1…P-8).

What must be answered is computed from what was sent alone; the workers are `headrace worker` processes.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fault_kit import KafkaLogs, Key, until, until_members
from headrace.streams.log import Mode
from sequence_kit import (
    MODEL,
    SequenceStage,
    Traffic,
    check_folds,
    check_steps,
    write_folds,
    write_sums,
)
from worker_process import Crew, WorkerProcess

NAMES = ("w1", "w2", "w3")
COMMITS_MS = {"w1": 0, "w2": 10, "w3": 100}
"""Worker → ``--commit-interval-ms``: between answer, snapshot and commit there is always somebody."""
PARTITIONS = 6
TICK_S = 0.03
STEPS = 9
"""Steps of a tick: each of 40 live sequences steps some seven times per second."""
ROLLED = ("w1", "w2", "w3", "w4")
"""Workers of the rolling restart (FAULTS B10), which share `ROLLED_PARTITIONS`."""
ROLLED_PARTITIONS = 8
PAUSE_S = 5.0
"""Longest pause that a restart may cost (FAULTS B10)."""


@pytest.fixture
async def stage(kafka_properties, unique):
    """A stage on Kafka with topics of its own."""
    async with SequenceStage(
        KafkaLogs(kafka_properties), unique("chaos"), partitions=PARTITIONS
    ) as stage:
        yield stage


def crew_of(stage: SequenceStage, repository: Path, folder: Path, *options: str) -> Crew:
    """Make the crew of a stage."""
    return Crew(
        repository,
        stage.logs.properties,
        stage.topology.prefix,
        folder=folder / "crew",
        options=("--partitions", str(PARTITIONS), *options),
    )


async def flow(
    stage: SequenceStage, traffic: Traffic, chaos: Coroutine[None, None, None]
) -> dict[Key, float]:
    """Send and read while the chaos lasts, then end all sequences and wait for every answer and commit.

    Returns:
        Request → seconds until its answer was read.
    """
    loop = asyncio.get_running_loop()
    sent: dict[Key, float] = {}
    took: dict[Key, float] = {}
    waiting: set[Key] = set()

    def note() -> None:
        for key in waiting & stage.answers.keys():
            took[key] = loop.time() - sent[key]
            waiting.discard(key)

    task = asyncio.create_task(chaos)
    try:
        while not task.done():
            keys = await traffic.send(STEPS)
            sent |= dict.fromkeys(keys, loop.time())
            waiting |= set(keys)
            due = loop.time() + TICK_S
            while (left := due - loop.time()) > 0:
                await stage.read(left)
                note()
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
    await traffic.end()
    await stage.until_answered(list(stage.steps))
    note()
    await stage.until_committed_all()
    return took


async def start(crew: Crew, *names: str) -> None:
    """Start workers that commit at different paces."""
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            options = ("--commit-interval-ms", str(COMMITS_MS[name]))
            tasks.create_task(crew.start(name, options=options))


async def kill_one_after_the_other(crew: Crew, deaths: int) -> None:
    """Kill a random worker and start it again, then the next one."""
    rng = random.Random(1)
    for _ in range(deaths):
        name = rng.choice(NAMES)
        await crew.workers[name].kill()
        await crew.end(name)
        await start(crew, name)
        await crew.workers[name].until_metric("headrace_batch_rows_count")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("embedded", marks=pytest.mark.embedded),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ],
)
async def test_P1_P3_P5_SIGKILL_every_few_seconds_changes_no_answer(
    kind, request, unique, tmp_path
):
    """Three workers, ids of both types that begin again and again, two versions: each step counts once."""
    repository = write_folds(tmp_path / "models")
    logs = KafkaLogs(request.getfixturevalue(f"{kind}_properties"))
    async with (
        SequenceStage(logs, unique("kills"), partitions=PARTITIONS) as stage,
        crew_of(stage, repository, tmp_path) as crew,
    ):
        await start(crew, *NAMES)
        traffic = Traffic(stage, 1, ids=40, length=20)
        await flow(stage, traffic, kill_one_after_the_other(crew, 2 if kind == "embedded" else 3))
        check_folds(stage)


async def freeze(stage: SequenceStage, crew: Crew, *names: str) -> None:
    """Stop each worker for longer than its session, and let it go on when others have its partitions."""
    bootstrap = stage.logs.properties["bootstrap.servers"]

    for name in names:
        frozen = crew.workers[name]
        before = await frozen.metric("headrace_rebalances")
        frozen.signal(signal.SIGSTOP)
        await until_members(bootstrap, stage.group, len(NAMES) - 1)
        sent = list(stage.steps)
        await until(lambda: stage.answers.keys() >= set(sent), "the others' answers")  # noqa: B023  # called here only
        frozen.signal(signal.SIGCONT)
        await frozen.until_metric("headrace_rebalances", before)
        await until_members(bootstrap, stage.group, len(NAMES))


@pytest.mark.kafka
async def test_P4_P7_P8_SIGSTOP_beyond_the_session_then_SIGCONT_changes_no_answer(stage, tmp_path):
    """The zombie comes back with steps that run and results in hand: what it still writes never wins."""
    repository = write_sums(tmp_path / "models", oldest=16, batch=8, execute_delay_ms=20)
    async with crew_of(stage, repository, tmp_path) as crew:
        await start(crew, *NAMES)
        traffic = Traffic(stage, 2, ids=40, length=20)
        await flow(stage, traffic, freeze(stage, crew, "w1", "w3"))
    check_steps(stage)


@dataclass
class Restarts:
    """What was seen of a rolling restart.

    Attributes:
        moved: Per restart, the workers whose partitions were others after it than before.
        rebalances: Of the workers that were not restarted, over all restarts.
        away: Per restart, the partitions of the one who was away.
        pauses: What these have timed of them in their histogram.
        slow_pauses: Those of more than `PAUSE_S`.
    """

    moved: list[set[str]] = field(default_factory=list)
    rebalances: float = 0
    away: list[set[int]] = field(default_factory=list)
    pauses: float = 0
    slow_pauses: float = 0


async def timed(workers: Sequence[WorkerProcess]) -> tuple[float, float]:
    """Return how many pauses these workers have timed, and how many of them took too long."""
    count = below = 0.0
    for worker in workers:
        samples = await worker.samples("headrace_rebalance_seconds_bucket")
        by_bound = {float(sample.labels["le"]): sample.value for sample in samples}
        count, below = count + by_bound[float("inf")], below + by_bound[PAUSE_S]
    return count, count - below


async def roll(crew: Crew, seen: Restarts, options: Callable[[str], Sequence[str]]) -> None:
    """Restart one worker after the other as an operator does."""
    await crew.until_held(MODEL, ROLLED_PARTITIONS // len(ROLLED))
    for name in ROLLED:
        others = [crew.workers[other] for other in ROLLED if other != name]
        before = await crew.held(MODEL)
        counted = [await worker.rebalances() for worker in others]
        before_it = await timed(others)
        crew.workers[name].signal(signal.SIGTERM)
        assert await crew.workers[name].exited() == 0, crew.workers[name].tail()
        await crew.end(name)
        await crew.start(name, options=options(name))
        await crew.workers[name].until_metric("headrace_batch_rows_count")
        now = [await worker.rebalances() for worker in others]
        seen.rebalances += sum(now) - sum(counted)
        times, slow = await timed(others)
        seen.pauses += times - before_it[0]
        seen.slow_pauses += slow - before_it[1]
        after = await crew.held(MODEL)
        seen.moved.append({n for n in ROLLED if after[n] != before[n]})
        seen.away.append(before[name])


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("is_static", "mode"),
    [(True, Mode.AT_LEAST_ONCE), (True, Mode.EXACTLY_ONCE), (False, Mode.AT_LEAST_ONCE)],
    ids=["static", "static-exactly_once", "dynamic"],
)
async def test_B10_a_rolling_restart_loses_nothing(
    is_static, mode, tmp_path, kafka_properties, unique
):
    """Static members come back to their partitions and no others pause; without, all pause for a moment."""
    properties = {**kafka_properties, "session.timeout.ms": "40000"}
    repository = write_folds(tmp_path / "models")

    def options(name: str) -> Sequence[str]:
        own = ("--group-instance-id", name) if is_static else ()
        partitions = ("--partitions", str(ROLLED_PARTITIONS))
        return (*own, *partitions, "--delivery", str(mode))

    seen = Restarts()
    async with (
        SequenceStage(
            KafkaLogs(properties), unique("b10"), partitions=ROLLED_PARTITIONS, mode=mode
        ) as stage,
        crew_of(stage, repository, tmp_path) as crew,
    ):
        async with asyncio.TaskGroup() as starts:
            for name in ROLLED:
                starts.create_task(crew.start(name, options=options(name)))
        traffic = Traffic(stage, 3, ids=40, length=20)
        took = await flow(stage, traffic, roll(crew, seen, options))
        check_folds(stage)
    assert all(seen.away)
    if is_static:
        assert seen.moved == [set()] * len(ROLLED)
        assert seen.rebalances == seen.pauses == 0
    else:
        assert seen.rebalances > 0
        assert max(took.values()) < PAUSE_S, "the pause of a restart"
        assert seen.pauses > 0
        assert seen.slow_pauses == 0
