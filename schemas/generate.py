"""The generate extension: flat JSON into an infer request, and a response into flat JSON (SEMANTICS §2.9). Pure.

What a request leaves unsaid, the model's signature says: datatypes and shapes (GN-02).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from headrace.schemas.errors import InvalidRequest, MalformedRequest
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.json_text import read_object
from headrace.schemas.parameters import infer_request
from headrace.schemas.signature import Signature, TensorSpec
from headrace.schemas.tensor import Datatype, Tensor
from headrace.schemas.v2json_data import json_data, raw_data

NESTED = "parameters"
"""The one key whose object is walked as the body itself is (GN-01)."""

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "boolean"),
    "i": ((int,), "signed-integer"),
    "u": ((int,), "unsigned-integer"),
    "f": ((int, float), "double"),
    "O": ((str,), "string"),
}
"""NumPy kind → JSON types, and the word that Triton has for them."""


class Pairs(NamedTuple):
    """A JSON object as it was written: a key may come twice (GN-07)."""

    items: list[tuple[str, Json]]


Json: TypeAlias = "Pairs | list[Json] | str | int | float | bool | None"


def parse_generate(body: bytes, signature: Signature) -> InferRequest:
    """Read the body of a generate call.

    Raises:
        MalformedRequest: It is no JSON object, or a value has the wrong JSON type (PB-32).
        InvalidRequest: It is wrong otherwise: a tensor twice, a count that fits no shape, a parameter.
    """
    document = read_object(body, Pairs, Pairs)
    inputs: dict[str, Tensor] = {}
    parameters: dict[str, object] = {}
    id_ = ""
    for key, value in document.items:
        if key == NESTED:
            if signature.input(NESTED) is not None:
                raise InvalidRequest(
                    f"Keyword '{NESTED}' for nested schema also given as input tensor name"
                )
            if not isinstance(value, Pairs):
                raise MalformedRequest(f"Expected JSON object for keyword: '{NESTED}'")
            _walk(value.items, signature, inputs, parameters, f"Converting keyword: '{NESTED}': ")
        elif key == "id" and signature.input("id") is None:
            if not isinstance(value, str):
                raise MalformedRequest("Unable to parse 'id': expected a string")
            id_ = value
        else:
            _walk([(key, value)], signature, inputs, parameters, "")
    return infer_request(inputs.values(), id=id_, parameters=parameters)


def write_generate(response: InferResponse) -> bytes:
    """Write a response: one-element outputs as scalars, others as flat lists (GN-03).

    Raises:
        InvalidRequest: JSON cannot hold an output (PB-45).
    """
    document: dict[str, object] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    document.update(response.parameters)
    for tensor in response.outputs:
        data = json_data(tensor, "output")
        document[tensor.name] = data[0] if len(data) == 1 else data
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _walk(
    items: Iterable[tuple[str, Json]],
    signature: Signature,
    inputs: dict[str, Tensor],
    parameters: dict[str, object],
    where: str,
) -> None:
    """Sort keys into inputs and parameters."""
    for key, value in items:
        spec = signature.input(key)
        if spec is None:
            if value is None or isinstance(value, Pairs | list):
                raise InvalidRequest(
                    f"{where}parameter '{key}' has invalid type. It should be either 'int', 'bool', 'double', or "
                    "'string'"
                )
            parameters[key] = value
            continue
        if key in inputs:
            raise InvalidRequest(f"input '{key}' already exists in request")
        inputs[key] = _tensor(spec, value)


def _tensor(spec: TensorSpec, value: Json) -> Tensor:
    """Make a tensor of a scalar or a list."""
    elements = value if isinstance(value, list) else [value]
    types, word = _KINDS[spec.datatype.numpy.kind]
    if spec.datatype not in (Datatype.FP16, Datatype.BF16):
        for element in elements:
            if type(element) not in types:
                raise MalformedRequest(
                    f"Unable to parse '{spec.name}': attempt to access JSON non-{word} as {word}, expected a "
                    f"value or a list of values for {spec.datatype}"
                )
    shape = _shape(spec, len(elements))
    return Tensor(
        spec.name, spec.datatype, shape, raw_data(spec.name, spec.datatype, shape, elements)
    )


def _shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
    """Return the shape of so many elements: the last variable dimension takes what the fixed ones leave (GN-02).

    The batch axis is a variable dimension like any other, so that ``[-1, 16]`` takes 32 elements as two rows.

    Raises:
        InvalidRequest: The fixed ones leave a fraction, or there is no variable one for the rest.
    """
    dims = spec.wire_dims()
    left = count
    for dim in dims:
        if dim >= 0:
            left = left // dim if dim and left % dim == 0 else -1
            if left < 0:
                break
    for place in reversed(range(len(dims))):
        if dims[place] < 0 <= left:
            dims[place], left = left, 1
    if left != 1:
        raise InvalidRequest(
            f"The schema can not convert input '{spec.name}' to tensor with proper shape: it has {count} elements, "
            f"expected shape {spec.wire_dims()}"
        )
    return tuple(dims)
