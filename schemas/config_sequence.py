"""The sequence batcher of a configuration message as a typed value, defaults filled in (SEMANTICS §1.7).

What cannot be read as one kind of control or one initial value is refused here; whether the parts fit each other and
the tensors is the business of `headrace.schemas.config_check_sequence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from headrace.schemas.config_tensors import datatype_of
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    ControlInput,
    ControlKind,
    InitialState,
    SequenceBatching,
    SequenceStrategy,
    StateConfig,
)
from headrace.schemas.tensor import Datatype
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage

SEQUENCE_IDLE_US = 1_000_000
"""``max_sequence_idle_microseconds`` where the file has none (SEMANTICS SB-04)."""

CORRID_DATATYPES = (
    Datatype.UINT64,
    Datatype.INT64,
    Datatype.UINT32,
    Datatype.INT32,
    Datatype.BYTES,
)
"""What a correlation id can be given to a model as (SEMANTICS SB-05); 32 bits take the lower half (SQ-14)."""

_UTILIZATION_STEP = Decimal("0.000001")


def normalize_sequences(whole: ModelConfigMessage) -> None:
    """Write the sequence batcher's defaults into a message that has one (SEMANTICS SB-03, SB-04).

    Those that follow from the batch size stay open while it is 0: auto-complete may still raise it.
    """
    sequences = whole.sequence_batching
    sequences.max_sequence_idle_microseconds = (
        sequences.max_sequence_idle_microseconds or SEQUENCE_IDLE_US
    )
    if sequences.HasField("oldest") and whole.max_batch_size > 0:
        oldest = sequences.oldest
        oldest.max_candidate_sequences = oldest.max_candidate_sequences or whole.max_batch_size
        if not oldest.preferred_batch_size:
            oldest.preferred_batch_size.append(whole.max_batch_size)


def sequence_batching_of(whole: ModelConfigMessage, file: str) -> SequenceBatching | None:
    """Read the sequence batcher of a normalized message; None where it has none.

    Raises:
        ConfigError: A control tensor does not have exactly one kind with its values, a state more than one initial
            value, or something has no datatype.
    """
    if not whole.HasField("sequence_batching"):
        return None
    given = whole.sequence_batching
    rows = max(1, whole.max_batch_size)
    strategy = SequenceStrategy.DIRECT
    delay_us, utilization = given.direct.max_queue_delay_microseconds, 0.0
    max_candidates, preferred, ordered = rows, {rows}, False
    if given.HasField("oldest"):
        strategy = SequenceStrategy.OLDEST
        delay_us = given.oldest.max_queue_delay_microseconds
        max_candidates = given.oldest.max_candidate_sequences or rows
        preferred = set(given.oldest.preferred_batch_size) or preferred
        ordered = given.oldest.preserve_ordering
    else:
        utilization = _share(given.direct.minimum_slot_utilization)
    return SequenceBatching(
        strategy=strategy,
        max_idle_us=given.max_sequence_idle_microseconds,
        controls=tuple(_controls(given, file)),
        states=tuple(_states(given, file)),
        max_queue_delay_us=delay_us,
        min_slot_utilization=utilization,
        max_candidates=max_candidates,
        preferred_batch_size=tuple(sorted(preferred)),
        preserve_ordering=ordered,
    )


def _share(value: float) -> float:
    """Return a share of slots that ``ready / slots`` reaches when the same division in 32 bits would.

    The field has 32 bits, in which 0.8 is a little more than 0.8: four of five slots would never be enough. Its
    shortest text, rounded down, is what was written or less by too little to be another share.
    """
    if not np.isfinite(value):
        return value
    text = Decimal(str(np.float32(value)))
    return float(text.quantize(_UTILIZATION_STEP, rounding=ROUND_FLOOR))


def _controls(given: pb.ModelSequenceBatching, file: str) -> Iterator[ControlInput]:
    """SB-05: one kind a tensor."""
    for index, tensor in enumerate(given.control_input):
        at = f"sequence_batching.control_input[{tensor.name or index}]"
        if len(tensor.control) != 1:
            kinds = [pb.ModelSequenceBatching.Control.Kind.Name(c.kind) for c in tensor.control]
            raise ConfigError(
                "expected exactly one kind, since a tensor serves one",
                file=file,
                field=f"{at}.control",
                value=f"[{', '.join(kinds)}]",
            )
        yield _control(tensor.name, tensor.control[0], f"{at}.control", file)


def _control(
    name: str, given: pb.ModelSequenceBatching.Control, at: str, file: str
) -> ControlInput:
    kind = ControlKind(pb.ModelSequenceBatching.Control.Kind.Name(given.kind))
    lists: dict[str, tuple[Datatype, Sequence[float]]] = {
        "int32_false_true": (Datatype.INT32, given.int32_false_true),
        "fp32_false_true": (Datatype.FP32, given.fp32_false_true),
        "bool_false_true": (Datatype.BOOL, given.bool_false_true),
    }
    used = [field for field, (_, values) in lists.items() if values]
    if kind is ControlKind.CORRID:
        if used:
            raise ConfigError(
                f"expected none with {kind}, whose values are the ids",
                file=file,
                field=f"{at}.{used[0]}",
                value=list(lists[used[0]][1]),
            )
        return ControlInput(name, kind, _corrid_datatype(given.data_type, at, file))
    if len(used) != 1:
        raise ConfigError(
            f"expected exactly one of {', '.join(lists)} with {kind}",
            file=file,
            field=at,
            value=", ".join(used) or "none",
        )
    datatype, values = lists[used[0]]
    if len(values) != 2:
        raise ConfigError(
            "expected exactly two values, for false and for true",
            file=file,
            field=f"{at}.{used[0]}",
            value=list(values),
        )
    return ControlInput(name, kind, datatype, false=values[0], true=values[1])


def _corrid_datatype(number: int, at: str, file: str) -> Datatype:
    field = f"{at}.data_type"
    datatype = datatype_of(number, field, file) if number else None
    if datatype not in CORRID_DATATYPES:
        raise ConfigError(
            f"expected one of TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING with "
            f"{ControlKind.CORRID}",
            file=file,
            field=field,
            value=pb.DataType.Name(number),
        )
    return datatype


def _states(given: pb.ModelSequenceBatching, file: str) -> Iterator[StateConfig]:
    """SB-07."""
    for index, state in enumerate(given.state):
        at = f"sequence_batching.state[{state.input_name or index}]"
        yield StateConfig(
            input_name=state.input_name,
            output_name=state.output_name,
            datatype=datatype_of(state.data_type, f"{at}.data_type", file),
            dims=tuple(state.dims),
            initial=_initial(state.initial_state, f"{at}.initial_state", file),
            use_same_buffer=state.use_same_buffer_for_input_output,
            use_growable_memory=state.use_growable_memory,
        )


def _initial(
    given: Sequence[pb.ModelSequenceBatching.InitialState], at: str, file: str
) -> InitialState | None:
    """SB-08: none or one."""
    if len(given) > 1:
        raise ConfigError(
            "expected at most one initial state",
            file=file,
            field=at,
            value=[initial.name for initial in given],
        )
    for initial in given:
        source = initial.WhichOneof("state_data")
        if source is None:
            raise ConfigError("expected one of zero_data, data_file", file=file, field=at)
        return InitialState(
            name=initial.name,
            datatype=datatype_of(initial.data_type, f"{at}.data_type", file),
            dims=tuple(initial.dims),
            zero_data=source == "zero_data",
            data_file=initial.data_file,
        )
    return None
