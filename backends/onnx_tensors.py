"""What an ONNX model file declares about its tensors, as plain values. Pure: `headrace.backends.ort` reads the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Datatype, Shape

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


def find_tensor(
    side: str, field: str, name: str, known: Mapping[str, ModelTensor], file: str
) -> ModelTensor:
    """Return a tensor of the model by name.

    Args:
        side: ``input``, ``output`` or ``tensor``, for the error's sentence.
        field: Field that names it, for the error's sentence.
        name: Its name.
        known: The model's tensors of that side.
        file: Model file, for the error's sentence.

    Raises:
        ConfigError: There is none; lists those that there are.
    """
    found = known.get(name)
    if found is None:
        listed = ", ".join(f"'{tensor.name}' ({tensor})" for tensor in known.values()) or "none"
        raise ConfigError(
            f"the model has no {side} of this name, expected one of: {listed}",
            file=file,
            field=field,
            value=name,
        )
    return found


def check_datatype(at: str, datatype: Datatype, found: ModelTensor, file: str) -> None:
    """Check a configured datatype against the model's.

    Raises:
        ConfigError: They differ; ``at`` is the field without its ``data_type``.
    """
    if datatype is not found.datatype:
        raise ConfigError(
            f"the model's tensor is {found}, expected data_type "
            f"{type_name(found.datatype) if found.datatype else 'of a plain tensor'}",
            file=file,
            field=f"{at}.data_type",
            value=type_name(datatype),
        )


def type_name(datatype: Datatype) -> str:
    """Return a datatype as a configuration spells it."""
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype}"
