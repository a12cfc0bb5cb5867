"""The parameter ``accumulate`` of the identity backend: a sequence model that adds up what it gets (SEMANTICS §5.4).

Each output is the sum of its input over the steps since START. The sums are kept where the configuration says:

- with declared states, by the server: state i has the datatype and dims of input i, comes in as the sum so far and goes
  out as the sum with this step. START needs no control, for the server resets the state (SQ-18).
- without, in the instance itself, as a backend with memory of its own does: by row with the direct strategy, whose rows
  are slots (SQ-11), and by CORRID with the oldest, where a sequence may stand in any row (SQ-13). START resets, rows
  that are not READY are left alone, and END forgets a sequence that goes by CORRID.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from headrace.schemas.batch import Batch
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    ControlInput,
    ControlKind,
    ModelConfig,
    SequenceBatching,
    SequenceStrategy,
    TensorConfig,
)
from headrace.schemas.tensor import Array, Datatype, Shape

MAX_SEQUENCES = 100_000
"""Sequences that one instance remembers by CORRID; who steps least recently goes first."""

FIELD = "parameters.accumulate"


def model_dims(tensor: TensorConfig) -> Shape:
    """Return the dims that the model itself sees (SEMANTICS MR-23)."""
    return tensor.dims if tensor.reshape is None else tensor.reshape


def check_sums(config: ModelConfig, file: str) -> SequenceBatching:
    """Check that a configuration with ``accumulate`` can be served; returns its sequence batcher.

    Raises:
        ConfigError: It has none, an input cannot be added, the states do not pair up with the inputs, or a control
            is missing by which the model knows its own memory.
    """
    sequences = config.sequence_batching
    if sequences is None:
        raise ConfigError(
            "expected it only in a model with sequence_batching", file=file, field=FIELD
        )
    for tensor in config.inputs:
        if tensor.datatype.numpy.kind not in "iuf" or tensor.datatype is Datatype.BF16:
            raise ConfigError(
                "expected integers or floating-point numbers, which accumulate can add",
                file=file,
                field=f"input.{tensor.name}.data_type",
                value=str(tensor.datatype),
            )
    if sequences.states:
        _check_states(config, sequences, file)
        return sequences
    kinds = [ControlKind.START]
    is_direct = sequences.strategy is SequenceStrategy.DIRECT
    kinds.append(ControlKind.READY if is_direct else ControlKind.CORRID)
    for kind in kinds:
        if sequences.control(kind) is None:
            raise ConfigError(
                f"expected declared states, or a control of kind {kind} for a model with memory of "
                f"its own and strategy {sequences.strategy}",
                file=file,
                field="sequence_batching.control_input",
            )
    return sequences


def _check_states(config: ModelConfig, sequences: SequenceBatching, file: str) -> None:
    states = [(state.datatype, state.dims) for state in sequences.states]
    inputs = [(tensor.datatype, model_dims(tensor)) for tensor in config.inputs]
    if states != inputs:
        shown = [f"{datatype} {list(dims)}" for datatype, dims in inputs]
        raise ConfigError(
            f"expected one state for each input, with its data_type and dims: {', '.join(shown)}",
            file=file,
            field="sequence_batching.state",
            value=", ".join(f"{datatype} {list(dims)}" for datatype, dims in states),
        )


class Sums:
    """The accumulator of one instance."""

    def __init__(
        self, sequences: SequenceBatching, pairs: Collection[tuple[str, str]], *, batched: bool
    ) -> None:
        """Start without memory.

        Args:
            sequences: As `check_sums` returned it.
            pairs: Input and output names, in order.
            batched: Tensors have a batch axis.
        """
        self._pairs = tuple(pairs)
        self._states = sequences.states
        self._batched = batched
        self._start = sequences.control(ControlKind.START)
        self._ready = sequences.control(ControlKind.READY)
        self._end = sequences.control(ControlKind.END)
        is_direct = sequences.strategy is SequenceStrategy.DIRECT
        self._corrid = None if is_direct else sequences.control(ControlKind.CORRID)
        self._memory: dict[object, list[Array]] = {}

    def step(
        self, batch: Batch, spared: Collection[int]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Add one batch.

        Args:
            batch: Each entry has one row.
            spared: Rows of which memory takes no notice, since they get an error.

        Returns:
            Outputs, those included that are states (SEMANTICS SB-09), and states.
        """
        columns = batch.inputs()
        with np.errstate(all="ignore"):  # sums may overflow, like any model's
            if self._states:
                return self._by_server(columns)
            return self._by_memory(columns, spared), {}

    def _by_server(
        self, columns: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        outputs: dict[str, Array] = {}
        states: dict[str, Array] = {}
        for (source, target), state in zip(self._pairs, self._states, strict=True):
            total = np.add(columns[state.input_name], columns[source])
            outputs[target] = outputs[state.output_name] = states[state.output_name] = total
        return outputs, states

    def _by_memory(
        self, columns: Mapping[str, Array], spared: Collection[int]
    ) -> dict[str, Array]:
        totals = {
            target: np.array(columns[source] if self._batched else columns[source][np.newaxis])
            for source, target in self._pairs
        }
        rows = len(next(iter(totals.values())))
        ready = _truth(self._ready, columns, [True] * rows)
        started = _truth(self._start, columns, [False] * rows)
        ended = _truth(self._end, columns, [False] * rows)
        keys = range(rows) if self._corrid is None else columns[self._corrid.name].ravel().tolist()
        for row, key in enumerate(keys):
            if not ready[row] or row in spared:
                continue
            former = self._memory.pop(key, None)
            if former is not None and not started[row]:
                for total, known in zip(totals.values(), former, strict=True):
                    total[row] = np.add(known, total[row])
            if not (ended[row] and self._corrid is not None):
                self._memory[key] = [np.array(total[row]) for total in totals.values()]
        while len(self._memory) > MAX_SEQUENCES:
            del self._memory[next(iter(self._memory))]
        return totals if self._batched else {name: array[0] for name, array in totals.items()}


def _truth(
    control: ControlInput | None, columns: Mapping[str, Array], default: list[bool]
) -> list[bool]:
    if control is None:
        return default
    found: list[bool] = (columns[control.name].ravel() == control.true).tolist()
    return found
