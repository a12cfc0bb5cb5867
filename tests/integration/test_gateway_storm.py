"""Storms of timeouts, cancels, errors and late replies: every call ends once and nothing of it stays (B63, B64)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from gateway_kit import TOPOLOGY, Worker, echo, publish, reply, running, serving, until
from headrace.schemas.errors import BackendError, DeadlineExceeded, InferError, QueueFull
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import ID
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.cancels import read_cancel
from headrace.streams.gateway import GatewaySettings
from headrace.streams.memory import MemoryLog

CALLS = 300
TENSOR = Tensor("INPUT0", Datatype.FP32, (1, 1), b"\0\0\0\0")
LATE_MS, SOON_MS = 60_000, 250
"""A deadline that nobody reaches, and one that passes while the reply is held back."""

WORDS = ("answered", "refused", "held", "cancelled")
"""What becomes of a call, as its id says: the worker reads it there."""


def play(request, record):
    """Answer, refuse, or hold back what the caller will not wait for."""
    word = request.id.partition(" ")[0]
    if word == "answered":
        return echo(request, record)
    return QueueFull("no room") if word == "refused" else None


async def ask(gateway, word: str, number: int) -> str:
    """Ask once; returns how it ended."""
    request = InferRequest((TENSOR,), id=f"{word} {number}")
    wait_ms = SOON_MS if word == "held" else LATE_MS
    try:
        answer = await gateway.infer("echo", "", request, deadline_ms=gateway.now_ms() + wait_ms)
    except DeadlineExceeded:
        return "held"
    except InferError as error:
        return "refused" if isinstance(error, QueueFull) else repr(error)
    assert answer.id == request.id
    return "answered"


@pytest.mark.parametrize("seed", range(2))
async def test_B63_B64_after_a_storm_nothing_of_any_call_is_left(seed):
    """Each is produced once and ends as it must; what comes later is counted, and dropped."""
    rng = random.Random(seed)
    asked = [rng.choice(WORDS) for _ in range(CALLS)]
    log, count = MemoryLog(), Counter(asked)
    worker = Worker(log, script=play)
    async with (
        running(worker),
        serving(log, GatewaySettings(max_pending=CALLS)) as (gateway, _),
    ):
        calls = [asyncio.create_task(ask(gateway, word, n)) for n, word in enumerate(asked)]
        await until(lambda: len(worker.seen) == CALLS)
        for word, call in zip(asked, calls, strict=True):
            if word == "cancelled":
                call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        how = ["cancelled" if isinstance(e, asyncio.CancelledError) else e for e in ended]
        assert how == asked
        assert (gateway.open_calls, gateway.abandoned) == (0, count["cancelled"])
        assert gateway.late_replies == 0
        held = list(worker.held)
        assert len(held) == count["held"] + count["cancelled"]
        async with log.publisher() as publisher:
            answers = [reply(record, BackendError("too late")) for record in held]
            rng.shuffle(answers)
            await publish(publisher, answers)
        await until(lambda: gateway.late_replies == len(held))
        await until(lambda: len(log.records(TOPOLOGY.cancels, 0)) == count["cancelled"])
        cancels = [read_cancel(record) for record in log.records(TOPOLOGY.cancels, 0)]
        assert len({cancel.correlation_id for cancel in cancels}) == count["cancelled"]
        assert len({dict(record.headers)[ID] for record in worker.seen}) == CALLS
        assert len(worker.seen) == CALLS
        assert await ask(gateway, "answered", CALLS) == "answered"
        assert repr(gateway).startswith(f"Gateway({gateway.gateway_id}, Pending(0 open")


async def test_B64_PB49_connections_that_close_at_any_moment_leave_no_call_open():
    """Over HTTP, with half a request sent, with a whole one, and while the answer is on its way."""
    rng = random.Random(7)
    log = MemoryLog()
    worker = Worker(log, script=play)
    payload = {
        "inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [0]}],
        "parameters": {},
    }
    async with running(worker), serving(log) as (gateway, session):

        async def once(word: str, number: int) -> None:
            async with session.post(
                "/v2/models/echo/infer", json={**payload, "id": f"{word} {number}"}
            ) as response:
                await response.read()

        for number in range(150):
            call = asyncio.create_task(once(rng.choice(("answered", "held")), number))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
        await until(lambda: gateway.open_calls == 0)
        assert gateway.abandoned >= 1
        await until(lambda: len(log.records(TOPOLOGY.cancels, 0)) == gateway.abandoned)
        await once("answered", 1_000)
