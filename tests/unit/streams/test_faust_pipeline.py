"""Typed topics of a Faust app, and the settings that it needs, without a broker."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

faust = pytest.importorskip("faust")

from headrace.schemas.codec import decode_request  # noqa: E402  # behind the skip
from headrace.schemas.errors import (  # noqa: E402  # as above
    ConfigError,
    DeadlineExceeded,
    InferError,
    LogError,
    NotFound,
    Reason,
    Unavailable,
)
from headrace.schemas.infer import InferResponse  # noqa: E402  # as above
from headrace.schemas.record import CONTENT_TYPES, JSON  # noqa: E402  # as above
from headrace.streams.embedded import PROPERTIES  # noqa: E402  # as above
from headrace.streams.faust_pipeline import Pipeline, app_settings  # noqa: E402  # as above
from headrace.streams.memory import MemoryLog  # noqa: E402  # as above
from headrace.streams.topology import MappedTopics, Topology  # noqa: E402  # as above
from wire_kit import fp32, request  # noqa: E402  # as above

KAFKA = {"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2"}


def new_pipeline(topology=Topology()):  # noqa: B008  # frozen
    app = faust.App("unit", **app_settings(KAFKA, partitions=4))
    return app, Pipeline(app, KAFKA, topology)


def message(pending):
    """Return a sent record as a consumer would hand it on."""
    return faust.types.tuples.Message(
        "t", 0, 5, 0.0, 0, tuple(pending.headers), pending.key, pending.value, None
    )


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
async def test_a_request_is_sent_with_the_key_and_the_headers_of_the_contract(content_type):
    """The key is the sequence id as text; headers of the sender's own count."""
    app, pipeline = new_pipeline()
    topic = pipeline.requests("m", content_type)
    assert topic.get_topic_name() == "headrace.m.requests"
    sent = request(1, 2, 3, 4, id="a", sequence_id="s", sequence_start=True)
    headers = {"reply-topic": b"headrace.mine", "id": b"b"}
    pending = topic.as_future_message(value=sent, headers=headers).message
    assert pending.key == b"s"
    found = dict(pending.headers)
    assert found["content-type"].decode() == content_type
    assert (found["sequence-id"], found["sequence-id-type"]) == (b"s", b"string")
    assert (found["id"], found["reply-topic"]) == (b"b", b"headrace.mine")
    assert decode_request(pending.value, content_type, pending.headers).inputs == sent.inputs

    event = await topic.schema.decode(app, message(pending))
    assert (event.key, event.value.id, event.value.sequence_id) == (b"s", "b", "s")
    assert topic.as_future_message(b"k", sent).message.key == b"k"
    assert topic.as_future_message(value=request(1, 2, 3, 4)).message.key is None


async def test_a_results_topic_has_responses_and_errors_as_values():
    """Whatever the record is: an agent's stream never ends by it (B32)."""
    app, pipeline = new_pipeline()
    topic = pipeline.results("m", JSON)
    response = InferResponse((fp32(0.5, name="y"),), "a", "m", "1")
    pending = topic.as_future_message(b"k", response).message
    event = await topic.schema.decode(app, message(pending))
    assert (event.key, event.value) == (b"k", response)
    for value in (None, b"", b"{"):
        bad = message(pending._replace(value=value))
        event = await topic.schema.decode(app, bad, propagate=True)
        assert isinstance(event.value, InferError)
        assert event.key == b"k"


async def test_a_record_that_is_passed_on_stays_as_it_is():
    """Streams that are repartitioned forward the bytes and headers, which the same topic type reads."""
    _, pipeline = new_pipeline()
    topic = pipeline.results("m")
    given = [("content-type", b"application/json"), ("status", b"OK")]
    pending = topic.as_future_message(b"other", b"{}", headers=given).message
    assert (pending.value, pending.headers) == (b"{}", given)


async def test_the_topics_of_a_model_are_not_created_by_faust():
    """Only those that streams are repartitioned through; clones for agents are the model's too."""
    _, pipeline = new_pipeline()
    created = []

    class Producer:
        async def create_topic(self, topic, **_options):
            created.append(topic)

    async def producer():
        return Producer()

    topic = pipeline.results("m")
    for one in (topic, topic.clone(is_iterator=True), topic.derive_topic(suffix="-by-hour")):
        one._get_producer = producer
        await one.maybe_declare()
    assert created == ["headrace.m.results-by-hour"]


def test_mapped_topics_are_found_and_other_content_types_refused():
    """As everywhere."""
    topology = Topology(prefix="p", mapped={"m": MappedTopics(results="shop.scores")})
    _, pipeline = new_pipeline(topology)
    assert pipeline.results("m").get_topic_name() == "shop.scores"
    assert pipeline.requests("m").get_topic_name() == "p.m.requests"
    with pytest.raises(ConfigError, match="content_type = text/plain: expected one of"):
        pipeline.requests("m", "text/plain")
    with pytest.raises(ConfigError, match="a topic's name"):
        pipeline.results("m/n")


async def test_a_model_is_asked_only_while_the_app_runs():
    """Else there is nothing that would close the connection."""
    _, pipeline = new_pipeline()
    with pytest.raises(Unavailable, match="the Faust app does not run"):
        await pipeline.infer("m", {"x": [1.0]})


@asynccontextmanager
async def started(kafka) -> AsyncIterator[Pipeline]:
    """A pipeline whose connection opens as in a running app."""
    pipeline = Pipeline(faust.App("unit", **app_settings(KAFKA, partitions=1)), kafka)
    await pipeline._asking.maybe_start()
    try:
        yield pipeline
    finally:
        await pipeline._asking.stop()


async def test_brokers_that_cannot_be_used_are_an_error_of_each_call_and_end_the_app():
    """A worker that could only fail is for its supervisor to start again."""
    async with started("127.0.0.1:1") as pipeline:
        for _ in range(2):
            with pytest.raises(Unavailable, match="no Kafka broker can be used"):
                await pipeline.infer("m", {"x": [1.0]})
        assert isinstance(pipeline._asking.crash_reason, LogError)


async def test_a_connection_that_takes_too_long_ends_a_call_and_not_the_others():
    """And the app stops though it is not there yet."""
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        async with started(f"127.0.0.1:{silent.getsockname()[1]}") as pipeline:
            waiting = asyncio.create_task(pipeline.infer("m", {"x": [1.0]}))
            with pytest.raises(DeadlineExceeded):
                await pipeline.infer("m", {"x": [1.0]}, timeout_s=0.05)
            assert not waiting.done()
        with pytest.raises(Unavailable, match="the Faust app stops") as refused:
            await waiting
        assert refused.value.reason is Reason.DRAINING


async def test_an_app_that_stops_ends_the_calls_that_are_open():
    """Its client too, and a restart opens another one."""
    async with MemoryLog() as log:
        async with started(log) as pipeline:
            client = await pipeline.client()
            with pytest.raises(NotFound):
                await pipeline.infer("m", {"x": [1.0]})
            assert await pipeline.client() is client
            await pipeline._asking.restart()
            assert await pipeline.client() is not client
        with pytest.raises(Unavailable, match="not open"):
            await pipeline.infer("m", {"x": [1.0]})


async def test_B13_faust_would_commit_past_a_record_in_flight():
    """Why it stays out of the inference path; once this fails, that can be thought about again."""
    app, _ = new_pipeline()
    tp = faust.types.TP("t", 0)
    consumer = app.consumer
    consumer._thread.thread_loop.close()  # of the thread that never starts
    consumer._committed_offset[tp] = 5  # the next one to read, which is in flight
    consumer._acked[tp] = [6, 7]
    assert consumer._new_offset(tp) == 8


def test_kafkas_own_property_names_become_fausts_settings():
    """Brokers, times and sizes; nothing but what belongs to a Kafka."""
    found = app_settings({**KAFKA, **PROPERTIES, "max.request.size": "2000000"}, partitions=3)
    conf = faust.App("unit", **found).conf
    assert [str(url) for url in conf.broker] == ["kafka://127.0.0.1:1", "kafka://127.0.0.1:2"]
    assert (conf.broker_session_timeout, conf.broker_heartbeat_interval) == (6.0, 1.0)
    assert conf.broker_request_timeout >= conf.broker_session_timeout
    assert (conf.topic_partitions, conf.producer_max_request_size) == (3, 2_000_000)
    assert conf.consumer_auto_offset_reset == "earliest"
    assert conf.broker_credentials is None
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        app_settings({}, partitions=1)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
def test_sasl_and_tls_become_fausts_credentials(protocol):
    """The same properties reach the same brokers."""
    sasl = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
    properties = {**KAFKA, "security.protocol": protocol} | (sasl if "SASL" in protocol else {})
    found = faust.App("unit", **app_settings(properties, partitions=1)).conf.broker_credentials
    assert found.protocol.value == protocol
    if "SASL" in protocol:
        assert (found.username, found.password, found.mechanism.value) == (
            "u",
            "p",
            "SCRAM-SHA-512",
        )
        context = found.ssl_context
    else:
        context = found.context
    assert isinstance(context, ssl.SSLContext) is ("SSL" in protocol.split("_"))
