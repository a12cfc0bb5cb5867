"""A model's configuration as Headrace reads it: frozen, validated, in Triton's own field names.

The protobuf message is the whole configuration and is kept (`ModelConfig.message`); the dataclasses are the
typed view of what our code reads, with defaults filled in. Parsing and validation live in
`headrace.schemas.config_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.schemas.errors import InvalidRequest
from headrace.schemas.tensor import Datatype, Shape

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


def check_load_name(name: str) -> None:
    """Check the name that somebody asks to load (SEMANTICS MR-14).

    Raises:
        InvalidRequest: Empty after trimming, ``..``, or a path.
    """
    trimmed = name.strip()
    if not trimmed:
        raise InvalidRequest("Model name cannot be empty")
    if trimmed == ".." or "/" in trimmed:
        raise InvalidRequest(
            f"Model name '{name}' must not contain path traversal characters ('/' or '..')"
        )


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """One input or output (SEMANTICS MR-21).

    Attributes:
        name: Tensor name.
        datatype: V2 datatype.
        dims: Without the batch axis; -1 is any size.
        reshape: The shape that the model itself sees, without the batch axis; None where it is `dims`.
        optional: Input only: a request may leave it out.
        allow_ragged_batch: Input only: requests of different shapes may share a batch.
        is_shape_tensor: The tensor has no batch axis of its own.
        label_filename: Output only: file of class labels, relative to the model directory.
    """

    name: str
    datatype: Datatype
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    is_shape_tensor: bool = False
    label_filename: str = ""


class BatchInputKind(StrEnum):
    """What a helper tensor says about a ragged batch (SEMANTICS §1.4)."""

    BATCH_ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    BATCH_ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    BATCH_ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    BATCH_ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A helper tensor that the server makes for a ragged batch: INT32 or FP32, from one source input."""

    kind: BatchInputKind
    target_names: tuple[str, ...]
    datatype: Datatype
    source_input: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """An output of a ragged batch that is split as ``source_input`` was joined."""

    target_names: tuple[str, ...]
    source_input: str


class TimeoutAction(StrEnum):
    """What happens to a request whose queue timeout passes (SEMANTICS DB-08)."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A queue policy of the dynamic batcher (SEMANTICS DB-08…DB-11).

    Attributes:
        timeout_action: Refuse or put behind.
        default_timeout_us: Queue timeout in µs; 0 is none.
        allow_timeout_override: A request's ``timeout`` may shorten it.
        max_queue_size: Requests of this level that may wait; 0 is unlimited.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """The dynamic batcher's settings (SEMANTICS DB-01…DB-07), defaults filled in.

    Attributes:
        preferred_batch_size: Ascending, never empty: ``(max_batch_size,)`` where the file has none.
        max_queue_delay_us: How long the oldest request may be held, µs.
        preserve_ordering: Responses leave in arrival order.
        priority_levels: Levels 1..N, 1 first; 0 is no priorities.
        default_priority_level: Level of requests that name none.
        default_queue_policy: For levels without their own.
        priority_queue_policy: Level → policy.
    """

    preferred_batch_size: tuple[int, ...]
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy(self, level: int) -> QueuePolicy:
        """Return the queue policy of a priority level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


class ControlKind(StrEnum):
    """What a control tensor tells a sequence model (SEMANTICS SB-05)."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class ControlInput:
    """A tensor that the server makes for a sequence model; clients must not send it (SEMANTICS SB-05, SB-06).

    Attributes:
        name: Tensor name.
        kind: What it tells.
        datatype: INT32, FP32 or BOOL; of CORRID: UINT64, INT64, UINT32, INT32 or BYTES.
        false: Value for "no"; 0 for CORRID.
        true: Value for "yes"; 0 for CORRID.
    """

    name: str
    kind: ControlKind
    datatype: Datatype
    false: float = 0
    true: float = 0


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a state is at START (SEMANTICS SB-08): zeros, or a file of raw bytes under ``initial_state/``."""

    name: str
    datatype: Datatype
    dims: Shape
    zero_data: bool = False
    data_file: str = ""


@dataclass(frozen=True, slots=True)
class StateConfig:
    """An implicit state: an output of one step that is an input of the next (SEMANTICS SB-07).

    Attributes:
        input_name: As the model takes it.
        output_name: As the model gives it.
        datatype: V2 datatype.
        dims: Without the batch axis; -1 is any size.
        initial: None: zeros, each -1 of the dims taken as 1 (SB-08).
        use_same_buffer: Accepted; a state has one value at a time here anyhow.
        use_growable_memory: The same.
    """

    input_name: str
    output_name: str
    datatype: Datatype
    dims: Shape
    initial: InitialState | None = None
    use_same_buffer: bool = False
    use_growable_memory: bool = False


class SequenceStrategy(StrEnum):
    """How steps of different sequences share a batch (SEMANTICS SB-01)."""

    DIRECT = "direct"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """The sequence batcher's settings (SEMANTICS SB-01…SB-10), defaults filled in.

    Attributes:
        strategy: Direct or oldest.
        max_idle_us: A sequence whose next request comes later than this after its last one has expired, µs (SB-04).
        controls: Control tensors.
        states: Implicit states; none: the model keeps memory of its own, which cannot be saved.
        max_queue_delay_us: Direct: the longest wait for ``min_slot_utilization``; oldest: of the dynamic batcher.
        min_slot_utilization: Direct: share of slots that must be ready, 0..1 (SB-02).
        max_candidates: Live sequences per instance, which are its slots, never 0 (SB-03, SB-11): with direct one per
            row of a batch.
        preferred_batch_size: Oldest: ascending, never empty.
        preserve_ordering: Oldest: responses of all sequences leave in arrival order.
    """

    strategy: SequenceStrategy = SequenceStrategy.DIRECT
    max_idle_us: int = 1_000_000
    controls: tuple[ControlInput, ...] = ()
    states: tuple[StateConfig, ...] = ()
    max_queue_delay_us: int = 0
    min_slot_utilization: float = 0.0
    max_candidates: int = 1
    preferred_batch_size: tuple[int, ...] = (1,)
    preserve_ordering: bool = False

    def control(self, kind: ControlKind) -> ControlInput | None:
        """Return the control tensor of a kind, None where the model takes none."""
        return next((control for control in self.controls if control.kind is kind), None)


class InstanceKind(StrEnum):
    """Where an instance group runs (SEMANTICS MR-30)."""

    KIND_AUTO = "KIND_AUTO"
    KIND_GPU = "KIND_GPU"
    KIND_CPU = "KIND_CPU"
    KIND_MODEL = "KIND_MODEL"


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Copies of a model on one kind of device, normalized: name, kind and count are filled in (MR-33)."""

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An execution accelerator, such as ``tensorrt`` or ``cuda``, with its parameters (MR-42)."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


class VersionPolicyKind(StrEnum):
    """Which versions on disk are served (SEMANTICS MR-06)."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which versions are served: the highest ``num_versions``, all, or the listed ``versions``."""

    kind: VersionPolicyKind = VersionPolicyKind.LATEST
    num_versions: int = 1
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a warm-up sample (SEMANTICS MR-41): exactly one of the three data sources is set."""

    datatype: Datatype
    dims: Shape
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """A request that each instance must answer before the model is READY (SEMANTICS MR-41)."""

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's configuration after parsing, auto-completion and validation.

    Attributes:
        name: Model name; the directory's.
        platform: Triton platform, maybe empty.
        backend: Name of the backend that runs it, never empty once resolved.
        max_batch_size: 0 is no batching; above, every tensor has a leading batch axis.
        inputs: In the order of the file.
        outputs: In the order of the file.
        batch_inputs: Ragged helpers.
        batch_outputs: Ragged outputs.
        version_policy: Which versions are served.
        dynamic_batching: None, and no sequence batching: the default scheduler, one request per execution (DB-33).
        sequence_batching: None: requests are independent of each other.
        batch_axes: Tensor name → place of the batch axis in the model's own tensor, where the parameter
            ``batch_axis.<tensor>`` says that it is not the first (`headrace.schemas.config_parameters`).
        constants: Model input → its value as text: inputs without a batch axis that the server feeds itself, by the
            parameter ``constant.<tensor>``.
        instance_groups: Normalized, never empty once resolved.
        default_model_filename: Overrides the backend's own file name.
        parameters: For the backend, string values.
        gpu_accelerators: Execution accelerators on GPU.
        cpu_accelerators: Execution accelerators on CPU.
        metric_tags: Extra metric labels, emitted with a ``_`` prefix.
        warmup: Samples, in order.
        decoupled: 0..n responses per request.
        message: The whole configuration, normalized: what the config endpoint shows.
    """

    name: str
    platform: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    batch_inputs: tuple[BatchInput, ...]
    batch_outputs: tuple[BatchOutput, ...]
    version_policy: VersionPolicy
    dynamic_batching: DynamicBatching | None
    instance_groups: tuple[InstanceGroup, ...]
    default_model_filename: str
    parameters: Mapping[str, str]
    gpu_accelerators: tuple[Accelerator, ...]
    cpu_accelerators: tuple[Accelerator, ...]
    metric_tags: Mapping[str, str]
    warmup: tuple[WarmupSample, ...]
    decoupled: bool
    message: ModelConfigMessage
    sequence_batching: SequenceBatching | None = None
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)

    @property
    def controls(self) -> tuple[ControlInput, ...]:
        """Control tensors; none without sequence batching."""
        return () if self.sequence_batching is None else self.sequence_batching.controls

    @property
    def states(self) -> tuple[StateConfig, ...]:
        """Implicit states; none without sequence batching."""
        return () if self.sequence_batching is None else self.sequence_batching.states
