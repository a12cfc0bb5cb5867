"""A model with memory of its own whose instance is gone: its sequences end ``sequence_lost``, the others go on."""

from __future__ import annotations

from random import Random

import pytest
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.batch import Entry
from headrace.schemas.errors import BackendError, InferError, Reason
from sequence_batching_kit import STRATEGIES, Model

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])


def lost(_: Entry) -> InferError:
    return BackendError("gone", reason=Reason.SEQUENCE_LOST)


def lose(model: Model, instance: int = 0) -> list[Entry]:
    """Let an instance go away with what it runs; returns who was refused, in order."""
    batch = model.busy.pop((1, instance))
    refusals = model.batcher.lose(instance, batch, lost, model.now_ns)
    before = len(model.order)
    model.refused(refusals)
    for key in [key for key in model.memory if key[1] == instance]:
        del model.memory[key]
    return model.order[before:]


@both
def test_B42_what_ran_waited_and_rested_on_a_lost_instance_is_lost(
    make: type[SequenceBatcher],
) -> None:
    """What ran is refused first, then what was queued; an idle sequence finds out with its next request."""
    model = Model(make, states=(), instances=1)
    idle = model.ask(1, 1, "S")
    model.offer(idle)
    model.run()
    running, queued = model.chain(2, [1, 2], ends=False)
    alone = model.ask(3, 1, "S")
    model.offer(running, queued, alone)
    assert model.take() is not None
    assert sorted(lose(model), key=id) == sorted([running, alone, queued], key=id)
    assert model.order.index(queued) > model.order.index(running)
    late, other = model.ask(1, 5), model.ask(2, 5)
    model.offer(late, other)
    assert model.sums(running, queued, alone, late, other) == ["sequence_lost"] * 5
    assert len(model.batcher) == 0
    assert model.batcher.live == 0
    again = model.chain(2, [10, 20])
    model.offer(*again)
    model.run()
    assert model.sums(*again) == [10, 30]
    assert model.sequences.counts.lost == 3


@both
def test_B42_sequences_of_another_instance_go_on(make: type[SequenceBatcher]) -> None:
    """Two instances, one sequence on each; the second keeps its sum."""
    model = Model(make, states=(), instances=2, rows=1, candidates=1)
    first, second = model.ask(1, 1, "S"), model.ask(2, 1, "S")
    model.offer(first, second)
    assert model.take(0) is not None
    assert lose(model, 0) == [first]
    model.run()
    more = model.ask(2, 1, "E")
    model.offer(more)
    model.run()
    assert model.sums(first, second, more) == ["sequence_lost", 1, 2]


@both
@pytest.mark.parametrize("seed", range(20))
def test_B42_each_request_has_one_answer_whenever_instances_are_lost(
    make: type[SequenceBatcher], seed: int
) -> None:
    """Sums are those since START, or the sequence is lost until its next START; no slot stays taken."""
    rng = Random(seed)
    model = Model(make, states=(), instances=2, rows=2, candidates=2)
    made: list[Entry] = []
    totals: dict[int, int] = {}
    for _ in range(60):
        match rng.randrange(4):
            case 0 | 1:
                one = rng.randrange(1, 7)
                entry = model.ask(one, rng.randrange(5), rng.choice(("S", "", "", "E")))
                made.append(entry)
                model.offer(entry)
            case 2:
                number = rng.randrange(2)
                if (1, number) not in model.busy:
                    model.take(number)
                elif rng.random() < 0.4:
                    lose(model, number)
                else:
                    model.finish(number)
                model.tick()
            case _:
                model.tick(1)
    for number in range(2):
        if (1, number) in model.busy:
            model.finish(number)
    model.run()
    open_ids = [one for one in range(1, 7) if model.sums(model_end(model, made, one))]
    model.run()
    assert all(entry in model.answers for entry in made), open_ids
    for entry in made:
        answer, one = model.answers[entry], entry.sequence_id
        if isinstance(answer, InferError):
            assert answer.reason in (Reason.SEQUENCE_LOST, Reason.SEQUENCE_UNKNOWN)
            totals.pop(one, None)
            continue
        value = int(bytes(entry.data[0] or b""))
        totals[one] = value + (0 if entry.sequence_start else totals[one])
        assert answer == totals[one]
    assert model.batcher.live == 0


def model_end(model: Model, made: list[Entry], one: int) -> Entry:
    """End a sequence, whatever it is; returns the request."""
    entry = model.ask(one, 0, "E")
    made.append(entry)
    model.offer(entry)
    model.run()
    return entry
