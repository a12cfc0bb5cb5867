"""SEMANTICS §4.1: liveness and readiness of server and models."""

import http.client
import json
from dataclasses import replace

import compat_models
import compat_targets
import pytest
from compat_kit import eventually, infer, part
from compat_rules import NEWER, rule, since

ECHO = part("INPUT0", "FP32", [1, 2], [1.0, 2.0])


@rule("SV-01")
def test_live_does_not_depend_on_models(strict):
    answer = strict.get("/v2/health/live")
    assert (answer.status, answer.body) == (200, b"")


@rule("SV-02", "PB-02")
def test_not_ready_while_a_model_did_not_load(strict):
    answer = strict.get("/v2/health/ready")
    assert (answer.status, answer.body) == (400, b"")


@rule("SV-02")
def test_readiness_never_gates_requests(strict):
    assert strict.get("/v2/health/ready").status == 400
    assert infer(strict, "echo", ECHO).status == 200


@rule("SV-05")
def test_a_model_is_ready_where_another_did_not_load(strict):
    assert strict.get("/v2/models/echo/ready").status == 200
    assert strict.get("/v2/models/broken/ready").status != 200


@rule("SV-05")
@since(NEWER)  # 2.51 answers 400 for all of them
@pytest.mark.parametrize(("path", "status"), [("nobody", 404), ("broken/versions/1", 503)])
def test_why_a_model_is_not_ready(strict, path, status):
    assert strict.get(f"/v2/models/{path}/ready").status == status


@rule("SV-06")
def test_without_a_version_the_latest_ready_one_decides(target):
    assert target.get("/v2/models/versions/ready").status == 200
    assert target.get("/v2/models/versions/versions/2/ready").status == 200


LONG = {
    "long": replace(compat_models.MODELS["slow"], script={"execute_delay_ms": "2000"}),
}


@rule("SV-01", "SV-05")
@since(NEWER)  # 2.51 closes the connection
def test_a_server_that_ends_says_so_and_answers_what_is_open(server, marked, tmp_path):
    """A request runs for a while, so that there is time to ask."""
    root = compat_targets.write(server, tmp_path / server, LONG)
    with compat_targets.running(server, root) as started:
        target = marked(started)
        open_call = http.client.HTTPConnection(target.http, timeout=30)
        body = json.dumps({"inputs": [part("INPUT0", "FP32", [1, 1], [1.0])]})
        open_call.request("POST", "/v2/models/long/infer", body)

        def is_open():
            page = target.ask("GET", "/metrics", address=target.metrics).body
            return target.name == "triton" or b"headrace_gateway_open_calls 1" in page

        eventually(is_open, "the call is open")
        target.stop()
        eventually(lambda: target.get("/v2/health/live").status == 503, "not live")
        assert target.get("/v2/health/live").error == "Server exiting"
        assert target.get("/v2/models/long/ready").status == 503
        assert open_call.getresponse().status == 200
        open_call.close()
