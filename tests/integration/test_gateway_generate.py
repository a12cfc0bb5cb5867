"""The generate routes over HTTP on a memory log, with a worker that plays a script (SEMANTICS §2.9)."""

import asyncio
import gzip
import json
import socket

import pytest
from gateway_kit import (
    TOPOLOGY,
    Worker,
    echo,
    identity_config,
    reply,
    running,
    serving,
    silent,
    until,
)
from headrace.schemas.errors import BackendError, Unavailable
from headrace.schemas.infer import InferResponse
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.memory import MemoryLog

DECOUPLED = {1: identity_config(model_transaction_policy={"decoupled": True})}


@pytest.fixture
def log():
    return MemoryLog()


async def post(session, kind, body, model="echo", **headers):
    """Return status, content type and text of a generate call."""
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    async with session.post(f"/v2/models/{model}/{kind}", data=data, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_GN03_GN06_models_that_are_not_decoupled_answer_both_routes(log):
    """One answer, as JSON or as the one event; the version in the path counts."""
    worker = Worker(log, versions={1: identity_config(), 2: identity_config()})
    expected = {"id": "i", "model_name": "echo", "model_version": "2", "OUTPUT0": [1.5, 2.0]}
    async with running(worker), serving(log) as (_, session):
        body = {"id": "i", "INPUT0": [1.5, 2]}
        status, kind, text = await post(session, "versions/2/generate", body)
        assert (status, kind, json.loads(text)) == (200, "application/json", expected)
        status, kind, text = await post(session, "versions/2/generate_stream", body)
        assert (status, kind) == (200, "text/event-stream; charset=utf-8")
        assert text.startswith("data: ")
        assert text.endswith("\n\n")
        assert json.loads(text[6:]) == expected
        _, _, text = await post(session, "generate", {"INPUT0": 3})
        assert json.loads(text)["OUTPUT0"] == 3.0


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "status", "fragment"),
    [
        ({}, 400, "expected 1 inputs but got 0"),
        ({"other": 1}, 400, "expected 1 inputs but got 0"),
        ('{"INPUT0": 1, "INPUT0": 2}', 400, "input 'INPUT0' already exists in request"),
        ({"INPUT0": 1, "PARAMS": {"a": 1}}, 400, "parameter 'PARAMS' has invalid type"),
        ({"INPUT0": "text"}, 500, "attempt to access JSON non-double as double"),
        ("{", 500, "failed to parse the request JSON buffer"),
    ],
)
async def test_GN07_PB32_bad_bodies_are_plain_errors_and_never_enter_the_log(
    log, kind, body, status, fragment
):
    worker = Worker(log)
    async with running(worker), serving(log) as (gateway, session):
        found = await post(session, kind, body)
        assert found[:2] == (status, "application/json")
        assert fragment in json.loads(found[2])["error"]
        assert (worker.seen, gateway.open_calls) == ([], 0)


async def test_GN04_compressed_bodies_are_400_and_unknown_models_404_before_the_body(log):
    """Also PB-33: the model is looked up first."""
    async with running(Worker(log)), serving(log) as (_, session):
        body = gzip.compress(b'{"INPUT0": 1}')
        encoded = {"Content-Encoding": "gzip"}
        for kind in ("generate", "generate_stream"):
            assert (await post(session, kind, body, **encoded))[0] == 400
            assert (await post(session, kind, b"{", model="nope"))[0] == 404


async def test_B63_a_streams_own_deadline_ends_it_with_an_event(log):
    """X-Headrace-Timeout-Ms: before the first response it is 504, behind it an event."""
    worker = Worker(log, script=silent, versions=DECOUPLED)
    async with running(worker), serving(log) as (gateway, session):
        hasty = {"X-Headrace-Timeout-Ms": "100"}
        assert (await post(session, "generate_stream", {"INPUT0": 1}, **hasty))[0] == 504
        first = asyncio.create_task(_answer(log, worker, 1, final=False))
        timely = {"X-Headrace-Timeout-Ms": "1000"}
        status, _, text = await post(session, "generate_stream", {"INPUT0": 1}, **timely)
        await first
        lines = text.split("\n\n")
        assert status == 200
        assert "OUTPUT0" in json.loads(lines[0][6:])
        assert "deadline" in json.loads(lines[1][6:])["error"]
        assert gateway.open_calls == 0


async def _answer(log, worker, number, *, index=0, final=True, count=1):
    """Write one response to the ``number``-th request when it has come."""
    await until(lambda: len(worker.held) > number)
    tensor = Tensor("OUTPUT0", Datatype.FP32, (1, count), bytes(4 * count))
    response = InferResponse((tensor,), "", "echo", "1")
    log.append([reply(worker.held[number], response, (index, final))])


@pytest.mark.parametrize(("error", "status"), [(BackendError("x"), 500), (Unavailable("x"), 503)])
async def test_GN05_an_error_that_comes_first_is_a_plain_answer_with_its_code(log, error, status):
    async with running(Worker(log, script=lambda *_: error)), serving(log) as (_, session):
        for kind in ("generate", "generate_stream"):
            found = await post(session, kind, {"INPUT0": 1})
            assert found[:2] == (status, "application/json")


async def test_GN06_a_client_that_takes_nothing_in_is_cut_off_and_its_call_cancelled(log):
    """Its connection is closed when one event could not be written for so long."""
    worker = Worker(log, script=silent, versions=DECOUPLED)
    async with running(worker), serving(log, write_timeout_s=0.2) as (gateway, session):
        raw = socket.create_connection((session._base_url.host, session._base_url.port))
        head = "POST /v2/models/echo/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n"
        raw.sendall(head.encode() + b'{"INPUT0": 1}')
        for index in range(60):
            await _answer(log, worker, 0, index=index, final=False, count=65_536)
        await until(lambda: gateway.abandoned == 1)
        assert (gateway.open_calls, gateway.waiting_bytes) == (0, 0)
        await until(lambda: log.records(TOPOLOGY.cancels, 0))
        raw.close()


async def test_events_reach_the_client_while_the_model_goes_on(log):
    """Nothing gathers in the server: the first event is read before the second is written."""
    worker = Worker(log, script=silent, versions=DECOUPLED)
    async with running(worker), serving(log) as (_, session), asyncio.timeout(20):
        first = asyncio.create_task(_answer(log, worker, 0, final=False))
        url = "/v2/models/echo/generate_stream"
        async with session.post(url, data='{"INPUT0": 1}') as response:
            await first
            for index in range(3):
                event = await response.content.readuntil(b"\n\n")
                assert json.loads(event[6:])["OUTPUT0"] == 0.0
                await _answer(log, worker, 0, index=index + 1, final=index == 1)
            assert await response.content.read() == b""


async def test_a_call_with_accepted_encodings_is_not_compressed(log):
    """Events must not gather in a compressor; Triton sends generate's answers as they are, too."""
    async with running(Worker(log, script=echo)), serving(log) as (_, session):
        body = json.dumps({"INPUT0": list(range(2_000))})
        for kind in ("generate", "generate_stream"):
            async with session.post(
                f"/v2/models/echo/{kind}", data=body, headers={"Accept-Encoding": "gzip"}
            ) as response:
                assert "Content-Encoding" not in response.headers
