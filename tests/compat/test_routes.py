"""SEMANTICS §2.1: which path with which verb is what."""

import contextlib
import gzip
import http.client
import json

import numpy as np
import pytest
from compat_kit import LENGTH, infer, part
from compat_rules import NEWER, differs, rule, since

ECHO = part("INPUT0", "FP32", [1, 2], [1.0, 2.0])


@rule("PB-01")
def test_server_metadata_has_its_route(target):
    answer = target.get("/v2")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"name", "version", "extensions"}


@rule("PB-02", "PB-30")
@pytest.mark.parametrize("what", ["live", "ready"])
def test_health_is_200_with_an_empty_body(target, what):
    answer = target.get(f"/v2/health/{what}")
    assert (answer.status, answer.body) == (200, b"")


@rule("PB-03", "SV-05")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("versions", 200),
        ("versions/versions/1", 200),
        ("versions/versions/2", 200),
    ],
)
def test_readiness_of_a_model(target, path, status):
    assert target.get(f"/v2/models/{path}/ready").status == status


@rule("PB-03", "SV-05")
@since(NEWER)  # 2.51 answers 400
@pytest.mark.parametrize(
    ("path", "status"),
    [("versions/versions/9", 404), ("nobody", 404), ("nobody/versions/1", 404)],
)
def test_readiness_of_what_is_not_there(target, path, status):
    assert target.get(f"/v2/models/{path}/ready").status == status


@rule("PB-04", "PB-07")
@pytest.mark.parametrize("path", ["", "/config"])
@pytest.mark.parametrize("model", ["versions", "versions/versions/1"])
def test_metadata_and_configuration_have_their_routes(target, model, path):
    answer = target.get(f"/v2/models/{model}{path}")
    assert (answer.status, answer.json["name"]) == (200, "versions")


@rule("PB-05")
@pytest.mark.parametrize("version", ["", "1", "2"])
def test_infer_has_its_route(target, version):
    ones = [1.0] * 16
    inputs = [part(f"INPUT{i}", "FP32", [16], ones) for i in range(2)]
    for tensor in inputs:
        tensor["shape"] = [1, 16]
    model = f"versions/versions/{version}" if version else "versions"
    answer = infer(target, model, *inputs)
    assert answer.status == 200
    assert answer.json["model_version"] == (version or "2")
    sums = answer.json["outputs"][1 if answer.json["model_version"] == "2" else 0]
    assert sums["data"] == [2.0] * 16


@rule("PB-06")
@pytest.mark.parametrize("model", ["echo", "echo/versions/1"])
def test_generate_has_its_routes(target, model):
    assert target.post(f"/v2/models/{model}/generate", {"INPUT0": [1.0]}).status == 200
    answer = target.post(f"/v2/models/{model}/generate_stream", {"INPUT0": [1.0]})
    assert answer.status == 200
    assert answer.body.startswith(b"data: {")


@rule("PB-08")
@pytest.mark.parametrize("path", ["stats", "versions/stats", "versions/versions/1/stats"])
def test_statistics_have_their_routes(target, path):
    answer = target.get(f"/v2/models/{path}")
    assert answer.status == 200
    assert {"versions"} <= {each["name"] for each in answer.json["model_stats"]}


@rule("PB-09")
@pytest.mark.parametrize("body", [None, {}, {"ready": True}, {"ready": False}])
def test_the_index_has_its_route(target, body):
    answer = target.post("/v2/repository/index", body)
    assert answer.status == 200
    assert {"name": "versions", "version": "1", "state": "READY"} in answer.json


@rule("PB-10", "PB-31")
@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("body", [None, {}, {"parameters": {}}])
def test_load_and_unload_are_refused_where_the_mode_is_none(target, verb, body):
    """MC-01."""
    answer = target.post(f"/v2/repository/models/echo/{verb}", body)
    assert answer.status == 503
    assert "explicit model load / unload is not allowed" in answer.error


@rule("PB-11")
@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/simple/trace/setting"])
def test_trace_settings_have_their_routes(target, path):
    for answer in (target.get(path), target.post(path, {})):
        assert answer.status == 200
        assert "trace_level" in answer.json


@rule("PB-12")
def test_logging_settings_have_their_route(target):
    for answer in (target.get("/v2/logging"), target.post("/v2/logging", {})):
        assert answer.status == 200
        assert "log_verbose_level" in answer.json


@rule("PB-13")
@pytest.mark.parametrize("path", ["status", "region/nothing/status"])
def test_shared_memory_has_its_status(target, path):
    answer = target.get(f"/v2/systemsharedmemory/{path}")
    if path == "status":
        assert (answer.status, answer.json) == (200, [])
    else:
        assert answer.status == 404
        assert "Unable to find system shared memory region: 'nothing'" in answer.error


@rule("PB-14")
@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/elsewhere", "/"])
def test_metrics_are_on_a_port_of_their_own(target, path):
    answer = target.ask("GET", path, address=target.metrics)
    assert answer.status == 200
    assert (b"nv_inference_request_success" in answer.body) is path.startswith("/metrics")


@rule("PB-20")
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "/v2/nothing",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/echo/",
        "/v2/models/echo/nothing",
        "/v2/models/echo/versions/one",
        "/v2/models/echo/versions/1a/ready",
        "/v2/models/echo/versions/",
        "/v3",
    ],
)
def test_no_such_path(target, path):
    answer = target.get(path)
    assert (answer.status, answer.json) == (404, {"error": "Not Found"})


@rule("PB-20")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("GET", "/v2/models/echo/infer"),
        ("POST", "/v2/models/echo/config"),
        ("POST", "/v2/models/echo"),
        ("GET", "/v2/repository/index"),
        ("POST", "/v2/models/stats"),
        ("GET", "/v2/models/echo/generate"),
        ("DELETE", "/v2/logging"),
        ("GET", "/v2/repository/models/echo/load"),
    ],
)
def test_the_wrong_verb(target, method, path):
    answer = target.ask(method, path)
    assert (answer.status, answer.json) == (405, {"error": "Method Not Allowed"})


@rule("PB-20")
def test_query_strings_are_ignored(target):
    assert target.get("/v2/models/echo/ready?a=b&c").status == 200
    assert target.get("/v2?x").json == target.get("/v2").json


@rule("PB-21")
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_forms_with_a_repository_parse_and_are_not_offered(target, verb):
    answer = target.post(f"/v2/repository/mine/models/echo/{verb}")
    assert answer.status == 501
    assert answer.error


@rule("PB-21", "PB-09")
def test_the_index_passes_over_a_repository_s_name(target):
    answer = target.post("/v2/repository/mine/index")
    assert (answer.status, answer.json) == (200, target.post("/v2/repository/index").json)


RESTRICTED = ["/v2/models/echo/config", "/v2/models/echo/stats", "/v2/models/stats"]


@rule("PB-22")
@pytest.mark.parametrize("path", RESTRICTED)
@pytest.mark.parametrize("headers", [{}, {"secret-key": "open"}, {"other": "open sesame"}])
def test_a_restricted_group_is_refused_without_its_header(strict, path, headers):
    answer = strict.get(path, headers)
    assert answer.status == 403
    assert "This API is restricted" in answer.error


@rule("PB-22")
@pytest.mark.parametrize("path", RESTRICTED)
def test_a_restricted_group_is_open_with_its_header(strict, path):
    assert strict.get(path, {"secret-key": "open sesame"}).status == 200


@rule("PB-22")
def test_other_groups_stay_open(strict):
    assert strict.get("/v2/models/echo").status == 200
    assert infer(strict, "echo", ECHO).status == 200


@rule("PB-23")
@differs(
    "a gateway listens once it can take calls; that no worker is ready yet is told by readiness",
    run=False,
)
def test_nothing_answers_before_models_are_loaded(target):
    assert target.early == []


LIMIT = 20_000
"""``--http-max-input-size`` of the strict server."""


def sized(count):
    return part("INPUT0", "FP32", [1, count], [1] * count)


@rule("PB-24")
def test_a_body_up_to_the_limit_is_taken(strict):
    assert infer(strict, "echo", sized(1_000)).status == 200


@rule("PB-24")
@since(NEWER)
def test_json_above_the_limit(strict):
    answer = infer(strict, "echo", sized(LIMIT))
    assert answer.status == 400
    assert "exceeds the maximum allowed value" in answer.error


@rule("PB-24")
@since(NEWER)
def test_a_tensor_above_the_limit_though_its_json_is_below(strict):
    body = json.dumps({"inputs": [sized(LIMIT // 3)]}, separators=(",", ":")).encode()
    assert len(body) < LIMIT
    answer = strict.post("/v2/models/echo/infer", body)
    assert answer.status == 400
    assert "exceeds the maximum allowed" in answer.error


@rule("PB-24", "BN-07")
@since(NEWER)
def test_a_raw_body_above_the_limit(strict):
    body = np.ones(LIMIT, np.float32).tobytes()
    answer = strict.post("/v2/models/echo/infer", body, {LENGTH: "0"})
    assert answer.status == 400
    assert "exceeds the maximum allowed" in answer.error


MAX_CHUNKS = 65_536


@rule("PB-24")
@since(NEWER)
@pytest.mark.parametrize(("chunks", "status"), [(1_000, 200), (MAX_CHUNKS + 1_000, 400)])
def test_a_body_in_too_many_chunks(target, chunks, status):
    body = json.dumps({"inputs": [ECHO]}).encode()
    connection = http.client.HTTPConnection(target.http, timeout=30)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/v2/models/echo/infer")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        with contextlib.suppress(ConnectionError):  # refused before all of it was read
            connection.send(b"1\r\n \r\n" * chunks)
            connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert connection.getresponse().status == status


@rule("PB-24", "BN-08")
@since(NEWER)
def test_what_a_compressed_body_unfolds_to(strict):
    body = gzip.compress(json.dumps({"inputs": [sized(LIMIT)]}).encode())
    assert len(body) < LIMIT / 10
    answer = strict.post("/v2/models/echo/infer", body, {"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert "exceeds the maximum allowed" in answer.error
