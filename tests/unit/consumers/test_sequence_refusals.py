"""What leaves without running: in its turn, by cancel (SQ-16), with its partition; what moves to another version."""

from __future__ import annotations

import pytest
from batching_kit import MS
from headrace.consumers.live_sequence import NO_SLOT
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.errors import InvalidRequest
from sequence_batching_kit import STRATEGIES, SUM, TPS, Model

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])


def bad(model: Model, sequence_id: int, **fields: object) -> object:
    """A request that decoding refused."""
    return model.ask(sequence_id, 1, error=InvalidRequest("bad bytes"), **fields)


# --- in its turn ---


@both
def test_a_refused_request_is_answered_between_its_neighbours(make: type[SequenceBatcher]) -> None:
    """SQ-17, SQ-20: the sequence goes on behind it, its state as it was; nothing overtakes it."""
    model = Model(make)
    made = [model.ask(1, 1, "S"), bad(model, 1), bad(model, 1), model.ask(1, 2)]
    model.offer(*made)
    assert model.answers == {}
    model.take()
    model.finish()
    assert model.take() is None
    assert model.batcher.wake_at() is not None
    model.run()
    assert model.sums(*made) == [1, "invalid_request", "invalid_request", 3]
    assert model.order == made


@both
def test_a_refused_request_with_nothing_before_it_is_answered_at_once(
    make: type[SequenceBatcher],
) -> None:
    """`offer` returns it; and who keeps the sequences hears that the lane is idle again."""
    model = Model(make)
    model.offer(model.ask(1, 1, "S"))
    model.run()
    model.idled.clear()
    one = bad(model, 1)
    model.offer(one)
    assert model.sums(one) == ["invalid_request"]
    assert model.idled == [model.lane(1)]
    assert model.lane(1).state.offset == one.record.offset


@both
def test_a_late_request_waits_for_its_sequence_that_still_runs(
    make: type[SequenceBatcher],
) -> None:
    """SQ-03 behind END: its answer follows the END's."""
    model = Model(make)
    end, late = model.ask(1, 1, "SE"), model.ask(1, 2)
    model.offer(end)
    model.take()
    model.offer(late)
    model.tick()
    assert model.answers == {}
    model.finish()
    model.tick()
    assert model.order == [end, late]


# --- cancel ---


@both
def test_SQ16_cancelling_one_request_cancels_all_that_is_queued_of_its_sequence(
    make: type[SequenceBatcher],
) -> None:
    """What runs completes; the others are answered behind it; the slot is free then and the id unknown."""
    model = Model(make, rows=1, candidates=1)
    made = model.chain(1, [1, 2, 3], ends=False)
    made[2].correlation_id = b"c"
    other = model.chain(2, [9])
    model.offer(*made, *other)
    model.take()
    assert model.batcher.cancel({b"c", b"unknown"}) == []
    model.finish()
    model.tick()
    assert model.sums(*made) == [1, "cancelled", "cancelled"]
    assert model.text(made[1]) == (
        "[request id: <id_unknown>] Request cancelled while it was queued, as all queued requests of sequence 1 were"
    )
    late = model.ask(1, 4)
    model.offer(late)
    model.run()
    assert model.sums(late, *other) == ["sequence_unknown", 9]
    assert model.batcher.live == 0


@both
def test_SQ16_in_the_backlog_it_is_answered_at_once(make: type[SequenceBatcher]) -> None:
    """It never had a slot; the others wait on."""
    model = Model(make, rows=1, candidates=1)
    model.offer(*model.chain(1, [1, 2]))
    made = model.chain(2, [1, 2], correlation_id=b"c")
    model.offer(*made, *model.chain(3, [5]))
    refusals = model.batcher.cancel({b"c"})
    assert [one for one, _ in refusals] == made
    model.refused(refusals)
    model.run()
    assert model.batcher.backlogged == 0
    assert model.counts == (3, 3)


@both
def test_SQ18_after_a_cancel_the_same_id_starts_afresh(make: type[SequenceBatcher]) -> None:
    """The state is the initial one, whether START came before or after what runs ended."""
    model = Model(make)
    model.offer(model.ask(1, 50, "S"))
    model.run()
    model.offer(model.ask(1, 5), model.ask(1, 5, correlation_id=b"c"))
    model.take()
    model.refused(model.batcher.cancel({b"c"}))
    again = [model.ask(1, 7, "S"), model.ask(1, 1)]
    model.offer(*again)
    model.finish()
    model.run()
    assert model.sums(*again) == [7, 8]


@both
def test_a_request_that_runs_cannot_be_cancelled(make: type[SequenceBatcher]) -> None:
    """SQ-16: it completes, and its sequence goes on."""
    model = Model(make)
    one = model.ask(1, 1, "S", correlation_id=b"c")
    model.offer(one)
    model.take()
    model.offer(model.ask(1, 2))
    assert model.batcher.cancel({b"c"}) == []
    model.finish()
    model.run()
    assert model.counts == (2, 2)


@both
def test_SQ16_ids_of_several_sequences_cancel_all_of_them(make: type[SequenceBatcher]) -> None:
    """In the slot, in the backlog, and twice in one sequence."""
    model = Model(make, rows=1, candidates=1)
    made = [
        *model.chain(1, [1, 2], correlation_id=b"a"),
        *model.chain(2, [3], correlation_id=b"b"),
        *model.chain(3, [4], correlation_id=b"c"),
    ]
    model.offer(*made)
    model.refused(model.batcher.cancel({b"a", b"b"}))
    model.run()
    assert model.sums(*made) == ["cancelled", "cancelled", "cancelled", 4]


# --- partitions that go ---


@both
def test_a_dropped_partition_leaves_nothing_but_what_runs(make: type[SequenceBatcher]) -> None:
    """Queued, backlogged and refused requests are returned unanswered; slots of what runs are free at its end."""
    model = Model(make, rows=2, candidates=2, states=())
    runs = [model.ask(1, 1, "S"), model.ask(1, 2), bad(model, 1)]
    waits = [model.ask(2, 1, "S", partition=1), model.ask(2, 2, partition=1)]
    backlogged = [model.ask(3, 1, "S"), model.ask(4, 1, "S", partition=1)]
    model.offer(*runs, *waits)
    model.offer(*backlogged)
    model.take()
    dropped = model.batcher.drop(TPS[0])
    assert set(dropped) == {*runs[1:], backlogged[0]}
    assert model.batcher.live == 2
    model.finish()
    model.run()
    assert model.sums(*runs, *waits) == [1, None, None, 1, 3]
    assert model.sums(backlogged[1]) == [1]
    assert model.lane(4, 1).slot != NO_SLOT
    assert len(model.batcher) == 0


@both
def test_drop_takes_idle_sequences_and_those_that_are_being_refused(
    make: type[SequenceBatcher],
) -> None:
    """Their slots are free at once, and nobody is told that they are idle."""
    model = Model(make, rows=2, candidates=2)
    model.offer(model.ask(1, 1, "S"), model.ask(2, 1, "S"))
    model.run()
    refused = bad(model, 2)
    model.offer(model.ask(2, 1))
    model.offer(refused)
    model.take()
    model.finish()
    model.idled.clear()
    assert model.batcher.drop(TPS[0]) == [refused]
    assert model.batcher.live == 0
    assert model.idled == []
    assert model.batcher.wake_at() is None


@both
def test_drop_takes_what_expired_in_the_backlog_and_was_not_fetched(
    make: type[SequenceBatcher],
) -> None:
    """It had no slot, and nothing of it is left to be answered."""
    model = Model(make, rows=1, candidates=1, states=())
    model.offer(model.ask(1, 1, "S", partition=1))
    late = model.ask(2, 1, "S", timeout_us=1000)
    model.offer(late)
    model.take()
    model.now_ns += 5 * MS
    model.finish()
    assert model.batcher.drop(TPS[0]) == [late]
    assert model.batcher.expire(model.now_ns) == []
    assert len(model.batcher) == 0


@both
def test_drop_of_a_partition_that_has_nothing_is_empty(make: type[SequenceBatcher]) -> None:
    """Also of one that was never seen."""
    assert Model(make).batcher.drop(TPS[3]) == []


@both
def test_the_slot_of_a_dropped_step_is_not_given_away_while_it_runs(
    make: type[SequenceBatcher],
) -> None:
    """B87: the model still writes to that row."""
    model = Model(make, rows=1, candidates=1, states=())
    model.offer(model.ask(1, 1, "S"))
    model.take()
    model.batcher.drop(TPS[0])
    model.offer(model.ask(2, 5, "S", partition=1))
    assert model.batcher.backlogged == 1
    model.finish()
    assert (model.batcher.live, model.batcher.backlogged) == (1, 0)


@both
def test_P7_a_suspended_partition_keeps_its_sequences_and_their_slots(
    make: type[SequenceBatcher],
) -> None:
    """Only the queue goes, what is being refused too: it will be read again from where the sequences stand."""
    model = Model(make, rows=2, candidates=2, states=())
    model.offer(model.ask(1, 1, "S"), model.ask(2, 5, "S"))
    model.run()
    queued = [model.ask(1, 2), model.ask(1, 3, "E"), model.ask(2, 6), bad(model, 2)]
    waits = [model.ask(3, 1, "S")]
    model.offer(*queued, *waits)
    model.take()
    assert set(model.batcher.suspend(TPS[0])) == {queued[1], queued[3], *waits}
    model.finish()
    assert model.sums(queued[0], queued[2]) == [3, 11]
    assert (len(model.batcher), model.batcher.live, model.batcher.backlogged) == (0, 2, 0)
    assert [model.lane(number).is_open for number in (1, 2)] == [True, True]
    again = [model.ask(1, 3, "E"), model.ask(2, 7)]
    model.offer(*again)
    model.run()
    assert model.sums(*again) == [6, 18]


# --- versions ---


@both
def test_a_sequence_moves_with_its_first_request_for_another_version(
    make: type[SequenceBatcher],
) -> None:
    """It stays on the version on which it started until a START; then its queue goes over as it stands."""
    model = Model(make, versions=(1, 2), rows=1, candidates=1)
    old = model.chain(1, [1, 2], version=1)
    waits = model.chain(2, [9], version=1)
    model.offer(*old, *waits)
    new = model.chain(1, [10, 20], version=2, correlation_id=b"c", timeout_us=10**9)
    model.offer(*new)
    assert [len(batcher) for batcher in model.batchers.values()] == [5, 0]
    for _ in old:
        model.take(version=1)
        model.finish(version=1)
    assert [len(batcher) for batcher in model.batchers.values()] == [1, 2]
    assert model.batchers[1].cancel({b"c"}) == []
    assert not model.batchers[1]._timeouts.times
    model.run()
    assert model.sums(*old, *new, *waits) == [1, 3, 10, 30, 9]
    assert [entry.version for entry in new] == [2, 2]


@both
def test_an_adopted_sequence_waits_for_a_slot_like_a_new_one(make: type[SequenceBatcher]) -> None:
    """And its timeouts count there (SQ-09)."""
    model = Model(make, versions=(1, 2), rows=1, candidates=1, states=())
    model.offer(model.ask(5, 1, "S", version=2))
    model.run()
    model.offer(*model.chain(1, [1], version=1))
    model.take(version=1)
    new = model.chain(1, [10, 20], version=2, timeout_us=5000)
    model.offer(*new)
    model.finish(version=1)
    assert model.batchers[2].backlogged == 1
    model.tick(6)
    assert model.sums(*new) == ["timeout_expired"] * 2


@both
def test_a_moved_sequence_frees_its_slot_for_those_that_wait(make: type[SequenceBatcher]) -> None:
    """START for another version on a live id whose step runs."""
    model = Model(make, versions=(1, 2), rows=1, candidates=1, states=(SUM,))
    model.offer(model.ask(1, 1, "S", version=1), model.ask(2, 5, "S", version=1))
    model.take(version=1)
    model.offer(model.ask(1, 7, "S", version=2))
    model.finish(version=1)
    model.run()
    assert model.batchers[1].place(model.lane(2)) == (0, 0)
    assert [batcher.live for batcher in model.batchers.values()] == [1, 1]
