"""The kits of the chaos tests do what they say: nodes die, freeze and come back, a proxy hurts and heals."""

import asyncio
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import brokers
import pytest
from cluster import Cluster
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Span, TopicSpec
from tcp_proxy import TcpProxy, proxies

PATIENCE_S = 40.0
# Elections come sooner than in the cluster of the chaos tests, which keeps the file short.
SESSION = "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500"
QUICK = {
    "request.timeout.ms": "2000",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
}

kafka = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes that run when a test begins: each test mends what it broke."""
    try:
        made = Cluster(tmp_path_factory.mktemp("cluster"), more=SESSION)
    except brokers.Unavailable as missing:
        brokers.lacking(f"no Apache Kafka: {missing}")
    with made:
        yield made


def log_of(bootstrap):
    return KafkaLog({"bootstrap.servers": bootstrap, **QUICK})


async def persist(publisher, topic, value):
    """Publish until it is acknowledged; fails at an error that is not worth a retry."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await publisher.publish([Out(topic, 0, None, value)])
            except LogError as error:
                if not error.retriable:
                    raise


async def values_of(log, topic):
    """Return every value of the topic's only partition."""
    found = []
    async with (
        asyncio.timeout(PATIENCE_S),
        log.reader({TP(topic, 0): Span(EARLIEST, LATEST)}) as reader,
    ):
        while not reader.done():
            for block in await reader.poll(1000, 1.0):
                found += [record.value for record in block.records]
    return found


@kafka
async def test_records_outlive_a_leader_that_is_killed_and_one_that_freezes(cluster, unique):
    """acks=all on two in-sync replicas: what was acknowledged is there, whoever leads; both nodes come back."""
    topic = unique("t")
    async with log_of(cluster.bootstrap) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(topic, 1)])
        await persist(publisher, topic, b"before")
        killed = await cluster.leader(topic, 0)
        await asyncio.to_thread(cluster.kill, killed)
        await persist(publisher, topic, b"after the kill")
        second = await cluster.leader(topic, 0)
        assert second != killed
        assert killed not in cluster.running()
        await asyncio.to_thread(cluster.start, killed)
        await cluster.until_in_sync()
        cluster.pause(second)
        await persist(publisher, topic, b"while one is frozen")
        assert await cluster.leader(topic, 0) != second
        cluster.resume(second)
        await cluster.until_in_sync()
        assert cluster.running() == [1, 2, 3]
        found = await values_of(log, topic)
        assert list(dict.fromkeys(found)) == [b"before", b"after the kill", b"while one is frozen"]


@kafka
async def test_the_coordinator_moves_when_it_is_stopped(cluster, unique):
    """A node that is stopped in order hands over at once; the kit names who took over."""
    group = unique("g")
    first = await cluster.coordinator(group)
    assert await cluster.coordinator(group) == first
    await asyncio.to_thread(cluster.stop, first)
    second = await cluster.coordinator(group)
    assert second != first
    await asyncio.to_thread(cluster.restart, first)
    await cluster.until_in_sync()
    assert cluster.running() == [1, 2, 3]


@kafka
async def test_a_cut_between_a_client_and_the_brokers_is_an_error_and_then_heals(cluster, unique):
    """The brokers' own connections do not pass the proxies: only this client suffers."""
    topic = unique("t")
    async with (
        proxies(cluster.proxies) as between,
        log_of(cluster.proxied_bootstrap) as log,
        log.publisher() as publisher,
    ):
        await log.ensure([TopicSpec(topic, 1)])
        await persist(publisher, topic, b"before")
        assert between[await cluster.leader(topic, 0)].accepted > 0
        for hurt in (TcpProxy.cut, TcpProxy.silence):
            for proxy in between.values():
                hurt(proxy)
            with pytest.raises(LogError) as failed:
                async with asyncio.timeout(PATIENCE_S):
                    await publisher.publish([Out(topic, 0, None, b"during")])
            assert failed.value.retriable
            for proxy in between.values():
                await proxy.heal()
            await persist(publisher, topic, b"after")
        await cluster.until_in_sync()
        assert (await values_of(log, topic))[0] == b"before"


async def _echo(reader, writer):
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@pytest.fixture
async def echo_port():
    """Port of a server that sends everything back."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def proxy(echo_port):
    """A proxy in front of the echo."""
    async with TcpProxy(brokers.free_port(), echo_port) as proxy:
        yield proxy


async def echoed(reader, writer, data):
    writer.write(data)
    return await reader.readexactly(len(data))


async def test_a_proxy_forwards_everything_in_order_and_the_end_too(proxy):
    """More than all buffers hold, so that back-pressure is needed."""
    data = os.urandom(4_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    async with asyncio.timeout(PATIENCE_S):
        assert await echoed(reader, writer, data) == data
        writer.write_eof()
        assert await reader.read() == b""
    writer.close()


async def test_a_delay_holds_each_way_and_ends(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await echoed(reader, writer, b"a") == b"a"
    proxy.delay_s = 0.1
    started = time.monotonic()
    assert await echoed(reader, writer, b"b") == b"b"
    assert time.monotonic() - started >= 0.19
    await proxy.heal()
    started = time.monotonic()
    assert await echoed(reader, writer, b"c") == b"c"
    assert time.monotonic() - started < 0.1
    writer.close()


async def test_silence_forwards_nothing_closes_nothing_and_what_was_sent_arrives(proxy):
    """Half-open, also for a connection that is made meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await echoed(reader, writer, b"a") == b"a"
    proxy.silence()
    writer.write(b"b")
    late_reader, late_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    late_writer.write(b"c")
    for quiet in (reader, late_reader):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await quiet.read(1)
    await proxy.heal()
    assert await reader.readexactly(1) == b"b"
    assert await late_reader.readexactly(1) == b"c"
    writer.close()
    late_writer.close()


async def test_a_cut_resets_and_refuses_a_drop_only_resets_a_refusal_only_refuses(proxy):
    for fault, resets, refuses in (
        (proxy.cut, True, True),
        (proxy.drop, True, False),
        (proxy.refuse, False, True),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await echoed(reader, writer, b"a") == b"a"
        fault()
        if resets:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await echoed(reader, writer, b"b")
        else:
            assert await echoed(reader, writer, b"b") == b"b"
        if refuses:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.heal()
        reader, again = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await echoed(reader, again, b"c") == b"c"
        writer.close()
        again.close()


ORPHANS = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from cluster import Cluster
with Cluster(Path({folder!r}), size=1) as cluster:
    print(cluster._processes[1].pid, flush=True)
    sys.stdin.read()
"""


@kafka
def test_brokers_die_with_the_process_that_started_them(tmp_path, cluster):
    """However it dies: a killed test session leaves no Java behind."""
    script = ORPHANS.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        broker = int(parent.stdout.readline())
        descriptor = os.pidfd_open(broker)
    finally:
        parent.kill()
        parent.communicate()
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0]  # readable once it has ended
    finally:
        os.close(descriptor)
