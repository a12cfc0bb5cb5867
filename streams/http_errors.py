"""How errors look over HTTP: one table from codes and reason words to numbers, one body (SEMANTICS PB-30, PB-31)."""

from __future__ import annotations

import json

from aiohttp import web
from headrace.schemas.errors import Code, InferError, Reason, Unsupported
from headrace.streams.http_body import ENCODINGS

JSON_TYPE = "application/json"

RETRY_AFTER_S = 1
"""Seconds that a 503 asks its caller to wait: about a heartbeat, by which the fleet is known anew."""

STATUS_BY_CODE = {
    Code.OK: 200,
    Code.INVALID_ARG: 400,
    Code.UNKNOWN: 400,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.INTERNAL: 500,
}
"""SEMANTICS PB-31."""

STATUS_BY_REASON = {
    Reason.UNAUTHENTICATED: 401,
    Reason.RESTRICTED: 403,  # SEMANTICS PB-22
    Reason.DEADLINE_PASSED: 504,  # the caller's own deadline, not a queue policy's (QT-04)
    Reason.IDEMPOTENCY_KEY_REUSED: 422,  # by the draft that names the header, and by whoever offers it
    Reason.ANSWER_GONE: 410,  # to a call that was accepted with 202, and not fetched in time (FAULTS B65)
    Reason.TOO_LARGE: 413,  # above what a record may hold (FAULTS B57)
    Reason.ANSWER_TOO_LARGE: 507,  # the model's doing, not the caller's
    # The caller names no value in the store; the gateway does. One that is gone is stored anew by the next call.
    Reason.CLAIM_MISSING: 503,
    Reason.CLAIM_MISMATCH: 500,
    Reason.CLAIM_REFUSED: 500,
    Reason.UNSUPPORTED_CLAIM_CHECK: 500,
    # Triton's number for a step that no sequence can take (SQ-03), which its clients know from restarts. A lost one is
    # no different for its client: the same bytes never succeed, a new START does.
    Reason.SEQUENCE_UNKNOWN: 400,
    Reason.SEQUENCE_EXPIRED: 400,
    Reason.SEQUENCE_LOST: 400,
}
"""Reasons whose number is not their code's, or must not depend on it."""


_HEADERS_BY_STATUS = {
    401: {"WWW-Authenticate": 'Bearer realm="headrace"'},
    503: {"Retry-After": str(RETRY_AFTER_S)},
}

MAX_DETAIL_CHARS = 4096
"""Characters of an error's text: some repeat names of the caller's, and a name may be as long as a body."""


def status_of(error: InferError) -> int:
    """Return the HTTP status of an error."""
    return STATUS_BY_REASON.get(error.reason) or STATUS_BY_CODE[error.code]


def error_response(error: InferError) -> web.Response:
    """Return the answer for an error; a 503 says when to come back, a 401 with what."""
    status = status_of(error)
    return text_error(status, error.detail, _HEADERS_BY_STATUS.get(status))


def refusal(error: InferError) -> web.Response:
    """Return the answer for an error that a call has met; one that is unsupported says which encodings are (BN-08)."""
    response = error_response(error)
    if isinstance(error, Unsupported):
        response.headers["Accept-Encoding"] = ", ".join(ENCODINGS)
    return response


def internal_error() -> web.Response:
    """Return the answer for a bug of ours, of which the log has the trace."""
    return text_error(500, "internal error, see the gateway's log")


def text_error(status: int, detail: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error answer with the V2 body ``{"error": "<text>"}``."""
    if len(detail) > MAX_DETAIL_CHARS:
        detail = detail[:MAX_DETAIL_CHARS] + "…"
    body = json.dumps({"error": detail}, ensure_ascii=False, separators=(",", ":"))
    return web.Response(
        status=status,
        body=body.encode("utf-8", "replace"),
        headers={"Content-Type": JSON_TYPE, **(headers or {})},
    )


def json_response(value: object) -> web.Response:
    """Return a JSON answer, numbers such as NaN as V2 JSON spells them (SEMANTICS PB-46)."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return web.Response(body=body, headers={"Content-Type": JSON_TYPE})


def empty_response(status: int) -> web.Response:
    """Return an answer without a body, as the health routes do (PB-30)."""
    return web.Response(status=status)
