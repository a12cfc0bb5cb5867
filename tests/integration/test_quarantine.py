"""Requests that end their worker's process, on brokers: found, answered, kept, and nobody else with them (P-14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fault_kit import KafkaLogs, Stage, write_model
from headrace.backends.identity import EXIT_STATUS
from headrace.consumers.attempts import SUSPECTED_FROM
from headrace.schemas.record import TP
from headrace.streams.log import EARLIEST, LATEST, Mode, Position, Span
from worker_process import WorkerProcess, worker_process

NOTHING = Position(0)
DEADLY = 666
MAX_CRASHES = 2
MANY_S = 240.0
"""For a dozen starts of a process on a busy machine."""


class Supervisor:
    """Starts workers again whenever they end, as Kubernetes or systemd does.

    Attributes:
        ended: Exit status of each that has ended by itself.
        workers: Name → the process that runs.
    """

    def __init__(self, stage: Stage, repository: Path, folder: Path, *options: str) -> None:
        self.ended: list[int] = []
        self.workers: dict[str, WorkerProcess] = {}
        self._stage = stage
        self._repository = repository
        self._folder = folder
        self._options = options

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        """Keep workers of these names running while the block runs."""
        tasks = [asyncio.create_task(self._keep(name)) for name in names]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        # A static member is itself again at once: nobody waits for the session of a dead one.
        options = ("--worker-id", name, "--group-instance-id", name, *self._options)
        while True:
            async with worker_process(
                self._repository,
                self._stage.logs.properties,
                self._stage.topology.prefix,
                folder=self._folder / name,
                options=options,
                is_awaited=False,
            ) as worker:
                self.workers[name] = worker
                self.ended.append(await worker.process.wait())

    async def metric(self, name: str) -> float:
        """Return a metric's sum over all workers, once they are ready."""
        for worker in self.workers.values():
            await worker.until_readiness(200)
        return sum([await worker.metric(name) for worker in self.workers.values()])


@pytest.fixture
async def stage(kafka_properties, unique):
    """A stage on Kafka with topics of its own."""
    async with Stage(KafkaLogs(kafka_properties), unique("deadly")) as stage:
        yield stage


@pytest.mark.kafka
@pytest.mark.timeout(600)  # a process starts for ten seconds where others keep the machine busy
@pytest.mark.parametrize(
    ("names", "mode"),
    [(("a",), Mode.AT_LEAST_ONCE), (("a", "b", "c"), Mode.EXACTLY_ONCE)],
    ids=["one", "three-exactly-once"],
)
async def test_P14_a_record_that_ends_its_process_is_quarantined_among_good_ones(
    stage, tmp_path, names, mode
):
    """`os._exit` in the model: so often and no oftener, then one error and one letter; the others are answered."""
    repository = write_model(
        tmp_path / "models", batch=4, delay_us=1000, exit_if=f"INPUT0={DEADLY}"
    )
    stage.committed_view = mode is Mode.EXACTLY_ONCE
    good = await stage.send(range(1, 41))
    (deadly,) = await stage.send([DEADLY], partition=0)
    good += await stage.send(range(41, 61))
    supervisor = Supervisor(
        stage, repository, tmp_path, "--max-crashes", str(MAX_CRASHES), "--delivery", mode
    )
    async with supervisor.running(*names):
        await stage.until_answered(stage.sent, MANY_S)
        await stage.until_committed(stage.is_all_committed)
        died = list(supervisor.ended)
        # Whoever runs now goes on as if nothing had been, and what comes is batched as ever.
        good += await stage.send(range(61, 101))
        await stage.until_answered(stage.sent, MANY_S)
        found = await stage.until_committed(stage.is_all_committed)
        assert await supervisor.metric("headrace_crashes") == 0
        assert await supervisor.metric("headrace_quarantined_records_total") >= 1
        assert supervisor.ended == died
    # Each death before it was suspected may have been the first after some progress.
    assert set(died) == {EXIT_STATUS}
    assert MAX_CRASHES < len(died) <= 1 + SUSPECTED_FROM + MAX_CRASHES
    await stage.read_all()
    for key in good:
        answers = stage.answers[key]
        assert {answer.status for answer in answers} == {"OK"}, key
        assert mode is Mode.AT_LEAST_ONCE or len(answers) == 1
    assert [(a.status, a.reason) for a in stage.answers[deadly]] == [
        ("INTERNAL", "worker_crashed")
    ]
    assert stage.letters == [deadly]
    assert [position.metadata for position in found.values()] == ["", ""]
    (letter,) = await letters(stage)
    assert letter["dead-letter-attempts"] == b"%d" % MAX_CRASHES
    assert letter["dead-letter-class"] == b"WorkerCrashed"


async def letters(stage):
    """Return the headers of every dead letter."""
    topic = stage.topology.dead_letters
    spans = {TP(topic, n): Span(EARLIEST, LATEST) for n in range(stage.topology.partitions)}
    found = []
    async with stage.log.reader(spans, committed=True) as reader:
        while not reader.done():
            for block in await reader.poll(100, 0.5):
                found += [dict(record.headers) for record in block.records]
    return found


@pytest.mark.kafka
async def test_P14_takeovers_cost_one_commit_and_records_none(stage, tmp_path):
    """The mark stands in the metadata before anything is admitted, and goes with the first progress."""
    gate = tmp_path / "gate"
    repository = write_model(tmp_path / "models", block_until_file=gate)
    await stage.send([1, 2, 3], partition=0)
    async with stage.worker(repository):
        found = await stage.until_committed(lambda at: 0 in at)
        assert found[0].offset == 0
        assert found[0].metadata.startswith("h1;c=1,")
        assert found.get(1, NOTHING).metadata == "", "nothing is to be read there"
        gate.touch()
        found = await stage.until_committed(stage.is_all_committed)
        assert found[0].metadata == ""


@pytest.mark.kafka
async def test_P14_rolling_restarts_count_for_nothing(stage, tmp_path):
    """Each hands over cleanly with records unanswered."""
    gate = tmp_path / "gate"
    repository = write_model(tmp_path / "models", block_until_file=gate, block_limit_ms=60_000)
    await stage.send([1, 2, 3], partition=0)
    for _ in range(SUSPECTED_FROM + 1):
        async with stage.worker(repository, exit_timeout_s=0.2, revoke_grace_s=0.2):
            await stage.until_committed(lambda at: 0 in at and at[0].metadata != "")
        assert (await stage.committed())[0].metadata == ""
    gate.touch()
    async with stage.worker(repository) as last:
        await stage.until_answered(stage.sent)
        assert set(last.worker.models["echo"].crashes().values()) == {0}


@pytest.mark.embedded
async def test_P14_on_the_embedded_broker_nothing_is_counted_and_all_is_served(
    embedded_properties, unique, tmp_path
):
    """It keeps no metadata of commits: no commit is made for it, and no record runs alone."""
    async with Stage(KafkaLogs(embedded_properties), unique("embedded")) as stage:
        repository = write_model(tmp_path / "models")
        for value in (1, 2, 3):
            await stage.send([value], partition=0)
            async with stage.worker(repository) as running:
                await stage.until_answered(stage.sent)
                assert running.worker.models["echo"]._attempting is None
