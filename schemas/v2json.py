"""V2 JSON, with and without binary tensors behind it (SEMANTICS §2.3, §2.4): as on HTTP, so in records.

Texts carry the fragments that Triton's clients match on. A body that is no V2 JSON is `MalformedRequest` (Triton
answers INTERNAL there, PB-32); a well-formed request that is wrong is `InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.schemas.classification import PARAMETER as CLASSES
from headrace.schemas.errors import InferError, InvalidRequest, MalformedRequest
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput, with_inputs
from headrace.schemas.json_text import read_object
from headrace.schemas.parameters import (
    custom_parameters,
    infer_request,
    refuse_shared_memory,
    standard_parameters,
)
from headrace.schemas.shared_span import (
    REGION,
    ReadShared,
    SharedSpan,
    check_alone,
    read_shared,
    shared_span,
)
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import (
    Buffer,
    Datatype,
    Shape,
    Tensor,
    datatype_of,
)
from headrace.schemas.v2json_data import raw_data
from headrace.schemas.v2json_raw import raw_request
from headrace.schemas.v2json_write import (
    MAX_REMEMBERED,
    SIZE,
    binary_head,
    described,
    dump,
    joined,
    written,
)

Binary = Callable[[str], bool]
"""Whether the tensor of that name is written in binary."""

MAX_INT64 = 2**63 - 1
MAX_REMEMBERED_BYTES = 2_048
"""Longer ones are read anew each time."""


def all_json(_name: str) -> bool:
    """Write no tensor in binary."""
    return False


def all_binary(_name: str) -> bool:
    """Write every tensor in binary."""
    return True


def wants_binary(request: InferRequest) -> Binary:
    """Return which outputs a request over HTTP wants in binary.

    A listed output says so itself; ``binary_data_output`` reaches only outputs that are not listed (BN-03, BN-04).
    """
    listed = {
        output.name: output.parameters.get("binary_data") is True for output in request.outputs
    }
    return lambda name: listed.get(name, request.binary_data_output)


def parse_request(
    body: bytes,
    header_length: int | None,
    signature: Signature | None = None,
    shared: ReadShared | None = None,
) -> InferRequest:
    """Read a request.

    Args:
        body: JSON, or JSON with binary tensors behind it.
        header_length: Bytes of the JSON part; None: all is JSON; 0: all is the sole input's data (BN-07).
        signature: Of the model; needed for the last.
        shared: Reads tensors that are kept in shared memory; None where there is none.

    Raises:
        MalformedRequest: The JSON cannot be read as a V2 request (PB-32).
        InvalidRequest: It can, and is wrong: length, datatype, sizes, parameters.
        Unsupported: A tensor is kept in shared memory, and there is none.
    """
    if header_length == 0:
        return raw_request(body, signature)
    head, tail = _split(body, header_length)
    # A body that is all JSON has its data in it: no other is the same.
    is_alike = header_length is not None and header_length <= MAX_REMEMBERED_BYTES
    found = _remembered(head) if is_alike else _read(head, signature)
    if signature is not None and len(found.parts) > len(signature.inputs):
        raise signature.wrong_count([part.name for part in found.parts])
    if found.is_shared and shared is None:
        for output in found.rest.outputs:
            refuse_shared_memory(output.name, output.parameters)
    cursor = _Tail(tail)
    inputs = tuple([_filled(part, cursor, shared) for part in found.parts])
    cursor.finish()
    return with_inputs(found.rest, inputs)


def parse_response(body: bytes, header_length: int | None) -> InferResponse:
    """Read a response, for clients.

    Raises:
        InferError: The body is an error; it carries the text, its code is the status' business.
        MalformedRequest: The body is no V2 response.
    """
    head, tail = _split(body, header_length)
    document = read_object(head, dict)
    if isinstance(document.get("error"), str):
        raise InferError(document["error"])
    cursor = _Tail(tail)
    outputs = [_filled(_part(item), cursor) for item in _list(document, "outputs")]
    cursor.finish()
    return InferResponse(
        tuple(outputs),
        _string(document, "id"),
        _string(document, "model_name"),
        _string(document, "model_version"),
        custom_parameters(_parameters(document)),
    )


def write_request(request: InferRequest, binary: Binary = all_binary) -> tuple[bytes, int | None]:
    """Write a request; returns it and the length of its JSON part, None when all is JSON.

    Raises:
        InvalidRequest: FP16, BF16 or bytes that are no UTF-8 shall go as JSON (PB-45).
    """
    document: dict[str, object] = {"id": request.id} if request.id else {}
    parameters = standard_parameters(request)
    if parameters:
        document["parameters"] = parameters
    tail: list[Buffer] = []
    document["inputs"] = [
        written(tensor, tail, binary=binary(tensor.name), sending="input")
        for tensor in request.inputs
    ]
    if request.outputs:
        document["outputs"] = [
            {"name": output.name, "parameters": dict(output.parameters)}
            if output.parameters
            else {"name": output.name}
            for output in request.outputs
        ]
    return joined(document, tail)


def write_response(
    response: InferResponse, binary: Binary = all_json, shared: Set[str] = frozenset()
) -> tuple[bytes, int | None]:
    """Write a response; returns it and the length of its JSON part.

    The length is None when there is no binary byte: then the body is plain JSON (BN-05). The outputs named in
    ``shared`` are in shared memory: of them only name, datatype and shape are written.

    Raises:
        InvalidRequest: FP16, BF16 or bytes that are no UTF-8 shall go as JSON (PB-45).
    """
    data = [tensor.data for tensor in response.outputs]
    if (
        any(data)
        and not (response.parameters or shared)
        and all(binary(t.name) for t in response.outputs)
    ):
        tensors = tuple([(t.name, t.datatype, t.shape, len(t.data)) for t in response.outputs])
        head = binary_head(response.model_name, response.model_version, tensors)
        if response.id:
            head = b'{"id":' + dump(response.id) + b"," + head[1:]
        return b"".join([head, *data]), len(head)
    document: dict[str, object] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    tail: list[Buffer] = []
    document["outputs"] = [
        described(tensor)
        if tensor.name in shared
        else written(tensor, tail, binary=binary(tensor.name), sending="output")
        for tensor in response.outputs
    ]
    return joined(document, tail)


def write_error(id: str, error: InferError) -> bytes:  # noqa: A002  # the protocol's word
    """Write the body of an error (PB-30), with the id when there is one."""
    document = {"id": id, "error": error.detail} if id else {"error": error.detail}
    return dump(document)


class _Part(NamedTuple):
    """One tensor of a JSON part; its data, or None and how many bytes of the binary part, or where in shared memory."""

    name: str
    datatype: Datatype
    shape: Shape
    data: bytes | None
    size: int = 0
    span: SharedSpan | None = None


class _Head(NamedTuple):
    """A request's JSON part, read: its tensors, all but them, and whether outputs go to shared memory."""

    parts: Sequence[_Part]
    rest: InferRequest
    is_shared: bool


class _Tail:
    """The binary part, handed out tensor by tensor in the order of the JSON part (BN-01)."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: int) -> Buffer:
        left = len(self._data) - self._at
        if size > left:
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {size} bytes of binary data but "
                f"only {left} are left"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def finish(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise InvalidRequest(
                f"unexpected additional input data: {left} bytes behind the last tensor"
            )


def _split(body: bytes, header_length: int | None) -> tuple[bytes, memoryview]:
    """Return the JSON part and the binary part."""
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise InvalidRequest(
            f"inference-header-content-length is {length}, expected 0 to {len(body)}, the bytes of "
            "the body"
        )
    return body[:length], memoryview(body)[length:]


def _read(head: bytes, signature: Signature | None = None) -> _Head:
    """Read a request's JSON part, of no more inputs than the model has."""
    document = read_object(head, dict)
    items = _list(document, "inputs", required=True)
    if signature is not None and len(items) > len(signature.inputs):
        # Refused before a tensor is made of each: a body holds a million empty ones.
        raise signature.wrong_count([_string(item, "name", required=True) for item in items])
    parts = [_part(item) for item in items]
    outputs = [_requested(item) for item in _list(document, "outputs")]
    is_shared = any(REGION in output.parameters for output in outputs)
    rest = infer_request(
        (),
        outputs,
        id=_string(document, "id"),
        parameters=_parameters(document),
        has_shared=is_shared,
    )
    return _Head(parts, rest, is_shared)


_remembered = lru_cache(maxsize=MAX_REMEMBERED)(_read)


def _list(document: Mapping[str, Any], name: str, *, required: bool = False) -> list[Any]:
    found = document.get(name, None if required else [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise MalformedRequest(f"Unable to parse '{name}': expected an array of objects")
    return found


def _string(document: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    found = document.get(name, None if required else "")
    if not isinstance(found, str):
        raise MalformedRequest(f"Unable to parse '{name}': expected a string")
    return found


def _parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    found = document.get("parameters", {})
    if not isinstance(found, dict):
        raise MalformedRequest("Unable to parse 'parameters': expected an object")
    return found


def _requested(item: Mapping[str, Any]) -> RequestedOutput:
    name = _string(item, "name", required=True)
    parameters = _parameters(item)
    for key in ("binary_data",):
        if not isinstance(parameters.get(key, False), bool):
            raise MalformedRequest(f"Unable to parse '{key}': expected true or false")
    classes = parameters.get(CLASSES, 0)
    if type(classes) is not int or classes < 0:
        raise MalformedRequest(f"Unable to set '{CLASSES}': expected an unsigned integer")
    return RequestedOutput(name, custom_parameters(parameters))


def _part(item: Mapping[str, Any]) -> _Part:
    """Read one tensor, its data from the JSON, the binary part or shared memory: exactly one of them (PB-36)."""
    name = _string(item, "name", required=True)
    datatype = datatype_of(_string(item, "datatype", required=True))
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(
        type(size) is int and 0 <= size <= MAX_INT64 for size in shape
    ):
        raise MalformedRequest(
            f"Unable to parse 'shape': expected an array of unsigned integers in tensor '{name}'"
        )
    parameters = _parameters(item)
    span = shared_span(name, parameters)
    if span is not None:
        check_alone(name, {"data": "data" in item, SIZE: SIZE in parameters})
        return _Part(name, datatype, tuple(shape), None, span=span)
    if SIZE not in parameters:
        if "data" not in item:
            raise MalformedRequest(
                f"Unable to parse 'data': tensor '{name}' has neither 'data' nor '{SIZE}'"
            )
        data = raw_data(name, datatype, shape, item["data"])
        return _Part(name, datatype, tuple(shape), data)
    size = parameters[SIZE]
    if type(size) is not int or size < 0:
        raise MalformedRequest(f"Unable to parse '{SIZE}': expected an unsigned integer")
    if "data" in item:
        raise InvalidRequest(
            f"tensor '{name}' has both 'data' and '{SIZE}', expected exactly one of them"
        )
    return _Part(name, datatype, tuple(shape), None, size)


def _filled(part: _Part, tail: _Tail, shared: ReadShared | None = None) -> Tensor:
    name, datatype, shape, data, size, span = part
    if span is not None:
        return Tensor(name, datatype, shape, read_shared(name, span, shared))
    return Tensor(name, datatype, shape, tail.take(name, size) if data is None else data)
