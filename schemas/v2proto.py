"""``inference.ModelInferRequest`` and ``ModelInferResponse``: as on gRPC, so in records (SEMANTICS §2.10).

The messages are tritonclient's, so nothing is generated here. Importing them costs 0.1 s (its package imports grpc
and its client first), so `headrace.schemas.codec` imports this module when the first such record comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from headrace.schemas.errors import InferError, InvalidRequest, UndecodableRecord
from headrace.schemas.infer import InferRequest, InferResponse, Parameters, RequestedOutput
from headrace.schemas.parameters import (
    custom_parameters,
    infer_request,
    standard_parameters,
)
from headrace.schemas.shared_span import ReadShared, check_alone, read_shared, shared_span
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype, Tensor, datatype_of, join_bytes
from headrace.schemas.v2json_data import integer_limits
from headrace.schemas.v2proto_write import write_plain_response
from tritonclient.grpc import service_pb2

ERROR = "error"
"""Parameter of a response that is an error: its text."""

_MAX_INT64 = 2**63 - 1
_CONTENTS = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}


def parse_request(value: bytes) -> InferRequest:
    """Read a record's value as a request; see `from_message`.

    Raises:
        UndecodableRecord: The bytes are no such message.
        InvalidRequest: The message is wrong.
    """
    return from_message(_parse(service_pb2.ModelInferRequest(), value))


def from_message(
    message: Any, shared: ReadShared | None = None, signature: Signature | None = None
) -> InferRequest:
    """Read a ``ModelInferRequest``: data either all raw or all typed, FP16 and BF16 raw only (GR-01).

    Args:
        message: It.
        shared: Reads inputs that are kept in shared memory, which have no raw contents; None where there is none.
        signature: Of its model: what asks for more than that has is refused before it is read. None reads all.

    Raises:
        InvalidRequest: Data is given twice or not at all, in the wrong field, or out of range; or too many tensors.
    """
    if signature is not None:
        _check_counts(message, signature)
    raw = message.raw_input_contents
    spans = [
        shared_span(item.name, _values(item.parameters)) if item.parameters else None
        for item in message.inputs
    ]
    if raw and len(raw) != spans.count(None):
        raise InvalidRequest(
            f"expected {spans.count(None)} raw_input_contents, one per input, got {len(raw)}"
        )
    left = iter(raw)
    inputs = []
    for item, span in zip(message.inputs, spans, strict=True):
        datatype = datatype_of(item.datatype)
        has_contents = item.HasField("contents") and bool(item.contents.ListFields())
        if span is not None:
            check_alone(item.name, {"contents": has_contents})
            data = read_shared(item.name, span, shared)
        elif not raw:
            data = _typed(item, datatype)
        elif has_contents:
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents for "
                f"'{item.name}'"
            )
        else:
            data = next(left)
        inputs.append(Tensor(item.name, datatype, tuple(item.shape), data))
    outputs = [
        RequestedOutput(item.name, custom_parameters(_values(item.parameters)))
        for item in message.outputs
    ]
    return infer_request(
        inputs,
        outputs,
        id=message.id,
        model=(message.model_name, message.model_version),
        parameters=_values(message.parameters),
        has_shared=shared is not None,
    )


def _check_counts(message: Any, signature: Signature) -> None:
    """Refuse more tensors than the model has: an empty one is two bytes, so a message holds millions of them."""
    if len(message.inputs) > len(signature.inputs):
        raise signature.wrong_count([item.name for item in message.inputs])
    if len(message.outputs) > len(signature.outputs):
        signature.check_outputs(RequestedOutput(item.name) for item in message.outputs)


def parse_response(value: bytes) -> InferResponse:
    """Read a response.

    Raises:
        InferError: It is an error answer; it carries the text.
        UndecodableRecord: The bytes are no such message, or outputs and raw contents differ in number.
    """
    message = _parse(service_pb2.ModelInferResponse(), value)
    parameters = _values(message.parameters)
    if ERROR in parameters:
        raise InferError(str(parameters[ERROR]))
    raw = message.raw_output_contents
    if raw and len(raw) != len(message.outputs):
        raise UndecodableRecord(
            f"expected {len(message.outputs)} raw_output_contents, one per output, got {len(raw)}"
        )
    outputs = []
    for i, item in enumerate(message.outputs):
        datatype = datatype_of(item.datatype)
        data = raw[i] if raw else _typed(item, datatype)
        outputs.append(Tensor(item.name, datatype, tuple(item.shape), data))
    return InferResponse(
        tuple(outputs), message.id, message.model_name, message.model_version, parameters
    )


def write_request(request: InferRequest) -> bytes:
    """Write a request with raw contents."""
    message = service_pb2.ModelInferRequest(
        id=request.id, model_name=request.model_name, model_version=request.model_version
    )
    _set(message.parameters, standard_parameters(request))
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data))
    for output in request.outputs:
        _set(message.outputs.add(name=output.name).parameters, output.parameters)
    return _bytes(message)


def write_response(response: InferResponse, shared: Set[str] = frozenset()) -> bytes:
    """Write a response with raw contents; those of outputs named in ``shared``, in shared memory, are empty."""
    if not (response.parameters or shared):
        return write_plain_response(response)
    return _bytes(to_message(response, shared))


def to_message(response: InferResponse, shared: Set[str] = frozenset()) -> Any:
    """Return a ``ModelInferResponse``; outputs named in ``shared`` are in shared memory, their contents are empty."""
    message = service_pb2.ModelInferResponse(
        id=response.id, model_name=response.model_name, model_version=response.model_version
    )
    _set(message.parameters, response.parameters)
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(b"" if tensor.name in shared else bytes(tensor.data))
    return message


def write_error(id: str, model: tuple[str, str], error: InferError) -> bytes:  # noqa: A002  # the protocol's word
    """Write an error as a response without outputs, the text in the parameter ``error``."""
    name, version = model
    return write_response(InferResponse((), id, name, version, {ERROR: error.detail}))


def _parse(message: Any, value: bytes) -> Any:
    try:
        message.ParseFromString(value)
    except DecodeError as exc:
        raise UndecodableRecord(
            f"the value of {len(value)} bytes is no {message.DESCRIPTOR.full_name} "
            f"({str(exc)[:100]})"
        ) from exc
    return message


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString(deterministic=True)
    return found


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as plain values; one that holds nothing is None and refused by who reads it."""
    found = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        found[name] = getattr(parameter, kind) if kind else None
    return found


def _set(target: Any, parameters: Parameters) -> None:
    for name, value in parameters.items():
        match value:
            case bool():
                target[name].bool_param = value
            case int() if value > _MAX_INT64:
                target[name].uint64_param = value
            case int():
                target[name].int64_param = value
            case float():
                target[name].double_param = value
            case str():
                target[name].string_param = value


def _typed(item: Any, datatype: Datatype) -> bytes:
    """Return typed contents in raw form."""
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(
            f"{datatype} has no typed contents, expected raw_input_contents for input "
            f"'{item.name}'"
        )
    others = [found.name for found, _ in item.contents.ListFields() if found.name != field]
    if others:
        raise InvalidRequest(
            f"unexpected {others[0]} for input '{item.name}', expected {field} for {datatype}"
        )
    values = getattr(item.contents, field)
    if datatype is Datatype.BYTES:
        return join_bytes(values)
    if datatype.numpy.kind in "iu" and len(values):
        limits = integer_limits(datatype)
        if min(values) < limits.min or max(values) > limits.max:
            raise InvalidRequest(
                f"input '{item.name}' has an element out of range, expected {datatype} from "
                f"{limits.min} to {limits.max}"
            )
    return np.array(values, dtype=datatype.numpy).tobytes()
