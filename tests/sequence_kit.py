"""Sequences on a stage: models that step them, their records, and what each record must be answered.

The models answer what they have folded over the steps since START, so that a step lost, repeated, out of order or fed
another one's state shows in every answer behind it. What must come is computed here from what was sent, in the order of
each partition, and by nothing of the worker.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from fault_kit import Answer, Key, Running, Stage
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest, SequenceId
from headrace.schemas.model_config import StateConfig
from headrace.schemas.record import Header, Out
from headrace.schemas.sequence import sequence_key
from headrace.schemas.snapshot import SequenceCodec
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.log import Mode
from headrace.streams.status import SequenceCounts
from onnx import helper
from onnx_models import ELEMENT_TYPES, model, write_repository
from sequence_oracle import FACTORS, INITIAL, folded

MODEL = "echo"
"""Name of the one model, as `fault_kit.Stage` has it."""

Fold = Callable[[int, int, int], int]
"""State before, input, version → state after, which is the answer."""


class Step(NamedTuple):
    """One request of a sequence."""

    sequence_id: SequenceId
    value: int
    start: bool = False
    end: bool = False
    version: int = 0


def step_record(
    topic: str, step: Step, partition: int, *, timeout_us: int = 0, rows: int = 1
) -> Out:
    """Make a step's record."""
    values = np.full((rows, 1), step.value, np.int64)
    request = InferRequest(
        (Tensor.from_numpy("INPUT", values),),
        model_version=str(step.version or ""),
        sequence_id=step.sequence_id,
        sequence_start=step.start,
        sequence_end=step.end,
        timeout_us=timeout_us,
    )
    value, headers = encode_request(request)
    return Out(topic, partition, str(step.sequence_id).encode(), value, headers)


class SequenceStage(Stage):
    """A stage on which sequences are stepped.

    Attributes:
        steps: What was sent as a step, by where it lies.
    """

    def __init__(
        self, logs: object, prefix: str, *, partitions: int = 2, mode: Mode | None = None
    ) -> None:
        super().__init__(logs, prefix, partitions=partitions, model=MODEL, mode=mode)  # type: ignore[arg-type]  # as the stage's
        self.steps: dict[Key, Step] = {}

    def record(
        self,
        step: Step,
        partition: int = 0,
        *,
        headers: Sequence[Header] = (),
        timeout_us: int = 0,
        rows: int = 1,
    ) -> Out:
        """Make a step's record."""
        out = step_record(self.requests, step, partition, timeout_us=timeout_us, rows=rows)
        out.headers = [*out.headers, *headers]
        return out

    async def step(self, *steps: Step, partition: int = 0, **more: object) -> list[Key]:
        """Send steps to a partition, in order."""
        outs = [self.record(step, partition, **more) for step in steps]  # type: ignore[arg-type]  # as `record`'s
        return await self.send_steps(steps, outs)

    async def send_steps(self, steps: Sequence[Step], outs: Sequence[Out]) -> list[Key]:
        """Send steps as these records."""
        keys = await self.send_raw(outs)
        self.steps.update(zip(keys, steps, strict=True))
        return keys

    def answer(self, key: Key) -> Answer:
        """Return a request's answer; all its duplicates are equal."""
        (found,) = set(self.answers[key])
        return found

    def values(self, keys: Sequence[Key]) -> list[float]:
        """Return what these requests were answered; all are successes."""
        answers = [self.answer(key) for key in keys]
        assert {answer.status for answer in answers} <= {"OK"}, answers
        return [answer.values[0] for answer in answers]

    async def until_committed_all(self) -> None:
        """Wait until everything that was sent is committed."""
        await self.until_committed(self.is_all_committed)


def summed(before: int, value: int, version: int) -> int:
    """Be the fold of the identity backend's accumulator."""
    return operator.add(before, value)


def due(stage: SequenceStage, fold: Fold, initial: int) -> dict[Key, int]:
    """Return what every step must be answered, each sequence alone and in order; no step may lack its START."""
    states: dict[tuple[int, bytes], tuple[int, int]] = {}
    found = {}
    for key in sorted(stage.steps):
        step = stage.steps[key]
        place = (key[0], sequence_key(step.sequence_id))
        newest = step.version or max(FACTORS)
        before, version = (initial, newest) if step.start else states[place]
        found[key] = after = fold(before, step.value, version)
        states[place] = (after, version)
        if step.end:
            del states[place]
    return found


def check_steps(stage: SequenceStage, fold: Fold = summed, initial: int = 0) -> None:
    """Check that every step has its answer, duplicates are equal, and each sequence's came in order (P-18)."""
    for key, value in due(stage, fold, initial).items():
        found = stage.answers.get(key)
        assert found, f"step {key} {stage.steps[key]} has no answer"
        for answer in found:
            assert answer == Answer("OK", "", (value,)), (
                f"step {key} {stage.steps[key]}: {answer}, expected {value}"
            )
    last: dict[tuple[int, bytes], int] = {}
    for partition, offset in stage.answers:  # in the order in which they were first seen
        if (step := stage.steps.get((partition, offset))) is not None:
            place = (partition, sequence_key(step.sequence_id))
            assert last.get(place, -1) < offset, f"{place}: {offset} after {last[place]}"
            last[place] = offset


def counts(running: Running) -> SequenceCounts:
    """Return what a worker counts of its sequences, as of now."""
    sequences = running.worker.models[MODEL].sequences
    assert sequences is not None
    return sequences.count()


def codec(dims: tuple[int, ...] = (1,)) -> SequenceCodec:
    """Return the codec of the models' one state, or of another shape; names count as the accumulator's."""
    return SequenceCodec([StateConfig("SUM_IN", "SUM", Datatype.INT64, dims)])


# Models.


def write_sums(
    root: Path,
    *,
    states: bool = True,
    oldest: int = 0,
    batch: int = 1,
    instances: int = 1,
    idle_s: float = 600,
    corrid: bool = False,
    **parameters: object,
) -> Path:
    """Write a repository with an accumulator of the identity backend; returns its root.

    Args:
        root: Folder that is made.
        states: It declares its state; else it keeps memory of its own.
        oldest: ``max_candidate_sequences`` of the oldest strategy; 0 is the direct one.
        batch: ``max_batch_size``: slots of an instance where the strategy is direct.
        instances: How many.
        idle_s: Longest silence of a sequence, seconds.
        corrid: It takes CORRID: ids are numbers.
        parameters: The script, see `headrace.backends.identity_script`.
    """
    (root / MODEL / "1").mkdir(parents=True)
    kinds = [] if states else ["START", "READY"]
    controls = "".join(
        f'control_input [{{ name: "{kind}" control [{{ kind: CONTROL_SEQUENCE_{kind} '
        "int32_false_true: [0, 1] }] }]\n"
        for kind in kinds
    )
    if corrid or (oldest and not states):
        controls += (
            'control_input [{ name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID '
            "data_type: TYPE_UINT64 }] }]\n"
        )
    state = 'state [{ input_name: "SUM_IN" output_name: "SUM" data_type: TYPE_INT64 dims: [1] }]'
    strategy = f"oldest {{ max_candidate_sequences: {oldest} }}" if oldest else "direct { }"
    script = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"accumulate": "true", **parameters}.items()
    )
    (root / MODEL / "config.pbtxt").write_text(
        f"""backend: "identity"
max_batch_size: {batch}
input [{{ name: "INPUT" data_type: TYPE_INT64 dims: [1] }}]
output [{{ name: "OUTPUT" data_type: TYPE_INT64 dims: [1] }}]
instance_group [{{ count: {instances} kind: KIND_CPU }}]
sequence_batching {{
  max_sequence_idle_microseconds: {int(idle_s * 1e6)}
  {strategy}
  {controls}
  {state if states else ""}
}}
{script}"""
    )
    return root


def write_folds(root: Path, versions: Sequence[int] = tuple(FACTORS)) -> Path:
    """Write a repository with the ONNX model that `sequence_oracle.folded` is, one factor per version.

    In 64 bits that wrap; the first state is `sequence_oracle.INITIAL`, from a file.
    """
    write_repository(
        root,
        {MODEL: {version: _fold(FACTORS[version]) for version in versions}},
        {
            MODEL: """backend: "onnxruntime"
max_batch_size: 8
version_policy { all { } }
input [{ name: "INPUT" data_type: TYPE_INT64 dims: [1] }]
output [{ name: "OUTPUT" data_type: TYPE_INT64 dims: [1] }]
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  oldest { max_candidate_sequences: 16 }
  state [{
    input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT64 dims: [1]
    initial_state { name: "first" data_type: TYPE_INT64 dims: [1] data_file: "first" }
  }]
}
"""
        },
    )
    (root / MODEL / "initial_state").mkdir()
    (root / MODEL / "initial_state" / "first").write_bytes(np.array([INITIAL], "<i8").tobytes())
    return root


def _fold(factor: int) -> onnx.ModelProto:
    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, ELEMENT_TYPES["INT64"], ["N", 1])

    return model(
        [
            helper.make_node("Mul", ["STATE_IN", "factor"], ["grown"]),
            helper.make_node("Add", ["grown", "INPUT"], ["STATE_OUT"]),
            helper.make_node("Identity", ["STATE_OUT"], ["OUTPUT"]),
        ],
        [tensor("INPUT"), tensor("STATE_IN")],
        [tensor("OUTPUT"), tensor("STATE_OUT")],
        {"factor": np.array(factor, np.int64)},
    )


def check_folds(stage: SequenceStage) -> None:
    """Be `check_steps` for the models of `write_folds`."""
    check_steps(stage, folded, INITIAL)


class Traffic:
    """Sequences that go on and on: an id's next sequence begins where the one before it ended, or without its END.

    Ids are numbers and texts, and some are both.
    """

    def __init__(self, stage: SequenceStage, seed: int, *, ids: int, length: int) -> None:
        """Begin.

        Args:
            stage: Where to.
            seed: Decides values, ends, and who goes next.
            ids: How many sequences are live at a time.
            length: Steps of a sequence at most.
        """
        self._stage = stage
        self._rng = random.Random(seed)
        names: list[SequenceId] = [
            n if i % 2 else str(n) for n in range(7, 7 + ids) for i in (0, 1)
        ]
        self._left: dict[SequenceId, int] = dict.fromkeys(names[:ids], 0)
        self._turns = itertools.cycle(self._left)
        self._length = length

    def _partition(self, name: SequenceId) -> int:
        return (
            int(name) % self._stage.topology.partitions
        )  # by the key's text: 7 and "7" are together

    def _next(self, name: SequenceId) -> Step:
        rng, left = self._rng, self._left[name]
        start = left == 0 or rng.random() < 0.03
        if start:
            left = rng.randint(2, self._length)
        self._left[name] = left - 1
        return Step(
            name, rng.randint(1, 10**6), start, left == 1, rng.choice((0, 0, 1)) if start else 0
        )

    async def send(self, steps: int) -> list[Key]:
        """Send so many steps, of one id after the other."""
        made = [self._next(name) for name in itertools.islice(self._turns, steps)]
        outs = [self._stage.record(step, self._partition(step.sequence_id)) for step in made]
        return await self._stage.send_steps(made, outs)

    async def end(self) -> None:
        """End every sequence that is live."""
        made = []
        for name, left in self._left.items():
            if left:
                made.append(Step(name, self._rng.randint(1, 10**6), end=True))
                self._left[name] = 0
        outs = [self._stage.record(step, self._partition(step.sequence_id)) for step in made]
        await self._stage.send_steps(made, outs)


def reasons(stage: Stage, keys: Sequence[Key]) -> Mapping[Key, str]:
    """Return the reason word of each request's answer, ``""`` for a success."""
    return {key: next(iter(stage.answers[key])).reason for key in keys}
