"""SEMANTICS §2.8: sequences, schedule policy, shared memory, trace and logging settings, by HTTP."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from compat_kit import eventually, given, infer, part
from compat_rules import NEWER, differs, rule, since

shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")


def step(value):
    return [given(tritonclient.http, "INPUT0", np.array([[value]], np.int32), "INT32")]


@rule("PB-70", "TC-02")
@pytest.mark.parametrize("key", [4711, "a text"])
def test_a_sequence_by_number_or_text(http, key):
    totals = []
    for turn, value in enumerate([5, 7, 11]):
        result = http.infer(
            "total", step(value), sequence_id=key, sequence_start=turn == 0, sequence_end=turn == 2
        )
        totals.append(int(result.as_numpy("OUTPUT0")[0, 0]))
    assert totals == [5, 12, 23]


@rule("PB-70")
def test_a_sequence_model_wants_a_correlation_id(http):
    """SQ-01."""
    with pytest.raises(tritonclient.http.InferenceServerException) as caught:
        http.infer("total", step(1))
    assert "must specify a non-zero or non-empty correlation ID" in caught.value.message()
    assert caught.value.status() == "400"


@rule("PB-70")
def test_a_step_without_its_start_is_refused(http):
    """SQ-03."""
    with pytest.raises(tritonclient.http.InferenceServerException) as caught:
        http.infer("total", step(1), sequence_id=987_654)
    assert "must specify the START flag on the first request" in caught.value.message()
    assert caught.value.status() == "400"


@rule("PB-71")
def test_a_timeout_where_the_model_allows_one(target):
    """QT-04: while others execute and wait, the time in the queue of one that allows a millisecond passes."""
    tensor = part("INPUT0", "FP32", [1, 1], [1.0])

    def refused():
        answer = infer(target, "slow", tensor, parameters={"timeout": 1_000})
        return answer if answer.status != 200 else None

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(infer, target, "slow", tensor) for _ in range(3)]
        answer = eventually(refused, "one came while the others were there")
        assert answer.status == 503
        assert "Request timeout expired" in answer.error
        assert {other.result().status for other in others} == {200}


@rule("PB-71")
def test_a_timeout_where_the_model_has_none_does_nothing(target):
    """QT-03."""
    tensor = part("INPUT0", "FP32", [1, 1], [1.0])
    assert infer(target, "echo", tensor, parameters={"timeout": 1, "priority": 9}).status == 200


@rule("PB-71")
def test_a_full_queue_is_503(target):
    """QT-01: one executes and four wait; of eight at once some are refused at once."""
    tensor = part("INPUT0", "FP32", [1, 1], [1.0])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: infer(target, "slow", tensor), range(8)))
    refused = [answer for answer in answers if answer.status != 200]
    assert 1 <= len(refused) <= 4
    for answer in refused:
        assert answer.status == 503
        assert "Exceeds maximum queue size" in answer.error


@pytest.fixture
def region(http):
    """A system shared memory region of 64 bytes that the server knows."""
    handle = shared_memory.create_shared_memory_region("region", "/headrace-compat", 64)
    try:
        http.register_system_shared_memory("region", "/headrace-compat", 64)
        yield handle
        http.unregister_system_shared_memory("region")
    finally:
        shared_memory.destroy_shared_memory_region(handle)


@rule("PB-72", "PB-13")
def test_tensors_pass_through_shared_memory(http, region):
    values = np.array([[1.5, -2.0]], np.float32)
    shared_memory.set_shared_memory_region(region, [values])
    tensor = tritonclient.http.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_shared_memory("region", 8)
    asked = tritonclient.http.InferRequestedOutput("OUTPUT0")
    asked.set_shared_memory("region", 8, offset=16)
    result = http.infer("echo", [tensor], outputs=[asked])
    assert "data" not in result.get_output("OUTPUT0")
    assert result.get_output("OUTPUT0")["shape"] == [1, 2]
    found = shared_memory.get_contents_as_numpy(region, np.float32, [1, 2], offset=16)
    np.testing.assert_array_equal(found, values)


@rule("PB-72", "PB-13")
def test_the_status_names_the_region(http, region):
    assert http.get_system_shared_memory_status("region") == [
        {"name": "region", "key": "/headrace-compat", "offset": 0, "byte_size": 64}
    ]
    assert [each["name"] for each in http.get_system_shared_memory_status()] == ["region"]


@rule("PB-72", "PB-31")
def test_a_region_registered_twice_is_400(http, region):
    with pytest.raises(
        tritonclient.http.InferenceServerException, match="already in manager"
    ) as e:
        http.register_system_shared_memory("region", "/headrace-compat", 64)
    assert e.value.status() == "400"


@rule("PB-72")
def test_a_region_too_small_for_the_tensor_is_400(target, region):
    def ask(**parameters):
        named = {"shared_memory_region": "region", "shared_memory_byte_size": 8}
        return infer(target, "echo", part("INPUT0", "FP32", [1, 2], **(named | parameters)))

    assert ask().status == 200
    assert ask(shared_memory_offset=64).status == 400
    assert ask(shared_memory_byte_size=4).status == 400
    assert ask(shared_memory_region="nothing").status in (400, 404)


@rule("PB-72")
def test_unregistering_what_is_not_there_is_fine(http):
    http.unregister_system_shared_memory("nothing")
    http.unregister_system_shared_memory()


@rule("PB-72")
def test_a_key_that_is_not_there_is_an_error(http):
    with pytest.raises(tritonclient.http.InferenceServerException, match="shared memory region"):
        http.register_system_shared_memory("other", "/headrace-compat-nothing", 64)


@rule("PB-72")
@since(NEWER)
def test_shared_memory_is_off_by_default(strict):
    answer = strict.post(
        "/v2/systemsharedmemory/region/a/register", {"key": "/a", "offset": 0, "byte_size": 8}
    )
    assert answer.status == 501


REFUSED = "refused with a sentence, where Triton passes it over in silence"
TRACE = {"trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"}


@rule("PB-73")
def test_trace_settings(http):
    found = http.get_trace_settings()
    assert set(found) == TRACE
    assert (found["trace_level"], found["trace_rate"]) == (["OFF"], "1000")
    assert (found["trace_count"], found["log_frequency"]) == ("-1", "0")


@rule("PB-73", "PB-11")
def test_a_model_has_trace_settings_of_its_own_until_they_are_cleared(http):
    changed = http.update_trace_settings("echo", {"trace_rate": "7", "trace_count": "3"})
    assert (changed["trace_rate"], changed["trace_count"]) == ("7", "3")
    assert http.get_trace_settings("echo")["trace_rate"] == "7"
    assert http.get_trace_settings()["trace_rate"] == "1000"
    cleared = http.update_trace_settings("echo", {"trace_rate": None, "trace_count": None})
    assert (cleared["trace_rate"], cleared["trace_count"]) == ("1000", "-1")


@rule("PB-73")
def test_global_trace_settings_reach_models(http):
    http.update_trace_settings(settings={"log_frequency": "9"})
    assert http.get_trace_settings("simple")["log_frequency"] == "9"
    assert http.update_trace_settings(settings={"log_frequency": "0"})["log_frequency"] == "0"


@rule("PB-73")
@pytest.mark.parametrize(
    "settings",
    [
        {"trace_rate": "often"},
        {"trace_file": "/tmp/headrace-compat"},
    ],
)
def test_trace_settings_that_are_refused(target, settings):
    answer = target.post("/v2/trace/setting", settings)
    assert 400 <= answer.status < 600
    assert answer.error


@rule("PB-73")
@pytest.mark.parametrize(
    "settings",
    [
        {"nothing": "1"},
        pytest.param({"trace_mode": "opentelemetry"}, marks=differs(REFUSED)),
        pytest.param({"trace_level": ["LOUD"]}, marks=differs(REFUSED)),
    ],
)
def test_trace_settings_that_are_passed_over(target, settings):
    answer = target.post("/v2/trace/setting", settings)
    assert answer.status == 200
    assert (answer.json["trace_mode"], answer.json["trace_level"]) == ("triton", ["OFF"])


@rule("PB-73")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_trace_settings_of_an_unknown_model(target, method):
    answer = target.ask(method, "/v2/models/nobody/trace/setting", b"{}" * (method == "POST"))
    assert 400 <= answer.status < 500


LOGGING = {
    *("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"),
}


@rule("PB-74")
def test_logging_settings(http):
    found = http.get_log_settings()
    assert set(found) == LOGGING
    assert (found["log_info"], found["log_format"]) == (True, "default")
    assert found["log_verbose_level"] == 0


@rule("PB-74")
def test_any_subset_may_change_and_all_come_back(http):
    changed = http.update_log_settings({"log_warning": False, "log_verbose_level": 1})
    assert set(changed) == LOGGING
    assert (changed["log_warning"], changed["log_verbose_level"]) == (False, 1)
    back = http.update_log_settings({"log_warning": True, "log_verbose_level": 0})
    assert back["log_warning"] is True
    assert http.update_log_settings({"log_format": "ISO8601"})["log_format"] == "ISO8601"
    assert http.update_log_settings({"log_format": "default"})["log_format"] == "default"


@rule("PB-74")
@pytest.mark.parametrize("settings", [{"nothing": 1}, {"log_info": None}])
def test_unknown_keys_and_nulls_are_passed_over(target, settings):
    answer = target.post("/v2/logging", settings)
    assert answer.status == 200
    assert answer.json["log_info"] is True


@rule("PB-74")
@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"log_info": "yes"}, 500),
        ({"log_verbose_level": "1"}, 500),
        ({"log_format": "mine"}, 503),
        ({"log_file": "/tmp/headrace-compat"}, 501),
    ],
)
def test_logging_settings_that_are_refused(target, settings, status):
    answer = target.post("/v2/logging", settings)
    assert answer.status == status
    assert answer.error


@rule("PB-13", "PB-72")
def test_cuda_shared_memory_without_a_gpu(target):
    body = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}
    answer = target.post("/v2/cudasharedmemory/region/a/register", body)
    assert answer.status in (400, 501)
