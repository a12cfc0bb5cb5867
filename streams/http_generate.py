"""The generate routes: flat JSON for one answer, or a stream of events (SEMANTICS §2.9).

The first response fixes the status of a stream; an error behind it is an event (GN-05). A connection that closes, or
whose client takes nothing in for too long, cancels the call (GN-06).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from aiohttp import web
from headrace.schemas.errors import BackendError, InferError, InvalidRequest
from headrace.schemas.generate import parse_generate, write_generate
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.v2json import write_error
from headrace.streams.http_call import Handler, HttpCall
from headrace.streams.http_errors import JSON_TYPE
from headrace.streams.http_infer import OFF_LOOP_JSON_BYTES, OFF_LOOP_SHOWN_BYTES, answer_keyed
from headrace.streams.http_routes import Kind
from headrace.streams.idempotency import REPLAYED_HEADER, KeyedCall
from headrace.streams.streamed import Streamed

logger = logging.getLogger(__name__)

EVENTS_TYPE = "text/event-stream; charset=utf-8"


async def generate(call: HttpCall) -> web.StreamResponse:
    """Answer with the one response that the model gives (GN-04).

    Raises:
        InferError: Of whatever kind; `BackendError` where the model gave none, or more than one.
    """
    return await answer_keyed(call, _generate)


async def generate_stream(call: HttpCall) -> web.StreamResponse:
    """Answer with an event for each response, as they come (GN-05).

    Raises:
        InferError: The first response was this error; the caller makes a plain answer of it.
    """
    return await answer_keyed(call, _generate_stream)


async def _generate(call: HttpCall, keyed: KeyedCall | None) -> web.Response:
    asked = await _asked(call)
    only: InferResponse | None = None
    count = 0
    with call.extensions.traces.request(call.target.model, asked.id) as trace:
        async with aclosing(_stream(call, asked, keyed)) as responses:
            async for streamed in responses:
                only, count = streamed.response, count + 1
                trace.version = only.model_version
                if count > 1:
                    break
    if only is None or count > 1:
        raise BackendError(
            "generate expects model to produce exactly 1 response, use generate stream for model that generates "
            "various number of responses"
        )
    return web.Response(body=await _written(only), headers={"Content-Type": JSON_TYPE})


async def _generate_stream(call: HttpCall, keyed: KeyedCall | None) -> web.StreamResponse:
    asked = await _asked(call)
    with call.extensions.traces.request(call.target.model, asked.id) as trace:
        async with aclosing(_stream(call, asked, keyed)) as responses:
            first = await anext(responses, None)
            if first is not None:
                trace.version = first.response.model_version
            event = b"" if first is None else _event(await _written(first.response))
            answer = web.StreamResponse(headers={"Content-Type": EVENTS_TYPE})
            if keyed is not None and keyed.is_replayed:
                answer.headers[REPLAYED_HEADER] = "true"
            await answer.prepare(call.request)
            try:
                await _send(call, answer, event)
                await _send_all(call, answer, responses)
                await answer.write_eof()
            except (ConnectionError, TimeoutError):
                _abort(call)  # nobody takes it in
            except Exception:  # the head is out, so nobody else can answer any more
                logger.exception("%s failed", call.request.raw_path)
                _abort(call)
    return answer


async def _send_all(
    call: HttpCall, answer: web.StreamResponse, responses: AsyncIterator[Streamed]
) -> None:
    try:
        async for streamed in responses:
            await _send(call, answer, _event(await _written(streamed.response)))
    except InferError as error:
        await _send(call, answer, _event(write_error("", error)))


async def _send(call: HttpCall, answer: web.StreamResponse, event: bytes) -> None:
    """Write an event.

    Raises:
        TimeoutError: The client takes nothing in.
    """
    if event:
        async with asyncio.timeout(call.settings.write_timeout_s):
            await answer.write(event)


def _abort(call: HttpCall) -> None:
    """Close the connection, so that nobody takes what was sent for all."""
    if call.request.transport is not None:
        call.request.transport.abort()


async def _asked(call: HttpCall) -> InferRequest:
    """Read the call's request.

    Raises:
        InferError: Of whatever kind; the model is looked up before the body is parsed (PB-33).
    """
    gateway, request, target = call.gateway, call.request, call.target
    route = gateway.route(target.model, target.version)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise InvalidRequest(
            f"Unsupported content encoding: {encoding[:60]!r}, expected a generate request that is not compressed"
        )
    body = await call.body()
    if len(body) < OFF_LOOP_JSON_BYTES:
        return call.accepted(parse_generate(body, route.signature))
    return call.accepted(await asyncio.to_thread(parse_generate, body, route.signature))


def _stream(
    call: HttpCall, asked: InferRequest, keyed: KeyedCall | None
) -> AsyncGenerator[Streamed, None]:
    target = call.target
    version = str(int(target.version)) if target.version else ""
    return call.gateway.stream(
        target.model,
        version,
        asked,
        deadline_ms=call.deadline_ms(),
        extra=call.trace(),
        keyed=keyed,
    )


async def _written(response: InferResponse) -> bytes:
    if sum(len(tensor.data) for tensor in response.outputs) < OFF_LOOP_SHOWN_BYTES:
        return write_generate(response)
    return await asyncio.to_thread(write_generate, response)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


HANDLERS: Mapping[Kind, Handler] = {
    Kind.GENERATE: generate,
    Kind.GENERATE_STREAM: generate_stream,
}
"""By route."""
