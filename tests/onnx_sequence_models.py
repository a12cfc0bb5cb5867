"""Sequence models for tests, made on the spot: those of SEMANTICS §5.4 that ONNX can express, and some for states."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import ELEMENT_TYPES, Dims, model


def _value(name: str, datatype: str, dims: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], dims)


def _rows(size: int, *, batched: bool) -> Dims:
    return ["N", size] if batched else [size]


def onnx_sequence(datatype: str = "INT32", *, batched: bool = True) -> onnx.ModelProto:
    """Return Triton's ``onnx_sequence``: OUTPUT = INPUT + START, and 0 where READY is 0 (SEMANTICS §5.4).

    All are of one datatype and shape [N,1], [1] without batching.
    """
    dims = _rows(1, batched=batched)
    return model(
        [
            helper.make_node("Add", ["INPUT", "START"], ["sum"]),
            helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
        ],
        [_value(name, datatype, dims) for name in ("INPUT", "START", "READY")],
        [_value("OUTPUT", datatype, dims)],
    )


def dyna_sequence(corrid: str = "UINT64", *, batched: bool = True) -> onnx.ModelProto:
    """Return Triton's ``onnx_dyna_sequence``: OUTPUT = INPUT, +1 on START, + CORRID on END (SEMANTICS §5.4).

    INPUT, START, END and OUTPUT are INT32 [N,1], [1] without batching. A CORRID of BYTES is read as a decimal number,
    like that of ``simple_string_dyna_sequence``.
    """
    dims = _rows(1, batched=batched)
    if corrid == "BYTES":
        # The empty id of a padding row is no number.
        nodes = [
            helper.make_node("Cast", ["END"], ["ends"], to=TensorProto.BOOL),
            helper.make_node("Where", ["ends", "CORRID", "nobody"], ["text"]),
            helper.make_node("Cast", ["text"], ["last"], to=TensorProto.INT32),
        ]
    else:
        nodes = [
            helper.make_node("Cast", ["CORRID"], ["number"], to=TensorProto.INT32),
            helper.make_node("Mul", ["number", "END"], ["last"]),
        ]
    return model(
        [
            *nodes,
            helper.make_node("Add", ["INPUT", "START"], ["sum"]),
            helper.make_node("Add", ["sum", "last"], ["OUTPUT"]),
        ],
        [
            *(_value(name, "INT32", dims) for name in ("INPUT", "START", "END")),
            _value("CORRID", corrid, dims),
        ],
        [_value("OUTPUT", "INT32", dims)],
        {"nobody": np.array(["0"], object)} if corrid == "BYTES" else {},
    )


def accumulator(
    datatype: str = "INT32", size: int | str = 1, *, start: bool = False, batched: bool = True
) -> onnx.ModelProto:
    """Return ``onnx_sequence`` with implicit state: OUTPUT = STATE_OUT = STATE_IN + INPUT (SEMANTICS §5.4).

    Args:
        datatype: Of every tensor; without ``start`` it may be BOOL, whose sum is "or".
        size: Of the one item dimension; a name leaves it open.
        start: The model resets by itself: where the control START [N,1] is true, the state does not count.
        batched: Tensors are [N,size], else [size].
    """
    dims = ["N", size] if batched else [size]
    add = "Or" if datatype == "BOOL" else "Add"
    nodes = [
        helper.make_node(add, ["known", "INPUT"], ["STATE_OUT"]),
        helper.make_node("Identity", ["STATE_OUT"], ["OUTPUT"]),
    ]
    inputs = [_value("INPUT", datatype, dims), _value("STATE_IN", datatype, dims)]
    if start:
        nodes.insert(0, helper.make_node("Where", ["START", "nothing", "STATE_IN"], ["known"]))
        inputs.append(_value("START", "BOOL", _rows(1, batched=batched)))
    else:
        nodes.insert(0, helper.make_node("Identity", ["STATE_IN"], ["known"]))
    zero = helper.tensor_dtype_to_np_dtype(ELEMENT_TYPES[datatype]).type(0)
    return model(
        nodes,
        inputs,
        [_value("OUTPUT", datatype, dims), _value("STATE_OUT", datatype, dims)],
        {"nothing": np.array(zero)} if start else {},
    )


def passing(datatype: str, dims: Dims) -> onnx.ModelProto:
    """Return a model of one step's memory: OUTPUT is the INPUT of the step before; all are [N,*dims]."""
    shape: Dims = ["N", *dims]
    return model(
        [
            helper.make_node("Identity", ["STATE_IN"], ["OUTPUT"]),
            helper.make_node("Identity", ["INPUT"], ["STATE_OUT"]),
        ],
        [_value("INPUT", datatype, shape), _value("STATE_IN", datatype, shape)],
        [_value("OUTPUT", datatype, shape), _value("STATE_OUT", datatype, shape)],
    )


def speech(size: int = 4) -> onnx.ModelProto:
    """Return a model with the tensors of Silero VAD: ``state`` has its batch axis in the middle, ``sr`` has none.

    ``input`` FP32 [B,size], ``state`` FP32 [2,B,size], ``sr`` INT64 [] → ``output`` FP32 [B,1], ``stateN``. See
    `speech_expected`.
    """
    return model(
        [
            helper.make_node("Unsqueeze", ["input", "first"], ["given"]),
            helper.make_node("Mul", ["given", "weights"], ["weighed"]),
            helper.make_node("Mul", ["state", "half"], ["faded"]),
            helper.make_node("Add", ["faded", "weighed"], ["stateN"]),
            helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["stateN", "outer"], ["sums"], keepdims=0),
            helper.make_node("Div", ["sums", "rate"], ["shares"]),
            helper.make_node("Unsqueeze", ["shares", "second"], ["output"]),
        ],
        [
            _value("input", "FP32", ["B", size]),
            _value("state", "FP32", [2, "B", size]),
            _value("sr", "INT64", []),
        ],
        [_value("output", "FP32", ["B", 1]), _value("stateN", "FP32", [2, "B", size])],
        {
            "first": np.array([0]),
            "second": np.array([1]),
            "outer": np.array([0, 2]),
            "weights": np.array([1, 3], np.float32).reshape(2, 1, 1),
            "half": np.array(0.5, np.float32),
        },
    )


def speech_expected(
    x: np.ndarray, state: np.ndarray, sr: int = 16_000
) -> tuple[np.ndarray, np.ndarray]:
    """Compute a step of `speech` for one stream: ``x`` [size], ``state`` [2,size] → output [1], state."""
    weights = np.array([[1], [3]], np.float32)
    after = state * np.float32(0.5) + x * weights
    return (after.sum(dtype=np.float32) / np.float32(sr)).reshape(1), after
