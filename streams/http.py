"""The V2 protocol over HTTP in front of a gateway (SEMANTICS §2.1…§2.6), on aiohttp's low-level server.

One handler and a pure path function (`headrace.streams.http_routes`) instead of a router: the same rules as
Triton's, and a third of the cost per request. Errors become answers in one place. The connection belongs to the
call: when it closes, the call is cancelled (PB-49).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Self

from aiohttp import web
from headrace.schemas.errors import ConfigError, InferError, Unsupported
from headrace.streams import (
    http_async,
    http_generate,
    http_logging,
    http_models,
    http_shared_memory,
    http_statistics,
    http_trace,
    openapi,
)
from headrace.streams.access import Access
from headrace.streams.extensions import Extensions
from headrace.streams.gateway import Gateway
from headrace.streams.http_call import Handler, HttpCall, HttpSettings
from headrace.streams.http_connections import BoundedServer, BoundedSite
from headrace.streams.http_direct import DirectInfer
from headrace.streams.http_errors import internal_error, refusal, text_error
from headrace.streams.http_routes import GROUPS, Kind, resolve
from headrace.streams.tls import ServerTls

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""How long what is left after the drain may take, such as a body that still arrives, seconds."""


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
        settings: HttpSettings = HttpSettings(),  # noqa: B008  # frozen
        extensions: Extensions | None = None,
        *,
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            gateway: Asks the models.
            settings: Where to listen, and bounds.
            extensions: What clients may set, shared with whoever else serves the gateway; None makes our own.
            access: What calls need; None needs nothing.
            tls: Certificate and key; None is HTTP in the clear.
        """
        self.port = settings.port
        self._gateway = gateway
        self._settings = settings
        self._extensions = extensions or Extensions()
        self._access = access
        self._tls = tls

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address or port cannot be had.
        """
        direct = DirectInfer(self._gateway, self._settings, self._extensions, self._access)
        server = BoundedServer(self._handle, self._settings, direct.begin)
        self._runner = web.ServerRunner(server, shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        context = self._tls.context() if self._tls is not None else None
        site = BoundedSite(self._runner, self._settings, context)
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
        try:
            if self._access is not None:
                self._access.check(GROUPS[target.kind], request.headers.get)
            if request.method not in target.methods:
                allowed = {"Allow": ", ".join(target.methods)}
                return text_error(405, "Method Not Allowed", allowed)
            handler = _HANDLERS.get(target.kind)
            if handler is None:
                raise Unsupported(f"{target.feature} is not offered by this gateway")  # noqa: TRY301
            return await handler(
                HttpCall(self._gateway, request, target, self._settings, self._extensions)
            )
        except InferError as error:
            response = refusal(error)
        except ConnectionError:  # the caller went away while it was written to: nobody reads this
            response = text_error(400, "the connection is closed")
        except (
            Exception
        ):  # the edge: a bug of ours is a 500 with a V2 body, and a trace in the log
            logger.exception("%s %s failed", request.method, request.raw_path)
            response = internal_error()
        return response


_HANDLERS: Mapping[Kind, Handler] = {
    **http_async.HANDLERS,
    **http_generate.HANDLERS,
    **http_models.HANDLERS,
    **openapi.HANDLERS,
    **http_statistics.HANDLERS,
    **http_trace.HANDLERS,
    **http_logging.HANDLERS,
    **http_shared_memory.HANDLERS,
}
"""What answers which route; a route without one is Triton's and not offered yet."""
