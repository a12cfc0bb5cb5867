"""A gateway on a memory log behind its gRPC server, and what tests ask it with: the stubs that protoc makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from gateway_kit import TOPOLOGY
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.grpc_server import GrpcServer
from headrace.streams.grpc_settings import GrpcSettings
from headrace.streams.memory import MemoryLog
from tritonclient.grpc import service_pb2, service_pb2_grpc

SERVICE = "/inference.GRPCInferenceService"


@dataclass
class Served:
    """A gateway that serves gRPC.

    Attributes:
        gateway: It.
        server: Its server.
        target: Where clients connect.
        channel: One that is connected.
        stub: Of ``inference.GRPCInferenceService``.
    """

    gateway: Gateway
    server: GrpcServer
    target: str
    channel: grpc.aio.Channel
    stub: Any


@asynccontextmanager
async def serving_grpc(
    log: MemoryLog, settings: GatewaySettings | None = None, **fields: object
) -> AsyncIterator[Served]:
    """Run a gateway with its gRPC server and a channel to it.

    ``fields`` are those of `GrpcSettings`; ``access`` and ``extensions`` are the server's.
    """
    access, extensions = fields.pop("access", None), fields.pop("extensions", None)
    async with Gateway(log, TOPOLOGY, settings or GatewaySettings()) as gateway:
        async with asyncio.timeout(10):
            await gateway.wait_ready()
        bounds = GrpcSettings(port=0, **fields)
        async with GrpcServer(gateway, bounds, extensions, access=access) as server:
            target = f"127.0.0.1:{server.port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                yield Served(gateway, server, target, channel, stub)


def infer_request(
    *rows: list[float], model: str = "echo", shape: list[int] | None = None, **fields: object
) -> Any:
    """Return a request of FP32 rows as raw contents; ``parameters`` may be plain values."""
    values = np.array(rows or [[1.0, 2.0]], np.float32)
    parameters = fields.pop("parameters", {})
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=shape or values.shape)
    message.raw_input_contents.append(values.tobytes())
    for name, value in parameters.items():
        set_parameter(message.parameters[name], value)
    return message


def set_parameter(target: Any, value: bool | float | str) -> None:
    """Set a parameter by its value's own type."""
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(target, kinds[type(value)], value)


def floats(response: Any, index: int = 0) -> list[float]:
    """Return an FP32 output's values."""
    return np.frombuffer(response.raw_output_contents[index], np.float32).tolist()


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """Return the error that a call must end with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value
