"""The messages of gRPC's own health and reflection services, described here: two small packages less to depend on.

They are kept in a pool of their own, so a process that uses those packages too meets no second definition.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _INT, _BYTES = _Field.TYPE_STRING, _Field.TYPE_INT32, _Field.TYPE_BYTES

HEALTH_PACKAGE = "grpc.health.v1"
REFLECTION_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""Both have the same messages; older clients ask the second."""


def _field(message: Any, number: int, name: str, kind: int, **more: Any) -> None:
    message.field.add(
        name=name, number=number, type=kind, **{"label": _Field.LABEL_OPTIONAL, **more}
    )


def _health_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/health/v1/health.proto", package=HEALTH_PACKAGE, syntax="proto3"
    )
    _field(file.message_type.add(name="HealthCheckRequest"), 1, "service", _TEXT)
    response = file.message_type.add(name="HealthCheckResponse")
    status = f".{HEALTH_PACKAGE}.HealthCheckResponse.ServingStatus"
    _field(response, 1, "status", _Field.TYPE_ENUM, type_name=status)
    words = response.enum_type.add(name="ServingStatus")
    for number, word in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        words.value.add(name=word, number=number)
    service = file.service.add(name="Health")
    for name, streaming in (("Check", False), ("Watch", True)):
        service.method.add(
            name=name,
            input_type=f".{HEALTH_PACKAGE}.HealthCheckRequest",
            output_type=f".{HEALTH_PACKAGE}.HealthCheckResponse",
            server_streaming=streaming,
        )
    return file


def _reflection_file(package: str) -> Any:
    """Return the part of ``reflection.proto`` that is served; extensions, which proto3 has none of, are left out."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}/reflection.proto", package=package, syntax="proto3"
    )
    request = file.message_type.add(name="ServerReflectionRequest")
    _field(request, 1, "host", _TEXT)
    request.oneof_decl.add(name="message_request")
    for number, name in (
        (3, "file_by_filename"),
        (4, "file_containing_symbol"),
        (7, "list_services"),
    ):
        _field(request, number, name, _TEXT, oneof_index=0)
    response = file.message_type.add(name="ServerReflectionResponse")
    _field(response, 1, "valid_host", _TEXT)
    _field(
        response, 2, "original_request", _Field.TYPE_MESSAGE, type_name="ServerReflectionRequest"
    )
    response.oneof_decl.add(name="message_response")
    for number, name, kind in (
        (4, "file_descriptor_response", "FileDescriptorResponse"),
        (6, "list_services_response", "ListServiceResponse"),
        (7, "error_response", "ErrorResponse"),
    ):
        _field(response, number, name, _Field.TYPE_MESSAGE, type_name=kind, oneof_index=0)
    _field(
        file.message_type.add(name="FileDescriptorResponse"),
        1,
        "file_descriptor_proto",
        _BYTES,
        label=_Field.LABEL_REPEATED,
    )
    _field(
        file.message_type.add(name="ListServiceResponse"),
        1,
        "service",
        _Field.TYPE_MESSAGE,
        type_name="ServiceResponse",
        label=_Field.LABEL_REPEATED,
    )
    _field(file.message_type.add(name="ServiceResponse"), 1, "name", _TEXT)
    error = file.message_type.add(name="ErrorResponse")
    _field(error, 1, "error_code", _INT)
    _field(error, 2, "error_message", _TEXT)
    service = file.service.add(name="ServerReflection")
    service.method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


POOL = descriptor_pool.DescriptorPool()
"""Knows both services."""

for _file in (_health_file(), *map(_reflection_file, REFLECTION_PACKAGES)):
    POOL.Add(_file)


def message_class(name: str) -> Any:
    """Return the class of a message by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
