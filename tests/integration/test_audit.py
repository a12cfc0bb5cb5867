"""The audit behind a real worker, on each of the three logs: clean as it is, and each planted fault is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from audit_kit import answer, memory_progress
from fault_kit import group_of
from headrace.consumers.ledger import encode_metadata
from headrace.deploy.commands_audit import kafka_progress
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import LogError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import REPLY_TOPIC, STATUS, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.audit import Auditor, AuditSettings
from headrace.streams.audit_range import EVERYTHING, AuditRange
from headrace.streams.audit_report import Kind, Verdict
from headrace.streams.deduplicate import Deduplicator
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import translate
from headrace.streams.log import EARLIEST, LATEST, Mode, Position, Span, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from log_kit import PATIENCE_S, join
from service_kit import Producer, Tap, loaded, working, write_models
from service_parts import ECHO

ALO, EOS = Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE
ROUNDS = 12


def request(topic: str, partition: int, number: float, *, reply: str = "", broken: bool = False):
    tensor = Tensor.from_numpy("INPUT0", np.full((1, 2), number, np.float32))
    value, headers = encode_request(InferRequest((tensor,), id=f"n{number}"))
    if reply:
        headers = [*headers, (REPLY_TOPIC, reply.encode())]
    return Out(topic, partition, None, b"\xff" if broken else value, headers)


class Scene:
    """A model that has served a few requests, and the look at what it left.

    Attributes:
        topology: Names of topics.
        sources: Of the requests.
    """

    def __init__(self, logs, log, topology):
        self.log = log
        self.topology = topology
        self.requests = topology.requests("echo")
        self.results = topology.results("echo")
        self.sources: list[str] = []
        self._logs = logs

    async def serve(self, root):
        """Let a worker answer requests of every kind, and leave."""
        mine = f"{self.topology.prefix}.mine"
        await self.log.ensure([TopicSpec(mine, 1)])
        async with loaded(root) as repository, working(self.log, repository, self.topology):
            outs = []
            for number in range(ROUNDS):
                outs += [
                    request(self.requests, 0, number),
                    request(self.requests, 1, number, reply=self.topology.replies),
                    request(self.requests, 1, number, reply=mine),
                    request(self.requests, 0, number, reply="nobody.reads.this"),
                ]
            outs.append(request(self.requests, 0, 0.5, broken=True))
            topics = (self.results, self.topology.replies, mine)
            async with Tap(self.log, *topics) as tap:
                self.sources = await self.send(*outs)
                await tap.answered(self.sources)

    async def send(self, *outs):
        """Produce by hand; returns where each lies."""
        return await Producer(self.log, self._logs.properties).send(outs)

    async def audit(self, *, span=EVERYTHING, **bounds):
        """Audit the model."""
        settings = AuditSettings(**{"stall_s": 10.0} | bounds)
        auditor = Auditor(self.log, self.topology, settings, progress=self.progress())
        return await auditor.audit(["echo"], span)

    def progress(self):
        """Return what asks for what the group has committed."""
        if isinstance(self.log, MemoryLog):
            return memory_progress(self.log)
        return kafka_progress(translate(self._logs.properties))

    async def commit(self, partition: int, offset: int, lengths=()):
        """Commit by hand, as a worker would that finishes without an answer."""
        tp = TP(self.requests, partition)
        member, source = join(self.log, self.topology.group("echo"), self.requests)
        async with source, asyncio.timeout(PATIENCE_S):
            while tp not in member.epochs:
                await source.poll(1, 0.1)
            delivery = self.log.delivery(source, ALO)
            metadata = encode_metadata(lengths, max_bits=100)
            await delivery.settle({tp: Position(offset, metadata, member.epochs[tp])})

    async def end(self, partition: int) -> int:
        """Return the end of a requests partition."""
        tp = TP(self.requests, partition)
        async with self.log.reader({tp: Span(LATEST)}) as reader:
            return reader.positions()[tp]


def counts(report):
    """Return what was found besides answers, dead letters and waiting."""
    total = report.to_json()["total"]
    plain = ("requests", "answered", "dead_letters", "pending")
    return {name: count for name, count in total.items() if count and name not in plain}


@pytest.fixture
async def scene(logs, unique, tmp_path) -> AsyncIterator[Scene]:
    """A scene that was served on each kind of log."""
    root = write_models(tmp_path, {"echo": ECHO})
    topology = Topology(prefix=unique("audit"), partitions=2, reply_partitions=2)
    async with logs.open(commit_interval_ms=0) as log:
        scene = Scene(logs, log, topology)
        await scene.serve(root)
        yield scene


async def test_what_a_worker_leaves_is_clean(scene):
    """Results, replies, a topic of the client's own, a refused one, and an undecodable request with its dead letter."""
    report = await scene.audit()
    assert counts(report) == {}
    total = report.total
    assert total.requests == total.answered == len(scene.sources) == 4 * ROUNDS + 1
    assert (total.dead_letters, report.foreign, report.notes) == (1, 0, ())
    assert report.verdict(ALO) is report.verdict(EOS) is Verdict.CLEAN


async def test_B13_a_planted_loss_is_found_and_waiting_is_not_one(scene):
    """The last of three new requests is still to come; the group says that it has finished the other two."""
    first = await scene.end(0)
    lost, gone, waiting = await scene.send(*[request(scene.requests, 0, 99)] * 3)
    assert (await scene.audit()).total.pending == 3
    await scene.commit(0, first + 2)
    report = await scene.audit()
    assert counts(report) == {"missing": 2}
    assert report.total.pending == 1
    assert [example.source for example in report.models[0].examples] == [lost, gone]
    assert report.models[0].partitions[0].counts.missing == 2
    assert report.verdict(ALO) is report.verdict(EOS) is Verdict.FINDINGS
    await scene.send(answer(waiting, to=(scene.results, 0)))
    assert (await scene.audit()).total.pending == 0


async def test_a_planted_duplicate_is_found_equal_or_different(scene):
    """The same bytes again, and another value; a reader that drops repeats keeps one of each request."""
    records = []
    spans = {TP(scene.results, number): Span(EARLIEST, LATEST) for number in (0, 1)}
    async with scene.log.reader(spans) as reader:
        while not reader.done():
            records += [r for block in await reader.poll(1000, 1.0) for r in block.records]
    assert Deduplicator().fresh(records * 2) == records
    good = sorted((r for r in records if (STATUS, b"OK") in r.headers), key=lambda r: r.value)
    one, other = good[0], good[-1]
    again = Out(one.topic, one.partition, one.key, one.value, one.headers)
    altered = Out(other.topic, other.partition, None, one.value, other.headers)
    await scene.send(again, altered)
    report = await scene.audit()
    assert counts(report) == {"duplicated_equal": 1, "duplicated_different": 1}
    kinds = [example.kind for example in report.models[0].examples]
    assert kinds == [Kind.DUPLICATED, Kind.REPEATED]
    assert all(len(example.answers) == 2 for example in report.models[0].examples)
    assert report.verdict(ALO) is Verdict.FINDINGS


async def test_a_planted_orphan_is_found(scene):
    end = await scene.end(1)
    await scene.send(answer(f"{scene.requests}/1/{end + 5}", to=(scene.results, 1)))
    report = await scene.audit()
    assert counts(report) == {"orphaned": 1}
    assert report.models[0].partitions[1].counts.orphaned == 1
    assert report.models[0].examples[0].kind is Kind.ORPHANED


async def test_a_range_of_offsets_or_of_time_is_audited_alone(scene):
    """Of the first half of partition 0; and of nothing, where everything is older."""
    tp = TP(scene.requests, 0)
    half = await scene.audit(span=AuditRange(offsets={tp: (0, ROUNDS)}))
    assert (half.total.requests, counts(half)) == (ROUNDS, {})
    later = await scene.audit(span=AuditRange(since_ms=2**42))
    assert (later.total.requests, counts(later)) == (0, {})
    earlier = await scene.audit(span=AuditRange(since_ms=0, until_ms=2**42))
    assert (earlier.total.requests, counts(earlier)) == (len(scene.sources), {})


# What only Apache Kafka has.


@pytest.fixture
async def kafka_scene(kafka_properties, unique, tmp_path) -> AsyncIterator[Scene]:
    """The same on Apache Kafka alone."""

    class Logs:
        properties = kafka_properties

    topology = Topology(prefix=unique("audit"), partitions=2, reply_partitions=2)
    async with KafkaLog(kafka_properties, commit_interval_ms=0) as log:
        scene = Scene(Logs, log, topology)
        await scene.serve(write_models(tmp_path, {"echo": ECHO}))
        yield scene


@asynccontextmanager
async def transactional(kafka_properties, unique):
    """Run a transactional producer of the test's own."""
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_properties["bootstrap.servers"], transactional_id=unique("tx")
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@pytest.mark.kafka
async def test_P1_a_loss_above_the_committed_offset_is_found_by_the_commit_s_metadata(kafka_scene):
    """Committed is the first of three, and F holds the third."""
    first = await kafka_scene.end(0)
    sources = await kafka_scene.send(*[request(kafka_scene.requests, 0, 99)] * 3)
    await kafka_scene.commit(0, first, (2, 1))
    report = await kafka_scene.audit()
    assert counts(report) == {"missing": 1}
    assert report.total.pending == 2
    assert report.models[0].examples[0].source == sources[2]


@pytest.mark.kafka
async def test_P8_an_audit_joins_no_group(kafka_scene, kafka_properties, tmp_path_factory):
    """A worker that serves meanwhile is not rebalanced, and the audit of it is clean."""
    root = write_models(tmp_path_factory.mktemp("again"), {"echo": ECHO})
    bootstrap = kafka_properties["bootstrap.servers"]
    async with (
        loaded(root) as repository,
        working(kafka_scene.log, repository, kafka_scene.topology) as service,
    ):
        before = service.worker.models["echo"].assignment.rebalances
        sending = asyncio.create_task(
            kafka_scene.send(*[request(kafka_scene.requests, n % 2, n) for n in range(300)])
        )
        reports = [await kafka_scene.audit()]
        while not sending.done():
            reports.append(await kafka_scene.audit())
        await sending
        assert service.worker.models["echo"].assignment.rebalances == before
        assert await group_of(bootstrap, kafka_scene.topology.group("echo")) == ("Stable", 1)
        assert [counts(report) for report in reports] == [{}] * len(reports)
    final = await kafka_scene.audit()
    assert counts(final) == {}
    assert final.total.answered == final.total.requests == len(kafka_scene.sources) + 300


@pytest.mark.kafka
async def test_P10_an_aborted_answer_counts_in_the_uncommitted_view_only(
    kafka_scene, kafka_properties, unique
):
    """Answered in a transaction that was aborted and then in one that was committed: once, or twice."""
    end = await kafka_scene.end(0)
    (source,) = await kafka_scene.send(request(kafka_scene.requests, 0, 99))
    await kafka_scene.commit(0, end + 1)
    out = answer(source, to=(kafka_scene.results, 0))
    async with transactional(kafka_properties, unique) as producer:
        for end_it in (producer.abort_transaction, producer.commit_transaction):
            await producer.begin_transaction()
            await producer.send_and_wait(
                out.topic, out.value, partition=0, headers=list(out.headers)
            )
            await end_it()
            report = await kafka_scene.audit()
            committed = end_it == producer.commit_transaction
            assert counts(report) == ({} if committed else {"missing": 1})
    whole = await kafka_scene.audit(committed=False)
    assert counts(whole) == {"duplicated_equal": 1}


@pytest.mark.kafka
async def test_P12_an_open_transaction_is_waited_for_and_then_said(
    kafka_scene, kafka_properties, unique
):
    """What it hides may be the answer that is looked for, so nothing is missing before it ends."""
    async with transactional(kafka_properties, unique) as producer:
        await producer.begin_transaction()
        out = answer(kafka_scene.sources[0], to=(kafka_scene.results, 0))
        await producer.send_and_wait(out.topic, out.value, partition=0, headers=list(out.headers))
        with pytest.raises(LogError, match=r"stands still at .*: a transaction is open"):
            await kafka_scene.audit(stall_s=1.0)
        auditing = asyncio.create_task(kafka_scene.audit(stall_s=30.0))
        done, _ = await asyncio.wait([auditing], timeout=1.0)
        assert not done
        await producer.abort_transaction()
        assert counts(await auditing) == {}
