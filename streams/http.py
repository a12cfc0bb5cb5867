"""The V2 protocol over HTTP in front of a gateway (SEMANTICS §2.1…§2.6), on aiohttp's low-level server.

One handler and a pure path function (`headrace.streams.http_routes`) instead of a router: the same rules as
Triton's, and a third of the cost per request. Errors become answers in one place. The connection belongs to the
call: when it closes, the call is cancelled (PB-49).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from aiohttp import web
from headrace.schemas.errors import ConfigError, InferError, Unavailable, Unsupported
from headrace.schemas.model_config import check_load_name
from headrace.streams.gateway import Gateway
from headrace.streams.http_body import ENCODINGS, read_body
from headrace.streams.http_errors import error_response, json_response, text_error
from headrace.streams.http_infer import infer
from headrace.streams.http_models import (
    index,
    live,
    model_config,
    model_metadata,
    model_ready,
    ready,
    server_metadata,
)
from headrace.streams.http_routes import Kind, Target, resolve

logger = logging.getLogger(__name__)

DEFAULT_MAX_INPUT_BYTES = 64 * 1024 * 1024
"""SEMANTICS PB-24, ``--http-max-input-size``."""

CLOSE_S = 2.0
"""How long what is left after the drain may take, such as a body that still arrives, seconds."""

NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
"""SEMANTICS MC-01: the one text for every control mode but explicit."""


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


class HttpServer:
    """Serves V2 over HTTP for a gateway. An async context manager: enter it once the gateway is ready (PB-23).

    Leaving refuses new calls, answers open ones within ``drain_timeout_s``, and only then closes its sockets
    (SEMANTICS SV-10, FAULTS B68).

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        gateway: Gateway,
        settings: HttpSettings = HttpSettings(),
    ) -> None:
        """Keep the parts."""
        self.port = settings.port
        self._gateway = gateway
        self._settings = settings

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address or port cannot be had.
        """
        server = web.Server(
            self._handle,
            handler_cancellation=True,
            auto_decompress=False,  # within our own limit instead
            access_log=None,
            keepalive_timeout=self._settings.keepalive_s,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.address, self._settings.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"cannot listen there: {error.strerror or error}",
                field="http-port",
                value=f"{self._settings.address}:{self._settings.port}",
            ) from error
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drain, tell those that are still open, then close."""
        if not await self._gateway.drain(self._settings.drain_timeout_s):
            self._gateway.end_calls()  # while there is a connection to say it on
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        target = resolve(request.raw_path)
        if target is None:
            return text_error(404, "Not Found")
        if request.method not in target.methods:
            return text_error(405, "Method Not Allowed", {"Allow": ", ".join(target.methods)})
        try:
            return await self._answer(request, target)
        except Unsupported as error:
            response = error_response(error)
            response.headers["Accept-Encoding"] = ", ".join(ENCODINGS)  # BN-08
        except InferError as error:
            response = error_response(error)
        except (
            Exception
        ):  # the edge: a bug of ours is a 500 with a V2 body, and a trace in the log
            logger.exception("%s %s failed", request.method, request.raw_path)
            response = text_error(500, "internal error, see the gateway's log")
        return response

    async def _answer(self, request: web.BaseRequest, target: Target) -> web.Response:
        """Answer a route.

        Raises:
            InferError: The caller makes an answer of it.
        """
        settings = self._settings
        if target.kind is Kind.INFER:
            return await infer(
                self._gateway,
                request,
                target,
                max_input_bytes=settings.max_input_bytes,
                read_timeout_s=settings.read_timeout_s,
            )
        if target.kind is Kind.INDEX:
            body = await read_body(request, settings.max_input_bytes, settings.read_timeout_s)
            return json_response(index(self._gateway, body))
        if target.kind is Kind.SERVER:
            return json_response(server_metadata(settings.name))
        if target.kind is Kind.CONTROL:
            if target.feature == "load":
                check_load_name(target.model)
            raise Unavailable(NO_CONTROL)
        if target.kind is Kind.ABSENT:
            raise Unsupported(f"{target.feature} is not offered by this gateway")
        return _READERS[target.kind](self._gateway, target)


_READERS: dict[Kind, Callable[[Gateway, Target], web.Response]] = {
    Kind.LIVE: live,
    Kind.READY: ready,
    Kind.MODEL_READY: model_ready,
    Kind.MODEL: model_metadata,
    Kind.CONFIG: model_config,
}
