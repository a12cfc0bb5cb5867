"""One HTTP call on its way through the gateway: what a route's handler gets, and the bounds that hold for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiohttp import web
from headrace.streams.gateway import Gateway
from headrace.streams.http_body import read_body
from headrace.streams.http_routes import Target

DEFAULT_MAX_INPUT_BYTES = 64 * 1024 * 1024
"""SEMANTICS PB-24, ``--http-max-input-size``."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where the server listens, and its bounds.

    Attributes:
        address: Address to bind; loopback unless told.
        port: Port; 0 is any free one.
        name: Server name in the server's metadata.
        max_input_bytes: Largest body, before and after decompression.
        read_timeout_s: How long a body may take to arrive.
        keepalive_s: How long an idle connection is kept.
        drain_timeout_s: How long open calls may take on shutdown.
    """

    address: str = "127.0.0.1"
    port: int = 8000
    name: str = "headrace"
    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES
    read_timeout_s: float = 60.0
    keepalive_s: float = 75.0
    drain_timeout_s: float = 30.0


class HttpCall(NamedTuple):
    """A request with its route, and what answers it.

    Attributes:
        gateway: Asks the models.
        request: As it came.
        target: Its route.
        settings: Bounds of the server.
    """

    gateway: Gateway
    request: web.BaseRequest
    target: Target
    settings: HttpSettings

    async def body(self) -> bytes:
        """Read the request's body within the server's bounds.

        Raises:
            InferError: As `read_body`.
        """
        return await read_body(
            self.request, self.settings.max_input_bytes, self.settings.read_timeout_s
        )


Handler: TypeAlias = Callable[[HttpCall], Awaitable[web.StreamResponse]]
"""Answers one kind of route; raises `InferError`, of which the server makes an answer."""
