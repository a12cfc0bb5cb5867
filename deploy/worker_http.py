"""The worker's own port: health for an orchestrator, and the process's metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Self

from aiohttp import web
from headrace.deploy.failure import port_taken
from headrace.streams.metrics import TEXT_TYPE

METHODS = ("GET", "HEAD")


class WorkerHttp:
    """Serves ``/v2/health/live``, ``/v2/health/ready`` and ``/metrics``. An async context manager.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        page: Callable[[], bytes] | None,
        is_ready: Callable[[], bool],
        troubles: Callable[[], Sequence[str]],
    ) -> None:
        """Keep the parts.

        Args:
            address: To bind.
            port: 0 is any free one.
            page: Makes the metrics page; None offers none.
            is_ready: Whether work is taken and done.
            troubles: Sentences that say why not, for whoever asks by hand.
        """
        self.port = port
        self._address = address
        self._page = page
        self._is_ready = is_ready
        self._troubles = troubles

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            CommandFailed: The port is taken, or the address is not ours.
        """
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None))
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, self.port)
        try:
            await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            raise port_taken(exc, "--worker-port", self._address, self.port) from exc
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the sockets."""
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in METHODS:
            return web.Response(status=405, headers={"Allow": ", ".join(METHODS)})
        match request.path:
            case "/v2/health/live":
                return web.Response()
            case "/v2/health/ready":
                return self._ready()
            case "/metrics" if self._page is not None:
                return web.Response(body=self._page(), headers={"Content-Type": TEXT_TYPE})
        return web.Response(status=404)

    def _ready(self) -> web.Response:
        if self._is_ready():
            return web.Response()
        body = json.dumps({"error": "; ".join(self._troubles()) or "not ready yet"})
        return web.Response(status=503, text=body, content_type="application/json")
