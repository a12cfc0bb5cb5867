"""Real workers in exactly_once on Apache Kafka, killed, frozen and fenced: one answer each in the committed view.

FAULTS B6, B23, B24, B27, B97; DELIVERY P-5…P-13. What must be answered is computed from what was sent alone.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest
from fault_kit import (
    KafkaLogs,
    Key,
    Stage,
    check_answers,
    check_committed,
    until,
    until_members,
    write_model,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.record import TP
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import translate
from headrace.streams.kafka_transaction import KafkaTransactionalProducer
from headrace.streams.kafka_transaction_wire import TransactionWire
from headrace.streams.log import Mode
from sequence_kit import SequenceStage, Traffic, check_folds, check_steps, write_folds, write_sums
from worker_process import Crew

pytestmark = pytest.mark.kafka

NAMES = ("w1", "w2")
PARTITIONS = 4
EXACTLY_ONCE = ("--delivery", "exactly_once", "--transaction-interval-ms", "30")
CULPRIT = -5.0
"""The model fails on it: an error answer and a dead letter."""
TICK_S = 0.03


class Committed(Stage):
    """A stage whose answers are read committed."""

    committed_view = True


class CommittedSteps(SequenceStage):
    """The same of sequences."""

    committed_view = True


def crew_of(stage: Stage, repository: Path, folder: Path) -> Crew:
    """Make the crew of a stage, which delivers exactly once."""
    return Crew(
        repository,
        stage.logs.properties,
        stage.topology.prefix,
        folder=folder / "crew",
        options=("--partitions", str(PARTITIONS), *EXACTLY_ONCE),
    )


def check_once(stage: Stage, keys: Sequence[Key]) -> None:
    """Check the committed view: nothing lost, duplicated or orphaned, dead letters included."""
    check_answers(stage, keys, once=True)
    assert stage.answers.keys() <= set(stage.sent), "orphaned"
    assert len(stage.letters) == len(stage.dead_letters), "a dead letter came twice"


async def flow(
    stage: Stage,
    send: Callable[[], Coroutine[None, None, object]],
    chaos: Coroutine[None, None, None],
) -> None:
    """Send and read while the chaos lasts."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(chaos)
    try:
        while not task.done():
            await send()
            due = loop.time() + TICK_S
            while (left := due - loop.time()) > 0:
                await stage.read(left)
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def kill_one_after_the_other(crew: Crew, deaths: int) -> None:
    """Kill a random worker in the middle of its work and start it again, then the next one."""
    rng = random.Random(1)
    for _ in range(deaths):
        name = rng.choice(NAMES)
        before = await crew.workers[name].metric("headrace_transactions_total")
        await crew.workers[name].until_metric("headrace_transactions_total", before + 3)
        await crew.workers[name].kill()
        await crew.end(name)
        await crew.start(name)


async def test_B97_SIGKILL_in_the_middle_of_transactions_answers_each_record_once(
    kafka_properties, unique, tmp_path
):
    """Two workers of a stateless model; what one leaves open is ended by the other's takeover (B27), not by its age."""
    repository = write_model(
        tmp_path / "models", batch=8, delay_us=2000, instances=2, fail_if=f"INPUT0={CULPRIT}"
    )
    values = iter(range(1, 1_000_000))
    async with (
        Committed(KafkaLogs(kafka_properties), unique("eos"), partitions=PARTITIONS) as stage,
        crew_of(stage, repository, tmp_path) as crew,
    ):
        await crew.start(*NAMES)

        async def send() -> None:
            numbers = [next(values) for _ in range(12)]
            await stage.send([CULPRIT if n % 50 == 0 else float(n) for n in numbers])

        await flow(stage, send, kill_one_after_the_other(crew, 3))
        await stage.until_answered(stage.sent)
        check_committed(stage, await stage.until_committed(stage.is_all_committed))
        await stage.read_all()
    check_once(stage, stage.sent)
    assert stage.dead_letters
    assert len(stage.sent) > 200


async def test_P10_SIGKILL_of_workers_with_sequences_applies_each_step_once(
    kafka_properties, unique, tmp_path
):
    """An ONNX model with states, ids of both types that begin again and again, two versions."""
    repository = write_folds(tmp_path / "models")
    async with (
        CommittedSteps(
            KafkaLogs(kafka_properties), unique("eos-kills"), partitions=PARTITIONS
        ) as stage,
        crew_of(stage, repository, tmp_path) as crew,
    ):
        await crew.start(*NAMES)
        traffic = Traffic(stage, 1, ids=40, length=20)
        await flow(stage, lambda: traffic.send(9), kill_one_after_the_other(crew, 3))
        await traffic.end()
        await stage.until_answered(list(stage.steps))
        await stage.until_committed_all()
        await stage.read_all()
    check_folds(stage)
    check_once(stage, stage.sent)


async def freeze(stage: Stage, crew: Crew, name: str) -> None:
    """Stop a worker for longer than its session, and let it go on when the other has its partitions."""
    bootstrap = stage.logs.properties["bootstrap.servers"]
    frozen = crew.workers[name]
    before = await frozen.metric("headrace_rebalances")
    frozen.signal(signal.SIGSTOP)
    await until_members(bootstrap, stage.group, len(NAMES) - 1)
    sent = list(stage.sent)
    await until(lambda: stage.answers.keys() >= set(sent), "the other's answers")
    frozen.signal(signal.SIGCONT)
    await frozen.until_metric("headrace_rebalances", before)
    await until_members(bootstrap, stage.group, len(NAMES))


async def test_P6_P7_SIGSTOP_beyond_the_session_then_SIGCONT_answers_each_step_once(
    kafka_properties, unique, tmp_path
):
    """The zombie comes back with steps that run and a transaction in hand: it is fenced, and nothing of it is seen."""
    repository = write_sums(tmp_path / "models", oldest=16, batch=8, execute_delay_ms=20)
    async with (
        CommittedSteps(
            KafkaLogs(kafka_properties), unique("eos-zombie"), partitions=PARTITIONS
        ) as stage,
        crew_of(stage, repository, tmp_path) as crew,
    ):
        await crew.start(*NAMES)
        traffic = Traffic(stage, 2, ids=40, length=20)
        await flow(stage, lambda: traffic.send(9), freeze(stage, crew, "w1"))
        await traffic.end()
        await stage.until_answered(list(stage.steps))
        await stage.until_committed_all()
        await stage.read_all()
    check_steps(stage)
    check_once(stage, stage.sent)


async def test_B6_B23_after_a_fencing_the_same_offsets_run_again_before_later_ones(
    kafka_properties, unique, tmp_path
):
    """Somebody takes the transactional id between execution and commit: nothing is skipped, and nothing seen twice."""
    repository = write_model(tmp_path / "models", batch=4, delay_us=0, execute_delay_ms=30)
    wire = TransactionWire(translate(kafka_properties))
    async with Committed(KafkaLogs(kafka_properties), unique("b6"), partitions=1) as stage:
        async with stage.worker(
            repository, delivery=Mode.EXACTLY_ONCE, transaction_interval_s=0.05
        ) as worker:
            for _ in range(3):
                await stage.send(range(20))
                await until(lambda: worker.in_flight() > 0, "records in flight")
                thief = KafkaTransactionalProducer(
                    wire, stage.group, TP(stage.requests, 0), timeout_ms=10_000
                )
                await thief.start()
                await thief.close()
                await stage.until_answered(stage.sent)
            await stage.until_committed(stage.is_all_committed)
            page = worker.worker.registry
            fenced = page.get_sample_value(
                "headrace_transactions_total", {"model": "echo", "outcome": "fenced"}
            )
        await stage.read_all()
    await wire.close()
    assert fenced
    check_once(stage, stage.sent)
    offsets = [offset for _, offset in stage.answers]
    assert offsets == sorted(offsets), "later ones came first"


async def test_B25_an_execution_may_outlast_the_transaction_and_the_transaction_its_time(
    kafka_properties, unique, tmp_path
):
    """It is opened behind the execution; one that the broker aborts before its end is run again, and seen once."""
    repository = write_model(tmp_path / "models", execute_delay_ms=2_500)
    log = KafkaLog(kafka_properties, transaction_timeout_ms=1_000)
    async with Committed(KafkaLogs(kafka_properties), unique("b25"), partitions=1) as stage:
        async with (
            log,
            stage.worker(repository, log=log, delivery=Mode.EXACTLY_ONCE) as running,
        ):
            await stage.send([1])
            await stage.until_answered(stage.sent)
            assert running.executions == [1]
            source = running.worker.models["echo"].source
            (delivery,) = source._deliveries
            producer = delivery._owners[TP(stage.requests, 0)].producer
            results = TP(stage.topology.results("echo"), 0)
            delivery._timeout_s = 60.0  # else it would give up before the broker does
            commit, aborted = producer.commit, asyncio.Event()

            async def late() -> None:
                (open_at,) = (await source.end_offsets({results})).values()
                async with asyncio.timeout(40):  # the broker looks every 10 s
                    while (await source.end_offsets({results}))[results] == open_at:  # noqa: ASYNC110  # no event
                        await asyncio.sleep(0.1)
                aborted.set()
                await commit()

            producer.commit = late
            await stage.send([2])
            await until(aborted.is_set, "the broker's abort")
            await stage.until_answered(stage.sent)
            await stage.until_committed(stage.is_all_committed)
            assert running.executions == [1, 1, 1]
        await stage.read_all()
    check_once(stage, stage.sent)


@pytest.mark.embedded
async def test_P9_exactly_once_is_refused_at_start_where_transactions_are_missing(
    embedded_properties, unique, tmp_path
):
    """In one sentence, which names whose wish it was: the setting's or the model's."""
    setting = write_model(tmp_path / "setting")
    own = write_model(tmp_path / "own", delivery="exactly_once")
    async with Stage(KafkaLogs(embedded_properties), unique("p9")) as stage:
        with pytest.raises(ConfigError, match="delivery = exactly_once: exactly_once needs trans"):
            async with stage.worker(setting, delivery=Mode.EXACTLY_ONCE):
                pass
        with pytest.raises(ConfigError, match=r"model 'echo': parameters\[delivery\] = exactly"):
            async with stage.worker(own):
                pass
