"""The metrics page: Triton's names for models, Headrace's own for the process, and the small server that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Self

from aiohttp import web
from headrace.schemas.errors import ConfigError
from headrace.streams.metrics_text import Series, triton_metrics
from prometheus_client import CollectorRegistry, generate_latest

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_page(series: Iterable[Series], registry: CollectorRegistry) -> bytes:
    """Return the page of one process: its models' metrics under Triton's names, then Headrace's own."""
    return triton_metrics(series).encode() + generate_latest(registry)


class MetricsServer:
    """Serves ``/metrics`` and, where given, health paths. An async context manager.

    ``/metrics`` with or without a slash behind it is the page; a health path is 200 or 503 with an empty body;
    any other path is 200 and empty (SEMANTICS PB-14).

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        page: Callable[[], bytes],
        *,
        health: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
        address: str = "127.0.0.1",
        port: int = 8002,
    ) -> None:
        """Keep the parts.

        Args:
            page: Makes the page, called at each scrape.
            health: Path (``/health/live``, …) → whether all is well.
            address: Address to bind; loopback unless told.
            port: Port; 0 is any free one.
        """
        self.port = port
        self._page = page
        self._health = health
        self._address = address

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address or port cannot be had.
        """
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address, self.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"cannot listen there: {error.strerror or error}",
                field="metrics-port",
                value=f"{self._address}:{self.port}",
            ) from error
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        is_well = self._health.get(path)
        if is_well is not None:
            return web.Response(status=200 if is_well() else 503)
        if path.removesuffix("/") != "/metrics":
            return web.Response()
        return web.Response(body=self._page(), headers={"Content-Type": TEXT_TYPE})
