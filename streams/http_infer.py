"""The infer route: HTTP bytes into an infer request, the response into HTTP bytes (SEMANTICS §2.3, §2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web
from headrace.schemas.errors import InferError, InvalidRequest, Reason
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import HEADER_LENGTH
from headrace.schemas.shared_span import REGION
from headrace.schemas.signature import Signature
from headrace.schemas.v2json import Binary, parse_request, wants_binary, write_response
from headrace.streams.http_body import MIN_COMPRESSED_BYTES, chosen_encoding, compress
from headrace.streams.http_call import HttpCall
from headrace.streams.http_errors import JSON_TYPE, error_response
from headrace.streams.http_whole import WholeResponse
from headrace.streams.idempotency import KEY_HEADER, REPLAYED_HEADER, KeyedCall, read_key
from headrace.streams.model_view import Route
from headrace.streams.shared_memory import NO_TARGETS, SharedTargets
from headrace.streams.trace_settings import Trace

LENGTH_HEADER = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"

OFF_LOOP_JSON_BYTES = 1024 * 1024
"""JSON from this size on is parsed in a thread: it would hold up every other call, and in ``headrace serve`` the
worker's heartbeats, for 30 ms and more (FAULTS B2)."""

OFF_LOOP_SHOWN_BYTES = 256 * 1024
"""The same for tensors that are shown as JSON, which grow several times over."""

OFF_LOOP_COMPRESSED_BYTES = 32 * 1024
"""The same for tensors whose answer is compressed, as JSON maybe."""

OFF_LOOP_COPIED_BYTES = 8 * 1024 * 1024
"""The same for tensors that are only copied."""


async def infer(call: HttpCall) -> web.StreamResponse:
    """Answer one infer call; one that is traced is sent here too, so that its trace has the whole of it (PB-73).

    Raises:
        InferError: Of whatever kind; the caller makes an answer of it.
    """
    # Before the body is parsed (SEMANTICS PB-33); what is no model is not traced.
    route = call.gateway.route(call.target.model, call.target.version)
    trace = call.extensions.traces.start(call.target.model)
    if trace is None:
        return await answer_keyed(call, partial(_infer, route=route))
    trace.mark("HTTP_RECV_START")
    try:
        response = await answer_keyed(call, partial(_infer, route=route, trace=trace))
        trace.mark("HTTP_SEND_START")
        await response.prepare(call.request)
        await response.write_eof()
        trace.mark("HTTP_SEND_END")
    finally:
        trace.end()
    return response


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


async def _infer(
    call: HttpCall, keyed: KeyedCall | None, *, route: Route, trace: Trace | None = None
) -> web.StreamResponse:
    gateway, target = call.gateway, call.target
    deadline_ms = call.deadline_ms()
    asked = await read_request(call, route.signature)
    if trace is not None:
        trace.request_id = asked.id
        trace.mark("HTTP_RECV_END")
        trace.mark("REQUEST_START")
    version = str(int(target.version)) if target.version else ""
    extra = call.trace()
    with call.extensions.memory.targets(asked.outputs) as shared:
        response = await gateway.infer(
            target.model, version, asked, deadline_ms=deadline_ms, extra=extra, keyed=keyed
        )
        if trace is not None:
            trace.version = response.model_version
            trace.mark("REQUEST_END")
        return await write_answer(call.request, response, wants_binary(asked), shared)


async def read_request(call: HttpCall, signature: Signature) -> InferRequest:
    """Read the body of an infer call, and what it says is in shared memory.

    Args:
        call: Whose body it is.
        signature: Of its model, which the raw form needs (BN-07).

    Raises:
        InferError: Of whatever kind.
    """
    memory = call.extensions.memory
    header_length = read_header_length(call.request.headers.get(LENGTH_HEADER))
    body = await call.body()
    json_length = len(body) if header_length is None else header_length
    shared = None
    is_long = json_length >= OFF_LOOP_JSON_BYTES
    if body.find(REGION.encode(), 0, json_length) >= 0:
        shared = memory.reader(call.settings.max_input_bytes)
        is_long = is_long or memory.largest_bytes >= OFF_LOOP_COPIED_BYTES
    if is_long:
        asked = await asyncio.to_thread(parse_request, body, header_length, signature, shared)
    else:
        asked = parse_request(body, header_length, signature, shared)
    return call.accepted(asked)


async def write_answer(
    request: web.BaseRequest,
    response: InferResponse,
    is_binary: Binary,
    shared: SharedTargets = NO_TARGETS,
) -> WholeResponse:
    """Write a response as its caller wants it, and what shall go to shared memory there.

    Raises:
        InferError: An output cannot be shown as JSON (PB-45), or does not fit into its place.
    """
    encoding = answer_encoding(request.headers)
    if is_quick(response, is_binary, encoding, shared):
        return written_answer(response, is_binary, encoding, shared)
    return await asyncio.to_thread(written_answer, response, is_binary, encoding, shared)


def answer_encoding(headers: Mapping[str, str]) -> str:
    """Return the ``Content-Encoding`` that a caller prefers for its answer, ``""`` for none (BN-08)."""
    accept = headers.get("Accept-Encoding")
    return "" if accept is None else chosen_encoding(accept)


def is_quick(
    response: InferResponse, is_binary: Binary, encoding: str, shared: SharedTargets = NO_TARGETS
) -> bool:
    """Say whether writing a response takes so little time that the event loop may wait for it."""
    shown_bytes = total_bytes = 0
    for tensor in response.outputs:
        total_bytes += len(tensor.data)
        if not is_binary(tensor.name) and tensor.name not in shared.names:
            shown_bytes += len(tensor.data)
    if encoding and total_bytes >= OFF_LOOP_COMPRESSED_BYTES:
        return False
    return shown_bytes < OFF_LOOP_SHOWN_BYTES and total_bytes < OFF_LOOP_COPIED_BYTES


def written_answer(
    response: InferResponse, is_binary: Binary, encoding: str, shared: SharedTargets = NO_TARGETS
) -> WholeResponse:
    """Write a response; for its errors see `write_answer`."""
    shared.write(response)
    answer, length = write_response(response, is_binary, shared.names)
    found = {"Content-Type": JSON_TYPE}
    if length is not None:
        # The length of the JSON before compression (BN-08).
        found = {"Content-Type": BINARY_TYPE, LENGTH_HEADER: str(length)}
    if encoding and len(answer) >= MIN_COMPRESSED_BYTES:
        answer = compress(answer, encoding)
        found["Content-Encoding"] = encoding
    return WholeResponse(answer, found)


def read_header_length(raw: str | None) -> int | None:
    """Return the length of the JSON part, None where the whole body is JSON (BN-01)."""
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 18):
        raise InvalidRequest(
            f"header '{HEADER_LENGTH}' is {raw[:60]!r}, expected the JSON part's length in bytes",
            reason=Reason.INVALID_HEADER,
        )
    return int(raw)
