"""Bad input over the whole service, on each log: one typed error each, at its place, and nothing else happens.

All records of a log go in before its one worker starts, good ones between the bad, so that they are read, decoded and
batched together; what became of them is then looked at case by case (FAULTS B32, B33, B38, B53, B55, B101's kind).
"""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c
from bad_cases import (
    MAX_BATCH,
    MAX_INPUT_BYTES,
    MAX_RECORD_BYTES,
    PAIR,
    WORDS,
    Call,
    Case,
    a,
    b,
    bad_calls,
    bad_cases,
    call,
    good,
)
from headrace.consumers.dead_letters import record_bytes
from headrace.schemas import avro, errors
from headrace.schemas.codec import decode_response
from headrace.schemas.dead_letter import read_dead_letter
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import Out, Record
from headrace.streams.gateway import GatewaySettings
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Block, Log, Rebalance
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_source import MemorySource
from headrace.streams.topology import Topology
from service_kit import (
    WAIT_S,
    Producer,
    Service,
    Tap,
    committed,
    loaded,
    serving,
    until,
    working,
    write_models,
)

KINDS = [
    pytest.param("memory", id="memory"),
    pytest.param("embedded", id="embedded", marks=pytest.mark.embedded),
    pytest.param("kafka", id="kafka", marks=pytest.mark.kafka),
]
CASES = bad_cases("PREFIX")
MODELS = {"pair": PAIR, "words": WORDS}


@dataclass
class Sent:
    """A record as it went in: what it was, and how it asked for its answer."""

    out: Out
    case: Case | None
    expected: Mapping[str, list[object]] = field(default_factory=dict)
    reply_to: str = ""


@dataclass
class Outcome:
    """What a whole run left behind."""

    prefix: str
    sent: dict[str, Sent] = field(default_factory=dict)
    answers: dict[str, list[Record]] = field(default_factory=dict)
    dead_letters: list[Record] = field(default_factory=list)
    committed: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    executions: dict[str, list[int]] = field(default_factory=dict)
    never_unready: bool = False
    topics: Mapping[str, int] = field(default_factory=dict)

    def of(self, name: str) -> list[tuple[str, Sent]]:
        """Return the records of a case."""
        return [
            (source, sent)
            for source, sent in self.sent.items()
            if sent.case is not None and sent.case.name == name
        ]


@asynccontextmanager
async def open_log(kind: str, properties: Mapping[str, str]) -> AsyncIterator[Log]:
    """Open a log of a kind."""
    made = MemoryLog() if kind == "memory" else KafkaLog(properties)
    async with made as log:
        yield log


async def run(
    log: Log,
    properties: Mapping[str, str],
    root: Path,
    cases: Sequence[Case],
    wait_s: float = WAIT_S,
) -> Outcome:
    """Put everything in, let one worker answer it, and gather what came out."""
    prefix = f"bad-{uuid.uuid4().hex[:8]}"
    topology = Topology(prefix=prefix, partitions=1, reply_partitions=1)
    await log.ensure(topology.shared_specs())
    for model in MODELS:
        await log.ensure(topology.model_specs(model))
    outcome = Outcome(prefix)
    by_name = {case.name: case for case in bad_cases(prefix)}
    sent = list(records(topology, [by_name[case.name] for case in cases]))
    sources = await Producer(log, properties).send([one.out for one in sent])
    outcome.sent = dict(zip(sources, sent, strict=True))
    topics = [topology.replies, *map(topology.results, MODELS)]
    async with (
        loaded(root) as repository,
        working(log, repository, topology, max_record_bytes=MAX_RECORD_BYTES) as service,
        Tap(log, *topics) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        await tap.answered(sources, wait_s)
        await until(lambda: all(map(service.settled, MODELS)), "everything is settled")
        dead = sum(one.case is not None and one.case.dead_letter for one in sent)
        await until(lambda: len(letters.records) >= dead, f"{dead} dead letters", wait_s)
        late = await Producer(log, properties).send([lively(topology, m).out for m in MODELS])
        await tap.answered(late)  # it lives, and whatever came twice has come by now
        outcome.never_unready = service.never_unready and service.worker.ready()
        outcome.executions = {m: list(service.model(m).executions) for m in MODELS}
        await service.stop_worker()
        outcome.answers = tap.by_source()
        outcome.dead_letters = list(letters.records)
    for model in MODELS:
        outcome.committed[model] = await committed(log, topology, model)
    outcome.topics = await log.topics()
    return outcome


def records(topology: Topology, cases: Sequence[Case]) -> list[Sent]:
    """Return the records: each case twice, once for a result and once for a reply, a good one after each."""
    sent: list[Sent] = []
    numbers = iter(range(1, 1_000_000))
    for case in cases:
        for replying in (False, True):
            number = next(numbers)
            headers = [*case.headers, ("x-case", str(number).encode())]
            reply_to = ""
            if case.reply:
                headers += [*case.reply, ("correlation-id", b"c%d" % number)]
            elif replying:
                reply_to = topology.replies
                headers += [
                    ("reply-topic", reply_to.encode()),
                    ("correlation-id", b"c%d" % number),
                ]
            topic = topology.requests(case.model)
            sent.append(Sent(Out(topic, 0, case.key, case.value, headers), case, {}, reply_to))
            value, good_headers, expected = good(case.model, number)
            sent.append(Sent(Out(topic, 0, b"g", value, good_headers), None, expected))
    return sent


def lively(topology: Topology, model: str) -> Sent:
    """Return one more good record."""
    value, headers, expected = good(model, 7_000_000)
    return Sent(Out(topology.requests(model), 0, b"late", value, headers), None, expected)


def check_bad(outcome: Outcome, name: str) -> None:
    """Check the one answer of each record of a case: place, status, reason, sentence, headers; and the dead letter."""
    letters = [
        dict(record.headers)["dead-letter-source"].decode() for record in outcome.dead_letters
    ]
    found = outcome.of(name)
    assert len(found) == 2
    for source, sent in found:
        case = sent.case
        assert case is not None
        answers = outcome.answers.get(source, [])
        assert len(answers) == 1, f"{source} has {len(answers)} answers"
        answer = answers[0]
        expected_topic = sent.reply_to or f"{outcome.prefix}.{case.model}.results"
        assert (answer.topic, answer.partition, answer.key) == (expected_topic, 0, case.key)
        named = dict(answer.headers)
        assert named["status"].decode() == case.status, named
        assert named["reason"].decode() == case.reason, named
        assert named["content-type"].decode() == case.answer_type, named
        asked = dict(sent.out.headers)
        for echoed in ("x-case", "correlation-id"):
            assert named.get(echoed) == asked.get(echoed)
        with pytest.raises(InferError) as caught:
            decode_response(answer.value, answer.headers)
        assert (caught.value.code, caught.value.reason) == (case.status, case.reason)
        for text in case.texts:
            assert text in caught.value.detail, caught.value.detail
        assert " at 0x" not in caught.value.detail
        assert letters.count(source) == case.dead_letter


def check_letter(outcome: Outcome, source: str, sent: Sent) -> None:
    """Check that a dead letter is its record, untouched, with what an operator needs beside it (FAULTS B31)."""
    (record,) = [
        record
        for record in outcome.dead_letters
        if dict(record.headers)["dead-letter-source"].decode() == source
    ]
    letter = read_dead_letter(record)
    assert f"{letter.source.topic}/{letter.source.partition}/{letter.offset}" == source
    assert (letter.key, letter.value) == (sent.out.key, sent.out.value)
    assert list(letter.headers) == list(sent.out.headers)
    assert letter.is_whole
    assert sent.case is not None
    assert letter.model == sent.case.model
    assert (letter.status, letter.reason) == (sent.case.status, sent.case.reason)
    assert issubclass(getattr(errors, letter.error_class), InferError)
    for text in sent.case.texts:
        assert text in letter.detail, letter.detail
    assert letter.attempts == 1
    assert letter.timestamp_ms > 0


def check_neighbours(outcome: Outcome) -> None:
    """Check that every good record has its own values, and that they shared batches."""
    for source, sent in outcome.sent.items():
        if sent.case is not None:
            continue
        answers = outcome.answers.get(source, [])
        assert len(answers) == 1, f"{source} has {len(answers)} answers"
        response = decode_response(answers[0].value, answers[0].headers)
        found = {tensor.name: tensor.numpy().tolist() for tensor in response.outputs}
        assert found == sent.expected
    for model, rows in outcome.executions.items():
        if sum(rows) > 2 * MAX_BATCH:
            assert max(rows) == MAX_BATCH
            assert np.mean(rows) > 2, f"{model}: the good records were not batched"


def check_progress(outcome: Outcome) -> None:
    """Check that everything is committed and that readiness never fell (FAULTS B33)."""
    for model, partitions in outcome.committed.items():
        for offset, end in partitions.values():
            assert offset == end, f"{model}: {offset} of {end} are committed"
    assert outcome.never_unready


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of both models."""
    return write_models(tmp_path_factory.mktemp("repository"), MODELS)


@pytest.fixture(scope="module", params=KINDS)
def outcome(request: pytest.FixtureRequest, root: Path) -> Outcome:
    """What all cases together left behind on one kind of log; run once per kind."""
    kind = request.param
    properties = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")

    async def whole() -> Outcome:
        async with open_log(kind, properties) as log:
            return await run(log, properties, root, CASES)

    return asyncio.run(whole())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_B32_B38_B55_a_bad_record_gets_its_one_typed_error(outcome: Outcome, case: Case) -> None:
    """Status, reason word and a sentence that names what is wrong, on the reply topic or else as a result."""
    check_bad(outcome, case.name)


def test_neighbours_in_the_same_batch_get_their_own_values(outcome: Outcome) -> None:
    """Whatever stands between them."""
    check_neighbours(outcome)


def test_B33_the_position_reaches_the_end_and_the_worker_stays_ready(outcome: Outcome) -> None:
    """Corrupt data must not leave it healthy and reading nothing."""
    check_progress(outcome)


def test_B32_dead_letters_hold_the_original_bytes_key_and_headers(outcome: Outcome) -> None:
    """With where they came from and why beside them, and nothing else is on the topic."""
    expected = {
        source: sent
        for source, sent in outcome.sent.items()
        if sent.case is not None and sent.case.dead_letter
    }
    assert len(outcome.dead_letters) == len(expected)
    for source, sent in expected.items():
        check_letter(outcome, source, sent)


def test_no_topic_came_into_being_because_a_client_named_it(outcome: Outcome) -> None:
    """A reply address is looked up, never created."""
    assert not {"elsewhere", f"{outcome.prefix}.nobody"} & set(outcome.topics)


CALLS = bad_calls()


@dataclass
class Asked:
    """What came of a bad call, and of a good one beside it."""

    status: int
    content_type: str
    error: str
    is_lively: bool
    entered: int


async def ask_all(log: Log, root: Path) -> dict[str, Asked]:
    """Make every bad call, each together with a good one, against the whole service."""
    topology = Topology(prefix=f"calls-{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    gateway = GatewaySettings(interval_ms=500, max_record_bytes=MAX_RECORD_BYTES)
    found: dict[str, Asked] = {}
    async with (
        serving(
            log, root, topology, gateway=gateway, http={"max_input_bytes": MAX_INPUT_BYTES}
        ) as service,
        Tap(log, *map(topology.requests, MODELS)) as requests,
    ):
        for number, bad in enumerate(CALLS, start=1):
            (status, content_type, error), lively = await asyncio.gather(
                post(service, bad), is_lively(service)
            )
            await until(lambda n=number: len(requests.records) >= n, "the good request's record")
            entered = len(requests.records) - number
            found[bad.name] = Asked(status, content_type, error, lively, entered)
        assert service.never_unready
        assert service.gateway.is_ready()
        assert service.gateway.open_calls == 0
    return found


async def post(service: Service, bad: Call) -> tuple[int, str, str]:
    """Make one call; return status, content type and error."""
    path = f"/v2/models/{bad.path}"
    async with service.session.post(path, data=bad.body, headers=dict(bad.headers)) as response:
        body = await response.read()
        return response.status, response.headers["Content-Type"], json.loads(body)["error"]


async def is_lively(service: Service) -> bool:
    """Whether a good call gets its own values."""
    body, headers = call(InferRequest((a(), b())))
    async with service.session.post(
        "/v2/models/pair/infer", data=body, headers=dict(headers)
    ) as response:
        answer = await response.json()
        return response.status == 200 and [
            (output["name"], output["data"]) for output in answer["outputs"]
        ] == [("OUT_A", [1.0, 2.0]), ("OUT_B", [3, 4])]


@pytest.fixture(scope="module", params=KINDS)
def asked(request: pytest.FixtureRequest, root: Path) -> dict[str, Asked]:
    """What came of all bad calls on one kind of log; made once per kind."""
    kind = request.param
    properties = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")

    async def whole() -> dict[str, Asked]:
        async with open_log(kind, properties) as log:
            return await ask_all(log, root)

    return asyncio.run(whole())


@pytest.mark.parametrize("bad", CALLS, ids=str)
def test_B53_a_bad_call_gets_its_error_and_enters_no_topic(
    asked: dict[str, Asked], bad: Call
) -> None:
    """The code and a sentence with what was expected; the topic's end stays where it was (SEMANTICS §2.2)."""
    found = asked[bad.name]
    assert (found.status, found.content_type) == (bad.status, "application/json"), found.error
    for text in bad.texts:
        assert text in found.error, found.error
    assert found.is_lively
    assert found.entered == 0


# Planted bugs: each of these parts is wrong in the way that a report describes, and the checks above must say so.


class Bypassing(MemorySource):
    """B32's planted bug: what cannot be decoded never reaches the guarded path."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Drop tombstones, as a deserialiser inside the client does."""
        blocks = await super().poll(max_records, timeout_s)
        kept = [(b, [r for r in b.records if r.value is not None]) for b in blocks]
        return [Block(b.tp, b.epoch, records) for b, records in kept if records]


class Stuck(MemorySource):
    """B33's planted bug: after corrupt data it polls on, is healthy, and reads nothing."""

    stuck = False

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out nothing more once a value is not what it should be."""
        blocks = await super().poll(max_records, timeout_s)
        self.stuck = self.stuck or any(r.value == b"" for b in blocks for r in b.records)
        return [] if self.stuck else blocks


class SourceLog(MemoryLog):
    """A memory log with such a source."""

    def __init__(self, kind: type[MemorySource]) -> None:
        super().__init__()
        self.kind = kind

    def source(self, group: str, topics: Set[str], on: Rebalance) -> MemorySource:
        """Make the planted one."""
        return self.kind(self, self._group(group), topics, on)


class Altering(MemoryLog):
    """A memory log on which answers change, vanish or come twice."""

    def __init__(self, change: Callable[[Out], list[Out]]) -> None:
        super().__init__()
        self.change = change

    def append(self, outs: Sequence[Out]) -> None:
        """Write what the planted bug makes of the records."""
        super().append([written for out in outs for written in self.change(out)])


def without_dead_letters(out: Out) -> list[Out]:
    """Forget the copies."""
    return [] if out.topic.endswith(".dead-letters") else [out]


def errors_twice(out: Out) -> list[Out]:
    """Answer an error twice."""
    return [out, out] if "reason" in dict(out.headers) and "source" in dict(out.headers) else [out]


def errors_as_results(out: Out) -> list[Out]:
    """Say OK whatever happened."""
    headers = [(name, b"OK" if name == "status" else value) for name, value in out.headers]
    return [Out(out.topic, out.partition, out.key, out.value, headers)]


def decoded_letters(out: Out) -> list[Out]:
    """Keep in a dead letter what can be read of it only."""
    if not out.topic.endswith(".dead-letters") or not out.value:
        return [out]
    text = out.value.decode(errors="replace").encode()
    return [Out(out.topic, out.partition, out.key, text, out.headers)]


def neighbours_values(out: Out) -> list[Out]:
    """Give every result the first one's values."""
    if "source" in dict(out.headers) and "reason" not in dict(out.headers):
        first = vars(neighbours_values).setdefault(out.topic, out.value)
        return [Out(out.topic, out.partition, out.key, first, out.headers)]
    return [out]


def check_all(outcome: Outcome, cases: Sequence[Case]) -> None:
    """Check everything that the tests above check."""
    for case in cases:
        check_bad(outcome, case.name)
    check_neighbours(outcome)
    check_progress(outcome)
    for source, sent in outcome.sent.items():
        if sent.case is not None and sent.case.dead_letter:
            check_letter(outcome, source, sent)


FEW = [
    case
    for case in CASES
    if case.name in ("avro: null value", "avro: empty value", "avro: ten bytes of 0xff")
    or case.name.startswith(("avro: wrong", "header: "))
]


async def test_without_a_planted_bug_the_same_checks_pass(root: Path) -> None:
    async with MemoryLog() as log:
        check_all(await run(log, {}, root, FEW), FEW)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: SourceLog(Bypassing), "unanswered"),
        (lambda: SourceLog(Stuck), "unanswered"),
        (lambda: Altering(without_dead_letters), "dead letters"),
        (lambda: Altering(errors_twice), "has 2 answers"),
        (lambda: Altering(errors_as_results), "OK"),
        (lambda: Altering(decoded_letters), None),
        (lambda: Altering(neighbours_values), None),
    ],
    ids=["bypassed", "stuck", "no dead letters", "twice", "OK", "decoded", "neighbours' values"],
)
async def test_B32_B33_a_planted_bug_is_found(
    root: Path, make: Callable[[], MemoryLog], complaint: str | None
) -> None:
    """Each of them breaks a promise, so the checks must fail."""
    with pytest.raises(AssertionError, match=complaint):
        async with make() as log:
            check_all(await run(log, {}, root, FEW, wait_s=1.0), FEW)


# A header's name is a string by the protocol, and whatever bytes it was given by clients in C.


async def send_foreign(properties: Mapping[str, str], topic: str, *outs: Out) -> list[str]:
    """Write records, each with one more header whose name is no UTF-8; return their sources."""
    sources = []
    async with AIOKafkaProducer(bootstrap_servers=properties["bootstrap.servers"]) as producer:
        for out in outs:
            batch = producer.create_batch()
            headers = [*out.headers, ("zzzzz", b"v")]
            batch.append(timestamp=None, key=out.key, value=out.value, headers=headers)
            built = bytearray(batch._build().replace(b"zzzzz", b"\xff\xfe\x80\xff\xfe"))
            struct.pack_into(">I", built, 17, calc_crc32c(memoryview(built)[21:]))
            batch._buffer = built
            written = await (await producer.send_batch(batch, topic, partition=out.partition))
            sources.append(f"{topic}/{out.partition}/{written.offset}")
    return sources


@pytest.mark.parametrize("kind", KINDS[1:])
async def test_B32_header_names_that_are_no_text_stop_nobody(
    request: pytest.FixtureRequest, root: Path, kind: str
) -> None:
    """Neither the worker's partitions nor what a gateway and a worker read without a group."""
    properties = request.getfixturevalue(f"{kind}_properties")
    topology = Topology(prefix=f"names-{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    value, headers, expected = good("pair", 1)
    record = Out("", 0, b"k", value, headers)
    broken = Out("", 0, b"k", b"\xff", [("x-mine", b"1")])
    stray = Out("", 0, b"k", b"{}")
    async with (
        KafkaLog(properties) as log,
        serving(log, root, topology) as service,
        Tap(log, topology.results("pair")) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        for topic in (topology.cancels, topology.status, topology.replies):
            await send_foreign(properties, topic, stray)
        sources = await send_foreign(properties, topology.requests("pair"), record, broken, record)
        sources += await Producer(log, properties).send(
            [Out(topology.requests("pair"), 0, b"k", value, headers)]
        )
        await tap.answered(sources)
        await until(lambda: letters.records)
        assert await is_lively(service)
        assert service.never_unready
        answers = tap.by_source()
        await service.stop_worker()
    for number, source in enumerate(sources):
        (answer,) = answers[source]
        if number == 1:
            assert dict(answer.headers)["reason"] == b"undecodable"
            assert dict(answer.headers)["x-mine"] == b"1"
            continue
        found = decode_response(answer.value, answer.headers)
        assert {t.name: t.numpy().tolist() for t in found.outputs} == expected
    (letter,) = letters.records
    assert dict(letter.headers)["\\xff\\xfe\\x80\\xff\\xfe"] == b"v"


# What should come back untouched and is too much for a record of ours.

LIMIT = 200_000
BULKY = {
    "x- headers": ({"headers": [("x-big", bytes(150_000))]}, "invalid_header", False),
    "many correlation headers": (
        {"headers": [("correlation-id", bytes(100))] * 1_500},
        "invalid_header",
        False,
    ),
    "an id in a header": ({"headers": [("id", b"i" * 150_000)]}, "invalid_header", False),
    "an id in the value": ({"id": "i" * 150_000}, "invalid_header", False),
    "a key": ({"key": bytes(LIMIT + 1)}, "answer_too_large", True),
    "a version": ({"headers": [("model-version", b"1" * 150_000)]}, "unknown_version", False),
    "a reply topic": (
        {"headers": [("reply-topic", b"t" * 150_000)]},
        "reply_topic_refused",
        False,
    ),
    "undecodable with headers": (
        {"value": b"\xff", "headers": [("x-big", bytes(LIMIT + 1))]},
        "invalid_header",
        False,
    ),
    "undecodable with a key": (
        {"value": b"\xff", "key": bytes(LIMIT + 1)},
        "answer_too_large",
        True,
    ),
    "undecodable, just below the limit": (
        {"value": b"\xff" * (LIMIT - 200)},
        "undecodable",
        False,
    ),
}


def bulky(topic: str, change: Mapping[str, object]) -> Out:
    """Return a request record that is right but for one thing."""
    request = InferRequest((a(), b()))
    value = avro.write_request(request._replace(id=str(change.get("id", ""))))
    return Out(
        topic, 0, change.get("key", b"k"), change.get("value", value), change.get("headers", [])
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_come_back_untouched_is_an_error_without_it(
    request: pytest.FixtureRequest, root: Path, kind: str
) -> None:
    """A stranger's limit is above ours: each gets one error that fits, and none stops the partition (FAULTS B57)."""
    properties = {} if kind == "memory" else dict(request.getfixturevalue(f"{kind}_properties"))
    made = (
        MemoryLog(max_record_bytes=LIMIT)
        if kind == "memory"
        else KafkaLog({**properties, "max.request.size": str(LIMIT)})
    )
    topology = Topology(prefix=f"bulk-{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    topic = topology.requests("pair")
    value, headers, expected = good("pair", 1)
    async with made as log, loaded(root) as repository:
        async with (
            working(log, repository, topology) as service,
            Tap(log, topology.results("pair")) as tap,
            Tap(log, topology.dead_letters) as letters,
        ):
            outs = [bulky(topic, change) for change, _, _ in BULKY.values()]
            if isinstance(log, MemoryLog):
                log.max_record_bytes = 10 * LIMIT  # strangers may
            sources = await Producer(log, properties).send(outs)
            if isinstance(log, MemoryLog):
                log.max_record_bytes = LIMIT
            sources += await Producer(log, properties).send([Out(topic, 0, b"g", value, headers)])
            await tap.answered(sources)
            await until(lambda: len(letters.records) == 7)
            assert service.never_unready
            answers = tap.by_source()
        assert await committed(log, topology, "pair") == {0: (len(sources), len(sources))}
    for (name, (_, reason, keyless)), source, out in zip(
        BULKY.items(), sources, outs, strict=False
    ):
        (answer,) = answers[source]
        assert dict(answer.headers)["reason"].decode() == reason, name
        assert answer.key == (None if keyless else out.key)
        assert record_bytes(answer.key, answer.value, answer.headers) <= LIMIT
    (answer,) = answers[sources[-1]]
    found = decode_response(answer.value, answer.headers)
    assert {t.name: t.numpy().tolist() for t in found.outputs} == expected
    for letter in letters.records:
        assert record_bytes(letter.key, letter.value, letter.headers) <= LIMIT
    omitted = [dict(letter.headers).get("dead-letter-omitted-bytes") for letter in letters.records]
    assert omitted[-1] == str(LIMIT - 200).encode()
