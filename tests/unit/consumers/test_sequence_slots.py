"""Who has which slot: SB-11, SQ-04, SQ-05, SQ-10, SQ-21, KX-03, parking, and slots that are free at most once."""

from __future__ import annotations

from random import Random

import pytest
from batching_kit import MS
from headrace.consumers.live_sequence import NO_SLOT
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.slots import Slots, instance_of, row_of
from headrace.schemas.model_config import StateConfig
from sequence_batching_kit import STRATEGIES, SUM, TPS, Model

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])


# --- the numbers ---


def test_SQ10_the_lowest_row_over_all_instances_is_given_first() -> None:
    """Row 0 of each instance before row 1 of any, and what was given back before what was never used."""
    slots = Slots(2, range(3))
    taken = [slots.take() for _ in range(6)]
    assert [(row_of(slot), instance_of(slot)) for slot in taken] == [
        (row, instance) for row in (0, 1) for instance in (0, 1, 2)
    ]
    assert slots.take() == NO_SLOT
    slots.free(taken[4])
    slots.free(taken[1])
    assert [slots.take(), slots.take(), slots.take()] == [taken[1], taken[4], NO_SLOT]


def test_B87_a_slot_that_is_free_cannot_be_given_back() -> None:
    """Freeing twice is a bug that shows at once, and changes nothing."""
    slots = Slots(1, range(1))
    slot = slots.take()
    slots.free(slot)
    with pytest.raises(KeyError):
        slots.free(slot)
    assert [slots.take(), slots.take()] == [slot, NO_SLOT]


def test_SQ21_an_instance_that_comes_back_does_not_give_slots_twice() -> None:
    """What a sequence still has from before is not free."""
    slots = Slots(2, range(2))
    taken = [slots.take() for _ in range(4)]
    slots.resize({0})
    slots.free(taken[1])  # row 0 of the removed instance
    assert slots.take() == NO_SLOT
    slots.resize({0, 1})
    assert [slots.take(), slots.take()] == [taken[1], NO_SLOT]
    slots.free(taken[3])
    assert slots.take() == taken[3]


def test_a_million_rows_cost_nothing() -> None:
    """Rows that were never used are not stored."""
    slots = Slots(10**12, range(2))
    assert [slots.take() for _ in range(4)] == [0, 1, 1 << 16, 1 << 16 | 1]
    assert len(slots) == 4


# --- the lanes ---


@both
def test_SB11_slots_times_instances_are_live_and_the_rest_waits(
    make: type[SequenceBatcher],
) -> None:
    """Two rows on each of two instances: four live, one in the backlog; SQ-10 says where."""
    model = Model(make, rows=2, candidates=2, instances=2, states=())
    first = [model.ask(number, 1, "S") for number in range(1, 6)]
    model.offer(*first)
    assert (model.batcher.live, model.batcher.backlogged) == (4, 1)
    model.run()
    places = [model.batcher.place(model.lane(number)) for number in (1, 2, 3, 4)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert model.sums(*first) == [1, 1, 1, 1, None]
    assert repr(model.batcher) == (f"{make.__name__}(1 queued, 4 live, 1 backlogged, 0 refusing)")


@both
def test_SQ04_start_on_a_live_id_begins_anew_in_its_slot(make: type[SequenceBatcher]) -> None:
    """Behind the old requests, without END, with the state of the beginning (SQ-18)."""
    model = Model(make, states=())
    model.offer(model.ask(8, 1, "S"))
    model.offer(*[model.ask(9, value, flags) for value, flags in ((1, "S"), (2, ""))])
    model.run()
    slot = model.lane(9).slot
    again = [model.ask(9, value, flags) for value, flags in ((10, "S"), (20, ""))]
    model.offer(*again)
    model.run()
    assert model.sums(*again) == [10, 30]
    assert model.lane(9).slot == slot


@both
def test_KX03_one_id_is_one_order_and_its_successor_waits_like_a_new_sequence(
    make: type[SequenceBatcher],
) -> None:
    """SQ-05, stricter than Triton: a START behind END runs after it, and behind those that wait already."""
    model = Model(make, rows=1, candidates=1, states=())
    old = model.chain(1, [1, 2])
    new = model.chain(1, [100, 200])
    other = model.chain(2, [7, 8])
    model.offer(*old, *new, *other)
    model.run()
    assert model.sums(*old, *new, *other) == [1, 3, 100, 300, 7, 15]
    assert model.order == [*old, *other, *new]


@both
def test_KX03_the_successor_keeps_going_where_nobody_waits(make: type[SequenceBatcher]) -> None:
    """A thousand sequences of one id, one after the other."""
    model = Model(make, rows=1, candidates=1)
    made = [model.ask(1, value, "SE") for value in range(1000)]
    model.offer(*made)
    model.run()
    assert model.sums(*made) == list(range(1000))
    assert model.batcher.live == 0


@both
def test_an_idle_sequence_lends_its_slot_and_gets_one_back(make: type[SequenceBatcher]) -> None:
    """Parking (DESIGN §7): with declared states three open sequences share one slot, whatever ENDs are not read."""
    model = Model(make, rows=1, candidates=1)
    for value in (1, 10, 100):
        asked = [
            model.ask(number, value * number, "S" if value == 1 else "") for number in (1, 2, 3)
        ]
        model.offer(*asked)
        model.run()
    assert model.sums(*asked) == [111, 222, 333]
    assert (model.batcher.live, model.batcher.backlogged) == (1, 0)
    assert model.batcher.parked == 6


@both
def test_the_longest_idle_sequence_is_parked(make: type[SequenceBatcher]) -> None:
    """Of three idle ones, the one whose last step was over first."""
    model = Model(make, rows=3, candidates=3)
    model.offer(*[model.ask(number, 1, "S") for number in (1, 2, 3)])
    model.run()
    for number in (1, 3, 2):
        model.offer(model.ask(number, 1))
        model.run()
    slot = model.lane(1).slot
    model.offer(model.ask(4, 1, "S"))
    model.run()
    assert model.lane(1).slot == NO_SLOT
    assert model.lane(4).slot == slot


@both
def test_a_sequence_that_has_work_in_the_block_is_not_parked_for_it(
    make: type[SequenceBatcher],
) -> None:
    """The slot is taken from one that has nothing to do, although the other's request stands behind in the block."""
    model = Model(make, rows=2, candidates=2)
    model.offer(model.ask(1, 1, "S"), model.ask(2, 1, "S"))
    model.run()
    model.offer(model.ask(3, 1, "S"), model.ask(1, 2))
    assert model.lane(2).slot == NO_SLOT
    assert model.batcher.backlogged == 0
    model.run()
    assert model.counts == (2, 4)


@both
def test_a_busy_sequence_yields_to_one_that_waits_for_longer(make: type[SequenceBatcher]) -> None:
    """With declared states a producer that never pauses cannot keep the only slot for ever."""
    model = Model(make, rows=1, candidates=1)
    model.offer(model.ask(1, 1, "S"))
    other = model.ask(2, 5, "S", partition=1)
    for turn in range(10):
        model.tick(1)
        model.offer(model.ask(1, 1))
        if turn == 2:
            model.offer(other)
        model.take()
        model.tick(1)
        model.finish()
        if other in model.answers:
            break
    assert model.lane(1).waiting > 0
    assert model.sums(other) == [5]
    assert turn <= 5


@both
def test_a_model_with_memory_of_its_own_is_never_parked(make: type[SequenceBatcher]) -> None:
    """SQ-07: an open sequence keeps its slot while others wait, for the model finds its memory there."""
    model = Model(make, rows=1, candidates=1, states=())
    model.offer(model.ask(1, 1, "S"))
    model.run()
    model.offer(*model.chain(2, [7]))
    model.run()
    last = model.ask(1, 2, "E")
    model.offer(last)
    model.run()
    assert model.sums(last) == [3]
    assert model.batcher.parked == 0
    assert (model.batcher.live, model.batcher.backlogged) == (0, 0)


@both
def test_SQ21_a_removed_instance_serves_its_sequences_to_the_end(
    make: type[SequenceBatcher],
) -> None:
    """It gets no new ones; the model's memory of those that it has is there."""
    model = Model(make, rows=2, candidates=2, instances=2, states=())
    model.offer(*[model.ask(number, number, "S") for number in (1, 2)])
    model.run()
    model.batcher.resize({0})
    rest = [model.ask(number, 10, "E") for number in (1, 2)]
    model.offer(*[model.ask(number, number, "S") for number in (3, 4)], *rest)
    model.run()
    assert model.sums(*rest) == [11, 12]
    assert model.batcher.live == 2
    assert {instance_of(model.lane(number).slot) for number in (3, 4)} == {0}


@both
def test_SQ21_declared_states_leave_a_removed_instance_when_they_are_idle(
    make: type[SequenceBatcher],
) -> None:
    """Those that are idle at once, those that have work when it is done; and they go on elsewhere."""
    model = Model(make, rows=2, candidates=2, instances=2)
    model.offer(*[model.ask(number, number, "S") for number in (1, 2, 3, 4)])
    model.run()
    on_1 = [n for n in (1, 2, 3, 4) if instance_of(model.lane(n).slot) == 1]
    model.offer(model.ask(on_1[0], 5))
    model.batcher.resize({0})
    assert instance_of(model.lane(on_1[0]).slot) == 1
    assert model.lane(on_1[1]).slot == NO_SLOT
    model.run()
    assert model.lane(on_1[0]).slot == NO_SLOT
    model.ran.clear()
    last = [model.ask(number, 10, "E") for number in on_1]
    model.offer(*last)
    model.run()
    assert model.sums(*last) == [on_1[0] + 15, on_1[1] + 10]
    assert {ran.instance for ran in model.ran} == {0}


@both
def test_B88_releasing_again_does_nothing(make: type[SequenceBatcher]) -> None:
    """The reaper may tell twice, of a sequence that was parked, and of one that is at work."""
    model = Model(make, rows=2, candidates=2)
    model.offer(model.ask(1, 1, "S"), model.ask(2, 1, "S"))
    model.run()
    idle, busy = model.lane(1), model.lane(2)
    model.offer(model.ask(2, 1))
    for lane in (idle, idle, busy):
        model.batcher.release(lane)
    assert (idle.slot, model.batcher.live) == (NO_SLOT, 1)
    model.run()
    assert model.counts == (2, 3)


@both
def test_B88_a_hundred_silent_sequences_are_reaped_once_each(make: type[SequenceBatcher]) -> None:
    """All slots are free then, and nothing is left to wake up for."""
    model = Model(make, rows=100, candidates=100, states=(), idle_ms=1000)
    model.offer(*[model.ask(number, 1, "S") for number in range(1, 101)])
    model.run()
    model.tick(2000)
    reaped = [model.sequences.reap(TPS[0], model.now_ns / 1e6) for _ in range(3)]
    assert [len(found) for found in reaped] == [100, 0, 0]
    assert model.batcher.live == 0
    assert model.batcher.wake_at() is None


def race(model: Model, luck: Random, turn: int) -> None:
    """Two sequences in two slots; a cancel, an idle expiry and a step's end come in any order, some of them twice."""
    value = luck.randint(1, 10**6)
    first, second = (
        model.ask(number, value + number, "S") for number in (2 * turn + 1, 2 * turn + 2)
    )
    model.offer(first, model.ask(2 * turn + 1, 1, correlation_id=b"c"), second)
    model.take()
    lanes = [first.sequence, second.sequence]
    model.now_ns += 20 * MS

    def finish() -> None:
        if model.busy:
            model.finish()

    def release() -> None:
        for lane in lanes:
            model.batcher.release(lane)

    races = [
        lambda: model.refused(model.batcher.cancel({b"c"})),
        lambda: model.sequences.reap(TPS[0], model.now_ns / MS),
        model.tick,
        finish,
        release,
    ]
    for move in luck.choices(races, k=6):
        move()
    finish()
    model.run()
    release()
    assert model.sums(first, second) == [value + 2 * turn + 1, value + 2 * turn + 2]


@both
@pytest.mark.parametrize("states", [(SUM,), ()], ids=["declared state", "own memory"])
def test_B87_cancel_and_expiry_race_for_a_slot(
    make: type[SequenceBatcher], states: tuple[StateConfig, ...]
) -> None:
    """10,000 times, over all cases: a slot is free at most once, and no sum crosses ids."""
    luck = Random(87)
    model = Model(make, rows=2, candidates=2, idle_ms=10, states=states)
    slots = model.batcher._holders._slots
    for turn in range(2500):
        race(model, luck, turn)
        assert len(slots._free) == len(set(slots._free)) == slots._opened
        assert model.batcher.live == len(model.batcher) == 0
        assert model.batcher.wake_at() is None


def test_candidates_beyond_the_batch_size_take_turns() -> None:
    """SB-03: more sequences may be live per instance than one batch has rows."""
    model = Model(OldestBatcher, rows=2, candidates=5, states=())
    made = [model.ask(number, number, "S") for number in range(1, 6)]
    model.offer(*made)
    model.run()
    assert model.sums(*made) == [1, 2, 3, 4, 5]
    assert model.batcher.live == 5
    assert model.sizes == {2: 2, 1: 1}
