"""Whether a sequence batcher makes sense: its controls and states against each other and the model's tensors.

Pure, and a part of `headrace.schemas.config_check.check_config`. Also what our own parameters name.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.schemas.config_parameters import (
    BATCH_AXIS,
    CONSTANT,
    parameter_field,
    read_delivery,
    read_execution_timeout_ms,
    read_idempotency_window_ms,
    read_record_answers,
    read_snapshot_every,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    ControlKind,
    InitialState,
    ModelConfig,
    SequenceBatching,
    StateConfig,
    TensorConfig,
)
from headrace.schemas.tensor import Shape

FIELD = "sequence_batching"


def check_sequences(config: ModelConfig, *, file: str, is_complete: bool) -> None:
    """Check the sequence batcher and the parameters ``batch_axis.*`` and ``constant.*``.

    Args:
        config: As in `headrace.schemas.config_check.check_config`.
        file: Path for the error's sentence.
        is_complete: After auto-complete. Before, tensors and the batch size may be missing yet.

    Raises:
        ConfigError: SEMANTICS SB-02, SB-03, SB-05, SB-07 to SB-09, SB-13, or a parameter that names no tensor.
    """
    check = _Check(config, file, is_complete=is_complete)
    sequences = config.sequence_batching
    if sequences is not None:
        check.company()
        check.strategy(sequences)
        check.controls(sequences)
        for index, state in enumerate(sequences.states):
            check.state(index, state)
        check.outputs(sequences)
    check.names(sequences)
    check.batch_axes(sequences)
    read_snapshot_every(config.parameters, file)
    read_record_answers(config.parameters, file)
    read_execution_timeout_ms(config.parameters, file)
    read_delivery(config.parameters, file)
    read_idempotency_window_ms(config.parameters, file)


class _Check:
    """The checks of one configuration; each raises at the first thing that is wrong."""

    def __init__(self, config: ModelConfig, file: str, *, is_complete: bool) -> None:
        self.config = config
        self.file = file
        self.is_complete = is_complete

    def fail(self, field: str, value: object, expected: str) -> ConfigError:
        return ConfigError(expected, file=self.file, field=field, value=value)

    def company(self) -> None:
        """SB-13, and what cannot answer each step once."""
        if self.config.message.response_cache.enable:
            raise self.fail(
                "response_cache.enable",
                "true",
                "expected false with sequence_batching, since an answer depends on the steps before",
            )
        if self.config.decoupled:
            raise self.fail(
                "model_transaction_policy.decoupled",
                "true",
                "expected false with sequence_batching: a step is answered exactly once in this release",
            )

    def strategy(self, sequences: SequenceBatching) -> None:
        """SB-02, SB-03."""
        share = sequences.min_slot_utilization
        if not 0 <= share <= 1:
            raise self.fail(
                f"{FIELD}.direct.minimum_slot_utilization", share, "expected a share from 0 to 1"
            )
        if sequences.max_candidates < 1:
            raise self.fail(
                f"{FIELD}.oldest.max_candidate_sequences",
                sequences.max_candidates,
                "expected a positive integer, or 0 for max_batch_size",
            )
        most = self.config.max_batch_size
        for size in self.config.message.sequence_batching.oldest.preferred_batch_size:
            if size < 1 or (self.is_complete and size > most):
                raise self.fail(
                    f"{FIELD}.oldest.preferred_batch_size",
                    size,
                    f"expected sizes from 1 to max_batch_size ({most})",
                )

    def controls(self, sequences: SequenceBatching) -> None:
        """SB-05: a kind stands for one tensor."""
        seen: dict[ControlKind, str] = {}
        for index, control in enumerate(sequences.controls):
            at = f"{FIELD}.control_input[{control.name or index}]"
            if not control.name:
                raise self.fail(f"{at}.name", "''", "expected a tensor name")
            if control.kind in seen:
                raise self.fail(
                    f"{at}.control.kind",
                    control.kind,
                    f"expected each kind once, and tensor '{seen[control.kind]}' has it already",
                )
            seen[control.kind] = control.name

    def state(self, index: int, state: StateConfig) -> None:
        """SB-07."""
        at = f"{FIELD}.state[{state.input_name or index}]"
        for side, name in (("input_name", state.input_name), ("output_name", state.output_name)):
            if not name:
                raise self.fail(f"{at}.{side}", "''", "expected a tensor name")
        if not state.dims:
            raise self.fail(f"{at}.dims", [], "expected at least one dimension")
        for dim in state.dims:
            if dim < 1 and dim != -1:
                raise self.fail(f"{at}.dims", dim, "expected an integer >= 1, or -1 for any size")
        if state.initial is not None:
            self.initial(f"{at}.initial_state", state, state.initial)

    def initial(self, at: str, state: StateConfig, initial: InitialState) -> None:
        """SB-08: a value that the state can have."""
        if not initial.name:
            raise self.fail(f"{at}.name", "''", "expected a name")
        if initial.datatype is not state.datatype:
            raise self.fail(
                f"{at}.data_type", initial.datatype, f"expected the state's, {state.datatype}"
            )
        if any(dim < 1 for dim in initial.dims):
            raise self.fail(f"{at}.dims", list(initial.dims), "expected fixed sizes >= 1")
        if not _compatible(initial.dims, state.dims):
            raise self.fail(
                f"{at}.dims",
                list(initial.dims),
                f"expected sizes that fit the state's dims {list(state.dims)}",
            )
        if not initial.zero_data and not initial.data_file:
            raise self.fail(f"{at}.data_file", "''", "expected the name of a file")

    def outputs(self, sequences: SequenceBatching) -> None:
        """SB-09: a state may be returned too, under its output's name, and is the same tensor then."""
        declared = {output.name: output for output in self.config.outputs}
        seen: set[str] = set()
        for state in sequences.states:
            at = f"{FIELD}.state[{state.input_name}]"
            if state.output_name in seen:
                raise self.fail(
                    f"{at}.output_name",
                    state.output_name,
                    "expected a name that no other state's output has",
                )
            seen.add(state.output_name)
            output = declared.get(state.output_name)
            if output is not None:
                self.same(at, state, output)

    def same(self, at: str, state: StateConfig, output: TensorConfig) -> None:
        if output.datatype is not state.datatype:
            raise self.fail(
                f"{at}.data_type",
                state.datatype,
                f"expected {output.datatype}, as output '{output.name}' is declared",
            )
        dims = output.dims if output.reshape is None else output.reshape
        if not _compatible(dims, state.dims):
            raise self.fail(
                f"{at}.dims",
                list(state.dims),
                f"expected {list(dims)}, as output '{output.name}' is declared",
            )

    def names(self, sequences: SequenceBatching | None) -> None:
        """Each model input comes from one place: a client, a helper, a control, a state or a constant."""
        taken = {tensor.name: "an input" for tensor in self.config.inputs}
        for helper in self.config.batch_inputs:
            taken.update(dict.fromkeys(helper.target_names, "a batch_input"))
        made: list[tuple[str, str, str]] = []
        if sequences is not None:
            made += [
                (f"{FIELD}.control_input[{control.name}].name", control.name, "a control")
                for control in sequences.controls
            ]
            made += [
                (f"{FIELD}.state[{state.input_name}].input_name", state.input_name, "a state")
                for state in sequences.states
            ]
        for name, text in self.config.constants.items():
            field = parameter_field(CONSTANT, name)
            if not text.strip():
                raise self.fail(field, repr(text), "expected a value")
            made.append((field, name, "a constant"))
        for field, name, what in made:
            if name in taken:
                raise self.fail(
                    field, name, f"expected a name of its own, and {taken[name]} has this one"
                )
            taken[name] = what

    def batch_axes(self, sequences: SequenceBatching | None) -> None:
        """Each names a tensor that has a batch axis, at a place that it can have."""
        if not self.is_complete:
            return
        ranks = self.ranks(sequences)
        for name, axis in self.config.batch_axes.items():
            field = parameter_field(BATCH_AXIS, name)
            if self.config.max_batch_size == 0:
                raise self.fail(field, axis, "expected none, since max_batch_size is 0")
            if name not in ranks:
                known = ", ".join(ranks)
                raise self.fail(field, axis, f"expected a tensor that has a batch axis: {known}")
            if axis > ranks[name]:
                raise self.fail(
                    field,
                    axis,
                    f"expected 0 to {ranks[name]}, the number of dims of '{name}'",
                )

    def ranks(self, sequences: SequenceBatching | None) -> Mapping[str, int]:
        """Return how many dims each tensor with a batch axis has beside it; a ragged one has none."""
        scattered = {
            name for scatter in self.config.batch_outputs for name in scatter.target_names
        }
        ranks = {
            tensor.name: len(tensor.dims if tensor.reshape is None else tensor.reshape)
            for tensor in (*self.config.inputs, *self.config.outputs)
            if not tensor.is_shape_tensor
            and not tensor.allow_ragged_batch
            and tensor.name not in scattered
        }
        if sequences is not None:
            ranks.update((control.name, 1) for control in sequences.controls)
            for state in sequences.states:
                ranks[state.input_name] = ranks[state.output_name] = len(state.dims)
        return ranks


def _compatible(one: Shape, other: Shape) -> bool:
    """Whether a tensor can have both shapes, -1 being any size."""
    return len(one) == len(other) and all(
        -1 in (left, right) or left == right for left, right in zip(one, other, strict=True)
    )
