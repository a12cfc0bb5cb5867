"""One gRPC call on its way through the gateway: what a method's function gets, and what its metadata says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.record import TRACEPARENT, TRACESTATE, Header
from headrace.schemas.v2proto_layout import RequestLayouts
from headrace.streams.access import Group
from headrace.streams.extensions import Extensions
from headrace.streams.gateway import Gateway
from headrace.streams.grpc_settings import GrpcSettings
from headrace.streams.idempotency import KEY_HEADER, KeyedCall, read_key

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Metadatum: TypeAlias = tuple[str, str | bytes]

AnyMessage = TypeVar("AnyMessage", bound=Message)

KEY = KEY_HEADER.lower()
"""Metadata that carries an idempotency key (DELIVERY P-17); names are in lower case over HTTP/2."""

MAX_DEADLINE_S = 24 * 3_600.0
"""Longest deadline that is taken: a day, as over HTTP."""


@dataclass(slots=True)
class GrpcPart:
    """What the calls of one server share.

    Attributes:
        gateway: Asks the models.
        settings: Bounds of the server.
        extensions: What clients may set at this gateway.
        layouts: What was learned from requests.
        endings: Called when the server closes, one for each open stream, which then ends.
    """

    gateway: Gateway
    settings: GrpcSettings
    extensions: Extensions = field(default_factory=Extensions)
    layouts: RequestLayouts = field(default_factory=RequestLayouts)
    endings: set[Callable[[], None]] = field(default_factory=set)


class Method(NamedTuple):
    """One RPC with one request and one answer.

    Attributes:
        group: By which access is restricted (SEMANTICS PB-22).
        request: Class of its request message.
        answer: Makes the answer; raises `InferError`, of which the server makes a status.
    """

    group: Group
    request: type[Any]
    answer: Callable[[GrpcPart, Any], Awaitable[Message]]


class Said(NamedTuple):
    """What a call's metadata says.

    Attributes:
        trace: The caller's trace context, as record headers.
        keyed: The idempotency key; None without one.
    """

    trace: tuple[Header, ...]
    keyed: KeyedCall | None


NOTHING_SAID = Said((), None)


def read_metadata(metadata: Sequence[Metadatum] | None) -> Said:
    """Read what a call's metadata says.

    Raises:
        InvalidRequest: The idempotency key is none.
    """
    parent = state = key = None
    for name, value in metadata or ():
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
        elif name == KEY:
            key = value
    if parent is None and key is None:
        return NOTHING_SAID
    trace: tuple[Header, ...] = ()
    if parent is not None:
        trace = ((TRACEPARENT, _bytes(parent)),)
        if state is not None:
            trace = (*trace, (TRACESTATE, _bytes(state)))
    return Said(trace, None if key is None else read_key(_bytes(key).decode("utf-8", "replace")))


def texts(metadata: Sequence[Metadatum] | None) -> list[tuple[str, str]]:
    """Return a call's metadata as text; bytes that are no UTF-8 are surrogates in it."""
    return [
        (name, value if isinstance(value, str) else value.decode("utf-8", "surrogateescape"))
        for name, value in metadata or ()
    ]


def deadline_ms(gateway: Gateway, context: Context) -> int:
    """Return a call's own deadline, ms since the epoch; 0 for one that has none."""
    left_s = context.time_remaining()
    if left_s is None:
        return 0
    return gateway.now_ms() + int(min(left_s, MAX_DEADLINE_S) * 1_000)


def parsed(kind: type[AnyMessage], value: bytes) -> AnyMessage:
    """Read a message.

    Raises:
        InvalidRequest: The bytes are none.
    """
    try:
        return kind.FromString(value)
    except DecodeError as error:
        raise InvalidRequest(
            f"the message of {len(value)} bytes is no {kind.DESCRIPTOR.full_name} ({str(error)[:100]})"
        ) from error


def checked_version(version: str) -> str:
    """Return a version as the fleet knows it: its digits without leading zeros, or ``""``.

    Raises:
        InvalidRequest: It is no whole number; Triton's text.
    """
    if not version:
        return ""
    if not (version.isascii() and version.isdigit()) or len(version) > MAX_VERSION_DIGITS:
        raise InvalidRequest(
            f"failed to get model version from specified version string {version[:40]!r}, version should be an "
            "integral value > 0"
        )
    return str(int(version))


MAX_VERSION_DIGITS = 18
"""Digits of a version number: what a 64-bit integer holds."""


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
