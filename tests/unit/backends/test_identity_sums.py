"""The identity backend as an accumulator: sums in declared states, by slot and by CORRID (SEMANTICS §5.3, §5.4)."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from backend_kit import CPU, completed, run
from headrace.backends.identity import IdentityBackend
from headrace.backends.identity_sums import MAX_SEQUENCES
from headrace.schemas.batch import Batch
from headrace.schemas.errors import BackendError, ConfigError, InferError
from headrace.schemas.infer import SequenceId
from sequence_steps import Step, Steps, outputs_of

NOWHERE = Path("models/sums/1")
TENSORS = """
input [{ name: "INPUT" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUTPUT" data_type: TYPE_INT32 dims: [1] }]
"""
START = 'control_input [{ name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] }]'
READY = 'control_input [{ name: "READY" control [{ kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] }] }]'
END = 'control_input [{ name: "END" control [{ kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] }] }]'
CORRID = 'control_input [{ name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }]'
STATE = 'state [{ input_name: "SUM_IN" output_name: "SUM" data_type: TYPE_INT32 dims: [1] }]'
DECLARED = f"max_batch_size: 8 {TENSORS} sequence_batching {{ {STATE} }}"
DIRECT = f"max_batch_size: 8 {TENSORS} sequence_batching {{ direct {{}} {START} {READY} }}"
OLDEST = f"max_batch_size: 8 {TENSORS} sequence_batching {{ oldest {{}} {START} {END} {CORRID} }}"


def load(text: str, **parameters: str) -> Steps:
    """Load an accumulator; return what feeds its one instance."""
    script = " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in ({"accumulate": "true"} | parameters).items()
    )
    backend = IdentityBackend()
    config = completed(backend, NOWHERE, f"{text} {script}")
    model = backend.load(config, NOWHERE)
    return Steps(config, model.instance("sums_0_0", CPU), repeatable=model.repeatable)


def step(of: SequenceId, value: int, *, start: bool = False, end: bool = False) -> Step:
    return Step(of, {"INPUT": np.array([[value]], "<i4")}, start, end)


def sums(steps: Steps, *batch: Step | None) -> list[int | None]:
    """Run one batch; return each step's sum, None for padding rows and steps that failed."""
    return [
        None
        if outcome is None or isinstance(outcome, InferError)
        else int(outcome["OUTPUT"][0, 0])
        for outcome in steps.run(*batch)
    ]


@pytest.mark.parametrize("text", [DECLARED, DIRECT, OLDEST])
def test_the_simple_case_of_5_3(text) -> None:
    """1..9 is 45, one by one; then 42 alone."""
    steps = load(text)
    running = [
        sums(steps, step(7, value, start=value == 1, end=value == 9))[0] for value in range(1, 10)
    ]
    assert running == [1, 3, 6, 10, 15, 21, 28, 36, 45]
    assert sums(steps, step(7, 42, start=True, end=True)) == [42]


@pytest.mark.parametrize("text", [DECLARED, DIRECT, OLDEST])
def test_the_full_batch_of_5_3(text) -> None:
    """Four sequences side by side never mix."""
    steps = load(text)
    for turn in range(1, 4):
        found = sums(
            steps,
            *(
                step(i, base + turn, start=turn == 1, end=turn == 3)
                for i, base in enumerate((0, 10, 110, 1110), 1)
            ),
        )
    assert found == [6, 36, 336, 3336]


@pytest.mark.parametrize("text", [DECLARED, OLDEST])
def test_SQ13_a_sequence_may_stand_in_any_row(text) -> None:
    """Its sum goes with it."""
    steps = load(text)
    assert sums(steps, step(1, 1, start=True), step(2, 10, start=True)) == [1, 10]
    assert sums(steps, step(2, 20), step(1, 2)) == [30, 3]
    assert sums(steps, step(2, 30)) == [60]
    assert sums(steps, step(3, 5, start=True), step(1, 3)) == [5, 6]


@pytest.mark.parametrize("text", [DECLARED, DIRECT])
def test_SQ11_padding_rows_change_nothing(text) -> None:
    """A slot that is not READY keeps its sum."""
    steps = load(text)
    assert sums(steps, step(1, 1, start=True), step(2, 10, start=True)) == [1, 10]
    assert sums(steps, None, step(2, 20)) == [None, 30]
    assert sums(steps, step(1, 2), None) == [3, None]
    assert sums(steps, step(1, 3), step(2, 30)) == [6, 60]


def test_SQ04_the_memory_of_a_slot_is_whoever_has_it() -> None:
    """Without START a slot goes on; START resets it: there is no other sign of a new sequence."""
    steps = load(DIRECT)
    assert sums(steps, step(1, 1, start=True)) == [1]
    assert sums(steps, step(9, 5)) == [6]
    assert sums(steps, step(9, 5, start=True)) == [5]


def test_END_forgets_a_sequence_that_goes_by_its_id() -> None:
    """A later step of the id begins at nothing."""
    steps = load(OLDEST)
    assert sums(steps, step(1, 1, start=True), step(2, 1, start=True)) == [1, 1]
    assert sums(steps, step(1, 1, end=True), step(2, 1)) == [2, 2]
    assert sums(steps, step(1, 7), step(2, 7)) == [7, 9]


def test_memory_by_id_is_bounded_without_END() -> None:
    """Who stepped least recently is forgotten first."""
    steps = load(OLDEST)
    assert sums(steps, step(1, 5, start=True), step(2, 5, start=True)) == [5, 5]
    assert sums(steps, step(1, 5)) == [10]
    one = steps.batch(step(3, 1)).first
    others = [copy.copy(one) for _ in range(MAX_SEQUENCES - 1)]
    for sequence_id, entry in enumerate(others, 3):
        entry.sequence_id = sequence_id
    run(steps.instance, Batch(steps.signature, others))
    assert sums(steps, step(1, 5), step(2, 5)) == [15, 5]


@pytest.mark.parametrize("text", [DECLARED, DIRECT, OLDEST])
@pytest.mark.parametrize("how", ["fail_if", "error_if"])
def test_SQ17_a_failed_step_changes_no_sum(text, how) -> None:
    """Neither in the server's states nor in memory of the instance's own; a good one follows on the old sum."""
    steps = load(text, **{how: "13"})
    assert sums(steps, step(1, 1, start=True), step(2, 2, start=True)) == [1, 2]
    first, second = steps.run(step(1, 13), step(2, 2))
    assert isinstance(first, BackendError)
    spared = how == "error_if" or text is DECLARED
    assert isinstance(second, InferError) is not spared
    assert sums(steps, step(1, 4), step(2, 4)) == [5, 8 if spared else 6]


def test_only_memory_of_its_own_forbids_a_second_run() -> None:
    """`Model.repeatable`; the parameter can forbid it too, but not allow what would count twice."""
    backend = IdentityBackend()

    def repeatable(text: str, more: str = "") -> bool:
        flag = 'parameters { key: "accumulate" value { string_value: "true" } }'
        config = completed(backend, NOWHERE, f"{text} {flag} {more}")
        return backend.load(config, NOWHERE).repeatable

    said = 'parameters { key: "repeatable" value { string_value: "%s" } }'
    assert repeatable(DECLARED)
    assert not repeatable(DECLARED, said % "false")
    assert not repeatable(DIRECT)
    assert not repeatable(OLDEST, said % "true")


def test_instances_have_memories_of_their_own() -> None:
    """A sequence is bound to one of them (SQ-11)."""
    backend = IdentityBackend()
    flag = 'parameters { key: "accumulate" value { string_value: "true" } }'
    config = completed(backend, NOWHERE, f"{DIRECT} {flag}")
    model = backend.load(config, NOWHERE)
    one, other = (Steps(config, model.instance(f"sums_0_{i}", CPU)) for i in range(2))
    assert sums(one, step(1, 5, start=True)) == [5]
    assert sums(other, step(1, 6)) == [6]
    assert sums(one, step(1, 1)) == [6]


@pytest.mark.parametrize("memory", [STATE, f"{START} {READY}"])
def test_without_batching_there_is_one_slot(memory) -> None:
    """Tensors have no batch axis then."""
    steps = load(f"max_batch_size: 0 {TENSORS} sequence_batching {{ {memory} }}")

    def alone(value: int, *, start: bool = False) -> Step:
        return Step(1, {"INPUT": np.array([value], "<i4")}, start)

    found = [steps.run(alone(4, start=True)), steps.run(alone(5))]
    assert [outputs_of(one) for one in found] == [[[4]], [[9]]]


def test_SB09_a_state_may_be_an_output_too() -> None:
    """It is listed behind the echoes, and is the sum of its input."""
    text = DECLARED + ' output [{ name: "SUM" data_type: TYPE_INT32 dims: [1] }]'
    steps = load(text)
    steps.run(step(1, 5, start=True))
    (outcome,) = steps.run(step(1, 6))
    assert outputs_of([outcome], "SUM") == outputs_of([outcome]) == [[11]]
    assert steps.state(1).tolist() == [11]


def test_SB10_an_echo_that_declares_a_state_never_changes_it() -> None:
    """Without ``accumulate`` it stays what it was at START."""
    steps = load(DECLARED, accumulate="false")
    assert sums(steps, step(1, 5, start=True)) == [5]
    assert sums(steps, step(1, 6)) == [6]
    assert steps.state(1).tolist() == [0]


def test_sums_wrap_around_like_any_models() -> None:
    """No warning, no other datatype."""
    steps = load(DECLARED)
    assert sums(steps, step(1, 2**31 - 1, start=True)) == [2**31 - 1]
    assert sums(steps, step(1, 1)) == [-(2**31)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"max_batch_size: 8 {TENSORS}", ["accumulate", "sequence_batching"]),
        (DECLARED.replace("TYPE_INT32", "TYPE_BOOL"), ["INPUT", "BOOL", "numbers"]),
        (DECLARED.replace("TYPE_INT32", "TYPE_STRING"), ["INPUT", "BYTES"]),
        (DECLARED.replace("TYPE_INT32", "TYPE_BF16"), ["INPUT", "BF16"]),
        (
            DECLARED.replace(STATE, STATE.replace("[1]", "[2]")),
            ["state", "INT32 [1]", "INT32 [2]"],
        ),
        (DECLARED.replace(STATE, STATE.replace("INT32", "INT64")), ["state", "INT64 [1]"]),
        (DIRECT.replace(READY, ""), ["CONTROL_SEQUENCE_READY", "direct"]),
        (DIRECT.replace(START, ""), ["CONTROL_SEQUENCE_START"]),
        (OLDEST.replace(CORRID, ""), ["CONTROL_SEQUENCE_CORRID", "oldest"]),
    ],
)
def test_what_cannot_be_added_up_is_refused_at_load(text, words) -> None:
    """The sentence names the field and what was expected."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    for word in words:
        assert word in str(caught.value)


def test_a_parameter_that_means_nothing_is_refused() -> None:
    """True or false, nothing else."""
    with pytest.raises(ConfigError, match=r"parameters\.accumulate.*'yes'.*true or false"):
        load(DECLARED, accumulate="yes")
