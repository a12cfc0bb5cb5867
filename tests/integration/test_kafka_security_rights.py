"""B58: a right that is missing is named, nobody hangs for it, readiness says it, and granting it heals by itself."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from guarded_kit import acls, guarded_broker
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.deploy.serving import free_ports
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import InvalidRequest, LogError
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.http import HttpServer
from headrace.streams.http_call import HttpSettings
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_committed import committed_positions
from headrace.streams.kafka_rights import Operation, Resource
from headrace.streams.kafka_transaction import KafkaTransactionalProducer, transactional_id
from headrace.streams.kafka_transaction_wire import TransactionWire
from headrace.streams.log import EARLIEST, Mode, Position, Span, TopicSpec
from headrace.streams.topology import Topology
from log_kit import Worker as Member
from service_kit import loaded, until, working, write_models

pytestmark = pytest.mark.kafka
PATIENCE_S = 60
AT_ONCE_S = 2.0
QUICK = {
    "request.timeout.ms": "4000",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "300",
}
MODEL = """
name: "echo" backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
READ, WRITE, CREATE, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DESCRIBE,
)
TOPIC, GROUP = Resource.TOPIC, Resource.GROUP


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker with ACLs; bob has the rights that tests give him."""
    folder = tmp_path_factory.mktemp("guarded")
    with guarded_broker(folder, ann="unused", users={"bob": "secret"}) as found:
        yield found


@pytest.fixture
async def rights(guarded):
    """Grants and forbids."""
    async with acls(guarded) as rights:
        yield rights


@pytest.fixture
async def ruler(guarded):
    """The super user's log."""
    async with KafkaLog({"bootstrap.servers": guarded.plain, **QUICK}) as log:
        yield log


@pytest.fixture
async def bob(guarded):
    """Bob's log."""
    async with KafkaLog(guarded.user("bob", "secret") | QUICK) as log:
        yield log


@pytest.fixture
def world(rights, ruler, bob):
    """All three."""
    return rights, ruler, bob


async def publish(log, topic):
    async with log.publisher() as publisher:
        await publisher.publish([Out(topic, 0, None, b"v")])


async def read(log, topic):
    async with log.reader({TP(topic, 0): Span(EARLIEST)}):
        pass


async def consume(log, topic):
    """Join, read, and commit."""
    member = Member()
    source = member.source = log.source(topic, {topic}, member)
    async with asyncio.timeout(PATIENCE_S), source:
        while not member.epochs:
            await source.poll(1, 0.1)
        await source.poll(1, 1.0)
        tp = TP(topic, 0)
        await source.commit({tp: Position(0, "", member.epochs[tp])})


async def poll_for_ever(source):
    while True:
        await source.poll(1, 0.1)


async def look(log, topic):
    await log.partitions(topic)


async def ask(log, group):
    """Ask what a group has committed, without being a member of it."""
    await committed_positions(log._settings, group, {TP(group, 0)})


async def create(log, topic):
    await log.ensure([TopicSpec(f"{topic}-new", 1)])


async def delete(log, topic):
    await log.delete([topic])


@pytest.mark.parametrize(
    ("does", "granted", "sentence"),
    [
        (publish, (), r"publishing to {t}/0 is not allowed: User:bob needs Write on Topic {t}"),
        (
            publish,
            ((DESCRIBE, TOPIC),),
            r"publishing to {t}/0 is not allowed: User:bob needs Write on Topic {t}",
        ),
        (read, (), r"looking at {t} is not allowed: User:bob needs Describe on Topic {t}"),
        (
            read,
            ((DESCRIBE, TOPIC),),
            r"reading {t} is not allowed: User:bob needs Read on Topic {t}",
        ),
        (
            consume,
            ((READ, TOPIC),),
            r"joining group {t} is not allowed: User:bob needs Read on Group {t}",
        ),
        (
            consume,
            ((READ, GROUP), (DESCRIBE, TOPIC)),
            r"reading {t} is not allowed: User:bob needs Read on Topic {t}",
        ),
        (look, (), r"looking at {t} is not allowed: User:bob needs Describe on Topic {t}"),
        (
            ask,
            ((DESCRIBE, TOPIC),),
            r"fetching committed offsets of group {t} is not allowed: User:bob needs Describe on Group {t}",
        ),
        (
            ask,
            ((DESCRIBE, GROUP),),
            r"fetching committed offsets of group {t} is not allowed: User:bob needs Describe on Topic {t}",
        ),
        (
            create,
            ((WRITE, TOPIC),),
            (
                r"creating {t}-new was refused \(User:bob needs Create on Topic {t}-new or Create on Cluster "
                r"kafka-cluster, and Describe on it if it exists\); create by hand:"
            ),
        ),
        (delete, (), r"deleting {t} is not allowed: User:bob needs Delete on Topic {t}"),
    ],
)
async def test_an_error_names_operation_resource_and_principal(
    world, unique, does, granted, sentence
):
    """And it is not worth a retry: somebody has to grant it first."""
    rights, ruler, bob = world
    topic = unique("t")
    await ruler.ensure([TopicSpec(topic, 1)])
    for operation, resource in granted:
        await rights.allow("bob", operation, resource, topic)
    started = time.monotonic()
    with pytest.raises(LogError, match=sentence.format(t=re.escape(topic))) as refused:
        await does(bob, topic)
    assert time.monotonic() - started < 10
    assert not refused.value.retriable


async def test_a_right_that_goes_while_a_member_runs_is_named_and_heals_in_the_next_membership(
    rights, ruler, bob, unique
):
    """Polls and commits tell it; the same log needs no new start."""
    topic = unique("t")
    await ruler.ensure([TopicSpec(topic, 1)])
    await rights.allow("bob", READ, TOPIC, topic)
    await rights.allow("bob", READ, GROUP, topic)
    member = Member()
    source = member.source = bob.source(topic, {topic}, member)
    async with asyncio.timeout(PATIENCE_S), source:
        while not member.epochs:
            await source.poll(1, 0.1)
        await rights.deny("bob", READ, GROUP, topic)
        named = re.escape(f"User:bob needs Read on Group {topic}")
        with pytest.raises(LogError, match=named):
            await poll_for_ever(source)
        position = Position(0, "", member.epochs[TP(topic, 0)])
        with pytest.raises(LogError, match=named):
            await source.commit({TP(topic, 0): position})
        await rights.allow_again("bob", READ, GROUP, topic)
    await consume(bob, topic)


async def test_rights_of_transactions_are_named_too_and_last(rights, ruler, bob, unique):
    """Each right in turn: of the transactional id, the results, the group, the requests; then it commits."""
    requests, results, group = unique("requests"), unique("results"), unique("g")
    await ruler.ensure([TopicSpec(requests, 1), TopicSpec(results, 1)])
    owner = TP(requests, 0)
    name = transactional_id(group, owner)

    async def transaction():
        wire = TransactionWire(bob._settings)
        producer = KafkaTransactionalProducer(wire, group, owner, timeout_ms=10_000)
        try:
            await producer.start()
            await producer.begin()
            await producer.send([Out(results, 0, None, b"v")])
            await producer.send_position(Position(0, ""))
            await producer.commit()
        finally:
            await producer.close()
            await wire.close()

    for topic in (requests, results):
        await rights.allow("bob", DESCRIBE, TOPIC, topic)
    await rights.allow("bob", DESCRIBE, Resource.TRANSACTIONAL_ID, name)
    for right in (
        (WRITE, Resource.TRANSACTIONAL_ID, name),
        (WRITE, TOPIC, results),
        (READ, GROUP, group),
        (READ, TOPIC, requests),
    ):
        operation, resource, what = right
        wanted = re.escape(f"User:bob needs {operation} on {resource} {what}")
        with pytest.raises(LogError, match=wanted) as refused:
            await asyncio.wait_for(transaction(), PATIENCE_S)
        assert not refused.value.retriable
        await rights.allow("bob", *right)
    await asyncio.wait_for(transaction(), PATIENCE_S)


async def everything(rights, ruler, topology):
    """Make all topics and let bob do everything with them."""
    await ruler.ensure(
        [*topology.shared_specs(), *topology.model_specs("echo", window_ms=3_600_000)]
    )
    for resource in (TOPIC, GROUP):
        await rights.allow("bob", "All", resource, f"{topology.prefix}.", prefix=True)


@pytest.fixture
async def topology(rights, ruler, unique):
    """Topics of an own prefix; all there, all bob's."""
    topology = Topology(prefix=unique("h"), partitions=2, reply_partitions=2)
    await everything(rights, ruler, topology)
    return topology


class Asker:
    """A gateway's HTTP side as its callers see it."""

    def __init__(self, session):
        self._session = session

    async def readiness(self):
        """Return status and, where there is one, the sentence."""
        async with self._session.get("/v2/health/ready") as answer:
            text = await answer.text()
        return answer.status, json.loads(text)["error"] if text else ""

    async def until_ready(self, status, contains=""):
        """Wait for a readiness with this status and these words."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.readiness()
                if found[0] == status and contains in found[1]:
                    return
                await asyncio.sleep(0.05)  # another process's state, or many parts' of this one

    async def infer(self):
        """Ask; returns the status and how long it took."""
        started = time.monotonic()
        async with self._session.post("/v2/models/echo/infer", json=BODY) as answer:
            await answer.read()
        return answer.status, time.monotonic() - started


@asynccontextmanager
async def gateway_of(log, topology):
    """Run a gateway with its HTTP server, started as the command starts them."""
    async with Gateway(log, topology, GatewaySettings(interval_ms=500)) as gateway:
        async with asyncio.timeout(10):
            await gateway.wait_started()
        async with (
            HttpServer(gateway, HttpSettings(port=0)) as server,
            aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
        ):
            yield Asker(session)


@asynccontextmanager
async def worker_of(log, topology, tmp_path, **settings):
    root = write_models(tmp_path / "models", {"echo": MODEL})
    async with loaded(root) as repository, working(log, repository, topology, **settings) as found:
        yield found


@pytest.mark.parametrize(
    ("right", "sentence"),
    [
        ((READ, "replies"), "reading {t} is not allowed: User:bob needs Read on Topic {t}"),
        (
            ("All", "replies"),
            "looking at {t} is not allowed: User:bob needs Describe on Topic {t}",
        ),
        ((READ, "status"), "reading {t} is not allowed: User:bob needs Read on Topic {t}"),
        (
            (WRITE, "status"),
            "publishing to {t}/0 is not allowed: User:bob needs Write on Topic {t}",
        ),
    ],
)
async def test_B58_a_gateway_that_may_not_read_is_not_ready_says_why_refuses_at_once_and_heals(
    world, topology, tmp_path, right, sentence
):
    """Nobody waits for a reply that cannot be read; the right comes, and calls are answered."""
    (rights, ruler, bob), (operation, kind) = world, right
    topic = getattr(topology, kind)
    await rights.deny("bob", operation, TOPIC, topic)
    async with (
        worker_of(ruler, topology, tmp_path),
        gateway_of(bob, topology) as asker,
    ):
        await asker.until_ready(400, sentence.format(t=topic))
        for _ in range(20):  # also while it tries again
            status, seconds = await asker.infer()
            assert (status, seconds < AT_ONCE_S) == (503, True)
        await rights.allow_again("bob", operation, TOPIC, topic)
        await asker.until_ready(200)
        assert (await asker.infer())[0] == 200


async def test_B58_a_gateway_that_may_not_write_requests_says_so_to_the_call(
    rights, ruler, bob, topology, tmp_path
):
    """The gateway serves other models, so it is ready; this call is refused at once, with the right's name."""
    await rights.deny("bob", WRITE, TOPIC, topology.requests("echo"))
    async with worker_of(ruler, topology, tmp_path), gateway_of(bob, topology) as asker:
        await asker.until_ready(200)
        status, seconds = await asker.infer()
        assert (status, seconds < AT_ONCE_S) == (503, True)
        await rights.allow_again("bob", WRITE, TOPIC, topology.requests("echo"))
        assert (await asker.infer())[0] == 200


@pytest.mark.parametrize(
    ("right", "sentence"),
    [
        (
            (READ, TOPIC, "requests"),
            # Taking over ends with a commit (P-5), which needs it before any reading does.
            "is not allowed: User:bob needs Read on Topic {t}",
        ),
        (
            (READ, TOPIC, "answers"),
            "reading {t} is not allowed: User:bob needs Read on Topic {t}",
        ),
        (
            (READ, GROUP, "group"),
            "joining group {t} is not allowed: User:bob needs Read on Group {t}",
        ),
        (
            (WRITE, TOPIC, "results"),
            "publishing to {t}/0 is not allowed: User:bob needs Write on Topic {t}",
        ),
    ],
)
async def test_B58_a_worker_without_a_right_is_not_ready_says_which_and_heals(
    world, topology, tmp_path, right, sentence
):
    """A record that waits is answered once the right is there."""
    (rights, ruler, bob), (operation, resource, kind) = world, right
    name = getattr(topology, kind)("echo")
    await rights.deny("bob", operation, resource, name)
    async with worker_of(bob, topology, tmp_path, wait=False) as service:
        worker = service.worker
        record = await request_of(ruler, topology)
        wanted = sentence.format(t=name)
        await until(
            lambda: not worker.ready() and any(wanted in why for why in worker.troubles()),
            f"{worker.troubles()}",
        )
        memberships = []

        def steadily(count):
            assert not worker.ready(), "it looks well between two failures"
            found = worker.models["echo"].assignment
            if found not in memberships:
                memberships.append(found)
            return len(memberships) >= count

        await until(lambda: steadily(3), "further memberships")
        assert any(wanted in why for why in worker.troubles())
        await rights.allow_again("bob", operation, resource, name)
        await answer_to(ruler, topology, record)
        await until(worker.ready, f"{worker.troubles()}")
        assert worker.troubles() == []


async def request_of(log, topology):
    """Put a request into partition 0, as a gateway would, for an answer in the results topic."""
    tensor = Tensor("INPUT0", "FP32", (1, 2), bytes(8))
    value, headers = encode_request(
        InferRequest((tensor,), id="the-one"), AVRO, RequestOptions(correlation_id=b"c")
    )
    out = Out(topology.requests("echo"), 0, None, value, headers)
    async with log.publisher() as publisher:
        await publisher.publish([out])
    return b"the-one"


async def answer_to(log, topology, request_id):
    """Wait for the result of a request."""
    async with (
        asyncio.timeout(PATIENCE_S),
        log.reader({TP(topology.results("echo"), 0): Span(EARLIEST)}) as reader,
    ):
        while True:
            for block in await reader.poll(100, 0.5):
                for record in block.records:
                    if dict(record.headers).get("id") == request_id:
                        return


async def test_B58_a_worker_without_create_says_which_topics_to_make_by_hand(
    rights, bob, unique, tmp_path
):
    """It ends at its start with the sentence, before anything is joined."""
    topology = Topology(prefix=unique("h"), partitions=2, reply_partitions=2)
    await rights.allow("bob", DESCRIBE, TOPIC, f"{topology.prefix}.", prefix=True)
    root = write_models(tmp_path / "models", {"echo": MODEL})
    async with loaded(root) as repository:
        with pytest.raises(LogError) as refused:
            async with Worker(bob, repository, topology, WorkerSettings(worker_id="w")):
                pass
    wanted = topology.requests("echo")
    assert f"User:bob needs Create on Topic {wanted} or Create on Cluster" in refused.value.detail
    assert f"--create --topic {wanted} --partitions 2" in refused.value.detail


async def test_B58_the_command_takes_a_file_of_properties_and_says_why_it_is_not_ready(
    guarded, rights, ruler, topology, tmp_path
):
    """`headrace gateway --kafka-config`: it listens, says why, heals; the password is in none of its output."""
    file = tmp_path / "client.properties"
    properties = guarded.user("bob", "secret") | QUICK
    file.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    http, metrics = free_ports(2)
    await rights.deny("bob", READ, TOPIC, topology.replies)
    async with worker_of(ruler, topology, tmp_path):
        with (tmp_path / "log").open("wb") as log:
            command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.deploy.cli", "gateway"),
                *("--kafka-config", str(file), "--topic-prefix", topology.prefix),
                *("--http-port", str(http), "--grpc-port", "0", "--metrics-port", str(metrics)),
                stdout=log,
                stderr=log,
                env={**os.environ, "HEADRACE_LOG_LEVEL": "debug"},
            )
        try:
            await until_listening(http, command, tmp_path / "log")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{http}") as session:
                asker = Asker(session)
                await asker.until_ready(400, f"User:bob needs Read on Topic {topology.replies}")
                assert (await asker.infer())[0] == 503
                await rights.allow_again("bob", READ, TOPIC, topology.replies)
                await asker.until_ready(200)
                assert (await asker.infer())[0] == 200
        finally:
            if command.returncode is None:
                command.send_signal(signal.SIGTERM)
            status = await asyncio.wait_for(command.wait(), PATIENCE_S)
        printed = (tmp_path / "log").read_text()
        assert status == 0, printed
        assert "needs Read on Topic" in printed
        assert "secret" not in printed


async def until_listening(port, process, log):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert process.returncode is None, log.read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)  # another process's start
            else:
                writer.close()
                await writer.wait_closed()
                return


async def answers(log, topology, count):
    """Return the first answers on the results topic as source → headers, in the committed view; each comes once."""
    found = {}
    spans = {TP(topology.results("echo"), 0): Span(EARLIEST)}
    async with asyncio.timeout(PATIENCE_S), log.reader(spans, committed=True) as reader:
        while len(found) < count:
            for block in await reader.poll(100, 0.5):
                for record in block.records:
                    headers = dict(record.headers)
                    assert headers["source"] not in found
                    found[headers["source"]] = headers | {"value": record.value}
    return found


@pytest.mark.parametrize("mode", list(Mode))
async def test_B58_a_reply_topic_that_may_not_be_written_is_its_own_requests_error_only(
    world, topology, tmp_path, mode
):
    """Nobody else's answer waits or comes twice; the error names topic and right, and no partition changes hands."""
    rights, ruler, bob = world
    theirs = f"{topology.prefix}.theirs"
    await ruler.ensure([TopicSpec(theirs, 1)])
    await rights.deny("bob", WRITE, TOPIC, theirs)
    await rights.allow(
        "bob", "All", Resource.TRANSACTIONAL_ID, topology.group("echo"), prefix=True
    )
    requests = topology.requests("echo")
    tensor = Tensor("INPUT0", "FP32", (1, 2), bytes(8))
    value, headers = encode_request(InferRequest((tensor,), id="i"), AVRO, RequestOptions())
    mine = [*headers, ("reply-topic", theirs.encode())]

    async def ask(*which):
        async with ruler.publisher() as publisher:
            await publisher.publish([Out(requests, 0, None, value, found) for found in which])

    async with worker_of(bob, topology, tmp_path, delivery=mode) as service:
        model = service.worker.models["echo"]
        rebalances = model.assignment.rebalances
        await ask(headers, headers, mine, headers)
        await answers(ruler, topology, 4)
        await ask(mine, headers)  # it is remembered
        found = await answers(ruler, topology, 6)
        assert (model.assignment.rebalances, service.worker.troubles()) == (rebalances, [])
        statuses = [found[f"{requests}/0/{offset}".encode()] for offset in range(6)]
        assert [headers["status"] for headers in statuses] == [
            *(b"OK", b"OK", b"INVALID_ARG", b"OK", b"INVALID_ARG", b"OK")
        ]
        for offset in (2, 4):
            refused = statuses[offset]
            assert (refused["reason"], refused["id"]) == (b"reply_topic_refused", b"i")
            with pytest.raises(InvalidRequest) as error:
                decode_response(refused["value"], list(refused.items()))
            assert f"reply topic '{theirs}' refuses answers" in error.value.detail
            assert f"User:bob needs Write on Topic {theirs}" in error.value.detail
