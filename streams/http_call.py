"""One HTTP call on its way through the gateway: what a route's handler gets, and the bounds that hold for it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiohttp import web
from headrace.schemas.errors import InvalidRequest, MalformedRequest, Reason
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import TRACEPARENT, TRACESTATE, Header
from headrace.streams.extensions import Extensions
from headrace.streams.forwarding import Forwarding
from headrace.streams.gateway import Gateway
from headrace.streams.http_body import read_body
from headrace.streams.http_routes import Target

DEFAULT_MAX_INPUT_BYTES = 64 * 1024 * 1024
"""SEMANTICS PB-24, ``--http-max-input-size``."""


TIMEOUT_HEADER = "X-Headrace-Timeout-Ms"

MAX_OBJECT_BYTES = 1024 * 1024
"""Of a body that holds settings and no tensors. Reading JSON lets no other thread run: as many bytes as a request for
inference may have would hold up every other call for a second (FAULTS B2)."""

MAX_TIMEOUT_MS = 24 * 3_600 * 1_000
"""Longest wait that a caller may ask for: a day."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where the server listens, and its bounds.

    Attributes:
        address: Address to bind; loopback unless told.
        port: Port; 0 is any free one.
        reuse_port: Other processes may listen on it too, with the same setting.
        name: Server name in the server's metadata.
        max_input_bytes: Largest body, before and after decompression.
        read_timeout_s: How long a body may take to arrive.
        header_timeout_s: How long a new connection may take for its TLS handshake, and then until the head of its first
            request has come.
        write_timeout_s: How long a caller may take nothing of its answer.
        keepalive_s: How long an idle connection is kept, and how long a further request's head may take.
        max_connections: Connections that may be open.
        max_line_bytes: Longest request line.
        max_header_bytes: Longest header, name and value each.
        max_headers: Headers of a request.
        drain_timeout_s: How long open calls may take on shutdown.
        forwarding: Which headers become request parameters; None forwards none.
    """

    address: str = "127.0.0.1"
    port: int = 8000
    reuse_port: bool = False
    name: str = "headrace"
    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES
    read_timeout_s: float = 60.0
    header_timeout_s: float = 20.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 75.0
    max_connections: int = 4096
    max_line_bytes: int = 8190
    max_header_bytes: int = 8190
    max_headers: int = 128
    drain_timeout_s: float = 30.0
    forwarding: Forwarding | None = None


class HttpCall(NamedTuple):
    """A request with its route, and what answers it.

    Attributes:
        gateway: Asks the models.
        request: As it came.
        target: Its route.
        settings: Bounds of the server.
        extensions: What clients may set at this gateway.
    """

    gateway: Gateway
    request: web.BaseRequest
    target: Target
    settings: HttpSettings
    extensions: Extensions

    async def body(self) -> bytes:
        """Read the request's body within the server's bounds.

        Raises:
            InferError: As `read_body`.
        """
        return await read_body(
            self.request, self.settings.max_input_bytes, self.settings.read_timeout_s
        )

    def accepted(self, asked: InferRequest) -> InferRequest:
        """Return a request as it goes on: within the bounds, with the headers that are forwarded (PB-24, PB-48).

        Raises:
            InvalidRequest: A tensor is larger than a body may be: numbers in JSON unfold to several times their text
                (PB-24). Or as `Forwarding.apply`.
        """
        return accepted(asked, self.settings, self.request.headers)

    def deadline_ms(self) -> int:
        """Return the call's own deadline, ms since the epoch; 0 where it names none.

        Raises:
            InvalidRequest: The header is no number of milliseconds.
        """
        raw = self.request.headers.get(TIMEOUT_HEADER)
        if raw is None:
            return 0
        wait = int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 12 else 0
        if not 1 <= wait <= MAX_TIMEOUT_MS:
            raise InvalidRequest(
                f"header '{TIMEOUT_HEADER}' is {raw[:60]!r}, expected milliseconds from 1 to "
                f"{MAX_TIMEOUT_MS}",
                reason=Reason.INVALID_HEADER,
            )
        return self.gateway.now_ms() + wait

    def trace(self) -> tuple[Header, ...]:
        """Return the caller's trace context as record headers."""
        parent = self.request.headers.get(TRACEPARENT)
        if parent is None:
            return ()
        state = self.request.headers.get(TRACESTATE)
        # aiohttp hands out bytes that are no UTF-8 as surrogates; on a record they are opaque, and come back as they
        # came.
        found: tuple[Header, ...] = ((TRACEPARENT, parent.encode("utf-8", "surrogateescape")),)
        if state is None:
            return found
        return (*found, (TRACESTATE, state.encode("utf-8", "surrogateescape")))


def accepted(
    asked: InferRequest, settings: HttpSettings, headers: Mapping[str, str]
) -> InferRequest:
    """See `HttpCall.accepted`."""
    limit = settings.max_input_bytes
    for tensor in asked.inputs:
        if len(tensor.data) > limit:
            raise InvalidRequest(
                f"input '{tensor.name}' has {len(tensor.data)} bytes, which exceeds the maximum allowed value of "
                f"{limit} bytes. Use --http-max-input-size to increase the limit."
            )
    forwarding = settings.forwarding
    return asked if forwarding is None else forwarding.apply(asked, headers.items())


async def json_object(call: HttpCall) -> Mapping[str, object]:
    """Read a body that is a JSON object; an empty one counts as ``{}``.

    Raises:
        InvalidRequest: It is nested absurdly deep (PB-38), or larger than any settings are.
        MalformedRequest: It is no JSON object.
        InferError: As `read_body`.
    """
    body = await call.body()
    if not body:
        return {}
    if len(body) > MAX_OBJECT_BYTES:
        raise InvalidRequest(
            f"the request's JSON has {len(body)} bytes, expected at most {MAX_OBJECT_BYTES} where no tensors are sent"
        )
    try:
        found = json.loads(body)
    except RecursionError:
        raise InvalidRequest(
            "failed to parse the request JSON buffer: it is nested too deep"
        ) from None
    except ValueError as error:
        raise MalformedRequest(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(found, dict):
        raise MalformedRequest("failed to parse the request JSON buffer: expected an object")
    return found


Handler: TypeAlias = Callable[[HttpCall], Awaitable[web.StreamResponse]]
"""Answers one kind of route; raises `InferError`, of which the server makes an answer."""
