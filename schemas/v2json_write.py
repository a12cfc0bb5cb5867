"""How V2 JSON is written: the pieces of which `headrace.schemas.v2json` makes requests and responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from headrace.schemas.tensor import Buffer, Datatype, Shape, Tensor
from headrace.schemas.v2json_data import json_data

MAX_REMEMBERED = 256
"""JSON parts before binary tensors that are remembered as written, and as read: a client's are nearly all alike."""

SIZE = "binary_data_size"
"""Parameter of a tensor: its bytes in the binary part."""


@lru_cache(maxsize=MAX_REMEMBERED)
def binary_head(
    model_name: str, model_version: str, tensors: tuple[tuple[str, Datatype, Shape, int], ...]
) -> bytes:
    """Write the JSON part of a response whose outputs, of these sizes, are all binary; it has no id and parameters."""
    outputs = [
        {
            "name": name,
            "datatype": datatype.value,
            "shape": list(shape),
            "parameters": {SIZE: size},
        }
        for name, datatype, shape, size in tensors
    ]
    return dump({"model_name": model_name, "model_version": model_version, "outputs": outputs})


def described(tensor: Tensor) -> dict[str, object]:
    """Return an output without its data."""
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
    }


def written(
    tensor: Tensor, tail: list[Buffer], *, binary: bool, sending: str
) -> dict[str, object]:
    """Return a tensor as JSON; in binary its bytes are appended to ``tail``.

    Raises:
        InvalidRequest: It cannot be shown as JSON (PB-45).
    """
    item = described(tensor)
    if binary:
        item["parameters"] = {SIZE: len(tensor.data)}
        tail.append(tensor.data)
    else:
        item["data"] = json_data(tensor, sending)
    return item


def joined(document: dict[str, object], tail: Sequence[Buffer]) -> tuple[bytes, int | None]:
    """Return a document with its binary part, and the length of its JSON part, None where nothing is behind it."""
    head = dump(document)
    if not any(len(data) for data in tail):
        return head, None
    return b"".join([head, *tail]), len(head)


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dump(document: object) -> bytes:
    """Return a document as JSON text."""
    return _encode(document).encode("utf-8", "replace")
