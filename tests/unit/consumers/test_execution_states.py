"""Executions of sequence models: who succeeded has a new state, who failed has none (SEMANTICS SB-07…SB-10, SQ-17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution, Ticket, execute
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import BackendError, TooLarge, WrongOutput
from headrace.schemas.sequence import Flag, SequenceState
from hypothesis import given, settings
from hypothesis import strategies as st
from service_parts import make_entry, make_signature

PLAIN = """
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }]
sequence_batching { STATE }
"""
STATE = 'state [{ input_name: "in" output_name: "out" data_type: TYPE_INT64 dims: [1] }]'
WITH_STATE = make_signature(PLAIN.replace("STATE", STATE))
WITHOUT_STATE = make_signature(PLAIN.replace("STATE", ""))


def number(value: int) -> bytes:
    return np.array([value], "<i8").tobytes()


def batch_of(*ids: int | None) -> Batch:
    """Make steps of these sequences; each has its id as its state, a padding row has 0."""
    entries = [None if one is None else make_entry((one, one), offset=one) for one in ids]
    states = [SequenceState(-1, Flag.LIVE, 0, 1, 1, (number(one or 0),), ((1,),)) for one in ids]
    return Batch(WITH_STATE, entries, states)


class Adding:
    """A model that adds 100 to each state; a script may raise, or answer instead."""

    def __init__(self, script: Callable[[Batch], Responses | None] = lambda _: None) -> None:
        self.name = "adding_0"
        self.concurrency = 1
        self.device = "CPU"
        self.seen: list[list[int | None]] = []
        self._script = script

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        self.seen.append([None if e is None else e.record.offset for e in batch.entries])
        columns = batch.inputs()
        emit(
            self._script(batch)
            or Responses({"OUTPUT0": columns["INPUT0"]}, states={"out": columns["in"] + 100})
        )

    def healthy(self) -> bool:
        return True

    def close(self) -> None:
        pass


def run(instance: Instance, batch: Batch, *, repeatable: bool = True) -> Execution:
    return execute(instance, batch, repeatable=repeatable, decoupled=False)


def states_of(batch: Batch) -> Mapping[int, int | None]:
    """Return the state that each step has then, None where it failed."""
    found: dict[int, int | None] = {}
    for entry in batch.entries:
        if entry is not None:
            out = entry.state_out
            found[entry.record.offset] = (
                None if out is None else int(np.frombuffer(out[0][0], "<i8")[0])
            )
            assert out is None or out[1] == ((1,),)
    return found


def raising(culprit: int, error: Exception) -> Callable[[Batch], None]:
    def script(batch: Batch) -> None:
        if any(e is not None and e.record.offset == culprit for e in batch.entries):
            raise error

    return script


def test_SB07_each_step_has_the_state_of_its_own_row() -> None:
    """Padding rows have none."""
    batch = batch_of(None, 1, None, 2, 3)
    run(Adding(), batch)
    assert states_of(batch) == {1: 101, 2: 102, 3: 103}


def test_SQ17_whoever_fails_has_no_new_state_and_neighbours_have_theirs() -> None:
    """B47: pieces of a batch carry their own rows' states, whichever way the batch was halved."""
    batch = batch_of(1, 2, None, 3, 4, 5)
    instance = Adding(raising(4, BackendError("no")))
    execution = run(instance, batch)
    assert states_of(batch) == {1: 101, 2: 102, 3: 103, 4: None, 5: 105}
    assert sum(part.error is not None for part in execution.parts) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.sets(st.integers(1, 8)))
@settings(deadline=None, max_examples=100)
def test_padding_rows_are_never_run_again(present: list[bool], culprits: set[int]) -> None:
    """SQ-11: any padding and any culprits: pieces hold requests only, and each request has its one outcome."""
    ids = [i if here else None for i, here in enumerate(present, 1)]
    if not any(present):
        ids.append(len(ids) + 1)
    batch = batch_of(*ids)

    def script(batch: Batch) -> None:
        if culprits & {e.record.offset for e in batch.entries if e is not None}:
            raise BackendError("no")

    instance = Adding(script)
    execution = run(instance, batch)
    expected = {i: None if i in culprits else i + 100 for i in ids if i is not None}
    assert states_of(batch) == expected
    assert instance.seen[0] == ids
    assert all(None not in seen for seen in instance.seen[1:])
    outcomes = [e for part in execution.parts for e in part.batch.entries if e is not None]
    assert sorted(e.record.offset for e in outcomes) == sorted(expected)


def test_a_request_that_stands_alone_among_padding_is_not_run_twice() -> None:
    """Its failure cannot be a neighbour's."""
    batch = batch_of(None, 1, None)
    instance = Adding(raising(1, BackendError("no")))
    assert run(instance, batch).executions == 1
    assert states_of(batch) == {1: None}


def test_a_model_with_memory_of_its_own_is_never_run_twice() -> None:
    """Nobody of the failed batch has a state."""
    batch = batch_of(1, None, 2)
    instance = Adding(raising(2, WrongOutput("no")))
    execution = run(instance, batch, repeatable=False)
    assert instance.seen == [[1, None, 2]]
    assert [part.error is None for part in execution.parts] == [False]
    assert states_of(batch) == {1: None, 2: None}


def test_SQ17_a_request_with_an_error_of_its_own_has_no_new_state() -> None:
    """Its neighbours of the same response have."""

    def script(batch: Batch) -> Responses:
        columns = batch.inputs()
        return Responses(
            {"OUTPUT0": columns["INPUT0"]},
            errors={1: BackendError("mine")},
            states={"out": columns["in"] + 100},
        )

    batch = batch_of(1, 2, 3)
    run(Adding(script), batch)
    assert states_of(batch) == {1: 101, 2: None, 3: 103}


def test_SB10_who_gives_no_state_keeps_it() -> None:
    """The step succeeded all the same."""
    batch = batch_of(1, None, 2)
    run(Adding(lambda b: Responses({"OUTPUT0": b.inputs()["INPUT0"]})), batch)
    assert states_of(batch) == {1: 1, 2: 2}


def test_responses_of_some_members_each_bring_their_states() -> None:
    """Padding rows need no response."""

    class Apart(Adding):
        def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
            columns = batch.inputs()
            for members in ([3], [0, 2]):
                emit(
                    Responses(
                        {"OUTPUT0": columns["INPUT0"][members]},
                        members=members,
                        states={"out": columns["in"][members] + 100},
                    )
                )

    batch = batch_of(1, None, 2, 3)
    execution = run(Apart(), batch)
    assert [part.error for part in execution.parts] == [None]
    assert states_of(batch) == {1: 101, 2: 102, 3: 103}


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"out": np.zeros((3, 1), "<i4")}, "int32 for state 'out'"),
        ({"out": np.zeros((2, 1), "<i8")}, "expected 3 rows"),
        ({"out": np.zeros((3, 2), "<i8")}, "item shape"),
        ({"sum": np.zeros((3, 1), "<i8")}, "'sum' is not a valid state name"),
    ],
)
def test_SB09_and_B36_a_wrong_state_is_an_error_and_runs_singly(states, words) -> None:
    """A model that is wrong for batches but right for single steps still serves each of them."""

    def script(batch: Batch) -> Responses | None:
        if len(batch) == 1:
            return None
        return Responses({"OUTPUT0": batch.inputs()["INPUT0"]}, states=states)

    batch = batch_of(1, 2, 3)
    instance = Adding(script)
    assert all(part.error is None for part in run(instance, batch).parts)
    assert instance.seen == [[1, 2, 3], [1], [2], [3]]
    assert states_of(batch) == {1: 101, 2: 102, 3: 103}
    failed = batch_of(1, 2, 3)
    (part,) = run(Adding(script), failed, repeatable=False).parts
    assert isinstance(part.error, WrongOutput)
    assert words in part.error.detail
    assert states_of(failed) == {1: None, 2: None, 3: None}


def without_states(*entries: Entry | None) -> Batch:
    states = [SequenceState(-1, Flag.LIVE, 0, 1, 0)] * len(entries)
    return Batch(WITHOUT_STATE, list(entries), states)


def echoing(batch: Batch) -> Responses:
    return Responses({"OUTPUT0": batch.inputs()["INPUT0"]})


class Echo(Adding):
    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        answer = self._script(batch)
        assert answer is not None
        emit(answer)


def test_a_step_of_a_model_without_states_succeeds_with_none() -> None:
    """Empty, so that it differs from a failed one."""
    batch = without_states(make_entry(), None)
    run(Echo(echoing), batch)
    assert batch.first.state_out == ((), ())


@pytest.mark.parametrize("is_sequence", [True, False])
def test_SB09_a_state_of_a_model_without_states_is_refused(is_sequence: bool) -> None:
    """Also where the model serves no sequences at all."""

    def script(batch: Batch) -> Responses:
        return Responses({"OUTPUT0": batch.inputs()["INPUT0"]}, states={"s": np.zeros((1, 1))})

    batch = without_states(make_entry())
    if not is_sequence:
        batch = Batch(make_signature(), [make_entry()])
    (part,) = run(Echo(script), batch).parts
    assert isinstance(part.error, WrongOutput)
    assert "unable to add state 's'" in part.error.detail
    assert batch.first.state_out is None


def test_a_model_without_sequences_gives_no_states() -> None:
    """Nothing is kept for requests that have no sequence."""
    batch = Batch(make_signature(), [make_entry()])
    (part,) = run(Echo(echoing), batch).parts
    assert part.error is None
    assert batch.first.state_out is None


def test_a_state_that_outgrows_a_record_fails_alone() -> None:
    """Its dims vary; no snapshot could hold it. Its neighbours in the batch keep their new states."""
    varying = make_signature(PLAIN.replace("STATE", STATE.replace("dims: [1]", "dims: [-1]")))
    entries = [make_entry(offset=number) for number in range(3)]
    states = [SequenceState(-1, Flag.LIVE, 0, 1, 1, (bytes(8),), ((1,),))] * 3

    def grown(batch: Batch) -> Responses:
        width = 5 if any(entry and entry.record.offset == 1 for entry in batch.entries) else 4
        column = np.zeros((batch.rows, width), np.int64)
        return Responses({"OUTPUT0": batch.inputs()["INPUT0"]}, states={"out": column})

    batch = Batch(varying, entries, states)
    execution = execute(Adding(grown), batch, repeatable=True, decoupled=False, max_state_bytes=32)
    (error,) = [part.error for part in execution.parts if part.error is not None]
    assert isinstance(error, TooLarge)
    assert "has 40 bytes, expected at most 32" in error.detail
    assert [one.state_out is None for one in entries] == [False, True, False]


def test_B42_an_execution_that_was_given_up_leaves_no_state() -> None:
    """Its steps may be running again: what comes late must not become the state of a step that failed since."""
    ticket, batch = Ticket(), batch_of(1, 2)

    def late(_: Batch) -> None:
        ticket.void()

    execute(Adding(late), batch, repeatable=True, decoupled=False, ticket=ticket)
    assert states_of(batch) == {1: None, 2: None}
    execute(Adding(), batch, repeatable=True, decoupled=False, ticket=Ticket())
    assert states_of(batch) == {1: 101, 2: 102}
