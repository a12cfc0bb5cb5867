"""Calls over HTTP that are answered later: ``Prefer: respond-async``, and where to ask for the answer (FAULTS B65).

``POST …/infer`` with that header is answered 202 once the log has the request, with an id. Its answer is fetched by
``GET /v2/requests/{id}`` from any gateway: 202 while there is none, then what the call itself would have been answered,
as often as it is asked for. ``DELETE`` there cancels. All wait first where ``Prefer: wait=<seconds>`` says so. With
``X-Headrace-Reply-Topic`` the answer goes to that topic instead, and nobody fetches it. Nothing is ever sent to a URL
that a caller names.

Source: RFC 7240 §4.1 (respond-async), §4.3 (wait), §3 (Preference-Applied).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from aiohttp import web
from headrace.schemas.errors import InferError, InvalidRequest, Reason
from headrace.schemas.headers import find_header
from headrace.schemas.infer import InferRequest
from headrace.schemas.parameters import refuse_shared_memory
from headrace.schemas.record import BINARY, JSON, REPLAYED
from headrace.streams import http_infer
from headrace.streams.async_table import AsyncCall
from headrace.streams.gateway_async import Later, accept, answer
from headrace.streams.http_call import Handler, HttpCall
from headrace.streams.http_errors import RETRY_AFTER_S, error_response, json_response
from headrace.streams.http_routes import Kind
from headrace.streams.idempotency import KEY_HEADER, REPLAYED_HEADER, read_key

PREFER = "Prefer"
APPLIED = "Preference-Applied"
ASYNC = "respond-async"
REPLY_TOPIC_HEADER = "X-Headrace-Reply-Topic"
ID_HEADER = "X-Headrace-Request-Id"
STATUS_HEADER = "X-Headrace-Request-Status"
"""``pending``, ``done`` or ``failed``: so that a call's own error is told from one of asking for it."""

PLACE = "/v2/requests/"

MAX_WAIT_S = 60
"""Longest that a caller is kept waiting, seconds; whoever wants longer asks again."""


def infer(call: HttpCall) -> Awaitable[web.StreamResponse]:
    """Answer an infer call now, or accept it to be answered later."""
    headers = call.request.headers
    if PREFER in headers and ASYNC in (preferred := preferences(headers.getall(PREFER))):
        return _accept(call, wait_s(preferred))
    if REPLY_TOPIC_HEADER in headers:
        raise InvalidRequest(
            f"header '{REPLY_TOPIC_HEADER}' has no effect on a call that waits, expected it with "
            f"'{PREFER}: {ASYNC}'",
            reason=Reason.INVALID_HEADER,
        )
    return http_infer.infer(call)


def preferences(values: Iterable[str]) -> Mapping[str, str]:
    """Return what ``Prefer`` headers say: name, in lower case → value, ``""`` without one; of several the first."""
    found: dict[str, str] = {}
    for item in (item for value in values for item in value.split(",")):
        name, _, value = item.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def wait_s(preferred: Mapping[str, str]) -> int:
    """Return for how many seconds a caller wants to wait; what makes no sense is no preference (RFC 7240 §2)."""
    raw = preferred.get("wait", "")
    return min(int(raw), MAX_WAIT_S) if raw.isascii() and raw.isdigit() and len(raw) < 9 else 0


async def _accept(call: HttpCall, wait: int) -> web.StreamResponse:
    gateway, target, headers = call.gateway, call.target, call.request.headers
    route = gateway.route(target.model, target.version)
    deadline_ms = call.deadline_ms()
    asked = await http_infer.read_request(call, route.signature)
    for output in asked.outputs:
        # Whoever fetches the answer need not see the same memory, nor the gateway that was asked.
        refuse_shared_memory(output.name, output.parameters)
    is_json = http_infer.LENGTH_HEADER not in headers
    later = Later(
        deadline_ms=deadline_ms,
        reply_topic=headers.get(REPLY_TOPIC_HEADER, ""),
        # As the request came, so that whoever reads the topic need not know our own format.
        accept=(JSON if is_json else BINARY) if REPLY_TOPIC_HEADER in headers else "",
        binary=shown_in_binary(asked),
        extra=call.trace(),
        keyed=read_key(headers.get(KEY_HEADER)),
    )
    version = str(int(target.version)) if target.version else ""
    accepted = await accept(gateway, target.model, version, asked, later)
    if not later.reply_topic:
        await gateway.async_calls.wait(accepted, wait)
        if accepted.is_answered:
            return await _shown(call, accepted)
    response = _pending(accepted, is_kept=not later.reply_topic)
    response.headers[APPLIED] = ASYNC
    return response


def shown_in_binary(request: InferRequest) -> dict[str, bool]:
    """Return which outputs are shown in binary, ``""`` says it of those that are not listed (BN-03, BN-04)."""
    listed = {o.name: o.parameters.get("binary_data") is True for o in request.outputs}
    return {**listed, "": request.binary_data_output}


def _pending(call: AsyncCall, *, is_kept: bool) -> web.Response:
    said = {"id": call.id, "model_name": call.model, "status": "pending"}
    headers = {ID_HEADER: call.id, STATUS_HEADER: "pending"}
    if is_kept:
        headers |= {"Location": PLACE + call.id, "Retry-After": str(RETRY_AFTER_S)}
    response = json_response(said)
    response.set_status(202)
    response.headers.update(headers)
    return response


async def request(call: HttpCall) -> web.StreamResponse:
    """Answer with what became of an accepted call, or cancel it.

    Raises:
        InferError: No such call is known, or that cannot be said now.
    """
    gateway = call.gateway
    found = await gateway.async_calls.find(call.target.feature)
    if call.request.method == "DELETE" and not found.is_answered:
        gateway.async_calls.cancel(found)
    preferred = preferences(call.request.headers.getall(PREFER, ()))
    await gateway.async_calls.wait(found, wait_s(preferred))
    return await _shown(call, found)


async def _shown(call: HttpCall, found: AsyncCall) -> web.StreamResponse:
    """Return what is to be said of a call now."""
    shown: web.StreamResponse
    try:
        answered = await answer(call.gateway, found)
    except InferError as error:
        shown = error_response(error)
        shown.headers.popall("Retry-After", None)  # asking again finds the same
        status = "failed"
    else:
        if answered is None:
            return _pending(found, is_kept=True)
        shown = await http_infer.write_answer(call.request, answered, found.is_binary)
        status = "done"
    shown.headers.update({ID_HEADER: found.id, STATUS_HEADER: status})
    if found.reply is not None and find_header(found.reply.headers, REPLAYED) == b"true":
        shown.headers[REPLAYED_HEADER] = "true"
    return shown


HANDLERS: Mapping[Kind, Handler] = {Kind.INFER: infer, Kind.REQUEST: request}
