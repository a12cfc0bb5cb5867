"""HTTP against a whole service: Triton's clients on a real model, deadlines, cancels, bounds, and a worker's end."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from headrace.schemas.batch import Batch
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import BackendError, InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.counts import Failure
from headrace.streams.gateway import GatewaySettings
from headrace.streams.log import Log
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from onnx_models import add_sub, mlp, mlp_expected, write_repository
from service_kit import (
    Gate,
    Producer,
    ScriptedBackend,
    Service,
    Tap,
    serving,
    until,
    write_models,
)

SIMPLE = """
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [16] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [16] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [16] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [16] }
]
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""
MLP = """
backend: "onnxruntime"
max_batch_size: 64
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""
ECHO = """
backend: "scripted"
max_batch_size: 1
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
"""


def new_topology() -> Topology:
    """Return names that no other test uses."""
    return Topology(prefix=f"s{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=1)


# Triton's clients, a real model, a real broker.


@pytest.fixture
def http_client():
    """Triton's synchronous client; it needs the extra tritonclient[http]."""
    pytest.importorskip("geventhttpclient", reason="needs the extra tritonclient[http]")
    return pytest.importorskip("tritonclient.http")


@pytest.fixture(scope="module")
def onnx_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of two ONNX models."""
    return write_repository(
        tmp_path_factory.mktemp("onnx"),
        {"mlp": mlp(), "simple": add_sub()},
        {"mlp": MLP, "simple": SIMPLE},
    )


def host(service: Service) -> str:
    """Return what Triton's clients call a URL."""
    return service.url.removeprefix("http://")


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_TC01_R5_tritons_client_asks_onnx_models(
    onnx_root: Path, logs, http_client, binary: bool
) -> None:
    """Sums, differences and an MLP's outputs, as numpy computes them; the answer's id is the request's."""

    def simple(client) -> None:
        left = np.arange(32, dtype=np.int32).reshape(2, 16)
        right = np.full((2, 16), 7, np.int32)
        inputs = [
            http_client.InferInput("INPUT0", [2, 16], "INT32"),
            http_client.InferInput("INPUT1", [2, 16], "INT32"),
        ]
        inputs[0].set_data_from_numpy(left, binary_data=binary)
        inputs[1].set_data_from_numpy(right, binary_data=binary)
        outputs = [
            http_client.InferRequestedOutput("OUTPUT1", binary_data=binary),
            http_client.InferRequestedOutput("OUTPUT0", binary_data=binary),
        ]
        result = client.infer("simple", inputs, outputs=outputs, request_id="my own")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), left + right)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), left - right)
        answer = result.get_response()
        assert (answer["id"], answer["model_name"], answer["model_version"]) == (
            "my own",
            "simple",
            "1",
        )
        unnamed = client.infer("simple", inputs).get_response()
        assert "id" not in unnamed

    def network(client) -> None:
        rows = np.random.default_rng(1).standard_normal((5, 128)).astype(np.float32)
        tensor = http_client.InferInput("x", [5, 128], "FP32")
        tensor.set_data_from_numpy(rows, binary_data=binary)
        for compression in (None, "gzip", "deflate"):
            result = client.infer(
                "mlp",
                [tensor],
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
            )
            np.testing.assert_allclose(
                result.as_numpy("y"), mlp_expected(rows), rtol=1e-4, atol=1e-4
            )

    def work() -> None:
        with http_client.InferenceServerClient(host(service)) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("mlp")
            assert client.is_model_ready("simple", "1")
            assert client.get_model_metadata("mlp")["platform"] == "onnxruntime_onnx"
            simple(client)
            network(client)

    async with logs.open() as log, serving(log, onnx_root, new_topology()) as service:
        await asyncio.to_thread(work)


async def test_B53_tritons_client_hears_what_is_wrong_and_nothing_enters_the_topic(
    onnx_root: Path, http_client
) -> None:
    """The tensor's name, what was expected and what came; the topic's end does not move."""

    def refused(client, model: str, name: str, shape: list[int], datatype: str, dtype) -> str:
        tensor = http_client.InferInput(name, shape, datatype)
        tensor.set_data_from_numpy(np.zeros(shape, dtype))
        with pytest.raises(http_client.InferenceServerException) as caught:
            client.infer(model, [tensor])
        assert caught.value.status() == "400"
        return str(caught.value)

    def work() -> list[str]:
        with http_client.InferenceServerClient(host(service)) as client:
            return [
                refused(client, "mlp", "x", [1, 128], "INT64", np.int64),
                refused(client, "mlp", "x", [1, 1, 128], "FP32", np.float32),
                refused(client, "mlp", "x", [1, 127], "FP32", np.float32),
                refused(client, "mlp", "z", [1, 128], "FP32", np.float32),
                refused(client, "simple", "INPUT0", [1, 16], "INT32", np.int32),
            ]

    topology = new_topology()
    async with (
        MemoryLog() as log,
        serving(log, onnx_root, topology) as service,
    ):
        texts = await asyncio.to_thread(work)
        for model in ("mlp", "simple"):
            for partition in range(topology.partitions):
                assert log.existing(TP(topology.requests(model), partition)).end == 0
    for text, fragments in zip(
        texts,
        (
            ("'x'", "'INT64'", "'FP32'"),
            ("'x'", "[-1,128]", "[1,1,128]"),
            ("'x'", "[-1,128]", "[1,127]"),
            ("'z'", "'mlp'"),
            ("'INPUT1'", "expected 2 inputs but got 1"),
        ),
        strict=True,
    ):
        for fragment in fragments:
            assert fragment in text


@pytest.mark.embedded
async def test_TC08_many_calls_at_once_each_get_their_own_values(
    onnx_root: Path, embedded_properties: Mapping[str, str], http_client
) -> None:
    """Triton's asynchronous client, 200 calls, batched by the way."""
    from headrace.streams.kafka import KafkaLog
    from tritonclient.http import aio

    rows = np.random.default_rng(2).standard_normal((200, 1, 128)).astype(np.float32)
    async with (
        KafkaLog(embedded_properties) as log,
        serving(log, onnx_root, new_topology()) as service,
        aio.InferenceServerClient(host(service), conn_limit=64) as client,
    ):

        async def ask(row: np.ndarray, number: int):
            tensor = aio.InferInput("x", [1, 128], "FP32")
            tensor.set_data_from_numpy(row)
            return await client.infer("mlp", [tensor], request_id=f"r{number}")

        results = await asyncio.gather(*(ask(row, n) for n, row in enumerate(rows)))
        counts = service.counts("mlp")
    for number, (row, result) in enumerate(zip(rows, results, strict=True)):
        assert result.get_response()["id"] == f"r{number}"
        np.testing.assert_allclose(result.as_numpy("y"), mlp_expected(row), rtol=1e-4, atol=1e-4)
    assert counts.success == 200
    assert counts.exec_count < 200, "nothing was batched"


# Deadlines, cancels and bounds, on a model whose executions stop at a gate.


@dataclass
class Asker:
    """Calls the one model of a service."""

    service: Service
    backend: ScriptedBackend
    gate: Gate

    def ask(
        self, name: str, *, timeout_ms: int | None = None, values: tuple[float, ...] = (1.0,)
    ) -> asyncio.Task[tuple[int, dict[str, object], Mapping[str, str], float]]:
        """Call now; the task's result is status, body, headers and seconds."""
        return asyncio.create_task(self._ask(name, timeout_ms, values))

    async def _ask(self, name: str, timeout_ms: int | None, values: tuple[float, ...]):
        shape = [1, len(values)]
        body = {
            "id": name,
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": list(values)}
            ],
        }
        headers = {} if timeout_ms is None else {"X-Headrace-Timeout-Ms": str(timeout_ms)}
        clock = asyncio.get_running_loop().time
        started = clock()
        session = self.service.session
        async with session.post("/v2/models/m/infer", json=body, headers=headers) as response:
            found = await response.json()
            return response.status, found, dict(response.headers), clock() - started

    @property
    def queued(self) -> int:
        """How many wait in the batcher."""
        return len(self.service.version("m").scheduler.batcher)

    @property
    def executed(self) -> list[str]:
        """Request ids in the order of their executions."""
        return [name for ids in self.backend.executions for name in ids]

    async def not_ready(self) -> None:
        """Wait until the gateway does not call the model ready any more."""
        async with asyncio.timeout(10):
            while await self.status("/v2/models/m/ready") == 200:
                pass

    async def status(self, path: str) -> int:
        """Return the status of a GET."""
        async with self.service.session.get(path) as response:
            return response.status


@asynccontextmanager
async def asking(
    root: Path,
    text: str = ECHO,
    *,
    log: Log | None = None,
    gateway: GatewaySettings | None = None,
    play: Callable[[Batch], object] | None = None,
    backend: ScriptedBackend | None = None,
    **worker: object,
) -> AsyncIterator[Asker]:
    """Serve one model; its executions stop at a gate unless ``play`` or ``backend`` says otherwise."""
    gate = Gate()
    backend = backend or ScriptedBackend(play or gate)
    write_models(root, {"m": text})
    async with contextlib.AsyncExitStack() as stack:
        opened = log or await stack.enter_async_context(MemoryLog())
        service = await stack.enter_async_context(
            serving(
                opened,
                root,
                new_topology(),
                find=backend,
                gateway=gateway or GatewaySettings(interval_ms=500),
                **worker,
            )
        )
        stack.callback(gate.open, 1_000)  # a failing test must not wait for executions at the gate
        yield Asker(service, backend, gate)


async def test_B63_each_call_has_its_own_deadline(tmp_path: Path, logs) -> None:
    """504 after 200 ms beside a call that may take 5 s and completes; the late reply is counted and dropped."""
    async with logs.open() as log, asking(tmp_path, log=log) as asker:
        gateway = asker.service.gateway
        warm = asker.ask("warm")
        await until(lambda: asker.executed == ["warm"])
        asker.gate.open()
        assert (await warm)[0] == 200
        short = asker.ask("short", timeout_ms=200)
        long = asker.ask("long", timeout_ms=5_000)
        status, body, headers, seconds = await short
        assert (status, "deadline" in str(body["error"])) == (504, True)
        assert "Retry-After" not in headers
        assert 0.19 <= seconds < 1.5
        assert not long.done()
        asker.gate.open(2)
        status, body, _, seconds = await long
        assert (status, body["id"]) == (200, "long")
        assert seconds < 5
        await until(lambda: gateway.late_replies == 1, "the late reply is counted")
        await until(lambda: gateway.open_calls == 0, "no call is open")


async def test_B64_what_timed_out_in_the_queue_is_never_run(tmp_path: Path) -> None:
    """One executes, three wait past their deadline: each is run at most once, and the waiting ones not at all."""
    async with asking(tmp_path) as asker:
        first = asker.ask("running", timeout_ms=300)
        await until(lambda: asker.executed == ["running"])
        waiting = [asker.ask(f"late-{number}", timeout_ms=200) for number in range(3)]
        statuses = [(await call)[0] for call in (first, *waiting)]
        assert statuses == [504] * 4
        await until(lambda: asker.queued == 0, "the queue forgets them without an execution")
        asker.gate.open(10)
        assert (await asker.ask("next"))[0] == 200
        assert asker.executed == ["running", "next"]
        counts = asker.service.counts("m")
        assert counts.failure[Failure.REJECTED] == 3
        assert asker.service.gateway.open_calls == 0


async def test_B64_PB49_QT07_CX01_a_closed_connection_drops_its_request_from_the_queue(
    tmp_path: Path, logs
) -> None:
    """The gateway writes a cancel record, the worker drops what waits and answers nobody; neighbours are served."""
    async with logs.open() as log, asking(tmp_path, log=log) as asker:
        service = asker.service
        running = asker.ask("running")
        await until(lambda: asker.executed == ["running"])
        stays = asker.ask("stays")
        gone = [asker.ask(f"gone-{number}") for number in range(3)]
        await until(lambda: asker.queued == 4)
        async with Tap(log, service.topology.cancels) as cancels:
            for call in gone:
                call.cancel()
            await asyncio.wait(gone)
            await until(lambda: asker.queued == 1, "the cancelled ones leave the queue")
            await until(lambda: len(cancels.records) == 3)
        assert service.gateway.abandoned == 3
        asker.gate.open(10)
        assert (await running)[0] == (await stays)[0] == 200
        assert asker.executed == ["running", "stays"]
        assert service.counts("m").failure[Failure.CANCELED] == 3
        await until(lambda: service.settled("m"), "their records are finished")
        await until(lambda: service.gateway.open_calls == 0)


async def test_CX02_a_connection_closed_while_its_request_executes_lets_it_finish(
    tmp_path: Path,
) -> None:
    """SEMANTICS CX-02: executing work is finished and its answer dropped; it runs once."""
    async with asking(tmp_path) as asker:
        running = asker.ask("running")
        await until(lambda: asker.executed == ["running"])
        running.cancel()
        await until(lambda: asker.service.gateway.abandoned == 1)
        asker.gate.open(2)
        assert (await asker.ask("next"))[0] == 200
        assert asker.executed == ["running", "next"]
        assert asker.service.gateway.late_replies == 1


async def test_QT07_KX08_a_cancel_that_overtakes_its_request_still_counts(tmp_path: Path) -> None:
    """The cancel is read before the request: the worker remembers it (QT-07)."""
    topology_held = asking(tmp_path)
    async with topology_held as asker:
        service = asker.service
        worker = service.worker.models["m"]
        tps = set(worker.partitions)
        assert worker.source is not None
        worker.source.pause(tps)
        call = asker.ask("gone")
        await until(lambda: service.gateway.open_calls == 1)
        call.cancel()
        await until(lambda: service.gateway.abandoned == 1)
        assert worker._intake is not None
        await until(lambda: worker._intake._cancelled, "the cancel is read")
        worker.source.resume(tps)
        asker.gate.open()
        assert (await asker.ask("next"))[0] == 200
        assert asker.executed == ["next"]


async def test_QT01_a_full_queue_is_503_with_retry_after(tmp_path: Path) -> None:
    text = ECHO + "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    async with asking(tmp_path, text) as asker:
        calls = [asker.ask("running")]
        await until(lambda: asker.executed == ["running"])
        calls += [asker.ask(f"w{number}") for number in range(2)]
        await until(lambda: asker.queued == 2)
        status, body, headers, seconds = await asker.ask("too many")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert body["error"] == "[request id: too many] Exceeds maximum queue size"
        assert seconds < 5
        asker.gate.open(3)
        assert [(await call)[0] for call in calls] == [200] * 3
        assert "too many" not in asker.executed


async def test_open_calls_are_bounded_and_the_next_is_503(tmp_path: Path) -> None:
    settings = GatewaySettings(interval_ms=500, max_pending=2)
    async with asking(tmp_path, gateway=settings) as asker:
        calls = [asker.ask("a"), asker.ask("b")]
        await until(lambda: asker.service.gateway.open_calls == 2)
        status, body, headers, _ = await asker.ask("c")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "2 calls are open, expected at most 2 (max_pending)" in str(body["error"])
        asker.gate.open(3)
        assert [(await call)[0] for call in calls] == [200, 200]
        assert (await asker.ask("d"))[0] == 200
        assert "c" not in asker.executed


# R4, R5, R6, R10 and B77: who is answered how.


async def test_R4_each_kind_of_failure_has_its_own_code(tmp_path: Path) -> None:
    """Out of memory 5xx, bad input 4xx, timeout 504, overload 503, a failing model 500."""

    def play(batch: Batch) -> None:
        match batch.entries[0].id:
            case "memory":
                raise MemoryError("no more")
            case "kaput":
                raise BackendError("the runtime says no")
            case "slow":
                gate(batch)

    gate = Gate()
    text = ECHO + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    async with asking(tmp_path, text, play=play) as asker:
        assert (await asker.ask("memory"))[0] == 500
        status, body, _, _ = await asker.ask("kaput")
        assert (status, "the runtime says no" in str(body["error"])) == (500, True)
        assert (await asker.ask("bad", values=(1.0, 2.0)))[0] == 400
        slow = asker.ask("slow", timeout_ms=400)
        await until(lambda: "slow" in asker.executed)
        waits = asker.ask("waits")
        await until(lambda: asker.queued == 1)
        assert (await asker.ask("overload"))[0] == 503
        assert (await slow)[0] == 504
        gate.open()
        assert (await waits)[0] == 200


async def test_B77_R6_an_unknown_model_is_a_typed_answer_that_lists_the_known(
    onnx_root: Path,
) -> None:
    """Over HTTP; and a result says which model and version answered which record."""
    topology = new_topology()
    async with (
        MemoryLog() as log,
        serving(log, onnx_root, topology) as service,
        Tap(log, topology.results("mlp")) as tap,
    ):
        async with service.session.post("/v2/models/mpl/infer", json={}) as response:
            assert response.status == 404
            error = (await response.json())["error"]
        assert error == (
            "Request for unknown model: 'mpl' is not found, known models: mlp, simple"
        )
        tensor = Tensor.from_numpy("x", np.zeros((1, 128), np.float32))
        value, headers = encode_request(InferRequest((tensor,)))
        out = Out(topology.requests("mlp"), 1, None, value, list(headers))
        (source,) = await Producer(log, {}).send([out])
        await tap.answered([source])
        (answer,) = tap.by_source()[source]
    named = dict(answer.headers)
    assert (named["model-name"], named["model-version"], named["source"].decode()) == (
        b"mlp",
        b"1",
        source,
    )
    response = decode_response(answer.value, answer.headers)
    assert (response.model_name, response.model_version) == ("mlp", "1")


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY, PROTOBUF])
async def test_R10_a_request_without_an_id_is_matched_by_what_it_sent(
    onnx_root: Path, content_type: str
) -> None:
    """No id is invented; correlation headers of any kind, any bytes and any number come back untouched, in order.

    R5: where there is an id, it is the answer's. Both hold for errors too.
    """
    topology = new_topology()
    opaque = [
        ("correlation-id", b"\x00\xff\xfe"),
        ("kafka_correlationId", b"\x80" * 16),
        ("x-ours", b"1"),
        ("x-ours", b"2"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]
    good = Tensor.from_numpy("x", np.zeros((1, 128), np.float32))
    bad = Tensor.from_numpy("x", np.zeros((1, 7), np.float32))
    async with (
        MemoryLog() as log,
        serving(log, onnx_root, topology) as service,
        Tap(log, topology.results("mlp")) as tap,
    ):
        for tensor in (good, bad):
            for name in ("", "my id"):
                value, headers = encode_request(InferRequest((tensor,), id=name), content_type)
                out = Out(topology.requests("mlp"), 0, None, value, [*opaque, *headers])
                (source,) = await Producer(log, {}).send([out])
                await tap.answered([source])
                (answer,) = tap.by_source()[source]
                assert [pair for pair in answer.headers if pair in opaque] == opaque
                assert dict(answer.headers).get("id", b"").decode() == name
                assert answer.key is None
                try:
                    assert decode_response(answer.value, answer.headers).id == name
                except InferError:
                    assert tensor is bad
        assert service.worker.ready()


# A worker that goes, and one that breaks.


async def test_a_stopped_worker_leaves_no_model_behind(tmp_path: Path, logs) -> None:
    """A clean stop takes its words back: the model is unknown at once, and calls say so."""
    async with logs.open() as log, asking(tmp_path, log=log) as asker:
        asker.gate.open()
        assert (await asker.ask("a"))[0] == 200
        assert await asker.status("/v2/models/m/ready") == 200
        await asker.service.stop_worker()
        await until(lambda: not asker.service.gateway.fleet.models())
        assert await asker.status("/v2/models/m/ready") == 404
        assert await asker.status("/v2/health/ready") == 400
        assert await asker.status("/v2/health/live") == 200
        status, body, _, _ = await asker.ask("b")
        assert (status, "no worker has announced any model" in str(body["error"])) == (404, True)


async def test_a_worker_that_died_leaves_its_model_not_ready(tmp_path: Path) -> None:
    """When it has said nothing for too long: 503, not unknown; an open call ends at its deadline."""
    async with asking(tmp_path, status_timeout_s=1.5) as asker:
        open_call = asker.ask("open", timeout_ms=1_000)
        await until(lambda: asker.executed == ["open"])
        await asker.service.crash_worker()
        assert (await open_call)[0] == 504
        await asker.not_ready()
        assert await asker.status("/v2/models/m/ready") == 503
        assert await asker.status("/v2/health/ready") == 400
        status, body, headers, _ = await asker.ask("b")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "no live worker serves it" in str(body["error"])


async def test_B42_a_dead_instance_shows_over_http(tmp_path: Path) -> None:
    """The call that met it gets a 500; readiness falls, and no later call is sent to it (SEMANTICS PB-33, SV-05)."""

    def leave(batch: Batch) -> None:
        raise SystemExit(1)

    backend = ScriptedBackend(leave, repeatable=False)
    backend.makes = 1
    async with asking(tmp_path, backend=backend) as asker:
        status, body, _, _ = await asker.ask("a")
        assert (status, "died" in str(body["error"])) == (500, True)
        await asker.not_ready()
        assert await asker.status("/v2/models/m/versions/1/ready") == 400
        assert await asker.status("/v2/health/ready") == 400
        status, body, _, _ = await asker.ask("b")
        assert (status, "no available versions" in str(body["error"])) == (404, True)
        assert asker.executed == ["a"]


async def test_B68_a_draining_worker_answers_what_it_has_and_calls_are_turned_away(
    tmp_path: Path,
) -> None:
    """Stop while one executes and two wait: all three are answered, later calls get a 503 or 404."""
    async with asking(tmp_path) as asker:
        calls = [asker.ask(name) for name in ("a", "b", "c")]
        await until(lambda: asker.queued == 2)
        asker.service.stop.set()
        await until(lambda: asker.service.worker.models["m"].draining)
        async with asyncio.timeout(10):
            while (status := (await asker.ask("late", timeout_ms=500))[0]) == 504:
                pass
        assert status in (404, 503)
        asker.gate.open(10)
        assert [(await call)[0] for call in calls] == [200] * 3
        await asker.service.running
        assert sorted(asker.executed) == ["a", "b", "c"]


async def test_a_client_that_hangs_up_while_sending_its_body_harms_nobody(tmp_path: Path) -> None:
    """Half a body, then nothing: no record is written, the next call is served."""
    async with asking(tmp_path) as asker:
        asker.gate.open(10)
        port = int(asker.service.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b'POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"inputs"'
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await asker.ask("a"))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await asker.service.session.post("/v2/models/m/infer", data=_broken())
        assert (await asker.ask("b"))[0] == 200
        assert asker.executed == ["a", "b"]


async def _broken() -> AsyncIterator[bytes]:
    """Yield half a body and fail."""
    yield b'{"inputs": ['
    raise aiohttp.ClientConnectionError
