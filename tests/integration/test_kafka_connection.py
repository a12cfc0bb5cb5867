"""Reaching a Kafka that is away, encrypted, guarded or restarting: one sentence each, within a bound."""

import asyncio
import gc
import shutil
import socket
import subprocess
import time

import brokers
import pytest
import uvloop
from aiokafka import TopicPartition
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from fault_kit import until
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Mode, Outcome, Position, Span, TopicSpec
from tcp_proxy import TcpProxy

pytestmark = pytest.mark.kafka
PATIENCE_S = 60
PASSWORD = "changeit"

GUARD = """
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_ann="right" user_guest="right";
ssl.keystore.type=PKCS12
ssl.keystore.location={store}
ssl.keystore.password=changeit
ssl.key.password=changeit
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:ann
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, kafka_properties):
    """A node with SASL and TLS listeners and an authorizer; yields addresses and the certificate's file."""
    del kafka_properties  # skips or fails where there is no Java
    if shutil.which("keytool") is None:
        brokers.lacking("no keytool, which comes with Java 17")
    folder = tmp_path_factory.mktemp("guarded")
    store, certificate = folder / "store.p12", folder / "broker.pem"
    keytool = ["keytool", "-keystore", str(store), "-storepass", PASSWORD, "-alias", "broker"]
    subject = ["-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1", "-validity", "3650"]
    for command in (
        [*keytool, "-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", *subject],
        [*keytool, "-exportcert", "-rfc", "-file", str(certificate)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    ports = {"SASL": brokers.free_port(), "TLS": brokers.free_port()}
    node = brokers.KafkaNode(folder, more=GUARD.format(store=store), listeners=ports)
    node.start()
    yield (
        {name: f"127.0.0.1:{port}" for name, port in ports.items()} | {"PLAIN": node.bootstrap},
        certificate,
    )
    node.stop()


def sasl(addresses, user, password, mechanism="PLAIN"):
    module = f'x.PlainLoginModule required username="{user}" password="{password}";'
    return {
        "bootstrap.servers": addresses["SASL"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": module,
    }


def tls(addresses, **more):
    return {"bootstrap.servers": addresses["TLS"], "security.protocol": "SSL", **more}


async def refusal(properties, **options):
    """Return the error of opening a log and how long it took."""
    started = time.monotonic()
    with pytest.raises(LogError) as failed:
        async with KafkaLog(properties, **options):
            pass
    assert "\n" not in failed.value.detail
    assert time.monotonic() - started < 10
    return failed.value


async def test_a_user_with_the_right_password_gets_in(guarded):
    """SASL PLAIN from a JAAS line."""
    addresses, _ = guarded
    async with KafkaLog(sasl(addresses, "ann", "right")) as log:
        assert isinstance(await log.topics(), dict)


async def test_a_wrong_password_is_said_and_not_worth_retrying(guarded, caplog):
    """The sentence names the address and the authentication; no traceback in the log."""
    addresses, _ = guarded
    error = await refusal(sasl(addresses, "ann", "wrong"))
    assert addresses["SASL"] in error.detail
    assert "uthentication" in error.detail
    assert not error.retriable
    assert "Traceback" not in caplog.text


async def test_a_mechanism_that_the_broker_has_not_is_said(guarded):
    """SCRAM without users for it is an authentication failure as well."""
    addresses, _ = guarded
    error = await refusal(sasl(addresses, "ann", "right", "SCRAM-SHA-256"))
    assert "SCRAM-SHA-256" in error.detail
    assert not error.retriable


async def test_tls_with_the_broker_s_certificate_works_end_to_end(guarded, unique):
    """A record goes in and out over TLS, with the truststore named as Kafka names it."""
    addresses, certificate = guarded
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificate)}
    name = unique("tls")
    async with KafkaLog(tls(addresses, **trust)) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(name, 1)])
        await publisher.publish([Out(name, 0, None, b"v")])
        async with log.reader({TP(name, 0): Span(EARLIEST, 1)}) as reader:
            (block,) = await reader.poll(1, PATIENCE_S)
            assert block.records[0].value == b"v"


async def test_an_untrusted_certificate_is_said(guarded):
    """Python's own words on why the certificate is not trusted."""
    addresses, _ = guarded
    error = await refusal(tls(addresses))
    assert "certificate" in error.detail.lower()
    assert addresses["TLS"] in error.detail


async def test_speaking_plaintext_to_a_tls_port_ends_within_the_bound(guarded):
    """And the other way round."""
    addresses, certificate = guarded
    quick = {"request.timeout.ms": "2000"}
    await refusal({"bootstrap.servers": addresses["TLS"], **quick}, connect_timeout_s=3)
    await refusal(
        {
            **tls(addresses, **{"ssl.ca.location": str(certificate)}),
            "bootstrap.servers": addresses["PLAIN"],
            **quick,
        },
        connect_timeout_s=3,
    )


async def test_refused_creation_gives_the_commands_to_create_by_hand(guarded, unique):
    """A user without rights: the error has a ready command per topic, with partitions and settings."""
    addresses, _ = guarded
    a, b = unique("a"), unique("b")
    async with KafkaLog(sasl(addresses, "guest", "right")) as log:
        with pytest.raises(LogError) as refused:
            await log.ensure(
                [TopicSpec(a, 3, {"cleanup.policy": "compact"}), TopicSpec(b, 1, replication=2)]
            )
        assert not refused.value.retriable
        first, *commands = refused.value.detail.splitlines()
        assert a in first
        assert b in first
        assert commands == [
            (
                f"kafka-topics.sh --bootstrap-server {addresses['SASL']} --create --topic {a} "
                "--partitions 3 --config cleanup.policy=compact"
            ),
            (
                f"kafka-topics.sh --bootstrap-server {addresses['SASL']} --create --topic {b} "
                "--partitions 1 --replication-factor 2"
            ),
        ]


async def test_reading_and_publishing_without_rights_is_an_error_not_a_hang(guarded, unique):
    """A topic that somebody else may see: publisher, reader and source each say so."""
    addresses, _ = guarded
    name = unique("secret")
    async with KafkaLog(sasl(addresses, "ann", "right")) as log:
        await log.ensure([TopicSpec(name, 1)])
    async with asyncio.timeout(PATIENCE_S), KafkaLog(sasl(addresses, "guest", "right")) as log:
        async with log.publisher() as publisher:
            with pytest.raises(LogError, match=name):
                await publisher.publish([Out(name, 0, None, b"v")])
        with pytest.raises(LogError, match=name):
            async with log.reader({TP(name, 0): Span(EARLIEST)}):
                pass


async def test_an_unreachable_broker_is_named_within_the_bound():
    """Refused at once where nothing listens; within the timeout where nobody answers."""
    error = await refusal({"bootstrap.servers": f"127.0.0.1:{brokers.free_port()}"})
    assert (
        "no Kafka broker can be used (bootstrap.servers): connecting to 127.0.0.1:" in error.detail
    )
    assert error.retriable
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        error = await refusal({"bootstrap.servers": address}, connect_timeout_s=1)
        assert error.detail.endswith(f"{address}: no answer within 1 s")
    error = await refusal({"bootstrap.servers": "no-such-host.invalid:9092"})
    assert "no-such-host.invalid:9092" in error.detail


async def test_a_broker_that_restarts_is_found_again(tmp_path, kafka_properties, unique):
    """B7: source and publisher go on after it; what was not acknowledged failed with an error."""
    del kafka_properties  # skips or fails where there is no Java
    node = brokers.KafkaNode(tmp_path)
    node.start()
    name = unique("t")
    properties = {
        "bootstrap.servers": node.bootstrap,
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        "request.timeout.ms": "3000",
    }

    class Worker:
        def __init__(self):
            self.epochs = {}

        def assigned(self, tps, epoch):
            self.epochs = dict.fromkeys(tps, epoch)
            self.source.resume(tps)

        async def revoked(self, tps, deadline):
            self.epochs = {}

        def lost(self, tps):
            self.epochs = {}

    worker, owner = Worker(), TP(name, 0)
    try:
        async with KafkaLog(properties, commit_interval_ms=0) as log, log.publisher() as publisher:
            await log.ensure([TopicSpec(name, 1)])
            worker.source = source = log.source("g", {name}, worker)
            async with source:
                await publisher.publish([Out(name, 0, None, b"before")])
                (block,) = await source.poll(10, PATIENCE_S)
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
                done = await delivery.settle({owner: Position(1, "", block.epoch)})
                assert done == {owner: Outcome.SETTLED}
                await asyncio.to_thread(node.kill)
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises(LogError) as failed:
                        await publisher.publish([Out(name, 0, None, b"during")])
                assert failed.value.retriable
                await asyncio.to_thread(node.start)
                async with asyncio.timeout(PATIENCE_S):
                    await publisher.publish([Out(name, 0, None, b"after")])
                    values = []
                    while b"after" not in values:
                        for block in await source.poll(10, 0.5):
                            values += [record.value for record in block.records]
                    end = (await source.end_offsets({owner}))[owner]
                    done = {}
                    while done != {owner: Outcome.SETTLED}:
                        await source.poll(1, 0.1)
                        position = Position(end, "", worker.epochs.get(owner, -1))
                        done = await delivery.settle({owner: position})
                assert (await source.committed({owner}))[owner].offset == end
    finally:
        node.stop()


@pytest.mark.parametrize("seen", [1, 2], ids=["before-metadata", "at-metadata"])
async def test_a_start_that_is_cancelled_leaves_no_connection(kafka_properties, seen):
    """aiokafka's first connection belongs to nobody while it waits for metadata: a rebalance may cancel it there."""
    host, _, port = kafka_properties["bootstrap.servers"].partition(":")
    async with TcpProxy(brokers.free_port(), int(port)) as proxy:
        proxy.delay_s = 0.1
        properties = {**kafka_properties, "bootstrap.servers": f"{host}:{proxy.port}"}

        async def enter() -> None:
            async with KafkaLog(properties):
                pytest.fail("it was to be cancelled before")

        entering = asyncio.create_task(enter())
        # The first connection only greets, and is closed.
        await until(lambda: proxy.accepted == 2, "the second connection", PATIENCE_S)
        # An answer takes 0.2 s; that to the second one's second request is the metadata.
        await asyncio.sleep(0.2 * seen - 0.1)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert not [
            conn
            for conn in gc.get_objects()
            if isinstance(conn, AIOKafkaConnection)
            and conn.connected()
            and conn.port == proxy.port
        ]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_B7_a_connection_that_has_just_broken_is_told_as_one(kafka_properties, new_loop):
    """Before its reader hears of the end uvloop raises an error that nobody takes for a broken connection."""
    host, _, port = kafka_properties["bootstrap.servers"].partition(":")

    async def ask() -> None:
        connection = await create_conn(host, int(port), request_timeout_ms=1_000)
        request = MetadataRequest([], allow_auto_topic_creation=False)
        assert (await connection.send(request)).brokers
        lost = connection._closed_fut
        connection._writer.transport.abort()
        await lost  # the loop knows, and tells the reader next
        with pytest.raises(KafkaConnectionError):
            await connection.send(request)
        assert not connection.connected()
        with pytest.raises(KafkaConnectionError):
            await connection.send(request)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())


async def test_B7_a_producer_whose_sender_is_stuck_is_replaced(kafka_properties, unique):
    """Nothing of it is acknowledged any more, and it says nothing: the next publish has another."""
    name = unique("stuck")
    properties = {**kafka_properties, "request.timeout.ms": "1000"}
    async with KafkaLog(properties) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(name, 1)])
        await publisher.publish([Out(name, 0, None, b"before")])
        stuck = publisher._producer.running()
        leader = stuck.client.cluster.leader_for_partition(TopicPartition(name, 0))
        stuck._sender._in_flight.add(leader)  # a request that never ends
        with pytest.raises(LogError, match="no acknowledgement") as failed:
            await publisher.publish([Out(name, 0, None, b"during")])
        assert failed.value.retriable
        await publisher.publish([Out(name, 0, None, b"after")])
        async with log.reader({TP(name, 0): Span(EARLIEST, LATEST)}) as reader:
            values = []
            while not reader.done():
                for block in await reader.poll(10, PATIENCE_S):
                    values += [record.value for record in block.records]
        assert values == [b"before", b"after"]
        assert not any(conn.connected() for conn in stuck.client._conns.values())
    with pytest.raises(LogError, match="closed"):
        await publisher.publish([Out(name, 0, None, b"too late")])


async def test_B93_a_request_begins_in_the_turn_in_which_it_is_published(kafka_properties, unique):
    """A turn is milliseconds where much else is to be done; what comes meanwhile is in the next request."""
    name = unique("prompt")
    async with KafkaLog(kafka_properties) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(name, 1)])
        await publisher.publish([Out(name, 0, None, b"first")])
        producer = publisher._producer
        tasks = []
        for n in range(3):
            batches = await producer.batches([Out(name, 0, None, b"%d" % n)])
            sending = asyncio.create_task(producer.send(batches))
            await asyncio.sleep(0)
            assert len(producer._requests) == 1
            tasks.append(sending)
        for futures in await asyncio.gather(*tasks):
            await asyncio.wait(futures)
        closing = asyncio.create_task(publisher.publish([Out(name, 0, None, b"last")]))
        await asyncio.sleep(0)
        await producer.close()  # what is under way, and what waits behind it, still goes out
        await closing
    async with KafkaLog(kafka_properties) as log:
        async with log.reader({TP(name, 0): Span(EARLIEST, LATEST)}) as reader:
            values = []
            while not reader.done():
                for block in await reader.poll(10, PATIENCE_S):
                    values += [record.value for record in block.records]
        assert values == [b"first", b"0", b"1", b"2", b"last"]
