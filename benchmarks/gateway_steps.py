"""What a call costs the gateway, step by step, on the log in memory: no broker, no worker, no other process in between.

The steps are the gateway's own functions on one call's bytes. ``calls`` is all of it but HTTP: `Gateway.infer`, with as
many calls in flight as a busy client has; what the worker behind the log does, which plays from a table, is taken off.
Each time is the least of several passes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.schemas import v2proto
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.config_text import config_from_message, config_to_json, parse_config
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import REPLY_PARTITION, REPLY_TOPIC, TP, Out, Record
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.signature import Signature
from headrace.schemas.v2json import parse_request, wants_binary, write_response
from headrace.streams.announce import Announcer
from headrace.streams.call_records import check_request, read_answer, request_record
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.log import LATEST, Publisher, Span
from headrace.streams.memory import MemoryLog
from headrace.streams.model_view import Route
from headrace.streams.status import ModelState, QueueStatus, VersionStatus, WorkerStatus
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms

from benchmarks import grpc_client
from benchmarks.figures import Figure
from benchmarks.http_client import request_bytes
from benchmarks.models import configuration
from benchmarks.workload import INPUT, MODEL, OUTPUT, SIZES, expected, pool

NAME = "gateway-steps"
ON_BROKERS = ()
IN_FLIGHT = 64
_TOPOLOGY = Topology(prefix="steps", partitions=4, reply_partitions=4)
_MAX_BYTES = 1_000_000


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:  # noqa: ARG001  # all benchmarks are called alike
    """Yield the time of each step per call, µs, for both kinds of body and a gRPC message, and that of whole calls."""
    count, rounds = (2_000, 3) if quick else (10_000, 7)
    for name, us in asyncio.run(in_memory(count, rounds)).items():
        yield Figure(f"{NAME}.{name}", "", us, "µs/call")


async def in_memory(count: int, rounds: int) -> dict[str, float]:
    """Return the time of each step and of whole calls, µs for each of ``count``: the least of the rounds."""
    signature = _signature()
    worker = _Worker(signature)
    async with MemoryLog() as log, _gateway(log) as gateway, _running(log, worker):
        while not gateway.is_ready():  # noqa: ASYNC110  # a benchmark may look
            await asyncio.sleep(0.01)
        route = gateway.route(MODEL, "")
        body, length = _binary_body()
        request = parse_request(body, length, route.signature)
        least: dict[str, float] = {}
        for _ in range(rounds):
            found = _time_steps(route, request, worker, count)
            found["calls"] = await _time_calls(gateway, worker, request, count)
            for name, us in found.items():
                least[name] = min(us, least.get(name, us))
    return least


def _time_steps(
    route: Route, request: InferRequest, worker: _Worker, count: int
) -> dict[str, float]:
    body, length = _binary_body()
    text, message = _json_body(), grpc_client.request_bytes(pool()[0])
    options = RequestOptions(
        deadline_ms=wall_ms() + 60_000,
        reply_topic=_TOPOLOGY.replies,
        reply_partition=1,
        correlation_id=bytes(16),
    )
    out = request_record(route, "", request, options, spread=0)
    record = _Reply(worker.answer(_Reply(out)))
    answer = read_answer(record)
    steps: dict[str, Callable[[], object]] = {
        "parse": lambda: parse_request(body, length, route.signature),
        "parse-json": lambda: parse_request(text, None, route.signature),
        "check": lambda: check_request(route, request, _MAX_BYTES),
        "record": lambda: request_record(route, "", request, options, spread=0),
        "answer": lambda: read_answer(record),
        "write": lambda: write_response(answer, wants_binary(request)),
        "write-json": lambda: write_response(answer),
        "parse-grpc": lambda: v2proto.parse_request(message),
        "write-grpc": lambda: v2proto.write_response(answer),
    }
    return {name: _time(step, count) for name, step in steps.items()}


def _time(step: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        step()
    return 1e6 * (time.process_time() - began) / count


async def _time_calls(
    gateway: Gateway, worker: _Worker, request: InferRequest, count: int
) -> float:
    left = count

    async def call() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            check_answer(await gateway.infer(MODEL, "", request))

    worker.spent_s = 0.0
    began = time.process_time()
    await asyncio.gather(*[call() for _ in range(IN_FLIGHT)])
    return 1e6 * (time.process_time() - began - worker.spent_s) / count


def check_answer(response: InferResponse) -> None:
    """Our bug where the table's answer does not come back."""
    assert len(response.outputs[0].data) == 4 * SIZES[-1]


def _signature() -> Signature:
    config = config_from_message(
        parse_config(configuration(), "config.pbtxt"), file="config.pbtxt", directory_name=MODEL
    )
    return Signature(config, 1)


def _binary_body() -> tuple[bytes, int]:
    """Return the body that the benchmarks' client sends, and the length of its JSON part."""
    head, _, body = request_bytes(pool()[0], "host").partition(b"\r\n\r\n")
    length = head.lower().split(b"inference-header-content-length: ")[1].split(b"\r\n")[0]
    return body, int(length)


def _json_body() -> bytes:
    data = pool()[0].tolist()
    tensor = {"name": INPUT, "shape": [1, SIZES[0]], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


class _Reply:
    """A produced record as its reader sees it."""

    offset = timestamp = 0

    def __init__(self, out: Out) -> None:
        self.topic, self.partition = out.topic, out.partition
        self.key, self.value, self.headers = out.key, out.value, out.headers


class _Worker:
    """Answers every request with the same row, by the worker's own codecs.

    Attributes:
        spent_s: Time that this took.
    """

    def __init__(self, signature: Signature) -> None:
        self.spent_s = 0.0
        self._decoder = RequestDecoder({1: signature}, model_name=MODEL)
        self._encoder = ResponseEncoder(signature)
        self._signature = signature

    def answer(self, record: Record) -> Out:
        began = time.process_time()
        headers = dict(record.headers)
        tp = TP(record.topic, record.partition)
        entries = self._decoder.decode(tp, 0, [record]).by_version[1]
        rows = Responses({OUTPUT: expected()[:1]})
        [(_, value, answered)] = self._encoder.encode(Batch(self._signature, list(entries)), rows)
        topic, partition = headers[REPLY_TOPIC].decode(), int(headers[REPLY_PARTITION])
        out = Out(topic, partition, None, value, answered)
        self.spent_s += time.process_time() - began
        return out

    async def run(self, log: MemoryLog, publisher: Publisher) -> None:
        topic = _TOPOLOGY.requests(MODEL)
        spans = {TP(topic, p): Span(LATEST) for p in range(_TOPOLOGY.partitions)}
        async with log.reader(spans) as reader:
            while True:
                for block in await reader.poll(1_000, 1.0):
                    await publisher.publish([self.answer(record) for record in block.records])


@asynccontextmanager
async def _gateway(log: MemoryLog) -> AsyncIterator[Gateway]:
    await log.ensure([*_TOPOLOGY.shared_specs(), *_TOPOLOGY.model_specs(MODEL)])
    async with Gateway(log, _TOPOLOGY, GatewaySettings(strict_readiness=False)) as gateway:
        yield gateway


@asynccontextmanager
async def _running(log: MemoryLog, worker: _Worker) -> AsyncIterator[None]:
    config = config_to_json(
        config_from_message(
            parse_config(configuration(), "config.pbtxt"),
            file="config.pbtxt",
            directory_name=MODEL,
        )
    )
    status = WorkerStatus(
        "steps",
        MODEL,
        wall_ms(),
        requests_topic=_TOPOLOGY.requests(MODEL),
        partitions=_TOPOLOGY.partitions,
        versions=(VersionStatus(1, ModelState.READY, config=config),),
        queues=(QueueStatus(0, 0),),
        timeout_ms=600_000,
    )
    async with log.publisher() as publisher:
        await Announcer(log, publisher, _TOPOLOGY.status).write([status])
        task = asyncio.create_task(worker.run(log, publisher))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
