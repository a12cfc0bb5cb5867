"""The infer route: HTTP bytes into an infer request, the response into HTTP bytes (SEMANTICS §2.3, §2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from headrace.schemas.errors import InferError, InvalidRequest, Reason
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import HEADER_LENGTH
from headrace.schemas.v2json import Binary, parse_request, wants_binary, write_response
from headrace.streams.http_body import compressed_response
from headrace.streams.http_call import HttpCall
from headrace.streams.http_errors import JSON_TYPE, error_response
from headrace.streams.idempotency import KEY_HEADER, REPLAYED_HEADER, KeyedCall, read_key

LENGTH_HEADER = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"

OFF_LOOP_JSON_BYTES = 1024 * 1024
"""JSON from this size on is parsed in a thread: it would hold up every other call, and in ``headrace serve`` the
worker's heartbeats, for 30 ms and more (FAULTS B2)."""

OFF_LOOP_SHOWN_BYTES = 256 * 1024
"""The same for tensors that are shown as JSON, which grow several times over."""

OFF_LOOP_COPIED_BYTES = 8 * 1024 * 1024
"""The same for tensors that are only copied."""


async def infer(call: HttpCall) -> web.StreamResponse:
    """Answer one infer call.

    Raises:
        InferError: Of whatever kind; the caller makes an answer of it.
    """
    return await answer_keyed(call, _infer)


async def answer_keyed(
    call: HttpCall, answer: Callable[[HttpCall, KeyedCall | None], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a call; one that repeats another, by its key, is told so (DELIVERY P-17).

    Raises:
        InferError: Of whatever kind.
    """
    keyed = read_key(call.request.headers.get(KEY_HEADER))
    if keyed is None:
        return await answer(call, None)
    try:
        response = await answer(call, keyed)
    except InferError as error:
        if not keyed.is_replayed:
            raise
        response = error_response(error)
    if keyed.is_replayed and not response.prepared:
        response.headers[REPLAYED_HEADER] = "true"
    return response


async def _infer(call: HttpCall, keyed: KeyedCall | None) -> web.Response:
    gateway, request, target, _ = call
    deadline_ms = call.deadline_ms()
    asked = await read_request(call)
    version = str(int(target.version)) if target.version else ""
    response = await gateway.infer(
        target.model, version, asked, deadline_ms=deadline_ms, extra=call.trace(), keyed=keyed
    )
    return await write_answer(request, response, wants_binary(asked))


async def read_request(call: HttpCall) -> InferRequest:
    """Read the request of an infer call.

    Raises:
        InferError: Of whatever kind.
    """
    gateway, request, target, _ = call
    # Before the body is parsed (SEMANTICS PB-33), and the raw form needs the signature (BN-07).
    route = gateway.route(target.model, target.version)
    header_length = _header_length(request.headers.get(LENGTH_HEADER))
    body = await call.body()
    if (len(body) if header_length is None else header_length) < OFF_LOOP_JSON_BYTES:
        asked = parse_request(body, header_length, route.signature)
    else:
        asked = await asyncio.to_thread(parse_request, body, header_length, route.signature)
    return call.forwarded(asked)


async def write_answer(
    request: web.BaseRequest, response: InferResponse, is_binary: Binary
) -> web.Response:
    """Write a response as its caller wants it.

    Raises:
        InvalidRequest: An output cannot be shown as JSON (PB-45).
    """
    shown_bytes = total_bytes = 0
    for tensor in response.outputs:
        total_bytes += len(tensor.data)
        shown_bytes += 0 if is_binary(tensor.name) else len(tensor.data)
    if shown_bytes < OFF_LOOP_SHOWN_BYTES and total_bytes < OFF_LOOP_COPIED_BYTES:
        answer, length = write_response(response, is_binary)
    else:
        answer, length = await asyncio.to_thread(write_response, response, is_binary)
    answer, encoding = await compressed_response(request, answer)
    found = {"Content-Type": JSON_TYPE}
    if length is not None:
        # The length of the JSON before compression (BN-08).
        found = {"Content-Type": BINARY_TYPE, LENGTH_HEADER: str(length)}
    if encoding:
        found["Content-Encoding"] = encoding
    return web.Response(body=answer, headers=found)


def _header_length(raw: str | None) -> int | None:
    """Return the length of the JSON part, None where the whole body is JSON (BN-01)."""
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 18):
        raise InvalidRequest(
            f"header '{HEADER_LENGTH}' is {raw[:60]!r}, expected the JSON part's length in bytes",
            reason=Reason.INVALID_HEADER,
        )
    return int(raw)
