"""A decoupled model over ModelStreamInfer, with a worker that runs (SEMANTICS GR-03, DC-01, DC-02)."""

from __future__ import annotations

import asyncio
import queue
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as client_module
from decoupled_kit import decoupled
from headrace.streams.grpc_server import GrpcServer
from headrace.streams.grpc_settings import GrpcSettings
from service_kit import until
from tritonclient.grpc import service_pb2, service_pb2_grpc

FINAL = "triton_final_response"


@asynccontextmanager
async def streaming(root, **parameters):
    """Serve a decoupled model over gRPC; yields the service and the address."""
    async with (
        decoupled(root, **parameters) as service,
        GrpcServer(service.gateway, GrpcSettings(port=0)) as server,
    ):
        yield service, f"127.0.0.1:{server.port}"


def request(*values, id="", empty_final=None):  # noqa: A002  # the protocol's word
    """Return a request of INT32 values."""
    data = np.array([values], np.int32)
    message = service_pb2.ModelInferRequest(model_name="m", id=id)
    message.inputs.add(name="INPUT0", datatype="INT32", shape=data.shape)
    message.raw_input_contents.append(data.tobytes())
    if empty_final is not None:
        message.parameters["triton_enable_empty_final_response"].bool_param = empty_final
    return message


async def heard(target, *requests):
    """Return every message of a stream with these requests: error, id, values, and the final flag."""
    found = []
    async with grpc.aio.insecure_channel(target) as channel:
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        for each in requests:
            await stream.write(each)
        await stream.done_writing()
        async for message in stream:
            response = message.infer_response
            values = [
                value
                for raw in response.raw_output_contents
                for value in np.frombuffer(raw, np.int32).tolist()
            ]
            assert FINAL in response.parameters
            flag = response.parameters[FINAL].bool_param
            found.append((message.error_message, response.id, values, flag))
    return found


@pytest.mark.parametrize("empty_final", [None, False, True])
async def test_GR03_responses_come_as_the_model_makes_them_and_its_end_to_who_asks(
    tmp_path, empty_final
):
    """DC-02: without the parameter nothing tells of an end without data, nor of a request without responses."""
    async with streaming(tmp_path, responses="each", empty_final="true") as (_, target):
        end = [("", "a", [], True)] if empty_final else []
        asked = request(4, 5, id="a", empty_final=empty_final)
        found = await heard(target, asked)
        assert found == [("", "a", [4], False), ("", "a", [5], False), *end]
        assert await heard(target, request(id="a", empty_final=empty_final)) == end


async def test_GR03_a_last_response_with_data_carries_the_flag_itself(tmp_path):
    async with streaming(tmp_path, responses="each") as (_, target):
        found = await heard(target, request(4, 5, id="a", empty_final=True))
        assert found == [("", "a", [4], False), ("", "a", [5], True)]


async def test_GR02_an_error_in_the_middle_rides_on_the_stream(tmp_path):
    async with streaming(tmp_path, responses="each", response_error_at="1") as (_, target):
        first, error, *more = await heard(target, request(1, 2, 3, id="a"))
        assert first == ("", "a", [1], False)
        assert "response 1" in error[0]
        assert error[1:] == ("a", [], True)
        assert more == []


async def test_DC01_requests_of_one_stream_are_served_side_by_side(tmp_path):
    """A long one does not hold up those behind it."""
    async with streaming(tmp_path, responses="each", response_delay_ms="2") as (_, target):
        found = await heard(target, request(*range(100), id="long"), request(7, id="short"))
        assert [values for _, name, values, _ in found if name == "long"] == [
            [n] for n in range(100)
        ]
        assert ("", "short", [7], True) in found


async def test_GR05_a_cancelled_stream_stops_the_model(tmp_path):
    async with streaming(tmp_path, responses="1000", response_delay_ms="5") as (service, target):
        async with grpc.aio.insecure_channel(target) as channel:
            stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
            await stream.write(request(1))
            await stream.read()
            stream.cancel()
        await until(lambda: service.gateway.abandoned == 1, "the cancel was noticed")
        await until(lambda: service.settled("m"), "the model stopped")
        assert service.gateway.open_calls == 0
        assert service.counts("m").failure["CANCELED"] == 1


async def test_tritonclient_streams_a_decoupled_model(tmp_path):
    async with streaming(tmp_path, responses="each", empty_final="true") as (_, target):

        def work():
            told = queue.Queue()
            data = np.array([[4, 5]], np.int32)
            tensor = client_module.InferInput("INPUT0", [1, 2], "INT32")
            tensor.set_data_from_numpy(data)
            with client_module.InferenceServerClient(target) as client:
                client.start_stream(lambda result, error: told.put((result, error)))
                client.async_stream_infer("m", [tensor], enable_empty_final_response=True)
                found = [told.get(timeout=20) for _ in range(3)]
                client.stop_stream()
            assert all(error is None for _, error in found)
            values = [result.as_numpy("OUTPUT0") for result, _ in found[:2]]
            assert [value.tolist() for value in values] == [[[4]], [[5]]]
            flags = [result.get_response().parameters[FINAL].bool_param for result, _ in found]
            assert flags == [False, False, True]

        await asyncio.to_thread(work)
