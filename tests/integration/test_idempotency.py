"""Idempotency keys end to end: who repeats a key gets the first answer, and the model does not run again (P-17).

Every test runs on the three logs, and on those that have transactions in exactly_once too.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from headrace.schemas.errors import BackendError, InvalidRequest, Retriable
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, TP
from headrace.streams.gateway import Gateway
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Span
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from keyed_kit import (
    MODEL,
    PLACES,
    Counting,
    Place,
    call,
    gateway,
    header,
    in_flight,
    metric,
    record,
    value_of,
    worker,
)
from service_kit import Gate, Tap, until
from worker_process import gateway_process


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """Each log and guarantee in turn."""
    kind, mode = request.param
    broker = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")
    return Place(kind, mode, broker, tmp_path / "models")


async def test_P17_a_repeat_gets_the_first_answer_and_the_model_does_not_run_again(place):
    backend = Counting()
    async with place.worker(backend) as service, gateway(service) as url:
        first = await call(url, 5, "key/1")
        again = await call(url, 5, "key/1", id="another")
        assert (first.status, first.is_replayed) == (200, False)
        assert (again.status, again.is_replayed) == (200, True)
        assert again.value == first.value == pytest.approx(5.001)
        assert again.body["id"] == "another"
        assert backend.count == 1
        other = await call(url, 5, "key/2")
        assert other.value == pytest.approx(5.002)
        assert metric(service, "headrace_replayed_requests_total") == 1
        assert metric(service, "headrace_remembered_answers") == 2


async def test_B103_the_same_payload_twice_without_a_key_has_two_answers(place):
    """Whatever their ids: content and ids are no keys."""
    backend = Counting()
    async with place.worker(backend) as service, gateway(service) as url:
        values = [
            (await call(url, 5)).value,
            (await call(url, 5)).value,
            (await call(url, 5, id="r")).value,
            (await call(url, 5, id="r")).value,
        ]
        assert values == pytest.approx([5.001, 5.002, 5.003, 5.004])
        assert metric(service, "headrace_replayed_requests_total") == 0


async def test_P17_a_repeat_with_another_payload_is_refused_and_names_the_key(place):
    """While the first is in flight, and when it has its answer."""
    gate = Gate()
    backend = Counting(gate)
    async with place.worker(backend) as service, gateway(service) as url:
        first = asyncio.create_task(call(url, 5, "key/1"))
        await until(lambda: gate.waiting, "the first runs")
        early = await call(url, 6, "key/1")
        gate.open()
        assert (await first).value == pytest.approx(5.001)
        late = await call(url, 6, "key/1")
        for refused in (early, late):
            assert (refused.status, refused.is_replayed) == (422, False)
            assert "idempotency key 'key/1' was used before" in refused.body["error"]
        assert (await call(url, 5, "key/1")).value == pytest.approx(5.001)
        assert backend.count == 1


@pytest.mark.parametrize("key", ["", "a b", "k" * 256])
async def test_P17_a_key_that_is_none_is_refused_before_the_log(tmp_path, key):
    backend = Counting()
    async with (
        MemoryLog() as log,
        worker(log, tmp_path, backend) as service,
        gateway(service) as url,
    ):
        refused = await call(url, 5, key)
        assert refused.status == 400
        assert "header 'Idempotency-Key' is" in refused.body["error"]
        assert "1 to 255 visible ASCII characters" in refused.body["error"]
        assert log.existing(TP(service.topology.requests("m"), 0)).end == 0


async def test_P17_repeats_in_flight_follow_the_first(place):
    """Each at its own address and under its own id; the model runs once."""
    gate = Gate()
    backend = Counting(gate)
    async with (
        place.worker(backend) as service,
        gateway(service) as url,
        Tap(service.log, service.topology.results("m")) as tap,
    ):
        first = asyncio.create_task(call(url, 5, "key/1"))
        await until(lambda: gate.waiting, "the first runs")
        others = [asyncio.create_task(call(url, 5, "key/1", id=f"{n}")) for n in range(5)]
        topology = service.topology
        sources = await place.send(
            service, record(topology, 5, "key/1", id="r", content_type=JSON)
        )
        await until(lambda: in_flight(service) == 7, "all were read")
        assert not any(other.done() for other in others)
        gate.open()
        answers = [await first, *[await other for other in others]]
        assert {answer.value for answer in answers} == {answers[0].value}
        assert [answer.is_replayed for answer in answers] == [False] + [True] * 5
        assert [answer.body["id"] for answer in answers[1:]] == [f"{n}" for n in range(5)]
        await tap.answered(sources)
        (answer,) = tap.by_source()[sources[0]]
        assert value_of(answer) == pytest.approx(answers[0].value)
        assert (header(answer, "id"), header(answer, "replayed")) == (b"r", b"true")
        assert header(answer, "content-type") == JSON.encode()
        assert backend.count == 1
        await until(lambda: service.settled("m"), "everything is settled")


async def test_P17_an_answer_is_repeated_in_the_format_that_the_repeat_wants(place):
    """The bytes themselves where format and id are the same."""
    backend = Counting()
    async with (
        place.worker(backend) as service,
        Tap(service.log, service.topology.results("m")) as tap,
    ):
        topology = service.topology
        formats = (AVRO, AVRO, JSON, BINARY, PROTOBUF)
        outs = [record(topology, 5, "k", content_type=c, id=c[-2:]) for c in formats]
        outs.append(record(topology, 5, "k", content_type=AVRO, extra=[("accept", JSON.encode())]))
        outs.append(record(topology, 5, "k", extra=[("x-mine", b"1"), ("correlation-id", b"c")]))
        sources = await place.send(service, *outs)
        await tap.answered(sources)
        answers = [tap.by_source()[source][0] for source in sources]
        assert {value_of(answer) for answer in answers} == {value_of(answers[0])}
        assert answers[1].value == answers[0].value
        wanted = [*formats, JSON, AVRO]
        assert [header(a, "content-type").decode() for a in answers] == wanted
        assert [header(a, "source").decode() for a in answers] == sources
        assert [header(a, "replayed") for a in answers] == [None] + [b"true"] * 6
        assert (header(answers[-1], "x-mine"), header(answers[-1], "correlation-id")) == (
            b"1",
            b"c",
        )
        assert backend.count == 1


FATES = [
    (InvalidRequest("the model says no"), True),
    (BackendError("the model says no"), True),
    (Retriable("not now"), False),
]


@pytest.mark.parametrize(("error", "is_kept"), FATES, ids=["invalid", "failed", "retriable"])
async def test_P17_lasting_errors_are_kept_and_retriable_ones_are_not(place, error, is_kept):
    failing = [True]

    def play(_):
        if failing[0]:
            raise error

    backend = Counting(play)
    async with place.worker(backend, max_attempts=1) as service, gateway(service) as url:
        first = await call(url, 5, "k")
        failing[0] = False
        again = await call(url, 5, "k")
        assert first.status in (400, 500)
        assert again.is_replayed is is_kept
        assert again.status == (first.status if is_kept else 200)
        if is_kept:
            assert again.body == first.body
        assert backend.count == (not is_kept)


async def test_P17_who_follows_one_whose_caller_goes_away_takes_its_place(place):
    """The first is cancelled in the queue: its repeat runs, and later ones get that answer."""
    gate = Gate()
    backend = Counting(gate)
    async with place.worker(backend) as service, gateway(service) as url:
        busy = asyncio.create_task(call(url, 1))
        await until(lambda: gate.waiting, "the instance is busy")
        gone = asyncio.create_task(call(url, 5, "k"))
        await until(lambda: in_flight(service) == 2, "the first is queued")
        patient = asyncio.create_task(call(url, 5, "k"))
        await until(lambda: in_flight(service) == 3, "its repeat follows")
        gone.cancel()
        await until(lambda: in_flight(service) == 2, "the first is cancelled")
        gate.open(2)
        assert (await patient).value == pytest.approx(5.002)
        assert not (await patient).is_replayed
        assert (await call(url, 5, "k")).value == (await patient).value
        await busy
        assert backend.count == 2


class DyingGateway(Gateway):
    """Reads its replies, and dies before it hands one on."""

    read = 0

    def __init__(self, *parts, **more):
        super().__init__(*parts, **more)
        self._replies._on_reply = self._read

    def _read(self, _record):
        type(self).read += 1


async def test_B98_a_gateway_that_dies_between_reading_and_answering_costs_no_second_run(place):
    """The caller asks another gateway with the same key."""
    backend = Counting()
    DyingGateway.read = 0
    async with (
        place.worker(backend) as service,
        gateway(service, DyingGateway) as dying,
        gateway(service) as url,
    ):
        lost = asyncio.create_task(call(dying, 5, "k"))
        await until(lambda: DyingGateway.read, "the reply was read")
        again = await call(url, 5, "k")
        assert (again.status, again.is_replayed) == (200, True)
        assert again.value == pytest.approx(5.001)
        lost.cancel()
        assert backend.count == 1


@pytest.mark.parametrize("executed", [False, True], ids=["executing", "executed"])
async def test_B61_a_killed_gateway_with_ten_calls_costs_no_second_run(place, executed, tmp_path):
    """SIGKILL, where the log is on a broker; else it hears nothing more. The callers ask another one with their key.

    B60: the other one's own open calls lose nothing.
    """
    gate = Gate()
    backend = Counting(gate)
    async with (
        place.worker(backend, max_poll_records=5) as service,
        gateway(service) as url,
        killed_gateway(place, service, tmp_path) as (dying, kill),
    ):
        calls = [asyncio.create_task(call(dying, n, f"key-{n}")) for n in range(10)]
        neighbours = [asyncio.create_task(call(url, n)) for n in range(3)]
        await until(lambda: in_flight(service) == 13, "all calls")
        if executed:
            gate.open(100)
            await until(lambda: backend.count == 13, "all ran")
        await kill()
        repeats = [asyncio.create_task(call(url, n, f"key-{n}")) for n in range(10)]
        if not executed:
            await until(lambda: in_flight(service) == 23, "ten repeats")
            gate.open(100)
        answers = [await repeat for repeat in repeats]
        assert [answer.status for answer in answers] == [200] * 10
        assert [int(answer.value) for answer in answers] == list(range(10))
        kept = [await neighbour for neighbour in neighbours]
        assert [(answer.status, int(answer.value)) for answer in kept] == [
            (200, n) for n in range(3)
        ]
        assert backend.count == 13
        assert all(answer.is_replayed for answer in answers)
        for late in calls:
            late.cancel()
        await asyncio.wait(calls)


@asynccontextmanager
async def killed_gateway(place, service, folder):
    """Run a gateway whose end is none of its own; gives its URL and what kills it."""
    if place.kind == "memory":
        DyingGateway.read = 0
        async with gateway(service, DyingGateway) as url:

            async def leave() -> None:
                """Nothing more is heard of it."""

            yield url, leave
        return
    prefix = service.topology.prefix
    async with gateway_process(place.properties, prefix, folder=folder / "gateway") as process:
        yield process.url, process.kill


async def test_P17_a_new_owner_knows_what_the_one_before_has_answered(place):
    """Stored with the answers, and read before the first admission."""
    first, second = Counting(), Counting()
    async with place.worker(first) as service, gateway(service) as url:
        topology = service.topology
        before = [await call(url, n, f"key-{n}") for n in range(6)]
    async with place.worker(second, topology=topology) as service, gateway(service) as url:
        after = [await call(url, n, f"key-{n}") for n in range(6)]
        other = await call(url, 7, "key-1")
        fresh = await call(url, 7, "key-7")
        assert [answer.value for answer in after] == [answer.value for answer in before]
        assert all(answer.is_replayed for answer in after)
        assert (other.status, fresh.status) == (422, 200)
        assert (first.count, second.count) == (6, 1)
        assert metric(service, "headrace_remembered_answers") == 7


async def test_P17_what_is_beyond_the_bound_is_forgotten_oldest_first_and_counted(place):
    """Also by whoever takes over: memory is bounded."""
    first, second = Counting(), Counting()
    bounds = {"max_idempotency_keys": 3}
    async with place.worker(first, **bounds) as service, gateway(service) as url:
        topology = service.topology
        same = [key for n in range(100) if at(topology, key := f"key-{n}") == 0][:5]
        for key in same:
            await call(url, 5, key)
        assert metric(service, "headrace_remembered_answers") == 3
        assert metric(service, "headrace_forgotten_answers_total") == 2
        assert (await call(url, 5, same[2])).is_replayed
        assert not (await call(url, 5, same[0])).is_replayed
        assert first.count == 6
    async with (
        place.worker(second, topology=topology, **bounds) as service,
        gateway(service) as url,
    ):
        assert metric(service, "headrace_remembered_answers") == 3
        assert (await call(url, 5, same[0])).is_replayed
        assert not (await call(url, 5, same[1])).is_replayed


def at(topology, key):
    """Return the partition of a key."""
    return record(topology, 0, key).partition


async def test_P17_answers_are_stored_once_and_only_of_requests_with_a_key(place):
    """One record each, keyed by the key, where the request came from."""
    backend = Counting()
    async with place.worker(backend) as service, gateway(service) as url:
        topology = service.topology
        await call(url, 1)
        await call(url, 5, "k")
        await call(url, 5, "k")
        await call(url, 2)
        await until(lambda: service.settled("m"), "everything is settled")
    log = service.log if place.kind == "memory" else KafkaLog(place.properties)
    spans = {TP(topology.answers("m"), p): Span(EARLIEST, LATEST) for p in range(2)}
    found = []
    async with log, log.reader(spans, committed=True) as reader, asyncio.timeout(30):
        while not reader.done():
            found += [r for block in await reader.poll(100, 1.0) for r in block.records]
    (stored,) = found
    assert stored.key.startswith(b"answer/k/")
    assert stored.partition == at(topology, "k")


@pytest.mark.parametrize("how", ["option", "parameter"])
async def test_P17_without_a_window_a_key_is_refused_and_no_topic_is_made(tmp_path, how):
    """Refused rather than passed over: its caller believes that a repeat is safe."""
    parameter = 'parameters { key: "idempotency_window_ms" value { string_value: "0" } }'
    more = {"model": MODEL + parameter} if how == "parameter" else {"idempotency_window_s": 0.0}
    backend = Counting()
    async with (
        MemoryLog() as log,
        worker(log, tmp_path, backend, **more) as service,
        gateway(service) as url,
    ):
        refused = await call(url, 5, "k")
        assert refused.status == 501
        assert (
            "answers of model 'm' are not remembered (--idempotency-window-secs"
            in (refused.body["error"])
        )
        assert (await call(url, 5)).status == 200
        assert service.topology.answers("m") not in await log.topics()


async def test_P17_a_dead_letter_that_is_sent_again_runs_again(place):
    """Its answer was an error, and the model may have been mended; a result is not computed twice."""
    failing = [True]

    def play(_):
        if failing[0]:
            raise BackendError("broken")

    backend = Counting(play)
    async with (
        place.worker(backend) as service,
        Tap(service.log, service.topology.results("m")) as tap,
    ):
        again = [("attempt", b"2")]
        outs = [record(service.topology, 5, "k"), record(service.topology, 5, "k", extra=again)]
        (first,) = await place.send(service, outs[0])
        await tap.answered([first])
        failing[0] = False
        second, third = await place.send(service, outs[1], outs[1])
        await tap.answered([second, third])
        found = tap.by_source()
        assert header(found[first][0], "status") == b"INTERNAL"
        assert value_of(found[second][0]) == value_of(found[third][0]) == pytest.approx(5.001)
        assert header(found[third][0], "attempt") == b"2"
        assert backend.count == 1


async def test_P17_a_topic_of_answers_with_fewer_partitions_is_shared(tmp_path):
    """Requests that got more partitions since are served all the same, and their answers are remembered."""
    topology = Topology(prefix="few", partitions=2, reply_partitions=4)
    first, second = Counting(), Counting()
    async with MemoryLog() as log:
        spec = topology.model_specs("m", window_ms=3_600_000)[-1]
        await log.ensure([replace(spec, partitions=1)])
        async with (
            worker(log, tmp_path, first, topology=topology) as service,
            gateway(service) as url,
        ):
            before = [await call(url, n, f"key-{n}") for n in range(6)]
            await until(lambda: service.settled("m"), "everything is settled")
        async with (
            worker(log, tmp_path, second, topology=topology) as service,
            gateway(service) as url,
        ):
            after = [await call(url, n, f"key-{n}") for n in range(6)]
        assert {at(topology, f"key-{n}") for n in range(6)} == {0, 1}
        assert [answer.value for answer in after] == [answer.value for answer in before]
        assert second.count == 0
