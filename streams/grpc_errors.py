"""How errors look over gRPC: one table from codes to statuses, name by name (SEMANTICS PB-31)."""

from __future__ import annotations

from typing import NoReturn

import grpc
from headrace.schemas.errors import Code, InferError, Reason
from headrace.streams.grpc_call import Context

STATUS_BY_CODE = {
    Code.UNKNOWN: grpc.StatusCode.UNKNOWN,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.INVALID_ARG: grpc.StatusCode.INVALID_ARGUMENT,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.CANCELLED: grpc.StatusCode.CANCELLED,
}
"""SEMANTICS PB-31."""

STATUS_BY_REASON = {
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.DEADLINE_PASSED: grpc.StatusCode.DEADLINE_EXCEEDED,  # the caller's own, not a queue policy's (QT-04)
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,  # INTERNAL is for JSON only (PB-32)
    # The caller names no value in the store; the gateway does. One that is gone is stored anew by the next call.
    Reason.CLAIM_MISSING: grpc.StatusCode.UNAVAILABLE,
    Reason.CLAIM_MISMATCH: grpc.StatusCode.INTERNAL,
    Reason.CLAIM_REFUSED: grpc.StatusCode.INTERNAL,
    Reason.UNSUPPORTED_CLAIM_CHECK: grpc.StatusCode.INTERNAL,
    # Triton's for a step that no sequence can take (SQ-03); a lost one is no different for its client.
    Reason.SEQUENCE_UNKNOWN: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SEQUENCE_EXPIRED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SEQUENCE_LOST: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Reasons whose status is not their code's, or must not depend on it; as over HTTP."""

MAX_DETAIL_BYTES = 2_048
"""Of a status' text. It travels as a header, each byte as up to three, and clients take 8 KiB of headers."""


def status_of(error: InferError) -> grpc.StatusCode:
    """Return the gRPC status of an error."""
    return STATUS_BY_REASON.get(error.reason) or STATUS_BY_CODE[error.code]


async def abort(context: Context, error: InferError) -> NoReturn:
    """End a call with an error's status."""
    await context.abort(status_of(error), detail_of(error))
    raise AssertionError("unreachable: abort raises")


def detail_of(error: InferError) -> str:
    """Return an error's sentence, shortened to what a status may say."""
    raw = error.detail.encode("utf-8", "backslashreplace")  # half a pair of surrogates is no UTF-8
    if len(raw) <= MAX_DETAIL_BYTES:
        return raw.decode()
    return raw[:MAX_DETAIL_BYTES].decode(errors="ignore") + "…"
