"""Storms over a sequence model: the whole worker on the memory log and virtual time, against the oracle.

`play` runs one seed: a scenario is drawn, records are sent while workers crash, hang, leave and lose their partitions,
and in the end everything that was answered, snapshotted and committed is compared with what the log's order says
(`sequence_oracle`). What fails says the rule that was broken:

* ``answered``: an answer is not the due one, or two of one record differ (P-16);
* ``out of order``: a sequence's answers were first seen in another order than its requests (P-18);
* ``replied``: a gateway has the answer of a record that is not committed (P-13);
* ``no answer``: a committed record has none, or nobody answers it any more (P-3, M1);
* ``backwards``: a committed offset went back (P-8);
* ``not covered``: a commit passed a step of which no snapshot is acknowledged (P-3);
* ``at rest``: the state topic does not say what the next owner must go on with (P-4).
"""

from __future__ import annotations

import asyncio
import random

from deadly_kit import DeadlyFleet
from headrace.consumers.settings import WorkerSettings
from headrace.schemas.snapshot import SequenceCodec
from headrace.streams.memory_source import MemorySource
from sequence_log import SequenceLog, Violation
from sequence_traffic import (
    MODEL,
    DeadlyFoldPool,
    Repositories,
    Scenario,
    Traffic,
    is_deadly,
)
from simulated import Fleet, all_answered, strike
from virtual_loop import run_virtual


def play(
    seed: int,
    repositories: Repositories,
    *,
    log: type[SequenceLog] = SequenceLog,
    **given: object,
) -> SequenceLog:
    """Run one seed to its end and check everything.

    Args:
        seed: Decides everything; the failure's note says it.
        repositories: Where models come from.
        log: Of this class, maybe with a planted bug.
        given: Fields of the scenario that are not drawn.
    """
    rng = random.Random(seed)
    scenario = Scenario.drawn(rng, **given)
    try:
        return run_virtual(_storm(scenario, rng, repositories, log))
    except BaseException as exc:
        exc.add_note(f"seed {seed}: replay with play({seed}, repositories, **{given}): {scenario}")
        raise


async def _storm(
    scenario: Scenario,
    rng: random.Random,
    repositories: Repositories,
    make_log: type[SequenceLog],
) -> SequenceLog:
    repository = repositories.of(scenario)
    batching = repository.models[MODEL].config.sequence_batching
    assert batching is not None
    log = make_log(scenario, SequenceCodec(batching.states), rng)
    settings = WorkerSettings(
        "",
        max_queued_records=40,
        max_partition_span=30,
        revoke_grace_s=1.0,
        snapshot_every=scenario.snapshot_every,
        delivery=scenario.mode,
        transaction_interval_s=scenario.commit_interval_ms / 1000,
        sequence_skew_s=0.0,
    )
    fleet = DeadlyFleet(
        log,
        repository,
        rng,
        topology=scenario.topology,
        settings=settings,
        is_deadly=is_deadly,
        deadly_pool=DeadlyFoldPool,
    )
    async with log:
        for _ in range(scenario.workers):
            await fleet.start()
        await _weather(scenario, rng, log, fleet)
        try:
            await all_answered(
                log, fleet, log.sources(), within_s=600.0 if scenario.deadly else 60.0
            )
            await fleet.stop()
        except BaseException:
            if log.violations:  # whoever saw it first may have been killed since
                raise Violation(log.violations[0]) from None
            raise
    log.check()
    return log


async def _weather(scenario: Scenario, rng: random.Random, log: SequenceLog, fleet: Fleet) -> None:
    """Send records, many at a time now and then, and inject faults among them."""
    moments: list[tuple[float, bool]] = []
    while len(moments) < scenario.records:
        at = rng.uniform(0, scenario.seconds)
        moments += [(at, False)] * min(rng.choice((1, 1, 3, 8)), scenario.records - len(moments))
    moments += [(rng.uniform(0.05, scenario.seconds + 0.2), True) for _ in range(scenario.faults)]
    traffic = Traffic(scenario, rng)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for moment, is_fault in sorted(moments):
        if (wait_s := begun + moment - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        if is_fault and fleet.running:
            await _strike(rng.choice(scenario.faults_of), rng, log, fleet)
        elif not is_fault:
            log.send(traffic.record())


async def _strike(name: str, rng: random.Random, log: SequenceLog, fleet: Fleet) -> None:
    match name:
        case "compact":
            log.compact_states(tombstones=rng.random() < 0.5)
        case "orphan":
            log.faults += 1
            zombie = fleet.evict(learns_after_s=2.0)
            await asyncio.sleep(rng.choice((0.1, 0.3, 0.6)))
            for other in set(fleet.running) - {zombie}:
                await fleet.crash(other)
            await asyncio.sleep(rng.choice((0.1, 0.3, 0.6)))
            await fleet.start()
        case "freeze":
            log.faults += 1
            seconds = rng.choice((0.1, 0.3, 0.6))
            name = fleet.evict(learns_after_s=seconds + rng.choice((0.0, 0.3, 1.0)))
            if (source := fleet.source(name)) is not None:
                log.freeze(source, seconds)
        case "trap":

            def freeze(source: MemorySource) -> None:
                seconds = rng.choice((0.3, 0.6))
                log.evict(source, learns_after_s=seconds + 1.0)
                log.freeze(source, seconds)

            log.faults += 1
            log.trap = freeze
            await strike("rebalance", log, fleet)
        case "evict":
            log.faults += 1
            fleet.evict(learns_after_s=rng.choice((0.0, 0.1, 1.0)))
        case _:
            await strike(name, log, fleet)
