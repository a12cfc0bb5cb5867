"""Idempotency keys where answers are large, and where a request ends its workers (DELIVERY P-17, P-14)."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from claim_kit import claims, objects
from headrace.deploy.client import HttpClient
from headrace.deploy.log_client import LogClient
from headrace.deploy.settings import load_settings
from headrace.schemas.claim_check import write_claim
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import InvalidRequest, WorkerCrashed
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, CLAIM_CHECK, JSON, REPLAYED, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Mode, Position
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology, partition_for_key
from keyed_kit import Counting, Summing, call, gateway, header, record, sums, worker
from service_kit import Producer, ScriptedBackend, Tap, loaded, until, working, write_models

BLOB = """
backend: "scripted"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
"""
DEATHS = 3
ACCUSED = Position(0, f"h1;c=5,abcd,1,0,{DEATHS}")
"""What a partition's metadata says when the record at offset 0 has ended so many workers by itself (P-14)."""


@pytest.fixture
def topology():
    return Topology(prefix=f"k{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=2)


async def answers_of(tap, *sources):
    """Wait for one answer to each of these records."""
    await tap.answered(sources)
    found = tap.by_source()
    assert [len(found[source]) for source in sources] == [1] * len(sources)
    return [found[source][0] for source in sources]


def blob(topology, content_type, seed=0):
    """Return a keyed request with 4 kB of input."""
    values = np.random.default_rng(seed).standard_normal((1, 1024)).astype(np.float32)
    request = InferRequest((Tensor.from_numpy("INPUT0", values),))
    options = RequestOptions(idempotency_key=b"k", extra=(("x-my", b"1"),))
    value, headers = encode_request(request, content_type, options)
    partition = partition_for_key(b"k", topology.partitions)
    return Out(topology.requests("m"), partition, b"k", value, list(headers))


async def test_P17_a_key_holds_for_values_in_the_store_whatever_form_they_come_in(
    tmp_path, topology
):
    """In a record, in a claim, in another format: the tensors count. Its answer is a claim, and every repeat's too."""
    backend = ScriptedBackend()
    root = write_models(tmp_path / "models", {"m": BLOB})
    store = objects("memory", tmp_path)
    async with (
        MemoryLog() as log,
        claims(store, above=1_000) as kept,
        loaded(root, backend) as repository,
        working(log, repository, topology, claims=kept) as service,
        Tap(log, topology.results("m")) as tap,
    ):
        producer = Producer(log, {})

        async def ask(out, *, in_store):
            if in_store:
                claim = await kept.put(out.value)
                out.value, out.headers = b"", [*out.headers, (CLAIM_CHECK, write_claim(claim))]
            (source,) = await producer.send([out])
            return (await answers_of(tap, source))[0]

        first = await ask(blob(topology, AVRO), in_store=True)
        repeats = [
            await ask(blob(topology, AVRO), in_store=True),
            await ask(blob(topology, AVRO), in_store=False),
            await ask(blob(topology, JSON), in_store=True),
        ]
        other = await ask(blob(topology, AVRO, seed=1), in_store=True)
        assert len(backend.executions) == 1
        assert header(first, REPLAYED) is None
        assert header(first, CLAIM_CHECK) is not None
        for repeat in repeats:
            assert header(repeat, REPLAYED) == b"true"
            assert header(repeat, CLAIM_CHECK) == header(first, CLAIM_CHECK)
        assert header(other, "reason") == b"idempotency_key_reused"
        raw = await kept.value_of(repeats[0])
        (output,) = decode_response(raw, repeats[0].headers).outputs
        assert output.shape == (1, 1024)
        assert service.worker.ready()


@pytest.mark.parametrize("mode", list(Mode))
async def test_P14_P17_a_request_that_ended_its_workers_is_not_run_again_under_its_key(
    tmp_path, topology, mode
):
    """Its error is remembered, also by the next owner; under another key it is another request."""
    backend = Counting()
    first = record(topology, 5, "k")
    partition = first.partition
    async with MemoryLog() as log:
        async with worker(log, tmp_path, backend, topology=topology):
            pass  # makes the topics
        (source,) = await Producer(log, {}).send([first])
        tp = TP(topology.requests("m"), partition)
        log.commit(log._group(topology.group("m")), {tp: ACCUSED})
        how = {"topology": topology, "delivery": mode, "max_crashes": DEATHS}
        async with Tap(log, topology.results("m")) as tap:
            async with worker(log, tmp_path, backend, **how):
                (crashed,) = await answers_of(tap, source)
                again = await Producer(log, {}).send([record(topology, 5, "k")])
                (repeat,) = await answers_of(tap, *again)
            async with worker(log, tmp_path, backend, **how) as service, gateway(service) as url:
                late = await Producer(log, {}).send([record(topology, 5, "k")])
                (later,) = await answers_of(tap, *late)
                asked = await call(url, 5, "k")
                for answer in (crashed, repeat, later):
                    with pytest.raises(WorkerCrashed):
                        decode_response(answer.value, answer.headers)
                assert header(crashed, REPLAYED) is None
                assert header(repeat, REPLAYED) == header(later, REPLAYED) == b"true"
                assert (asked.status, asked.is_replayed) == (500, True)
                assert backend.count == 0
                other = partition_key_beside(topology, partition)
                assert (await call(url, 5, other)).status == 200
                assert backend.count == 1


def partition_key_beside(topology, partition):
    """Return another key of the same partition."""
    keys = (f"k{number}" for number in range(100))
    return next(k for k in keys if partition_for_key(k.encode(), topology.partitions) == partition)


async def test_P14_P17_a_step_that_ended_its_workers_is_not_run_again_under_its_key(
    tmp_path, topology
):
    """The sequence goes on without it."""
    backend = Summing()
    step = {"sequence_id": 7, "sequence_start": True}
    first = record(topology, 5, "k", **step)
    async with MemoryLog() as log:
        async with worker(log, tmp_path, backend, topology=topology, model=sums()):
            pass  # makes the topics
        (source,) = await Producer(log, {}).send([first])
        tp = TP(topology.requests("m"), first.partition)
        log.commit(log._group(topology.group("m")), {tp: ACCUSED})
        async with (
            Tap(log, topology.results("m")) as tap,
            worker(log, tmp_path, backend, topology=topology, max_crashes=DEATHS) as service,
        ):
            (crashed,) = await answers_of(tap, source)
            again = await Producer(log, {}).send([record(topology, 5, "k", **step)])
            (repeat,) = await answers_of(tap, *again)
            for answer in (crashed, repeat):
                with pytest.raises(WorkerCrashed):
                    decode_response(answer.value, answer.headers)
            assert header(repeat, REPLAYED) == b"true"
            assert backend.count == 0
            fresh = await Producer(log, {}).send([record(topology, 5, "other", **step)])
            (answer,) = await answers_of(tap, *fresh)
            assert decode_response(answer.value, answer.headers).outputs[0].numpy().item() == 5
            await until(lambda: service.settled("m"), "all is finished")


async def test_P17_the_shell_s_client_over_http_says_that_an_answer_is_a_repeat_s(
    tmp_path, topology
):
    backend = Counting()
    async with (
        MemoryLog() as log,
        worker(log, tmp_path, backend, topology=topology) as service,
        gateway(service) as url,
        HttpClient(url, timeout_s=20, key="k") as client,
    ):
        await asks_twice(client, backend)


@pytest.mark.embedded
async def test_P17_the_shell_s_client_by_a_record_says_so_too(
    tmp_path, topology, embedded_properties
):
    backend = Counting()
    servers = embedded_properties["bootstrap.servers"]
    settings = load_settings({"bootstrap_servers": servers, "topic_prefix": topology.prefix})
    async with (
        KafkaLog(embedded_properties) as log,
        worker(log, tmp_path, backend, topology=topology),
        LogClient(settings, timeout_ms=20_000, key="k") as client,
    ):
        await asks_twice(client, backend)
    with pytest.raises(InvalidRequest, match="'a b', expected 1 to 255 visible ASCII characters"):
        LogClient(settings, timeout_ms=1, key="a b")


async def asks_twice(client, backend):
    """Ask the same twice under the client's key."""
    request = InferRequest((Tensor.from_numpy("INPUT0", np.float32([[5]])),))
    first = await client.infer("m", "", request)
    assert not client.is_replayed
    again = await client.infer("m", "", request)
    assert client.is_replayed
    assert again.outputs == first.outputs
    assert backend.count == 1
