"""Plain values into messages of ``inference.GRPCInferenceService``, where the protocol's JSON form does not do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from headrace.schemas.codec import MAX_DETAIL
from headrace.schemas.errors import InferError
from headrace.schemas.signature import TensorSpec
from headrace.schemas.v2proto_write import varint
from tritonclient.grpc import service_pb2

AnyMessage = TypeVar("AnyMessage", bound=Message)

FINAL = "triton_final_response"
"""Parameter of every streamed response (SEMANTICS GR-03)."""


def _final_field(*, final: bool) -> bytes:
    """Return the field ``parameters`` of a response that holds `FINAL` alone."""
    message = service_pb2.ModelInferResponse()
    message.parameters[FINAL].bool_param = final
    found: bytes = message.SerializeToString()
    return found


_FINAL_FIELD = {True: _final_field(final=True), False: _final_field(final=False)}
_RESPONSE_TAG = b"\x12"  # field 2 of ModelStreamInferResponse, infer_response


def stream_response(response: bytes, *, final: bool) -> bytes:
    """Return a ``ModelStreamInferResponse`` around the bytes of a ``ModelInferResponse``.

    A message is its fields in any order, so the parameter is put behind what was written already.
    """
    last = _FINAL_FIELD[final]
    return b"".join((_RESPONSE_TAG, varint(len(response) + len(last)), response, last))


def stream_error(request: Any, error: InferError) -> bytes:
    """Return a ``ModelStreamInferResponse`` that tells of an error, with what its client knows the request by.

    Args:
        request: The ``ModelInferRequest``; an empty one where it could not be read.
        error: Why there is no response.
    """
    message = service_pb2.ModelStreamInferResponse()
    text = error.detail[:MAX_DETAIL]
    message.error_message = text.encode("utf-8", "backslashreplace").decode()
    response = message.infer_response
    response.id = request.id
    response.model_name = request.model_name
    response.model_version = request.model_version
    response.parameters[FINAL].bool_param = True
    found: bytes = message.SerializeToString()
    return found


def filled(message: AnyMessage, value: Mapping[str, object]) -> AnyMessage:
    """Fill a message from its JSON form: the fields' own names, enums as names. Unknown keys are passed over."""
    return ParseDict(dict(value), message, ignore_unknown_fields=True)


def set_tensor(target: Any, spec: TensorSpec) -> None:
    """Write what is known of an input or output into a ``TensorMetadata`` (SEMANTICS PB-61)."""
    target.name, target.datatype = spec.name, spec.datatype.value
    target.shape.extend(spec.wire_dims())


def made(message: Any) -> Message:
    """Return a message of a class that is made at run time as what it is."""
    found: Message = message
    return found
