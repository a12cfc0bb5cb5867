"""What is understood in a configuration and not done: refused where results would differ, else warned about once.

This table is the one place that says so. A rule goes when its feature comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf import text_format
from google.protobuf.message import Message
from headrace.schemas.errors import ConfigError
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


@dataclass(frozen=True, slots=True)
class Rule:
    """One field that is not served.

    Attributes:
        path: Dotted field path; any element of a repeated field counts.
        reason: Why, and what to do: a clause.
    """

    path: str
    reason: str


ENSEMBLE = "ensemble"

REFUSED = (
    Rule(
        "sequence_batching.iterative_sequence",
        "expected false: this release calls a model once per request, and no request is a sequence of its own (SB-12)",
    ),
    Rule(
        "ensemble_scheduling",
        "expected a single model: this release does not chain models, so serve the steps one by one",
    ),
    Rule(
        "model_repository_agents.agents",
        "expected none: this release runs no repository agent, so a checksum, say, would go unchecked",
    ),
    Rule(
        "model_operations.op_library_filename",
        "expected none: this release loads no custom operators",
    ),
    Rule("runtime", "expected none: the backend's own runtime is the only one"),
    Rule(
        "cc_model_filenames",
        "expected none: this release chooses no file by compute capability, so name one by "
        "default_model_filename",
    ),
    Rule(
        "instance_group.passive",
        "expected false: every instance of this release takes requests",
    ),
    Rule(
        "instance_group.secondary_devices",
        "expected none: an instance has one device in this release",
    ),
    Rule(
        "instance_group.profile",
        "expected none: this release chooses no optimization profile",
    ),
    Rule(
        "input.is_shape_tensor",
        "expected false: shape tensors belong to engines that this release lacks",
    ),
    Rule(
        "output.is_shape_tensor",
        "expected false: shape tensors belong to engines that this release lacks",
    ),
)
"""Would change results or behaviour: the model is not loaded."""

REFUSED_PARAMETERS = {
    "TRITON_BATCH_STRATEGY_PATH": "expected none: this release loads no batching library (QT-08)",
}
"""The same, among the free ``parameters``."""

HINTS = (
    Rule("optimization.priority", "the runtime's own scheduling decides"),
    Rule("optimization.input_pinned_memory", "memory is the runtime's business"),
    Rule("optimization.output_pinned_memory", "memory is the runtime's business"),
    Rule("optimization.gather_kernel_buffer_threshold", "inputs are joined on the CPU"),
    Rule("optimization.eager_batching", "a batch is always formed when an instance is free"),
    Rule("optimization.cuda.graphs", "the execution provider decides"),
    Rule("optimization.cuda.graph_spec", "the execution provider decides"),
    Rule("optimization.cuda.busy_wait_events", "the execution provider decides"),
    Rule("optimization.cuda.output_copy_stream", "the execution provider decides"),
    Rule("instance_group.host_policy", "the operating system places threads"),
    Rule("response_cache.enable", "there is no response cache, so each request runs the model"),
    Rule(
        "instance_group.rate_limiter.resources",
        "there is no rate limiter; Triton's own default (--rate-limit=off) passes over it too",
    ),
    Rule("instance_group.rate_limiter.priority", "instances take turns as they become free"),
    Rule(
        "sequence_batching.state.use_same_buffer_for_input_output",
        "a state has one value at a time here anyway",
    ),
    Rule("sequence_batching.state.use_growable_memory", "memory is the runtime's business"),
    Rule("input.is_non_linear_format_io", "tensors are always linear"),
    Rule("output.is_non_linear_format_io", "tensors are always linear"),
    Rule("model_metrics.metric_control", "histograms have the default buckets"),
)
"""Speed only: the model is served without, and one warning per model says so."""


def check_supported(message: ModelConfigMessage, *, file: str) -> list[str]:
    """Refuse what this release does not do, and list what it merely does not need.

    Args:
        message: As parsed, before defaults are written into it.
        file: Path for the sentences.

    Returns:
        Warnings, one sentence for each field that is ignored.

    Raises:
        ConfigError: A field would change results; names it, its value and the reason.
    """
    for rule in REFUSED:
        for path, value in _set(message, rule.path.split(".")):
            raise ConfigError(rule.reason, file=file, field=path, value=_shown(value))
    if message.platform == ENSEMBLE:
        reason = next(rule.reason for rule in REFUSED if rule.path == "ensemble_scheduling")
        raise ConfigError(reason, file=file, field="platform", value=ENSEMBLE)
    for name, reason in REFUSED_PARAMETERS.items():
        if name in message.parameters:
            value = message.parameters[name].string_value
            raise ConfigError(reason, file=file, field=f"parameters[{name}]", value=value)
    return [
        f"{file}: {path} = {_shown(value)} is ignored: {rule.reason}"
        for rule in HINTS
        for path, value in _set(message, rule.path.split("."))
    ]


def check_decoupled(
    message: ModelConfigMessage, *, file: str, backend: str, supports_decoupled: bool
) -> None:
    """Refuse a decoupled model (0..n responses per request) on a backend that cannot be one.

    Raises:
        ConfigError: ``model_transaction_policy.decoupled`` is true and the backend does not support it.
    """
    if message.model_transaction_policy.decoupled and not supports_decoupled:
        raise ConfigError(
            f"expected false: backend '{backend}' gives exactly one response per request in this release",
            file=file,
            field="model_transaction_policy.decoupled",
            value="true",
        )


def _set(message: Message, path: list[str], at: str = "") -> Iterator[tuple[str, object]]:
    """Yield every set value at a dotted path, with its place; lists of plain values and maps count as one."""
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    name = f"{at}{path[0]}"
    value = getattr(message, path[0])
    inner = field.message_type
    if field.is_repeated and inner is not None and not inner.GetOptions().map_entry:
        for index, item in enumerate(value):
            if path[1:]:
                yield from _set(item, path[1:], f"{name}[{index}].")
            else:
                yield f"{name}[{index}]", item
    elif isinstance(value, Message):
        if not message.HasField(path[0]):
            return
        if path[1:]:
            yield from _set(value, path[1:], f"{name}.")
        else:
            yield name, value
    elif value:
        yield name, value


def _shown(value: object) -> str:
    """Show a value in one short line."""
    if isinstance(value, Message):
        text = f"{{{text_format.MessageToString(value, as_one_line=True)}}}"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
