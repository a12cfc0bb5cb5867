"""What an ONNX model file says about its tensors, against what a configuration says: completed and checked.

Pure: `headrace.backends.ort` reads the file. Completion follows SEMANTICS AC-01 and AC-02, the checks those
that Triton's ONNX Runtime backend makes at load, with one liberty: an output may be configured with a fixed
size where the model leaves it open, because each execution is checked against the configuration anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.schemas.config_tensors import data_type_of
from headrace.schemas.config_text import config_from_message
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig, TensorConfig
from headrace.schemas.tensor import Datatype, Shape
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage

DATATYPES = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(string)": Datatype.BYTES,
}
"""ONNX Runtime's spelling of a tensor type → V2 datatype (SEMANTICS MR-20)."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One input or output as the model file declares it.

    Attributes:
        name: Tensor name.
        type: ONNX Runtime's spelling, such as ``tensor(float)``.
        shape: Whole shape, -1 where the model leaves a size open; empty for a scalar and for an unknown rank.
    """

    name: str
    type: str
    shape: Shape

    @property
    def datatype(self) -> Datatype | None:
        """V2 datatype; None where V2 has none (sequences, maps, 8-bit floats …)."""
        return DATATYPES.get(self.type)

    def __str__(self) -> str:
        """Say datatype and shape, for error sentences."""
        return f"{self.datatype or self.type} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """All tensors of a model file.

    Attributes:
        inputs: That a request must bring.
        optional: Inputs with a value of their own in the file (initializers); a request may override them.
        outputs: In the order of the file.
    """

    inputs: tuple[ModelTensor, ...]
    optional: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]


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
    message = ModelConfigMessage()
    message.CopyFrom(config.message)
    # An output that V2 cannot carry is not served, so it has no say in batching either.
    served = (*tensors.inputs, *(t for t in tensors.outputs if t.datatype is not None))
    fixed = [t for t in served if not t.shape or t.shape[0] >= 0]
    if not fixed:
        if message.max_batch_size == 0:
            message.max_batch_size = max(default_max_batch_size, 0)
        if message.max_batch_size > 1 and message.WhichOneof("scheduling_choice") is None:
            message.dynamic_batching.SetInParent()
    elif message.max_batch_size != 0:
        raise ConfigError(
            f"the model does not support batching: the first dimension of '{fixed[0].name}' is not "
            f"open ({fixed[0]}), expected 0 or a model whose tensors all begin with an open dimension",
            file=file,
            field="max_batch_size",
            value=message.max_batch_size,
        )
    batched = message.max_batch_size > 0
    if not config.inputs and not config.batch_inputs:
        _fill("input", message.input, tensors.inputs, batched=batched, file=file)
    if not config.outputs:
        _fill("output", message.output, tensors.outputs, batched=batched, file=file)
    completed = config_from_message(message, file=file, directory_name=config.name)
    check_config(completed, tensors, file)
    return completed


def _fill(
    field: str,
    target: object,
    tensors: Iterable[ModelTensor],
    *,
    batched: bool,
    file: str,
) -> None:
    """Append one config entry per tensor; a tensor without item dimensions becomes ``[1]`` (AC-02)."""
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
        dims = tensor.shape[1:] if batched else tensor.shape
        entry.dims.extend(dims or (1,))
        if not dims and batched:
            entry.reshape.SetInParent()


def _type_name(datatype: Datatype) -> str:
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype}"


def check_config(config: ModelConfig, tensors: ModelTensors, file: str) -> None:
    """Check that each configured tensor exists in the model with its datatype and dims, and none is missing.

    Raises:
        ConfigError: Names the tensor, what is configured and what the model has.
    """
    batched = config.max_batch_size > 0
    inputs = {tensor.name: tensor for tensor in (*tensors.inputs, *tensors.optional)}
    required = {tensor.name for tensor in tensors.inputs}
    for spec in config.inputs:
        found = _find("input", spec.name, inputs, file)
        _check_datatype("input", spec.name, spec.datatype, found, file)
        if spec.optional and spec.name in required:
            raise ConfigError(
                "optional: the model has no value of its own for this input, expected a required input",
                file=file,
                field=f"input.{spec.name}",
            )
        if spec.allow_ragged_batch and batched:
            _check_ragged(spec, found, file)
        else:
            _check_dims("input", spec, found, batched=batched, file=file)
    for helper in config.batch_inputs:
        for name in helper.target_names:
            found = _find("batch_input", name, inputs, file)
            _check_datatype("batch_input", name, helper.datatype, found, file)
    _check_required(config, tensors.inputs, file)
    outputs = {tensor.name: tensor for tensor in tensors.outputs}
    scattered = {name for scatter in config.batch_outputs for name in scatter.target_names}
    for spec in config.outputs:
        found = _find("output", spec.name, outputs, file)
        _check_datatype("output", spec.name, spec.datatype, found, file)
        if spec.name not in scattered:
            _check_dims("output", spec, found, batched=batched, file=file)


def _find(field: str, name: str, known: dict[str, ModelTensor], file: str) -> ModelTensor:
    found = known.get(name)
    if found is None:
        side = "output" if field == "output" else "input"
        listed = ", ".join(f"'{tensor.name}' ({tensor})" for tensor in known.values()) or "none"
        raise ConfigError(
            f"the model has no {side} of this name, expected one of: {listed}",
            file=file,
            field=f"{field}.name",
            value=name,
        )
    return found


def _check_datatype(
    field: str, name: str, datatype: Datatype, found: ModelTensor, file: str
) -> None:
    if datatype is not found.datatype:
        raise ConfigError(
            f"the model's tensor is {found}, expected data_type "
            f"{_type_name(found.datatype) if found.datatype else 'of a plain tensor'}",
            file=file,
            field=f"{field}.{name}.data_type",
            value=_type_name(datatype),
        )


def _check_ragged(spec: TensorConfig, found: ModelTensor, file: str) -> None:
    if found.shape != (-1,):
        raise ConfigError(
            f"the model's tensor is {found}, expected shape [-1] for a ragged input",
            file=file,
            field=f"input.{spec.name}.allow_ragged_batch",
            value="true",
        )


def _check_dims(
    field: str, spec: TensorConfig, found: ModelTensor, *, batched: bool, file: str
) -> None:
    """Compare the shape that the model sees, batch axis included; -1 on either side fits any size."""
    dims = spec.dims if spec.reshape is None else spec.reshape
    if not found.shape and not batched:
        # A scalar is configured as [1], since dims may not be empty (MR-22).
        fits = all(dim == 1 for dim in dims)
        expected = "dims [1] for a scalar"
    else:
        with_batch = batched and not spec.is_shape_tensor
        whole: Shape = (-1, *dims) if with_batch else dims
        fits = len(whole) == len(found.shape) and all(
            -1 in (got, wanted) or got == wanted
            for got, wanted in zip(whole, found.shape, strict=True)
        )
        if with_batch and (not found.shape or found.shape[0] != -1):
            fits = False
        expected = (
            f"an open first dimension and then the item's dims, since max_batch_size > 0 makes the "
            f"whole shape {list(whole)}"
            if with_batch
            else f"dims {list(found.shape)}"
        )
    if not fits:
        raise ConfigError(
            f"the model's tensor is {found}, expected {expected}",
            file=file,
            field=f"{field}.{spec.name}.{'dims' if spec.reshape is None else 'reshape'}",
            value=list(dims),
        )


def _check_required(config: ModelConfig, inputs: Sequence[ModelTensor], file: str) -> None:
    given = {spec.name for spec in config.inputs}
    given.update(name for helper in config.batch_inputs for name in helper.target_names)
    sequence = config.message.sequence_batching
    given.update(control.name for control in sequence.control_input)
    given.update(state.input_name for state in sequence.state)
    missing = [tensor for tensor in inputs if tensor.name not in given]
    if missing:
        listed = ", ".join(f"'{tensor.name}' ({tensor})" for tensor in missing)
        raise ConfigError(
            f"the model needs inputs that the configuration does not list: {listed}",
            file=file,
            field="input",
        )
