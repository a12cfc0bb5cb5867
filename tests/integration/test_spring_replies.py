"""Spring Kafka's request/reply headers, as `ReplyingKafkaTemplate` writes them and looks for them in a reply.

It names a reply topic, mostly its own partition of it, and 16 bytes by which it knows the reply; what comes without
them it drops. A reply that is an error must reach it the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import Code, InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import CONTENT_TYPES, JSON, Headers, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Producer, Service, Tap, serving, write_models

ECHO = """
backend: "identity"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
"""
PARTITIONS, MINE = 3, 2


def spring(topic: str, correlation: bytes, *, partition: int | None = MINE) -> Headers:
    """Return the headers of `ReplyingKafkaTemplate`; without a partition it reads all of the topic."""
    headers = [
        ("kafka_correlationId", correlation),
        ("kafka_replyTopic", topic.encode()),
        ("__TypeId__", b"org.example.Request"),
    ]
    if partition is not None:
        headers.append(("kafka_replyPartition", partition.to_bytes(4, "big")))
    return headers


def request(content_type: str = JSON, **more: object) -> tuple[bytes, Headers]:
    """Return a good request's value and headers."""
    tensor = Tensor.from_numpy("INPUT0", np.float32([[1.5]]))
    return encode_request(InferRequest((tensor,), **more), content_type)


async def ask(
    service: Service,
    topic: str,
    value: bytes,
    headers: Sequence[tuple[str, bytes]],
    **where: int | None,
) -> Record:
    """Send a request as Spring does, and return the one reply that comes."""
    topology = service.topology
    correlation = uuid.uuid4().bytes
    said = [*headers, *spring(topic, correlation, **where)]
    async with Tap(service.log, topic, topology.results("m")) as tap:
        (source,) = await Producer(service.log, service.properties).send(
            [Out(topology.requests("m"), 1, None, value, said)]
        )
        await tap.answered([source])
        (reply,) = tap.by_source()[source]
    found = [(name, raw) for name, raw in reply.headers if name.startswith("kafka_")]
    assert found == [("kafka_correlationId", correlation)]
    assert not {"correlation-id", "__TypeId__"} & dict(reply.headers).keys()
    return reply


def failure(reply: Record) -> InferError:
    """Return the error that a reply is."""
    with pytest.raises(InferError) as raised:
        decode_response(reply.value, reply.headers)
    return raised.value


@pytest.fixture
async def spring_service(tmp_path: Path, logs):
    """A service with a reply topic that Spring's side made, and another that nobody may name."""
    topology = Topology(prefix=f"t{uuid.uuid4().hex[:8]}", partitions=2)
    root = write_models(tmp_path, {"m": ECHO})
    async with logs.open() as log:
        await log.ensure([TopicSpec(f"{topology.prefix}.spring", PARTITIONS)])
        async with serving(log, root, topology) as service:
            service.properties = logs.properties
            yield service


async def test_replies_and_errors_reach_spring_where_it_waits(spring_service) -> None:
    """At its own partition, with its own bytes, in the format of the request; and the sentence of what was wrong."""
    topic = f"{spring_service.topology.prefix}.spring"
    for content_type in CONTENT_TYPES:
        reply = await ask(spring_service, topic, *request(content_type))
        assert (reply.topic, reply.partition) == (topic, MINE)
        (output,) = decode_response(reply.value, reply.headers).outputs
        assert output.numpy().tolist() == [[1.5]]
        assert dict(reply.headers)["content-type"].decode().startswith(content_type[:12])
    wrong: Mapping[str, tuple[bytes, Headers, Code]] = {
        "a value that is no request": (
            b"{",
            [("content-type", b"application/json")],
            Code.INTERNAL,
        ),
        "no value": (b"", [("content-type", b"application/json")], Code.INVALID_ARG),
        "an unknown version": (*request(model_version="7"), Code.NOT_FOUND),
        "an unknown content type": (b"x", [("content-type", b"text/plain")], Code.INVALID_ARG),
        "a header of ours that is wrong": (
            request()[0],
            [*request()[1], ("priority", b"high")],
            Code.INVALID_ARG,
        ),
    }
    for what, (value, headers, code) in wrong.items():
        reply = await ask(spring_service, topic, value, headers)
        assert (reply.topic, reply.partition) == (topic, MINE), what
        assert failure(reply).code is code, what
        assert dict(reply.headers)["status"] == code.encode()
        assert dict(reply.headers)["reason"]


async def test_an_address_that_cannot_be_used_is_said_on_the_results_topic(tmp_path: Path) -> None:
    """With Spring's bytes, so that whoever looks finds whose it was; and without a partition it is the request's."""
    topology = Topology(prefix="t", partitions=2)
    root = write_models(tmp_path, {"m": ECHO})
    async with MemoryLog() as log:
        await log.ensure([TopicSpec("t.spring", PARTITIONS), TopicSpec("theirs", 1)])
        async with serving(log, root, topology) as service:
            service.properties = {}
            reply = await ask(service, "t.spring", *request(), partition=None)
            assert (reply.topic, reply.partition) == ("t.spring", 1)
            for topic, partition, text in (
                ("theirs", 0, "is not allowed"),
                ("t.spring", PARTITIONS, "reply partition 3 does not exist"),
                ("t.spring", -1 & 0xFFFFFFFF, "expected 4 bytes, a big-endian partition number"),
            ):
                reply = await ask(service, topic, *request(), partition=partition)
                assert text in failure(reply).detail
                if "4 bytes" not in text:
                    assert reply.topic == topology.results("m")
