"""A decoupled model with a script, served with worker, gateway and HTTP: what tests of its responses stand on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
from headrace.schemas.codec import encode_request
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, FINAL, RESPONSE_INDEX, STATUS, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.log import Log, Mode
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Service, serving, write_models

TOPOLOGY = Topology(prefix="d", partitions=2, reply_partitions=2)


def config(**parameters: str) -> str:
    """Return an identity model with a script, as a configuration."""
    script = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    return f"""
backend: "identity"
max_batch_size: 8
input [{{ name: "INPUT0" data_type: TYPE_INT32 dims: [-1] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [-1] }}]
model_transaction_policy {{ decoupled: true }}
{script}"""


@asynccontextmanager
async def decoupled(
    root: Path,
    *,
    log: Log | None = None,
    topology: Topology = TOPOLOGY,
    batching: str = "",
    mode: Mode = Mode.AT_LEAST_ONCE,
    **parameters: str,
) -> AsyncIterator[Service]:
    """Serve a decoupled model ``m`` with a script."""
    write_models(root, {"m": config(**parameters) + batching})
    async with (
        log or MemoryLog() as opened,
        serving(opened, root, topology, delivery=mode) as service,
        asyncio.timeout(60),
    ):
        yield service


def request(*values: int, id_: str = "") -> InferRequest:
    tensor = Tensor.from_numpy("INPUT0", np.array([values], np.int32).reshape(1, len(values)))
    return InferRequest((tensor,), id=id_)


async def stream(service: Service, *values: int, empty_final: bool = False) -> list[list[int]]:
    """Return the values of each response; an empty list is one without outputs."""
    found = []
    responses = service.gateway.stream("m", "", request(*values), empty_final=empty_final)
    async with aclosing(responses):
        async for response, _ in responses:
            found.append([v for t in response.outputs for v in t.numpy().reshape(-1).tolist()])
    return found


def told(record: Record) -> tuple[str, str, str]:
    """Return status, response index and whether it is final, as an answer's headers say."""
    headers = dict(record.headers)
    return (
        headers[STATUS].decode(),
        headers.get(RESPONSE_INDEX, b"-").decode(),
        headers.get(FINAL, b"-").decode(),
    )


def record_of(*values: int, partition: int = 0, key: bytes = b"") -> Out:
    raw, headers = encode_request(request(*values), AVRO, RequestOptions(idempotency_key=key))
    return Out(TOPOLOGY.requests("m"), partition, None, raw, headers)
