"""The Avro form of requests and responses: schemas beside this file, namespace ``headrace.v2``.

Reading is fastavro's. Writing is by joining pieces, because both fast paths (`headrace.schemas.layout`,
`headrace.schemas.answers`) need to know which bytes of a value are constant; the pieces are proven equal to fastavro's
writer by property. The order of fields in the schemas is part of the contract.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import fastavro
from headrace.schemas.errors import (
    InferError,
    InvalidRequest,
    Reason,
    UndecodableRecord,
    Unsupported,
)
from headrace.schemas.infer import (
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
)
from headrace.schemas.parameters import infer_request
from headrace.schemas.tensor import Buffer, Datatype, Shape, Tensor, datatype_of

_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1


def schema_text(name: str) -> str:
    """Return the text of ``infer_request`` or ``infer_response``, as other people's producers need it."""
    return files("headrace.schemas").joinpath(f"{name}.avsc").read_text("utf-8")


_REQUEST = fastavro.parse_schema(json.loads(schema_text("infer_request")))
_RESPONSE = fastavro.parse_schema(json.loads(schema_text("infer_response")))


def parse_request(value: bytes) -> InferRequest:
    """Read a request.

    Raises:
        UndecodableRecord: The bytes are no such Avro record, or more than one.
        Unsupported: ``route`` is set.
        InvalidRequest: A datatype or parameter is wrong.
    """
    found = _read(value, _REQUEST, "InferRequest")
    if found["route"] is not None:
        raise Unsupported(
            "field 'route' is set, which is reserved for ensembles, expected null",
            reason=Reason.UNSUPPORTED_ROUTE,
        )
    return infer_request(
        [_tensor(item) for item in found["inputs"]],
        [RequestedOutput(item["name"], item["parameters"]) for item in found["outputs"]],
        id=found["id"] or "",
        parameters=found["parameters"],
    )


def parse_response(value: bytes) -> InferResponse:
    """Read a response.

    Raises:
        UndecodableRecord: The bytes are no such Avro record.
        InferError: It is an error answer; code and reason are not restored here, see `headrace.schemas.codec`.
    """
    found = _read(value, _RESPONSE, "InferResponse")
    if found["error"] is not None:
        raise InferError(found["error"]["message"])
    return InferResponse(
        tuple(_tensor(item) for item in found["outputs"]),
        found["id"] or "",
        found["model_name"],
        found["model_version"],
        found["parameters"],
    )


def write_request(request: InferRequest, *, with_id: bool = True) -> bytes:
    """Write a request; of the standard parameters only those that no header carries.

    Args:
        request: The request.
        with_id: Write its id; no, where a header carries it.

    Raises:
        InvalidRequest: A parameter is an integer that Avro's long does not hold.
    """
    first = optional_text(request.id) if with_id else NULL
    return b"".join([first, *request_pieces(request)])


def write_response(response: InferResponse) -> bytes:
    """Write a response."""
    return b"".join([optional_text(response.id), *response_pieces(response)])


def write_error(id: str, model: tuple[str, str], error: InferError) -> bytes:  # noqa: A002  # the protocol's word
    """Write the answer to a request that failed."""
    name, version = model
    return b"".join(
        (
            optional_text(id),
            text(name),
            text(version),
            END + END + b"\x02",
            text(error.code),
            text(error.reason),
            text(error.detail),
        )
    )


# Pieces. An empty map or array is one zero byte, and so is null in a union that begins with it.
NULL = b"\x00"
END = b"\x00"
NO_ERROR = b"\x00"


def long(number: int) -> bytes:
    """Return a long: zigzag, seven bits a byte, least significant first."""
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def text(word: str) -> bytes:
    """Return a string."""
    raw = word.encode()
    return long(len(raw)) + raw


def optional_text(word: str) -> bytes:
    """Return a nullable string; ``""`` is null."""
    return b"\x02" + text(word) if word else NULL


@lru_cache(maxsize=1024)  # a model's tensors nearly always have the same few shapes
def tensor_head(name: str, datatype: Datatype, shape: Shape) -> bytes:
    """Return everything of a tensor that comes before its data's length."""
    sizes = b"".join([long(size) for size in shape])
    dims = long(len(shape)) + sizes + END if shape else END
    return text(name) + text(datatype) + dims


def request_pieces(request: InferRequest) -> list[Buffer]:
    """Return what follows the id of a request: constant, data, constant, data, …, constant."""
    parameters = dict(request.parameters)
    if request.binary_data_output:
        parameters["binary_data_output"] = True
    parts: list[Buffer] = [parameter_map(parameters)]
    _add_tensors(parts, request.inputs)
    parts.append(_outputs(request.outputs) + NULL)
    return merge_constants(parts, len(request.inputs))


def response_pieces(response: InferResponse) -> list[Buffer]:
    """Return what follows the id of a response: constant, data, constant, data, …, constant."""
    names = text(response.model_name) + text(response.model_version)
    parts: list[Buffer] = [names + parameter_map(response.parameters)]
    _add_tensors(parts, response.outputs)
    parts.append(NO_ERROR)
    return merge_constants(parts, len(response.outputs))


def merge_constants(parts: Sequence[Buffer], tensors: int) -> list[Buffer]:
    """Join neighbouring constants of a value with so many tensors, so that constants and data alternate."""
    if not tensors:
        return [b"".join(parts)]
    # _add_tensors put [count, head, data, head, data, …, end] between a first part and a last one.
    first = b"".join(parts[:3])
    return [first, *parts[3 : 2 + 2 * tensors], b"".join(parts[2 + 2 * tensors :])]


def _add_tensors(parts: list[Buffer], tensors: Sequence[Tensor]) -> None:
    if tensors:
        parts.append(long(len(tensors)))
    for tensor in tensors:
        head = tensor_head(tensor.name, tensor.datatype, tensor.shape)
        parts.append(head + long(len(tensor.data)))
        parts.append(tensor.data)
    parts.append(END)


def _outputs(outputs: Sequence[RequestedOutput]) -> bytes:
    if not outputs:
        return END
    items = [text(output.name) + parameter_map(output.parameters) for output in outputs]
    return long(len(outputs)) + b"".join(items) + END


def parameter_map(parameters: Parameters) -> bytes:
    """Return a map of parameters in their order.

    Raises:
        InvalidRequest: An integer is outside of Avro's long.
    """
    if not parameters:
        return END
    parts = [long(len(parameters))]
    for name, value in parameters.items():
        parts.append(text(name))
        match value:
            case bool():
                parts.append(b"\x00\x01" if value else b"\x00\x00")
            case int():
                if not _MIN_LONG <= value <= _MAX_LONG:
                    raise InvalidRequest(
                        f"parameter '{name}' is {value}, expected an integer of 64 bits with sign"
                    )
                parts.append(b"\x02" + long(value))
            case float():
                parts.append(b"\x04" + struct.pack("<d", value))
            case str():
                parts.append(b"\x06" + text(value))
    parts.append(END)
    return b"".join(parts)


def _read(value: bytes, schema: Any, name: str) -> dict[str, Any]:
    source = io.BytesIO(value)
    try:
        found: Any = fastavro.schemaless_reader(source, schema, None)
    except Exception as exc:
        # fastavro meets bad bytes with whatever its parser trips over (EOFError, IndexError, …). Its
        # texts hold addresses of objects, and an answer that comes twice must be equal (DELIVERY P-16).
        raise UndecodableRecord(
            f"the value of {len(value)} bytes is no Avro {name}: it goes wrong before byte "
            f"{source.tell()} ({type(exc).__name__})"
        ) from exc
    if source.tell() != len(value):
        raise UndecodableRecord(
            f"the value of {len(value)} bytes is an Avro {name} of {source.tell()} bytes with more "
            "behind it, expected one record"
        )
    fields: dict[str, Any] = found
    return fields


def _tensor(item: Mapping[str, Any]) -> Tensor:
    return Tensor(item["name"], datatype_of(item["datatype"]), tuple(item["shape"]), item["data"])
