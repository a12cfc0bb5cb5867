"""Triton's own gRPC clients, synchronous and asynchronous, against the gateway, unchanged."""

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc as client_module
import tritonclient.grpc.aio as aio_module
from gateway_kit import TOPOLOGY, Worker, identity_config, running, silent, until
from grpc_kit import serving_grpc
from headrace.streams.memory import MemoryLog
from tritonclient.utils import InferenceServerException


@pytest.fixture
def log():
    return MemoryLog()


VALUES = np.array([[1.5, -2.0, 0.0]], np.float32)


def tensor(module, values=VALUES, datatype="FP32"):
    found = module.InferInput("INPUT0", list(values.shape), datatype)
    found.set_data_from_numpy(values)
    return found


async def test_the_synchronous_client_infers_and_asks(log):
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        await until(served.gateway.is_ready)

        def work():
            with client_module.InferenceServerClient(served.target) as client:
                result = client.infer(
                    "echo",
                    [tensor(client_module)],
                    request_id="r1",
                    outputs=[client_module.InferRequestedOutput("OUTPUT0")],
                    sequence_id=7,
                    sequence_start=True,
                    priority=1,
                    timeout=9,
                    parameters={"a": "b", "c": 1, "d": 0.5, "e": True},
                )
                assert result.get_response().id == "r1"
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), VALUES)
                assert client.is_server_live()
                assert client.is_server_ready()
                assert client.is_model_ready("echo")
                assert client.is_model_ready("echo", "1")
                assert not client.is_model_ready("nope")
                assert client.get_server_metadata().name == "headrace"
                assert client.get_model_metadata("echo", as_json=True)["versions"] == ["1"]
                assert client.get_model_config("echo").config.max_batch_size == 8
                assert client.get_model_repository_index().models[0].state == "READY"
                with pytest.raises(InferenceServerException) as caught:
                    client.load_model("echo")
                assert caught.value.status() == "StatusCode.UNAVAILABLE"
                with pytest.raises(InferenceServerException, match="INT32") as caught:
                    client.infer("echo", [tensor(client_module, VALUES.astype(np.int32), "INT32")])
                assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

        await asyncio.to_thread(work)
        assert len(worker.seen) == 1


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_requests_are_taken(log, algorithm):
    values = np.zeros((2, 4_000), np.float32)
    async with running(Worker(log)), serving_grpc(log) as served:

        def work():
            with client_module.InferenceServerClient(served.target) as client:
                return client.infer(
                    "echo", [tensor(client_module, values)], compression_algorithm=algorithm
                ).as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await asyncio.to_thread(work), values)


async def test_B55_strings_pass_both_ways(log):
    values = np.array([["", "a", "é"]], dtype=object)
    versions = {1: identity_config(datatype="TYPE_STRING")}
    async with running(Worker(log, versions=versions)), serving_grpc(log) as served:

        def work():
            with client_module.InferenceServerClient(served.target) as client:
                asked = [tensor(client_module, values, "BYTES")]
                return client.infer("echo", asked).as_numpy("OUTPUT0")

        found = await asyncio.to_thread(work)
        assert [item.decode() for item in found.ravel()] == ["", "a", "é"]


async def test_the_asynchronous_call_of_the_synchronous_client_and_its_cancellation(log):
    """GR-05: `CallContext.cancel` reaches the worker as a cancel record."""
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        client = client_module.InferenceServerClient(served.target)
        told = queue.Queue()
        call = client.async_infer(
            "echo", [tensor(client_module)], lambda result, error: told.put((result, error))
        )
        await until(lambda: worker.held)
        call.cancel()
        await until(lambda: log.records(TOPOLOGY.cancels, 0))
        result, error = await asyncio.to_thread(told.get, timeout=10)
        assert result is None
        assert error.status() == "StatusCode.CANCELLED"
        await asyncio.to_thread(client.close)


async def test_the_client_timeout_of_the_synchronous_client(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:

        def work():
            with client_module.InferenceServerClient(served.target) as client:
                with pytest.raises(InferenceServerException) as caught:
                    client.infer("echo", [tensor(client_module)], client_timeout=0.1)
                assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"

        await asyncio.to_thread(work)
        await until(lambda: served.gateway.open_calls == 0)


async def test_the_synchronous_stream(log):
    """Results and errors arrive at the callback; closing it waits for what is open."""
    async with running(Worker(log)), serving_grpc(log) as served:

        def work():
            told = queue.Queue()
            with client_module.InferenceServerClient(served.target) as client:
                client.start_stream(lambda result, error: told.put((result, error)))
                for n in range(3):
                    client.async_stream_infer("echo", [tensor(client_module)], request_id=str(n))
                client.async_stream_infer("nope", [tensor(client_module)])
                client.stop_stream()
            found = [told.get(timeout=10) for _ in range(4)]
            assert [result.get_response().id for result, _ in found[:3]] == ["0", "1", "2"]
            assert all(error is None for _, error in found[:3])
            assert "'nope' is not found" in str(found[3][1])

        await asyncio.to_thread(work)


async def test_the_aio_client_infers_and_streams(log):
    async with (
        running(Worker(log)),
        serving_grpc(log) as served,
        aio_module.InferenceServerClient(served.target) as client,
    ):
        await until(served.gateway.is_ready)
        assert await client.is_server_live()
        assert await client.is_model_ready("echo")
        result = await client.infer("echo", [tensor(aio_module)], request_id="r1")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), VALUES)

        async def requests():
            for n in range(3):
                yield {
                    "model_name": "echo",
                    "inputs": [tensor(aio_module)],
                    "request_id": str(n),
                }

        ids = []
        async for answer, error in client.stream_infer(requests()):
            assert error is None
            ids.append(answer.get_response().id)
        assert ids == ["0", "1", "2"]
