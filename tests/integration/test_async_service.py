"""Calls that are answered later, over the whole service on every log and in both guarantees (FAULTS B65)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from claim_kit import claims, objects
from headrace.schemas.errors import BackendError
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.http import HttpServer
from headrace.streams.http_call import HttpSettings
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import (
    ScriptedBackend,
    Service,
    Tap,
    gatewaying,
    loaded,
    until,
    working,
    write_models,
)

MODEL = """
backend: "scripted"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [3] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt" }]
"""
WAIT_S = 30.0


def play(batch):
    """Echo, but for what is to fail."""
    if batch.first.id == "broken":
        raise BackendError("the model broke")


async def accepted(session, headers=None, **more) -> dict[str, object]:
    """Have a call accepted; returns what its answer said."""
    tensor = {"name": "INPUT0", "shape": [1, 3], "datatype": "FP32", "data": [1, 3, 2]}
    async with session.post(
        "/v2/models/m/infer",
        json={"inputs": [tensor]} | more,
        headers={"Prefer": "respond-async", **(headers or {})},
    ) as response:
        body: dict[str, object] = await response.json()
        assert response.status == 202, body
        return body


async def answer(session, call) -> tuple[int, dict[str, object], dict[str, str]]:
    """Ask until there is an answer."""
    async with asyncio.timeout(WAIT_S):
        while True:
            async with session.get(f"/v2/requests/{call['id']}") as response:
                if response.status != 202:
                    return response.status, await response.json(), dict(response.headers)
            await asyncio.sleep(0.01)  # over HTTP nothing tells


@asynccontextmanager
async def another_gateway(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a second gateway around the block; gives a client of it."""
    settings = GatewaySettings(interval_ms=500)
    async with Gateway(service.log, service.topology, settings) as gateway:
        async with asyncio.timeout(WAIT_S):
            await gateway.wait_ready()
        async with (
            HttpServer(gateway, HttpSettings(port=0)) as server,
            aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        ):
            yield session


async def test_B65_calls_are_answered_later_by_any_gateway_or_to_a_topic(
    tmp_path: Path, logs_in_modes
) -> None:
    """Results, classes, errors, and repeats of a key; and what goes to a topic is JSON there."""
    logs, mode = logs_in_modes
    backend = ScriptedBackend(play)
    topology = Topology(prefix=f"t{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=2)
    root = write_models(tmp_path / "models", {"m": MODEL})
    (root / "m" / "labels.txt").write_text("a\nb\nc\n", encoding="utf-8")
    mine = f"{topology.prefix}.mine"
    async with logs.open() as log:
        await log.ensure([TopicSpec(mine, 1)])
        async with (
            loaded(root, backend) as repository,
            working(log, repository, topology, delivery=mode) as worker,
            gatewaying(worker) as service,
            another_gateway(service) as other,
            Tap(log, mine) as tap,
        ):
            here = service.session
            top = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
            calls = [
                await accepted(here),
                await accepted(other, id="my own", outputs=top),
                await accepted(here, id="broken"),
                await accepted(here, {"Idempotency-Key": "k"}),
            ]
            found = [await answer(other, call) for call in calls]
            assert [status for status, _, _ in found] == [200, 200, 500, 200]
            assert found[0][1]["id"] == calls[0]["id"]
            assert found[0][1]["outputs"][0]["data"] == [1, 3, 2]
            assert found[1][1]["id"] == "my own"
            assert found[1][1]["outputs"][0]["data"] == ["3.000000:1:b"]
            assert "the model broke" in found[2][1]["error"]
            ran = len(backend.executions)
            again = await accepted(other, {"Idempotency-Key": "k"})
            status, body, headers = await answer(here, again)
            assert (status, headers.get("Idempotency-Replayed")) == (200, "true")
            assert body["outputs"] == found[3][1]["outputs"]
            assert len(backend.executions) == ran
            named = {"X-Headrace-Reply-Topic": mine}
            sent = [await accepted(here, named), await accepted(here, named, id="broken")]
            await until(lambda: len(tap.records) == 2, "both answers")
            said = {dict(r.headers)["correlation-id"].decode(): r for r in tap.records}
            good, bad = (said[call["id"]] for call in sent)
            assert json.loads(good.value)["outputs"][0]["data"] == [1, 3, 2]
            assert dict(good.headers)["id"].decode() == sent[0]["id"]
            assert dict(bad.headers)["status"] == b"INTERNAL"
            assert dict(bad.headers)["id"] == b"broken"
            assert "the model broke" in json.loads(bad.value)["error"]


async def test_B57_B65_an_answer_in_the_store_is_fetched_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    """The topic has its claim; by a gateway without the store it is an error that says so."""
    topology = Topology(prefix="t", partitions=1, reply_partitions=2)
    root = write_models(tmp_path / "models", {"m": MODEL.replace("[3]", "[-1]")})
    (root / "m" / "labels.txt").write_text("a\n", encoding="utf-8")
    data = list(range(1000))
    tensor = {"name": "INPUT0", "shape": [1, 1000], "datatype": "FP32", "data": data}
    async with (
        MemoryLog() as log,
        claims(objects("memory", tmp_path), above=1_000) as kept,
        loaded(root, ScriptedBackend()) as repository,
        working(log, repository, topology, claims=kept) as worker,
        gatewaying(worker, claims=kept) as service,
        another_gateway(service) as other,
    ):
        call = await accepted(service.session, inputs=[tensor])
        status, body, _ = await answer(service.session, call)
        assert (status, body["outputs"][0]["data"]) == (200, data)
        status, body, headers = await answer(other, call)
        assert (status, headers["X-Headrace-Request-Status"]) == (500, "failed")
        assert "--claim-check-url" in body["error"]
