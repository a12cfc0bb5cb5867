"""Values that no record can hold, over the whole service: stored on every hop, or one typed error (FAULTS B57, B95)."""

from __future__ import annotations

import asyncio
import io
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from claim_kit import KINDS, FaultyObjects, claims, objects, unreachable
from headrace.schemas.claim_check import claim_for, claim_of, name_in, write_claim
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.dead_letter import read_dead_letter, redriven
from headrace.schemas.errors import DeadlineExceeded
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, Out, Record
from headrace.schemas.tensor import Datatype, Tensor
from headrace.schemas.v2json import all_binary, parse_response, write_request
from headrace.streams.claims import Claims, default_above
from headrace.streams.gateway import GatewaySettings
from headrace.streams.log import Log
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import (
    Producer,
    ScriptedBackend,
    Service,
    Tap,
    committed,
    gatewaying,
    loaded,
    until,
    working,
    write_models,
)
from service_parts import PlainRecord

LIMIT = 100_000
"""Bytes of a record where a test needs no more."""

BLOB = """
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_UINT8 dims: [-1] }]
"""
BIG = """
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_FP64 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP64 dims: [3, 1024, 1024] }]
"""
BIG_SHAPE = (3, 1024, 1024)
TALE = """
backend: "identity"
sequence_batching { max_sequence_idle_microseconds: 60000000 }
input [{ name: "INPUT0" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_UINT8 dims: [-1] }]
"""


def play(batch) -> Mapping[str, np.ndarray] | None:
    """Echo; the big model gives 25 MB that depend on its input."""
    inputs = batch.inputs()
    if inputs["INPUT0"].dtype == np.float64:
        return {"OUTPUT0": np.full(BIG_SHAPE, inputs["INPUT0"].reshape(-1)[0])}
    return None


@pytest.fixture
def topology() -> Topology:
    return Topology(prefix=f"large-{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=1)


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(play)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", {"blob": BLOB, "big": BIG, "tale": TALE})


@asynccontextmanager
async def serving(
    log: Log,
    root: Path,
    topology: Topology,
    backend: ScriptedBackend,
    *,
    worker: Claims | None = None,
    gateway: Claims | None = None,
    **settings: object,
) -> AsyncIterator[Service]:
    """Run worker and gateway with their stores."""
    async with (
        loaded(root, backend) as repository,
        working(log, repository, topology, claims=worker, **settings) as service,
    ):
        settings = service_settings(log)
        async with gatewaying(service, settings, gateway) as whole:
            yield whole


def service_settings(log: Log) -> GatewaySettings:
    """Return a gateway's settings for a log."""
    return GatewaySettings(interval_ms=500, max_record_bytes=log.max_record_bytes)


async def ask(service: Service, model: str, array: np.ndarray, **more: object):
    """Ask a model over HTTP in binary; returns the status and the answer's array or text."""
    datatype = Datatype.UINT8 if array.dtype == np.uint8 else Datatype.FP64
    tensor = Tensor("INPUT0", datatype, array.shape, array.tobytes())
    request = InferRequest((tensor,), binary_data_output=True, **more)
    body, length = write_request(request, all_binary)
    # aiohttp would ask for gzip, which takes longer than all the rest.
    headers = {"Inference-Header-Content-Length": str(length), "Accept-Encoding": "identity"}
    async with service.session.post(
        f"/v2/models/{model}/infer", data=io.BytesIO(body), headers=headers
    ) as response:
        raw = await response.read()
        if response.status != 200:
            return response.status, (await response.json())["error"]
        size = response.headers.get("Inference-Header-Content-Length")
        found = parse_response(raw, None if size is None else int(size))
        return 200, found.outputs[0].numpy()


def blob(size: int, seed: int = 0) -> np.ndarray:
    """Return bytes that no digest takes for others'."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def request_of(array: np.ndarray, content_type: str = AVRO, **options: object):
    """Return value and headers of a request for the blob model."""
    request = InferRequest((Tensor("INPUT0", Datatype.UINT8, array.shape, array.tobytes()),))
    return encode_request(request, content_type, RequestOptions(**options))


async def claimed_record(
    kept: Claims, topic: str, array: np.ndarray, content_type: str = AVRO, partition: int = 0
) -> Out:
    """Return a record whose value is in the store, as another producer writes it."""
    value, headers = request_of(array, content_type)
    claim = await kept.put(value)
    return Out(topic, partition, None, b"", [*headers, ("claim-check", write_claim(claim))])


async def output_of(kept: Claims, answer: Record) -> np.ndarray:
    """Return what a results record says, wherever its value is."""
    found = decode_response(await kept.value_of(answer), answer.headers)
    return found.outputs[0].numpy()


def said(record: Record) -> tuple[str, str]:
    """Return an answer's status and reason."""
    headers = dict(record.headers)
    return headers["status"].decode(), headers.get("reason", b"").decode()


async def best_s(call, there=lambda: None, times: int = 5) -> float:
    """Return the shortest time from a call until ``there`` holds, or to its end: others use this machine, too."""
    loop = asyncio.get_running_loop()
    took = []
    for number in range(1, times + 1):
        begun = loop.time()
        asked = asyncio.create_task(call())
        await until(lambda: there() == number or asked.done())  # noqa: B023  # awaited at once
        took.append(loop.time() - begun)
        await asked
    return min(took)


async def test_B57_without_a_store_an_answer_of_25_mb_is_507_within_a_second(
    log, root, topology, backend
):
    async with serving(log, root, topology, backend) as service:

        async def call() -> None:
            status, text = await ask(service, "big", np.array([7.0]))
            assert status == 507
            assert f"above the limit of {log.max_record_bytes} bytes of a record" in text
            assert "max.request.size" in text
            assert "--claim-check-url" in text

        assert await best_s(call) < 1.0
        assert service.gateway.open_calls == 0


async def test_B57_without_a_store_a_record_client_gets_the_typed_error(
    log, logs, root, topology, backend
):
    async with (
        serving(log, root, topology, backend) as service,
        Tap(log, topology.results("big")) as tap,
    ):
        tensor = Tensor("INPUT0", Datatype.FP64, (1,), np.array([7.0]).tobytes())
        value, headers = encode_request(InferRequest((tensor,), id="mine"), AVRO)
        producer = Producer(log, logs.properties)
        sources = await producer.send([Out(topology.requests("big"), 0, None, value, headers)])
        await tap.answered(sources)
        (answer,) = tap.by_source()[sources[0]]
        assert said(answer) == ("INVALID_ARG", "answer_too_large")
        assert dict(answer.headers)["id"] == b"mine"
        await until(lambda: service.settled("big"))


async def test_B57_with_a_store_an_answer_of_25_mb_is_an_answer(
    log, root, topology, backend, tmp_path
):
    store = objects("file", tmp_path)
    kept = claims(store, default_above(log.max_record_bytes))
    async with (
        serving(log, root, topology, backend, worker=kept, gateway=kept) as service,
        Tap(log, topology.replies) as tap,
    ):

        async def call() -> None:
            status, found = await ask(service, "big", np.array([7.0]))
            assert status == 200
            assert found.shape == BIG_SHAPE
            assert (found == 7.0).all()

        assert await best_s(call, lambda: len(tap.records)) < 1.0
        await until(lambda: len(tap.records) == 5)
        for record in tap.records:
            assert record.value == b""
            assert claim_of(record).size > 25_000_000


async def test_B95_64_mb_end_to_end(log, root, topology, backend, tmp_path):
    """HTTP to log to model to log to HTTP; the log holds claims, and what they say is what is there."""
    store = objects("file", tmp_path)
    kept = claims(store, default_above(log.max_record_bytes))
    array = blob(64_000_000)
    async with (
        serving(log, root, topology, backend, worker=kept, gateway=kept) as service,
        Tap(log, topology.requests("blob"), topology.replies) as tap,
    ):
        status, found = await ask(service, "blob", array)
        assert status == 200
        assert np.array_equal(found, array)
        await until(lambda: len(tap.records) == 2)
        claimed = [claim_of(record) for record in tap.records]
        for claim in claimed:
            value = store.read(name_in(store.url, claim.url), claim.size + 1)
            assert claim_for(claim.url, value) == claim
        await until(lambda: service.settled("blob"))
        # Past their time both go, and who asks for one again gets a typed error.
        later = Claims(store, replace(kept.bounds, ttl_s=1e-9))
        assert (await later.clean()).removed == 2
        (request,) = [r for r in tap.records if r.topic == topology.requests("blob")]
        headers = [(name, raw) for name, raw in request.headers if not name.startswith("reply-")]
        async with (
            Tap(log, topology.results("blob")) as results,
            Tap(log, topology.dead_letters) as letters,
        ):
            async with log.publisher() as publisher:
                await publisher.publish([Out(request.topic, 0, None, b"", headers)])
            await until(lambda: results.records and letters.records)
            assert said(results.records[0]) == ("INVALID_ARG", "claim_missing")
            letter = read_dead_letter(letters.records[0])
            assert (letter.reason, letter.value) == ("claim_missing", b"")
            assert dict(letter.headers)["claim-check"] == write_claim(claim_of(request))


@pytest.mark.parametrize("content_type", [AVRO, JSON, BINARY, PROTOBUF])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_claimed_request_is_read_as_its_headers_say(
    root, topology, backend, tmp_path, kind, content_type
):
    kept = claims(objects(kind, tmp_path), 10_000)
    array = blob(30_000)
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept) as service,
        Tap(log, topology.results("blob")) as tap,
    ):
        out = await claimed_record(kept, topology.requests("blob"), array, content_type)
        (source,) = await Producer(log, {}).send([out])
        await tap.answered([source])
        (answer,) = tap.by_source()[source]
        assert claim_of(answer) is not None
        assert dict(answer.headers)["content-type"] == content_type.encode()
        assert np.array_equal((await output_of(kept, answer)).astype(np.uint8), array)
        await until(lambda: service.settled("blob"))
        parts = service.worker.models["blob"].partitions.values()
        assert {part.in_flight_bytes for part in parts} == {0}


def twisted(kept: Claims, store, claim, value) -> dict[str, tuple[bytes, bytes, str]]:
    """Return header, record value and expected reason of claims that are wrong in one thing each."""
    good = write_claim(claim)
    secret = Path(store.url.removeprefix("file://")).parent / "secret"
    secret.write_bytes(value)
    name_in_store = name_in(store.url, claim.url)
    return {
        "missing": (
            write_claim(claim._replace(url=f"{store.url}/not/there")),
            b"",
            "claim_missing",
        ),
        "another digest": (write_claim(claim._replace(sha256="0" * 64)), b"", "claim_mismatch"),
        "shorter": (write_claim(claim._replace(size=claim.size - 1)), b"", "claim_mismatch"),
        "longer": (write_claim(claim._replace(size=claim.size + 1)), b"", "claim_mismatch"),
        "another file": (write_claim(claim_for(f"file://{secret}", value)), b"", "claim_refused"),
        "out of the store": (
            write_claim(claim_for(f"{store.url}/../secret", value)),
            b"",
            "claim_refused",
        ),
        "another host": (
            write_claim(claim._replace(url=f"http://127.0.0.1:1/{name_in_store}")),
            b"",
            "claim_refused",
        ),
        "too large": (
            write_claim(claim._replace(size=kept.bounds.max_bytes + 1)),
            b"",
            "too_large",
        ),
        "a value beside it": (good, b"v", "invalid_header"),
        "malformed": (claim.url.encode(), b"", "invalid_header"),
    }


async def test_B95_a_bad_claim_is_one_typed_error_each_and_its_neighbours_are_served(
    root, topology, backend, tmp_path
):
    store = objects("file", tmp_path)
    kept = claims(store, 10_000)
    array = blob(30_000)
    value, headers = request_of(array)
    claim = await kept.put(value)
    cases = twisted(kept, store, claim, value)
    topic = topology.requests("blob")
    good = Out(topic, 0, None, b"", [*headers, ("claim-check", write_claim(claim))])
    plain = Out(topic, 0, None, *request_of(blob(10)))
    outs = [good]
    for raw, own, _ in cases.values():
        outs += [Out(topic, 0, None, own, [*headers, ("claim-check", raw)]), plain, good]
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept) as service,
        Tap(log, topology.results("blob")) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        sources = await Producer(log, {}).send(outs)
        await tap.answered(sources)
        found = tap.by_source()
        assert all(len(found[source]) == 1 for source in sources)
        for (_, _, reason), source in zip(cases.values(), sources[1::3], strict=True):
            assert said(found[source][0])[1] == reason
        for source in (sources[0], *sources[2::3], *sources[3::3]):
            assert said(found[source][0])[0] == "OK"
        dead = {"claim_missing", "claim_mismatch", "claim_refused", "invalid_header"}
        expected = sorted(reason for _, _, reason in cases.values() if reason in dead)
        await until(lambda: len(letters.records) == len(expected))
        assert sorted(read_dead_letter(record).reason for record in letters.records) == expected
        parts = service.worker.models["blob"].partitions.values()
        await until(lambda: service.settled("blob"))
        assert {part.in_flight_bytes for part in parts} == {0}
        assert {part.decoding for part in parts} == {0}
        await service.stop_worker()
        assert (await committed(log, topology, "blob"))[0] == (len(outs), len(outs))


async def test_a_dead_letter_of_a_claim_can_be_driven_again_once_its_object_is_back(
    root, topology, backend, tmp_path
):
    store = objects("file", tmp_path)
    kept = claims(store, 10_000)
    array = blob(30_000)
    out = await claimed_record(kept, topology.requests("blob"), array)
    name = name_in(store.url, claim_of(as_record(out)).url)
    value = store.read(name, 100_000)
    store.delete(name)
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept),
        Tap(log, topology.results("blob")) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        producer = Producer(log, {})
        await tap.answered(await producer.send([out]))
        await until(lambda: letters.records)
        store.write(name, value)
        again = redriven(read_dead_letter(letters.records[0]), 2)
        (source,) = await producer.send([again])
        await tap.answered([source])
        (answer,) = tap.by_source()[source]
        assert np.array_equal(await output_of(kept, answer), array)


async def test_a_dead_letter_holds_the_claim_and_not_the_value(root, topology, backend, tmp_path):
    """The value is there and is no request: its copy in a record would be too large."""
    kept = claims(objects("file", tmp_path), 10_000)
    claim = await kept.put(b"\xff" * 200_000)
    out = Out(topology.requests("blob"), 0, b"k", b"", [("claim-check", write_claim(claim))])
    async with (
        MemoryLog(max_record_bytes=LIMIT) as log,
        serving(log, root, topology, backend, worker=kept) as service,
        Tap(log, topology.results("blob")) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        (source,) = await Producer(log, {}).send([out])
        await tap.answered([source])
        assert said(tap.by_source()[source][0]) == ("INVALID_ARG", "undecodable")
        await until(lambda: letters.records)
        letter = read_dead_letter(letters.records[0])
        assert (letter.key, letter.value, letter.omitted_bytes) == (b"k", b"", 0)
        assert letter.headers == (("claim-check", write_claim(claim)),)
        await until(lambda: service.settled("blob"))


def as_record(out: Out) -> PlainRecord:
    """Return what a consumer sees of a record."""
    return PlainRecord(value=out.value, headers=out.headers)


class Gate:
    """Lets calls to a store through when the test says so."""

    def __init__(self, what: str) -> None:
        self.waiting = 0
        self._what = what
        self._passes = threading.Semaphore(0)

    def __call__(self, what: str) -> None:
        """Wait for a pass: the script of a `FaultyObjects`."""
        if what == self._what:
            self.waiting += 1
            assert self._passes.acquire(timeout=60)
            self.waiting -= 1

    def open(self, passes: int = 1000) -> None:
        """Let so many calls go on, now or later."""
        self._passes.release(passes)


async def test_a_slow_store_holds_up_its_partition_in_order_and_no_other(
    root, topology, backend, tmp_path
):
    gate = Gate("read")
    store = FaultyObjects(objects("memory", tmp_path), gate)
    kept = claims(store, 10_000)
    topic = topology.requests("blob")
    plain = [Out(topic, 0, None, *request_of(blob(10, seed))) for seed in range(6)]
    elsewhere = [Out(topic, 1, None, *request_of(blob(10, seed))) for seed in range(20)]
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept, max_poll_records=4) as service,
        Tap(log, topology.results("blob")) as tap,
    ):
        producer = Producer(log, {})
        claimed = [await claimed_record(kept, topic, blob(20_000, seed)) for seed in (7, 8)]
        outs = [plain[0], claimed[0], plain[1], plain[2], claimed[1], *plain[3:]]
        sources = await producer.send(outs)
        await tap.answered(sources[:1])
        await until(lambda: gate.waiting)
        await tap.answered(await producer.send(elsewhere))
        assert set(tap.by_source()) & set(sources) == {sources[0]}
        gate.open()
        await tap.answered(sources)
        order = [dict(r.headers)["source"].decode() for r in tap.records if r.partition == 0]
        assert order == sources
        assert service.never_unready


async def test_what_is_fetched_counts_against_the_bytes_in_flight(
    root, topology, backend, tmp_path
):
    """Ten claims of 40 kB where 100 kB may be in flight; one of 200 kB goes alone."""
    gate = Gate("read")
    store = FaultyObjects(objects("memory", tmp_path), gate)
    kept = claims(store, 10_000, max_calls=8)
    topic = topology.requests("blob")
    sizes = [40_000] * 5 + [200_000] + [40_000] * 4
    most = [0]
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept, max_queued_bytes=100_000) as service,
        Tap(log, topology.results("blob")) as tap,
    ):
        outs = [await claimed_record(kept, topic, blob(size)) for size in sizes]
        sources = await Producer(log, {}).send(outs)
        parts = service.worker.models["blob"].partitions

        async def look() -> None:
            while True:
                total = sum(part.in_flight_bytes for part in parts.values())
                most.append(total if total < 200_000 else 0)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await until(lambda: gate.waiting == 2)
        gate.open()
        await tap.answered(sources)
        looking.cancel()
        assert 80_000 < max(most) < 100_000
        answers = tap.by_source()
        for source, size in zip(sources, sizes, strict=True):
            assert (await output_of(kept, answers[source][0])).shape == (size,)


async def test_P5_a_worker_that_stops_waits_for_no_store_and_its_successor_serves(
    root, topology, backend, tmp_path
):
    gate = Gate("read")
    slow = claims(FaultyObjects(behind := objects("memory", tmp_path), gate), 10_000)
    kept = claims(behind, 10_000)
    array = blob(30_000)
    loop = asyncio.get_running_loop()
    async with (
        MemoryLog() as log,
        loaded(root, backend) as repository,
    ):
        async with (
            working(log, repository, topology, claims=slow) as service,
            Tap(log, topology.results("blob")) as tap,
        ):
            out = await claimed_record(kept, topology.requests("blob"), array)
            sources = await Producer(log, {}).send([out])
            await until(lambda: gate.waiting)
            begun = loop.time()
            await service.stop_worker()
            assert loop.time() - begun < 5
            assert not tap.by_source()
        gate.open()
        async with (
            working(log, repository, topology, claims=kept),
            Tap(log, topology.results("blob")) as tap,
        ):
            await tap.answered(sources)
            (answer,) = tap.by_source()[sources[0]]
            assert np.array_equal(await output_of(kept, answer), array)


async def test_P5_a_partition_that_is_revoked_waits_for_no_store(
    root, topology, backend, tmp_path
):
    """Both of a worker's partitions wait for a store that hangs; the one that moves is served by its new owner."""
    gate = Gate("read")
    behind = objects("memory", tmp_path)
    slow = claims(FaultyObjects(behind, gate), 10_000)
    kept = claims(behind, 10_000)
    topic = topology.requests("blob")
    loop = asyncio.get_running_loop()
    async with (
        MemoryLog() as log,
        loaded(root, backend) as repository,
        working(log, repository, topology, claims=slow, revoke_grace_s=30.0) as first,
        Tap(log, topology.results("blob")) as tap,
    ):
        outs = [
            await claimed_record(kept, topic, blob(20_000), partition=number) for number in (0, 1)
        ]
        sources = await Producer(log, {}).send(outs)
        await until(lambda: gate.waiting == 2)
        begun = loop.time()
        async with working(log, repository, topology, claims=kept, worker_id="w2", wait=False):
            await until(tap.by_source)
            assert loop.time() - begun < 2.5  # the grace is for what executes
            assert len(tap.by_source()) == 1
            gate.open()
            await tap.answered(sources)
        assert all(len(answers) == 1 for answers in tap.by_source().values())
        await until(lambda: first.settled("blob"))


async def test_an_unreachable_store_is_a_retriable_error_and_a_dead_letter(
    root, topology, backend, tmp_path
):
    store = FaultyObjects(objects("memory", tmp_path))
    kept = claims(store, 10_000, timeout_s=0.2)
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept, gateway=kept) as service,
        Tap(log, topology.results("blob")) as tap,
        Tap(log, topology.dead_letters) as letters,
    ):
        out = await claimed_record(kept, topology.requests("blob"), blob(30_000))
        store.script = unreachable
        (source,) = await Producer(log, {}).send([out])
        await tap.answered([source])
        assert said(tap.by_source()[source][0]) == ("UNAVAILABLE", "claim_unreachable")
        await until(lambda: letters.records)
        status, text = await ask(service, "blob", blob(30_000))  # it cannot be stored
        assert status == 503
        assert "connection refused" in text
        assert service.gateway.open_calls == 0
        # Small ones are served.
        assert (await ask(service, "blob", blob(10)))[0] == 200
        # A request that fits, an answer that does not: the answer cannot be stored.
        status, text = await ask(service, "big", np.array([1.0]))
        assert status == 503


async def test_a_claim_without_a_store_names_the_option_on_either_side(
    root, topology, backend, tmp_path
):
    kept = claims(objects("memory", tmp_path), 10_000)
    array = blob(50_000)
    async with MemoryLog(max_record_bytes=LIMIT) as log:
        async with serving(log, root, topology, backend, gateway=kept) as service:
            status, text = await ask(service, "blob", array)
            assert status == 500
            assert "none is configured here (--claim-check-url)" in text
        other = replace(topology, prefix=f"{topology.prefix}2")
        async with serving(log, root, other, backend, worker=kept) as service:
            status, text = await ask(service, "blob", array)
            assert status == 500
            assert "this gateway has none (--claim-check-url)" in text
            status, text = await ask(service, "blob", blob(2 * LIMIT))
            assert status == 413
            assert "before compression; larger ones need a store, --claim-check-url" in text


async def test_a_request_above_the_stores_limit_is_413_and_an_answer_507(
    root, topology, backend, tmp_path
):
    kept = claims(objects("memory", tmp_path), 10_000, max_bytes=1_000_000)
    async with (
        MemoryLog(max_record_bytes=LIMIT) as log,
        serving(log, root, topology, backend, worker=kept, gateway=kept) as service,
    ):
        status, text = await ask(service, "blob", blob(1_000_001))
        assert (status, "--claim-check-max-bytes" in text) == (413, True)
        status, text = await ask(service, "big", np.array([1.0]))
        assert (status, "--claim-check-max-bytes" in text) == (507, True)
        assert (await ask(service, "blob", blob(900_000)))[0] == 200


async def test_a_call_ends_with_its_deadline_whatever_the_store_does(
    root, topology, backend, tmp_path
):
    """B63: once while its request is stored, once while its answer is fetched."""
    for what in ("write", "read"):
        gate = Gate(what)
        behind = objects("memory", tmp_path)
        slow, kept = claims(FaultyObjects(behind, gate), 10_000), claims(behind, 10_000)
        named = replace(topology, prefix=f"{topology.prefix}-{what}")
        async with (
            MemoryLog() as log,
            serving(log, root, named, backend, worker=kept, gateway=slow) as service,
        ):
            deadline_ms = service.gateway.now_ms() + 300
            tensor = Tensor("INPUT0", Datatype.UINT8, (30_000,), blob(30_000).tobytes())
            with pytest.raises(DeadlineExceeded, match="deadline passed"):
                await service.gateway.infer(
                    "blob", "", InferRequest((tensor,)), deadline_ms=deadline_ms
                )
            assert gate.waiting == 1
            assert service.gateway.open_calls == 0
            gate.open()


async def test_B68_a_gateway_drains_calls_whose_answers_it_still_fetches(
    root, topology, backend, tmp_path
):
    gate = Gate("read")
    behind = objects("memory", tmp_path)
    slow, kept = claims(FaultyObjects(behind, gate), 10_000), claims(behind, 10_000)
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept, gateway=slow) as service,
    ):
        call = asyncio.create_task(ask(service, "blob", blob(30_000)))
        await until(lambda: gate.waiting)
        drain = asyncio.create_task(service.gateway.drain(20.0))
        await until(lambda: service.gateway.is_draining)
        assert service.gateway.open_calls == 1
        assert not drain.done()
        gate.open()
        assert (await call)[0] == 200
        assert await drain


async def test_P18_a_small_step_does_not_overtake_a_large_one_of_its_sequence(
    root, topology, backend, tmp_path
):
    """Neither on the way into the log, where the large one is stored, nor out of it, where it is fetched."""
    gate = Gate("write")
    behind = objects("memory", tmp_path)
    slow, kept = claims(FaultyObjects(behind, gate), 10_000), claims(behind, 10_000)
    async with (
        MemoryLog() as log,
        serving(log, root, topology, backend, worker=kept, gateway=slow) as service,
        Tap(log, topology.requests("tale")) as tap,
    ):
        first = asyncio.create_task(
            ask(service, "tale", blob(30_000), sequence_id=7, sequence_start=True, id="1")
        )
        await until(lambda: gate.waiting)
        second = asyncio.create_task(ask(service, "tale", blob(10), sequence_id=7, id="2"))
        alone = {"sequence_id": 8, "sequence_start": True, "sequence_end": True}
        assert (await ask(service, "tale", blob(10), **alone))[0] == 200
        assert not second.done()
        gate.open()
        assert (await first)[0] == (await second)[0] == 200
        end = ask(service, "tale", blob(30_000), sequence_id=7, sequence_end=True, id="3")
        assert (await end)[0] == 200
        await until(lambda: len(tap.records) == 4)
        ids = [dict(record.headers)["id"] for record in tap.records if record.key == b"7"]
        assert ids == [b"1", b"2", b"3"]
        assert service.gateway._calls._values._turns == {}
