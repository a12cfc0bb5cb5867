"""Connections of the gateway's HTTP server and their bounds: how many, how slow, how much head, how they are refused.

aiohttp's server does the work; here stand the limits that it has no argument for. Each costs something when a
connection is opened, and nothing per call.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from headrace.streams.http_call import HttpSettings
from headrace.streams.http_errors import JSON_TYPE, RETRY_AFTER_S, text_error

REFUSAL_S = 1.0
"""How long a refused connection is kept for its peer to read why, seconds: closed at once with its request unread,
the system would reset it and the answer might be lost."""

MAX_REFUSALS = 64
"""Refused connections that are kept so at a time; above, they are closed without a word."""


class BoundedServer(web.Server):
    """Makes a connection's protocol within the bounds, or the one that refuses it."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: HttpSettings,
    ) -> None:
        """Keep the parts; ``handle`` answers a request."""
        super().__init__(handle, handler_cancellation=True)
        self.bounds = bounds
        self.refusing = 0

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        if len(self.connections) >= self.bounds.max_connections:
            return _Refusal(self)  # type: ignore[return-value]  # all that is asked of it is to be a protocol
        return _Connection(self)


class BoundedSite(web.TCPSite):
    """Listens within the bounds: what is bounded from a connection's begin on would else not hold for its handshake."""

    def __init__(
        self, runner: web.ServerRunner, bounds: HttpSettings, context: ssl.SSLContext | None
    ) -> None:
        """Keep the parts; ``context`` is None in the clear."""
        super().__init__(
            runner,
            bounds.address,
            bounds.port,
            ssl_context=context,
            reuse_port=bounds.reuse_port,
        )
        self._bounds = bounds

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address or port cannot be had.
        """
        if self._ssl_context is None:
            await super().start()
            return
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._bounds.address,
            self._bounds.port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            reuse_port=self._bounds.reuse_port,
            # aiohttp has no argument for it, and the loop's own minute holds thousands of silent connections.
            ssl_handshake_timeout=self._bounds.header_timeout_s,
        )


class _Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_bounds", "_first_request")

    def __init__(self, server: BoundedServer) -> None:
        bounds = server.bounds
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,  # within our own limit instead
            access_log=None,  # type: ignore[arg-type]  # none is kept
            keepalive_timeout=bounds.keepalive_s,
            max_line_size=bounds.max_line_bytes,
            max_field_size=bounds.max_header_bytes,
            max_headers=bounds.max_headers,
        )
        self._bounds = bounds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A further request's head must come while the connection counts as idle: the keep-alive timer sees to it.
        self._first_request = asyncio.get_running_loop().call_later(
            self._bounds.header_timeout_s, self._expect_request
        )
        _bound_silence(transport, self._bounds.write_timeout_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._first_request.cancel()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._request_count == 0:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002  # aiohttp's
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP in the V2 form (PB-30).

        Neither the answer nor a log repeats it: there may be a token in it, and anybody could fill a disk so.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, another one cannot follow")
        what = (message or "").partition("\n")[0].partition(":")[0][:100] or "it is broken"
        response = text_error(status, f"the request is no HTTP that is taken here: {what}")
        response.force_close()
        return response


class _Refusal(asyncio.Protocol):
    """A connection above the limit: told so, then closed."""

    def __init__(self, server: BoundedServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one, and no subclass
        server = self._server
        server.refusing += 1
        if server.refusing > MAX_REFUSALS:
            transport.abort()
            return
        most = server.bounds.max_connections
        transport.write(
            _raw_answer(
                f"{most} connections are open, which is all that --http-max-connections allows"
            )
        )
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(REFUSAL_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        self._server.refusing -= 1


def _raw_answer(detail: str) -> bytes:
    body = json.dumps({"error": detail}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        f"Content-Type: {JSON_TYPE}\r\nContent-Length: {len(body)}\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _bound_silence(transport: asyncio.BaseTransport, timeout_s: float) -> None:
    """Let the system end a connection whose peer takes nothing of an answer for so long, where it can."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    connection = transport.get_extra_info("socket")
    if option is not None and connection is not None and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, option, int(timeout_s * 1_000))
