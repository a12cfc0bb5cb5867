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
from typing import Protocol, TypeAlias, cast

from aiohttp import StreamReader, web
from aiohttp.http_parser import RawRequestMessage
from headrace.streams.http_call import HttpSettings
from headrace.streams.http_errors import JSON_TYPE, RETRY_AFTER_S, text_error
from headrace.streams.http_whole import JOINED_BYTES

REFUSAL_S = 1.0
"""How long a refused connection is kept for its peer to read why, seconds: closed at once with its request unread,
the system would reset it and the answer might be lost."""

MAX_REFUSALS = 64
"""Refused connections that are kept so at a time; above, they are closed without a word."""


class Cancellable(Protocol):
    """A request that is being answered."""

    def done(self) -> bool:
        """Whether its answer is known."""

    def cancel(self) -> None:
        """Answer it no more."""


Send: TypeAlias = Callable[[bytes, bytes], None]
"""Writes an answer's head and body to its connection."""

Begin: TypeAlias = Callable[[RawRequestMessage, StreamReader, Send], Cancellable | None]
"""Begins to answer a request whose head and body it is given, and hands head and body of the answer over; None where it
is another kind of request."""


class BoundedServer(web.Server):
    """Makes a connection's protocol within the bounds, or the one that refuses it."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        bounds: HttpSettings,
        begin: Begin,
    ) -> None:
        """Keep the parts; ``handle`` answers a request that ``begin`` leaves."""
        super().__init__(handle, handler_cancellation=True)
        self.bounds = bounds
        self.begin = begin
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
    """One connection.

    A request that `BoundedServer.begin` takes is answered without waking aiohttp's task of the connection, which goes
    on waiting for the next one: what is private to aiohttp is used for that, and its version is pinned.
    """

    __slots__ = ("_begin", "_bounds", "_first_request", "_under_way")

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
        self._begin = server.begin
        self._under_way: Cancellable | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A further request's head must come while the connection counts as idle: the keep-alive timer sees to it.
        self._first_request = asyncio.get_running_loop().call_later(
            self._bounds.header_timeout_s, self._expect_request
        )
        _bound_silence(transport, self._bounds.write_timeout_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._first_request.cancel()
        if self._under_way is not None:
            self._under_way.cancel()
            self._under_way = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # aiohttp's task is at a request
            super().data_received(data)
            return
        self._waiter = None  # so that nobody is woken
        try:
            super().data_received(data)
        finally:
            self._waiter = waiter
        if self._messages and not self._request_in_progress:
            self._next()

    def _next(self) -> None:
        """Begin with the next request that has come, or leave it to aiohttp's task."""
        message, payload = self._messages[0]
        if (
            isinstance(message, RawRequestMessage)
            and not (self._buffer_paused or self.writing_paused or self._upgraded)
            and not (self._close or self._force_close)
        ):
            self._request_in_progress = True  # so that a shutdown waits for it
            under_way = self._begin(message, payload, self._send)
            if under_way is not None:
                if self._request_in_progress:  # it may be answered already
                    self._under_way = under_way
                self._messages.popleft()
                assert self._parser is not None, "it is gone with the connection"
                self._parser.message_consumed()
                return
            self._request_in_progress = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _send(self, head: bytes, body: bytes) -> None:
        """Write the answer to the request that is under way, and go on with what has come since."""
        self._request_in_progress, self._under_way = False, None
        if self._handler_waiter is not None:
            self._handler_waiter.set_result(None)
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        if self._close or self._force_close:
            return
        loop = self._loop
        self._next_keepalive_close_time = loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )
        if self._messages:
            loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._messages and not self._request_in_progress:
            self._next()

    def _process_keepalive(self) -> None:
        if self._request_in_progress:  # a connection is idle from its answer on
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

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
