"""Which requests run together: direct (SB-02, SQ-11, SQ-12) and oldest (SB-03, SQ-13, DB-12…DB-20)."""

from __future__ import annotations

import pytest
from batching_kit import MS, variable
from headrace.consumers.line import Line
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.model_config import StateConfig, TensorConfig
from headrace.schemas.tensor import Datatype
from sequence_batching_kit import STRATEGIES, Model, OwnRows

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])


def started(make: type[SequenceBatcher], count: int, **fields: object) -> Model:
    """A model with so many open sequences, all of them idle in their slots."""
    model = Model(make, **fields)
    for number in range(1, count + 1):
        model.offer(model.ask(number, 1, "S"))
    model.run(flush=True)
    model.ran.clear()
    return model


# --- direct ---


def test_SQ11_rows_below_the_highest_that_runs_are_padded() -> None:
    """Trailing idle rows are not sent; a padding row carries the initial state."""
    model = started(OwnRows, 4)
    model.offer(model.ask(3, 5), model.ask(1, 5))
    batch = model.take()
    assert batch is not None
    assert [one and one.sequence_id for one in batch.entries] == [1, None, 3]
    assert batch.rows == 3
    sums = [int.from_bytes(state.tensors[0], "little") for state in batch.states]
    assert sums == [1, 0, 1]


def test_SQ11_a_sequence_keeps_its_row() -> None:
    """Also where it alone has something to do."""
    model = started(OwnRows, 3, states=())
    for _ in range(3):
        model.offer(model.ask(2, 5))
        model.run()
    assert model.rows_run == [[None, 2]] * 3


def test_SQ11_one_request_of_each_slot_at_a_time() -> None:
    """However many are queued, and while the instance is at work none."""
    model = started(OwnRows, 2)
    model.offer(*[model.ask(number, 1) for number in (1, 2, 1, 1)])
    assert len(model.take() or ()) == 2
    assert model.batcher.take(0, model.now_ns) is None
    model.finish()
    model.run()
    assert model.rows_run == [[1, 2], [1], [1]]


def test_SB02_an_execution_waits_for_enough_ready_slots() -> None:
    """Three quarters of four: two wait, three run at once."""
    model = started(OwnRows, 4, utilization=0.75, delay_ms=10)
    model.offer(model.ask(1, 1), model.ask(4, 1))
    assert model.take() is None
    model.offer(model.ask(2, 1))
    model.run()
    assert model.rows_run == [[1, 2, None, 4]]


def test_SB02_the_delay_counts_from_the_oldest_ready_request() -> None:
    """`wake_at` says when, and later arrivals do not move it; no delay waits for nothing."""
    model = started(OwnRows, 4, utilization=1.0, delay_ms=10)
    model.offer(model.ask(1, 1))
    due_ns = model.now_ns + 10 * MS
    model.tick(4)
    model.offer(model.ask(2, 1))
    assert model.take() is None
    assert model.batcher.wake_at() == due_ns
    model.now_ns = due_ns - 1
    assert model.take() is None
    model.now_ns = due_ns
    model.run()
    assert model.rows_run == [[1, 2]]
    hasty = started(OwnRows, 4, utilization=1.0)
    hasty.offer(hasty.ask(1, 1))
    assert hasty.batcher.wake_at() is None
    assert hasty.take() is not None


def test_SB02_without_a_utilization_the_delay_does_nothing() -> None:
    """Triton: the delay matters only when the utilization is nonzero."""
    model = started(OwnRows, 4, delay_ms=10)
    model.offer(model.ask(1, 1))
    assert model.batcher.wake_at() is None
    assert model.take() is not None


def test_SB02_a_drain_waits_for_nothing() -> None:
    """``flush`` ignores utilization and delay."""
    model = started(OwnRows, 2, utilization=1.0, delay_ms=1000)
    model.offer(model.ask(1, 1))
    assert model.take() is None
    assert model.take(flush=True) is not None


def test_SQ12_a_row_of_another_shape_is_not_starved_by_lower_rows() -> None:
    """Row 0 is always ready; the request of the other shape that was left runs next all the same."""
    model = started(OwnRows, 2, inputs=(variable(),))
    model.offer(model.ask(1, 1), model.ask(2, 7, shape=(4,)))
    for _ in range(3):
        model.take()
        model.tick(1)
        model.offer(model.ask(1, 1))
        model.finish()
    assert model.rows_run == [[1], [None, 2], [1]]


def test_SB11_without_batching_an_instance_has_one_slot() -> None:
    """``max_batch_size`` 0: batches of one, one sequence per instance."""
    model = Model(OwnRows, rows=0, instances=2, states=())
    model.offer(*[model.ask(number, number, "S") for number in (1, 2, 3)])
    model.run()
    assert (model.batcher.live, model.batcher.backlogged) == (2, 1)
    assert {(ran.instance, ran.batch.rows) for ran in model.ran} == {(0, 1), (1, 1)}


# --- oldest ---


def test_SQ13_at_most_one_request_of_a_sequence_is_in_flight() -> None:
    """Also where an instance is asked for its next batch before it has ended the one it is at."""
    model = started(OldestBatcher, 2)
    model.offer(*[model.ask(1, 1) for _ in range(3)], model.ask(2, 1))
    first = model.batcher.take(0, model.now_ns)
    assert first is not None
    assert [one and one.sequence_id for one in first.entries] == [1, 2]
    assert model.batcher.take(0, model.now_ns) is None


def test_SQ13_the_request_that_waits_for_longest_goes_first() -> None:
    """A sequence's next request that was read long ago goes before what came later of the others."""
    model = started(OldestBatcher, 4, rows=2)
    model.offer(model.ask(1, 1), model.ask(1, 2))
    model.tick(1)
    model.offer(*[model.ask(number, 1) for number in (2, 3, 4)])
    model.run()
    assert model.rows_run == [[1, 2], [1, 3], [4]]


def test_SQ13_no_padding_and_any_row() -> None:
    """A sequence that alone has something to do is row 0."""
    model = started(OldestBatcher, 3)
    model.offer(model.ask(3, 5))
    model.run()
    assert model.rows_run == [[3]]


def test_SB03_preferred_sizes_and_the_delay_of_the_dynamic_batcher() -> None:
    """DB-16, DB-17, DB-18, DB-20: a preferred size goes at once, the rest waits for the delay of the oldest."""
    model = started(OldestBatcher, 4, preferred=(2, 4), delay_ms=10)
    model.offer(*[model.ask(number, 1) for number in (1, 2, 3)])
    due_ns = model.now_ns + 10 * MS
    model.run()
    assert model.rows_run == [[1, 2]]
    assert model.batcher.wake_at() == due_ns
    model.tick(9)
    model.run()
    assert model.counts == (1, 2)
    model.tick(1)
    model.run()
    assert model.rows_run == [[1, 2], [3]]


def test_SB03_a_withdrawn_request_does_not_count_towards_a_size_or_a_delay() -> None:
    """The oldest of two is cancelled: the other one's own delay counts."""
    model = started(OldestBatcher, 2, preferred=(2,), rows=2, delay_ms=10)
    model.offer(model.ask(1, 1, correlation_id=b"c"))
    model.tick(5)
    model.refused(model.batcher.cancel({b"c"}))
    model.offer(model.ask(2, 1))
    assert model.take() is None
    assert model.batcher.wake_at() == model.now_ns + 10 * MS
    model.tick(6)
    assert model.take() is None


def test_DB12_a_request_of_another_shape_ends_the_wait() -> None:
    """What stands before it cannot become more, so it runs at once; the other one waits for its own delay."""
    model = started(OldestBatcher, 2, inputs=(variable(),), preferred=(4,), delay_ms=10)
    model.offer(model.ask(1, 1, shape=(4,)), model.ask(2, 1, shape=(8,)))
    model.run()
    assert model.rows_run == [[1]]
    assert model.batcher.wake_at() == model.now_ns + 10 * MS


def test_SB03_a_drain_holds_nothing_back() -> None:
    """``flush``: as if the delay had passed."""
    model = started(OldestBatcher, 4, preferred=(4,), delay_ms=1000)
    model.offer(model.ask(1, 1))
    assert model.take() is None
    assert len(model.take(flush=True) or ()) == 1


def test_sequences_stay_on_their_instance() -> None:
    """SQ-13: bound to an instance, whichever is free."""
    model = started(OldestBatcher, 4, instances=2, states=(), candidates=2)
    for _ in range(3):
        model.offer(*[model.ask(number, 1) for number in (1, 2, 3, 4)])
        model.run()
    assert {(ran.instance, *ids) for ran, ids in zip(model.ran, model.rows_run, strict=True)} == {
        (0, 1, 3),
        (1, 2, 4),
    }


def test_a_line_forgets_what_was_withdrawn() -> None:
    """Sequences that are cancelled over and over while an instance hangs leave nothing behind."""
    model = started(OldestBatcher, 1, states=())
    for _ in range(2000):
        model.offer(model.ask(1, 1, "S"), model.ask(1, 1, correlation_id=b"c"))
        model.refused(model.batcher.cancel({b"c"}))
        model.tick(1)
    line = model.batcher._lines[0]
    assert isinstance(line, Line)
    assert line.count == 0
    assert sum(len(block) for block in line._blocks.values()) < 300
    assert len(line._times) < 300


# --- shapes of both ---


@both
def test_DB12_requests_without_an_optional_input_run_apart(make: type[SequenceBatcher]) -> None:
    """As in the dynamic batcher: the same inputs in all."""
    inputs = (
        TensorConfig("A", Datatype.FP32, (16,)),
        TensorConfig("B", Datatype.FP32, (16,), optional=True),
    )
    model = Model(make, inputs=inputs)
    made = [model.ask(number, 1, "S") for number in (1, 2, 3)]
    for one, second in zip(made, [(16,), None, (16,)], strict=True):
        one.shapes = ((16,), second)
        one.data = (one.data[0], None if second is None else b"2")
    model.offer(*made)
    model.run()
    apart = [[1, None, 3], [None, 2]] if make is OwnRows else [[1], [2], [3]]
    assert model.rows_run == apart


@both
def test_states_of_different_shapes_run_apart(make: type[SequenceBatcher]) -> None:
    """A state that grows: steps at different lengths cannot be one tensor; padding has the shape of the others."""
    grows = StateConfig("SUM_IN", "SUM_OUT", Datatype.INT64, (-1,))
    model = started(make, 3, states=(grows,))
    for number, length in ((1, 2), (2, 3), (3, 2)):
        lane = model.lane(number)
        assert lane.state is not None
        lane.state = lane.state._replace(shapes=((length,),))
    model.offer(*[model.ask(number, 1) for number in (1, 2, 3)])
    model.run()
    if make is OwnRows:
        assert model.rows_run == [[1, None, 3], [None, 2]]
    else:
        assert model.rows_run == [[1], [2], [3]]
    for ran in model.ran:
        assert len({state.shapes for state in ran.batch.states}) == 1


@both
def test_SQ15_priority_is_ignored(make: type[SequenceBatcher]) -> None:
    """First come, first served."""
    model = Model(make, rows=1, candidates=1)
    made = [model.ask(1, 1, "SE", priority=5), model.ask(2, 1, "SE", priority=1)]
    model.offer(*made)
    model.run()
    assert model.order == made


@both
def test_the_queue_is_one_level(make: type[SequenceBatcher]) -> None:
    """What metrics show of it."""
    model = Model(make, rows=1, candidates=1)
    model.offer(*model.chain(1, [1, 2]), *model.chain(2, [1]))
    assert model.batcher.queues() == [(0, 3, 0)]
    assert len(model.batcher) == 3
