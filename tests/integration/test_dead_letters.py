"""Dead letters of the real worker on each log, and what becomes of them when the cause is mended (FAULTS B30-B33)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.dead_letter import DeadLetter, read_dead_letter
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import Header, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.dead_letter_redrive import Options, plan, redrive
from headrace.streams.dead_letter_topic import Selection, find_letters
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Log, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms
from service_kit import Producer, Service, Tap, committed, loaded, until, working, write_models

KINDS = [
    pytest.param("memory", id="memory"),
    pytest.param("embedded", id="embedded", marks=pytest.mark.embedded),
    pytest.param("kafka", id="kafka", marks=pytest.mark.kafka),
]
ROWS = 16
PARTITIONS = 3
MODEL = f"""
backend: "identity"
max_batch_size: {ROWS}
input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }}]
dynamic_batching {{ preferred_batch_size: {ROWS} max_queue_delay_microseconds: 200000 }}
"""
FAILING = MODEL + 'parameters { key: "fail_if" value { string_value: "7" } }\n'
MINE: tuple[Header, ...] = (
    ("x-mine", b"\xff"),
    ("x-mine", b"twice"),
    ("dead-letter-reason", b"a client's own"),
    ("nobody-knows", None),  # type: ignore[arg-type]  # as it may be on the wire
)


@dataclass
class Stage:
    """The topics of one model on a log."""

    log: Log
    properties: Mapping[str, str]
    topology: Topology

    @property
    def requests(self) -> str:
        return self.topology.requests("m")

    async def send(self, outs: Sequence[Out]) -> list[str]:
        return await Producer(self.log, self.properties).send(outs)

    @asynccontextmanager
    async def working(self, root: Path) -> AsyncIterator[tuple[Service, Tap, Tap]]:
        """Run a worker; yields it, its results and all dead letters."""
        async with (
            loaded(root) as repository,
            working(self.log, repository, self.topology) as service,
            Tap(self.log, self.topology.results("m")) as results,
            Tap(self.log, self.topology.dead_letters) as letters,
        ):
            yield service, results, letters

    async def redrive(self) -> list[str]:
        """Send all letters again, as the command does; returns why those are refused that are."""
        topic = self.topology.dead_letters
        options = Options(
            again=False,
            without_deadline=False,
            now_ms=wall_ms(),
            max_record_bytes=self.log.max_record_bytes,
        )
        found = await find_letters(self.log, topic, Selection())
        planned = plan(found.oldest(100), await self.log.topics(), options)
        sent: list[object] = []
        await redrive(self.log, topic, planned, options, sent.extend)
        assert len(sent) == sum(not one.refusal for one in planned)
        return [one.refusal for one in planned if one.refusal]


@pytest.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """A model of three partitions whose answers and dead letters have one topic partition each."""
    kind = request.param
    properties = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")
    topology = Topology(
        prefix=f"dead-{uuid.uuid4().hex[:8]}", partitions=PARTITIONS, reply_partitions=1
    )
    async with MemoryLog() if kind == "memory" else KafkaLog(properties) as log:
        narrow = (topology.dead_letters, topology.results("m"))
        await log.ensure([TopicSpec(topic, 1) for topic in narrow])
        await log.ensure([*topology.shared_specs(), *topology.model_specs("m")])
        yield Stage(log, properties, topology)


everywhere = pytest.mark.parametrize("stage", KINDS, indirect=True)


def request_of(topic: str, value: float, partition: int, *extra: Header) -> Out:
    """Return a good request."""
    tensor = Tensor.from_numpy("INPUT0", np.array([[value]], np.float32))
    raw, headers = encode_request(InferRequest((tensor,), id=f"r{value:g}"))
    return Out(topic, partition, b"key %g" % value, raw, [*headers, *extra])


def value_of(answer: Record) -> float:
    (tensor,) = decode_response(answer.value, answer.headers).outputs
    return float(tensor.numpy().ravel()[0])


def check_letter(letter: DeadLetter, out: Out, source: str, *, attempts: int = 1) -> None:
    """Check that a letter is exactly this record, from exactly there."""
    at = f"{letter.source.topic}/{letter.source.partition}/{letter.offset}"
    assert (at, letter.model, letter.attempts) == (source, "m", attempts)
    assert (letter.key, letter.value) == (out.key, out.value)
    assert list(letter.headers) == list(out.headers)
    assert letter.is_whole


@everywhere
async def test_B30_B31_one_row_that_the_model_fails_on_is_one_dead_letter_and_then_is_redriven(
    stage: Stage, tmp_path: Path
) -> None:
    """A batch of 16 with row 7 bad: that record alone, with all that an operator needs; mended, it is answered."""
    failing = write_models(tmp_path / "failing", {"m": FAILING}, versions=(2,))
    mended = write_models(tmp_path / "mended", {"m": MODEL}, versions=(3,))
    outs = [request_of(stage.requests, float(n), 2, *MINE) for n in range(ROWS)]
    sources = await stage.send(outs)
    async with stage.working(failing) as (service, results, letters):
        await results.answered(sources)
        await until(lambda: letters.records, "the dead letter")
        await until(lambda: service.settled("m"), "everything is settled")
        assert max(service.model("m", 2).executions) == ROWS
        assert service.never_unready
    answers = results.by_source()
    for number, source in enumerate(sources):
        (answer,) = answers[source]
        assert dict(answer.headers)["attempt"] == b"1"
        if number == 7:
            assert dict(answer.headers)["status"] == b"INTERNAL"
        else:
            assert value_of(answer) == number
    (record,) = letters.records
    assert (record.topic, record.partition) == (stage.topology.dead_letters, 0)  # R8
    letter = read_dead_letter(record)
    check_letter(letter, outs[7], sources[7])
    assert (letter.version, letter.status, letter.reason) == ("2", "INTERNAL", "backend_failed")
    assert letter.error_class == "BackendError"
    assert letter.detail
    assert letter.timestamp_ms > 0

    assert await stage.redrive() == []
    again = f"{stage.requests}/2/{ROWS}"  # the partition that it came from, whatever its key's is
    async with stage.working(mended) as (service, results, letters):
        await results.answered([again])
        await until(lambda: service.settled("m"), "everything is settled")
    (answer,) = results.by_source()[again]
    assert value_of(answer) == 7
    assert answer.key == outs[7].key
    named = dict(answer.headers)
    assert (named["attempt"], named["id"], named["x-mine"]) == (b"2", b"r7", b"twice")
    assert len(results.by_source()[sources[7]]) == 1
    (refusal,) = await stage.redrive()
    assert "it was redriven already" in refusal
    assert (await committed(stage.log, stage.topology, "m"))[2] == (ROWS + 1, ROWS + 1)


@everywhere
async def test_B32_B33_a_letter_that_dies_again_is_another_one_with_one_attempt_more(
    stage: Stage, tmp_path: Path
) -> None:
    """Its headers are those of the request that was sent; the first one stays, and its mark says that it was sent."""
    root = write_models(tmp_path / "models", {"m": MODEL})
    values: list[bytes | None] = [b"\xff" * 10, b"", None, b"\x00\x01"]
    outs = [Out(stage.requests, n % PARTITIONS, b"k", v, MINE) for n, v in enumerate(values)]
    sources = await stage.send(outs)
    async with stage.working(root) as (service, results, letters):
        await results.answered(sources)
        await until(lambda: len(letters.records) == len(outs), "the dead letters")
        assert await stage.redrive() == []
        await until(lambda: len(letters.records) == 4 * len(outs), "marks and letters again")
        lettered = [_headers(record) for record in letters.records if _is_letter(record)]
        await results.answered(named["dead-letter-source"].decode() for named in lettered)
        await until(lambda: service.settled("m"), "everything is settled")
        assert service.never_unready
        answers = results.by_source()
    found = [read_dead_letter(r) for r in letters.records if _is_letter(r)]
    first = {f"{one.source.topic}/{one.source.partition}/{one.offset}": one for one in found}
    for source, out in zip(sources, outs, strict=True):
        check_letter(first.pop(source), out, source)
    assert len(first) == len(outs)
    for source, letter in first.items():
        assert (letter.attempts, letter.reason) == (2, "undecodable")
        assert list(letter.headers) == [*MINE, ("attempt", b"2")]
        (answer,) = answers[source]
        assert dict(answer.headers)["attempt"] == b"2"
    assert sorted(map(str, (one.value for one in first.values()))) == sorted(map(str, values))


def _headers(record: Record) -> dict[str, bytes]:
    return dict(record.headers)


def _is_letter(record: Record) -> bool:
    return "dead-letter-headers" in _headers(record)


@everywhere
async def test_R8_letters_of_a_topic_that_is_made_again_smaller_are_refused_and_not_lost(
    stage: Stage, tmp_path: Path
) -> None:
    """A request has no other partition than its own: the letter stays until there is one."""
    root = write_models(tmp_path / "models", {"m": MODEL})
    sources = await stage.send([Out(stage.requests, 2, b"k", b"\xff", [])])
    async with stage.working(root) as (_, results, letters):
        await results.answered(sources)
        await until(lambda: letters.records, "the dead letter")
    await remove(stage.log, stage.requests)
    assert await stage.redrive() == [
        f"topic {stage.requests} does not exist, expected the topic that it came from"
    ]
    await stage.log.ensure([TopicSpec(stage.requests, 2)])
    assert await stage.redrive() == [
        f"topic {stage.requests} has 2 partitions, expected partition 2 that it came from"
    ]


async def remove(log: Log, topic: str) -> None:
    """Delete a topic, as an operator does."""
    if isinstance(log, MemoryLog):
        log.delete(topic)
    else:
        assert isinstance(log, KafkaLog)
        await log.delete([topic])
