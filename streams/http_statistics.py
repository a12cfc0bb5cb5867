"""The statistics extension over HTTP (SEMANTICS PB-08, §2.7)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from headrace.streams.http_call import Handler, HttpCall
from headrace.streams.http_errors import json_response
from headrace.streams.http_routes import Kind
from headrace.streams.statistics import statistics

WORKERS = "workers"
"""Query parameter: ``?workers=true`` adds each worker's own figures (KX-11). Triton has no queries, so none of its
clients is surprised; they can ask for it by ``query_params``."""


async def model_statistics(call: HttpCall) -> web.Response:
    """Answer the statistics of one model version, of all versions of a model, or of all models.

    Raises:
        InvalidRequest: It is not READY (ST-06).
    """
    gateway, target = call.gateway, call.target
    by_worker = call.request.query.get(WORKERS) == "true"
    found = statistics(
        gateway.fleet, gateway.now_ms(), target.model, target.version, by_worker=by_worker
    )
    return json_response(found)


HANDLERS: Mapping[Kind, Handler] = {Kind.STATISTICS: model_statistics}
