"""The trace extension over HTTP (SEMANTICS PB-11, PB-73)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from headrace.streams.http_call import Handler, HttpCall, json_object
from headrace.streams.http_errors import json_response
from headrace.streams.http_routes import Kind


async def trace_setting(call: HttpCall) -> web.Response:
    """Answer the trace settings, a model's or the global ones, after a POST as they are then.

    Raises:
        InferError: The model is unknown or not ready, or as `TraceSettings.update`.
    """
    model, traces = call.target.model, call.extensions.traces
    if model:
        call.gateway.route(model, call.target.version)
    if call.request.method == "POST":
        traces.update(await json_object(call), model)
    return json_response(traces.shown(model))


HANDLERS: Mapping[Kind, Handler] = {Kind.TRACE: trace_setting}
