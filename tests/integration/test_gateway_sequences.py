"""Calls that are steps of sequences, over HTTP on a memory log: what enters the log, in which order, and what not."""

import asyncio
import json

import numpy as np
import pytest
from aiokafka.partitioner import DefaultPartitioner
from gateway_kit import TOPOLOGY, Worker, identity_config, running, serving, silent, until
from headrace.schemas.errors import BackendError, InvalidRequest, Reason
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import (
    CORRELATION_ID,
    ID,
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_ID_TYPE,
    SEQUENCE_START,
)
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.gateway import Gateway
from headrace.streams.memory import MemoryLog

INFER = "/v2/models/echo/infer"
MAX_UINT64 = 2**64 - 1
CORRID = {
    "name": "CORRID",
    "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}],
}


def sequence_model(**batching):
    return {1: identity_config(sequence_batching=batching)}


@pytest.fixture
def log():
    return MemoryLog()


def body(rows=1, **parameters):
    tensor = {"name": "INPUT0", "shape": [rows, 1], "datatype": "FP32", "data": [1.0] * rows}
    return {"inputs": [tensor], "parameters": parameters}


async def post(session, payload):
    async with session.post(INFER, json=payload) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize(
    ("given", "key", "kind"),
    [
        (7, b"7", b"uint64"),
        (MAX_UINT64, b"18446744073709551615", b"uint64"),
        ("7", b"7", b"string"),
        ("stream-é/1", "stream-é/1".encode(), b"string"),
    ],
)
async def test_TC02_PB70_a_step_has_its_ids_text_as_key_and_its_type_in_a_header(
    log, given, key, kind
):
    """The partition is the one that any Kafka client's own producer would choose for that key."""
    worker = Worker(log, versions=sequence_model())
    async with running(worker), serving(log) as (_, session):
        for flags in ({"sequence_start": True}, {}, {"sequence_end": True}):
            status, _ = await post(session, body(sequence_id=given, **flags))
            assert status == 200
    headers = [dict(record.headers) for record in worker.seen]
    assert {record.key for record in worker.seen} == {key}
    everywhere = list(range(TOPOLOGY.partitions))
    assert {record.partition for record in worker.seen} == {
        DefaultPartitioner()(key, everywhere, everywhere)
    }
    assert {(found[SEQUENCE_ID], found[SEQUENCE_ID_TYPE]) for found in headers} == {(key, kind)}
    assert [found.get(SEQUENCE_START) for found in headers] == [b"true", None, None]
    assert [found.get(SEQUENCE_END) for found in headers] == [None, None, b"true"]


@pytest.mark.parametrize("given", [0, "", None])
async def test_PB70_no_id_is_no_sequence(log, given):
    """0 and the empty string as well as none: a model without sequences answers, and the record has no key."""
    worker = Worker(log)
    parameters = {} if given is None else {"sequence_id": given}
    async with running(worker), serving(log) as (_, session):
        assert (await post(session, body(**parameters)))[0] == 200
    (record,) = worker.seen
    assert record.key is None
    assert SEQUENCE_ID not in dict(record.headers)


@pytest.mark.parametrize(
    ("batching", "payload", "words"),
    [
        ({}, body(), "must specify a non-zero or non-empty correlation ID"),
        ({}, body(sequence_id=0), "must specify a non-zero or non-empty correlation ID"),
        ({}, body(sequence_id=""), "must specify a non-zero or non-empty correlation ID"),
        (
            {},
            body(2, sequence_id=7),
            "must specify batch-size 1 due to requirements of sequence batcher",
        ),
        (
            {"control_input": [CORRID]},
            body(sequence_id="7"),
            "control 'CORRID' data-type is 'BYTES', but model 'echo' expects 'UINT64'",
        ),
        (
            {},
            body(sequence_id=-1),
            f"parameter 'sequence_id' is -1, expected an unsigned integer up to {MAX_UINT64}",
        ),
        (
            {},
            body(sequence_id=MAX_UINT64 + 1),
            f"parameter 'sequence_id' is {MAX_UINT64 + 1}, expected an unsigned integer up to",
        ),
        ({}, body(sequence_id=1.0), "parameter 'sequence_id' is 1.0, expected an unsigned"),
        ({}, body(sequence_id=True), "parameter 'sequence_id' is True, expected an unsigned"),
        ({}, body(sequence_id=[1]), "parameter 'sequence_id' is [1], expected an unsigned"),
        (
            {},
            body(sequence_id=1, sequence_start="yes"),
            "parameter 'sequence_start' is 'yes', expected true or false",
        ),
        (
            {},
            body(sequence_id=1, sequence_end=1),
            "parameter 'sequence_end' is 1, expected true or false",
        ),
    ],
    ids=str,
)
async def test_SQ01_SQ02_SQ14_what_cannot_be_a_step_is_refused_before_the_log(
    log, batching, payload, words
):
    worker = Worker(log, versions=sequence_model(**batching))
    async with running(worker), serving(log) as (_, session):
        status, answer = await post(session, payload)
    assert status == 400
    assert words in answer["error"]
    topic = TOPOLOGY.requests("echo")
    assert [log.records(topic, p) for p in range(TOPOLOGY.partitions)] == [[], []]


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("must specify the START flag", reason=Reason.SEQUENCE_UNKNOWN),
        InvalidRequest("was silent for 2000 ms", reason=Reason.SEQUENCE_EXPIRED),
        BackendError("the worker's memory of it is gone", reason=Reason.SEQUENCE_LOST),
    ],
    ids=lambda error: error.reason.value,
)
async def test_SQ03_a_sequence_that_is_no_more_is_a_400_with_its_text(log, error):
    """Unknown, expired and lost ask the same of a client: begin again with START."""
    worker = Worker(log, script=lambda _request, _record: error, versions=sequence_model())
    async with running(worker), serving(log) as (_, session):
        status, answer = await post(session, body(sequence_id=7))
    assert (status, answer["error"]) == (400, error.detail)


async def test_P18_steps_that_are_asked_side_by_side_enter_the_log_in_the_order_of_the_calls(log):
    """Eight calls of two sequences while the log takes nothing: then each sequence's are there in order."""
    worker = Worker(log, script=silent, versions=sequence_model())
    async with running(worker), Gateway(log, TOPOLOGY) as gateway, asyncio.TaskGroup() as calls:
        await gateway.wait_ready()
        log.hold_produce()
        asked = []
        for number in range(8):
            request = InferRequest(
                (Tensor("INPUT0", Datatype.FP32, (1, 1), bytes(4)),),
                id=str(number),
                sequence_id=7 + number % 2,
            )
            asked.append(calls.create_task(gateway.infer("echo", "", request)))
            await until(lambda n=number: gateway.open_calls == n + 1)
        log.free_produce()
        await until(lambda: len(worker.seen) == 8)
        for task in asked:
            task.cancel()
    by_key = {key: [] for key in (b"7", b"8")}
    for record in worker.seen:
        found = dict(record.headers)
        assert found[CORRELATION_ID]
        by_key[record.key].append(found[ID])
    assert by_key == {b"7": [b"0", b"2", b"4", b"6"], b"8": [b"1", b"3", b"5", b"7"]}


@pytest.mark.parametrize("sequence_id", [2_000_000_007, "camera 1"])
async def test_TC02_tritons_client_sends_a_sequence(log, sequence_id):
    pytest.importorskip("geventhttpclient", reason="needs the extra tritonclient[http]")
    client_module = pytest.importorskip("tritonclient.http")
    worker = Worker(log, versions=sequence_model())
    async with running(worker), serving(log) as (_, session):
        address = str(session._base_url).removeprefix("http://").rstrip("/")

        def work():
            found = []
            with client_module.InferenceServerClient(address) as client:
                for number in range(3):
                    tensor = client_module.InferInput("INPUT0", [1, 1], "FP32")
                    tensor.set_data_from_numpy(np.array([[number]], np.float32))
                    result = client.infer(
                        "echo",
                        [tensor],
                        sequence_id=sequence_id,
                        sequence_start=number == 0,
                        sequence_end=number == 2,
                    )
                    found.append(result.as_numpy("OUTPUT0").item())
            return found

        assert await asyncio.to_thread(work) == [0.0, 1.0, 2.0]
    headers = [dict(record.headers) for record in worker.seen]
    kind = b"uint64" if isinstance(sequence_id, int) else b"string"
    assert [
        (h[SEQUENCE_ID], h[SEQUENCE_ID_TYPE], SEQUENCE_START in h, SEQUENCE_END in h)
        for h in headers
    ] == [(str(sequence_id).encode(), kind, n == 0, n == 2) for n in range(3)]
