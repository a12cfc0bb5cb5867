"""Requests with idempotency keys on a whole service: over HTTP and as records, in either guarantee."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from headrace.schemas.batch import Responses
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.http import HttpServer
from headrace.streams.http_call import HttpSettings
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Log, Mode
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology, partition_for_key
from service_kit import Producer, ScriptedBackend, Service, loaded, until, working, write_models

MODEL = """
backend: "scripted"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
"""
GATEWAY = GatewaySettings(interval_ms=300)


@dataclass
class Answer:
    """What came back over HTTP."""

    status: int
    body: Mapping[str, object]
    headers: Mapping[str, str]

    @property
    def value(self) -> float:
        """The one number of the one output."""
        (output,) = self.body["outputs"]
        (value,) = output["data"]
        return value

    @property
    def is_replayed(self) -> bool:
        """Whether it says so."""
        return self.headers.get("Idempotency-Replayed") == "true"


async def call(url: str, value: float, key: str | None = None, **more: object) -> Answer:
    """Ask the model once, each time on a connection of its own."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    headers = {} if key is None else {"Idempotency-Key": key}
    headers |= more.pop("headers", {})
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{url}/v2/models/m/infer", json={"inputs": [tensor], **more}, headers=headers
        ) as response,
    ):
        return Answer(response.status, await response.json(), dict(response.headers))


def record(
    topology: Topology,
    value: float,
    key: str = "",
    *,
    partition: int = -1,
    content_type: str = AVRO,
    id: str = "",  # noqa: A002  # the protocol's word
    extra: Sequence[tuple[str, bytes]] = (),
    **sequence: object,
) -> Out:
    """Write a request as a producer of records does: what has no key of its own is keyed by the idempotency key."""
    tensor = Tensor.from_numpy("INPUT0", np.array([[value]], np.float32))
    options = RequestOptions(idempotency_key=key.encode(), extra=tuple(extra))
    request = InferRequest((tensor,), id=id, **sequence)
    raw, headers = encode_request(request, content_type, options)
    own = str(request.sequence_id).encode() if request.sequence_id else key.encode()
    if partition < 0:
        partition = partition_for_key(own, topology.partitions) if own else 0
    return Out(topology.requests("m"), partition, own or None, raw, headers)


def value_of(answer: Record) -> float:
    """Return the one number of an answer; its error is raised."""
    (output,) = decode_response(answer.value, answer.headers).outputs
    return float(output.numpy().item())


def header(answer: Record, name: str) -> bytes | None:
    """Return a header of an answer."""
    return dict(answer.headers).get(name)


class Counting(ScriptedBackend):
    """Answers each execution with another number, so that one that ran again is seen.

    Attributes:
        count: Rows that ran.
    """

    def __init__(self, play=lambda _: None, *, repeatable: bool = True) -> None:
        super().__init__(play, repeatable=repeatable)
        self.count = 0

    def execute(self, batch, emit) -> None:
        """Count behind the script."""
        super().execute(batch, lambda responses: emit(self._numbered(batch, responses)))

    def _numbered(self, batch, responses):
        column = batch.inputs()["INPUT0"]
        numbers = np.arange(1, len(column) + 1, dtype=np.float32)[:, None] / 1000
        responses.outputs = {"OUTPUT0": column + self.count / 1000 + numbers}
        self.count += len(column)
        return responses


SUMS = """
backend: "scripted"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
sequence_batching {
  max_sequence_idle_microseconds: IDLE
  oldest { max_candidate_sequences: 4 }
  state [{
    input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [1]
    initial_state { name: "zero" data_type: TYPE_FP32 dims: [1] zero_data: true }
  }]
}
"""


def sums(idle_s: float = 60.0) -> str:
    """Return the configuration of a model that answers the sum of a sequence's steps."""
    return SUMS.replace("IDLE", str(int(idle_s * 1e6)))


class Summing(ScriptedBackend):
    """Steps sequences.

    Attributes:
        count: Steps that ran.
    """

    def __init__(self, play=lambda _: None) -> None:
        super().__init__(play)
        self.count = 0

    def execute(self, batch, emit) -> None:
        """Add, behind the script."""
        self.play(batch)
        columns = batch.inputs()
        total = columns["SUM"] + columns["INPUT0"]
        self.count += sum(entry is not None for entry in batch.entries)
        emit(Responses({"OUTPUT0": total}, states={"SUM_OUT": total}))


@asynccontextmanager
async def worker(
    log: Log,
    root: Path,
    backend: ScriptedBackend,
    *,
    topology: Topology | None = None,
    model: str = MODEL,
    **settings: object,
) -> AsyncIterator[Service]:
    """Run a worker of the model around the block."""
    topology = topology or Topology(
        prefix=f"i{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=4
    )
    if not (root / "m").exists():
        write_models(root, {"m": model})
    async with (
        loaded(root, backend) as repository,
        working(log, repository, topology, **settings) as service,
    ):
        yield service


@asynccontextmanager
async def gateway(service: Service, made: type[Gateway] = Gateway) -> AsyncIterator[str]:
    """Run a gateway around the block; gives the URL of its API."""
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(made(service.log, service.topology, GATEWAY))
        async with asyncio.timeout(30):
            await front.wait_ready()
        await until(front.is_ready, f"{front}")
        server = HttpServer(front, HttpSettings(port=0, drain_timeout_s=0.1))
        await stack.enter_async_context(server)
        yield f"http://127.0.0.1:{server.port}"


ALO, EOS = Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE
PLACES = [
    pytest.param(("memory", ALO), id="memory-at_least_once"),
    pytest.param(("memory", EOS), id="memory-exactly_once"),
    pytest.param(("embedded", ALO), id="embedded", marks=pytest.mark.embedded),
    pytest.param(("kafka", ALO), id="kafka-at_least_once", marks=pytest.mark.kafka),
    pytest.param(("kafka", EOS), id="kafka-exactly_once", marks=pytest.mark.kafka),
]


class Place:
    """A log and a guarantee."""

    def __init__(self, kind, mode, properties, root, model=MODEL) -> None:
        self.kind = kind
        self.model = model
        self.mode = mode
        self.properties = properties
        self.root = root
        self._memory = MemoryLog()

    @asynccontextmanager
    async def worker(self, backend, **settings):
        """Run a worker of the model on a log of its own connection."""
        log = self._memory if self.kind == "memory" else KafkaLog(self.properties)
        async with (
            log,
            worker(
                log, self.root, backend, model=self.model, delivery=self.mode, **settings
            ) as service,
        ):
            yield service

    async def send(self, service, *outs):
        """Write request records; returns the source that each answer names."""
        return await Producer(service.log, self.properties).send(outs)


def metric(service, name):
    """Return one of the model's own counts."""
    return service.worker.registry.get_sample_value(name, {"model": "m"})


def in_flight(service):
    """Return how many records are admitted and not settled."""
    return sum(part.in_flight for part in service.worker.models["m"].partitions.values())
