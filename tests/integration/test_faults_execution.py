"""Executions that fail, hang, die or lack memory, with the real worker on each log (B18, B20, B30, B42, B80, B81)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_models
import pytest
from fault_kit import (
    KafkaLogs,
    Key,
    OneMemoryLog,
    Running,
    Stage,
    both_modes,
    check_answers,
    until,
    write_model,
)
from headrace.consumers import pool
from headrace.deploy.failure import EXHAUSTED
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.dead_letter import read_dead_letter
from headrace.schemas.errors import Retriable
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.log import EARLIEST, Span
from headrace.streams.memory import MemoryLog
from prometheus_client import generate_latest
from sequence_kit import SequenceStage, Step, write_sums
from service_kit import samples
from worker_process import worker_process

FAST = {"retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1}
"""Pauses between tries that keep tests short."""


@pytest.fixture
async def stage(logs, unique):
    """A stage on each kind of log in turn."""
    async with Stage(logs, unique("exec")) as stage:
        yield stage


def counted(running: Running, name: str) -> float:
    """Return what the worker counts of its one model."""
    return samples(generate_latest(running.worker.registry).decode(), name)


async def letters(stage: Stage) -> dict[Key, object]:
    """Return the dead letters that lie there, by the request that they are of."""
    topic = stage.topology.dead_letters
    count = await stage.log.partitions(topic) or 0
    found: dict[Key, object] = {}
    spans = {TP(topic, number): Span(EARLIEST) for number in range(count)}
    async with stage.log.reader(spans) as reader:
        while blocks := await reader.poll(1000, 0.5):
            for block in blocks:
                for record in block.records:
                    letter = read_dead_letter(record)
                    found[letter.source.partition, letter.offset] = letter
    return found


def check_served(stage: Stage, keys: Sequence[Key], values: Sequence[float]) -> None:
    """Each of these requests has its own value as its one answer."""
    check_answers(stage, keys, once=True)
    assert [stage.answers[key][0].values for key in keys] == [(value,) for value in values]


def check_failed(stage: Stage, key: Key, reason: str, status: str = "INTERNAL") -> None:
    """A request has one answer, a typed error."""
    (answer,) = stage.answers[key]
    assert (answer.status, answer.reason) == (status, reason), answer


async def test_B80_a_batch_that_does_not_fit_is_halved_and_the_ceiling_is_kept(stage, tmp_path):
    """32 rows, 8 fit: all are served; later batches are small from the start, until memory is there again."""
    mended = tmp_path / "mended"
    repository = write_model(
        tmp_path / "models",
        batch=32,
        delay_us=300_000,
        out_of_memory_above_rows=8,
        out_of_memory_until_file=mended,
    )
    async with stage.worker(repository, memory_ceiling_s=3.0, **FAST) as running:
        first = await stage.send(range(32), partition=0)
        await stage.until_answered(first)
        check_served(stage, first, range(32))
        assert max(running.executions) > 8
        assert counted(running, "headrace_batch_ceiling_rows") == 8
        before = len(running.executions)
        second = await stage.send(range(100, 140), partition=0)
        await stage.until_answered(second)
        check_served(stage, second, range(100, 140))
        assert max(running.executions[before:]) <= 8
        mended.touch()
        value = 1000
        before = len(running.executions)
        deadline = asyncio.get_running_loop().time() + 40
        while max(running.executions[before:], default=0) < 32:
            assert asyncio.get_running_loop().time() < deadline, running.executions[before:]
            more = await stage.send(range(value, value + 32), partition=0)
            await stage.until_answered(more)
            value += 32
        assert counted(running, "headrace_batch_ceiling_rows") == 0
        await stage.until_committed(stage.is_all_committed)
    assert not stage.dead_letters


async def test_B81_no_memory_for_one_request_is_a_typed_error_and_readiness_falls(stage, tmp_path):
    """Each is answered after its tries and kept; the instance is replaced, which readiness shows meanwhile."""
    repository = write_model(tmp_path / "models", batch=4, out_of_memory_above_rows=0)
    async with stage.worker(repository, max_starved_executions=3, **FAST) as running:
        with looking_at(running) as seen:
            keys = await stage.send(range(6))
            await stage.until_answered(keys)
            await until(
                lambda: counted(running, "headrace_instance_restarts") > 0, "a replacement"
            )
            await stage.until_committed(stage.is_all_committed)
    for key in keys:
        check_failed(stage, key, "out_of_memory")
    assert any("requests in a row ran out of memory" in trouble for trouble in seen)
    found = await letters(stage)
    assert set(found) == set(keys)
    assert {letter.attempts for letter in found.values()} == {3}


class Look(logging.Handler):
    """Notes why a worker is not ready whenever its instances are told of: a moment later there may be new ones."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self._running = running

    def emit(self, _record: logging.LogRecord) -> None:
        if not self._running.worker.ready():
            self.seen.update(self._running.worker.troubles())


@contextmanager
def looking_at(running: Running) -> Iterator[set[str]]:
    """Yield the sentences that the worker has said of why it is not ready."""
    look, logger = Look(running), logging.getLogger(pool.__name__)
    logger.addHandler(look)
    try:
        yield look.seen
    finally:
        logger.removeHandler(look)


async def test_B42_a_request_that_hangs_is_given_up_and_nobody_else(stage, tmp_path):
    """Eight in a batch, one hangs: seven are served, one is answered after its tries; the worker is ready again."""
    free = tmp_path / "free"
    repository = write_model(
        tmp_path / "models",
        batch=8,
        delay_us=200_000,
        block_until_file=free,
        block_if=5,
        execution_timeout_ms=300,
    )
    async with stage.worker(repository, max_attempts=2, **FAST) as running:
        with looking_at(running) as seen:
            keys = await stage.send(range(8), partition=0)
            await stage.until_answered(keys)
        check_served(stage, keys[:5] + keys[6:], [0, 1, 2, 3, 4, 6, 7])
        check_failed(stage, keys[5], "execution_timeout", "UNAVAILABLE")
        assert counted(running, "headrace_execution_timeouts") == 2
        assert counted(running, "headrace_abandoned_executions") == 2
        await until(running.worker.ready, "readiness")
        later = await stage.send([9], partition=0)
        await stage.until_answered(later)
        check_served(stage, later, [9])
        free.touch()
        await until(
            lambda: counted(running, "headrace_abandoned_executions") == 0, "the threads' end"
        )
        await stage.until_committed(stage.is_all_committed)
    check_answers(stage, keys, once=True)
    assert any("did not return within 300 ms" in trouble for trouble in seen)
    assert set(await letters(stage)) == {keys[5]}


async def test_B42_a_request_that_kills_its_instance_is_found(stage, tmp_path):
    """Its neighbours are served by the next instance; it is answered after three deaths."""
    repository = write_model(
        tmp_path / "models", batch=8, delay_us=200_000, fail_if=5, fail_as="death"
    )
    async with stage.worker(repository, **FAST) as running:
        keys = await stage.send(range(8), partition=0)
        await stage.until_answered(keys)
        check_served(stage, keys[:5] + keys[6:], [0, 1, 2, 3, 4, 6, 7])
        check_failed(stage, keys[5], "instance_died")
        await until(running.worker.ready, "readiness")
        assert counted(running, "headrace_instance_restarts") == 3
        await stage.until_committed(stage.is_all_committed)
    (letter,) = (await letters(stage)).values()
    assert (letter.attempts, letter.error_class, letter.version) == (3, "InstanceDied", "1")


async def test_B18_B30_what_always_fails_is_tried_and_kept_and_lag_returns_to_0(stage, tmp_path):
    """Good ones around it are unaffected; what fails once in between succeeds."""
    repository = write_model(
        tmp_path / "models", batch=4, delay_us=0, fail_if=7, fail_as="retriable"
    )
    async with stage.worker(repository, max_attempts=4, **FAST) as running:
        keys = await stage.send(range(20), partition=1)
        await stage.until_answered(keys)
        good = [value for value in range(20) if value != 7]
        check_served(stage, [keys[value] for value in good], good)
        check_failed(stage, keys[7], "retries_exhausted")
        assert counted(running, "headrace_retried_requests") == 3
        await stage.until_committed(stage.is_all_committed)
    (letter,) = (await letters(stage)).values()
    assert (letter.attempts, letter.reason) == (4, "retries_exhausted")


async def test_B80_B81_a_real_model_that_lacks_memory_for_many_rows_serves_few(stage, tmp_path):
    """ONNX Runtime itself fails to allocate above 3 rows: all are served, and later batches fit from the start."""
    repository = onnx_models.write_repository(
        tmp_path / "models",
        {"echo": onnx_models.short_above(3)},
        {
            "echo": """
backend: "onnxruntime"
max_batch_size: 16
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching { max_queue_delay_microseconds: 300000 }
"""
        },
    )
    async with stage.worker(repository, **FAST) as running:
        for _ in range(2):
            keys = await send_x(stage, range(16))
            await stage.until_answered(keys)
            check_served(stage, keys, range(16))
        assert counted(running, "headrace_batch_ceiling_rows") == 2
        assert counted(running, "headrace_retried_requests") == 0
        counts = running.worker.models["echo"].answering.versions[1].observer.counts
        assert counts.exec_count >= 16
        assert counts.success == 32
        await stage.until_committed(stage.is_all_committed)
    assert not stage.dead_letters


async def send_x(stage: Stage, values: Sequence[float]) -> list[Key]:
    """Send requests of the ONNX model."""
    outs = []
    for value in values:
        tensor = Tensor.from_numpy("x", np.array([[value]], np.float32))
        raw, headers = encode_request(InferRequest((tensor,), id=str(value)))
        outs.append(Out(stage.requests, 0, None, raw, headers))
    return await stage.send_raw(outs)


async def test_B94_what_failed_for_good_holds_nothing_that_looks_like_a_prediction(tmp_path):
    """After its last try an answer is an error: no outputs, and status and reason in its headers."""
    repository = write_model(tmp_path / "models", fail_if=7, fail_as="retriable")
    async with Stage(OneMemoryLog(MemoryLog()), "b94", partitions=1) as stage:
        async with stage.worker(repository, **FAST):
            await stage.until_answered(await stage.send([7]))
        (record,) = stage.log.records(stage.topology.results("echo"), 0)
        said = dict(record.headers)
        assert (said["status"], said["reason"]) == (b"INTERNAL", b"retries_exhausted")
        assert said["attempt"] == b"3"
        with pytest.raises(Retriable, match="scripted failure"):
            decode_response(record.value, record.headers)
        assert b"OUTPUT0" not in record.value


async def test_a_failure_that_passes_is_no_failure(stage, tmp_path):
    """The first two executions fail as unavailable; every request is answered once, well."""
    repository = write_model(
        tmp_path / "models", batch=4, delay_us=50_000, fail_times=2, fail_as="unavailable"
    )
    async with stage.worker(repository, **FAST):
        keys = await stage.send(range(4), partition=0)
        await stage.until_answered(keys)
        await stage.until_committed(stage.is_all_committed)
    check_served(stage, keys, range(4))
    assert not await letters(stage)


@both_modes
async def test_B20_a_key_that_always_fails_pins_the_commit_for_its_tries_only(mode, tmp_path):
    """Each hundredth of 3,000 fails for good: in flight never exceeds its cap, and the commit catches up."""
    cap = 64
    repository = write_model(
        tmp_path / "models", batch=16, delay_us=0, fail_if=7, fail_as="retriable"
    )
    async with Stage(OneMemoryLog(MemoryLog()), "b20", mode=mode) as stage:
        async with stage.worker(
            repository,
            max_partition_span=cap,
            max_poll_records=16,
            max_queued_records=4096,
            **FAST,
        ) as running:
            values = [7 if number % 100 == 0 else 8 for number in range(3000)]
            spans: list[int] = []
            keys = await stage.send(values, partition=0)
            while not set(keys) <= stage.answers.keys():
                await stage.read(0.005)
                for model in running.worker.models.values():
                    for part in model.partitions.values():
                        ledger = part.ledger
                        spans.append(ledger.next_offset - ledger.position().offset)
            await stage.until_committed(stage.is_all_committed)
        assert 0 < max(spans) <= cap
        assert set(await letters(stage)) == {keys[n] for n in range(0, 3000, 100)}
        check_answers(stage, keys, once=True)


@pytest.mark.parametrize("oldest", [0, 4], ids=["direct", "oldest"])
@pytest.mark.parametrize("fail_as", ["retriable", "unavailable", "death"])
async def test_P18_steps_wait_for_their_retried_predecessor(tmp_path, oldest, fail_as):
    """The first executions fail; the sums are those of the undisturbed run, in order."""
    repository = write_sums(
        tmp_path / "models", oldest=oldest, batch=4, fail_times=2, fail_as=fail_as
    )
    async with SequenceStage(OneMemoryLog(MemoryLog()), "p18", partitions=1) as stage:
        async with stage.worker(repository, **FAST):
            steps = [
                Step(name, value, start=value == 1, end=value == 5)
                for value in range(1, 6)
                for name in (1, 2, 3)
            ]
            keys = await stage.step(*steps)
            await stage.until_answered(keys)
            await stage.until_committed_all()
        sums = {1: 1, 2: 3, 3: 6, 4: 10, 5: 15}
        assert stage.values(keys) == [sums[step.value] for step in steps]
        records = stage.log.records(stage.topology.results("echo"), 0)
        for name in (1, 2, 3):
            order = [
                offset
                for offset in (_source(record) for record in records)
                if steps[offset].sequence_id == name
            ]
            assert order == sorted(order)


def _source(record) -> int:
    return int(dict(record.headers)["source"].rsplit(b"/", 1)[1])


@pytest.mark.parametrize("oldest", [0, 4], ids=["direct", "oldest"])
async def test_B42_sequences_of_a_model_with_memory_of_its_own_are_lost_with_it(
    logs, unique, tmp_path, oldest
):
    """One step hangs: all sequences of its instance end `sequence_lost`, run nothing twice, and may start anew."""
    repository = write_sums(
        tmp_path / "models",
        states=False,
        oldest=oldest,
        batch=4,
        block_until_file=tmp_path / "never",
        block_if=666,
        block_limit_ms=20_000,
        execution_timeout_ms=300,
    )
    async with (
        SequenceStage(logs, unique("own"), partitions=1) as stage,
        stage.worker(repository, **FAST) as running,
    ):
        first = await stage.step(Step(1, 1, start=True), Step(2, 1, start=True))
        await stage.until_answered(first)
        ran = len(running.executions)
        hung = await stage.step(Step(1, 666), Step(1, 1))
        await stage.until_answered(hung)
        late = await stage.step(Step(2, 1))
        await stage.until_answered(late)
        for key in (*hung, *late):
            assert stage.answer(key).reason == "sequence_lost"
        assert len(running.executions) == ran + 1
        again = await stage.step(Step(1, 5, start=True), Step(1, 6, end=True))
        await stage.until_answered(again)
        assert stage.values(again) == [5, 11]
        await stage.until_committed_all()
        (tmp_path / "never").touch()
        await until(
            lambda: counted(running, "headrace_abandoned_executions") == 0, "the thread's end"
        )


@pytest.mark.kafka
async def test_B42_a_worker_in_which_nothing_can_execute_ends_with_its_own_status(
    kafka_properties, unique, tmp_path
):
    """One execution may not even hang: the process ends for its supervisor, and the next worker answers."""
    async with Stage(KafkaLogs(kafka_properties), unique("end")) as stage:
        hangs = write_model(tmp_path / "hangs", block_until_file=tmp_path / "never", block_if=5)
        options = ["--execution-timeout-ms", "300", "--max-abandoned-executions", "0"]
        async with worker_process(
            hangs,
            kafka_properties,
            stage.topology.prefix,
            folder=tmp_path / "process",
            options=options,
        ) as worker:
            keys = await stage.send([5], partition=0)
            assert await worker.exited() == EXHAUSTED
            assert "expected at most 0 (max_abandoned_executions)" in worker.tail()
        async with stage.worker(write_model(tmp_path / "mended")):
            await stage.until_answered(keys)
            check_served(stage, keys, [5])
