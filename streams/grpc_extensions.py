"""Triton's extensions over gRPC: statistics, trace and logging settings, shared memory (SEMANTICS §2.7, §2.8).

The same objects answer as over HTTP; here messages become their plain values, and back.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from headrace.schemas.errors import InvalidRequest, Unavailable, Unsupported
from headrace.streams.access import Group
from headrace.streams.grpc_call import GrpcPart, checked_version
from headrace.streams.grpc_convert import filled, made
from headrace.streams.shared_memory import DISABLED, NO_GPU
from headrace.streams.statistics import statistics
from tritonclient.grpc import service_pb2


async def model_statistics(part: GrpcPart, request: Any) -> Message:
    """Answer the statistics of READY versions; each worker's own figures are there over HTTP only (KX-11).

    Raises:
        InvalidRequest: What was asked for is not READY (ST-06).
    """
    gateway = part.gateway
    version = checked_version(request.version)
    found = statistics(gateway.fleet, gateway.now_ms(), request.name, version)
    return made(filled(service_pb2.ModelStatisticsResponse(), found))


async def trace_setting(part: GrpcPart, request: Any) -> Message:
    """Change trace settings and answer with all of them; one without a value is cleared (PB-73).

    Raises:
        InferError: The model is unknown or not ready, or as `TraceSettings.update`.
    """
    model, traces = request.model_name, part.extensions.traces
    if model:
        part.gateway.route(model, "")
    if request.settings:
        given: dict[str, object] = {}
        for name, setting in request.settings.items():
            values = list(setting.value)
            if name != "trace_level" and len(values) > 1:
                raise InvalidRequest(f"expect only 1 value for '{name}'")
            given[name] = (values if name == "trace_level" else values[0]) if values else None
        traces.update(given, model)
    found = service_pb2.TraceSettingResponse()
    for name, shown in traces.shown(model).items():
        found.settings[name].value.extend(shown if isinstance(shown, list) else [shown])
    return made(found)


async def log_settings(part: GrpcPart, request: Any) -> Message:
    """Change logging settings and answer with all of them (PB-74).

    Raises:
        InferError: As `LogSettings.update`.
    """
    logs = part.extensions.logs
    if request.settings:
        given: dict[str, object] = {}
        for name, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice")
            given[name] = getattr(setting, kind) if kind else None
        try:
            logs.update(given)
        except Unavailable as error:  # over HTTP an unknown format is 503, by Triton's whim
            raise InvalidRequest(error.detail) from error
    found = service_pb2.LogSettingsResponse()
    for name, shown in logs.shown().items():
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        setattr(found.settings[name], kinds[type(shown)], shown)
    return made(found)


async def shared_memory_status(part: GrpcPart, request: Any) -> Message:
    """Answer what is registered (PB-72).

    Raises:
        NotFound: There is no such region.
    """
    found = service_pb2.SystemSharedMemoryStatusResponse()
    for region in part.extensions.memory.status(request.name):
        filled(found.regions[str(region["name"])], region)
    return made(found)


async def shared_memory_register(part: GrpcPart, request: Any) -> Message:
    """Register a region (PB-72).

    Raises:
        InferError: As `SharedMemory.register`.
    """
    memory = part.extensions.memory
    memory.register(request.name, request.key, request.offset, request.byte_size)
    return made(service_pb2.SystemSharedMemoryRegisterResponse())


async def shared_memory_unregister(part: GrpcPart, request: Any) -> Message:
    """Unregister a region, or with no name all (PB-72).

    Raises:
        Unsupported: Clients may not.
    """
    part.extensions.memory.unregister(request.name)
    return made(service_pb2.SystemSharedMemoryUnregisterResponse())


async def cuda_shared_memory(part: GrpcPart, request: Any) -> Message:
    """Refuse: a gateway has no GPU.

    Raises:
        Unsupported: Always.
    """
    is_status = request.DESCRIPTOR.name == "CudaSharedMemoryStatusRequest"
    raise Unsupported(NO_GPU if is_status or part.extensions.memory.is_allowed else DISABLED)


TABLE = (
    (Group.STATISTICS, "ModelStatistics", model_statistics),
    (Group.SHARED_MEMORY, "SystemSharedMemoryStatus", shared_memory_status),
    (Group.SHARED_MEMORY, "SystemSharedMemoryRegister", shared_memory_register),
    (Group.SHARED_MEMORY, "SystemSharedMemoryUnregister", shared_memory_unregister),
    (Group.SHARED_MEMORY, "CudaSharedMemoryStatus", cuda_shared_memory),
    (Group.SHARED_MEMORY, "CudaSharedMemoryRegister", cuda_shared_memory),
    (Group.SHARED_MEMORY, "CudaSharedMemoryUnregister", cuda_shared_memory),
    (Group.TRACE, "TraceSetting", trace_setting),
    (Group.LOGGING, "LogSettings", log_settings),
)
"""Group, RPC, what answers it."""
