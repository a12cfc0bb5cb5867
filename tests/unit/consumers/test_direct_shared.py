"""`direct` where the model declares its states: own rows as long as there are enough, then shared ones."""

from __future__ import annotations

from batching_kit import MS, variable
from headrace.consumers.direct import DirectBatcher
from sequence_batching_kit import Model


def started(count: int, rows: int, **fields: object) -> Model:
    """A model with so many open sequences, all of them idle."""
    model = Model(DirectBatcher, rows=rows, **fields)
    for number in range(1, count + 1):
        model.offer(model.ask(number, 1, "S"))
    model.run(flush=True)
    model.ran.clear()
    return model


def test_SQ11_as_many_sequences_as_rows_have_one_each() -> None:
    """As in Triton: padded below the highest row that runs."""
    model = started(3, 3)
    model.offer(model.ask(3, 5), model.ask(1, 5))
    model.run()
    assert model.rows_run == [[1, None, 3]]


def test_more_sequences_than_rows_share_them() -> None:
    """The oldest requests run, no row is padded, and each sequence goes on from its own state."""
    model = started(5, 3)
    assert (model.batcher.live, model.batcher.backlogged, model.batcher.parked) == (5, 0, 0)
    last = [model.ask(number, number) for number in (4, 2, 5, 1, 3)]
    model.offer(*last)
    model.run()
    assert model.rows_run == [[4, 2, 5], [1, None, 3]]
    assert model.sums(*last) == [5, 3, 6, 2, 4]


def test_SB02_the_utilization_is_that_of_the_rows() -> None:
    """Three quarters of four rows, whoever is in them."""
    model = started(6, 4, utilization=0.75, delay_ms=10)
    model.offer(model.ask(5, 1), model.ask(6, 1))
    assert model.take() is None
    model.offer(model.ask(1, 1))
    model.run()
    assert model.rows_run == [[5, 6, 1]]


def test_SQ12_shapes_are_kept_apart_in_shared_rows() -> None:
    """The longest waiting one decides."""
    model = started(3, 2, inputs=(variable(),))
    model.offer(model.ask(3, 1), model.ask(1, 1, shape=(4,)), model.ask(2, 1))
    model.run()
    assert model.rows_run == [[3], [1], [None, 2]]


def test_a_full_batch_may_be_given_ahead() -> None:
    """Of those that do not run; none while what waits may still expire."""
    model = started(6, 2)
    model.offer(*[model.ask(number, 1) for number in range(1, 7)])
    first = model.batcher.take(0, model.now_ns)
    assert first is not None
    assert model.batcher.ready(0) == 4
    second = model.batcher.take(0, model.now_ns)
    assert second is not None
    running = [one and one.sequence_id for batch in (first, second) for one in batch.entries]
    assert running == [1, 2, 3, 4]
    model.offer(model.ask(7, 1, "S", timeout_us=1000))
    assert model.batcher.ready(0) == 0


def test_SQ09_what_has_not_begun_and_has_no_row_of_its_own_expires() -> None:
    """One that has a row does not, though it waits as long; nor does a step of a live one (P-15)."""
    model = Model(DirectBatcher, rows=1)
    model.offer(model.ask(1, 1, "S"))
    model.take()
    step = model.ask(1, 1, timeout_us=1000)
    late = model.chain(2, [1, 2], ends=False, timeout_us=1000)
    later = model.ask(2, 3)
    model.offer(step, *late, later)
    assert model.batcher.wake_at() == model.now_ns + 1 * MS + 1
    model.tick(2)
    assert model.sums(*late, later) == ["timeout_expired"] * 3
    model.finish()
    model.run()
    assert model.sums(step) == [2]
    again = model.ask(2, 9, "S")
    model.offer(again)
    model.run()
    assert model.sums(again) == [9]


def test_SQ09_what_expires_while_a_batch_ends_does_not_run() -> None:
    """It stands in line until it is answered, and was started all the same."""
    model = Model(DirectBatcher, rows=1)
    model.offer(model.ask(1, 1, "S"))
    model.take()
    late, next_one = model.ask(2, 1, "SE", timeout_us=1000), model.ask(3, 1, "S")
    model.offer(late, next_one)
    model.now_ns += 2 * MS
    model.finish()
    model.take()
    model.finish()
    model.run()
    assert model.sums(late, next_one) == ["timeout_expired", 1]
    assert model.batcher.live == 2


def test_SQ16_a_cancelled_sequence_leaves_the_line() -> None:
    """With what was queued of it, and its times."""
    model = started(3, 1)
    gone = model.ask(2, 1, correlation_id=b"c")
    kept = [model.ask(1, 1), model.ask(3, 1)]
    model.offer(gone, *kept)
    model.refused(model.batcher.cancel({b"c"}))
    model.run()
    assert model.sums(gone) == ["cancelled"]
    assert model.sums(*kept) == [2, 2]
    assert len(model.batcher) == 0
