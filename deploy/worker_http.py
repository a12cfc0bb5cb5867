"""The worker's own port: health for an orchestrator, the process's metrics, and the sequences that it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from aiohttp import web
from headrace.deploy.failure import port_taken
from headrace.streams.metrics import TEXT_TYPE
from headrace.streams.sequence_list import SequencePage, limit_of

METHODS = ("GET", "HEAD")
SEQUENCES = re.compile(r"/v2/models/([^/]+)/sequences")
"""On the raw path: a model's name may hold a slash, escaped."""


@dataclass(frozen=True, slots=True)
class Views:
    """What the port shows of a worker.

    Attributes:
        is_ready: Whether work is taken and done.
        troubles: Sentences that say why not, for whoever asks by hand.
        sequences: Model, number of rows → its live sequences; None where the worker serves no sequence model of that
            name.
        page: Makes the metrics page; None offers none.
    """

    is_ready: Callable[[], bool]
    troubles: Callable[[], Sequence[str]]
    sequences: Callable[[str, int], SequencePage | None]
    page: Callable[[], bytes] | None = None


class WorkerHttp:
    """Serves ``/v2/health/live``, ``/v2/health/ready``, ``/metrics`` and ``/v2/models/<model>/sequences``.

    An async context manager. It listens before there is a worker, which has to say on which port: until `show` it is
    live and not ready.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, address: str, port: int) -> None:
        """Keep the address to bind and the port; 0 is any free one."""
        self.port = port
        self._address = address
        self._views: Views | None = None

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

    def show(self, views: Views) -> None:
        """Answer from a worker from now on."""
        self._views = views

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in METHODS:
            return web.Response(status=405, headers={"Allow": ", ".join(METHODS)})
        if request.path == "/v2/health/live":
            return web.Response()
        if self._views is None:
            return _error(503, "the worker is starting")
        return _answer(self._views, request)


def _answer(views: Views, request: web.BaseRequest) -> web.Response:
    if request.path == "/v2/health/ready":
        if views.is_ready():
            return web.Response()
        return _error(503, "; ".join(views.troubles()) or "not ready yet")
    if request.path == "/metrics" and views.page is not None:
        return web.Response(body=views.page(), headers={"Content-Type": TEXT_TYPE})
    found = SEQUENCES.fullmatch(request.rel_url.raw_path)
    if found is not None:
        return _sequences(views.sequences, unquote(found[1]), request.query.get("limit"))
    return web.Response(status=404)


def _sequences(
    sequences: Callable[[str, int], SequencePage | None], model: str, limit: str | None
) -> web.Response:
    try:
        page = sequences(model, limit_of(limit))
    except ValueError as exc:
        return _error(400, str(exc))
    if page is None:
        return _error(404, f"this worker serves no sequence model '{model[:200]}'")
    return web.Response(body=page.to_json(), headers={"Content-Type": "application/json"})


def _error(status: int, detail: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": detail}), content_type="application/json"
    )
