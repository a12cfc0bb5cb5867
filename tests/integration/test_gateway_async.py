"""Calls that are answered later, on a memory log with a worker that plays a script (FAULTS B65)."""

from __future__ import annotations

import asyncio
import struct

import pytest
from gateway_kit import (
    TOPOLOGY,
    Worker,
    echo,
    identity_config,
    reply,
    running,
    serving,
    silent,
    until,
)
from headrace.schemas import errors
from headrace.schemas.codec import decode_request
from headrace.schemas.headers import find_header
from headrace.schemas.record import (
    ACCEPT,
    AVRO,
    CORRELATION_ID,
    DEADLINE_MS,
    ID,
    IDEMPOTENCY_KEY,
    REPLY_TOPIC,
    TRACEPARENT,
)
from headrace.streams.async_table import AsyncBounds
from headrace.streams.cancels import read_cancel
from headrace.streams.gateway import GatewaySettings
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog

INFER = "/v2/models/echo/infer"
LATER = {"Prefer": "respond-async"}
TENSOR = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def worker(log):
    """A worker that leaves every request for the test to answer."""
    return Worker(log, script=silent)


async def ask(session, *, headers=LATER, **more):
    """Send an infer call; returns status, body and headers."""
    async with session.post(INFER, json={"inputs": [TENSOR], **more}, headers=headers) as response:
        return response.status, await response.json(), response.headers


async def poll(session, place, method="GET", headers=None):
    async with session.request(method, place, headers=headers) as response:
        body = await response.read()
        if response.content_type == "application/json":
            body = await response.json()
        return response.status, body, response.headers


async def accepted(session, **more):
    """Have a call accepted; returns where to ask for it."""
    status, body, headers = await ask(session, **more)
    assert status == 202, body
    return headers["Location"]


async def done(session, place):
    """Ask until there is an answer."""
    async with asyncio.timeout(10):
        while (found := await poll(session, place))[0] == 202:  # noqa: ASYNC110  # over HTTP
            await asyncio.sleep(0.001)
    return found


async def give(worker, answer=None):
    """Answer what the worker holds."""
    await until(lambda: worker.held)
    outs = []
    for record in worker.held:
        request = decode_request(record.value, AVRO, record.headers)
        named = request._replace(id=(find_header(record.headers, ID) or b"").decode())
        outs.append(reply(record, answer or echo(named, record)))
    worker.held.clear()
    async with worker.log.publisher() as publisher:
        await publisher.publish(outs)


async def test_B65_a_call_is_accepted_with_an_id_and_its_answer_is_fetched_there(log, worker):
    async with running(worker), serving(log) as (gateway, session):
        status, body, headers = await ask(session)
        assert status == 202
        assert body == {"id": body["id"], "model_name": "echo", "status": "pending"}
        place = f"/v2/requests/{body['id']}"
        expected = {
            "Location": place,
            "Preference-Applied": "respond-async",
            "Retry-After": "1",
            "X-Headrace-Request-Id": body["id"],
            "X-Headrace-Request-Status": "pending",
        }
        assert expected.items() <= dict(headers).items()
        assert gateway.open_calls == 0
        status, again, headers = await poll(session, place)
        assert (status, again) == (202, body)
        await give(worker)
        status, answer, headers = await done(session, place)
        assert (status, headers["X-Headrace-Request-Status"]) == (200, "done")
        assert answer["outputs"][0]["data"] == [1.0, 2.0]
        assert answer["id"] == body["id"]  # it had none of its own
        assert (await poll(session, place))[1] == answer  # as often as it is asked for
        assert (await poll(session, f"{place}?x=1"))[0] == 200


async def test_B65_a_failure_comes_as_the_error_that_the_call_itself_would_have_got(log, worker):
    async with running(worker), serving(log) as (_, session):
        for error, expected in (
            (errors.BackendError("the model broke"), 500),
            (errors.Unavailable("not now"), 503),
            (errors.NotFound("no such version"), 404),
        ):
            place = await accepted(session, id="mine")
            await give(worker, error)
            status, body, headers = await done(session, place)
            assert (status, body) == (expected, {"error": error.detail})
            assert headers["X-Headrace-Request-Status"] == "failed"
            assert headers["X-Headrace-Request-Id"] == place.rpartition("/")[2]
            assert "Retry-After" not in headers  # asking again finds the same


async def test_B65_any_gateway_answers_and_so_does_one_that_starts_later(log, worker):
    """Nothing of an accepted call lives in the process that took it."""
    async with running(worker):
        async with serving(log) as (_, session), serving(log) as (_, other):
            one, two = await accepted(session), await accepted(other)
            assert (await poll(other, one))[0] == (await poll(session, two))[0] == 202
            await give(worker)
            assert (await done(other, one))[0] == 200
        async with serving(log) as (gateway, session):
            assert (await poll(session, one))[0] == (await poll(session, two))[0] == 200
            assert repr(gateway.async_calls.table).startswith("AsyncTable(0 waiting, 2 answered")


async def test_B65_an_unknown_request_is_404_and_says_for_how_long_they_are_kept(log, worker):
    later = AsyncBounds(window_ms=60_000, max_calls=7)
    async with running(worker), serving(log, GatewaySettings(later=later)) as (_, session):
        for unknown in ("0" * 32, "nonsense", "a%20b"):
            status, body, headers = await poll(session, f"/v2/requests/{unknown}")
            assert status == 404
            assert "is not known: none was accepted under this id" in body["error"]
            assert "at most 7 calls, for at most 120 s" in body["error"]
            assert "X-Headrace-Request-Status" not in headers
        assert (await poll(session, "/v2/requests/"))[0] == 404
        async with session.post("/v2/requests/x") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, DELETE")


async def test_B65_a_gateway_without_such_calls_reads_and_makes_no_topic_of_theirs(log, worker):
    async with running(worker), serving(log) as (_, session):
        call = asyncio.create_task(ask(session, headers={"Prefer": "return=minimal, wait=0"}))
        await give(worker)
        status, _, headers = await call
        assert (status, "Preference-Applied" in headers) == (200, False)
        assert TOPOLOGY.async_replies not in await log.topics()


async def test_B65_who_wants_to_wait_a_little_gets_the_answer_at_once_if_it_comes(log, worker):
    """RFC 7240's ``wait``: of the call itself, and of whoever asks for its answer; nonsense is no preference."""
    async with running(worker), serving(log) as (_, session), serving(log) as (_, other):
        call = asyncio.create_task(ask(session, headers={"Prefer": 'respond-async, wait="30"'}))
        await give(worker)
        status, body, headers = await call
        assert (status, body["outputs"][0]["data"]) == (200, [1.0, 2.0])
        assert (headers["X-Headrace-Request-Status"], "Preference-Applied" in headers) == (
            "done",
            False,
        )
        assert (await poll(other, f"/v2/requests/{headers['X-Headrace-Request-Id']}"))[0] == 200
        for wait in ("wait=-1", "wait=1.5", "wait=x", "wait", "Wait = 0"):
            place = await accepted(session, headers={"Prefer": f"{wait}, Respond-Async"})
        poller = asyncio.create_task(poll(other, place, headers={"Prefer": "wait=30"}))
        await give(worker)
        assert (await poller)[0] == 200


async def test_B65_the_record_says_what_the_call_said(log, worker):
    """Deadline, key and trace travel; the answer has a place and bytes of its own."""
    headers = {
        **LATER,
        "Idempotency-Key": "k1",
        "traceparent": "00-1-2-01",
        "X-Headrace-Timeout-Ms": "5000",
    }
    async with running(worker), serving(log) as (gateway, session):
        before = gateway.now_ms()
        place = await accepted(session, headers=headers, id="mine")
        await until(lambda: worker.held)
        said = dict(worker.held[0].headers)
        assert said[CORRELATION_ID].decode() == place.rpartition("/")[2]
        assert said[REPLY_TOPIC].decode() == TOPOLOGY.async_replies
        assert (said[ID], said[IDEMPOTENCY_KEY]) == (b"mine", b"k1")
        assert said[TRACEPARENT] == b"00-1-2-01"
        assert 5_000 <= int(said[DEADLINE_MS]) - before < 15_000
        assert ACCEPT not in said


async def test_B65_outputs_are_shown_as_the_call_asked(log, worker):
    """In binary, also by another gateway."""
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    async with running(worker), serving(log) as (_, session), serving(log) as (_, other):
        places = [
            await accepted(session, outputs=outputs),
            await accepted(session, parameters={"binary_data_output": True}),
        ]
        await give(worker)
        for place in places:
            status, body, headers = await done(other, place)
            assert status == 200
            length = int(headers["Inference-Header-Content-Length"])
            assert body[length:] == struct.pack("<2f", 1, 2)


async def test_B65_an_answer_goes_to_the_topic_that_the_caller_names(log, worker):
    """As JSON where the request was, and nobody fetches it."""
    await log.ensure([TopicSpec("t.mine", 3)])
    named = {**LATER, "X-Headrace-Reply-Topic": "t.mine"}
    async with running(worker), serving(log) as (_, session):
        status, body, headers = await ask(session, headers=named)
        assert (status, "Location" in headers) == (202, False)
        await until(lambda: worker.held)
        said = dict(worker.held[0].headers)
        assert said[REPLY_TOPIC] == b"t.mine"
        assert said[ACCEPT] == b"application/json"
        assert said[CORRELATION_ID].decode() == said[ID].decode() == body["id"]
        assert (await poll(session, f"/v2/requests/{body['id']}"))[0] == 404


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({**LATER, "X-Headrace-Reply-Topic": "theirs"}, 400, "'theirs' is not allowed"),
        ({**LATER, "X-Headrace-Reply-Topic": "t.status"}, 400, "'t.status' is not allowed"),
        ({**LATER, "X-Headrace-Reply-Topic": "t.none"}, 400, "'t.none' does not exist"),
        ({**LATER, "X-Headrace-Reply-Topic": "http://a/b"}, 400, "is not allowed"),
        ({"X-Headrace-Reply-Topic": "t.mine"}, 400, "has no effect on a call that waits"),
        ({**LATER, "X-Headrace-Timeout-Ms": "3700000"}, 400, "--async-window-secs"),
        ({**LATER, "X-Headrace-Timeout-Ms": "x"}, 400, "X-Headrace-Timeout-Ms"),
        ({**LATER, "Idempotency-Key": "a b"}, 400, "Idempotency-Key"),
    ],
)
async def test_B53_B65_what_is_wrong_is_said_at_once_and_enters_no_topic(
    log, worker, headers, status, text
):
    async with running(worker), serving(log) as (_, session):
        got, body, _ = await ask(session, headers=headers)
        assert (got, text in body["error"]) == (status, True), body
        assert worker.seen == []


async def test_B53_B65_a_wrong_request_is_refused_as_ever(log):
    versions = {1: identity_config(model_transaction_policy={"decoupled": True})}
    worker = Worker(log, versions=versions)
    async with running(worker), serving(log) as (_, session):
        assert (await ask(session))[0] == 501
        assert (await ask(session, inputs=[]))[0] in (400, 501)
        async with session.post("/v2/models/none/infer", json={}, headers=LATER) as response:
            assert response.status == 404
        assert worker.seen == []


async def test_B65_nothing_is_accepted_that_the_log_has_not(log, worker):
    async with running(worker), serving(log) as (gateway, session):
        await accepted(session)
        await until(lambda: worker.held)
        log.fail_produce()
        status, body, headers = await ask(session)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "could not be produced" in body["error"]
        assert (len(gateway.async_calls.table), len(worker.seen)) == (1, 1)


async def test_B65_calls_that_wait_are_bounded_and_answers_make_room(log, worker):
    later = AsyncBounds(max_calls=2)
    async with running(worker), serving(log, GatewaySettings(later=later)) as (gateway, session):
        places = [await accepted(session) for _ in range(2)]
        status, body, headers = await ask(session)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "--max-async-calls" in body["error"]
        assert gateway.refused[errors.Reason.NOT_READY] == 1
        await give(worker)
        for place in places:
            assert (await done(session, place))[0] == 200
        more = await accepted(session)
        assert (await poll(session, more))[0] == 202
        # Whichever answer came first is forgotten.
        assert sorted([(await poll(session, place))[0] for place in places]) == [200, 404]


async def test_B65_an_answer_that_is_not_kept_any_more_is_410(log, worker):
    later = AsyncBounds(max_bytes=10)
    async with running(worker), serving(log, GatewaySettings(later=later)) as (_, session):
        place = await accepted(session)
        await give(worker)
        status, body, headers = await done(session, place)
        assert (status, headers["X-Headrace-Request-Status"]) == (410, "failed")
        assert "--max-async-bytes" in body["error"]


async def test_B63_B65_without_an_answer_a_passed_deadline_is_504(log, worker):
    async with running(worker), serving(log) as (_, session):
        place = await accepted(session, headers={**LATER, "X-Headrace-Timeout-Ms": "20"})
        status, body, headers = await done(session, place)
        assert (status, headers["X-Headrace-Request-Status"]) == (504, "failed")
        assert "deadline" in body["error"]


async def test_CX01_B65_a_call_that_waits_is_cancelled_by_any_gateway(log, worker):
    """As a closed connection cancels one that is waited for; its answer then says so."""
    async with running(worker), serving(log) as (_, session), serving(log) as (_, other):
        place = await accepted(session)
        await until(lambda: worker.held)
        assert (await poll(other, place, "DELETE"))[0] == 202
        await until(lambda: log.records(TOPOLOGY.cancels, 0))
        (record,) = log.records(TOPOLOGY.cancels, 0)
        cancel = read_cancel(record)
        assert (cancel.model, cancel.correlation_id) == (
            "echo",
            dict(worker.held[0].headers)[CORRELATION_ID],
        )
        await give(worker, errors.Cancelled("cancelled"))
        assert (await done(other, place))[0] == 400
        assert (await poll(other, place, "DELETE"))[0] == 400
        assert len(log.records(TOPOLOGY.cancels, 0)) == 1


async def test_B58_B65_a_topic_that_cannot_be_made_is_named_and_ends_no_gateway(log, worker):
    """Whoever waits is served all the same, and once it can be made, calls are accepted."""
    async with running(worker), serving(log) as (_, session):
        log.refuse_creation()
        status, body, headers = await ask(session)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert TOPOLOGY.async_replies in body["error"]
        call = asyncio.create_task(ask(session, headers={}))
        await give(worker)
        assert (await call)[0] == 200
        log.refuse_creation("")
        async with asyncio.timeout(10):
            while (await ask(session))[0] != 202:  # noqa: ASYNC110  # over HTTP
                await asyncio.sleep(0.01)
