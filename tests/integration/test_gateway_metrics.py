"""The metrics server, fed by a gateway and its fleet."""

import asyncio
import re

import aiohttp
import pytest
from gateway_kit import TOPOLOGY, Worker, identity_config, running, until
from headrace.schemas.errors import ConfigError, InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.counts import ModelCounts
from headrace.streams.gateway import Gateway
from headrace.streams.gateway_metrics import GatewayMetrics
from headrace.streams.memory import MemoryLog
from headrace.streams.metrics import MetricsServer, metrics_page
from headrace.streams.status import ModelState, VersionStatus
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

X = Tensor("INPUT0", Datatype.FP32, (1, 2), bytes(8))


async def scraped(port, path="/metrics"):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, response.headers.get("Content-Type"), await response.text()


async def test_MX01_B78_the_page_shows_the_fleet_and_the_gateway():
    log, registry = MemoryLog(), CollectorRegistry()
    metrics = GatewayMetrics(registry)
    worker = Worker(log)
    async with running(worker), Gateway(log, TOPOLOGY, observer=metrics) as gateway:
        metrics.watch(gateway)
        await gateway.wait_ready()
        for asked in (InferRequest((X,)), InferRequest((X,)), InferRequest(())):
            await asyncio.gather(gateway.infer("echo", "", asked), return_exceptions=True)
        with pytest.raises(InferError):
            await gateway.infer("a client's \n word", "", InferRequest((X,)))
        config = identity_config(metric_tags={"team": "a"})
        counts = ModelCounts(success=2, inference_count=2)
        await worker.announce(versions=(VersionStatus(1, ModelState.READY, "", config, counts),))
        await until(lambda: gateway.fleet.series(gateway.now_ms())[0].counts.success)
        series = gateway.fleet.series
        async with MetricsServer(
            lambda: metrics_page(series(gateway.now_ms()), registry), port=0
        ) as server:
            status, content_type, page = await scraped(server.port)
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = page.splitlines()
    assert 'nv_inference_request_success{_team="a",model="echo",version="1"} 2' in lines
    assert "headrace_gateway_open_calls 0.0" in lines
    assert 'headrace_gateway_refused_calls_total{reason="invalid_request"} 1.0' in lines
    name = "headrace_gateway_call_duration_seconds_count"
    assert f'{name}{{model="echo",status="OK"}} 2.0' in lines
    assert f'{name}{{model="echo",status="INVALID_ARG"}} 1.0' in lines
    assert "word" not in page
    check_conventions(page)


def check_conventions(page):
    """FAULTS B78: one prefix, base units, ``_total`` on counters, help on all: what promtool's linter asks for."""
    families = [f for f in text_string_to_metric_families(page) if not f.name.startswith("nv_")]
    assert families
    for family in families:
        assert family.name.startswith("headrace_")
        assert family.documentation
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert not re.search(r"_(ms|us|ns|milliseconds|microseconds)(_|$)", family.name)
        if "duration" in family.name and family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {f"{family.name}_total"}


async def test_series_of_a_model_that_is_gone_vanish():
    log, registry = MemoryLog(), CollectorRegistry()
    metrics = GatewayMetrics(registry)
    worker = Worker(log)
    async with running(worker), Gateway(log, TOPOLOGY, observer=metrics) as gateway:
        metrics.watch(gateway)
        await gateway.wait_ready()
        await gateway.infer("echo", "", InferRequest((X,)))
        assert b'model="echo"' in metrics_page(gateway.fleet.series(gateway.now_ms()), registry)
        from headrace.streams.announce import Announcer
        from headrace.streams.status import worker_key

        async with log.publisher() as publisher:
            await Announcer(log, publisher, TOPOLOGY.status).clear([worker_key("w1", "echo")])
        await until(lambda: not gateway.fleet.models())
        assert b'model="echo"' not in metrics_page(gateway.fleet.series(0), registry)
        assert b'model="echo"' not in metrics_page((), registry)


async def test_PB14_paths_of_the_metrics_server_and_health():
    well = {"live": True, "ready": False}
    health = {f"/health/{name}": lambda name=name: well[name] for name in well}
    async with MetricsServer(lambda: b"page 1\n", health=health, port=0) as server:
        assert (await scraped(server.port))[2] == "page 1\n"
        assert (await scraped(server.port, "/metrics/"))[2] == "page 1\n"
        for path in ("/", "/metric", "/metrics/x", "/health"):
            status, _, text = await scraped(server.port, path)
            assert (status, text) == (200, "")
        assert (await scraped(server.port, "/health/live"))[0] == 200
        assert (await scraped(server.port, "/health/ready"))[0] == 503
        well["ready"] = True
        assert (await scraped(server.port, "/health/ready"))[0] == 200


async def test_a_taken_port_is_one_sentence():
    async with MetricsServer(lambda: b"", port=0) as server:
        with pytest.raises(ConfigError, match=rf"metrics-port = 127\.0\.0\.1:{server.port}"):
            async with MetricsServer(lambda: b"", port=server.port):
                pass


async def test_a_taken_http_port_is_one_sentence_too():
    from headrace.streams.http import HttpServer
    from headrace.streams.http_call import HttpSettings

    log = MemoryLog()
    async with (
        Gateway(log, TOPOLOGY) as gateway,
        HttpServer(gateway, HttpSettings(port=0)) as server,
    ):
        with pytest.raises(ConfigError, match="http-port"):
            async with HttpServer(gateway, HttpSettings(port=server.port)):
                pass
