"""Server reflection: clients without our ``.proto`` files, such as grpcurl, ask what there is."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from headrace.streams.grpc_call import Context, GrpcPart, parsed
from headrace.streams.grpc_health import SERVICE as HEALTH
from headrace.streams.grpc_protocols import POOL, REFLECTION_PACKAGES, message_class
from tritonclient.grpc import service_pb2

INFERENCE = "inference.GRPCInferenceService"

SERVICES = {package: f"{package}.ServerReflection" for package in REFLECTION_PACKAGES}
"""Package → its service; both are served alike."""

_POOLS: tuple[DescriptorPool, ...] = (service_pb2.DESCRIPTOR.pool, POOL)


async def reflect(package: str, _part: GrpcPart, context: Context) -> None:
    """Answer each question on the stream."""
    request_class = message_class(f"{package}.ServerReflectionRequest")
    response_class = message_class(f"{package}.ServerReflectionResponse")
    while (value := await context.read()) is not grpc.aio.EOF:
        request = parsed(request_class, value)
        response = response_class(valid_host=request.host, original_request=request)
        _answer(request, response)
        await context.write(response.SerializeToString())


def _answer(request: Any, response: Any) -> None:
    asked = request.WhichOneof("message_request")
    if asked == "list_services":
        for name in (INFERENCE, HEALTH, *SERVICES.values()):
            response.list_services_response.service.add(name=name)
        return
    file = None
    if asked is not None:
        file = _find(getattr(request, asked), by_name=asked == "file_by_filename")
    if file is None:
        status = grpc.StatusCode.UNIMPLEMENTED if asked is None else grpc.StatusCode.NOT_FOUND
        response.error_response.error_code = status.value[0]
        response.error_response.error_message = "there is no such file or symbol"
        return
    response.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))


def _find(text: str, *, by_name: bool) -> FileDescriptor | None:
    for pool in _POOLS:
        try:
            return pool.FindFileByName(text) if by_name else pool.FindFileContainingSymbol(text)
        except KeyError:
            continue
    return None


def _with_imports(file: FileDescriptor) -> list[bytes]:
    """Return a file and all that it imports, each once."""
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each.serialized_pb
            waiting += each.dependencies
    return list(found.values())
