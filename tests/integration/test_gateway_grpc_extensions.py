"""Triton's extensions over gRPC, asked by Triton's own clients at a gateway on a memory log (SEMANTICS §2.7, §2.8)."""

import asyncio
import json
import uuid
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_module
from gateway_kit import Worker, identity_config, running
from grpc_kit import infer_request, refusal, serving_grpc
from headrace.streams.counts import BatchCounts, ModelCounts
from headrace.streams.extensions import Extensions
from headrace.streams.memory import MemoryLog
from headrace.streams.shared_memory import SHM_FOLDER, SharedMemory
from headrace.streams.status import ModelState, VersionStatus
from headrace.streams.trace_file import TraceFile
from headrace.streams.trace_settings import TraceSetting, TraceSettings
from tritonclient.grpc import aio, service_pb2

VALUES = np.array([[1.5, -2.0, 3.0, 4.0]], np.float32)


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def extensions():
    made = Extensions(TraceSettings(path="/t.json"), memory=SharedMemory(is_allowed=True))
    yield made
    made.memory.clear()


def client(served):
    return client_module.InferenceServerClient(served.target)


async def test_PB08_ST01_ST06_statistics_as_over_http(log):
    counts = ModelCounts(success=3, inference_count=9, exec_count=2, queue_ns=1_234_567)
    counts.batches[4] = BatchCounts(2, 7, 250, 15)
    version = VersionStatus(1, ModelState.READY, config=identity_config(), counts=counts)
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        await worker.announce(versions=(version,))

        def work():
            with client(served) as asking:
                while True:
                    (item,) = asking.get_inference_statistics("echo").model_stats
                    if item.inference_count:
                        break
                assert (item.name, item.version, item.execution_count) == ("echo", "1", 2)
                assert (item.inference_stats.queue.count, item.inference_stats.queue.ns) == (
                    3,
                    1_234_567,
                )
                (batch,) = item.batch_stats
                assert (batch.batch_size, batch.compute_infer.ns) == (4, 250)
                found = asking.get_inference_statistics("echo", "1", as_json=True)
                assert found["model_stats"][0]["inference_count"] == "9"
                with pytest.raises(client_module.InferenceServerException) as caught:
                    asking.get_inference_statistics("nope")
                assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
                assert "requested model 'nope' is not available" in caught.value.message()

        await asyncio.to_thread(work)


async def test_PB73_PB74_settings_are_changed_and_cleared(log, extensions):
    """Over both of Triton's clients; the objects are the ones that HTTP would show."""
    async with running(Worker(log)), serving_grpc(log, extensions=extensions) as served:

        def work():
            with client(served) as asking:
                given = {"trace_level": ["TIMESTAMPS"], "trace_rate": "2"}
                found = asking.update_trace_settings("echo", given, as_json=True)["settings"]
                assert found["trace_level"]["value"] == ["TIMESTAMPS"]
                assert found["trace_rate"]["value"] == ["2"]
                asking.update_trace_settings("echo", {"trace_level": None, "trace_rate": None})
                assert asking.get_trace_settings("echo") == asking.get_trace_settings()
                with pytest.raises(client_module.InferenceServerException, match="unknown model"):
                    asking.update_trace_settings("nope", given)
                with pytest.raises(client_module.InferenceServerException, match="only 1 value"):
                    asking.update_trace_settings("", {"trace_rate": ["1", "2"]})
                found = asking.update_log_settings(
                    {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
                )
                assert found.settings["log_info"].bool_param is False
                assert found.settings["log_verbose_level"].uint32_param == 1
                assert found.settings["log_format"].string_param == "ISO8601"
                with pytest.raises(client_module.InferenceServerException) as caught:
                    asking.update_log_settings({"log_file": "x"})
                assert caught.value.status() == "StatusCode.UNIMPLEMENTED"

        await asyncio.to_thread(work)
        assert extensions.logs.shown()["log_info"] is False
        async with aio.InferenceServerClient(served.target) as asking:
            found = await asking.update_trace_settings(settings={"trace_count": "5"})
            assert list(found.settings["trace_count"].value) == ["5"]
            found = await asking.get_log_settings(as_json=True)
            assert found["settings"]["log_error"] == {"bool_param": True}


async def test_PB60_the_extensions_that_are_offered_are_named(log, extensions):
    async with serving_grpc(log, extensions=extensions) as served, serving_grpc(log) as plain:
        request = service_pb2.ServerMetadataRequest()
        found = (await served.stub.ServerMetadata(request)).extensions
        assert list(found) == extensions.names()
        assert "system_shared_memory" in found
        assert "system_shared_memory" not in (await plain.stub.ServerMetadata(request)).extensions


@pytest.mark.parametrize("rpc", ["Register", "Unregister", "Status"])
async def test_PB72_without_a_gpu_or_the_switch_it_is_unimplemented(log, extensions, rpc):
    async with serving_grpc(log, extensions=extensions) as served, serving_grpc(log) as plain:
        request = getattr(service_pb2, f"CudaSharedMemory{rpc}Request")(name="r")
        error = await refusal(getattr(served.stub, f"CudaSharedMemory{rpc}")(request))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "GPU" in error.details()
        if rpc == "Status":
            return
        request = getattr(service_pb2, f"SystemSharedMemory{rpc}Request")(name="r")
        error = await refusal(getattr(plain.stub, f"SystemSharedMemory{rpc}")(request))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "--allow-client-shm=true" in error.details()


def regioned(target, offset=0, region="r", size=16):
    target.parameters["shared_memory_region"].string_param = region
    target.parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        target.parameters["shared_memory_offset"].int64_param = offset


@pytest.fixture
def shared():
    """A shared memory object of 64 bytes with the values in front."""
    if not Path(SHM_FOLDER).is_dir():
        pytest.skip(f"there is no {SHM_FOLDER}")
    path = Path(SHM_FOLDER) / f"headrace-test-{uuid.uuid4().hex}"
    path.write_bytes(VALUES.tobytes().ljust(64, b"\0"))
    yield path
    path.unlink()


def asked(**places):
    """Return a request whose input is in shared memory, and with ``offset`` its output too."""
    message = infer_request([0.0] * 4)
    del message.raw_input_contents[:]
    regioned(message.inputs[0], **places.get("input", {}))
    if "output" in places:
        regioned(message.outputs.add(name="OUTPUT0"), **places["output"])
    return message


async def test_PB72_tensors_pass_in_shared_memory_in_calls_and_streams(log, extensions, shared):
    """The output's contents are empty then, one for each output, as Triton's clients count them."""
    async with running(Worker(log)), serving_grpc(log, extensions=extensions) as served:
        place = service_pb2.SystemSharedMemoryRegisterRequest(
            name="r", key=f"/{shared.name}", byte_size=64
        )
        await served.stub.SystemSharedMemoryRegister(place)
        status = service_pb2.SystemSharedMemoryStatusRequest()
        assert (await served.stub.SystemSharedMemoryStatus(status)).regions["r"].byte_size == 64
        error = await refusal(served.stub.SystemSharedMemoryRegister(place))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        found = await served.stub.ModelInfer(asked())
        assert found.raw_output_contents[0] == VALUES.tobytes()
        found = await served.stub.ModelInfer(asked(output={"offset": 16}))
        assert list(found.raw_output_contents) == [b""]
        assert list(found.outputs[0].shape) == [1, 4]
        assert shared.read_bytes()[16:32] == VALUES.tobytes()
        stream = served.stub.ModelStreamInfer()
        await stream.write(asked(output={"offset": 32}))
        assert list((await stream.read()).infer_response.raw_output_contents) == [b""]
        await stream.write(asked(output={"offset": 32, "region": "no"}))
        assert "Unable to find shared memory region: 'no'" in (await stream.read()).error_message
        await stream.done_writing()
        assert shared.read_bytes()[32:48] == VALUES.tobytes()
        error = await refusal(served.stub.ModelInfer(asked(output={"size": 15})))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "should be at least 16 bytes" in error.details()
        error = await refusal(served.stub.ModelInfer(asked(input={"offset": 64})))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        gone = service_pb2.SystemSharedMemoryUnregisterRequest()
        await served.stub.SystemSharedMemoryUnregister(gone)
        error = await refusal(served.stub.ModelInfer(asked()))
        assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_PB72_tritons_client_passes_tensors_in_shared_memory(log, extensions):
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    key = f"/headrace-test-{uuid.uuid4().hex}"

    def work(served):
        handle = shm.create_shared_memory_region("r", key, 64)
        try:
            shm.set_shared_memory_region(handle, [VALUES])
            with client(served) as asking:
                asking.register_system_shared_memory("r", key, 64)
                tensor = client_module.InferInput("INPUT0", [1, 4], "FP32")
                tensor.set_shared_memory("r", 16)
                output = client_module.InferRequestedOutput("OUTPUT0")
                output.set_shared_memory("r", 16, offset=16)
                asking.infer("echo", [tensor], outputs=[output])
                found = shm.get_contents_as_numpy(handle, np.float32, [1, 4], offset=16)
                np.testing.assert_array_equal(found, VALUES)
                asking.unregister_system_shared_memory()
        finally:
            shm.destroy_shared_memory_region(handle)

    async with running(Worker(log)), serving_grpc(log, extensions=extensions) as served:
        await asyncio.to_thread(work, served)


async def test_PB73_calls_and_streams_over_grpc_are_traced_too(log, tmp_path):
    """As far as is known of them: when they were asked and when they were answered."""
    path = tmp_path / "trace.json"
    file = TraceFile(path)
    traces = TraceSettings(TraceSetting(is_on=True, rate=1), path=str(path), writer=file)
    extensions = Extensions(traces)
    async with running(Worker(log)), serving_grpc(log, extensions=extensions) as served:
        await served.stub.ModelInfer(infer_request(id="call"))
        stream = served.stub.ModelStreamInfer()
        await stream.write(infer_request(id="stream"))
        await stream.read()
        await stream.done_writing()
        await refusal(served.stub.ModelInfer(infer_request(model="nope")))
    traces.close()
    file.close()
    items = json.loads(path.read_text())
    assert [item for item in items if "model_name" in item] == [
        {"id": 1, "model_name": "echo", "model_version": 1, "request_id": "call"},
        {"id": 2, "model_name": "echo", "model_version": 1, "request_id": "stream"},
    ]
    names = [item["timestamps"][0]["name"] for item in items if "timestamps" in item]
    assert names == ["REQUEST_START", "REQUEST_END"] * 2


async def test_PB74_PB73_values_of_the_wrong_type_are_invalid_arguments(log):
    """As Triton's gRPC server has it; over HTTP the same is 500 and 503."""
    async with serving_grpc(log) as served:
        for name, kind, value, code in (
            ("log_info", "uint32_param", 1, grpc.StatusCode.INVALID_ARGUMENT),
            ("log_verbose_level", "bool_param", True, grpc.StatusCode.INVALID_ARGUMENT),
            ("log_format", "string_param", "x", grpc.StatusCode.INVALID_ARGUMENT),
            ("log_file", "string_param", "x", grpc.StatusCode.UNIMPLEMENTED),
        ):
            message = service_pb2.LogSettingsRequest()
            setattr(message.settings[name], kind, value)
            assert (await refusal(served.stub.LogSettings(message))).code() is code, name
