"""From the configuration message to the typed view that our code reads, with defaults written into the message.

The message stays the whole truth: what is filled in here (SEMANTICS MR-33, PB-62) is filled into a copy of it, and
the view is read from that copy. `config_from_message` may be applied to its own result and changes nothing then,
so auto-complete edits a message and comes back through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from headrace.schemas.config_parameters import read_batch_axes, read_constants
from headrace.schemas.config_sequence import normalize_sequences, sequence_batching_of
from headrace.schemas.config_tensors import (
    batch_inputs_of,
    batch_outputs_of,
    datatype_of,
    tensors_of,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    Accelerator,
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    QueuePolicy,
    TimeoutAction,
    VersionPolicy,
    VersionPolicyKind,
    WarmupInput,
    WarmupSample,
)
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


def config_from_message(
    message: ModelConfigMessage, *, file: str = "", directory_name: str = ""
) -> ModelConfig:
    """Read a configuration message, defaults filled in.

    Args:
        message: As parsed or auto-completed; not changed.
        file: Path for the error's sentence.
        directory_name: The model directory's name, which ``name`` must equal (MR-04); ``""`` is no check.

    Returns:
        The view over a normalized copy. Inputs, outputs, backend and instance groups may still be empty: they
        are filled by auto-complete and `resolve`.

    Raises:
        ConfigError: ``name`` differs from the directory, or a value has no meaning in Triton's schema.
    """
    whole = ModelConfigMessage()
    whole.CopyFrom(message)
    _check_enums(whole, file)
    if directory_name:
        _take_name(whole, directory_name, file)
    _normalize(whole)
    parameters = {key: value.string_value for key, value in whole.parameters.items()}
    return ModelConfig(
        name=whole.name,
        platform=whole.platform,
        backend=whole.backend,
        max_batch_size=whole.max_batch_size,
        inputs=tuple(tensors_of(whole.input, "input", file)),
        outputs=tuple(tensors_of(whole.output, "output", file)),
        batch_inputs=tuple(batch_inputs_of(whole, file)),
        batch_outputs=tuple(batch_outputs_of(whole, file)),
        version_policy=_version_policy(whole.version_policy),
        dynamic_batching=_dynamic_batching(whole),
        instance_groups=tuple(map(_instance_group, whole.instance_group)),
        default_model_filename=whole.default_model_filename,
        parameters=parameters,
        gpu_accelerators=_accelerators(whole, "gpu_execution_accelerator"),
        cpu_accelerators=_accelerators(whole, "cpu_execution_accelerator"),
        metric_tags=dict(whole.metric_tags),
        warmup=tuple(_warmup(whole, file)),
        decoupled=whole.model_transaction_policy.decoupled,
        message=whole,
        sequence_batching=sequence_batching_of(whole, file),
        batch_axes=read_batch_axes(parameters, file),
        constants=read_constants(parameters),
    )


def resolve(
    config: ModelConfig,
    *,
    backend: str,
    default_cpu_count: int = 1,
    gpus: Sequence[int] = (),
    file: str = "",
) -> ModelConfig:
    """Fill in what the backend decides: its name and the instance groups (SEMANTICS MR-30, MR-33).

    Args:
        config: After auto-complete.
        backend: Name of the backend that runs it.
        default_cpu_count: Instances of a CPU group that gives no count.
        gpus: GPUs that the backend can use; none: ``KIND_AUTO`` is ``KIND_CPU``.
        file: Path for the error's sentence.

    Returns:
        The configuration as it is served and shown.
    """
    whole = ModelConfigMessage()
    whole.CopyFrom(config.message)
    whole.backend = backend
    kinds = pb.ModelInstanceGroup
    if not whole.instance_group:
        whole.instance_group.add(name=whole.name)
    for index, group in enumerate(whole.instance_group):
        group.name = group.name or f"{whole.name}_{index}"
        if group.kind == kinds.KIND_AUTO:
            if gpus and set(group.gpus) <= set(gpus):
                group.kind = kinds.KIND_GPU
            else:
                group.kind = kinds.KIND_CPU
                del group.gpus[:]
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
        if group.count == 0:
            group.count = default_cpu_count if group.kind == kinds.KIND_CPU else 1
    return config_from_message(whole, file=file)


def _take_name(whole: ModelConfigMessage, directory_name: str, file: str) -> None:
    """Name the model as its directory is, unless it says otherwise itself (SEMANTICS MR-04)."""
    whole.name = whole.name or directory_name
    if whole.name != directory_name:
        raise ConfigError(
            f"directory name must equal model name, expected '{directory_name}'",
            file=file,
            field="name",
            value=whole.name,
        )


def _normalize(whole: ModelConfigMessage) -> None:
    """Write Triton's defaults into the message, as its config endpoint shows them."""
    if whole.version_policy.WhichOneof("policy_choice") is None:
        whole.version_policy.latest.num_versions = 1
    if whole.version_policy.HasField("latest") and whole.version_policy.latest.num_versions == 0:
        whole.version_policy.latest.num_versions = 1
    if whole.HasField("dynamic_batching") and whole.max_batch_size > 0:
        batching = whole.dynamic_batching
        if not batching.preferred_batch_size:
            batching.preferred_batch_size.append(whole.max_batch_size)
    if whole.HasField("sequence_batching"):
        normalize_sequences(whole)
    if not whole.HasField("ensemble_scheduling"):
        for buffer in ("input_pinned_memory", "output_pinned_memory"):
            if not whole.optimization.HasField(buffer):
                getattr(whole.optimization, buffer).enable = True


def _check_enums(whole: ModelConfigMessage, file: str) -> None:
    """Refuse enum numbers without a name: protobuf's text and JSON parsers let any number pass."""
    for path, field, number in _values(whole):
        if field.enum_type is not None and number not in field.enum_type.values_by_number:
            known = ", ".join(item.name for item in field.enum_type.values)
            raise ConfigError(f"expected one of {known}", file=file, field=path, value=number)


def _values(message: Message, path: str = "") -> Iterator[tuple[str, FieldDescriptor, object]]:
    """Yield every scalar that is set in a message and below, with its dotted path."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        inner = field.message_type
        items: Iterable[tuple[str, object]]
        if inner is not None and inner.GetOptions().map_entry:
            items = [(f"{name}[{key}]", value[key]) for key in value]
        elif field.is_repeated:
            items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        else:
            items = [(name, value)]
        for at, item in items:
            if isinstance(item, Message):
                yield from _values(item, f"{at}.")
            else:
                yield at, field, item


def _version_policy(policy: pb.ModelVersionPolicy) -> VersionPolicy:
    kind = VersionPolicyKind(policy.WhichOneof("policy_choice"))
    if kind is VersionPolicyKind.SPECIFIC:
        return VersionPolicy(kind, versions=tuple(policy.specific.versions))
    if kind is VersionPolicyKind.LATEST:
        return VersionPolicy(kind, num_versions=policy.latest.num_versions)
    return VersionPolicy(kind)


def _dynamic_batching(whole: ModelConfigMessage) -> DynamicBatching | None:
    if not whole.HasField("dynamic_batching"):
        return None
    batching = whole.dynamic_batching
    # A model without batching still queues by these rules, one request at a time.
    preferred = set(batching.preferred_batch_size) or {max(1, whole.max_batch_size)}
    return DynamicBatching(
        preferred_batch_size=tuple(sorted(preferred)),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policy={
            level: _queue_policy(batching.priority_queue_policy[level])
            for level in sorted(batching.priority_queue_policy)
        },
    )


def _queue_policy(policy: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(
            pb.ModelQueuePolicy.TimeoutAction.Name(policy.timeout_action)
        ),
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _instance_group(group: pb.ModelInstanceGroup) -> InstanceGroup:
    return InstanceGroup(
        name=group.name,
        kind=InstanceKind(pb.ModelInstanceGroup.Kind.Name(group.kind)),
        count=group.count,
        gpus=tuple(group.gpus),
    )


def _accelerators(whole: ModelConfigMessage, field: str) -> tuple[Accelerator, ...]:
    listed = getattr(whole.optimization.execution_accelerators, field)
    return tuple(Accelerator(item.name, dict(item.parameters)) for item in listed)


def _warmup(whole: ModelConfigMessage, file: str) -> Iterator[WarmupSample]:
    for index, sample in enumerate(whole.model_warmup):
        inputs: dict[str, WarmupInput] = {}
        for name in sorted(sample.inputs):
            given = sample.inputs[name]
            at = f"model_warmup[{index}].inputs[{name}]"
            source = given.WhichOneof("input_data_type")
            if source is None:
                raise ConfigError(
                    "expected one of zero_data, random_data, input_data_file", file=file, field=at
                )
            inputs[name] = WarmupInput(
                datatype=datatype_of(given.data_type, f"{at}.data_type", file),
                dims=tuple(given.dims),
                zero_data=source == "zero_data",
                random_data=source == "random_data",
                input_data_file=given.input_data_file,
            )
        yield WarmupSample(
            name=sample.name,
            batch_size=sample.batch_size,
            inputs=inputs,
            count=sample.count or 1,
        )
