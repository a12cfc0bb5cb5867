"""One door to the four value formats, chosen by ``content-type`` and never by guessing at bytes (DESIGN §4, B35).

The worker decodes requests and the gateway and clients encode them here; clients decode responses. Hot
paths go around this door: `headrace.schemas.layout` for reading, `headrace.schemas.answers` for writing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from headrace.schemas import avro, errors, v2json
from headrace.schemas.answer_layout import AnswerLayouts
from headrace.schemas.errors import Code, InferError, Reason, UndecodableRecord
from headrace.schemas.headers import (
    NO_OPTIONS,
    RequestOptions,
    find_header,
    header_length,
    media_type,
    request_headers,
)
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import (
    AVRO,
    BINARY,
    CONTENT_TYPE,
    JSON,
    PROTOBUF,
    REASON,
    STATUS,
    Headers,
)
from headrace.schemas.signature import Signature
from headrace.schemas.v2json import Binary, all_binary, all_json

_layouts = AnswerLayouts()

MAX_DETAIL = 4000
"""Characters of an error's sentence on the wire: names in it may be as long as a record."""


class Encoded(NamedTuple):
    """A value, the content type that it really has, and the length of its JSON part if binary tensors follow it."""

    value: bytes
    content_type: str
    length: int | None = None


@cache
def _proto() -> ModuleType:
    """Import the protobuf codec when it is first needed; its import costs more than all others together."""
    return import_module("headrace.schemas.v2proto")


def decode_request(
    value: bytes, content_type: str, headers: Headers, signature: Signature | None = None
) -> InferRequest:
    """Read a request record's value.

    Args:
        value: Never empty.
        content_type: One of ours.
        headers: The record's: where the JSON part ends is said there.
        signature: Of the model, for raw binary requests (BN-07).

    Raises:
        InvalidRequest: Undecodable, malformed or wrong, by its kind.
        Unsupported: Understood and not offered.
    """
    if content_type == AVRO:
        return avro.parse_request(value)
    if content_type in (JSON, BINARY):
        return v2json.parse_request(value, header_length(headers), signature)
    request: InferRequest = _proto().parse_request(value)
    return request


def encode_request(
    request: InferRequest,
    content_type: str = AVRO,
    options: RequestOptions = NO_OPTIONS,
) -> tuple[bytes, Headers]:
    """Write a request as a record's value and headers.

    What headers can say is said there, whatever the format; JSON and protobuf values are complete V2 requests and say
    it again.

    Raises:
        InvalidRequest: The format cannot hold the request (FP16 in JSON, PB-45).
    """
    length = None
    if content_type == AVRO:
        value = avro.write_request(request, with_id=False)
    elif content_type == PROTOBUF:
        value = _proto().write_request(request)
    else:
        binary = all_binary if content_type == BINARY else all_json
        value, length = v2json.write_request(request, binary)
        content_type = JSON if length is None else BINARY
    return value, request_headers(request, content_type, options, length)


def encode_response(
    response: InferResponse, content_type: str, binary: Binary = all_json
) -> Encoded:
    """Write a response; ``binary`` says which tensors leave JSON, and counts for JSON and binary answers only.

    Raises:
        InvalidRequest: The format cannot hold the response (FP16 in JSON, PB-45).
    """
    if content_type == AVRO:
        return Encoded(avro.write_response(response), AVRO)
    if content_type == PROTOBUF:
        return Encoded(_proto().write_response(response), PROTOBUF)
    value, length = v2json.write_response(response, binary)
    return Encoded(value, JSON if length is None else BINARY, length)


def encode_error_value(
    id: str,  # noqa: A002  # the protocol's word
    model: tuple[str, str],
    error: InferError,
    content_type: str,
) -> Encoded:
    """Write an error answer's value; its code and reason word also stand in the headers."""
    detail = wire_detail(error)
    if detail is not error.detail:
        error = InferError(detail, reason=error.reason, code=error.code)
    if content_type == AVRO:
        return Encoded(avro.write_error(id, model, error), AVRO)
    if content_type == PROTOBUF:
        return Encoded(_proto().write_error(id, model, error), PROTOBUF)
    return Encoded(v2json.write_error(id, error), JSON)


def wire_detail(error: InferError) -> str:
    """Return an error's sentence as it goes on the wire: not too long, and nothing but text."""
    detail = error.detail
    if len(detail) > MAX_DETAIL:
        detail = detail[:MAX_DETAIL] + "…"
    if not detail.isascii():  # a plug-in's own words may hold half a pair of surrogates
        detail = detail.encode("utf-8", "backslashreplace").decode()
    return detail


def decode_response(value: bytes | None, headers: Headers) -> InferResponse:
    """Read a result record, for clients.

    Raises:
        InferError: The answer is an error: the kind, code and reason word that the worker raised.
        UndecodableRecord: The value is not what ``content-type`` says.
    """
    raw = find_header(headers, CONTENT_TYPE)
    content_type = AVRO if raw is None else media_type(CONTENT_TYPE, raw)
    status = find_header(headers, STATUS) or b"OK"
    if not value:
        raise UndecodableRecord(f"the value is empty, expected a response in {content_type}")
    try:
        if content_type == AVRO:
            response = _layouts.read(value)
        elif content_type == PROTOBUF:
            response = _proto().parse_response(value)
        else:
            response = v2json.parse_response(value, header_length(headers))
    except InferError as exc:
        if type(exc) is not InferError:
            raise  # the value is wrong itself
        reason = find_header(headers, REASON) or b""
        raise error_of(
            status.decode(errors="replace"), reason.decode(errors="replace"), exc.detail
        ) from None
    if status != b"OK":
        raise UndecodableRecord(
            f"header 'status' is {status!r}, but the value is no error, expected both or none"
        )
    return response


def error_of(code: str, reason: str, detail: str) -> InferError:
    """Return the error of the kind that has this code and reason word; unknown words fall back to the kind's own."""
    known = _CODES.get(code, Code.UNKNOWN)
    word = _REASONS.get(reason)
    kind = _KINDS_BY_REASON.get(word)
    if kind is None or kind.code != known:
        kind = _KINDS_BY_CODE.get(known, InferError)
    return kind(detail, reason=word, code=known)


_CODES = {code.value: code for code in Code}
_REASONS = {reason.value: reason for reason in Reason}
_KINDS_BY_CODE: dict[Code, type[InferError]] = {
    Code.INTERNAL: errors.BackendError,
    Code.NOT_FOUND: errors.NotFound,
    Code.INVALID_ARG: errors.InvalidRequest,
    Code.UNAVAILABLE: errors.Unavailable,
    Code.UNSUPPORTED: errors.Unsupported,
    Code.CANCELLED: errors.Cancelled,
}
_KINDS_BY_REASON: dict[Reason | None, type[InferError]] = {
    **{
        kind.reason: kind
        for kind in (
            errors.MalformedRequest,
            errors.UndecodableRecord,
            errors.KeyReused,
            errors.AccessDenied,
            errors.QueueFull,
            errors.DeadlineExceeded,
            errors.TooLarge,
            errors.OutOfMemory,
            errors.WrongOutput,
            errors.Retriable,
            errors.BackendUnavailable,
            errors.ExecutionTimeout,
            errors.InstanceDied,
            errors.WorkerCrashed,
            errors.WorkerCrashed,
        )
    },
    Reason.DEADLINE_PASSED: errors.DeadlineExceeded,
    Reason.ANSWER_TOO_LARGE: errors.TooLarge,
}
