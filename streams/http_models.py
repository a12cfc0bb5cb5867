"""What a gateway tells about itself and its models over HTTP: health, metadata, configuration, index."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from aiohttp import web
from headrace.schemas.errors import InferError, InvalidRequest, Unavailable
from headrace.schemas.model_config import check_load_name
from headrace.schemas.signature import TensorSpec
from headrace.streams.http_call import Handler, HttpCall, json_object
from headrace.streams.http_errors import empty_response, json_response, status_of, text_error
from headrace.streams.http_routes import Kind
from headrace.streams.model_view import version_number

NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
"""SEMANTICS MC-01: the one text for every control mode but explicit."""

EXITING = "Server exiting"
"""SEMANTICS SV-01."""


async def live(call: HttpCall) -> web.Response:
    """Answer liveness (SEMANTICS SV-01); before start nothing listens."""
    return text_error(503, EXITING) if call.gateway.is_draining else empty_response(200)


async def ready(call: HttpCall) -> web.Response:
    """Answer readiness (SEMANTICS PB-02, SV-02): 400 when not ready, 503 while exiting.

    The body is empty as Triton's, but for what Triton has not: a log that does not let us read (FAULTS B58).
    """
    gateway = call.gateway
    if gateway.is_leaving:
        return text_error(503, EXITING)
    if gateway.is_ready():
        return empty_response(200)
    troubles = gateway.troubles()
    return text_error(400, "; ".join(troubles)) if troubles else empty_response(400)


async def model_ready(call: HttpCall) -> web.Response:
    """Answer a model's readiness by status alone: 400 where it is loaded and does not work (SEMANTICS SV-05, SV-06)."""
    gateway, target = call.gateway, call.target
    if gateway.is_draining:
        return empty_response(503)
    try:
        gateway.route(target.model, target.version)
    except InferError as error:
        view = gateway.fleet.view(target.model, gateway.now_ms())
        if view is not None and view.is_unhealthy(version_number(target.version)):
            return empty_response(400)
        return empty_response(status_of(error))
    return empty_response(200)


async def server_metadata(call: HttpCall) -> web.Response:
    """Answer the server's metadata (SEMANTICS PB-60)."""
    return json_response(
        {
            "name": call.settings.name,
            "version": metadata.version("headrace"),
            "extensions": call.extensions.names(),
        }
    )


async def model_metadata(call: HttpCall) -> web.Response:
    """Answer a model's metadata: its READY versions, or the one that was asked for (SEMANTICS PB-61).

    Raises:
        InferError: As `Gateway.route`.
    """
    gateway, target = call.gateway, call.target
    route = gateway.route(target.model, target.version)
    signature = route.signature
    ready_versions = gateway.ready_versions(target.model)
    versions = [signature.version] if target.version else ready_versions
    return json_response(
        {
            "name": route.config.name,
            "versions": [str(version) for version in versions],
            "platform": route.config.platform or route.config.backend,
            "inputs": [_tensor_metadata(spec) for spec in signature.inputs],
            "outputs": [_tensor_metadata(spec) for spec in signature.outputs],
        }
    )


async def model_config(call: HttpCall) -> web.Response:
    """Answer a model's completed configuration (SEMANTICS PB-62).

    Raises:
        InferError: As `Gateway.route`.
    """
    gateway, target = call.gateway, call.target
    return json_response(gateway.route(target.model, target.version).config_json)


async def index(call: HttpCall) -> web.Response:
    """Answer the repository index (SEMANTICS PB-63).

    Raises:
        InvalidRequest: ``ready`` is no boolean, or the body is nested absurdly deep (PB-38).
        MalformedRequest: The body is no JSON object.
    """
    only_ready = (await json_object(call)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidRequest(f"'ready' is {only_ready!r:.60}, expected true or false")
    gateway = call.gateway
    return json_response(gateway.fleet.index(gateway.now_ms(), only_ready=only_ready))


async def control(call: HttpCall) -> web.Response:
    """Refuse to load or unload a model: the control mode is not explicit (SEMANTICS MC-01).

    Raises:
        InvalidRequest: No model can have this name.
        Unavailable: Always, otherwise.
    """
    if call.target.feature == "load":
        check_load_name(call.target.model)
    raise Unavailable(NO_CONTROL)


def _tensor_metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": spec.wire_dims()}


HANDLERS: Mapping[Kind, Handler] = {
    Kind.LIVE: live,
    Kind.READY: ready,
    Kind.SERVER: server_metadata,
    Kind.MODEL: model_metadata,
    Kind.MODEL_READY: model_ready,
    Kind.CONFIG: model_config,
    Kind.INDEX: index,
    Kind.CONTROL: control,
}
