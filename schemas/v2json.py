"""V2 JSON, with and without binary tensors behind it (SEMANTICS §2.3, §2.4): as on HTTP, so in records.

Texts carry the fragments that Triton's clients match on. A body that is no V2 JSON is `MalformedRequest` (Triton
answers INTERNAL there, PB-32); a well-formed request that is wrong is `InvalidRequest`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.schemas.classification import PARAMETER as CLASSES
from headrace.schemas.errors import InferError, InvalidRequest, MalformedRequest
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.parameters import (
    custom_parameters,
    infer_request,
    refuse_shared_memory,
    standard_parameters,
)
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import (
    Buffer,
    Datatype,
    Tensor,
    datatype_of,
    element_count,
    join_bytes,
)
from headrace.schemas.v2json_data import MAX_DEPTH, json_data, raw_data

Binary = Callable[[str], bool]
"""Whether the tensor of that name is written in binary."""

MAX_INT64 = 2**63 - 1
_SIZE = "binary_data_size"


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
    body: bytes, header_length: int | None, signature: Signature | None = None
) -> InferRequest:
    """Read a request.

    Args:
        body: JSON, or JSON with binary tensors behind it.
        header_length: Bytes of the JSON part; None: all is JSON; 0: all is the sole input's data (BN-07).
        signature: Of the model; needed for the last.

    Raises:
        MalformedRequest: The JSON cannot be read as a V2 request (PB-32).
        InvalidRequest: It can, and is wrong: length, datatype, sizes, parameters.
        Unsupported: A tensor is kept in shared memory.
    """
    if header_length == 0:
        return _raw_request(body, signature)
    document, tail = _split(body, header_length)
    cursor = _Tail(tail)
    items = _list(document, "inputs", required=True)
    if signature is not None and len(items) > len(signature.inputs):
        # Refused before a tensor is made of each: a body holds a million empty ones.
        raise signature.wrong_count([_string(item, "name", required=True) for item in items])
    inputs = [_input(item, cursor) for item in items]
    cursor.finish()
    outputs = [_requested(item) for item in _list(document, "outputs")]
    return infer_request(
        inputs,
        outputs,
        id=_string(document, "id"),
        parameters=_parameters(document),
    )


def parse_response(body: bytes, header_length: int | None) -> InferResponse:
    """Read a response, for clients.

    Raises:
        InferError: The body is an error; it carries the text, its code is the status' business.
        MalformedRequest: The body is no V2 response.
    """
    document, tail = _split(body, header_length)
    if isinstance(document.get("error"), str):
        raise InferError(document["error"])
    cursor = _Tail(tail)
    outputs = [_input(item, cursor) for item in _list(document, "outputs")]
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
        _written(tensor, tail, binary=binary(tensor.name), sending="input")
        for tensor in request.inputs
    ]
    if request.outputs:
        document["outputs"] = [
            {"name": output.name, "parameters": dict(output.parameters)}
            if output.parameters
            else {"name": output.name}
            for output in request.outputs
        ]
    return _joined(document, tail)


def write_response(response: InferResponse, binary: Binary = all_json) -> tuple[bytes, int | None]:
    """Write a response; returns it and the length of its JSON part.

    The length is None when there is no binary byte: then the body is plain JSON (BN-05).

    Raises:
        InvalidRequest: FP16, BF16 or bytes that are no UTF-8 shall go as JSON (PB-45).
    """
    document: dict[str, object] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    tail: list[Buffer] = []
    document["outputs"] = [
        _written(tensor, tail, binary=binary(tensor.name), sending="output")
        for tensor in response.outputs
    ]
    return _joined(document, tail)


def write_error(id: str, error: InferError) -> bytes:  # noqa: A002  # the protocol's word
    """Write the body of an error (PB-30), with the id when there is one."""
    document = {"id": id, "error": error.detail} if id else {"error": error.detail}
    return _dump(document)


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


def _split(body: bytes, header_length: int | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON object and the binary part."""
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise InvalidRequest(
            f"inference-header-content-length is {length}, expected 0 to {len(body)}, the bytes of "
            "the body"
        )
    try:
        text = body[:length].decode()
        document = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            # An escape may make half of a surrogate pair, which is no text: it could not be written anywhere.
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise MalformedRequest(
            "failed to parse the request JSON buffer: JSON nesting depth exceeds maximum allowed "
            f"limit ({MAX_DEPTH})"
        ) from None
    except ValueError as exc:  # JSONDecodeError, Unicode errors, integers with too many digits
        raise MalformedRequest(
            f"failed to parse the request JSON buffer: {str(exc)[:200]}"
        ) from exc
    if not isinstance(document, dict):
        raise MalformedRequest(
            f"failed to parse the request JSON buffer: expected an object, got "
            f"{type(document).__name__}"
        )
    return document, memoryview(body)[length:]


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


def _input(item: Mapping[str, Any], tail: _Tail) -> Tensor:
    """Read one tensor, its data from the JSON or from the binary part: exactly one of them (PB-36)."""
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
    refuse_shared_memory(name, parameters)
    if _SIZE not in parameters:
        if "data" not in item:
            raise MalformedRequest(
                f"Unable to parse 'data': tensor '{name}' has neither 'data' nor '{_SIZE}'"
            )
        data: Buffer = raw_data(name, datatype, shape, item["data"])
        return Tensor(name, datatype, tuple(shape), data)
    size = parameters[_SIZE]
    if type(size) is not int or size < 0:
        raise MalformedRequest(f"Unable to parse '{_SIZE}': expected an unsigned integer")
    if "data" in item:
        raise InvalidRequest(
            f"tensor '{name}' has both 'data' and '{_SIZE}', expected exactly one of them"
        )
    return Tensor(name, datatype, tuple(shape), tail.take(name, size))


def _raw_request(body: bytes, signature: Signature | None) -> InferRequest:
    """Make a request of the sole input's bytes (BN-07)."""
    if signature is None:
        raise InvalidRequest(
            "inference-header-content-length is 0, expected a model whose only input the body is"
        )
    if len(signature.inputs) != 1:
        raise InvalidRequest(
            f"raw request must have exactly 1 input, but model '{signature.model_name}' has "
            f"{len(signature.inputs)} inputs"
        )
    spec = signature.inputs[0]
    dims = list(spec.dims)
    data: Buffer = body
    count = 1
    if spec.datatype is Datatype.BYTES:
        data = join_bytes([body])
    elif len(body) % spec.datatype.size:
        raise InvalidRequest(
            f"raw request has {len(body)} bytes for input '{spec.name}', expected a multiple of "
            f"{spec.datatype.size} for {spec.datatype}"
        )
    else:
        count = len(body) // spec.datatype.size
    if dims.count(-1) > 1:
        raise InvalidRequest(
            f"raw request needs at most one variable dimension, but input '{spec.name}' of model "
            f"'{signature.model_name}' has {spec.wire_dims()}"
        )
    known = element_count([dim for dim in dims if dim >= 0])
    dims = [(count // known if known else 0) if dim < 0 else dim for dim in dims]
    shape = (1, *dims) if spec.batched else tuple(dims)
    return InferRequest((Tensor(spec.name, spec.datatype, shape, data),), binary_data_output=True)


def _written(
    tensor: Tensor, tail: list[Buffer], *, binary: bool, sending: str
) -> dict[str, object]:
    item: dict[str, object] = {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
    }
    if binary:
        item["parameters"] = {_SIZE: len(tensor.data)}
        tail.append(tensor.data)
    else:
        item["data"] = json_data(tensor, sending)
    return item


def _joined(document: dict[str, object], tail: Sequence[Buffer]) -> tuple[bytes, int | None]:
    head = _dump(document)
    if not any(len(data) for data in tail):
        return head, None
    return b"".join([head, *tail]), len(head)


def _dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "replace"
    )
