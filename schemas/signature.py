"""What a model version takes and gives, compiled from its configuration for the path of each request.

`Signature.admit` is the one validation: the gateway calls it before it produces, the worker before it queues.
Its texts carry the fragments that Triton's clients match on (SEMANTICS PB-34…PB-36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.classification import PARAMETER, check_classes
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.infer import RequestedOutput, SequenceId
from headrace.schemas.model_config import (
    BatchInput,
    BatchOutput,
    ControlInput,
    ControlKind,
    ModelConfig,
    StateConfig,
    TensorConfig,
)
from headrace.schemas.sequence import MAX_ID_BYTES
from headrace.schemas.tensor import Buffer, Datatype, Shape, Tensor, check_data

MAX_SHOWN_NAMES = 20
"""Names of inputs that an error lists: a body may have a million."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as the path of each request needs it.

    Attributes:
        name: Tensor name.
        datatype: V2 datatype.
        dims: Without the batch axis; -1 is any size.
        index: Place in the signature.
        fixed: No -1 among `dims`.
        optional: May be absent.
        ragged: Requests of different shapes may share a batch.
        reshape: What the model itself sees instead of `dims`, without the batch axis; None is `dims`.
        batched: Has a leading batch axis on the wire.
        batch_axis: Place of the batch axis in the model's own tensor, among `reshape` or `dims`; on the wire it is
            always the first.
    """

    name: str
    datatype: Datatype
    dims: Shape
    index: int
    fixed: bool
    optional: bool
    ragged: bool
    reshape: Shape | None
    batched: bool
    batch_axis: int = 0

    def wire_dims(self) -> list[int]:
        """Return the shape on the wire, -1 for the batch axis: what metadata and error texts show."""
        return [-1, *self.dims] if self.batched else list(self.dims)

    def model_shape(self, shape: Shape) -> Shape:
        """Return the shape that the model sees for one item of ``shape`` (without the batch axis), MR-23."""
        return shape if self.reshape is None else _reshaped(shape, self.dims, self.reshape)

    def wire_shape(self, shape: Shape) -> Shape:
        """Return the shape on the wire for one item that the model made with ``shape``, MR-23."""
        return shape if self.reshape is None else _reshaped(shape, self.reshape, self.dims)


def _reshaped(shape: Shape, pattern: Shape, target: Shape) -> Shape:
    """Fill the -1 of ``target`` with the sizes that stand at the -1 of ``pattern``, in order.

    A shape that does not fit the pattern is returned unchanged: the caller's own check names it.
    """
    if len(shape) != len(pattern):
        return shape
    sizes = iter([size for size, dim in zip(shape, pattern, strict=True) if dim < 0])
    return tuple(next(sizes) if dim < 0 else dim for dim in target)


class Admitted(NamedTuple):
    """A validated request's columns: see the fields of the same names in `headrace.schemas.batch.Entry`."""

    rows: int
    data: tuple[Buffer | None, ...]
    shapes: tuple[Shape | None, ...]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """An implicit state (SEMANTICS SB-07): what the model gives as ``output`` is its ``input`` in the next step.

    Both have the same datatype and dims; `TensorSpec.index` is the place among the states. They are no inputs and
    outputs of the wire: there is never a reshape, and none is optional or ragged.
    """

    input: TensorSpec
    output: TensorSpec


class Signature:
    """Inputs and outputs of one model version, ready for use.

    Attributes:
        model_name: Model name.
        version: Version number.
        max_batch_size: 0 is no batching.
        inputs: In the order of the configuration.
        outputs: In the order of the configuration.
        batch_inputs: Ragged helpers that are made from inputs.
        batch_outputs: Outputs that are split as an input was joined.
        required: Number of inputs that may not be absent.
        has_optional: Any input may be absent (DB-12).
        usual_shapes: The shapes of a request whose inputs are all present, if all dims are fixed; else None.
        is_sequence: Requests are steps of sequences.
        controls: Tensors that the server makes for a sequence model (SB-06), in the order of the configuration.
        states: Implicit states, in the order of the configuration.
    """

    def __init__(self, config: ModelConfig, version: int) -> None:
        """Compile the configuration of one version."""
        self.model_name = config.name
        self.version = version
        self.max_batch_size = config.max_batch_size
        batched = config.max_batch_size > 0
        axes = config.batch_axes
        self.inputs = tuple(
            _spec(tensor, i, batched=batched, axis=axes.get(tensor.name, 0))
            for i, tensor in enumerate(config.inputs)
        )
        self.outputs = tuple(
            _spec(tensor, i, batched=batched, axis=axes.get(tensor.name, 0))
            for i, tensor in enumerate(config.outputs)
        )
        self.batch_inputs: tuple[BatchInput, ...] = config.batch_inputs
        self.batch_outputs: tuple[BatchOutput, ...] = config.batch_outputs
        self.required = sum(not spec.optional for spec in self.inputs)
        self.has_optional = self.required < len(self.inputs)
        self.usual_shapes: tuple[Shape, ...] | None = (
            tuple(spec.dims for spec in self.inputs)
            if all(spec.fixed for spec in self.inputs)
            else None
        )
        self.is_sequence = config.sequence_batching is not None
        self.controls: tuple[ControlInput, ...] = config.controls
        self.states = tuple(
            _state(state, i, batched=batched, axes=axes) for i, state in enumerate(config.states)
        )
        self._corrid = next(
            (control for control in config.controls if control.kind is ControlKind.CORRID), None
        )
        self._inputs = {spec.name: spec for spec in self.inputs}
        self._outputs = {spec.name: spec for spec in self.outputs}

    def input(self, name: str) -> TensorSpec | None:
        """Return the input of that name."""
        return self._inputs.get(name)

    def output(self, name: str) -> TensorSpec | None:
        """Return the output of that name."""
        return self._outputs.get(name)

    def admit(self, inputs: Sequence[Tensor], outputs: Iterable[RequestedOutput] = ()) -> Admitted:
        """Validate a request against the model.

        Args:
            inputs: In any order; data is not copied.
            outputs: Requested outputs.

        Returns:
            Rows and columns in the signature's order.

        Raises:
            InvalidRequest: With Triton's fragments; names the tensor, what was expected and what came.
        """
        if not self.required <= len(inputs) <= len(self.inputs):
            raise self.wrong_count([tensor.name for tensor in inputs])
        data: list[Buffer | None] = [None] * len(self.inputs)
        shapes: list[Shape | None] = [None] * len(self.inputs)
        rows = 0
        for tensor in inputs:
            spec = self._inputs.get(tensor.name)
            if spec is None:
                raise InvalidRequest(
                    f"unexpected inference input '{tensor.name}' for model '{self.model_name}'"
                )
            if data[spec.index] is not None:
                raise InvalidRequest(f"input '{tensor.name}' already exists in request")
            rows, shape = self._check_tensor(spec, tensor, rows)
            data[spec.index] = tensor.data
            shapes[spec.index] = shape
        self._check_missing(inputs, data)
        self.check_outputs(outputs)
        frozen = tuple(shapes)
        if frozen == self.usual_shapes:
            frozen = self.usual_shapes
        return Admitted(rows or 1, tuple(data), frozen)

    def check_outputs(self, outputs: Iterable[RequestedOutput]) -> None:
        """Check that each requested output exists and is asked for once (SEMANTICS PB-35).

        Raises:
            InvalidRequest: It does not, or twice, or it cannot be classified as it is asked for (CL-02, CL-03).
        """
        seen: set[str] = set()
        for wanted in outputs:
            spec = self._outputs.get(wanted.name)
            if spec is None:
                raise InvalidRequest(
                    f"unexpected inference output '{wanted.name}' for model '{self.model_name}'"
                )
            if wanted.name in seen:
                raise InvalidRequest(f"output '{wanted.name}' already exists in request")
            if wanted.parameters and PARAMETER in wanted.parameters:
                check_classes(wanted.name, spec.datatype, wanted.parameters[PARAMETER])
            seen.add(wanted.name)

    def check_sequence(self, sequence_id: SequenceId, rows: int) -> None:
        """Check that a request can be a step of a sequence; other models take any request.

        Args:
            sequence_id: 0 and ``""`` are none.
            rows: Of the request, as `admit` returned them.

        Raises:
            InvalidRequest: It has no id (SEMANTICS SQ-01), several rows (SQ-02), an id that is too long, or one that
                the model's CORRID control cannot hold (SQ-14).
        """
        if not self.is_sequence:
            return
        request = f"inference request to model '{self.model_name}' must specify"
        if not sequence_id:
            raise InvalidRequest(f"{request} a non-zero or non-empty correlation ID")
        if rows != 1:
            raise InvalidRequest(
                f"{request} batch-size 1 due to requirements of sequence batcher, got {rows}"
            )
        if isinstance(sequence_id, str) and len(sequence_id.encode()) > MAX_ID_BYTES:
            raise InvalidRequest(
                f"the sequence id '{sequence_id[: MAX_ID_BYTES // 4]}…' has {len(sequence_id.encode())} bytes, "
                f"expected at most {MAX_ID_BYTES}"
            )
        if self._corrid is None:
            return
        given = Datatype.BYTES if isinstance(sequence_id, str) else Datatype.UINT64
        if (given is Datatype.BYTES) is not (self._corrid.datatype is Datatype.BYTES):
            raise InvalidRequest(
                f"sequence batching control 'CORRID' data-type is '{given}', but model "
                f"'{self.model_name}' expects '{self._corrid.datatype}'"
            )

    def wrong_count(self, names: Sequence[str]) -> InvalidRequest:
        """Return the error of a request whose number of inputs is not the model's (SEMANTICS PB-34, PB-35)."""
        total = len(self.inputs)
        known: set[str] = set()
        for name in names:  # a caller may name a million
            if name in known:
                return InvalidRequest(f"input '{name}' already exists in request")
            known.add(name)
        missing = [s.name for s in self.inputs if s.name not in known and not s.optional]
        shown = [*names[:MAX_SHOWN_NAMES], *(["…"] if len(names) > MAX_SHOWN_NAMES else [])]
        lists = f"Got input(s) {shown}, but missing required input(s) {missing}."
        if self.has_optional:
            return InvalidRequest(
                f"expected number of inputs between {self.required} and {total} but got "
                f"{len(names)} inputs for model '{self.model_name}'. {lists}"
            )
        return InvalidRequest(
            f"expected {total} inputs but got {len(names)} inputs for model "
            f"'{self.model_name}'. {lists} Please provide all required input(s)."
        )

    def _check_missing(self, inputs: Sequence[Tensor], data: Sequence[Buffer | None]) -> None:
        for spec in self.inputs:
            if data[spec.index] is None and not spec.optional:
                raise InvalidRequest(
                    f"expected {self.required} inputs but got {len(inputs)} inputs for model "
                    f"'{self.model_name}': missing required input '{spec.name}'"
                )

    def _check_tensor(self, spec: TensorSpec, tensor: Tensor, rows: int) -> tuple[int, Shape]:
        """Check datatype, shape and bytes of one input; return the rows and the shape without batch axis."""
        if tensor.datatype is not spec.datatype:
            raise InvalidRequest(
                f"inference input '{spec.name}' data-type is '{tensor.datatype}', but model "
                f"'{self.model_name}' expects '{spec.datatype}'"
            )
        shape = tensor.shape
        if spec.batched:
            if not shape:
                raise self._shape_error(spec, tensor)
            if shape[0] > self.max_batch_size:
                raise InvalidRequest(
                    f"inference request batch-size must be <= {self.max_batch_size} for "
                    f"'{self.model_name}', got {shape[0]}"
                )
            if shape[0] < 1:
                raise InvalidRequest(
                    f"inference request batch-size must be >= 1 for '{self.model_name}', "
                    f"got {shape[0]} in input '{spec.name}'"
                )
            if rows not in (0, shape[0]):
                raise InvalidRequest(
                    f"input '{spec.name}' batch size does not match other inputs for "
                    f"'{self.model_name}': expected {rows}, got {shape[0]}"
                )
            rows, shape = shape[0], shape[1:]
        if spec.fixed:
            fits = shape == spec.dims
        else:
            fits = len(shape) == len(spec.dims) and all(
                size >= 0 and dim in (-1, size) for dim, size in zip(spec.dims, shape, strict=True)
            )
        if not fits:
            raise self._shape_error(spec, tensor)
        check_data(spec.name, spec.datatype, tensor.shape, tensor.data)
        return rows, spec.dims if spec.fixed else shape

    def _shape_error(self, spec: TensorSpec, tensor: Tensor) -> InvalidRequest:
        expected = ",".join(map(str, spec.wire_dims()))
        got = ",".join(map(str, tensor.shape))
        return InvalidRequest(
            f"unexpected shape for input '{spec.name}' for model '{self.model_name}'. "
            f"Expected [{expected}], got [{got}]"
        )


def _spec(tensor: TensorConfig, index: int, *, batched: bool, axis: int = 0) -> TensorSpec:
    batched = batched and not tensor.is_shape_tensor
    return TensorSpec(
        name=tensor.name,
        datatype=tensor.datatype,
        dims=tensor.dims,
        index=index,
        fixed=all(dim >= 0 for dim in tensor.dims),
        optional=tensor.optional,
        ragged=tensor.allow_ragged_batch,
        reshape=tensor.reshape,
        batched=batched,
        batch_axis=axis if batched else 0,
    )


def _state(state: StateConfig, index: int, *, batched: bool, axes: Mapping[str, int]) -> StateSpec:
    given, made = (
        _spec(
            TensorConfig(name, state.datatype, state.dims),
            index,
            batched=batched,
            axis=axes.get(name, 0),
        )
        for name in (state.input_name, state.output_name)
    )
    return StateSpec(given, made)
