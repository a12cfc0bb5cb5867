"""Whether a configuration makes sense: the checks that Triton makes at load, and its rules about each field.

Pure. Each failure is a `ConfigError` that names file, field, value and what was expected. What is understood but
not served yet is the business of `headrace.schemas.config_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headrace.schemas.config_check_sequence import check_sequences
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    DynamicBatching,
    InstanceKind,
    ModelConfig,
    TensorConfig,
    TimeoutAction,
    VersionPolicyKind,
)
from headrace.schemas.tensor import Shape
from tritonclient.grpc import model_config_pb2 as pb

DIMENSION = "expected an integer >= 1, or -1 for any size"


def check_config(config: ModelConfig, *, file: str, is_complete: bool = True) -> None:
    """Check a configuration.

    Args:
        config: As read, or after auto-complete and `headrace.schemas.config_view.resolve`.
        file: Path for the error's sentence.
        is_complete: After auto-complete. Before, what it may still fill in (tensors, batch size) is left alone.

    Raises:
        ConfigError: SEMANTICS MR-20 to MR-26, MR-30, MR-41, DB-01, DB-03, DB-05, §1.4, and the sequence batcher's
            (`headrace.schemas.config_check_sequence`).
    """
    check = _Check(config, file, is_complete=is_complete)
    check.batch_size()
    check.version_policy()
    check.tensors("input", config.inputs)
    check.tensors("output", config.outputs)
    check.formats()
    check.instance_groups()
    check.warmup()
    if config.dynamic_batching is not None:
        check.dynamic_batching(config.dynamic_batching)
    check_sequences(config, file=file, is_complete=is_complete)
    if is_complete:
        check.ragged()


class _Check:
    """The checks of one configuration; each raises at the first thing that is wrong."""

    def __init__(self, config: ModelConfig, file: str, *, is_complete: bool) -> None:
        self.config = config
        self.file = file
        self.is_complete = is_complete

    def fail(self, field: str, value: object, expected: str) -> ConfigError:
        return ConfigError(expected, file=self.file, field=field, value=value)

    def batch_size(self) -> None:
        if self.config.max_batch_size < 0:
            raise self.fail(
                "max_batch_size",
                self.config.max_batch_size,
                "expected a non-negative integer, 0 for a model that does not batch",
            )

    def version_policy(self) -> None:
        policy = self.config.version_policy
        if policy.kind is not VersionPolicyKind.SPECIFIC:
            return
        field = "version_policy.specific.versions"
        if not policy.versions:
            raise self.fail(field, [], "expected at least one version number")
        for version in policy.versions:
            if version < 1:
                raise self.fail(field, version, "expected version numbers >= 1")

    def tensors(self, side: str, tensors: Sequence[TensorConfig]) -> None:
        """MR-21 to MR-23, MR-26."""
        if self.is_complete and not tensors:
            raise self.fail(side, "", f"expected at least one {side}")
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            at = f"{side}[{index}]"
            if not tensor.name:
                raise self.fail(f"{at}.name", "''", "expected a tensor name")
            if tensor.name in seen:
                raise self.fail(f"{at}.name", tensor.name, f"expected each {side} name once")
            seen.add(tensor.name)
            at = f"{side}[{tensor.name}]"
            if not tensor.dims:
                raise self.fail(f"{at}.dims", [], "expected at least one dimension")
            for dim in tensor.dims:
                if dim < 1 and dim != -1:
                    raise self.fail(f"{at}.dims", dim, DIMENSION)
            if tensor.reshape is not None:
                self.reshape(f"{at}.reshape.shape", tensor.dims, tensor.reshape)

    def reshape(self, field: str, dims: Shape, reshape: Shape) -> None:
        """MR-23: both sides hold the same elements, whatever the open sizes are."""
        for dim in reshape:
            if dim < 1 and dim != -1:
                raise self.fail(field, dim, DIMENSION)
        if not reshape:
            if dims.count(-1) or math.prod(dims) != 1:
                raise self.fail(field, [], f"expected the element count of dims {list(dims)}")
            if self.is_complete and self.config.max_batch_size == 0:
                raise self.fail(
                    field, [], "expected a dimension: a model that does not batch has no scalars"
                )
            return
        if dims.count(-1) != reshape.count(-1):
            raise self.fail(
                field,
                list(reshape),
                f"expected as many -1 dimensions as dims {list(dims)} has",
            )
        if _products(dims) != _products(reshape):
            raise self.fail(
                field, list(reshape), f"expected the element count of dims {list(dims)}"
            )

    def formats(self) -> None:
        for tensor in self.config.message.input:
            if tensor.format != pb.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
                raise self.fail(
                    f"input[{tensor.name}].format",
                    pb.ModelInput.Format.Name(tensor.format),
                    f"expected dims of 3 dimensions with this format, not {list(tensor.dims)}",
                )

    def instance_groups(self) -> None:
        """MR-30: only groups on GPU name GPUs; a count of 0 is the backend's default."""
        for index, group in enumerate(self.config.instance_groups):
            at = f"instance_group[{group.name or index}]"
            if group.count < 0:
                raise self.fail(f"{at}.count", group.count, "expected a positive integer")
            on_cpu = group.kind in (InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL)
            if group.gpus and on_cpu:
                raise self.fail(f"{at}.gpus", list(group.gpus), f"expected none with {group.kind}")
            if any(gpu < 0 for gpu in group.gpus):
                raise self.fail(f"{at}.gpus", list(group.gpus), "expected GPU numbers >= 0")

    def warmup(self) -> None:
        """MR-41: shapes are fixed, and a sample fits into a batch."""
        most = max(1, self.config.max_batch_size)
        for index, sample in enumerate(self.config.warmup):
            at = f"model_warmup[{sample.name or index}]"
            if self.is_complete and sample.batch_size > most:
                raise self.fail(f"{at}.batch_size", sample.batch_size, f"expected 0 to {most}")
            for name, given in sample.inputs.items():
                if any(dim < 0 for dim in given.dims):
                    raise self.fail(
                        f"{at}.inputs[{name}].dims", list(given.dims), "expected fixed sizes >= 0"
                    )

    def dynamic_batching(self, batching: DynamicBatching) -> None:
        """DB-01, DB-03, DB-05, DB-07."""
        given = self.config.message.dynamic_batching.preferred_batch_size
        most = self.config.max_batch_size
        for size in given:
            if size < 1 or (self.is_complete and size > most):
                raise self.fail(
                    "dynamic_batching.preferred_batch_size",
                    size,
                    f"expected sizes from 1 to max_batch_size ({most})",
                )
        levels = batching.priority_levels
        if levels:
            if not 1 <= batching.default_priority_level <= levels:
                raise self.fail(
                    "dynamic_batching.default_priority_level",
                    batching.default_priority_level,
                    f"expected a level from 1 to {levels}",
                )
            for level in batching.priority_queue_policy:
                if not 1 <= level <= levels:
                    raise self.fail(
                        "dynamic_batching.priority_queue_policy",
                        level,
                        f"expected levels from 1 to {levels}",
                    )
        if batching.preserve_ordering:
            self.ordering(batching)

    def ordering(self, batching: DynamicBatching) -> None:
        """DB-03: nothing may overtake where responses leave in arrival order."""
        field = "dynamic_batching.preserve_ordering"
        if batching.priority_levels > 1:
            raise self.fail(
                field,
                "true",
                f"expected false with more than one priority level ({batching.priority_levels})",
            )
        policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
        for policy in policies:
            if policy.timeout_action is TimeoutAction.DELAY and policy.default_timeout_us:
                raise self.fail(
                    field,
                    "true",
                    "expected false with a queue policy whose timeout_action is DELAY",
                )

    def ragged(self) -> None:
        """§1.4: helpers read existing inputs and take no input's name; scattered outputs exist."""
        inputs = {tensor.name for tensor in self.config.inputs}
        outputs = {tensor.name for tensor in self.config.outputs}
        made: set[str] = set()
        for index, helper in enumerate(self.config.batch_inputs):
            at = f"batch_input[{index}]"
            self.known(f"{at}.source_input", [helper.source_input], inputs, "input")
            self.fresh(f"{at}.target_name", helper.target_names, inputs | made)
            made.update(helper.target_names)
        scattered: set[str] = set()
        for index, scatter in enumerate(self.config.batch_outputs):
            at = f"batch_output[{index}]"
            self.known(f"{at}.source_input", [scatter.source_input], inputs, "input")
            self.known(f"{at}.target_name", scatter.target_names, outputs, "output")
            self.fresh(f"{at}.target_name", scatter.target_names, scattered)
            scattered.update(scatter.target_names)

    def known(self, field: str, names: Iterable[str], existing: set[str], side: str) -> None:
        for name in names:
            if name not in existing:
                raise self.fail(
                    field, name, f"expected an {side}: one of {', '.join(sorted(existing))}"
                )

    def fresh(self, field: str, names: Sequence[str], taken: set[str]) -> None:
        if not names:
            raise self.fail(field, [], "expected at least one tensor name")
        seen = set(taken)
        for name in names:
            if name in seen:
                raise self.fail(field, name, "expected a name that no other tensor has")
            seen.add(name)


def _products(shape: Shape) -> list[int]:
    """Return the products of the stretches between open dimensions."""
    found = [1]
    for dim in shape:
        if dim == -1:
            found.append(1)
        else:
            found[-1] *= dim
    return found
