"""Health and readiness at a gateway, which knows models by their workers' words only (SEMANTICS §4.1)."""

import json

import pytest
from gateway_kit import Worker, identity_config, make_topics, running, serving, until
from headrace.streams.gateway import GatewaySettings
from headrace.streams.memory import MemoryLog
from headrace.streams.model_view import UNHEALTHY
from headrace.streams.status import ModelState, VersionStatus

READY, LOADING, UNAVAILABLE = ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE
INFER = "/v2/models/echo/infer"
BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}


@pytest.fixture
def log():
    return MemoryLog()


def version(number, state, reason=""):
    return VersionStatus(number, state, reason, identity_config())


async def get(session, path):
    async with session.get(path) as response:
        return response.status, await response.read()


async def tell(gateway, worker, *versions):
    """Let a worker say something of its model, and wait until the gateway knows it."""
    await worker.announce(versions=versions)
    wanted = {status.version: (status.state, status.reason) for status in versions}

    def known():
        view = gateway.fleet.view(worker.model, gateway.now_ms())
        return view is not None and wanted == {
            number: (status.state, status.reason) for number, status in view.versions.items()
        }

    await until(known)


async def test_SV01_live_whatever_becomes_of_models_until_it_exits(log):
    async with serving(log) as (gateway, session):
        assert await get(session, "/v2/health/live") == (200, b"")
        bad = Worker(log)
        await make_topics(log, "echo")
        await tell(gateway, bad, version(1, UNAVAILABLE, "broken"))
        assert await get(session, "/v2/health/live") == (200, b"")
        await gateway.drain(1)
        status, text = await get(session, "/v2/health/live")
        assert (status, json.loads(text)) == (503, {"error": "Server exiting"})


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ([(1, READY, "")], 200),
        ([(1, READY, ""), (2, LOADING, "")], 400),
        ([(1, READY, ""), (2, ModelState.UNLOADING, "")], 400),
        ([(1, READY, ""), (2, UNAVAILABLE, "broken")], 400),
        ([(1, READY, ""), (2, UNAVAILABLE, "unloaded")], 200),
        ([], 400),
    ],
)
async def test_SV02_ready_needs_every_version_but_those_that_were_unloaded(log, versions, status):
    """Not ready is a 400 without a body; without strict readiness models do not matter."""
    async with running(Worker(log)) as worker:
        async with serving(log) as (gateway, session):
            await tell(gateway, worker, *(version(*each) for each in versions))
            assert await get(session, "/v2/health/ready") == (status, b"")
        settings = GatewaySettings(strict_readiness=False)
        async with serving(log, settings) as (_, session):
            assert await get(session, "/v2/health/ready") == (200, b"")


async def test_SV03_a_version_that_loads_makes_the_server_not_ready_and_gates_no_call(log):
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        await tell(gateway, worker, version(1, READY), version(2, LOADING))
        assert (await get(session, "/v2/health/ready"))[0] == 400
        async with session.post(INFER, json=BODY) as response:
            assert response.status == 200
        await tell(gateway, worker, version(1, READY), version(2, READY))
        assert (await get(session, "/v2/health/ready"))[0] == 200


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        (READY, "", 200),
        (UNAVAILABLE, UNHEALTHY, 400),
        (UNAVAILABLE, "broken", 503),
        (LOADING, "joining the consumer group", 503),
        (ModelState.UNLOADING, "", 503),
    ],
)
async def test_SV04_SV05_a_models_readiness_by_its_state(log, state, reason, status):
    """One that is loaded and does not work is told apart from one that is not loaded, and from unknown ones."""
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        await tell(gateway, worker, version(1, state, reason))
        assert await get(session, "/v2/models/echo/versions/1/ready") == (status, b"")
        assert await get(session, "/v2/models/echo/versions/2/ready") == (404, b"")
        assert await get(session, "/v2/models/nope/ready") == (404, b"")
        await gateway.drain(1)
        assert await get(session, "/v2/models/echo/versions/1/ready") == (503, b"")


async def test_SV04_one_working_copy_is_enough(log):
    """Another worker's instance that cannot execute does not count against the model."""
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        await tell(gateway, worker, version(1, READY))
        other = Worker(log, worker="w2")
        await other.announce(versions=(version(1, UNAVAILABLE, UNHEALTHY),))
        await until(lambda: len(gateway.fleet.workers("echo", gateway.now_ms())) == 2)
        assert await get(session, "/v2/models/echo/ready") == (200, b"")
        assert await get(session, "/v2/health/ready") == (200, b"")


async def test_SV06_without_a_version_the_latest_ready_one_decides(log):
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        await tell(gateway, worker, version(1, READY), version(2, UNAVAILABLE, "broken"))
        assert await get(session, "/v2/models/echo/ready") == (200, b"")
        assert (await get(session, "/v2/models/echo/versions/2/ready"))[0] == 503
        await tell(gateway, worker, version(1, UNAVAILABLE, UNHEALTHY))
        assert (await get(session, "/v2/models/echo/ready"))[0] == 400
        await tell(gateway, worker, version(1, UNAVAILABLE, "unloaded"))
        assert (await get(session, "/v2/models/echo/ready"))[0] == 404
