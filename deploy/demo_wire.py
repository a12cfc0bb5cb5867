"""The demos' records: a V2 JSON header, then a tensor's raw bytes, as any client without our schemas sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from headrace.schemas.record import BINARY, CONTENT_TYPE, HEADER_LENGTH
from headrace.schemas.tensor import Array


def binary_request(
    name: str, datatype: str, tensor: Array, output: str
) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return value and headers of a request record with one input that asks for one output, both as raw bytes.

    Args:
        name: Of the input.
        datatype: V2 datatype of the input.
        tensor: Its values, with the batch axis.
        output: Name of the output.
    """
    raw = tensor.tobytes()
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": list(tensor.shape),
                    "parameters": {"binary_data_size": len(raw)},
                }
            ],
            "outputs": [{"name": output, "parameters": {"binary_data": True}}],
        }
    ).encode()
    return header + raw, [
        (CONTENT_TYPE, BINARY.encode()),
        (HEADER_LENGTH, str(len(header)).encode()),
    ]


def binary_output(value: bytes, headers: Mapping[str, bytes]) -> Array:
    """Return the FP32 output of a result record that has just this one, flat."""
    return np.frombuffer(value[int(headers[HEADER_LENGTH]) :], dtype="<f4")
