"""What broke for people who batch requests, over the whole service: each a scenario, a check, and a planted bug.

A scenario puts requests on the topic before the worker starts, so that one poll reads them all and batches form as
they must; the check looks at answers and executions only. The same two run once more with a faulty part planted
(FAULTS §E), and then the check has to fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from headrace.consumers.default import DefaultBatcher
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.execution import Execution, Part
from headrace.consumers.pool import Pool
from headrace.consumers.queues import EntryQueue
from headrace.consumers.service import Worker
from headrace.schemas import v2json
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.schemas.errors import BackendError, InferError, Reason
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.record import (
    AVRO,
    BINARY,
    CONTENT_TYPES,
    JSON,
    PROTOBUF,
    Out,
    Record,
)
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.tensor import Datatype, Tensor, join_bytes, split_bytes
from headrace.streams.counts import Failure
from headrace.streams.gateway import GatewaySettings
from headrace.streams.log import Log
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from onnx_models import detector, write_repository
from service_kit import (
    WAIT_S,
    Gate,
    Producer,
    ScriptedBackend,
    Service,
    Tap,
    loaded,
    serving,
    until,
    working,
    write_models,
)

PLANTED_WAIT_S = 1.5
"""How long a run with a planted bug may wait for answers that never come."""


@dataclass(frozen=True)
class Ask:
    """A request with the formats that it comes in and wants back."""

    request: InferRequest
    content_type: str = AVRO
    accept: str = ""


@dataclass
class Run:
    """What came of a scenario.

    Attributes:
        answers: Of each request, in the order of the requests.
        backend: The runner, with what it executed.
        is_ready: The worker's readiness at the end.
        seconds: From the worker's readiness to the last answer.
    """

    answers: list[list[Record]]
    backend: ScriptedBackend
    is_ready: bool
    seconds: float

    def result(self, number: int) -> InferResponse | InferError:
        """Return the one answer to a request."""
        found = self.answers[number]
        assert len(found) == 1, f"request {number} has {len(found)} answers"
        try:
            return decode_response(found[0].value, found[0].headers)
        except InferError as error:
            return error

    def values(self, number: int, output: str = "OUTPUT0") -> list[object]:
        """Return an output's values of a request that must have succeeded."""
        result = self.result(number)
        assert isinstance(result, InferResponse), f"request {number}: {result!r}"
        (tensor,) = [tensor for tensor in result.outputs if tensor.name == output]
        found: list[object] = tensor.numpy().tolist()
        return found

    def error(self, number: int) -> InferError:
        """Return the error of a request that must have failed."""
        result = self.result(number)
        assert isinstance(result, InferError), f"request {number} succeeded: {result!r}"
        return result


def config(
    *, inputs: Mapping[str, tuple[str, str]] | None = None, max_batch: int = 8, batching: str = ""
) -> str:
    """Return the configuration of a model of the scripted backend."""
    given = inputs or {"INPUT0": ("TYPE_FP32", "2")}
    sides = []
    for side, old, new in (("input", "", ""), ("output", "INPUT", "OUTPUT")):
        items = ", ".join(
            f'{{ name: "{name.replace(old, new) if old else name}" data_type: {kind} dims: [{dims}] }}'
            for name, (kind, dims) in given.items()
        )
        sides.append(f"{side} [{items}]")
    lines = ['backend: "scripted"', f"max_batch_size: {max_batch}", *sides]
    return "\n".join([*lines, f"dynamic_batching {{ {batching} }}"])


def fp32(*rows: Sequence[float], name: str = "INPUT0") -> Tensor:
    """Return rows of FP32."""
    return Tensor.from_numpy(name, np.array(rows, np.float32))


def asks(*values: float, **how: str) -> list[Ask]:
    """Return a request of one row for each value; its id is its place."""
    return [
        Ask(InferRequest((fp32((value, -value)),), id=f"r{number}"), **how)
        for number, value in enumerate(values)
    ]


async def play(
    root: Path,
    text: str,
    requests: Sequence[Ask],
    backend: ScriptedBackend | None = None,
    *,
    log: Log | None = None,
    properties: Mapping[str, str] | None = None,
    plant: Callable[[Worker], None] = lambda _: None,
    pool: type[Pool] = Pool,
    late: Sequence[Ask] = (),
    wait: bool = True,
    wait_s: float = WAIT_S,
) -> Run:
    """Run a scenario.

    Args:
        root: An empty folder.
        text: The model's configuration.
        requests: Are there before the worker is.
        backend: The runner.
        log: In memory unless given.
        properties: Of the log's brokers.
        plant: Puts a faulty part into the worker.
        pool: Makes the instances' threads.
        late: Are sent when all others have their answer; theirs come behind in `Run.answers`.
        wait: Wait until the worker is ready.
        wait_s: How long answers may take.
    """
    if log is None:
        async with MemoryLog() as memory:
            return await play(
                root,
                text,
                requests,
                backend,
                log=memory,
                plant=plant,
                pool=pool,
                late=late,
                wait=wait,
                wait_s=wait_s,
            )
    backend = backend or ScriptedBackend()
    topology = Topology(prefix=f"f{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    await log.ensure([*topology.shared_specs(), *topology.model_specs("m")])
    producer = Producer(log, properties or {})
    folder = root / uuid.uuid4().hex
    sources = await producer.send([_out(topology, ask) for ask in requests])
    async with (
        loaded(write_models(folder, {"m": text}), backend) as repository,
        working(
            log,
            repository,
            topology,
            plant=plant,
            pool=pool,
            wait=wait,
            exit_timeout_s=min(10, wait_s),
        ) as service,
        Tap(log, topology.results("m")) as tap,
    ):
        loop = asyncio.get_running_loop()
        started = loop.time()
        await tap.answered(sources, wait_s)
        seconds = loop.time() - started
        if late:
            sources += await producer.send([_out(topology, ask) for ask in late])
            await tap.answered(sources, wait_s)
        ready = service.worker.ready()
        if ready:
            await until(lambda: service.settled("m"), "everything is settled", wait_s)
    found = tap.by_source()
    return Run([found[source] for source in sources], backend, ready, seconds)


def _out(topology: Topology, ask: Ask) -> Out:
    value, headers = encode_request(
        ask.request, ask.content_type, RequestOptions(accept=ask.accept)
    )
    return Out(topology.requests("m"), 0, b"k", value, list(headers))


def version_of(worker: Worker):
    """Return the version at work of the one model."""
    return worker.models["m"].answering.versions[1]


async def must_find(check: Callable[[Run], None], run: Callable[..., object], **planted) -> None:
    """Assert that a check, or the wait for answers, fails on a run with a planted bug."""
    with pytest.raises(AssertionError):
        check(await run(wait_s=PLANTED_WAIT_S, **planted))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder for repositories."""
    return tmp_path


# B36: output rows.


def one_row(batch: Batch) -> Mapping[str, np.ndarray] | None:
    """Answer a batch with its first row only, as a model exported without a batch axis does."""
    return {"OUTPUT0": batch.inputs()["INPUT0"][:1]}


def scalar(_batch: Batch) -> Mapping[str, np.ndarray]:
    """Answer whatever came with one number."""
    return {"OUTPUT0": np.array(7, np.float32)}


def doubled(batch: Batch) -> Mapping[str, np.ndarray]:
    """Answer each row twice."""
    return {"OUTPUT0": np.repeat(batch.inputs()["INPUT0"], 2, axis=0)}


async def too_few_rows(root: Path, **how) -> Run:
    """Three requests in one batch, to a runner that returns one row."""
    text = config(batching="preferred_batch_size: [3] max_queue_delay_microseconds: 100000")
    return await play(root, text, asks(1, 2, 3), ScriptedBackend(one_row), **how)


def check_own_rows(run: Run) -> None:
    """Each request has its own row, though the batch as a whole failed."""
    assert run.backend.executions[0] == ["r0", "r1", "r2"], "they did not share a batch"
    for number, value in enumerate((1.0, 2.0, 3.0)):
        assert run.values(number) == [[value, -value]]


async def test_B36_too_few_output_rows_run_singly(root: Path) -> None:
    run = await too_few_rows(root)
    check_own_rows(run)
    assert len(run.backend.executions) == 4  # the batch, then each of the three


@pytest.mark.parametrize("script", [scalar, doubled])
async def test_B36_an_output_that_never_fits_is_an_error_for_each(root: Path, script) -> None:
    """Never an empty success."""
    text = config(batching="preferred_batch_size: [3] max_queue_delay_microseconds: 100000")
    run = await play(root, text, asks(1, 2, 3), ScriptedBackend(script))
    for number in range(3):
        error = run.error(number)
        assert error.reason is Reason.WRONG_OUTPUT
        assert "'OUTPUT0'" in error.detail
        assert "1 rows" in error.detail
    assert run.is_ready


class Generous(ResponseEncoder):
    """B36's planted bug: the first request gets all rows, the others an empty success."""

    def encode(self, batch: Batch, responses: Responses, **how):
        """Cut nothing."""
        answers = []
        array = next(iter(responses.outputs.values()))
        for number, entry in enumerate(batch.entries):
            part = array if number == 0 else array[:0]
            single = InferResponse((Tensor.from_numpy("OUTPUT0", part),), entry.id, "m", "1")
            encoded = encode_response(single, AVRO)
            answers.append((entry, encoded.value, self._headers.ok(entry, AVRO)))
        return answers


def unchecked(instance, batch: Batch, *, now_ns, **_: object) -> Execution:
    """B36's other planted bug: whatever the runner emits is taken for its answer."""
    started = now_ns()
    emitted: list[Responses] = []
    instance.execute(batch, emitted.append)
    return Execution([Part(batch, emitted, None)], 1, started, started, now_ns())


def plant_unchecked(worker: Worker) -> None:
    """Plant an execution without the check of rows."""
    scheduler = version_of(worker).scheduler
    scheduler._run = partial(unchecked, **scheduler._run.keywords)


def plant_generous(worker: Worker) -> None:
    """Plant both: no check, and an encoder that gives everything to the first."""
    plant_unchecked(worker)
    version = version_of(worker)
    version.encoder = Generous(version.scheduler.batcher._signature)


@pytest.mark.parametrize("plant", [plant_unchecked, plant_generous])
async def test_B36_planted_bugs_are_found(root: Path, plant) -> None:
    await must_find(check_own_rows, partial(too_few_rows, root), plant=plant)


# B37: requested outputs.


TWO = {"INPUT0": ("TYPE_FP32", "1"), "INPUT1": ("TYPE_FP32", "1")}


async def different_outputs(root: Path, content_type: str = AVRO, **how) -> Run:
    """A asks for OUTPUT0, B for OUTPUT1, C for nothing by name, in one batch."""
    text = config(
        inputs=TWO, batching="preferred_batch_size: [3] max_queue_delay_microseconds: 100000"
    )
    requests = [
        Ask(
            InferRequest(
                (fp32((number,)), fp32((-number,), name="INPUT1")),
                tuple(map(RequestedOutput, wanted)),
                id=f"r{number}",
            ),
            content_type,
        )
        for number, wanted in enumerate((("OUTPUT0",), ("OUTPUT1",), ()), start=1)
    ]
    return await play(root, text, requests, **how)


def check_own_outputs(run: Run) -> None:
    """Each has what it asked for and nothing else."""
    assert run.backend.executions == [["r1", "r2", "r3"]], "they did not share a batch"
    check_answers_of_own_outputs(run)


def check_answers_of_own_outputs(run: Run) -> None:
    """Each has what it asked for and nothing else."""
    found = []
    for number in range(3):
        result = run.result(number)
        assert isinstance(result, InferResponse)
        found.append({tensor.name: tensor.numpy().tolist() for tensor in result.outputs})
    assert found == [
        {"OUTPUT0": [[1.0]]},
        {"OUTPUT1": [[-2.0]]},
        {"OUTPUT0": [[3.0]], "OUTPUT1": [[-3.0]]},
    ]


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY])
async def test_B37_each_request_of_a_batch_gets_the_outputs_that_it_asked_for(
    root: Path, content_type: str
) -> None:
    check_own_outputs(await different_outputs(root, content_type))


async def test_B37_the_outputs_that_were_asked_for_hold_when_a_batch_is_run_again(
    root: Path,
) -> None:
    """Memory is short for three, so that the first runs apart from the others."""

    def script(batch: Batch) -> None:
        if len(batch) == 3:
            raise MemoryError("short")

    backend = ScriptedBackend(script)
    run = await different_outputs(root, backend=backend)
    assert backend.executions == [["r1", "r2", "r3"], ["r1"], ["r2"], ["r3"]]
    check_answers_of_own_outputs(run)


class Deaf(ResponseEncoder):
    """B37's planted bug: once batched, what was asked for is forgotten."""

    def encode(self, batch: Batch, responses: Responses, **how):
        """Encode all outputs for everybody."""
        for entry in batch.entries:
            entry.outputs = ()
        return super().encode(batch, responses, **how)


async def test_B37_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        version = version_of(worker)
        version.encoder = Deaf(version.scheduler.batcher._signature)

    await must_find(check_own_outputs, partial(different_outputs, root), plant=plant)


# B38: a shape that the data does not fit.


async def false_shape(root: Path, **how) -> Run:
    """BYTES that claim 59 elements and have one, between two good requests."""
    text = config(
        inputs={"INPUT0": ("TYPE_STRING", "-1")},
        batching="preferred_batch_size: [2, 3] max_queue_delay_microseconds: 100000",
    )
    raw = join_bytes([b"one"])
    requests = [
        Ask(InferRequest((Tensor("INPUT0", Datatype.BYTES, shape, raw),), id=f"r{number}"))
        for number, shape in enumerate(((1, 1), (1, 59), (1, 1)))
    ]
    return await play(root, text, requests, **how)


def check_false_shape(run: Run) -> None:
    """It is refused before it reaches a batch, and its neighbours share theirs."""
    error = run.error(1)
    assert (error.code, error.reason) == ("INVALID_ARG", "invalid_request")
    assert "expecting 59" in error.detail
    assert run.values(0) == run.values(2) == [[b"one"]]
    assert run.backend.executions == [["r0", "r2"]]


async def test_B38_a_shape_that_does_not_fit_its_data_is_refused_alone(root: Path) -> None:
    check_false_shape(await false_shape(root))


class Trusting(RequestDecoder):
    """B38's planted bug: a declared shape is believed."""

    def _decode(self, entry, value):
        """Admit without looking at the data."""
        request = decode_request(value, entry.content_type, entry.record.headers)
        (tensor,) = request.inputs
        entry.rows, entry.data, entry.shapes = tensor.shape[0], (tensor.data,), (tensor.shape[1:],)
        return self._find("")


async def test_B38_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        signature = version_of(worker).scheduler.batcher._signature
        worker.models["m"]._decoder = Trusting({1: signature}, model_name="m")

    await must_find(check_false_shape, partial(false_shape, root), plant=plant)


# B40: one record per timer tick.


async def preloaded(root: Path, **how) -> Run:
    """A hundred records wait; batches of up to 32 rows may be held back for a second."""
    text = config(max_batch=32, batching="max_queue_delay_microseconds: 1000000")
    return await play(root, text, asks(*range(100)), **how)


def check_few_executions(run: Run) -> None:
    """At most five executions, in far less than a hundred ticks of the timer."""
    assert len(run.backend.rows) <= 5, run.backend.rows
    assert sum(run.backend.rows) == 100
    assert run.seconds < 10
    for number in range(100):
        assert run.values(number) == [[float(number), float(-number)]]


async def test_B40_waiting_records_are_read_and_run_together(root: Path, logs) -> None:
    """On each log: 32 + 32 + 32 and the rest after the delay."""
    async with logs.open() as log:
        check_few_executions(await preloaded(root, log=log, properties=logs.properties))


async def test_B40_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        scheduler = version_of(worker).scheduler
        scheduler.batcher = DefaultBatcher(scheduler.batcher._signature)

    await must_find(check_few_executions, partial(preloaded, root), plant=plant)


# B41: one failure while an answer is encoded.


async def one_of_eight_fails(root: Path, **how) -> Run:
    """Eight requests in a batch; the runner's text for the third cannot be written as UTF-8."""

    def broken(batch: Batch) -> Mapping[str, np.ndarray]:
        items = batch.inputs()["INPUT0"].copy()
        items[items == b"bad"] = "half a pair: \ud800"
        return {"OUTPUT0": items}

    text = config(
        inputs={"INPUT0": ("TYPE_STRING", "1")},
        batching="preferred_batch_size: [8] max_queue_delay_microseconds: 100000",
    )
    return await play(root, text, texts(*EIGHT), ScriptedBackend(broken), late=texts(b"x"), **how)


EIGHT = (b"0", b"1", b"bad", b"3", b"4", b"5", b"6", b"7")


def texts(*items: bytes) -> list[Ask]:
    """Return a request for each text."""
    return [
        Ask(
            InferRequest(
                (Tensor("INPUT0", Datatype.BYTES, (1, 1), join_bytes([item])),),
                id=item.decode(),
            )
        )
        for item in items
    ]


def check_seven_of_eight(run: Run) -> None:
    """Seven results and one error; the next request succeeds; the worker is well."""
    assert run.backend.executions[0] == [item.decode() for item in EIGHT]
    for number, item in enumerate((*EIGHT, b"x")):
        if item == b"bad":
            error = run.error(number)
            assert (error.code, error.reason) == ("INTERNAL", "wrong_output")
            assert "'m'" in error.detail
        else:
            assert run.values(number) == [[item]]
    assert run.is_ready


async def test_B41_B42_one_answer_that_cannot_be_encoded_fails_alone(root: Path) -> None:
    check_seven_of_eight(await one_of_eight_fails(root))


async def test_B41_a_format_that_cannot_hold_an_answer_fails_alone(root: Path) -> None:
    """FP16 is wanted in JSON by the third of eight (SEMANTICS PB-45)."""
    text = config(
        inputs={"INPUT0": ("TYPE_FP16", "1")},
        batching="preferred_batch_size: [8] max_queue_delay_microseconds: 100000",
    )
    requests = [
        Ask(
            InferRequest(
                (Tensor.from_numpy("INPUT0", np.array([[number]], np.float16)),),
                id=f"r{number}",
            ),
            accept=JSON if number == 2 else "",
        )
        for number in range(8)
    ]
    run = await play(root, text, requests)
    assert len(run.backend.executions) == 1
    for number in range(8):
        if number == 2:
            assert "FP16" in run.error(2).detail
            assert run.error(2).code == "INVALID_ARG"
        else:
            assert run.values(number) == [[float(number)]]


class AllOrNothing(ResponseEncoder):
    """B41's planted bug: what goes wrong for one goes wrong for all."""

    def encode(self, batch: Batch, responses: Responses, **how):
        """Fail everybody on any failure."""
        try:
            return super().encode(batch, responses, **how)
        except Exception as exc:  # noqa: BLE001  # that is the bug
            error = BackendError(f"{exc}")
            return [(entry, *encode_error(entry, error, "m", "1")) for entry in batch.entries]


async def test_B41_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        version = version_of(worker)
        version.encoder = AllOrNothing(version.scheduler.batcher._signature)

    await must_find(check_seven_of_eight, partial(one_of_eight_fails, root), plant=plant)


# B42: a dead part must show.


async def a_thread_dies(root: Path, **how) -> Run:
    """The runner ends its own thread on the first request, and there is no other one."""

    def leave(batch: Batch) -> None:
        raise SystemExit(3)

    backend = ScriptedBackend(leave, repeatable=False)
    backend.makes = 1
    # Ready before: the fleet knows of it, so that nothing but the death keeps it from being ready.
    return await play(root, config(), (), backend, late=asks(1), **how)


def check_death_shows(run: Run) -> None:
    """The request has its error, and nobody takes the worker for ready."""
    assert run.error(0).reason is Reason.INSTANCE_DIED
    assert not run.is_ready


async def test_B42_an_instance_whose_thread_died_is_not_ready(root: Path) -> None:
    check_death_shows(await a_thread_dies(root))


class Optimist(Pool):
    """B42's planted bug: health is what it was at the start."""

    def healthy(self) -> bool:
        """Say yes."""
        return True


class Silent(Pool):
    """Another: the thread's death is nobody's business."""

    def _finished(self, number, outcome, done) -> None:
        if not isinstance(outcome, BaseException):
            super()._finished(number, outcome, done)


@pytest.mark.parametrize("pool", [Optimist, Silent])
async def test_B42_planted_bugs_are_found(root: Path, pool: type[Pool]) -> None:
    await must_find(check_death_shows, partial(a_thread_dies, root), pool=pool)


# B44: rows, not requests.


async def rows_of_three(root: Path, **how) -> Run:
    """Requests of 1, 31, 5 and 40 rows for at most 32."""
    text = config(max_batch=32, batching="max_queue_delay_microseconds: 100000")
    requests = [
        Ask(InferRequest((fp32(*[(number, row) for row in range(rows)]),), id=f"r{number}"))
        for number, rows in enumerate((1, 31, 5, 40))
    ]
    return await play(root, text, requests, **how)


def check_rows(run: Run) -> None:
    """32 rows, then 5; what is above the limit is refused, and never run."""
    assert run.backend.rows == [32, 5], run.backend.rows
    for number, rows in enumerate((1, 31, 5)):
        assert run.values(number) == [[float(number), float(row)] for row in range(rows)]
    error = run.error(3)
    assert (error.code, error.reason) == ("INVALID_ARG", "invalid_request")
    assert "<= 32" in error.detail
    assert "got 40" in error.detail


async def test_B44_the_batch_limit_counts_rows(root: Path) -> None:
    check_rows(await rows_of_three(root))


class CountingRequests(EntryQueue):
    """B44's planted bug: so many requests, whatever their rows."""

    def __init__(self, signature) -> None:
        super().__init__()
        self._signature = signature

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Take up to 32 requests."""
        count = min(len(self), self._signature.max_batch_size)
        return Batch(self._signature, self.pop(count)) if count else None


async def test_B44_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        scheduler = version_of(worker).scheduler
        scheduler.batcher = CountingRequests(scheduler.batcher._signature)

    await must_find(check_rows, partial(rows_of_three, root), plant=plant)


# B45: shapes that cannot share a batch.


async def two_shapes(root: Path, **how) -> Run:
    """Requests of [1,16] and [1,20] take turns; the delay is what sends the last ones."""
    text = config(
        inputs={"INPUT0": ("TYPE_FP32", "-1")}, batching="max_queue_delay_microseconds: 200000"
    )
    requests = [
        Ask(InferRequest((fp32([number] * size),), id=f"{size}/{number}"))
        for number, size in enumerate((16, 20) * 4)
    ]
    return await play(root, text, requests, **how)


def check_shapes(run: Run) -> None:
    """Both shapes are answered by the delay, and no execution mixes them."""
    for number, size in enumerate((16, 20) * 4):
        assert run.values(number) == [[float(number)] * size]
    for ids in run.backend.executions:
        assert len({name.partition("/")[0] for name in ids}) == 1, ids
    assert sum(map(len, run.backend.executions)) == 8


async def test_B45_neither_shape_starves(root: Path) -> None:
    check_shapes(await two_shapes(root))


class OneShape(DynamicBatcher):
    """B45's planted bug: the bucket of the first shape is served, the other waits for its like."""

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Take what has the first shape."""
        entries = list(self.in_order())
        alike = [e for e in entries if e.shapes == ((16,),)]
        for entry in alike:
            self._remove(entry)
        return Batch(self._signature, alike) if alike else None


class Mixing(DynamicBatcher):
    """Another: shapes are not compared."""

    def _fits(self, first, entry) -> bool:
        return True


@pytest.mark.parametrize("kind", [OneShape, Mixing])
async def test_B45_planted_bugs_are_found(root: Path, kind: type[DynamicBatcher]) -> None:
    def plant(worker: Worker) -> None:
        scheduler = version_of(worker).scheduler
        batching = worker._repository.models["m"].config.dynamic_batching
        scheduler.batcher = kind(scheduler.batcher._signature, batching)

    await must_find(check_shapes, partial(two_shapes, root), plant=plant)


# B47: the runner fails in the middle of a batch.


@dataclass
class Culprit:
    """Raises whenever a value is in the batch."""

    error: BaseException
    value: float = 5.0
    seen: list[int] = field(default_factory=list)

    def __call__(self, batch: Batch) -> None:
        """Look for the value."""
        if self.value in batch.inputs()["INPUT0"][:, 0]:
            raise self.error


KAPUT = RuntimeError("kaput")


async def raising(
    root: Path, error: BaseException = KAPUT, *, repeatable: bool = True, **how
) -> Run:
    """A batch of eight; the runner raises on the sixth."""
    text = config(batching="preferred_batch_size: [8] max_queue_delay_microseconds: 100000")
    backend = ScriptedBackend(Culprit(error), repeatable=repeatable)
    return await play(root, text, asks(*range(8)), backend, late=asks(9), **how)


def check_isolated(run: Run) -> None:
    """Eight requests, eight answers: seven results, one error; the next one is served."""
    assert len(run.backend.executions[0]) == 8
    assert sum(map(len, run.answers)) == 9
    for number, value in enumerate((*range(8), 9)):
        if value == 5:
            assert run.error(number).code == "INTERNAL"
        else:
            assert run.values(number) == [[float(value), float(-value)]]
    assert run.is_ready


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("kaput"), "backend_failed"),
        (MemoryError("no more"), "out_of_memory"),
        (BackendError("refused by the runtime"), "backend_failed"),
        (KeyError("x"), "backend_failed"),
        (RuntimeError("half a pair: \ud800"), "backend_failed"),
    ],
)
async def test_B47_a_failing_request_fails_alone(root: Path, error, reason) -> None:
    run = await raising(root, error)
    check_isolated(run)
    assert run.error(5).reason == reason


async def test_B47_a_model_with_memory_of_its_own_fails_as_a_whole(root: Path) -> None:
    """It is never run again, so each request of the batch gets the error: as many answers as requests."""
    run = await raising(root, repeatable=False)
    assert sum(map(len, run.answers)) == 9
    assert run.backend.executions == [[f"r{n}" for n in range(8)], ["r0"]]
    for number in range(8):
        assert "kaput" in run.error(number).detail
    assert run.values(8) == [[9.0, -9.0]]


def half(instance, batch: Batch, *, now_ns, **_: object) -> Execution:
    """B47's planted bug: after a failure only what ran before it is answered."""
    started = now_ns()
    emitted: list[Responses] = []
    pieces = [Batch(batch.signature, [entry]) for entry in batch.entries]
    parts = []
    for piece in pieces:
        try:
            instance.execute(piece, emitted.append)
        except Exception:  # noqa: BLE001  # whatever the runner raised
            break
        parts.append(Part(piece, [emitted.pop()], None))
    return Execution(parts, 1, started, started, now_ns())


async def test_B47_a_planted_bug_is_found(root: Path) -> None:
    def plant(worker: Worker) -> None:
        scheduler = version_of(worker).scheduler
        scheduler._run = partial(half, **scheduler._run.keywords)

    await must_find(check_isolated, partial(raising, root), plant=plant)


# B42, once more: the scheduler's own code fails.


class Breaking(DynamicBatcher):
    """A batcher with a bug that one request brings out, in the loop's callback or already in the intake."""

    def __init__(self, *parts, after: int) -> None:
        super().__init__(*parts)
        self.after = after

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:
        """Fail on the n-th look at a request called bad."""
        if any(entry.id == "bad" for entry in self.in_order()):
            self.after -= 1
            if self.after < 0:
                raise ZeroDivisionError("the batcher's own bug")
        return super().take(instance, now_ns, flush=flush)


async def a_batcher_breaks(
    root: Path, after: int, *, hush: bool = False, wait_s: float = WAIT_S
) -> bool:
    """Return whether the worker looks ready after its batcher broke with a request in it."""
    log = MemoryLog()
    topology = Topology(prefix="broken", partitions=1, reply_partitions=1)

    def plant(worker: Worker) -> None:
        answering = worker.models["m"].answering
        scheduler = answering.versions[1].scheduler
        batching = worker._repository.models["m"].config.dynamic_batching
        scheduler.batcher = Breaking(scheduler.batcher._signature, batching, after=after)
        if hush:
            answering.failed = lambda *_: None

    text = config(batching="max_queue_delay_microseconds: 50000")
    ask = Ask(InferRequest((fp32((1, 2)),), id="bad"))
    looks_ready = True
    with contextlib.suppress(ExceptionGroup):
        async with (
            log,
            loaded(write_models(root / "models", {"m": text}), ScriptedBackend()) as repository,
            working(log, repository, topology, plant=plant, exit_timeout_s=0.1) as service,
        ):
            await Producer(log, {}).send([_out(topology, ask)])
            with contextlib.suppress(AssertionError):
                await until(lambda: not service.worker.ready(), "it shows", wait_s)
            looks_ready = service.worker.ready()
    return looks_ready


@pytest.mark.parametrize("after", [0, 1], ids=["in the intake", "in a callback"])
async def test_B42_a_scheduler_that_breaks_ends_its_worker(root: Path, after: int) -> None:
    """All later requests would hang; readiness must fall, and the process end with the cause."""
    assert not await a_batcher_breaks(root, after)


async def test_B42_a_planted_bug_of_the_supervision_is_found(root: Path) -> None:
    """A scheduler whose failure nobody hears of looks ready."""
    assert await a_batcher_breaks(root, 1, hush=True, wait_s=PLANTED_WAIT_S)


# B48, B51, B55: shapes and bytes that must survive, from record to record and over HTTP.


async def round_trip(
    service: Service, tap: Tap, model: str, tensor: Tensor, content_type: str
) -> Tensor:
    """Send a record and return the one tensor of its answer."""
    topology = service.topology
    value, headers = encode_request(InferRequest((tensor,), id="r"), content_type)
    out = Out(topology.requests(model), 0, None, value, list(headers))
    sources = await Producer(service.log, {}).send([out])
    await tap.answered(sources)
    (answer,) = tap.by_source()[sources[0]]
    (output,) = decode_response(answer.value, answer.headers).outputs
    return output


async def call(service: Service, model: str, tensor: Tensor, *, binary: bool) -> Tensor:
    """Ask over HTTP and return the one tensor of the answer."""
    request = InferRequest((tensor,), binary_data_output=binary)
    body, length = v2json.write_request(request, v2json.all_binary if binary else v2json.all_json)
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    path = f"/v2/models/{model}/infer"
    async with service.session.post(path, data=body, headers=headers) as response:
        answer = await response.read()
        assert response.status == 200, answer
        found = response.headers.get("Inference-Header-Content-Length")
    (output,) = v2json.parse_response(answer, None if found is None else int(found)).outputs
    return output


DETECTOR = """
backend: "onnxruntime"
max_batch_size: 0
input [{ name: "boxes" data_type: TYPE_FP32 dims: [-1, 6] }]
output [{ name: "found" data_type: TYPE_FP32 dims: [-1, 6] }]
"""
SINGLE = 'backend: "identity" max_batch_size: 8 dynamic_batching {{ }} ' + "".join(
    f'{side} [{{{{ name: "{name}" data_type: {{0}} dims: [-1] }}}}] '
    for side, name in (("input", "INPUT0"), ("output", "OUTPUT0"))
)
HALVES = {
    Datatype.FP16: [0x0001, 0x8001, 0x03FF, 0x7C00, 0xFC00, 0x7E00, 0x7D55, 0xFEAA, 0x8000],
    Datatype.BF16: [0x0001, 0x8001, 0x007F, 0x7F80, 0xFF80, 0x7FC0, 0x7FA5, 0xFFD5, 0x8000],
}
"""Bit patterns: subnormals, infinities, quiet and signalling NaN with payloads, minus zero."""


@asynccontextmanager
async def round_trips(root: Path, log: Log) -> AsyncIterator[tuple[Service, Tap]]:
    """Serve the detector, an identity of each half and one of strings."""
    models = {"FP16": "TYPE_FP16", "BF16": "TYPE_BF16", "BYTES": "TYPE_STRING"}
    write_models(root, {name: SINGLE.format(kind) for name, kind in models.items()})
    write_repository(root, {"detector": detector()}, {"detector": DETECTOR})
    prefix = f"t{uuid.uuid4().hex[:8]}"
    topology = Topology(prefix=prefix, partitions=1, reply_partitions=1)
    gateway = GatewaySettings(interval_ms=500, max_record_bytes=log.max_record_bytes)
    async with (
        serving(log, root, topology, gateway=gateway) as service,
        Tap(log, *(topology.results(name) for name in (*models, "detector"))) as tap,
    ):
        yield service, tap


async def test_B48_zero_rows_out_are_a_success_everywhere(root: Path) -> None:
    """A detector that finds nothing: shape [0, 6] and no bytes, in every format; and zero rows in."""
    nothing = Tensor.from_numpy("boxes", np.zeros((3, 6), np.float32))
    empty = Tensor("boxes", Datatype.FP32, (0, 6), b"")
    some = Tensor.from_numpy("boxes", np.array([[1, 2, 3, 4, 5, 0.9], [0] * 6], np.float32))
    async with MemoryLog() as log, round_trips(root, log) as (service, tap):
        for content_type in CONTENT_TYPES:
            for tensor in (nothing, empty):
                found = await round_trip(service, tap, "detector", tensor, content_type)
                assert (found.shape, bytes(found.data)) == ((0, 6), b"")
            found = await round_trip(service, tap, "detector", some, content_type)
            assert (found.shape, bytes(found.data)) == ((1, 6), bytes(some.data[:24]))
        for binary in (True, False):
            for tensor in (nothing, empty):
                found = await call(service, "detector", tensor, binary=binary)
                assert (found.shape, bytes(found.data)) == ((0, 6), b"")
        assert service.counts("detector").success == 16
        assert service.counts("detector").failure == dict.fromkeys(Failure, 0)


@pytest.mark.parametrize("datatype", list(HALVES))
async def test_B51_halves_are_exact_in_binary_and_refused_in_json(
    root: Path, datatype: Datatype
) -> None:
    """Bit for bit; a JSON list gets an error that names the binary extension."""
    bits = np.array([HALVES[datatype]], np.uint16)
    tensor = Tensor("INPUT0", datatype, bits.shape, bits.tobytes())
    document = {
        "inputs": [
            {"name": "INPUT0", "datatype": datatype.value, "shape": [1, 2], "data": [1.0, 2.0]}
        ]
    }
    async with MemoryLog() as log, round_trips(root, log) as (service, tap):
        for content_type in (AVRO, BINARY, PROTOBUF):
            found = await round_trip(service, tap, datatype.value, tensor, content_type)
            assert bytes(found.data) == bits.tobytes()
        found = await call(service, datatype.value, tensor, binary=True)
        assert bytes(found.data) == bits.tobytes()
        path = f"/v2/models/{datatype.value}/infer"
        async with service.session.post(path, json=document) as response:
            assert response.status == 400
            over_http = (await response.json())["error"]
        topic = service.topology.requests(datatype.value)
        body = json.dumps(document).encode()
        out = Out(topic, 0, None, body, [("content-type", JSON.encode())])
        sources = await Producer(log, {}).send([out])
        await tap.answered(sources)
        (answer,) = tap.by_source()[sources[0]]
        with pytest.raises(InferError) as caught:
            decode_response(answer.value, answer.headers)
    for text in (over_http, caught.value.detail):
        assert datatype.value in text
        assert "binary data format" in text
    assert (caught.value.code, caught.value.reason) == ("INVALID_ARG", "invalid_request")


STRINGS = [b"", b"a", "é".encode(), b"\x00\xff", b"x" * 1_000_000]


async def test_B55_strings_survive_on_every_log_and_over_http(root: Path, logs) -> None:
    """An empty one, zero and high bytes, a megabyte: identical both ways."""
    tensor = Tensor("INPUT0", Datatype.BYTES, (1, len(STRINGS)), join_bytes(STRINGS))
    limit = 2_500_000
    async with logs.open(max_record_bytes=limit) as log, round_trips(root, log) as (service, tap):
        for content_type in (AVRO, BINARY, PROTOBUF):
            value, headers = encode_request(InferRequest((tensor,)), content_type)
            out = Out(service.topology.requests("BYTES"), 0, None, value, list(headers))
            sources = await Producer(log, logs.properties).send([out])
            await tap.answered(sources)
            (answer,) = tap.by_source()[sources[0]]
            (output,) = decode_response(answer.value, answer.headers).outputs
            assert split_bytes("OUTPUT0", output.data) == STRINGS
        found = await call(service, "BYTES", tensor, binary=True)
        assert split_bytes("OUTPUT0", found.data) == STRINGS
        plain = Tensor("INPUT0", Datatype.BYTES, (1, 3), join_bytes(STRINGS[:3]))
        found = await call(service, "BYTES", plain, binary=False)
        assert split_bytes("OUTPUT0", found.data) == STRINGS[:3]


# What a plug-in may give that is no output at all.


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"OUTPUT0": [[1.0, 2.0]]}, "has no attribute"),
        ({"OUTPUT0": np.zeros((1, 2), np.float64)}, "float64"),
        ({"OUTPUT0": np.zeros((1, 3), np.float32)}, "'OUTPUT0'"),
        ({"OTHER": np.zeros((1, 2), np.float32)}, "'OUTPUT0'"),
        ({}, "'OUTPUT0'"),
        (
            {"OUTPUT0": np.zeros((1, 2), np.float32), "MORE": np.zeros((1, 2), np.float32)},
            "'MORE'",
        ),
    ],
    ids=["a list", "another datatype", "another shape", "another name", "nothing", "one more"],
)
async def test_B36_whatever_a_backend_gives_ends_as_an_answer(root: Path, outputs, words) -> None:
    """The instance lives on, and the next request is served."""
    backend = ScriptedBackend()
    backend.play = lambda batch: outputs if batch.entries[0].id == "r0" else None
    run = await play(root, config(), asks(1), backend, late=[asks(0, 2)[1]])
    assert run.error(0).code == "INTERNAL"
    assert words in run.error(0).detail
    assert run.values(1) == [[2.0, -2.0]]
    assert run.is_ready


# DB-03: answers in the order of arrival.


async def two_instances_finish_in_turn(root: Path, *, ordered: bool = True) -> list[str]:
    """Return the ids in the order of their answers: the first request executes until the second is done.

    A third, which is refused, comes last and is answered at once: when its answer is there, whatever was not held
    back has left.
    """
    gate = Gate()

    def play(batch: Batch) -> None:
        if batch.entries[0].id == "first":
            gate(batch)

    text = config(max_batch=1, batching=f"preserve_ordering: {str(ordered).lower()}")
    text += "\ninstance_group [{ count: 2 kind: KIND_CPU }]"
    topology = Topology(prefix=f"o{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    backend = ScriptedBackend(play)
    async with (
        MemoryLog() as log,
        loaded(write_models(root / "models", {"m": text}), backend) as repository,
        working(log, repository, topology) as service,
        Tap(log, topology.results("m")) as tap,
    ):
        producer = Producer(log, {})
        good = [Ask(InferRequest((fp32((1, 2)),), id=name)) for name in ("first", "second")]
        sources = await producer.send([_out(topology, ask) for ask in good])
        scheduler = version_of(service.worker).scheduler
        await until(lambda: gate.waiting == 1 and scheduler.executing == 1)
        refused = Ask(InferRequest((fp32((1, 2, 3)),), id="refused"))
        sources += await producer.send([_out(topology, refused)])
        await tap.answered(sources[2:])
        gate.open()
        await tap.answered(sources)
        return [dict(record.headers)["id"].decode() for record in tap.records]


async def test_DB03_preserve_ordering_holds_an_answer_back(root: Path) -> None:
    """The second is done first and leaves behind the first; a refusal waits for nobody."""
    assert await two_instances_finish_in_turn(root) == ["refused", "first", "second"]


async def test_DB03_without_it_answers_leave_as_they_come(root: Path) -> None:
    """So the test above can fail."""
    found = await two_instances_finish_in_turn(root, ordered=False)
    assert found.index("second") < found.index("first")
