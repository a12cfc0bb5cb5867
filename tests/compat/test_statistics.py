"""SEMANTICS §2.7: statistics by HTTP; those of gRPC are in `test_grpc`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from compat_kit import SIXTEEN, add_sub, eventually, infer, part, settled
from compat_models import FAILURE
from compat_rules import NEWER, rule, since

DURATIONS = {
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
    *("cache_hit", "cache_miss"),
}


def stats(target, model="simple", version=""):
    path = (
        f"/v2/models/{model}/versions/{version}/stats" if version else f"/v2/models/{model}/stats"
    )
    (found,) = target.get(path).json["model_stats"]
    return found


def counts(found):
    """Return every count of statistics that were read."""
    inference = {key: each["count"] for key, each in found["inference_stats"].items()}
    return {**inference, "rows": found["inference_count"], "executions": found["execution_count"]}


def added(before, target, model="simple"):
    after = counts(stats(target, model))
    return {key: after[key] - before[key] for key in after if after[key] != before[key]}


@rule("ST-01")
def test_statistics_have_this_shape(target, http):
    http.infer("simple", add_sub(tritonclient.http))
    found = eventually(
        lambda: (now := stats(target))["inference_count"] and now, "an inference is counted"
    )
    assert set(found) >= {
        *("name", "version", "last_inference", "inference_count", "execution_count"),
        *("inference_stats", "batch_stats"),
    }
    assert set(found["inference_stats"]) == DURATIONS
    for each in found["inference_stats"].values():
        assert set(each) == {"count", "ns"}
    assert (found["name"], found["version"]) == ("simple", "1")
    # Milliseconds since 1970.
    assert 1.5e12 < found["last_inference"] < 1e13
    (batch, *_) = found["batch_stats"]
    assert set(batch) == {"batch_size", "compute_input", "compute_infer", "compute_output"}


@rule("ST-01")
def test_statistics_of_all_models(http):
    found = http.get_inference_statistics()["model_stats"]
    assert {("versions", "1"), ("versions", "2"), ("echo", "1")} <= {
        (each["name"], each["version"]) for each in found
    }


@rule("ST-02", "ST-03")
@pytest.mark.parametrize("rows", [1, 5])
def test_a_success_adds(target, http, rows):
    inputs = add_sub(tritonclient.http, *(np.repeat(SIXTEEN, rows, axis=0) for _ in range(2)))
    before = settled(lambda: counts(stats(target)))
    http.infer("simple", inputs)
    one = ("success", "queue", "compute_input", "compute_infer", "compute_output", "executions")
    expected = {**dict.fromkeys(one, 1), "rows": rows}
    eventually(lambda: added(before, target) == expected, f"counts rise by {expected}")
    sizes = {each["batch_size"] for each in stats(target)["batch_stats"]}
    assert rows in sizes


@rule("ST-02")
def test_each_version_has_its_own(target):
    ones = [1.0] * 16
    inputs = [part(f"INPUT{i}", "FP32", [1, 16], ones) for i in range(2)]
    before = settled(
        lambda: [stats(target, "versions", version)["inference_count"] for version in "12"]
    )
    infer(target, "versions/versions/1", *inputs)
    eventually(
        lambda: (
            [stats(target, "versions", version)["inference_count"] for version in "12"]
            == [before[0] + 1, before[1]]
        ),
        "only version 1 is counted",
    )


@rule("ST-02")
def test_a_batch_of_several_requests_is_one_execution(target):
    """While one runs, the others of ``echo`` wait and are merged; executions are fewer than successes at the end."""
    before = settled(lambda: counts(stats(target, "echo")))
    body = part("INPUT0", "FP32", [1, 1], [1.0])
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: infer(target, "echo", body).status, range(160)))
    assert set(answers) == {200}
    eventually(lambda: added(before, target, "echo").get("success") == 160, "all are counted")
    found = added(before, target, "echo")
    assert found["rows"] == 160
    assert 160 / 8 <= found["executions"] <= 160


@rule("ST-05")
def test_a_failure_adds_to_fail_only(target):
    before = settled(lambda: counts(stats(target, "echo")))
    assert infer(target, "echo", part("INPUT0", "FP32", [1, 1], [FAILURE])).status == 500
    eventually(lambda: added(before, target, "echo").get("fail") == 1, "the failure is counted")
    found = added(before, target, "echo")
    assert not {"success", "queue"} & set(found)
    assert stats(target, "echo")["inference_stats"]["fail"]["ns"] > 0


@rule("ST-06")
@pytest.mark.parametrize(
    "path", ["nobody/stats", "nobody/versions/1/stats", "echo/versions/9/stats"]
)
def test_statistics_of_what_is_not_there_are_400(target, path):
    answer = target.get(f"/v2/models/{path}")
    assert answer.status == 400
    assert "requested model" in answer.error
    assert f"'{path.partition('/')[0]}'" in answer.error
    assert "is not available" in answer.error


@rule("ST-06")
def test_only_ready_versions_are_listed(strict):
    answer = strict.get("/v2/models/stats", {"secret-key": "open sesame"})
    assert answer.status == 200
    names = {each["name"] for each in answer.json["model_stats"]}
    assert "echo" in names
    assert "broken" not in names


@rule("ST-01")
@since(NEWER)  # the python backend of 2.51 reports none
def test_response_statistics_of_a_decoupled_model(target):
    body = {"INPUT0": 5, "COUNT": 2}
    assert target.post("/v2/models/repeat/generate_stream", body).status == 200
    found = eventually(lambda: stats(target, "repeat").get("response_stats"), "response_stats")
    assert {"0", "1"} <= set(found)
    assert set(found["0"]) == {
        *("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"),
    }
    assert found["0"]["success"]["count"] >= 1
    assert not stats(target, "simple").get("response_stats")
