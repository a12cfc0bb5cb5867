"""What a gateway tells about itself and its models over HTTP: health, metadata, configuration, index."""

from __future__ import annotations

import json
from importlib import metadata

from aiohttp import web
from headrace.schemas.errors import InferError, InvalidRequest, MalformedRequest
from headrace.schemas.signature import TensorSpec
from headrace.streams.gateway import Gateway
from headrace.streams.http_errors import empty_response, json_response, status_of, text_error
from headrace.streams.http_routes import Target

EXTENSIONS = (
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
)
"""Of Triton's extensions (SEMANTICS PB-60), those that are offered here."""

EXITING = "Server exiting"
"""SEMANTICS SV-01."""


def live(gateway: Gateway, _target: Target) -> web.Response:
    """Answer liveness (SEMANTICS SV-01); before start nothing listens."""
    return text_error(503, EXITING) if gateway.is_draining else empty_response(200)


def ready(gateway: Gateway, _target: Target) -> web.Response:
    """Answer readiness (SEMANTICS PB-02, SV-02): 400 when not ready, 503 while exiting.

    The body is empty as Triton's, but for what Triton has not: a log that does not let us read (FAULTS B58).
    """
    if gateway.is_leaving:
        return text_error(503, EXITING)
    if gateway.is_ready():
        return empty_response(200)
    troubles = gateway.troubles()
    return text_error(400, "; ".join(troubles)) if troubles else empty_response(400)


def model_ready(gateway: Gateway, target: Target) -> web.Response:
    """Answer a model's readiness by status alone (SEMANTICS SV-05, SV-06)."""
    if gateway.is_draining:
        return empty_response(503)
    try:
        gateway.route(target.model, target.version)
    except InferError as error:
        return empty_response(status_of(error))
    return empty_response(200)


def server_metadata(name: str) -> dict[str, object]:
    """Return the server's metadata (SEMANTICS PB-60)."""
    return {
        "name": name,
        "version": metadata.version("headrace"),
        "extensions": list(EXTENSIONS),
    }


def model_metadata(gateway: Gateway, target: Target) -> web.Response:
    """Answer a model's metadata: its READY versions, or the one that was asked for (SEMANTICS PB-61).

    Raises:
        InferError: As `Gateway.route`.
    """
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


def model_config(gateway: Gateway, target: Target) -> web.Response:
    """Answer a model's completed configuration (SEMANTICS PB-62).

    Raises:
        InferError: As `Gateway.route`.
    """
    return json_response(gateway.route(target.model, target.version).config_json)


def index(gateway: Gateway, body: bytes) -> list[dict[str, str]]:
    """Return the repository index (SEMANTICS PB-63).

    Raises:
        InvalidRequest: ``ready`` is no boolean, or the body is nested absurdly deep (PB-38).
        MalformedRequest: The body is no JSON object.
    """
    only_ready: object = False
    if body:
        try:
            asked = json.loads(body)
        except RecursionError:
            raise InvalidRequest(
                "failed to parse the request JSON buffer: it is nested too deep"
            ) from None
        except ValueError as error:
            raise MalformedRequest(f"failed to parse the request JSON buffer: {error}") from error
        if not isinstance(asked, dict):
            raise MalformedRequest("failed to parse the request JSON buffer: expected an object")
        only_ready = asked.get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidRequest(f"'ready' is {only_ready!r:.60}, expected true or false")
    return gateway.fleet.index(gateway.now_ms(), only_ready=only_ready)


def _tensor_metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": spec.wire_dims()}
