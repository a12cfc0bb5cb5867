"""ONNX models for tests, made on the spot, and repositories of them.

Each function returns an `onnx.ModelProto`; `write_repository` lays models out as a model repository does.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9

ELEMENT_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
"""V2 datatype → ONNX element type."""

Dims = Sequence[int | str | None]

MLP_SIZES = (128, 512, 512, 10)


def _value(name: str, datatype: str, dims: Dims | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """Build and check a model."""
    constants = [numpy_helper.from_array(a, name) for name, a in (initializers or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), constants)
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(made)
    return made


def mlp_weights(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (matrix, bias) per layer of `mlp`."""
    rng = np.random.default_rng(seed)
    return [
        (
            (rng.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32),
            rng.standard_normal(m).astype(np.float32),
        )
        for n, m in itertools.pairwise(MLP_SIZES)
    ]


def mlp(seed: int = 0) -> onnx.ModelProto:
    """Return an MLP 128→512→512→10 with ReLU: ``x`` FP32 [N,128] → ``y`` FP32 [N,10]."""
    nodes, constants, source = [], {}, "x"
    layers = mlp_weights(seed)
    for i, (weight, bias) in enumerate(layers):
        last = i == len(layers) - 1
        constants |= {f"w{i}": weight, f"b{i}": bias}
        target = "y" if last else f"h{i}"
        nodes.append(helper.make_node("Gemm", [source, f"w{i}", f"b{i}"], [target]))
        if not last:
            nodes.append(helper.make_node("Relu", [target], [f"r{i}"]))
            source = f"r{i}"
    return model(
        nodes, [_value("x", "FP32", ["N", 128])], [_value("y", "FP32", ["N", 10])], constants
    )


def mlp_expected(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """Compute `mlp` in numpy."""
    layers = mlp_weights(seed)
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0)
    return x


def add_sub(
    version: int = 1, datatype: str = "INT32", size: int = 16, *, batched: bool = True
) -> onnx.ModelProto:
    """Return Triton's ``simple``: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1.

    The versions 2 and 3 have their outputs swapped (SEMANTICS §5.4).
    """
    dims: Dims = ["N", size] if batched else [size]
    plus, minus = ("OUTPUT1", "OUTPUT0") if version in (2, 3) else ("OUTPUT0", "OUTPUT1")
    return model(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], [plus]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], [minus]),
        ],
        [_value("INPUT0", datatype, dims), _value("INPUT1", datatype, dims)],
        [_value("OUTPUT0", datatype, dims), _value("OUTPUT1", datatype, dims)],
    )


def identity(
    datatype: str = "FP32", dims: Dims = (None,), *, pairs: int = 1, batched: bool = True
) -> onnx.ModelProto:
    """Return ``pairs`` of INPUTi → OUTPUTi, unchanged; ``dims`` without the batch axis, None is any size."""
    sizes = [f"d{i}" if dim is None else dim for i, dim in enumerate(dims)]
    shape: Dims = ["N", *sizes] if batched else sizes
    return model(
        [helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"]) for i in range(pairs)],
        [_value(f"INPUT{i}", datatype, shape) for i in range(pairs)],
        [_value(f"OUTPUT{i}", datatype, shape) for i in range(pairs)],
    )


def detector() -> onnx.ModelProto:
    """Return a detector: ``boxes`` FP32 [n,6] → ``found`` FP32 [m,6], those whose last column is above 0.5."""
    return model(
        [
            helper.make_node("Gather", ["boxes", "five"], ["scores"], axis=1),
            helper.make_node("Greater", ["scores", "half"], ["keep"]),
            helper.make_node("Compress", ["boxes", "keep"], ["found"], axis=0),
        ],
        [_value("boxes", "FP32", ["n", 6])],
        [_value("found", "FP32", ["m", 6])],
        {"five": np.array(5), "half": np.float32(0.5).reshape(())},
    )


def labels() -> onnx.ModelProto:
    """Return a classifier whose output has no item dims: ``x`` FP32 [N,4] → ``label`` INT64 [N]."""
    return model(
        [helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0)],
        [_value("x", "FP32", ["N", 4])],
        [_value("label", "INT64", ["N"])],
    )


def scalars() -> onnx.ModelProto:
    """Return a model over rank-0 tensors: ``double`` is twice ``value``, FP32 []."""
    return model(
        [helper.make_node("Add", ["value", "value"], ["double"])],
        [_value("value", "FP32", [])],
        [_value("double", "FP32", [])],
    )


def fixed_batch(rows: int = 1) -> onnx.ModelProto:
    """Return a model exported with a fixed batch axis: ``x`` FP32 [rows,4] → ``y`` FP32 [rows,4], doubled."""
    return model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [_value("x", "FP32", [rows, 4])],
        [_value("y", "FP32", [rows, 4])],
    )


def optional_input() -> onnx.ModelProto:
    """Return ``y`` = ``x`` + ``bias``, FP32 [4]; a request may leave ``bias`` out, it is 10 then."""
    return model(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        [_value("x", "FP32", [4]), _value("bias", "FP32", [4])],
        [_value("y", "FP32", [4])],
        {"bias": np.full(4, 10, dtype=np.float32)},
    )


def picky(datatype: str = "INT64") -> onnx.ModelProto:
    """Return a model that fails for some values: ``y`` FP32 [N,1] = [10, 11, 12][``index`` [N,1]]."""
    return model(
        [helper.make_node("Gather", ["table", "index"], ["y"], axis=0)],
        [_value("index", datatype, ["N", 1])],
        [_value("y", "FP32", ["N", 1])],
        {"table": np.array([10, 11, 12], dtype=np.float32)},
    )


def hungry() -> onnx.ModelProto:
    """Return a model whose output has as many elements as asked for: ``shape`` INT64 [1] → ``y`` FP32 [n]."""
    return model(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        [_value("shape", "INT64", [1])],
        [_value("y", "FP32", ["n"])],
    )


def short_above(rows: int) -> onnx.ModelProto:
    """Return an echo that asks for 2^46 elements where a batch has more rows: ``x`` FP32 [N,1] → ``y`` FP32 [N,1]."""
    return model(
        [
            helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
            helper.make_node("Sub", ["count", "rows"], ["over"]),
            helper.make_node("Max", ["over", "zero"], ["above"]),
            helper.make_node("Mul", ["above", "much"], ["size"]),
            helper.make_node("ConstantOfShape", ["size"], ["heap"]),
            helper.make_node("ReduceSum", ["heap"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["x", "nothing"], ["y"]),
        ],
        [_value("x", "FP32", ["N", 1])],
        [_value("y", "FP32", ["N", 1])],
        {"rows": np.array([rows]), "zero": np.array([0]), "much": np.array([2**46])},
    )


def slow(size: int = 1024, steps: int = 200) -> onnx.ModelProto:
    """Return a chain of matrix products that takes a while: ``x`` FP32 [size,size] → ``y`` FP32 [1]."""
    nodes, source = [], "x"
    for i in range(steps):
        nodes.append(helper.make_node("MatMul", [source, "w"], [f"p{i}"]))
        source = f"p{i}"
    nodes.append(helper.make_node("ReduceMax", [source], ["m"], axes=[0, 1], keepdims=0))
    nodes.append(helper.make_node("Reshape", ["m", "one"], ["y"]))
    identity_matrix = np.eye(size, dtype=np.float32)
    return model(
        nodes,
        [_value("x", "FP32", [size, size])],
        [_value("y", "FP32", [1])],
        {"w": identity_matrix, "one": np.array([1])},
    )


def ragged_sum() -> onnx.ModelProto:
    """Return a model over a ragged batch: ``flat`` FP32 [-1] and its ``ends`` INT32 [N] → ``total`` FP32 [N].

    ``total`` is the sum of each request's elements, as the difference of running sums at ``ends``.
    """
    return model(
        [
            helper.make_node("CumSum", ["flat", "zero"], ["running"]),
            helper.make_node("Concat", ["first", "running"], ["padded"], axis=0),
            helper.make_node("Gather", ["padded", "ends"], ["upto"], axis=0),
            helper.make_node("Concat", ["first", "upto"], ["starts"], axis=0),
            helper.make_node("Slice", ["starts", "none", "minus"], ["before"]),
            helper.make_node("Sub", ["upto", "before"], ["total"]),
        ],
        [_value("flat", "FP32", ["n"]), _value("ends", "INT32", ["N"])],
        [_value("total", "FP32", ["N"])],
        {
            "zero": np.array(0),
            "first": np.zeros(1, dtype=np.float32),
            "none": np.array([0]),
            "minus": np.array([-1]),
        },
    )


def probabilities() -> onnx.ModelProto:
    """Return a model with an output that is no tensor: ``y`` FP32 [N,4], ``all`` a sequence of tensors."""
    sequence = helper.make_tensor_sequence_value_info("all", TensorProto.FLOAT, ["N", 4])
    return model(
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("SequenceConstruct", ["x"], ["all"]),
        ],
        [_value("x", "FP32", ["N", 4])],
        [_value("y", "FP32", ["N", 4]), sequence],
    )


def write_external(directory: Path, made: onnx.ModelProto) -> Path:
    """Write a model as a directory ``model.onnx/`` with its weights beside it (SEMANTICS MR-10)."""
    target = directory / "model.onnx"
    target.mkdir(parents=True)
    onnx.save_model(
        made,
        target / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return target


Versions = onnx.ModelProto | Mapping[int, onnx.ModelProto]


def write_repository(
    path: Path, models: Mapping[str, Versions], configs: Mapping[str, str] | None = None
) -> Path:
    """Write a model repository.

    Args:
        path: Repository root; made if absent.
        models: Name → model, as version 1, or version → model.
        configs: Name → text of ``config.pbtxt``; a name without a model gets just the directory.

    Returns:
        The root.
    """
    for name, versions in models.items():
        numbered = versions if isinstance(versions, Mapping) else {1: versions}
        for version, made in numbered.items():
            target = path / name / str(version)
            target.mkdir(parents=True)
            onnx.save_model(made, target / "model.onnx")
    for name, text in (configs or {}).items():
        (path / name).mkdir(parents=True, exist_ok=True)
        (path / name / "config.pbtxt").write_text(text, encoding="utf-8")
    return path
