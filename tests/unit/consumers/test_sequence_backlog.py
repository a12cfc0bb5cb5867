"""What waits for a slot: SQ-07, SQ-09, KX-04, the bounds of the backlog, and times that pass there."""

from __future__ import annotations

import pytest
from batching_kit import MS
from headrace.consumers.backlog import Backlog, BacklogBounds
from headrace.consumers.backlog_timeouts import BacklogTimeouts
from headrace.consumers.live_sequence import NO_SLOT, LiveSequence
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, Reason
from sequence_batching_kit import STRATEGIES, TPS, WIDE, Model

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])


def full(make: type[SequenceBatcher], **fields: object) -> Model:
    """A model whose only slot is taken by sequence 1, which has nothing to do and is never parked."""
    given: dict[str, object] = {"rows": 1, "candidates": 1, "states": (), **fields}
    model = Model(make, **given)
    model.offer(model.ask(1, 1, "S"))
    model.run()
    return model


def finish(model: Model) -> None:
    """End sequence 1."""
    model.offer(model.ask(1, 1, "E"))
    model.run()


# --- order ---


@both
def test_SQ07_the_oldest_backlogged_sequence_gets_the_slot_with_all_its_requests(
    make: type[SequenceBatcher],
) -> None:
    """First come, first served within a partition; a backlogged id goes on collecting."""
    model = full(make)
    made = [model.ask(number, 1, "S") for number in (2, 3)]
    more = [model.ask(number, 1, "E") for number in (3, 2)]
    model.offer(*made)
    model.offer(*more)
    finish(model)
    assert [one.sequence_id for one in model.order[2:]] == [2, 2, 3, 3]


@both
def test_KX04_partitions_take_turns(make: type[SequenceBatcher]) -> None:
    """A partition with many new sequences does not make those of the others wait behind them all."""
    model = full(make)
    model.offer(*[model.ask(number, 1, "SE") for number in range(10, 15)])
    model.offer(*[model.ask(number, 1, "SE", partition=1) for number in (20, 21)])
    model.offer(model.ask(30, 1, "SE", partition=2))
    finish(model)
    ids = [one.sequence_id for one in model.order[2:]]
    assert ids == [10, 20, 30, 11, 21, 12, 13, 14]


def test_a_lane_is_found_wherever_it_waits() -> None:
    """Taking one out of the middle leaves the others in order, and the counts right."""
    backlog = Backlog(WIDE)
    lanes = [waiting(number, number) for number in range(1000)]
    for lane in lanes:
        backlog.add(lane)
    for lane in lanes[1:999]:
        assert lane in backlog
        backlog.remove(lane)
        assert lane not in backlog
    assert repr(backlog) == "Backlog(2 sequences of 1 partitions, 2 records)"
    assert [backlog.pop(), backlog.pop()] == [lanes[0], lanes[999]]
    assert repr(backlog) == "Backlog(0 sequences of 0 partitions, 0 records)"


def waiting(number: int, offset: int, *, timeout_us: int = 0, expires_ms: int = 0) -> LiveSequence:
    """A lane with one request that was admitted at 0."""
    lane = LiveSequence(b"u:%d" % number, number, TPS[0], 1, 1)
    lane.push(queued(offset, timeout_us=timeout_us, expires_ms=expires_ms))
    return lane


def queued(offset: int, *, timeout_us: int = 0, expires_ms: int = 0) -> Entry:
    """A request that was admitted at 0."""
    one = Model().ask(1, 1)
    one.record = one.record._replace(offset=offset)
    one.timeout_us, one.expires_ns = timeout_us, expires_ms * MS
    return one


# --- times ---


@both
@pytest.mark.parametrize("place", [0, 1, 2])
def test_SQ09_the_smallest_time_of_any_request_ends_the_whole_sequence(
    make: type[SequenceBatcher], place: int
) -> None:
    """Counted from that request's own arrival; at the very instant it is still served, a nanosecond later not."""
    model = full(make)
    made = model.chain(2, [1, 2, 3])
    for number, one in enumerate(made):
        one.timeout_us = 5000 if number == place else 90_000
        model.offer(one)
        model.tick(1)
    due_ns = made[place].admitted_ns + 5 * MS
    assert model.batcher.wake_at() == due_ns + 1
    assert model.batcher.expire(due_ns) == []
    model.refused(model.batcher.expire(due_ns + 1))
    assert model.sums(*made) == ["timeout_expired"] * 3
    assert model.order[-3:] == made
    assert model.text(made[0]) == (
        "[request id: <id_unknown>] timeout of the corresponding sequence has been expired"
    )
    assert model.batcher.backlogged == len(model.batcher) == 0
    assert model.batcher.wake_at() is None


@both
def test_SQ09_a_deadline_ends_it_too_with_its_own_reason(make: type[SequenceBatcher]) -> None:
    """The caller's own deadline is answered 504 (`deadline_passed`), a timeout 503."""
    model = full(make)
    made = model.chain(2, [1, 2, 3], timeout_us=50_000)
    made[1].expires_ns = model.now_ns + 9 * MS
    model.offer(*made)
    model.tick(10)
    assert model.sums(*made) == ["deadline_passed"] * 3
    assert "timeout of the corresponding sequence has been expired" in model.text(made[2])


@both
def test_P15_times_do_nothing_once_a_sequence_has_a_slot(make: type[SequenceBatcher]) -> None:
    """Not even for what was queued while it still waited."""
    model = full(make)
    made = model.chain(2, [1, 2, 3], timeout_us=5000, expires_ns=model.now_ns + 5 * MS)
    model.offer(*made)
    model.offer(model.ask(1, 1, "E"))
    model.take()
    model.finish()
    model.tick(100)
    model.run()
    assert model.sums(*made) == [1, 3, 6]


@both
def test_P15_a_successor_of_the_same_id_times_out_in_the_backlog(
    make: type[SequenceBatcher],
) -> None:
    """Its request was read while its predecessor ran; where it waits for a slot, its time counts from its arrival."""
    model = full(make)
    old = model.chain(2, [1])
    new = model.chain(2, [5, 6], timeout_us=20_000)
    other = model.chain(3, [7], ends=False)
    model.offer(*old, *new, *other)
    finish(model)
    assert model.sums(*old, *new, *other) == [1, None, None, 7]
    model.tick(30)
    assert model.sums(*new) == ["timeout_expired"] * 2


@both
def test_a_step_that_was_read_for_a_sequence_that_expires_meanwhile_goes_with_it(
    make: type[SequenceBatcher],
) -> None:
    """Routing took it for a step before time had passed."""
    model = full(make)
    start = model.ask(2, 1, "S", timeout_us=5000)
    model.offer(start)
    model.now_ns += 6 * MS
    step = model.ask(2, 2)
    model.offer(step)
    assert model.sums(start, step) == ["timeout_expired"] * 2


@both
def test_a_deadline_that_passed_before_admission_ends_what_finds_no_slot(
    make: type[SequenceBatcher],
) -> None:
    """At once where it has to wait; where a slot is free it runs (P-15)."""
    model = full(make)
    late = model.ask(2, 1, "S", expires_ns=-5)
    model.offer(late)
    model.tick()
    finish(model)
    runs = model.ask(3, 4, "S", expires_ns=-5)
    model.offer(runs)
    model.run()
    assert model.sums(late, runs) == ["deadline_passed", 4]


@both
def test_P15_the_time_of_a_request_that_has_run_ends_nothing(make: type[SequenceBatcher]) -> None:
    """The predecessor's END had a timeout; its successor, which waits, has none."""
    model = full(make)
    model.offer(model.ask(1, 1, "E", timeout_us=1000))
    successor = model.chain(1, [5, 6])
    model.offer(*successor, model.ask(2, 7, "S"))
    model.run()
    assert model.batcher.backlogged == 1
    model.tick(50)
    assert model.sums(*successor) == [None, None]
    assert model.batcher.wake_at() is None


@both
@pytest.mark.parametrize("number", [0, 1])
def test_P15_no_time_ends_a_live_sequence_that_was_parked(
    make: type[SequenceBatcher], number: int
) -> None:
    """It gave its slot to another one, which is our doing: its step waits for a slot again and runs, however late."""
    model = full(make, states=Model().states)
    model.offer(model.ask(2, 5, "S"))
    model.run()
    assert model.lane(1).slot == NO_SLOT
    model.offer(model.ask(2, 1))
    assert model.take() is not None
    steps = [model.ask(1, 10), model.ask(1, 20)]
    steps[number].timeout_us, steps[number].expires_ns = 5000, model.now_ns + 3 * MS
    for step in steps:
        model.offer(step)
    assert model.batcher.backlogged == 1
    assert model.batcher.wake_at() is None
    model.tick(50)
    model.finish()
    model.run()
    assert model.sums(*steps) == [11, 31]


@both
def test_SQ09_the_successor_of_a_live_sequence_times_out_once_that_has_ended(
    make: type[SequenceBatcher],
) -> None:
    """Behind the END of a parked sequence a START waits with a timeout: it counts only for the new one."""
    model = full(make, states=Model().states)
    model.offer(model.ask(2, 5, "S"))
    model.run()
    model.offer(model.ask(2, 1))
    assert model.take() is not None
    end = model.ask(1, 10, "E")
    successor = model.chain(1, [7, 8], timeout_us=60_000)
    model.offer(end, *successor)
    model.tick(50)
    model.finish()
    model.offer(model.ask(3, 1, "S"))
    assert model.take() is not None
    model.finish()
    assert model.sums(end, *successor) == [11, None, None]
    assert model.batcher.backlogged == 1
    model.tick(20)
    assert model.sums(end, *successor) == [11, "timeout_expired", "timeout_expired"]


def test_timeouts_forget_what_left_the_queue() -> None:
    """A lane that never rests keeps no times of requests that ran long ago; nor does the heap of all lanes."""
    timeouts = BacklogTimeouts()
    lane = waiting(1, 0, timeout_us=10)
    for offset in range(5000):
        lane.push(queued(offset + 1, timeout_us=10))
        timeouts.note(lane, lane.tail)
        lane.pop()
        timeouts.arm(lane)
        timeouts.disarm(lane)
    assert len(timeouts.times[lane]) < 300
    assert len(timeouts._heap) < 300
    assert timeouts.wake_at() is None
    timeouts.forget(lane)
    assert not timeouts.times


# --- bounds ---


@both
def test_too_many_sequences_of_a_partition_answer_start_queue_full(
    make: type[SequenceBatcher],
) -> None:
    """The bound is the partition's; what was admitted behind the START is answered too, and a later START may fit."""
    model = full(make, bounds=BacklogBounds(2, 100, 100, 1000))
    fit = [model.ask(number, 1, "S") for number in (2, 3)]
    there = model.ask(9, 1, "S", partition=1)
    over = model.chain(4, [1, 2])
    model.offer(*fit, *over, there)
    later = model.ask(4, 3)
    model.offer(later)
    assert model.sums(*fit, there) == [None] * 3
    assert model.sums(*over, later) == ["queue_full", "queue_full", "sequence_unknown"]
    assert model.text(over[1]) == (
        "[request id: <id_unknown>] Exceeds maximum queue size of the backlog of model 'm': 2 sequences of partition "
        "0 wait for a slot already, expected fewer"
    )
    finish(model)
    again = model.ask(4, 5, "S")
    model.offer(again)
    assert model.sums(again) == [None]


@both
def test_too_many_records_answer_start_queue_full(make: type[SequenceBatcher]) -> None:
    """Over all partitions."""
    model = full(make, bounds=BacklogBounds(9, 3, 100, 1000))
    fit = model.chain(2, [1, 2, 3])
    over = model.ask(3, 1, "S", partition=1)
    model.offer(*fit)
    model.offer(over)
    assert model.sums(*fit, over) == [None, None, None, "queue_full"]
    assert "4 requests would wait for a slot, expected at most 3" in model.text(over)


@both
def test_further_requests_of_backlogged_sequences_end_the_newest_one(
    make: type[SequenceBatcher],
) -> None:
    """So the sequence that waits for longest has its turn; reading never stalls."""
    model = full(make, bounds=BacklogBounds(9, 3, 100, 1000))
    made = [model.ask(2, 1, "S"), model.ask(3, 1, "S", partition=1), model.ask(2, 2)]
    model.offer(*made)
    last = model.ask(2, 3)
    model.offer(last)
    assert model.sums(*made, last) == [None, "queue_full", None, None]
    assert model.batcher.backlogged == 1


@both
def test_too_many_bytes_answer_start_queue_full(make: type[SequenceBatcher]) -> None:
    """Over all partitions, as many as there are digits here; what leaves the backlog makes room."""
    model = full(make, bounds=BacklogBounds(9, 100, 100, 8))
    fit = model.chain(2, [10, 20, 30])
    over = model.ask(3, 456, "S", partition=1)
    model.offer(*fit)
    model.offer(over)
    assert model.sums(*fit, over) == [None, None, None, "queue_full"]
    assert "requests of 9 bytes would wait for a slot, expected at most 8" in model.text(over)
    finish(model)
    assert model.sums(*fit) == [10, 30, 60]
    model.offer(model.ask(1, 1, "S"))
    model.run()
    again = model.ask(3, 12345678, "S")
    model.offer(again)
    assert model.sums(again) == [None]
    model.batcher.drop(again.tp)
    assert model.batcher._backlog._bytes == 0


@both
def test_further_bytes_of_backlogged_sequences_end_the_newest_one(
    make: type[SequenceBatcher],
) -> None:
    """A long request behind a short START counts like any other."""
    model = full(make, bounds=BacklogBounds(9, 100, 100, 8))
    made = [model.ask(2, 1, "S"), model.ask(3, 1, "S", partition=1)]
    model.offer(*made)
    last = model.ask(2, 1234567)
    model.offer(last)
    assert model.sums(*made, last) == [None, "queue_full", None]


@both
def test_P1_what_others_read_on_ends_the_sequence_that_holds_its_partition_back(
    make: type[SequenceBatcher],
) -> None:
    """Records of another version, or of no sequence, are never offered here; the partition is read on by them too."""
    model = full(make, bounds=BacklogBounds(9, 100, 6, 100))
    one = model.ask(2, 1, "S")
    model.offer(one)
    first = one.record.offset
    assert not model.batcher.read_on(one.tp, first + 6)
    assert not model.batcher.read_on(TPS[1], first + 60)
    assert model.batcher.read_on(one.tp, first + 7)
    wake_ns = model.batcher.wake_at()
    assert wake_ns is not None
    assert wake_ns <= model.now_ns
    model.tick()
    assert model.sums(one) == ["queue_full"]


@both
def test_a_partition_that_is_read_too_far_ends_the_sequence_that_holds_it_back(
    make: type[SequenceBatcher],
) -> None:
    """The one with the oldest request, though it may have come to the backlog late."""
    model = full(make, bounds=BacklogBounds(9, 100, 6, 1000))
    made = [model.ask(number, 1, "S") for number in (2, 3)]
    model.offer(*made)
    rest = [model.ask(1, 1) for _ in range(4)]
    model.offer(*rest)
    assert model.sums(*made) == [None, None]
    model.offer(model.ask(1, 1))
    assert model.sums(*made) == ["queue_full", None]
    assert "partition 0 is read 6 offsets beyond" in model.text(made[0])


@both
def test_a_successor_that_holds_its_partition_back_is_ended_as_it_comes(
    make: type[SequenceBatcher],
) -> None:
    """Its START was read long ago, behind its predecessor's END."""
    model = full(make, bounds=BacklogBounds(9, 100, 6, 1000))
    model.offer(model.ask(1, 1, "E"))
    successor = model.ask(1, 5, "S")
    model.offer(successor, model.ask(2, 1, "S"))
    model.offer(*[model.ask(7, 1, "S" if n == 0 else "", partition=1) for n in range(3)])
    model.offer(*[model.ask(1, 1) for _ in range(5)])
    model.run()
    assert model.sums(successor) == ["queue_full"]


@both
def test_declared_states_need_no_bounds(make: type[SequenceBatcher]) -> None:
    """Parking gives everybody a slot, so nothing is refused however small the bounds are."""
    model = full(make, states=Model().states, bounds=BacklogBounds(1, 1, 1, 1))
    made = [model.ask(number, 1, "S") for number in range(2, 50)]
    model.offer(*made)
    model.run()
    assert model.sums(*made) == [1] * 48


def test_the_oldest_head_is_found_although_many_left() -> None:
    """Places of lanes that left are thrown away before they outnumber the rest."""
    backlog = Backlog(BacklogBounds(10**6, 10**6, 1, 10**6))
    for number in range(5000):
        lane = waiting(number, number)
        backlog.add(lane)
        backlog.remove(lane)
    part_heads = max((len(part.heads) for part in backlog._partitions.values()), default=0)
    assert part_heads < 300
    keeper, late = waiting(1, 5), waiting(2, 3)
    backlog.add(keeper)
    backlog.add(late)
    entry = queued(9)
    backlog.read(entry.tp, entry.record.offset)
    found = backlog.excess([entry.tp])
    assert found is not None
    assert found[0] is late


@both
def test_what_the_bounds_end_is_told_by_the_word_that_programs_know(
    make: type[SequenceBatcher],
) -> None:
    """`queue_full` is retriable: the same bytes may succeed later."""
    model = full(make, bounds=BacklogBounds(0, 1, 1, 1000))
    one = model.ask(2, 1, "S")
    model.offer(one)
    error = model.answers[one]
    assert isinstance(error, InferError)
    assert error.reason is Reason.QUEUE_FULL
    assert error.retriable
