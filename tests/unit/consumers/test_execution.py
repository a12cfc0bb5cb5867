"""A failing batch is taken apart until the culprit stands alone; neighbours keep their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from headrace.consumers.ceiling import Ceiling
from headrace.consumers.execution import Execution, Ticket, execute
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import (
    BackendError,
    BackendUnavailable,
    OutOfMemory,
    Retriable,
    WrongOutput,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from service_parts import ScriptedInstance, make_entry, make_signature

SIGNATURE = make_signature()


def batch_of(count: int) -> Batch:
    return Batch(SIGNATURE, [make_entry((i, i), offset=i) for i in range(count)])


def offsets(batch: Batch) -> list[int]:
    return [entry.record.offset for entry in batch.entries if entry is not None]


def outcome(execution: Execution) -> tuple[list[int], list[int]]:
    """Offsets with results, and offsets with errors, each in order of the parts."""
    good: list[int] = []
    bad: list[int] = []
    for part in execution.parts:
        (bad if part.error else good).extend(offsets(part.batch))
    return good, bad


def raising(culprits: set[int], error: Callable[[], Exception]) -> Callable[[Batch], None]:
    def script(batch: Batch) -> None:
        if culprits & set(offsets(batch)):
            raise error()

    return script


def run(instance: ScriptedInstance, batch: Batch, *, repeatable: bool = True) -> Execution:
    return execute(instance, batch, repeatable=repeatable, decoupled=False)


def test_a_good_batch_runs_once() -> None:
    """One execution, one part, everything answered."""
    instance = ScriptedInstance()
    execution = run(instance, batch_of(8))
    assert execution.executions == 1
    assert outcome(execution) == (list(range(8)), [])


def test_B47_and_B31_the_culprit_stands_alone() -> None:
    """One raising record of 16 fails alone; each other record gets its own result."""
    instance = ScriptedInstance(raising({7}, lambda: BackendError("no")))
    execution = run(instance, batch_of(16))
    good, bad = outcome(execution)
    assert bad == [7]
    assert sorted(good) == [i for i in range(16) if i != 7]
    for part in execution.parts:
        if part.error is None:
            (responses,) = part.responses
            assert responses.outputs["OUTPUT0"][:, 0].tolist() == offsets(part.batch)


@given(st.sets(st.integers(0, 11)), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_every_entry_has_exactly_one_outcome(culprits: set[int], count: int) -> None:
    """Conservation for any set of culprits, and at most about 2 log n executions per culprit."""
    instance = ScriptedInstance(raising(culprits, lambda: ValueError("boom")))
    execution = run(instance, batch_of(count))
    good, bad = outcome(execution)
    assert sorted(good + bad) == list(range(count))
    assert set(bad) == {c for c in culprits if c < count}
    assert execution.executions == len(instance.batches) <= 1 + 8 * max(1, len(bad))


@pytest.mark.parametrize(
    ("culprit", "sizes"),
    [
        (15, [16, 8, 4, 2, 1, 1]),
        (0, [16, 8, 4, 2, 1, 1, 2, 4, 8]),
        (9, [16, 8, 4, 2, 1, 1, 2, 4]),
    ],
)
def test_B47_a_half_that_must_fail_is_not_run(culprit: int, sizes: list[int]) -> None:
    """Where the first half of what failed succeeds, the other one is taken apart at once."""
    instance = ScriptedInstance(raising({culprit}, lambda: BackendError("no")))
    execution = run(instance, batch_of(16))
    assert outcome(execution)[1] == [culprit]
    assert execution.sizes == sizes


def test_B47_what_fails_only_once_is_answered_all_the_same() -> None:
    """The half that should have failed and does not is served in pieces."""
    failures = iter([BackendError("once")])

    def script(_batch: Batch) -> None:
        for error in failures:
            raise error

    execution = run(ScriptedInstance(script), batch_of(8))
    assert outcome(execution) == (list(range(8)), [])


def test_a_model_with_memory_of_its_own_is_never_run_twice() -> None:
    """Not repeatable: the whole batch fails with the error, after one execution."""
    instance = ScriptedInstance(raising({3}, lambda: BackendError("no")))
    execution = run(instance, batch_of(5), repeatable=False)
    assert outcome(execution) == ([], [0, 1, 2, 3, 4])
    assert execution.executions == 1


@pytest.mark.parametrize("shape", [(1, 2), (), (4, 2)])
def test_B36_wrong_number_of_rows_is_run_singly(shape: tuple[int, ...]) -> None:
    """A runner that is wrong for batches but right for single requests still serves each of them."""

    def script(batch: Batch) -> dict[str, np.ndarray] | None:
        return {"OUTPUT0": np.zeros(shape, np.float32)} if len(batch) > 1 else None

    instance = ScriptedInstance(script)
    execution = run(instance, batch_of(3))
    assert outcome(execution) == ([0, 1, 2], [])
    assert instance.batches == [[0, 1, 2], [0], [1], [2]]


def test_B36_always_wrong_ends_as_an_error_for_each() -> None:
    """Never an empty success."""
    instance = ScriptedInstance(lambda _: {"OUTPUT0": np.zeros((7, 2), np.float32)})
    execution = run(instance, batch_of(3))
    assert outcome(execution) == ([], [0, 1, 2])
    assert all(isinstance(part.error, WrongOutput) for part in execution.parts)


RAGGED = """
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
batch_output [{ target_name: "OUTPUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT0" }]
"""


@pytest.mark.parametrize("count", [0, 5, 7])
def test_B36_a_ragged_output_of_another_size_is_run_singly(count: int) -> None:
    """Three requests of two elements are six; whoever gives another number is asked about each alone."""
    signature = make_signature(RAGGED)
    entries = [make_entry((i, i), offset=i) for i in range(3)]

    def script(batch: Batch) -> dict[str, np.ndarray]:
        return {"OUTPUT0": np.zeros(count if len(batch) > 1 else 2, np.float32)}

    instance = ScriptedInstance(script)
    execution = run(instance, Batch(signature, entries))
    assert outcome(execution) == ([0, 1, 2], [])
    assert instance.batches == [[0, 1, 2], [0], [1], [2]]


def test_a_ragged_output_of_the_right_size_is_run_once() -> None:
    """Its first axis counts elements, not rows."""
    instance = ScriptedInstance(lambda _: {"OUTPUT0": np.zeros(6, np.float32)})
    entries = [make_entry((i, i), offset=i) for i in range(3)]
    execution = run(instance, Batch(make_signature(RAGGED), entries))
    assert (execution.executions, outcome(execution)) == (1, ([0, 1, 2], []))


def test_foreign_exceptions_become_backend_errors_with_their_cause() -> None:
    """Whatever a plug-in raises is translated once and chained."""
    instance = ScriptedInstance(raising({0}, lambda: KeyError("weights")))
    (part,) = run(instance, batch_of(1)).parts
    assert type(part.error) is BackendError
    assert isinstance(part.error.__cause__, KeyError)
    assert "scripted_0" in part.error.detail
    assert "weights" in part.error.detail


def test_memory_errors_halve_the_batch() -> None:
    """More rows than fit: the halves run, nobody fails."""

    def script(batch: Batch) -> None:
        if batch.rows > 2:
            raise MemoryError("arena")

    instance = ScriptedInstance(script)
    execution = run(instance, batch_of(8))
    assert outcome(execution) == (list(range(8)), [])
    assert instance.batches[:2] == [list(range(8)), [0, 1, 2, 3]]


def short_above(rows: int, poison: int | None = None) -> Callable[[Batch], None]:
    """More rows do not fit, nor does one request alone."""

    def script(batch: Batch) -> None:
        if batch.rows > rows or poison in offsets(batch):
            raise MemoryError("arena")

    return script


def test_B80_what_did_not_fit_is_not_tried_again_in_the_same_size() -> None:
    """8 rows fit of 32: 32 and 16 fail once each, then four runs of 8; the ceiling is learned."""
    instance = ScriptedInstance(short_above(8))
    execution = run(instance, batch_of(32))
    assert outcome(execution) == (list(range(32)), [])
    assert [len(rows) for rows in instance.batches] == [32, 16, 8, 8, 8, 8]
    assert (execution.ceiling, execution.starved, execution.failed) == (8, False, False)


def test_B80_a_remembered_ceiling_cuts_a_batch_before_it_runs() -> None:
    """As a batch of ``direct`` is, or one that was formed before the ceiling fell."""
    ceiling = Ceiling(32, 1)
    ceiling.lower(3, 0)
    instance = ScriptedInstance(short_above(3))
    execution = execute(instance, batch_of(8), repeatable=True, decoupled=False, ceiling=ceiling)
    assert outcome(execution) == (list(range(8)), [])
    assert instance.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert execution.ceiling == 0


def test_B80_one_request_that_asks_for_too_much_lowers_no_ceiling() -> None:
    """Its neighbours run in the halves that it left behind, and nothing is said about rows."""
    instance = ScriptedInstance(short_above(100, poison=5))
    execution = run(instance, batch_of(16))
    assert outcome(execution)[1] == [5]
    assert (execution.ceiling, execution.starved, execution.failed) == (0, False, True)
    assert max(len(rows) for rows in instance.batches[1:]) == 8


@given(
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(0, 19)),
    st.lists(st.integers(1, 4), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=100)
def test_B80_whatever_fits_is_served(fits: int, poison: int | None, sizes: list[int]) -> None:
    """Each request has one outcome; only what is too large alone, or poisoned, fails; the ceiling is never too low."""
    entries = [make_entry((i, i), rows=rows, offset=i) for i, rows in enumerate(sizes)]
    instance = ScriptedInstance(short_above(fits, poison))
    execution = run(instance, Batch(SIGNATURE, entries))
    good, bad = outcome(execution)
    assert sorted(good + bad) == list(range(len(sizes)))
    assert set(bad) == {i for i, rows in enumerate(sizes) if rows > fits or i == poison}
    if execution.ceiling and poison is None and max(sizes) <= fits:
        assert execution.ceiling >= max(1, (fits + 1) // 2)


def test_B81_a_single_request_without_memory_starves_its_instance() -> None:
    """Nothing succeeded, which says something about the instance."""
    execution = run(ScriptedInstance(short_above(0)), batch_of(1))
    assert (execution.starved, execution.failed, execution.ceiling) == (True, True, 0)
    assert not run(ScriptedInstance(short_above(8, poison=0)), batch_of(2)).starved


def test_memory_errors_of_runtimes_are_known_by_class_and_text() -> None:
    """PyTorch's class without PyTorch, and CUDA's words in any exception."""

    class OutOfMemoryError(RuntimeError):
        """As torch names it."""

    for error in (
        OutOfMemoryError("x"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("cublas_status_alloc_failed"),
    ):
        (part,) = run(ScriptedInstance(raising({0}, lambda e=error: e)), batch_of(1)).parts
        assert isinstance(part.error, OutOfMemory), error


def test_a_batch_whose_backend_is_unavailable_is_not_taken_apart() -> None:
    """No request is to blame; a `Retriable` error may be one's, and is bisected."""
    instance = ScriptedInstance(raising({3}, lambda: BackendUnavailable("no")))
    (part,) = run(instance, batch_of(8)).parts
    assert (len(part.batch), len(instance.batches)) == (8, 1)
    execution = run(ScriptedInstance(raising({3}, lambda: Retriable("no"))), batch_of(8))
    assert outcome(execution)[1] == [3]


def test_B42_an_execution_that_was_given_up_runs_no_further_piece() -> None:
    """Its ticket is void when the first run returns: nothing more is asked of the model."""
    ticket = Ticket()

    def script(batch: Batch) -> None:
        assert ticket.began_ns > 0
        ticket.void()
        raise BackendError("late")

    instance = ScriptedInstance(script)
    execute(instance, batch_of(8), repeatable=True, decoupled=False, ticket=ticket)
    assert len(instance.batches) == 1
    assert ticket.began_ns == 0


def test_a_memory_error_of_a_single_request_is_typed() -> None:
    """At batch 1 it ends as `OutOfMemory`, never as a hang (B81)."""
    instance = ScriptedInstance(raising({0}, lambda: MemoryError("arena")))
    (part,) = run(instance, batch_of(1)).parts
    assert isinstance(part.error, OutOfMemory)


def test_two_responses_of_a_model_that_is_not_decoupled_are_refused() -> None:
    """Exactly one response for each request."""

    class Twice(ScriptedInstance):
        def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
            super().execute(batch, emit)
            super().execute(batch, emit)

    (part,) = run(Twice(), batch_of(1)).parts
    assert isinstance(part.error, WrongOutput)
    assert "gave 2 responses for 1 requests" in part.error.detail


def test_a_decoupled_model_may_give_none() -> None:
    """0..n responses are its right."""

    class Silent(ScriptedInstance):
        def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
            pass

    execution = execute(Silent(), batch_of(2), repeatable=True, decoupled=True)
    assert execution.parts[0].responses == []
    assert execution.parts[0].error is None
