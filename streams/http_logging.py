"""The logging extension over HTTP (SEMANTICS PB-12, PB-74)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from headrace.streams.http_call import Handler, HttpCall, json_object
from headrace.streams.http_errors import json_response
from headrace.streams.http_routes import Kind


async def log_settings(call: HttpCall) -> web.Response:
    """Answer the logging settings, after a POST as they are then.

    Raises:
        InferError: As `LogSettings.update`.
    """
    logs = call.extensions.logs
    if call.request.method == "POST":
        logs.update(await json_object(call))
    return json_response(logs.shown())


HANDLERS: Mapping[Kind, Handler] = {Kind.LOGGING: log_settings}
