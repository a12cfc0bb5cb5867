"""A gateway's calls that are answered later: accepted, and their answers read (FAULTS B65)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.schemas.errors import (
    DeadlineExceeded,
    InferError,
    InvalidRequest,
    LogError,
    NotFound,
    Reason,
)
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import Header
from headrace.streams.async_table import AsyncCall, new_id
from headrace.streams.call_records import not_produced, time_left
from headrace.streams.gateway import Gateway
from headrace.streams.idempotency import KeyedCall


@dataclass(frozen=True, slots=True)
class Later:
    """What a caller wants who does not wait.

    Attributes:
        deadline_ms: Milliseconds since the epoch until which the call may wait; 0 is as long as the gateway allows.
        reply_topic: Topic for the answer; ``""`` keeps it to be fetched.
        accept: Content type of an answer on that topic.
        binary: See `AsyncCall`.
        extra: Further record headers, such as the trace context.
        keyed: Its idempotency key; None where a repeat shall run again.
    """

    deadline_ms: int = 0
    reply_topic: str = ""
    accept: str = ""
    binary: dict[str, bool] = field(default_factory=dict)
    extra: tuple[Header, ...] = ()
    keyed: KeyedCall | None = None


async def accept(
    gateway: Gateway, model: str, version: str, request: InferRequest, later: Later
) -> AsyncCall:
    """Take a call that is answered later; returns once the log has it.

    A request without an id of its own gets the call's, so that its answer can be told wherever it comes.

    Raises:
        InferError: Nothing was accepted, or the log did not say that it was.
    """
    calls = gateway.async_calls
    route = gateway.route(model, version)
    now_ms, latest_ms = gateway.now_ms(), calls.bounds.window_ms
    left_ms = latest_ms
    await calls.listen()
    try:
        if later.deadline_ms:
            left_ms = time_left(model, later.deadline_ms, now_ms)
        if left_ms > latest_ms:
            raise InvalidRequest(  # counted with the others
                f"the call may wait for {left_ms} ms, expected at most {latest_ms} where it is answered later "
                "(--async-window-secs)",
                reason=Reason.INVALID_HEADER,
            )
        if later.reply_topic:
            await calls.check_reply_topic(later.reply_topic)
        else:
            calls.check_room()
        calls.calls.admit(route, request, many=False)
    except InferError as error:
        gateway.refused[error.reason] += 1
        raise
    call = AsyncCall(new_id(), model, now_ms, now_ms + left_ms, later.binary)
    place = calls.place(call.id)
    options = RequestOptions(
        accept=later.accept,
        deadline_ms=call.deadline_ms,
        reply_topic=later.reply_topic or place.topic,
        reply_partition=-1 if later.reply_topic else place.partition,
        correlation_id=call.id.encode(),
        idempotency_key=b"" if later.keyed is None else later.keyed.key,
        extra=later.extra,
    )
    asked = request if request.id else request._replace(id=call.id)
    deadline_s = asyncio.get_running_loop().time() + left_ms / 1_000
    out = await calls.calls.written(route, version, asked, options, deadline_s)
    try:
        if later.reply_topic:
            await calls.calls.deliver(out)
        else:
            call = await calls.accept(call, out)
    except LogError as error:
        raise not_produced(model, error) from error
    return call


async def answer(gateway: Gateway, call: AsyncCall) -> InferResponse | None:
    """Return the answer to a call, None where there is none yet.

    Raises:
        InferError: The call failed, its answer is not kept any more, or none came until its deadline.
    """
    if call.reply is not None:
        return await gateway.async_calls.calls.response_of(call.reply)
    if call.is_gone:
        raise NotFound(
            f"the answer to request '{call.id}' came and is not kept any more, expected all answers to have at most "
            f"{gateway.async_calls.bounds.max_bytes} bytes (--max-async-bytes)",
            reason=Reason.ANSWER_GONE,
        )
    if gateway.now_ms() > call.deadline_ms:
        raise DeadlineExceeded(
            f"the deadline of request '{call.id}' passed before an answer came",
            reason=Reason.DEADLINE_PASSED,
        )
    return None
