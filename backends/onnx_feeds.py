"""What an ONNX model is fed beside and instead of a batch's columns: constants, and other shapes of the same values.

Pure. Constants are values that a configuration gives to a model's own inputs
(`headrace.schemas.config_parameters`).
"""

from __future__ import annotations

import math
import re

import numpy as np
from headrace.backends.onnx_tensors import ModelTensors, find_tensor
from headrace.schemas.config_parameters import CONSTANT, parameter_field
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.tensor import Array, Datatype, Shape

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}

FLOATS = {
    Datatype.FP16: float(np.finfo(np.float16).max),
    Datatype.BF16: float(np.finfo(np.float32).max),
    Datatype.FP32: float(np.finfo(np.float32).max),
    Datatype.FP64: float(np.finfo(np.float64).max),
}
"""Largest number of each floating datatype; a BF16 is the upper half of an FP32."""

_EXPECTED = dict.fromkeys(FLOATS, "finite numbers") | {Datatype.BOOL: "true or false"}


def constant_feeds(config: ModelConfig, tensors: ModelTensors, file: str) -> dict[str, Array]:
    """Return the inputs that the configuration gives a value, which every run is fed as they are.

    Raises:
        ConfigError: The model has no such input, or the value does not fit it.
    """
    inputs = {tensor.name: tensor for tensor in (*tensors.inputs, *tensors.optional)}
    feeds: dict[str, Array] = {}
    for name, text in config.constants.items():
        field = parameter_field(CONSTANT, name)
        found = find_tensor("input", field, name, inputs, file)
        if found.datatype is None:
            raise ConfigError(
                f"the model's tensor is {found}, expected a plain one", file=file, field=field
            )
        feeds[name] = read_constant(text, found.datatype, found.shape, file=file, field=field)
    return feeds


def feed_shapes(config: ModelConfig, tensors: ModelTensors) -> dict[str, Shape]:
    """Return the shapes to give to feeds before a run, where the model wants another one than a batch's column has.

    Those are scalars, whose dims are ones as dims may not be empty (AC-02, MR-22), and controls, whose column is
    ``[rows, 1]``, or ``[1]`` where the model does not batch (SB-06). One -1 stands for the rows.
    """
    inputs = {tensor.name: tensor.shape for tensor in (*tensors.inputs, *tensors.optional)}
    shapes: dict[str, Shape] = {}
    batched = config.max_batch_size > 0
    usual = (-1, 1) if batched else (1,)
    for control in config.controls:
        axis = config.batch_axes.get(control.name, 0)
        rank = len(inputs[control.name])
        shape = (*[1] * axis, -1, *[1] * (rank - 1 - axis)) if batched else (1,) * rank
        if shape != usual:
            shapes[control.name] = shape
    if not batched:
        names = [spec.name for spec in config.inputs]
        names += [state.input_name for state in config.states]
        shapes.update((name, ()) for name in names if not inputs[name])
    return shapes


def fetch_shapes(config: ModelConfig, tensors: ModelTensors) -> dict[str, Shape]:
    """Return the shapes to give to what a run returns: those of scalars, which are configured with dims of ones."""
    if config.max_batch_size > 0:
        return {}
    outputs = {tensor.name: tensor.shape for tensor in tensors.outputs}
    shapes = {state.output_name: state.dims for state in config.states}
    shapes.update(
        (spec.name, spec.dims if spec.reshape is None else spec.reshape) for spec in config.outputs
    )
    return {name: shape for name, shape in shapes.items() if not outputs[name]}


def read_constant(text: str, datatype: Datatype, shape: Shape, *, file: str, field: str) -> Array:
    """Read a constant's text as a tensor.

    Args:
        text: One value, or several with commas between, row-major.
        datatype: Of the model's input.
        shape: Whole shape of the model's input, -1 where the model leaves a size open: one of them at most, which
            takes what is left.
        file: Model file, for the error's sentence.
        field: The parameter, for the error's sentence.

    Returns:
        Array of that shape, which nobody may write to; BF16 as bit patterns.

    Raises:
        ConfigError: A value is none of the datatype, or their number does not fit the shape.
    """
    if datatype is Datatype.BYTES:
        raise ConfigError(
            "expected a model input of numbers or booleans, and this one is of text",
            file=file,
            field=field,
            value=text,
        )
    values: list[float] = []
    for item in text.split(","):
        value = _value(item.strip(), datatype)
        if value is None:
            raise ConfigError(
                f"expected {_EXPECTED.get(datatype, 'integers')} that {datatype} can hold, since the model's input "
                "is one",
                file=file,
                field=field,
                value=text,
            )
        values.append(value)
    whole = _whole(shape, len(values))
    if whole is None:
        raise ConfigError(
            f"expected as many values as the model's input has elements, whose shape is "
            f"{list(shape)}, not {len(values)}",
            file=file,
            field=field,
            value=text,
        )
    if datatype is Datatype.BF16:
        # The upper half of a float32 is its BF16.
        array = (np.array(values, np.float32).view(np.uint32) >> 16).astype(datatype.numpy)
    else:
        array = np.array(values, datatype.numpy)
    array = array.reshape(whole)
    array.setflags(write=False)
    return array


def _value(item: str, datatype: Datatype) -> float | None:
    """Return one value, exactly where it is an integer or a boolean; None where the datatype has none like it."""
    if datatype is Datatype.BOOL:
        return _BOOLEANS.get(item)
    if datatype in FLOATS:
        try:
            number = float(item)
        except ValueError:
            return None
        return number if abs(number) <= FLOATS[datatype] else None
    if not _INTEGER.fullmatch(item):
        return None
    limits = np.iinfo(datatype.numpy.name)
    return int(item) if limits.min <= int(item) <= limits.max else None


def _whole(shape: Shape, count: int) -> Shape | None:
    """Return the shape with its open size filled in, None where the count does not fit."""
    known = math.prod([size for size in shape if size >= 0])
    if shape.count(-1) > 1 or known == 0:
        return None
    whole = tuple([count // known if size < 0 else size for size in shape])
    return whole if math.prod(whole) == count else None
