"""SEMANTICS §2.7, §2.8 and PB-22 over gRPC, and the services beside Triton's own."""

import contextlib

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
from compat_kit import add_sub, eventually, settled
from compat_rules import NEWER, rule, since
from tritonclient.utils import InferenceServerException


@rule("ST-01", "ST-02", "ST-06")
def test_statistics_over_grpc(grpc):
    def count():
        (found,) = grpc.get_inference_statistics("simple").model_stats
        return found.inference_stats.success.count, found.inference_count, found.execution_count

    before = settled(count)
    grpc.infer("simple", add_sub(tritonclient.grpc))
    wanted = tuple(number + 1 for number in before)
    eventually(lambda: count() == wanted, "one more of each")
    names = {each.name for each in grpc.get_inference_statistics().model_stats}
    assert {"simple", "echo", "repeat"} <= names
    with pytest.raises(InferenceServerException, match="is not available") as caught:
        grpc.get_inference_statistics("nobody")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@rule("PB-73")
def test_trace_settings_over_grpc(grpc):
    found = grpc.get_trace_settings().settings
    assert list(found["trace_rate"].value) == ["1000"]
    changed = grpc.update_trace_settings("scores", {"trace_rate": "7"}).settings
    assert list(changed["trace_rate"].value) == ["7"]
    cleared = grpc.update_trace_settings("scores", {"trace_rate": None}).settings
    assert list(cleared["trace_rate"].value) == ["1000"]


@rule("PB-74")
def test_logging_settings_over_grpc(grpc):
    found = grpc.get_log_settings().settings
    assert found["log_info"].bool_param is True
    assert found["log_format"].string_param == "default"
    changed = grpc.update_log_settings({"log_verbose_level": 2}).settings
    assert changed["log_verbose_level"].uint32_param == 2
    assert grpc.update_log_settings({"log_verbose_level": 0}).settings


@rule("PB-72", "PB-13")
def test_shared_memory_over_grpc(grpc):
    shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")
    with contextlib.ExitStack() as stack:
        handle = shared_memory.create_shared_memory_region("g", "/headrace-compat-grpc", 64)
        stack.callback(shared_memory.destroy_shared_memory_region, handle)
        values = np.array([[1.5, -2.0]], np.float32)
        shared_memory.set_shared_memory_region(handle, [values])
        grpc.register_system_shared_memory("g", "/headrace-compat-grpc", 64)
        stack.callback(grpc.unregister_system_shared_memory, "g")
        region = grpc.get_system_shared_memory_status("g").regions["g"]
        assert (region.key, region.byte_size) == ("/headrace-compat-grpc", 64)
        with pytest.raises(InferenceServerException, match="already in manager") as caught:
            grpc.register_system_shared_memory("g", "/headrace-compat-grpc", 64)
        assert caught.value.status() == "StatusCode.ALREADY_EXISTS"
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_shared_memory("g", 8)
        asked = tritonclient.grpc.InferRequestedOutput("OUTPUT0")
        asked.set_shared_memory("g", 8, offset=16)
        result = grpc.infer("echo", [tensor], outputs=[asked])
        assert list(result.get_output("OUTPUT0").shape) == [1, 2]
        found = shared_memory.get_contents_as_numpy(handle, np.float32, [1, 2], offset=16)
        np.testing.assert_array_equal(found, values)


@rule("PB-22")
def test_restricted_groups_over_grpc(strict):
    with tritonclient.grpc.InferenceServerClient(strict.grpc) as client:
        for call in (client.get_model_config, client.get_inference_statistics):
            with pytest.raises(InferenceServerException, match="This protocol is restricted") as e:
                call("echo")
            assert e.value.status() == "StatusCode.UNAVAILABLE"
            assert call("echo", headers={"triton-grpc-protocol-secret-key": "open sesame"})
        assert client.get_model_metadata("echo").name == "echo"


@rule("PB-02")
def test_the_standard_health_service(target):
    """grpc.health.v1, in bytes: an empty HealthCheckRequest, SERVING is field 1 with value 1."""
    with grpc_core.insecure_channel(target.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"


@rule("PB-02")
@since(NEWER)
def test_server_reflection(target):
    """ServerReflectionRequest with ``list_services`` (field 7); the service's name is in what comes back."""
    with grpc_core.insecure_channel(target.grpc) as channel:
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        answers = channel.stream_stream(path)(iter([b"\x3a\x00"]), timeout=20)
        assert b"inference.GRPCInferenceService" in next(answers)
