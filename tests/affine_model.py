"""A tiny model whose answers can be checked by eye: y = 2 x + 1 over rows of four numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_models
from onnx import helper


def save_affine(path: Path) -> Path:
    """Write the model to a file; its folder is made."""
    value = helper.make_tensor_value_info
    made = onnx_models.model(
        [
            helper.make_node("Mul", ["x", "two"], ["m"]),
            helper.make_node("Add", ["m", "one"], ["y"]),
        ],
        [value("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 4])],
        {"two": np.array(2, np.float32), "one": np.array(1, np.float32)},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path
