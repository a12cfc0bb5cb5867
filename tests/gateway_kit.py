"""A gateway on a memory log with a worker that plays a script: what integration tests of the gateway stand on.

The worker is a fake of another process: it speaks only through records, with the public codecs, as any worker may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from headrace.schemas.codec import decode_request, encode_error_value, encode_response
from headrace.schemas.config_text import config_from_json, config_to_json
from headrace.schemas.errors import InferError, LogError
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import (
    AVRO,
    CONTENT_TYPE,
    CORRELATION_ID,
    ID,
    MODEL_VERSION,
    REASON,
    REPLY_PARTITION,
    REPLY_TOPIC,
    STATUS,
    TP,
    Out,
    Record,
)
from headrace.schemas.result_headers import decoupled_headers
from headrace.schemas.tensor import Tensor
from headrace.streams.access import Access
from headrace.streams.announce import Announcer
from headrace.streams.extensions import Extensions
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.http import HttpServer
from headrace.streams.http_call import HttpSettings
from headrace.streams.log import EARLIEST, Publisher, Span
from headrace.streams.memory import MemoryLog
from headrace.streams.status import ModelState, QueueStatus, VersionStatus, WorkerStatus
from headrace.streams.tls import ServerTls
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms

TOPOLOGY = Topology(prefix="t", partitions=2, reply_partitions=4)

Script = Callable[[InferRequest, Record], InferResponse | InferError | None]


def identity_config(name: str = "echo", datatype: str = "TYPE_FP32", **more: object):
    """Return the completed configuration of a model that answers INPUT0 as OUTPUT0."""
    return config_to_json(
        config_from_json(
            {
                "name": name,
                "backend": "identity",
                "max_batch_size": 8,
                "input": [{"name": "INPUT0", "data_type": datatype, "dims": [-1]}],
                "output": [{"name": "OUTPUT0", "data_type": datatype, "dims": [-1]}],
                **more,
            }
        )
    )


def echo(request: InferRequest, _record: Record) -> InferResponse:
    """Answer every INPUTn as OUTPUTn."""
    outputs = tuple(
        Tensor(t.name.replace("INPUT", "OUTPUT"), t.datatype, t.shape, t.data)
        for t in request.inputs
    )
    return InferResponse(outputs, request.id, "echo", request.model_version or "1")


def silent(_request: InferRequest, _record: Record) -> None:
    """Answer nothing."""


@dataclass
class Worker:
    """Reads the requests of one model and answers as its script says.

    Attributes:
        seen: Every request record that was read.
        held: Those that the script left unanswered.
    """

    log: MemoryLog
    model: str = "echo"
    script: Script = echo
    versions: Mapping[int, dict[str, object]] = field(
        default_factory=lambda: {1: identity_config()}
    )
    worker: str = "w1"
    seen: list[Record] = field(default_factory=list)
    held: list[Record] = field(default_factory=list)

    async def announce(self, **more: object) -> None:
        """Write the status record, with fields changed as given."""
        fields = {
            "requests_topic": TOPOLOGY.requests(self.model),
            "partitions": TOPOLOGY.partitions,
            "versions": tuple(
                VersionStatus(number, ModelState.READY, config=config)
                for number, config in self.versions.items()
            ),
            "queues": (QueueStatus(0, 0),),
            "timeout_ms": 180_000,
        }
        status = WorkerStatus(self.worker, self.model, wall_ms(), **fields | more)
        async with self.log.publisher() as publisher:
            await Announcer(self.log, publisher, TOPOLOGY.status).write([status])

    async def run(self) -> None:
        """Answer until cancelled."""
        topic = TOPOLOGY.requests(self.model)
        spans = {TP(topic, p): Span(EARLIEST) for p in range(TOPOLOGY.partitions)}
        async with self.log.reader(spans) as reader, self.log.publisher() as publisher:
            while True:
                for block in await reader.poll(1_000, 1.0):
                    outs = []
                    for record in block.records:
                        self.seen.append(record)
                        out = self._answer(record)
                        if out is None:
                            self.held.append(record)
                        else:
                            outs.append(out)
                    await publish(publisher, outs)

    def _answer(self, record: Record) -> Out | None:
        headers = dict(record.headers)
        request = decode_request(record.value, headers[CONTENT_TYPE].decode(), record.headers)
        request = request._replace(
            id=headers.get(ID, b"").decode(),
            model_version=headers.get(MODEL_VERSION, b"").decode(),
        )
        answer = self.script(request, record)
        return None if answer is None else reply(record, answer)


async def publish(publisher: Publisher, outs: list[Out]) -> None:
    """Produce, again after an injected failure, as a worker that loses nothing does."""
    while True:
        try:
            return await publisher.publish(outs)
        except LogError:
            continue


def reply(
    record: Record, answer: InferResponse | InferError, place: tuple[int, bool] | None = None
) -> Out:
    """Write the answer to a request record, to the address that it names.

    ``place`` is its number among a decoupled model's, and whether it is the final one.
    """
    headers = dict(record.headers)
    back = [(CORRELATION_ID, headers[CORRELATION_ID])]
    if place is not None:
        back += decoupled_headers(place[0], final=place[1])
    if ID in headers:
        back.append((ID, headers[ID]))
    if isinstance(answer, InferError):
        encoded = encode_error_value("", ("", ""), answer, AVRO)
        back += [(STATUS, answer.code.encode()), (REASON, answer.reason.encode())]
    else:
        encoded = encode_response(answer, AVRO)
        back += [(STATUS, b"OK"), (MODEL_VERSION, answer.model_version.encode())]
    return Out(
        headers[REPLY_TOPIC].decode(),
        int(headers[REPLY_PARTITION]),
        record.key,
        encoded.value,
        [(CONTENT_TYPE, encoded.content_type.encode()), *back],
    )


class Peer:
    """A caller that writes what it likes and reads answer after answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, object, dict[str, str]]:
        """Read one answer; returns status, JSON (None where there is none) and headers, in lower case."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), json.loads(body) if body else None, headers

    async def ask(self, data: bytes) -> tuple[int, object, dict[str, str]]:
        """Write, and read one answer."""
        self.writer.write(data)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Wait for the end; nothing may come before it."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # any condition at all: nobody could set an event
            await asyncio.sleep(0.001)


async def make_topics(log: MemoryLog, *models: str) -> None:
    """Create the shared topics and those of the models."""
    await log.ensure(TOPOLOGY.shared_specs())
    for model in models:
        await log.ensure(TOPOLOGY.model_specs(model))


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Announce a worker and let it answer."""
    await make_topics(worker.log, worker.model)
    await worker.announce()
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def serving(
    log: MemoryLog,
    settings: GatewaySettings | None = None,
    *,
    access: Access | None = None,
    tls: ServerTls | None = None,
    extensions: Extensions | None = None,
    **http: object,
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """Run a gateway with its HTTP server and a client session on it."""
    async with Gateway(log, TOPOLOGY, settings or GatewaySettings()) as gateway:
        async with asyncio.timeout(10):
            await gateway.wait_ready()
        bounds = HttpSettings(port=0, **http)
        async with HttpServer(gateway, bounds, extensions, access=access, tls=tls) as server:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
            async with aiohttp.ClientSession(url) as session:
                yield gateway, session
