"""Liveness and rebalances (FAULTS B1, B2, B4, B42, B76, B100 to B102, B104) on a whole worker.

Each scene of section A runs on the real thing and, by the same code, with a planted bug, where the check must raise.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from fault_kit import (
    PATIENCE_S,
    KafkaLogs,
    OneMemoryLog,
    Running,
    Stage,
    both_modes,
    check_answers,
    check_committed,
    until,
    write_model,
)
from headrace.consumers.pool import Pool
from headrace.schemas.batch import Entry
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import ACCEPT, CONTENT_TYPE, JSON, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.cancels import Cancel, cancel_record
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_source import KafkaSource
from headrace.streams.log import Mode, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_source import MemorySource
from onnx import helper
from onnx_models import ELEMENT_TYPES, model
from planted_logs import ReceiptLog
from worker_process import worker_process

# B1: processing time is not coupled to the cadence of polls.

POLL_INTERVAL_MS = 1000
EXECUTION_MS = 3000


class CoupledSource(KafkaSource):
    """Polls again only when all that it handed out is committed."""

    handed: dict
    passed: dict

    async def poll(self, max_records: int, timeout_s: float):
        """Wait for the commits first, as the textbook's loop does."""
        while any(self.passed.get(tp, 0) < end for tp, end in self.handed.items()):
            await self._change(0.01)  # the planted bug: no poll while records are processed
        blocks = await super().poll(1, timeout_s)
        self.handed |= {block.tp: block.records[-1].offset + 1 for block in blocks}
        return blocks

    async def commit(self, positions):
        """Note how far it went."""
        refused = await super().commit(positions)
        self.passed |= {tp: at.offset for tp, at in positions.items() if tp not in refused}
        return refused


class CoupledLog(KafkaLog):
    """Planted bug of B1: "poll, process, commit" in one loop."""

    def source(self, group, topics, on) -> KafkaSource:
        """Make the planted one."""
        source = super().source(group, topics, on)
        source.__class__ = CoupledSource
        source.handed, source.passed = {}, {}
        return source


@dataclass
class Calm:
    """What a scene with two workers saw after they had started."""

    rebalances: int
    executions: int


async def slow_records(stage: Stage, folder: Path, records: int, patience_s: float = 60.0) -> Calm:
    """Let two workers process records that take three times the poll interval each."""
    repository = write_model(folder / "models", execute_delay_ms=EXECUTION_MS)
    async with stage.worker(repository) as first, stage.worker(repository) as second:
        await first.until_ready()
        workers = (first, second)
        before = [worker.rebalances for worker in workers]
        await stage.send(range(records))
        await stage.until_answered(stage.sent, patience_s, must=False)
        after = [worker.rebalances for worker in workers]
        for worker in workers:
            worker.ask_to_stop()
        return Calm(sum(after) - sum(before), sum(len(w.executions) for w in workers))


def check_calm(stage: Stage, seen: Calm) -> None:
    """Nobody was evicted, and each record ran and was answered once."""
    assert seen.rebalances == 0, f"{seen.rebalances} rebalances while records were processed"
    assert seen.executions == len(stage.sent)
    check_answers(stage, stage.sent, once=True)


@pytest.mark.kafka
@both_modes
async def test_B1_records_that_take_longer_than_the_poll_interval_cost_no_rebalance(
    mode, tmp_path, kafka_properties, unique
):
    """``max.poll.interval.ms`` 1 s, 3 s a record, two workers, five records."""
    properties = {**kafka_properties, "max.poll.interval.ms": str(POLL_INTERVAL_MS)}
    async with Stage(KafkaLogs(properties), unique("b1"), mode=mode) as stage:
        check_calm(stage, await slow_records(stage, tmp_path, 5))


@pytest.mark.kafka
async def test_B1_the_check_finds_a_loop_that_processes_between_its_polls(
    tmp_path, kafka_properties, unique
):
    """The planted bug costs the membership during the first record."""
    properties = {**kafka_properties, "max.poll.interval.ms": str(POLL_INTERVAL_MS)}
    async with Stage(KafkaLogs(properties, CoupledLog), unique("b1")) as stage:
        seen = await slow_records(stage, tmp_path, 2, patience_s=4.0)
        with pytest.raises(AssertionError, match="rebalances while records were processed"):
            check_calm(stage, seen)


# B2: the loop stays free while a model computes and while a large value is read.

SESSION_MS = 6000
COMPUTE_S = 7.0
MAX_LAG_S = 1.0
LARGE_BYTES = 20_000_000
SIZE = 2048
CONTROL = """
import sys, threading, time
worst, stop = 0.0, threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.wait(0.5):
    began_s, used_s = time.monotonic(), time.process_time()
    while time.process_time() < used_s + 0.1:
        pass
    worst = max(worst, time.monotonic() - began_s - 0.1)
print(4 * worst)
"""
"""Prints how late work is that takes 0.4 s of a processor, as reading large JSON does, which holds every thread."""


def busy_model(steps: int = 40) -> onnx.ModelProto:
    """Return a model that reads any number of elements and multiplies matrices: ``INPUT0`` FP32 [N,-1]."""
    nodes = [
        helper.make_node("ReduceMean", ["INPUT0"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["m", "ones"], ["p"]),
    ]
    source = "p"
    for i in range(steps):
        nodes.append(helper.make_node("MatMul", [source, "w"], [f"p{i}"]))
        source = f"p{i}"
    nodes.append(helper.make_node("ReduceMax", [source], ["OUTPUT0"], axes=[1], keepdims=1))
    fp32 = ELEMENT_TYPES["FP32"]
    return model(
        nodes,
        [helper.make_tensor_value_info("INPUT0", fp32, ["N", None])],
        [helper.make_tensor_value_info("OUTPUT0", fp32, ["N", 1])],
        {"w": np.eye(SIZE, dtype=np.float32), "ones": np.ones((1, SIZE), np.float32)},
    )


def large_request() -> bytes:
    """Return a V2 request in JSON of 20 MB."""
    count = LARGE_BYTES // 9
    data = json.dumps((np.arange(count) % 1000 / 1000 + 0.00001).round(5).tolist())
    tensor = f'{{"name": "INPUT0", "datatype": "FP32", "shape": [1, {count}], "data": {data}}}'
    return f'{{"inputs": [{tensor}]}}'.encode()


@dataclass
class Beat:
    """How the loop kept time while a scene ran."""

    lags_s: list[float] = field(default_factory=list)
    machine_s: float = 0.0
    rebalances: int = 0


@asynccontextmanager
async def control() -> AsyncIterator[list[float]]:
    """Measure in a process of its own how late this machine is with what it computes just now."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CONTROL,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    worst: list[float] = []
    try:
        yield worst
    finally:
        printed, _ = await process.communicate(b"")
        worst.append(float(printed))


async def busy_scene(
    stage: Stage, repository: Path, seconds: float, large: bytes = b"", **how: object
) -> Beat:
    """Keep a model computing, send a large value of JSON if there is one, and watch the loop's lag."""
    beat = Beat()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(stage.worker(repository, **how))
        measured = await stack.enter_async_context(control())
        before = running.rebalances
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        if large:
            headers = [(CONTENT_TYPE, JSON.encode())]
            await stage.send_raw([Out(stage.requests, 0, None, large, headers)])
        while loop.time() < end + 1 or len(stage.answers) < len(stage.sent):
            if loop.time() < end and len(stage.sent) < len(stage.answers) + 4:
                await stage.send([0.5], size=8)
            await stage.read(0.05)
            lag = running.worker.registry.get_sample_value("headrace_loop_lag_seconds")
            beat.lags_s.append(lag)
        beat.rebalances = running.rebalances - before
    beat.machine_s = measured[0]
    return beat


def check_beat(stage: Stage, beat: Beat) -> None:
    """The session lasted, and the loop was never late by a second that the machine was not late by."""
    assert beat.rebalances == 0, f"{beat.rebalances} rebalances"
    worst = max(beat.lags_s)
    assert worst < MAX_LAG_S + beat.machine_s, f"the loop was {worst:.2f} s late"
    check_answers(stage, stage.sent, once=True)


def busy_repository(root: Path) -> Path:
    """Write a repository with the busy model under the name of the stage's."""
    (root / "echo" / "1").mkdir(parents=True)
    onnx.save(busy_model(), str(root / "echo" / "1" / "model.onnx"))
    (root / "echo" / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 1\n'
        'input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]\n'
        'output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]\n'
    )
    return root


@pytest.mark.kafka
async def test_B2_a_busy_model_and_a_large_value_leave_the_loop_its_heartbeats(
    tmp_path, kafka_properties, unique
):
    """Matrix products for longer than the session, and 20 MB of JSON: no expiry, lag below a second."""
    properties = {
        **kafka_properties,
        "session.timeout.ms": str(SESSION_MS),
        "max.request.size": "32000000",
    }
    prefix = unique("b2")
    async with KafkaLog(properties) as log:
        large = {"max.message.bytes": "32000000"}
        await log.ensure([TopicSpec(f"{prefix}.echo.requests", 2, large)])
    async with Stage(KafkaLogs(properties), prefix) as stage:
        repository, large = busy_repository(tmp_path / "models"), large_request()
        beat = await busy_scene(stage, repository, COMPUTE_S, large)
        check_beat(stage, beat)


class InlinePool(Pool):
    """Planted bug of B2: the model runs in the loop."""

    def submit(self, number, work, done) -> None:
        """Run at once, here."""
        self.free.remove(number)
        place = self._places[number]
        place.waiting.append(done)
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: self._finished(number, work(place.runner.instance), done))


async def test_B2_the_check_finds_a_model_that_runs_in_the_loop(tmp_path):
    """The planted bug blocks the loop for each execution."""
    repository = write_model(tmp_path / "models", dims=-1, execute_delay_ms=4000)
    async with Stage(OneMemoryLog(MemoryLog()), "b2") as stage:
        beat = await busy_scene(stage, repository, 3.0, pool=InlinePool)
        with pytest.raises(AssertionError, match="the loop was"):
            check_beat(stage, beat)


LARGE_ANSWERS = 128
FLOATS = 50_000


async def large_answers(stage: Stage, folder: Path, **settings: object) -> Beat:
    """Let one batch give a hundred answers of a megabyte of JSON each, and watch the loop's lag."""
    repository = write_model(
        folder / "models", batch=LARGE_ANSWERS, delay_us=1_000_000, dims=FLOATS
    )
    beat = Beat()
    async with stage.worker(repository, **settings) as running, control() as measured:
        before = running.rebalances
        values = np.arange(LARGE_ANSWERS) + 1 / 3
        accept = [(ACCEPT, JSON.encode())]
        await stage.send(values.tolist(), partition=0, size=FLOATS, headers=accept)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while len(stage.log.records(stage.topology.results("echo"), 0)) < LARGE_ANSWERS:
                due = loop.time() + 0.02
                await asyncio.sleep(0.02)
                beat.lags_s.append(loop.time() - due)
        assert running.executions == [LARGE_ANSWERS]
        beat.rebalances = running.rebalances - before
    beat.machine_s = measured[0]
    await stage.read_all()
    return beat


async def test_B2_large_answers_leave_the_loop_its_heartbeats(tmp_path):
    """They are encoded in a thread."""
    async with Stage(OneMemoryLog(MemoryLog()), "b2") as stage:
        check_beat(stage, await large_answers(stage, tmp_path))
        found = [stage.answers[key][0].values[0] for key in stage.sent]
        assert found == pytest.approx(np.arange(LARGE_ANSWERS) + 1 / 3)


async def test_B2_the_check_finds_large_answers_that_are_encoded_in_the_loop(tmp_path):
    """Without the bound the loop is blocked for as long as it takes."""
    async with Stage(OneMemoryLog(MemoryLog()), "b2") as stage:
        beat = await large_answers(stage, tmp_path, max_inline_bytes=2**40)
        with pytest.raises(AssertionError, match="the loop was"):
            check_beat(stage, beat)


# B4: a member joins while another one is inside a batch.


async def join_inside_a_batch(stage: Stage, folder: Path, grace_s: float = 0.3) -> None:
    """Let a second worker join while the first executes, for longer than the grace of a revocation."""
    gate = folder / "gate"
    repository = write_model(
        folder / "models", batch=4, delay_us=0, block_until_file=gate, block_limit_ms=60_000
    )
    is_planted = isinstance(stage.log, ReceiptLog)
    async with stage.worker(repository, revoke_grace_s=grace_s) as first:
        await stage.send(range(12))
        await until(lambda: first.executions and first.in_flight() == 12, "a batch at work")
        async with stage.worker(repository, revoke_grace_s=grace_s) as second:
            await until(lambda: len(first.partitions()) == len(second.partitions()) == 1, "shares")
            # What executes for a partition that is gone must not keep the worker from being ready for the others.
            await first.until_ready()
            check_committed(stage, await stage.committed())
            gate.touch()
            await stage.until_answered(stage.sent)
            await stage.until_committed(stage.is_all_committed, must=not is_planted)


@pytest.fixture
def graceless(logs_in_modes):
    """Logs whose revocations wait a moment only, with a mode."""
    logs, mode = logs_in_modes
    if logs.kind == "memory":
        return OneMemoryLog(MemoryLog(revoke_grace_s=0.3)), mode
    return logs, mode


async def test_B4_a_member_joins_while_another_is_inside_a_batch(tmp_path, graceless, unique):
    """The first one neither crashes nor commits what it lost; every request has an answer, all are equal."""
    logs, mode = graceless
    async with Stage(logs, unique("b4"), mode=mode) as stage:
        await join_inside_a_batch(stage, tmp_path)
        check_answers(stage, stage.sent, once=mode is Mode.EXACTLY_ONCE)
        check_committed(stage, await stage.committed())


async def test_B4_the_check_finds_a_commit_of_the_fetch_position(tmp_path):
    """The planted bug commits what the first one had fetched: it is lost for both."""
    async with Stage(OneMemoryLog(ReceiptLog(revoke_grace_s=0.3)), "b4") as stage:
        with pytest.raises(AssertionError, match="is committed and has no answer"):
            await join_inside_a_batch(stage, tmp_path)


@both_modes
async def test_B68_a_drain_admits_nothing_more(mode, tmp_path):
    """What was admitted is finished; the backlog behind it is left to the next worker, however fast answers go."""
    repository = write_model(tmp_path / "models", execute_delay_ms=2)
    async with Stage(OneMemoryLog(MemoryLog()), "b68", mode=mode) as stage:
        async with stage.worker(repository, max_queued_records=64, max_poll_records=8) as running:
            await stage.send(range(2000))
            await stage.until(lambda: len(stage.answers) > 20, "the first answers")
            began = len(running.executions)
            running.ask_to_stop()
            await until(running.task.done, "its end", 10)
            assert len(running.executions) - began <= 64 + 8
        check_committed(stage, await _settled(stage))
        check_answers(stage, list(stage.answers), once=True)


async def _settled(stage: Stage):
    committed = await stage.committed()
    await stage.read()
    return committed


class OrderedSource(MemorySource):
    """Hands out its partitions in order."""

    async def poll(self, max_records: int, timeout_s: float):
        """Sort."""
        return sorted(await super().poll(max_records, timeout_s), key=lambda block: block.tp)


class GateLog(MemoryLog):
    """Looks a client's topic up only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    def source(self, group, topics, on) -> MemorySource:
        """Make one that keeps the order."""
        return OrderedSource(self, self._group(group), topics, on)

    async def partitions(self, topic: str) -> int | None:
        """Wait for the gate where the topic is a client's."""
        if topic.endswith("elsewhere"):
            self.asked.set()
            await self.gate.wait()
        return await super().partitions(topic)


async def test_B6_records_that_were_polled_before_a_seek_back_are_not_admitted_after_it(tmp_path):
    """Else the gap before them would look like a hole in the log, and count as finished."""
    log, gate = GateLog(), tmp_path / "gate"
    repository = write_model(tmp_path / "models", block_until_file=gate, instances=4)
    async with Stage(OneMemoryLog(log), "b6") as stage:
        await log.ensure([TopicSpec("b6.elsewhere", 1)])
        async with stage.worker(repository) as running:
            worker = running.worker.models["echo"]
            early = await stage.send([1, 2], partition=1)
            await until(lambda: len(running.executions) == 2, "the first executions")
            # One poll brings both partitions; admitting the first waits for the look-up of its reply topic.
            both = set(worker.partitions)
            worker.source.pause(both)
            reply = [("reply-topic", b"b6.elsewhere"), ("correlation-id", b"c")]
            await stage.send([3], partition=0, headers=reply)
            late = await stage.send([4, 5], partition=1)
            worker.source.resume(both)
            await until(log.asked.is_set, "the look-up")
            behind = max(both)
            part = worker.partitions[behind]
            worker.assignment.again(part)
            await until(
                lambda: behind in worker.partitions and worker.partitions[behind].active,
                "the takeover",
            )
            assert worker.partitions[behind] is not part
            log.gate.set()
            gate.touch()
            await stage.until_answered([*early, *late], 5.0)
            await until(lambda: running.in_flight() == 0, "the settle")


# B76, B100 to B102, B104.


async def test_B76_two_workers_of_a_group_share_the_work(tmp_path, logs, unique):
    """A hundred records are a hundred executions in total, by both of them."""
    repository = write_model(tmp_path / "models")
    async with (
        Stage(logs, unique("b76"), partitions=4) as stage,
        stage.worker(repository) as first,
        stage.worker(repository) as second,
    ):
        await until(lambda: len(first.partitions()) == len(second.partitions()) == 2, "shares")
        await stage.send(range(100))
        await stage.until_answered(stage.sent)
        check_answers(stage, stage.sent, once=True)
        assert [len(first.executions), len(second.executions)] == [50, 50]


@pytest.mark.kafka
async def test_B100_a_flood_is_answered_in_bounded_memory(tmp_path, kafka_properties, unique):
    """50,000 records of 2 kB in front of a worker that may hold 1,000 of them: all answered, memory flat."""
    records, floats = 50_000, 512
    repository = write_model(
        tmp_path / "models", batch=64, delay_us=0, dims=floats, execute_delay_ms=8
    )
    prefix = unique("b100")
    async with Stage(KafkaLogs(kafka_properties), prefix) as stage:
        await stage.send([0.0], size=floats)
        async with worker_process(
            repository,
            kafka_properties,
            prefix,
            folder=tmp_path / "worker",
            options=("--max-queued-records", "1000"),
        ) as worker:
            await stage.until_answered(stage.sent)
            before = worker.resident_bytes()
            for _ in range(10):
                await stage.send(np.arange(records // 10).tolist(), size=floats)
            await stage.until_answered(stage.sent, 100.0)
            grown = worker.resident_bytes("VmHWM") - before
        check_answers(stage, stage.sent, once=True)
        assert grown < 64 * 2**20, f"the worker grew by {grown / 2**20:.0f} MiB"


def mixed_records(stage: Stage, count: int) -> list[Out]:
    """Make records of which eight in ten fail, in eight ways."""
    good = Tensor.from_numpy("INPUT0", np.ones((1, 1), np.float32))
    raw, headers = encode_request(InferRequest((good,), id="good"))
    wide, _ = encode_request(
        InferRequest((Tensor.from_numpy("INPUT0", np.ones((1, 2), np.float32)),))
    )
    bad = {
        which: encode_request(
            InferRequest((Tensor.from_numpy("INPUT0", np.full((1, 1), which, np.float32)),))
        )[0]
        for which in (FAILING, REFUSED)
    }
    results = stage.topology.results(stage.model).encode()
    outs = []
    for number in range(count):
        value, more = raw, []
        match number % 10:
            case 0:
                value = bad[FAILING]
            case 1:
                value = bad[REFUSED]
            case 2:
                value = b"\xff" * 10
            case 3:
                value = wide
            case 4:
                more = [("model-version", b"9")]
            case 5:
                more = [("deadline-ms", b"1")]
            case 6:
                more = [("reply-topic", results), ("correlation-id", b"c%d" % number)]
            case 7:
                more = [("reply-topic", b"elsewhere")]
        outs.append(Out(stage.requests, number % 2, None, value, [*headers, *more]))
    return outs


FAILING, REFUSED = -1.0, -2.0


@both_modes
async def test_B101_twenty_thousand_requests_of_all_fates_leave_nothing_behind(mode, tmp_path):
    """A tenth each raises in its batch, is refused by the model, cannot be decoded, has a wrong shape, names an
    unknown version, is too late, is cancelled, names a bad reply topic; a fifth succeeds."""
    count = 20_000
    repository = write_model(
        tmp_path / "models",
        batch=16,
        delay_us=100,
        instances=2,
        fail_if=f"INPUT0={FAILING:g}",
        error_if=f"INPUT0={REFUSED:g}",
    )
    log = MemoryLog()
    async with (
        Stage(OneMemoryLog(log), "b101", mode=mode) as stage,
        stage.worker(repository) as running,
    ):
        model = running.worker.models["echo"]
        outs = mixed_records(stage, count)
        cancels = [
            cancel_record(stage.topology.cancels, 0, Cancel("echo", b"c%d" % number))
            for number in range(6, count, 10)
        ]
        log.append(cancels)
        await until(lambda: len(model._intake._cancelled) == len(cancels), "the cancels")
        await stage.send_raw(outs)
        del outs
        await stage.until_committed(stage.is_all_committed)
        await stage.until_answered(stage.sent)
        fates = Counter(stage.answers[key][0].reason for key in stage.sent)
        assert fates == {
            "": count // 5,
            "backend_failed": count // 5,
            "undecodable": count // 10,
            "invalid_request": count // 10,
            "unknown_version": count // 10,
            "deadline_passed": count // 10,
            "cancelled": count // 10,
            "reply_topic_refused": count // 10,
        }
        await until(lambda: running.in_flight() == 0, "the last settle")
        check_nothing_left(running)


def check_nothing_left(running: Running) -> None:
    """Every count and table of a worker is back at zero, and no request is kept alive by anything."""
    (model,) = running.worker.models.values()
    for part in model.partitions.values():
        left = (part.in_flight, part.in_flight_bytes, part.settling, part.settling_bytes)
        assert left == (0, 0, 0, 0), part
        assert not part.held, part
        assert not part.answered, part
        assert part.ledger.low == part.ledger.next_offset, part.ledger
        assert part.ledger.position().metadata == "", part.ledger
    for version in model.answering.versions.values():
        queue = version.scheduler.batcher
        assert version.scheduler.idle
        assert version.pool.busy == 0
        assert (len(queue), len(queue._by_id), len(queue._timers)) == (0, 0, 0)
        assert queue.wake_at() is None
        assert not queue._heap
    assert not model._settler._dirty
    for delivery in model.source._deliveries:
        assert not any(delivery._outs.values())
        assert not any(delivery._late.values())
        if model.mode is Mode.EXACTLY_ONCE:
            assert not any(delivery._replies.values())
            assert not delivery._running
        else:
            assert not len(delivery._committer)
    gc.collect()
    topics = {
        tp.topic for tp in model.partitions
    }  # other tests in this process may have left theirs
    entries = [found for found in gc.get_objects() if type(found) is Entry]
    alive = [entry for entry in entries if hasattr(entry, "tp") and entry.tp.topic in topics]
    assert len(alive) <= 64, f"{len(alive)} requests are kept alive, one is {alive[0].record}"


@both_modes
async def test_B102_a_topic_full_of_expired_requests_is_answered_at_reading_speed(mode, tmp_path):
    """5,000 requests that take 50 ms each, all too late: no execution, and the next good one is served at once."""
    repository = write_model(tmp_path / "models", execute_delay_ms=50)
    async with Stage(OneMemoryLog(MemoryLog()), "b102", mode=mode) as stage:
        late = await stage.send(range(5000), headers=[("deadline-ms", b"1000")])
        good = await stage.send([1])
        async with stage.worker(repository) as running:
            await stage.until_answered([*late, *good], 30.0)
            assert running.executions == [1]
        for key in late:
            (answer,) = stage.answers[key]
            assert (answer.status, answer.reason) == ("UNAVAILABLE", "deadline_passed")
        assert stage.is_all_committed(await stage.committed())


async def test_B104_a_deleted_request_topic_is_created_again_and_served(tmp_path, logs, unique):
    """Its offsets begin at 0 again, and what has such an offset is a new record."""
    repository = write_model(tmp_path / "models")
    async with (
        Stage(logs, unique("b104")) as stage,
        stage.worker(repository, topic_check_interval_s=0.2) as running,
    ):
        before = await stage.send(range(10))
        await stage.until_answered(before)
        await stage.until_committed(stage.is_all_committed)
        await delete(stage, stage.requests)
        stage.started_anew()
        await stage.until_topic(stage.requests)
        after = await stage.send(range(100, 104))
        await stage.until(
            lambda: all(len(stage.answers[key]) > 1 for key in after), "the new answers", 40.0
        )
        for value, key in zip(range(100, 104), after, strict=True):
            assert stage.answers[key][-1].values == (float(value),)
        await running.until_ready()


async def test_B104_a_topic_that_cannot_be_created_again_takes_readiness_with_its_name(tmp_path):
    """An operator reads which."""
    log = MemoryLog()
    repository = write_model(tmp_path / "models")
    async with (
        Stage(OneMemoryLog(log), "b104") as stage,
        stage.worker(repository, topic_check_interval_s=0.05) as running,
    ):
        log.refuse_creation()
        log.delete(stage.requests)
        await until(lambda: not running.worker.ready(), "the fall of readiness")
        assert any(stage.requests in trouble for trouble in running.worker.troubles())
        log.refuse_creation("")
        stage.started_anew()
        await running.until_ready()
        await stage.send([5.0], partition=0)
        await stage.until_answered([(0, 0)])


async def delete(stage: Stage, topic: str) -> None:
    """Delete a topic behind the worker's back."""
    if isinstance(stage.log, MemoryLog):
        stage.log.delete(topic)
    else:
        assert isinstance(stage.log, KafkaLog)
        await stage.log.delete([topic])
