"""The dynamic batcher on a moved clock: Triton's own table (SEMANTICS §5.2), then the rules one by one."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from batching_kit import MS, Service, batching, entry, signature, variable
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.ordering import PreserveOrdering
from headrace.schemas.batch import Entry
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.model_config import DynamicBatching, TensorConfig
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype

FIXED = signature(8)
ANY_LENGTH = signature(8, [variable()])
RAGGED = signature(8, [variable(allow_ragged_batch=True)])
PREFERRED_2_6 = batching(2, 6, delay_ms=10_000)
LONG, SHORT = ((16,),), ((8,),)


class Case(NamedTuple):
    """Requests as (ms, rows, shapes) and the executions as (rows, ms) that are to come of them."""

    requests: list[tuple[float, int, tuple[tuple[int, ...] | None, ...]]]
    executions: list[tuple[int, float]]
    model: Signature = FIXED
    config: DynamicBatching = PREFERRED_2_6
    held_until_ms: float = 0
    busy_ms: float = 0


# The second and later requests come 1 ms after the one before, so that "immediate" is a time of its own.
TABLE = {
    "static_preferred": Case([(0, 2, LONG), (1, 6, LONG)], [(2, 0), (6, 1)]),
    "lt_any_preferred": Case([(0, 1, LONG)], [(1, 10_000)]),
    "not_preferred": Case([(0, 3, LONG)], [(3, 10_000)]),
    "different_shape_allow_ragged": Case([(0, 1, LONG), (1, 1, SHORT)], [(2, 1)], RAGGED),
    "different_shape": Case([(0, 1, LONG), (1, 1, SHORT)], [(1, 1), (1, 10_001)], ANY_LENGTH),
    "not_preferred pair": Case([(0, 1, LONG), (1, 3, LONG)], [(4, 10_000)]),
    "not_preferred + other shape": Case(
        [(0, 1, LONG), (1, 3, LONG), (2, 1, SHORT)], [(4, 2), (1, 10_002)], ANY_LENGTH
    ),
    "gt_max_preferred pair": Case([(0, 3, LONG), (1, 7, LONG)], [(3, 1), (7, 1)]),
    "delayed_sum_gt_max": Case(
        [(0, 3, LONG), (1, 4, LONG)], [(3, 5), (4, 10_001)], held_until_ms=5
    ),
    "biggest_preferred": Case([(0, 1, LONG)] * 6, [(6, 5)], held_until_ms=5),
    "preserve_ordering": Case(
        [(i, 1, LONG) for i in range(12)],
        [(4, 3), (4, 7), (4, 11)],
        config=batching(4, delay_ms=10_000, preserve_ordering=True),
    ),
    "delay only, non-default": Case(
        [(i, 1, LONG) for i in range(12)],
        [(12, 10_000)],
        signature(16),
        batching(16, delay_ms=10_000),
    ),
    "delay only, default 0": Case(
        [(i, 1, LONG) for i in range(12)],
        [(1, 0), (11, 100)],
        signature(16),
        batching(16),
        busy_ms=100,
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_semantics_5_2(case: Case) -> None:
    """Each row of the table of §5.2: sizes and times of the executions."""
    service = Service(
        DynamicBatcher(case.model, case.config),
        held_until_ms=case.held_until_ms,
        busy_ms=case.busy_ms,
    )
    service.run([(ms, [entry(rows, shapes)]) for ms, rows, shapes in case.requests])
    assert service.history == case.executions
    assert len(service.batcher) == 0


@pytest.mark.parametrize(
    "wanted",
    [(("OUTPUT0",), ("OUTPUT0",)), (("OUTPUT0",), ("OUTPUT1",))],
    ids=["same outputs", "different outputs"],
)
def test_DB22_requested_outputs_do_not_matter(wanted: tuple[tuple[str], tuple[str]]) -> None:
    """§5.2 same/different outputs requested: one batch of two, immediately."""
    service = Service(DynamicBatcher(FIXED, PREFERRED_2_6))
    asked = [entry(outputs=tuple(map(RequestedOutput, names)), id=names[0]) for names in wanted]
    service.run([(0, asked[:1]), (1, asked[1:])])
    assert service.history == [(2, 1)]


def queued(batcher: DynamicBatcher, *rows: int, now_ns: int = 0) -> list[Entry]:
    """Offer single-shape requests of these sizes."""
    entries = [entry(n, offset=i) for i, n in enumerate(rows)]
    assert batcher.offer(entries, now_ns) == []
    return entries


def taken(batcher: DynamicBatcher, now_ns: int = 0, *, flush: bool = False) -> int:
    """Rows of what a free instance gets now, 0 for nothing."""
    batch = batcher.take(0, now_ns, flush=flush)
    return 0 if batch is None else batch.rows


@pytest.mark.parametrize(
    ("preferred", "rows", "expected"),
    [
        ((2, 6), [3, 4], 3),  # DB-14: 7 passes 6, nothing preferred so far
        ((2, 6), [2, 3], 2),  # DB-15: a hit
        ((2, 6), [2, 4, 1], 6),  # DB-15: the later, larger hit overwrites
        ((2, 6), [1, 1, 1], 2),  # DB-16: exactly the candidate
        ((2, 6), [7], 7),  # DB-18: at least the largest preferred
        ((2, 6), [3], 0),  # DB-20: waits
        ((2, 6), [1, 4], 0),  # 5 is between the preferred sizes
        ((2, 4), [1, 5, 1], 1),  # DB-14 with a single request before
        ((4,), [3, 6], 3),  # DB-13: 9 is above 8
        ((8,), [1] * 20, 8),
        ((3,), [1] * 20, 3),
        ((1,), [1, 1, 1], 1),
        ((2, 8), [1] * 7, 2),
    ],
)
def test_DB13_to_DB20_before_the_delay(
    preferred: tuple[int, ...], rows: list[int], expected: int
) -> None:
    """What is taken at once while the oldest has not exceeded the delay."""
    batcher = DynamicBatcher(FIXED, batching(*preferred, delay_ms=10))
    queued(batcher, *rows)
    assert taken(batcher, 10 * MS - 1) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [([3, 4], 7), ([1] * 20, 8), ([2, 5], 7), ([3, 6], 3), ([5], 5)]
)
def test_DB17_after_the_delay_everything_up_to_max(rows: list[int], expected: int) -> None:
    """The preferred sizes are ignored once the oldest has waited for the delay."""
    batcher = DynamicBatcher(FIXED, batching(2, 6, delay_ms=10))
    queued(batcher, *rows)
    assert taken(batcher, 10 * MS) == expected


def test_DB17_stops_at_another_shape() -> None:
    """Everything compatible, that is: the next shape waits for an execution of its own."""
    batcher = DynamicBatcher(ANY_LENGTH, batching(2, 6, delay_ms=10))
    batcher.offer([entry(1, LONG), entry(3, LONG), entry(1, SHORT)], 0)
    assert taken(batcher, 10 * MS) == 4
    assert taken(batcher, 10 * MS) == 1


def test_DB01_no_preferred_size_is_the_maximum() -> None:
    """An empty list means ``max_batch_size``."""
    batcher = DynamicBatcher(FIXED, DynamicBatching(preferred_batch_size=()))
    queued(batcher, *[1] * 10)
    assert taken(batcher) == 8


def test_DB19_without_delay_nothing_waits() -> None:
    """Batches come only of what piles up behind busy instances; a preferred candidate still goes alone."""
    batcher = DynamicBatcher(FIXED, batching(4))
    queued(batcher, 1, 1, 1)
    assert taken(batcher) == 3
    queued(batcher, *[1] * 6)
    assert [taken(batcher), taken(batcher), taken(batcher)] == [4, 2, 0]
    assert batcher.wake_at() is None


def test_DB21_and_DB25_a_batch_is_enlarged_until_it_starts() -> None:
    """While every instance is busy the queue grows, whatever would have been formed before; nothing is woken."""
    batcher = DynamicBatcher(FIXED, batching(6, delay_ms=10))
    queued(batcher, 2)
    assert batcher.wake_at() == 10 * MS
    assert batcher.expire(12 * MS) == []
    assert batcher.wake_at() is None  # due, and only a free instance is missing
    queued(batcher, 3, now_ns=20 * MS)
    queued(batcher, 3, now_ns=30 * MS)
    assert taken(batcher, 31 * MS) == 8


def test_B44_rows_are_counted_not_requests() -> None:
    """FAULTS B44 and DB-23: 1 + 31 fill 32 rows, 5 go next; no request is split."""
    batcher = DynamicBatcher(signature(32), batching(32))
    queued(batcher, 1, 31, 5)
    assert [taken(batcher), taken(batcher), taken(batcher)] == [32, 5, 0]


def test_a_request_above_the_maximum_does_not_stall_the_queue() -> None:
    """Admission refuses it; should one get here, it runs alone rather than never."""
    batcher = DynamicBatcher(FIXED, batching(8, delay_ms=10))
    queued(batcher, 40, 1)
    assert [taken(batcher), taken(batcher, 10 * MS)] == [40, 1]


def test_B40_records_that_are_there_fill_batches() -> None:
    """FAULTS B40: 100 records, at most 32 rows, delay 1 s: at most 5 executions, long before 100 s."""
    service = Service(DynamicBatcher(signature(32), batching(32, delay_ms=1000)), busy_ms=10)
    service.run([(0, [entry(offset=i) for i in range(100)])])
    assert service.sizes == [32, 32, 32, 4]
    assert service.ran[-1].ms <= 1000


def test_B45_alternating_shapes_starve_nobody() -> None:
    """FAULTS B45: two lengths in turn; each runs with its own, and all within the delay (DB-12)."""
    delay_ms = 50
    service = Service(DynamicBatcher(ANY_LENGTH, batching(8, delay_ms=delay_ms)))
    service.run([(i, [entry(1, ((16 + 4 * (i % 2),),))]) for i in range(20)])
    assert sum(service.sizes) == 20
    for ran in service.ran:
        assert len({one.shapes for one in ran.batch.entries}) == 1
        assert all(ran.ms - one.admitted_ns / MS <= delay_ms for one in ran.batch.entries)


def test_DB12_fixed_shapes_are_not_compared() -> None:
    """Validation has fixed them already, so nothing is looked at (the trap of DB-12)."""
    batcher = DynamicBatcher(FIXED, batching(2))
    batcher.offer([entry(1, LONG), entry(1, ((1,),))], 0)
    assert taken(batcher) == 2


def test_DB12_of_several_inputs_only_those_of_any_length_count() -> None:
    """A ragged input may differ, another one of any length may not."""
    model = signature(8, [variable("a"), variable("b", allow_ragged_batch=True)])
    batcher = DynamicBatcher(model, batching(8))
    batcher.offer([entry(1, ((3,), (1,))), entry(1, ((3,), (2,))), entry(1, ((4,), (2,)))], 0)
    assert [taken(batcher), taken(batcher)] == [2, 1]


def test_DB12_optional_inputs_must_be_the_same_set() -> None:
    """MR-24: with optional inputs the present ones must agree, fixed shapes or not."""
    fixed = (TensorConfig("a", Datatype.FP32, (4,)),)
    model = signature(8, [*fixed, TensorConfig("b", Datatype.FP32, (4,), optional=True)])
    batcher = DynamicBatcher(model, batching(8))
    both, one = ((4,), (4,)), ((4,), None)
    batcher.offer([entry(1, shapes) for shapes in (both, both, one, one, both)], 0)
    assert [taken(batcher) for _ in range(4)] == [2, 2, 1, 0]


def test_DB12_a_shape_tensor_must_be_equal() -> None:
    """It has no rows to join: requests share a batch only with equal values."""
    model = signature(
        8,
        [
            TensorConfig("INPUT0", Datatype.FP32, (16,)),
            TensorConfig("SIZE", Datatype.INT32, (1,), is_shape_tensor=True),
        ],
    )
    batcher = DynamicBatcher(model, batching(8))
    values = [b"\1\0\0\0", b"\1\0\0\0", b"\2\0\0\0"]
    entries = [entry(1, ((16,), (1,))) for _ in values]
    for one, value in zip(entries, values, strict=True):
        one.data = (bytes(64), value)
    batcher.offer(entries, 0)
    assert [taken(batcher), taken(batcher)] == [2, 1]


def test_DB34_zero_size_inputs_batch_as_others() -> None:
    """An input of shape [0] is a shape like any other."""
    batcher = DynamicBatcher(ANY_LENGTH, batching(2))
    batcher.offer([entry(1, ((0,),)), entry(1, ((0,),))], 0)
    assert taken(batcher) == 2


def test_a_model_without_batching_gets_one_request_at_a_time() -> None:
    """``max_batch_size`` 0 with ``dynamic_batching``: nothing to merge."""
    batcher = DynamicBatcher(signature(0), DynamicBatching(preferred_batch_size=()))
    queued(batcher, 1, 1)
    assert [taken(batcher) for _ in range(3)] == [1, 1, 0]


def test_flush_holds_nothing_back() -> None:
    """Draining: no delay and no preferred size is waited for; bounds and shapes stay."""
    batcher = DynamicBatcher(ANY_LENGTH, batching(2, 6, delay_ms=10_000))
    batcher.offer([entry(3, LONG), entry(4, LONG), entry(1, SHORT)], 0)
    assert [taken(batcher, flush=True) for _ in range(3)] == [7, 1, 0]


def test_DB20_the_delay_counts_from_the_oldest() -> None:
    """Newcomers do not move it, neither where the queue is walked nor where the result is known without."""
    for model in (FIXED, ANY_LENGTH):
        batcher = DynamicBatcher(model, batching(8, delay_ms=10))
        for ms in range(5):
            queued(batcher, 1, now_ns=ms * MS)
            assert taken(batcher, ms * MS) == 0
            assert batcher.wake_at() == 10 * MS
        assert taken(batcher, 10 * MS) == 5


def test_a_walk_that_stopped_begins_anew_after_a_removal() -> None:
    """The entry that did not fit is cancelled: what comes after it is looked at."""
    batcher = DynamicBatcher(ANY_LENGTH, batching(4, delay_ms=10))
    batcher.offer([entry(1, LONG), entry(1, SHORT, correlation_id=b"x")], 0)
    assert batcher.wake_at() is None  # the first would go at once
    assert len(batcher.cancel({b"x"})) == 1
    assert taken(batcher) == 0
    queued(batcher, 3)
    assert taken(batcher) == 4


def test_DB32_any_instance_takes_from_the_one_queue() -> None:
    """Three instances, one queue: whoever is free gets the next batch, in order."""
    service = Service(DynamicBatcher(FIXED, batching(4)), instances=3, busy_ms=100)
    service.run([(0, [entry(offset=i) for i in range(16)])])
    assert [(ran.instance, ran.ms) for ran in service.ran] == [(0, 0), (1, 0), (2, 0), (0, 100)]
    offsets = [one.record.offset for ran in service.ran for one in ran.batch.entries]
    assert offsets == list(range(16))


def test_DB03_and_DB24_answers_leave_in_arrival_order() -> None:
    """Two instances finish in reverse; with ``preserve_ordering`` the answers still leave in order."""
    batcher = DynamicBatcher(FIXED, batching(4, preserve_ordering=True))
    ordering: PreserveOrdering[str] = PreserveOrdering()
    entries = queued(batcher, *[1] * 8)
    ordering.admit(entries)
    first, second = batcher.take(0, 0), batcher.take(1, 0)
    assert first is not None
    assert second is not None
    late = [one for one in second.entries if one is not None]
    assert ordering.done(late, ["late"] * 4) == []
    released = ordering.done([one for one in first.entries if one is not None], ["early"] * 4)
    assert [one for one, _ in released] == entries


def test_huge_queues_cost_no_scan() -> None:
    """Each take hands out the head, whatever waits behind; 100,000 entries leave in order."""
    batcher = DynamicBatcher(signature(64), batching(64))
    entries = queued(batcher, *[1] * 100_000)
    seen: list[Entry | None] = []
    while (batch := batcher.take(0, 0)) is not None:
        seen += batch.entries
    assert seen == entries
    assert len(batcher) == 0


def test_repr_shows_the_counts() -> None:
    """As the logs show it."""
    batcher = DynamicBatcher(FIXED, batching(8))
    queued(batcher, 1, 1)
    assert repr(batcher) == "DynamicBatcher(2 queued, 0 to refuse)"
