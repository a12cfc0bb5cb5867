"""What failed in a way that may pass waits for its next try, and never for more than its bounds allow."""

from __future__ import annotations

from headrace.consumers.ceiling import Ceiling
from headrace.consumers.execution import Execution, Part
from headrace.consumers.recovery import Recovery
from headrace.consumers.retry import LOOK_NS, Retries, RetryBounds, piece_of
from headrace.schemas.batch import Batch
from headrace.schemas.errors import Retriable
from headrace.schemas.record import TP
from hypothesis import given, settings
from hypothesis import strategies as st
from service_parts import make_entry, make_signature

SIGNATURE = make_signature()
ERROR = Retriable("not now")
MS = 1_000_000


def batch_of(count: int, start: int = 0) -> Batch:
    return Batch(SIGNATURE, [make_entry((i, i), offset=i) for i in range(start, start + count)])


def offsets(batch: Batch | None) -> list[int]:
    return [] if batch is None else [e.record.offset for e in batch.entries if e is not None]


def retries(max_attempts: int = 3, jitter: float = 0.0) -> Retries:
    bounds = RetryBounds(max_attempts, 100 * MS, 150 * MS)
    return Retries(bounds, jitter=lambda: jitter)


def test_B30_tries_are_bounded_and_pauses_double_up_to_the_longest() -> None:
    """Three tries: 100 ms, then 150 ms instead of 200 ms, then no further one."""
    held = retries()
    batch = batch_of(1)
    assert held.hold(batch, ERROR, 0) == []
    assert (held.take(100 * MS - 1), len(held)) == (None, 1)
    batch = held.take(100 * MS)
    assert offsets(batch) == [0]
    assert batch.entries[0].attempt == 2
    assert held  # it runs again: its tries are remembered
    assert held.hold(batch, ERROR, 200 * MS) == []
    assert held.wake_at(200 * MS) == 350 * MS
    batch = held.take(350 * MS)
    assert batch.entries[0].attempt == 3
    assert held.hold(batch, ERROR, 400 * MS) == [0]
    held.ended(batch)
    assert not held


def test_jitter_shortens_a_pause_by_up_to_half() -> None:
    """What failed together does not come back together."""
    held = retries(jitter=1.0)
    held.hold(batch_of(1), ERROR, 0)
    assert held.wake_at(0) == 50 * MS


def test_a_try_that_would_come_after_the_deadline_is_not_made() -> None:
    """The one whose deadline is in 99 ms has no further try; the one in 101 ms has."""
    held = retries()
    batch = batch_of(2)
    batch.entries[0].expires_ns, batch.entries[1].expires_ns = 99 * MS, 101 * MS
    assert held.hold(batch, ERROR, 0) == [0]
    assert offsets(held.take(100 * MS)) == [1]


def test_a_deadline_that_passes_while_no_instance_is_free_is_found() -> None:
    """Due and not taken: deadlines are looked at, and who is too late leaves."""
    held = retries()
    batch = batch_of(2)
    batch.entries[1].expires_ns = 200 * MS
    held.hold(batch, ERROR, 0)
    assert held.wake_at(150 * MS) == 150 * MS + LOOK_NS
    assert not held.expire(200 * MS)
    (late,) = held.expire(200 * MS + 1)
    assert (offsets(late.batch), late.error) == ([1], ERROR)
    assert offsets(held.take(201 * MS)) == [0]


def test_singly_each_request_comes_back_alone() -> None:
    """Nobody knows which one brought the instance down."""
    held = retries()
    held.hold(batch_of(3), ERROR, 0, singly=True)
    assert [offsets(held.take(100 * MS)) for _ in range(4)] == [[0], [1], [2], []]


def test_a_partition_that_is_given_up_leaves_nothing() -> None:
    """Its requests go, the others stay."""
    held = retries()
    batch = batch_of(3)
    batch.entries[1].tp = TP("t", 1)
    held.hold(batch, ERROR, 0)
    (gone,) = held.drop(TP("t", 1))
    assert offsets(gone.batch) == [1]
    assert offsets(held.take(100 * MS)) == [0, 2]


def test_work_that_was_not_begun_costs_no_try() -> None:
    """It goes to the next free instance at once."""
    held = retries(max_attempts=1)
    held.put_back(batch_of(2), 7)
    batch = held.take(7)
    assert offsets(batch) == [0, 1]
    assert batch.entries[0].attempt == 1


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 300)), max_size=12),
)
@settings(deadline=None)
def test_every_request_leaves_exactly_once_and_is_tried_within_its_bound(
    max_attempts: int, steps: list[tuple[int, bool, int]]
) -> None:
    """Conservation: held and taken again until the tries are used, never lost, never twice."""
    held = retries(max_attempts)
    now, start, tries = 0, 0, {}
    over: list[int] = []

    def fail(batch: Batch, *, singly: bool) -> None:
        for offset in offsets(batch):
            tries[offset] = tries.get(offset, 0) + 1
        rows = held.hold(batch, ERROR, now, singly=singly)
        over.extend(batch.entries[row].record.offset for row in rows)
        held.ended(Batch(SIGNATURE, [batch.entries[row] for row in rows]))

    for count, singly, wait_ms in steps:
        fail(batch_of(count, start), singly=singly)
        start += count
        now += wait_ms * MS
        while (batch := held.take(now)) is not None:
            fail(batch, singly=singly)
    while held:
        wake = held.wake_at(now)
        now = max(now, wake)
        if (batch := held.take(now)) is not None:
            fail(batch, singly=False)
    assert sorted(over) == list(range(start))
    assert set(tries.values()) <= {max_attempts}


def test_B101_what_leaves_without_a_last_try_is_forgotten() -> None:
    """By its deadline, or with its partition: what is remembered of it would stay for ever."""
    held = retries()
    batch = batch_of(2)
    batch.entries[0].expires_ns = 200 * MS
    held.hold(batch, ERROR, 0)
    assert held.expire(200 * MS + 1)
    assert repr(held) == "Retries(1 held, 1 tried before)"
    assert held.drop(batch.entries[1].tp)
    assert not held


def test_B101_what_succeeds_beside_others_that_are_tried_again_is_forgotten() -> None:
    held = retries()
    recovery = Recovery(held, Ceiling(8, 1), None, repeatable=True)
    batch = batch_of(2)
    held.hold(batch, ERROR, 0)
    again = held.take(100 * MS)
    assert again is not None
    parts = [Part(piece_of(again, [0]), (), None), Part(piece_of(again, [1]), (), ERROR)]
    found = recovery.sort(again, Execution(parts, 1, 0, 0, 0, failed=True), 100 * MS)
    assert (offsets(found.batch), found.held) == ([0], 1)
    assert repr(held) == "Retries(1 held, 1 tried before)"
