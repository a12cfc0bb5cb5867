"""Paths of the V2 protocol: whole paths only (SEMANTICS PB-20)."""

import pytest
from headrace.streams.http_routes import Kind, resolve


@pytest.mark.parametrize(
    ("path", "kind", "model", "version"),
    [
        ("/v2", Kind.SERVER, "", ""),
        ("/v2?x=1", Kind.SERVER, "", ""),
        ("/v2/health/live", Kind.LIVE, "", ""),
        ("/v2/health/ready?verbose", Kind.READY, "", ""),
        ("/v2/models/m", Kind.MODEL, "m", ""),
        ("/v2/models/m/versions/3", Kind.MODEL, "m", "3"),
        ("/v2/models/versions", Kind.MODEL, "versions", ""),
        ("/v2/models/versions/versions/1/ready", Kind.MODEL_READY, "versions", "1"),
        ("/v2/models/m/ready", Kind.MODEL_READY, "m", ""),
        ("/v2/models/m/config", Kind.CONFIG, "m", ""),
        ("/v2/models/m/infer", Kind.INFER, "m", ""),
        ("/v2/models/a%2Fb%20c/versions/12/infer", Kind.INFER, "a/b c", "12"),
        ("/v2/repository/index", Kind.INDEX, "", ""),
        ("/v2/repository/models/m/load", Kind.CONTROL, "m", ""),
        ("/v2/repository/models/m/unload", Kind.CONTROL, "m", ""),
        ("/v2/repository/r/index", Kind.INDEX, "", ""),
        ("/v2/repository/r/models/m/load", Kind.ABSENT, "", ""),
        ("/v2/models/stats", Kind.STATISTICS, "", ""),
        ("/v2/models/m/versions/1/stats", Kind.STATISTICS, "m", "1"),
        ("/v2/models/m/generate_stream", Kind.GENERATE_STREAM, "m", ""),
        ("/v2/trace/setting", Kind.TRACE, "", ""),
        ("/v2/models/m/trace/setting", Kind.TRACE, "m", ""),
        ("/v2/logging", Kind.LOGGING, "", ""),
        ("/v2/systemsharedmemory/status", Kind.SYSTEM_SHARED_MEMORY, "", ""),
        ("/v2/cudasharedmemory/region/r/register", Kind.CUDA_SHARED_MEMORY, "", ""),
    ],
)
def test_PB01_to_PB13_paths_are_told_apart(path, kind, model, version):
    found = resolve(path)
    assert found is not None
    assert (found.kind, found.model, found.version) == (kind, model, version)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v2/",
        "/v2x",
        "//v2",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models",
        "/v2/models/",
        "/v2/models/m/",
        "/v2/models//infer",
        "/v2/models/m/infer/",
        "/v2/models/m/infer/x",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/1.0/infer",
        "/v2/models/m/versions/\u0661/infer",
        "/v2/models/m/versions/1/versions/2",
        "/v2/models/m/predict",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/repository",
        "/v2/repository/models/m",
        "/v2/repository/models/m/reload",
        "/v2/systemsharedmemory/register",
        "/v2/systemsharedmemory/region/r",
        "/metrics",
    ],
)
def test_PB20_anything_else_is_no_route(path):
    assert resolve(path) is None


def test_PB13_shared_memory_paths_name_the_region_and_what_to_do():
    found = resolve("/v2/systemsharedmemory/region/a%2Fb/register")
    assert (found.region, found.feature, found.methods) == ("a/b", "register", ("POST",))
    found = resolve("/v2/systemsharedmemory/unregister")
    assert (found.region, found.feature) == ("", "unregister")
