"""What an ONNX model file says about its tensors, against what a configuration says: completed and checked.

Pure: `headrace.backends.ort` reads the file. Completion follows SEMANTICS AC-01 and AC-02, the checks those
that Triton's ONNX Runtime backend makes at load, with one liberty: an output may be configured with a fixed
size where the model leaves it open, because each execution is checked against the configuration anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.backends.onnx_feeds import constant_feeds
from headrace.backends.onnx_tensors import (
    ModelTensor,
    ModelTensors,
    check_datatype,
    find_tensor,
)
from headrace.schemas.config_parameters import BATCH_AXIS, CONSTANT, parameter_field
from headrace.schemas.config_tensors import data_type_of
from headrace.schemas.config_text import config_from_message
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig, StateConfig, TensorConfig
from headrace.schemas.tensor import Shape
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


def is_listed(config: ModelConfig) -> bool:
    """Whether inputs and outputs are both listed, so that completion is skipped (SEMANTICS AC-02)."""
    return bool(config.inputs or config.batch_inputs) and bool(config.outputs)


def complete_config(
    config: ModelConfig, tensors: ModelTensors, default_max_batch_size: int, file: str
) -> ModelConfig:
    """Return the configuration with the absent side, batch size and scheduler filled in (AC-01, AC-02).

    Args:
        config: As parsed; unchanged. Returned as it is when inputs and outputs are both listed.
        tensors: What the model file declares.
        default_max_batch_size: Rows per batch where the model allows batching and the user says nothing.
        file: Model file, for error texts.

    Raises:
        ConfigError: The user asks for batching and the model's tensors do not allow it, what is listed
            contradicts the model, or a tensor to fill in has no V2 datatype.
    """
    if is_listed(config):
        return config
    _check_parameters(config, tensors, file)
    message = ModelConfigMessage()
    message.CopyFrom(config.message)
    # An output that V2 cannot carry is not served, so it has no say in batching either, and a constant has no rows.
    served = (
        *(t for t in tensors.inputs if t.name not in config.constants),
        *(t for t in tensors.outputs if t.datatype is not None),
    )
    axes = config.batch_axes
    fixed = [t for t in served if not _is_open(t, axes.get(t.name, 0))]
    if not fixed:
        if message.max_batch_size == 0:
            message.max_batch_size = max(default_max_batch_size, 0)
        if message.max_batch_size > 1 and message.WhichOneof("scheduling_choice") is None:
            message.dynamic_batching.SetInParent()
    elif message.max_batch_size != 0:
        raise ConfigError(
            f"the model does not support batching: {_axis_name(axes.get(fixed[0].name, 0))} of "
            f"'{fixed[0].name}' is not open ({fixed[0]}), expected 0 or a model whose tensors all begin with an "
            f"open dimension{_other_way(fixed[0], tensors)}",
            file=file,
            field="max_batch_size",
            value=message.max_batch_size,
        )
    placed = axes if message.max_batch_size > 0 else None
    if not config.inputs and not config.batch_inputs:
        made = _made_inputs(config)
        inputs = [tensor for tensor in tensors.inputs if tensor.name not in made]
        _fill("input", message.input, inputs, axes=placed, file=file)
    if not config.outputs:
        states = {state.output_name for state in config.states}
        outputs = [tensor for tensor in tensors.outputs if tensor.name not in states]
        _fill("output", message.output, outputs, axes=placed, file=file)
    completed = config_from_message(message, file=file, directory_name=config.name)
    check_config(completed, tensors, file)
    return completed


def _fill(
    field: str,
    target: object,
    tensors: Iterable[ModelTensor],
    *,
    axes: Mapping[str, int] | None,
    file: str,
) -> None:
    """Append one config entry per tensor; a tensor without item dimensions becomes ``[1]`` (AC-02).

    ``axes`` are batch axes that are not the first; None where the model does not batch.
    """
    for tensor in tensors:
        if tensor.datatype is None:
            raise ConfigError(
                f"the model's {field} is {tensor.type}, which no V2 datatype can carry; export the model "
                f"with plain tensors, or list only its other {field}s",
                file=file,
                field=f"{field}.{tensor.name}",
            )
        entry = target.add()  # type: ignore[attr-defined]  # a repeated message field; its class is private
        entry.name = tensor.name
        entry.data_type = data_type_of(tensor.datatype)
        dims = tensor.shape
        if axes is not None:
            axis = axes.get(tensor.name, 0)
            dims = (*dims[:axis], *dims[axis + 1 :])
        entry.dims.extend(dims or (1,))
        if not dims and axes is not None:
            entry.reshape.SetInParent()


def _is_open(tensor: ModelTensor, axis: int) -> bool:
    return axis < len(tensor.shape) and tensor.shape[axis] == -1


def _axis_name(axis: int) -> str:
    return f"dimension {axis}, the batch axis," if axis else "the first dimension"


def _other_way(tensor: ModelTensor, tensors: ModelTensors) -> str:
    """Name the parameter that may make a model batch in spite of a tensor, if there is one."""
    if -1 in tensor.shape:
        return f"; if its batch axis is another one, say so by the parameter {BATCH_AXIS}{tensor.name}"
    if tensor in tensors.inputs:
        return (
            f"; if its value is always the same, give it by the parameter {CONSTANT}{tensor.name}"
        )
    return ""


def _made_inputs(config: ModelConfig) -> set[str]:
    """Return the model inputs that no request brings: of ragged helpers, controls, states and constants."""
    names = {name for helper in config.batch_inputs for name in helper.target_names}
    names.update(control.name for control in config.controls)
    names.update(state.input_name for state in config.states)
    names.update(config.constants)
    return names


def check_config(config: ModelConfig, tensors: ModelTensors, file: str) -> None:
    """Check that each configured tensor exists in the model with its datatype and dims, and none is missing.

    Raises:
        ConfigError: Names the tensor, what is configured and what the model has.
    """
    inputs = {tensor.name: tensor for tensor in (*tensors.inputs, *tensors.optional)}
    outputs = {tensor.name: tensor for tensor in tensors.outputs}
    required = {tensor.name for tensor in tensors.inputs}
    for spec in config.inputs:
        found = find_tensor("input", "input.name", spec.name, inputs, file)
        check_datatype(f"input.{spec.name}", spec.datatype, found, file)
        if spec.optional and spec.name in required:
            raise ConfigError(
                "optional: the model has no value of its own for this input, expected a required input",
                file=file,
                field=f"input.{spec.name}",
            )
        if spec.allow_ragged_batch and config.max_batch_size > 0:
            _check_ragged(spec, found, file)
        else:
            _check_tensor("input", spec, found, config, file)
    for helper in config.batch_inputs:
        for name in helper.target_names:
            found = find_tensor("input", "batch_input.name", name, inputs, file)
            check_datatype(f"batch_input.{name}", helper.datatype, found, file)
    scattered = {name for scatter in config.batch_outputs for name in scatter.target_names}
    for spec in config.outputs:
        found = find_tensor("output", "output.name", spec.name, outputs, file)
        check_datatype(f"output.{spec.name}", spec.datatype, found, file)
        if spec.name not in scattered:
            _check_tensor("output", spec, found, config, file)
    _check_controls(config, inputs, file)
    for state in config.states:
        _check_state(state, config, inputs, outputs, file)
    _check_parameters(config, tensors, file)
    _check_required(config, tensors.inputs, file)


def _check_parameters(config: ModelConfig, tensors: ModelTensors, file: str) -> None:
    """Check that ``constant.*`` and ``batch_axis.*`` name tensors of the model, and the constants' values."""
    constant_feeds(config, tensors, file)
    every = (*tensors.inputs, *tensors.optional, *tensors.outputs)
    known = {tensor.name: tensor for tensor in every}
    for name in config.batch_axes:
        find_tensor("tensor", parameter_field(BATCH_AXIS, name), name, known, file)


def _check_ragged(spec: TensorConfig, found: ModelTensor, file: str) -> None:
    if found.shape != (-1,):
        raise ConfigError(
            f"the model's tensor is {found}, expected shape [-1] for a ragged input",
            file=file,
            field=f"input.{spec.name}.allow_ragged_batch",
            value="true",
        )


def _check_tensor(
    side: str, spec: TensorConfig, found: ModelTensor, config: ModelConfig, file: str
) -> None:
    field = f"{side}.{spec.name}.{'dims' if spec.reshape is None else 'reshape'}"
    dims = spec.dims if spec.reshape is None else spec.reshape
    batched = config.max_batch_size > 0 and not spec.is_shape_tensor
    axis = config.batch_axes.get(spec.name, 0) if batched else None
    _check_dims(field, dims, found, axis=axis, file=file)


def _check_dims(
    field: str, dims: Shape, found: ModelTensor, *, axis: int | None, file: str
) -> None:
    """Compare the shape that the model sees, batch axis included; -1 on either side fits any size.

    ``axis`` is the place of the batch axis, None where the tensor has none.
    """
    if axis is None and not found.shape:
        # A scalar is configured as [1], since dims may not be empty (MR-22).
        fits = all(dim == 1 for dim in dims)
        expected = "dims [1] for a scalar"
    elif axis is None:
        fits = _fits(dims, found.shape)
        expected = f"dims {list(found.shape)}"
    else:
        whole = (*dims[:axis], -1, *dims[axis:])
        fits = _fits(whole, found.shape) and _is_open(found, axis)
        place = "first dimension and then" if axis == 0 else f"dimension {axis} among"
        expected = (
            f"an open {place} the item's dims, since max_batch_size > 0 makes the whole shape "
            f"{list(whole)}"
        )
    if not fits:
        raise ConfigError(
            f"the model's tensor is {found}, expected {expected}",
            file=file,
            field=field,
            value=list(dims),
        )


def _fits(configured: Shape, found: Shape) -> bool:
    return len(configured) == len(found) and all(
        -1 in (one, other) or one == other for one, other in zip(configured, found, strict=True)
    )


def _check_controls(config: ModelConfig, inputs: Mapping[str, ModelTensor], file: str) -> None:
    """SB-06: a control has one element per row, ``[N, 1]`` or ``[N]``, and ``[1]`` without batching."""
    for control in config.controls:
        at = f"sequence_batching.control_input[{control.name}]"
        found = find_tensor("input", f"{at}.name", control.name, inputs, file)
        check_datatype(f"{at}.control", control.datatype, found, file)
        sizes = found.shape
        expected = "shape [1]"
        fits = True
        if config.max_batch_size > 0:
            axis = config.batch_axes.get(control.name, 0)
            fits = _is_open(found, axis)
            sizes = (*sizes[:axis], *sizes[axis + 1 :])
            expected = f"an open dimension {axis} for the batch, and no other size than 1"
        if not fits or any(size not in (1, -1) for size in sizes):
            raise ConfigError(
                f"the model's tensor is {found}, expected {expected}",
                file=file,
                field=f"{at}.name",
                value=control.name,
            )


def _check_state(
    state: StateConfig,
    config: ModelConfig,
    inputs: Mapping[str, ModelTensor],
    outputs: Mapping[str, ModelTensor],
    file: str,
) -> None:
    """SB-07: what the model gives can be what it takes."""
    at = f"sequence_batching.state[{state.input_name}]"
    given = find_tensor("input", f"{at}.input_name", state.input_name, inputs, file)
    made = find_tensor("output", f"{at}.output_name", state.output_name, outputs, file)
    for found in (given, made):
        check_datatype(at, state.datatype, found, file)
        axis = config.batch_axes.get(found.name, 0) if config.max_batch_size > 0 else None
        _check_dims(f"{at}.dims", state.dims, found, axis=axis, file=file)


def _check_required(config: ModelConfig, inputs: Sequence[ModelTensor], file: str) -> None:
    given = {spec.name for spec in config.inputs} | _made_inputs(config)
    missing = [tensor for tensor in inputs if tensor.name not in given]
    if missing:
        listed = ", ".join(f"'{tensor.name}' ({tensor})" for tensor in missing)
        raise ConfigError(
            f"the model needs inputs that the configuration does not list: {listed}",
            file=file,
            field="input",
        )
