"""Calls that stream: a gateway on a memory log, and a worker whose replies the test writes one by one."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from gateway_kit import (
    TOPOLOGY,
    Worker,
    identity_config,
    reply,
    running,
    silent,
    until,
)
from headrace.schemas.errors import (
    BackendError,
    DeadlineExceeded,
    Reason,
    Unavailable,
    Unsupported,
)
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import CORRELATION_ID
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.memory import MemoryLog
from headrace.streams.streamed import RESPONSE_BYTES

X = Tensor("INPUT0", Datatype.FP32, (1, 1), bytes(4))
DECOUPLED = {1: identity_config(model_transaction_policy={"decoupled": True})}


@pytest.fixture
def log():
    return MemoryLog()


def numbered(number: int) -> InferResponse:
    """Return a response that says which it is."""
    data = number.to_bytes(4, "little")
    return InferResponse((Tensor("OUTPUT0", Datatype.UINT32, (1, 1), data),), "", "echo", "1")


EMPTY = InferResponse((), "", "echo", "1")


@asynccontextmanager
async def serving_streams(log, settings: GatewaySettings | None = None, **worker):
    """Run a gateway, and a worker that answers nothing by itself."""
    fake = Worker(log, script=silent, versions=DECOUPLED, **worker)
    async with (
        running(fake),
        Gateway(log, TOPOLOGY, settings or GatewaySettings()) as gateway,
        asyncio.timeout(30),
    ):
        await gateway.wait_ready()
        yield gateway, fake


async def asked(fake: Worker, number: int = 0):
    """Return a request when it has come."""
    await until(lambda: len(fake.held) > number)
    return fake.held[number]


async def read(responses) -> list[tuple[int | None, bool]]:
    """Return the number of each response, None for one without outputs, and whether it is final."""
    found = []
    async with aclosing(responses):
        async for response, final in responses:
            outputs = response.outputs
            found.append((int.from_bytes(outputs[0].data, "little") if outputs else None, final))
    return found


def cancels(log) -> list[bytes]:
    """Return the correlation ids of all cancel records."""
    return [dict(r.headers)[CORRELATION_ID] for r in log.records(TOPOLOGY.cancels, 0)]


async def test_DC01_responses_stream_in_order_as_they_come(log):
    """Each is handed on while the next is still to come; the table of pending calls ends empty (B63)."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,), id="mine"))
        first = asyncio.create_task(anext(responses))
        record = await asked(fake)
        log.append([reply(record, numbered(0), (0, False))])
        response, final = await first
        assert (response.id, final, gateway.open_calls) == ("mine", False, 1)
        log.append([reply(record, numbered(n), (n, n == 3)) for n in (2, 1, 1, 3)])
        assert await read(responses) == [(1, False), (2, False), (3, True)]
        assert (gateway.open_calls, gateway.repeated_responses, gateway.waiting_bytes) == (0, 1, 0)
        log.append([reply(record, numbered(4), (4, True))])
        await until(lambda: gateway.late_replies == 1)
        assert cancels(log) == []


@pytest.mark.parametrize("empty_final", [False, True])
async def test_GR03_an_empty_final_response_is_only_for_those_who_ask(log, empty_final):
    """DC-02: without any response the stream is empty, unless its end is asked for."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,)), empty_final=empty_final)
        reading = asyncio.create_task(read(responses))
        log.append([reply(await asked(fake), EMPTY, (0, True))])
        assert await reading == ([(None, True)] if empty_final else [])
        assert gateway.open_calls == 0


async def test_GN06_a_model_that_is_not_decoupled_streams_its_one_answer(log):
    """Its answer carries no number; it is the final one."""
    async with serving_streams(log) as (gateway, fake):
        fake.versions = {1: identity_config()}
        await fake.announce()
        await until(lambda: not gateway.route("echo", "").config.decoupled)
        reading = asyncio.create_task(read(gateway.stream("echo", "", InferRequest((X,)))))
        log.append([reply(await asked(fake), numbered(7))])
        assert await reading == [(7, True)]


async def test_GR04_one_answer_of_a_decoupled_model_is_unsupported(log):
    """DC-01: nothing is produced for it."""
    async with serving_streams(log) as (gateway, fake):
        with pytest.raises(Unsupported, match="decoupled transaction policy"):
            await gateway.infer("echo", "", InferRequest((X,)))
        assert (fake.seen, gateway.open_calls) == ([], 0)
        assert gateway.refused[Reason.UNSUPPORTED] == 1


async def test_GN05_an_error_ends_the_stream_behind_its_responses(log):
    """The worker has ended it, so nothing is cancelled."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,)))
        first = asyncio.create_task(anext(responses))
        record = await asked(fake)
        log.append(
            [reply(record, numbered(0), (0, False)), reply(record, BackendError("it raised"))]
        )
        assert (await first).final is False
        with pytest.raises(BackendError, match="it raised"):
            await anext(responses)
        assert gateway.open_calls == 0
        assert cancels(log) == []


async def test_B63_a_stream_has_one_deadline_and_what_comes_later_is_counted(log):
    """FAULTS B63, B64: 504 between two responses; the table is empty, late responses are dropped."""
    async with serving_streams(log) as (gateway, fake):
        deadline_ms = gateway.now_ms() + 200
        responses = gateway.stream("echo", "", InferRequest((X,)), deadline_ms=deadline_ms)
        first = asyncio.create_task(anext(responses))
        record = await asked(fake)
        log.append([reply(record, numbered(0), (0, False))])
        await first
        with pytest.raises(DeadlineExceeded) as caught:
            await anext(responses)
        assert caught.value.reason is Reason.DEADLINE_PASSED
        assert gateway.open_calls == 0
        log.append([reply(record, numbered(1), (1, True))])
        await until(lambda: gateway.late_replies == 1)


@pytest.mark.parametrize("how", ["closed", "task", "before"])
async def test_GR05_who_stops_reading_leaves_a_cancel_record(log, how):
    """PB-49, CX-01: by closing the iterator, or with its task, also before any response."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,)))
        first = asyncio.create_task(anext(responses))
        record = await asked(fake)
        if how != "before":
            log.append([reply(record, numbered(0), (0, False))])
            await first
        if how == "closed":
            await responses.aclose()
        else:
            reading = first if how == "before" else asyncio.create_task(anext(responses))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert (gateway.open_calls, gateway.abandoned) == (0, 1)
        await until(lambda: cancels(log))
        assert cancels(log) == [dict(record.headers)[CORRELATION_ID]]


async def test_who_has_the_final_response_and_closes_cancels_nothing(log):
    """A reader may stop at the final response without waiting for the iterator's own end."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,)))
        first = asyncio.create_task(anext(responses))
        log.append([reply(await asked(fake), numbered(0), (0, True))])
        assert (await first).final
        await responses.aclose()
        assert (gateway.open_calls, gateway.abandoned) == (0, 0)


async def test_a_slow_reader_loses_its_stream_only(log):
    """``max_stream_bytes``: what fitted comes, then 503, and the request is cancelled; others go on."""
    settings = GatewaySettings(max_stream_bytes=4 * RESPONSE_BYTES)
    async with serving_streams(log, settings) as (gateway, fake):
        slow = gateway.stream("echo", "", InferRequest((X,)))
        first = asyncio.create_task(anext(slow))
        record = await asked(fake)
        log.append([reply(record, numbered(0), (0, False))])
        await first
        log.append([reply(record, numbered(n), (n, False)) for n in range(1, 9)])
        quick = asyncio.create_task(read(gateway.stream("echo", "", InferRequest((X,)))))
        log.append([reply(await asked(fake, 1), numbered(5), (0, True))])
        assert await quick == [(5, True)]
        for number in range(1, 4):
            assert (await anext(slow)).response.outputs == numbered(number).outputs
        with pytest.raises(Unavailable, match="max_stream_bytes") as caught:
            await anext(slow)
        assert caught.value.reason is Reason.SLOW_READER
        assert (gateway.waiting_bytes, gateway.open_calls, gateway.abandoned) == (0, 0, 1)


async def test_B68_a_drain_waits_for_streams_and_then_ends_them(log):
    """New ones are refused; one that is open gets 503 when the time is over, behind what it got."""
    async with serving_streams(log) as (gateway, fake):
        responses = gateway.stream("echo", "", InferRequest((X,)))
        first = asyncio.create_task(anext(responses))
        record = await asked(fake)
        log.append([reply(record, numbered(0), (0, False))])
        await first
        assert not await gateway.drain(0.05)
        with pytest.raises(Unavailable, match="stopping"):
            await anext(gateway.stream("echo", "", InferRequest((X,))))
        gateway.end_calls()
        with pytest.raises(Unavailable, match="stopping"):
            await anext(responses)
        assert gateway.open_calls == 0


async def test_a_thousand_open_streams_at_once_hold(log):
    """Each gets its own responses, and the table ends empty."""
    async with serving_streams(log) as (gateway, fake):
        readings = [
            asyncio.create_task(read(gateway.stream("echo", "", InferRequest((X,), id=str(n)))))
            for n in range(1_000)
        ]
        await until(lambda: len(fake.held) == 1_000)
        assert gateway.open_calls == 1_000
        for turn in range(3):
            log.append([reply(r, numbered(turn), (turn, turn == 2)) for r in fake.held])
        expected = [(0, False), (1, False), (2, True)]
        assert all(found == expected for found in await asyncio.gather(*readings))
        assert gateway.open_calls == 0
