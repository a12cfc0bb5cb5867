"""What a gateway tells about itself and its models over gRPC, and what it lets set: all RPCs but inference.

The same answers as over HTTP (`headrace.streams.http_models`), as messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from google.protobuf.message import Message
from headrace.schemas.errors import InferError, Unavailable, Unsupported
from headrace.schemas.model_config import check_load_name
from headrace.streams import grpc_extensions
from headrace.streams.access import Group
from headrace.streams.grpc_call import GrpcPart, Method, checked_version
from headrace.streams.grpc_convert import filled, made, set_tensor
from headrace.streams.http_models import EXITING, NO_CONTROL
from tritonclient.grpc import service_pb2


async def server_live(part: GrpcPart, _request: Any) -> Message:
    """Answer liveness (SEMANTICS SV-01).

    Raises:
        Unavailable: The server stops.
    """
    if part.gateway.is_draining:
        raise Unavailable(EXITING)
    return _message("ServerLiveResponse", live=True)


async def server_ready(part: GrpcPart, _request: Any) -> Message:
    """Answer readiness (SEMANTICS SV-02).

    Raises:
        Unavailable: The server stops.
    """
    if part.gateway.is_leaving:
        raise Unavailable(EXITING)
    return _message("ServerReadyResponse", ready=part.gateway.is_ready())


async def model_ready(part: GrpcPart, request: Any) -> Message:
    """Answer a model's readiness; one that is unknown is not ready, and no error (SEMANTICS SV-05, TC-03)."""
    try:
        part.gateway.route(request.name, checked_version(request.version))
    except InferError:
        return _message("ModelReadyResponse", ready=False)
    return _message("ModelReadyResponse", ready=not part.gateway.is_draining)


async def server_metadata(part: GrpcPart, _request: Any) -> Message:
    """Answer the server's metadata (SEMANTICS PB-60)."""
    return _message(
        "ServerMetadataResponse",
        name=part.settings.name,
        version=metadata.version("headrace"),
        extensions=part.extensions.names(),
    )


async def model_metadata(part: GrpcPart, request: Any) -> Message:
    """Answer a model's metadata: its READY versions, or the one that was asked for (SEMANTICS PB-61).

    Raises:
        InferError: As `Gateway.route`.
    """
    gateway, version = part.gateway, checked_version(request.version)
    route = gateway.route(request.name, version)
    signature = route.signature
    versions = [signature.version] if version else gateway.ready_versions(request.name)
    found = service_pb2.ModelMetadataResponse(
        name=route.config.name,
        versions=[str(number) for number in versions],
        platform=route.config.platform or route.config.backend,
    )
    for spec in signature.inputs:
        set_tensor(found.inputs.add(), spec)
    for spec in signature.outputs:
        set_tensor(found.outputs.add(), spec)
    return made(found)


async def model_config(part: GrpcPart, request: Any) -> Message:
    """Answer a model's completed configuration (SEMANTICS PB-62).

    Raises:
        InferError: As `Gateway.route`.
    """
    route = part.gateway.route(request.name, checked_version(request.version))
    found = service_pb2.ModelConfigResponse()
    filled(found.config, route.config_json)
    return made(found)


async def index(part: GrpcPart, request: Any) -> Message:
    """Answer the repository index (SEMANTICS PB-63).

    Raises:
        Unsupported: It names a repository (PB-21).
    """
    _refuse_repository(request)
    gateway = part.gateway
    models = gateway.fleet.index(gateway.now_ms(), only_ready=request.ready)
    return _message("RepositoryIndexResponse", models=models)


async def load(_part: GrpcPart, request: Any) -> Message:
    """Refuse to load a model: the control mode is not explicit (SEMANTICS MC-01).

    Raises:
        InvalidRequest: No model can have this name.
        Unavailable: Always, otherwise.
    """
    _refuse_repository(request)
    check_load_name(request.model_name)
    raise Unavailable(NO_CONTROL)


async def unload(_part: GrpcPart, request: Any) -> Message:
    """Refuse to unload a model, as `load`.

    Raises:
        Unavailable: Always.
    """
    _refuse_repository(request)
    raise Unavailable(NO_CONTROL)


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")


def _message(kind: str, /, **fields: object) -> Message:
    return made(getattr(service_pb2, kind)(**fields))


_TABLE = (
    (Group.HEALTH, "ServerLive", server_live),
    (Group.HEALTH, "ServerReady", server_ready),
    (Group.HEALTH, "ModelReady", model_ready),
    (Group.METADATA, "ServerMetadata", server_metadata),
    (Group.METADATA, "ModelMetadata", model_metadata),
    (Group.MODEL_CONFIG, "ModelConfig", model_config),
    (Group.MODEL_REPOSITORY, "RepositoryIndex", index),
    (Group.MODEL_REPOSITORY, "RepositoryModelLoad", load),
    (Group.MODEL_REPOSITORY, "RepositoryModelUnload", unload),
    *grpc_extensions.TABLE,
)

METHODS: Mapping[str, Method] = {
    name: Method(group, getattr(service_pb2, f"{name}Request"), answer)
    for group, name, answer in _TABLE
}
"""The RPCs of ``inference.GRPCInferenceService`` with one request and one answer, inference apart."""
