"""Queue timeouts that a request asks for, and full queues that a gateway knows of (SEMANTICS QT-03, KX-02)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from headrace.schemas.record import TP
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Gate, ScriptedBackend, Service, serving, until, write_models

MODEL = """
backend: "scripted"
max_batch_size: 1
input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }}]
dynamic_batching {{ default_queue_policy {{ {} }} }}
"""
TENSOR = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}
Ask = Callable[..., "asyncio.Task[tuple[int, dict[str, object]]]"]


@asynccontextmanager
async def asking(root: Path, policy: str) -> AsyncIterator[tuple[Service, Ask, Gate]]:
    """Serve a model with this queue policy, whose executions stop at a gate."""
    gate = Gate()
    write_models(root, {"m": MODEL.format(policy)})
    topology = Topology(prefix=f"t{uuid.uuid4().hex[:8]}", partitions=1)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(MemoryLog())
        service = await stack.enter_async_context(
            serving(log, root, topology, find=ScriptedBackend(gate), status_interval_s=0.1)
        )
        stack.callback(gate.open, 1_000)  # a failing test must not wait for executions at the gate

        async def once(name: str, **parameters: object) -> tuple[int, dict[str, object]]:
            body = {"id": name, "inputs": [TENSOR], "parameters": parameters}
            async with service.session.post("/v2/models/m/infer", json=body) as response:
                return response.status, await response.json()

        yield service, lambda name, **more: asyncio.create_task(once(name, **more)), gate


@pytest.mark.parametrize(
    ("policy", "timeout_us", "status"),
    [
        ("default_timeout_microseconds: 9000000 allow_timeout_override: true", 20_000, 503),
        ("default_timeout_microseconds: 20000 allow_timeout_override: true", 9_000_000, 503),
        ("default_timeout_microseconds: 9000000", 20_000, 200),
        ("default_timeout_microseconds: 0 allow_timeout_override: true", 20_000, 200),
    ],
    ids=["shortens", "never lengthens", "not allowed", "nothing to shorten"],
)
async def test_QT03_a_request_s_timeout_only_shortens_its_queue_s(
    tmp_path: Path, policy: str, timeout_us: int, status: int
) -> None:
    """It travels in the record; only the queue on the worker knows what it may do."""
    async with asking(tmp_path, policy) as (service, ask, gate):
        running = ask("running")
        await until(lambda: gate.waiting)
        waits = ask("waits", timeout=timeout_us)
        batcher = service.version("m").scheduler.batcher
        await until(lambda: len(batcher) == 1 or waits.done())
        if status == 503:
            got, body = await waits
            assert (got, "Request timeout expired" in str(body["error"])) == (503, True)
            gate.open(1)
        else:
            begun_ns = time.monotonic_ns()  # it waits in the queue already
            await until(lambda: time.monotonic_ns() - begun_ns > 2_000 * timeout_us)
            assert not waits.done()
            gate.open(2)
            assert (await waits)[0] == 200
        assert (await running)[0] == 200


async def test_KX02_QT01_a_queue_that_workers_say_is_full_is_refused_without_a_record(
    tmp_path: Path,
) -> None:
    """By the live count in their status; and once it has room, calls go on as before."""
    async with asking(tmp_path, "max_queue_size: 2") as (service, ask, gate):
        calls = [ask("running")]
        await until(lambda: gate.waiting)
        calls += [ask("w0"), ask("w1")]
        batcher = service.version("m").scheduler.batcher
        await until(lambda: len(batcher) == 2, "the queue is full")
        load = service.gateway.route("m", "").load(0)
        await until(lambda: repr(load).startswith("QueueLoad(2 - 0"), "the worker has said so")
        written = service.log.existing(TP(service.topology.requests("m"), 0)).end
        assert written == 3
        for number in range(5):
            status, body = await ask(f"x{number}")
            assert status == 503
            assert body["error"] == f"[request id: x{number}] Exceeds maximum queue size"
        assert service.log.existing(TP(service.topology.requests("m"), 0)).end == written
        gate.open(3)
        assert [(await call)[0] for call in calls] == [200] * 3
        gate.open(1)
        assert (await ask("next"))[0] == 200
