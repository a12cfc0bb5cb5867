"""Steps of sequences given to an instance, and what a worker keeps of them in between: states by id.

`Steps` forms the batches that a test asks for, runs them through `headrace.consumers.execution.execute`, and carries
each sequence's state from one of its steps to the next, as the batchers of the worker do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from backend_kit import Arrays, entry_of
from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution, execute
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError
from headrace.schemas.infer import SequenceId
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Signature
from headrace.schemas.split import split_output
from headrace.schemas.tensor import Datatype, join_bytes, to_numpy


class Step(NamedTuple):
    """One request of a sequence: inputs with the batch axis where the model batches."""

    id: SequenceId
    inputs: Arrays
    start: bool = False
    end: bool = False


Outcome = Mapping[str, np.ndarray] | InferError


def initial_state(signature: Signature) -> SequenceState:
    """Return zeros, each -1 of the dims taken as 1 (SEMANTICS SB-08)."""
    shapes = [tuple(max(dim, 1) for dim in s.input.dims) for s in signature.states]
    tensors = [
        join_bytes([b""] * int(np.prod(shape)))
        if state.input.datatype is Datatype.BYTES
        else bytes(int(np.prod(shape)) * state.input.datatype.size)
        for state, shape in zip(signature.states, shapes, strict=True)
    ]
    return SequenceState(-1, Flag.LIVE, 0, 1, 0, tuple(tensors), tuple(shapes))


class Steps:
    """One instance, fed with batches of steps.

    Attributes:
        instance: Runs them.
        signature: Of the model.
        initial: What each state is at START.
        states: By sequence id, as of its last step.
        execution: The last one.
    """

    def __init__(
        self, config: ModelConfig, instance: Instance, *, repeatable: bool = True
    ) -> None:
        """Start without sequences."""
        self.signature = Signature(config, 1)
        self.states: dict[SequenceId, SequenceState] = {}
        self.execution: Execution | None = None
        self.instance = instance
        self._repeatable = repeatable
        self.initial = initial_state(self.signature)

    def batch(self, *steps: Step | None) -> Batch:
        """Form a batch; a None is a padding row."""
        entries = [None if step is None else self._entry(step) for step in steps]
        states = [
            self.initial if step is None or step.start else self.states.get(step.id, self.initial)
            for step in steps
        ]
        return Batch(self.signature, entries, states)

    def run(self, *steps: Step | None) -> list[Outcome | None]:
        """Run one batch; return the outputs or the error of each step, None for padding rows."""
        batch = self.batch(*steps)
        self.execution = execute(
            self.instance, batch, repeatable=self._repeatable, decoupled=False
        )
        for before, entry in zip(batch.states, batch.entries, strict=True):
            if entry is not None and entry.state_out is not None:
                tensors, shapes = entry.state_out
                after = before._replace(tensors=tensors, shapes=shapes, steps=before.steps + 1)
                self.states[entry.sequence_id] = after
            elif entry is not None:
                self.states[entry.sequence_id] = before
        outcomes = _outcomes(self.execution)
        return [None if entry is None else outcomes[id(entry)] for entry in batch.entries]

    def state(self, sequence_id: SequenceId, index: int = 0) -> np.ndarray:
        """Return a state of a sequence as an array without batch axis."""
        spec = self.signature.states[index].input
        state = self.states[sequence_id]
        return to_numpy(spec.name, spec.datatype, state.shapes[index], state.tensors[index])

    def _entry(self, step: Step) -> Entry:
        entry = entry_of(self.signature, step.inputs)
        entry.sequence_id = step.id
        entry.sequence_start = step.start
        entry.sequence_end = step.end
        return entry


def _outcomes(execution: Execution) -> dict[int, Outcome]:
    """Return what became of each entry, by its identity."""
    found: dict[int, Outcome] = {}
    for part in execution.parts:
        batch = part.batch
        if part.error is not None:
            found.update((id(e), part.error) for e in batch.entries if e is not None)
            continue
        (responses,) = part.responses
        columns = {
            spec: split_output(batch, spec, responses.outputs[spec.name])
            for spec in batch.signature.outputs
        }
        for index, entry in enumerate(batch.entries):
            if entry is not None:
                found[id(entry)] = responses.errors.get(index) or {
                    spec.name: to_numpy(spec.name, spec.datatype, *column[index])
                    for spec, column in columns.items()
                }
    return found


def outputs_of(outcomes: Sequence[Outcome | None], name: str = "OUTPUT") -> list[object]:
    """Return one output of each step as lists without the batch axis's brackets; None for padding rows."""
    found: list[object] = []
    for outcome in outcomes:
        if outcome is None:
            found.append(None)
        else:
            assert not isinstance(outcome, InferError), outcome
            found.append(outcome[name].ravel().tolist())
    return found
