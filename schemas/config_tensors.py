"""The tensors of a configuration message as typed values: inputs, outputs and ragged helpers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import BatchInput, BatchInputKind, BatchOutput, TensorConfig
from headrace.schemas.tensor import Datatype
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


def data_type_of(datatype: Datatype) -> int:
    """Return the configuration's enum number of a datatype, for who fills tensors into a message."""
    name = "STRING" if datatype is Datatype.BYTES else datatype.value
    return int(pb.DataType.Value(f"TYPE_{name}"))


def datatype_of(number: int, field: str, file: str) -> Datatype:
    """Return the datatype of the configuration's enum number.

    Raises:
        ConfigError: It is ``TYPE_INVALID``, as where the file says none.
    """
    name = pb.DataType.Name(number).removeprefix("TYPE_")
    if name == "INVALID":
        known = ", ".join(key for key in pb.DataType.keys() if key != "TYPE_INVALID")  # noqa: SIM118  # no mapping
        raise ConfigError(f"expected one of {known}", file=file, field=field, value="TYPE_INVALID")
    return Datatype.BYTES if name == "STRING" else Datatype(name)


def tensors_of(
    messages: Sequence[pb.ModelInput | pb.ModelOutput], side: str, file: str
) -> Iterator[TensorConfig]:
    """Yield the inputs or the outputs of a message; ``side`` is their field name."""
    for index, tensor in enumerate(messages):
        yield TensorConfig(
            name=tensor.name,
            datatype=datatype_of(tensor.data_type, f"{side}[{index}].data_type", file),
            dims=tuple(tensor.dims),
            reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
            optional=side == "input" and tensor.optional,
            allow_ragged_batch=side == "input" and tensor.allow_ragged_batch,
            is_shape_tensor=tensor.is_shape_tensor,
            label_filename="" if side == "input" else tensor.label_filename,
        )


def _one_source(sources: Sequence[str], field: str, file: str) -> str:
    if len(sources) != 1:
        raise ConfigError(
            "expected exactly one source input", file=file, field=field, value=list(sources)
        )
    return sources[0]


def batch_inputs_of(whole: ModelConfigMessage, file: str) -> Iterator[BatchInput]:
    """Yield the ragged helpers (SEMANTICS §1.4)."""
    for index, helper in enumerate(whole.batch_input):
        at = f"batch_input[{index}]"
        if helper.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
            raise ConfigError(
                "expected TYPE_INT32 or TYPE_FP32",
                file=file,
                field=f"{at}.data_type",
                value=pb.DataType.Name(helper.data_type),
            )
        yield BatchInput(
            kind=BatchInputKind(pb.BatchInput.Kind.Name(helper.kind)),
            target_names=tuple(helper.target_name),
            datatype=datatype_of(helper.data_type, f"{at}.data_type", file),
            source_input=_one_source(helper.source_input, f"{at}.source_input", file),
        )


def batch_outputs_of(whole: ModelConfigMessage, file: str) -> Iterator[BatchOutput]:
    """Yield the ragged outputs (SEMANTICS §1.4)."""
    for index, scatter in enumerate(whole.batch_output):
        source = _one_source(scatter.source_input, f"batch_output[{index}].source_input", file)
        yield BatchOutput(target_names=tuple(scatter.target_name), source_input=source)
