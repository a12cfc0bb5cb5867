"""The rows of SEMANTICS §5.3: Triton's own sequence tests, with everything held until it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from batching_kit import variable
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.ordering import PreserveOrdering
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.schemas.batch import Entry
from sequence_batching_kit import STRATEGIES, SUM, Model, OwnRows

both = pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])
STATES = {"declares its state": (SUM,), "remembers by itself": ()}
kinds = pytest.mark.parametrize("states", STATES.values(), ids=STATES)


class Case(NamedTuple):
    """Sequences that arrive one after the other, and what is expected; each request is its value and flags."""

    name: str
    requests: Sequence[tuple[int, Sequence[tuple[int, str]]]]
    last: Sequence[int]
    sizes: dict[int, int]
    counts: tuple[int, int]
    oldest: dict[int, int] | None = None  # sizes where they differ


def steps(*values: int, ends: bool = True) -> list[tuple[int, str]]:
    last = len(values) - 1
    return [
        (value, ("S" if i == 0 else "") + ("E" if ends and i == last else ""))
        for i, value in enumerate(values)
    ]


FOUR = [
    (1001, steps(1, 2, 3)),
    (1002, steps(11, 12, 13)),
    (1003, steps(111, 112, 113)),
    (1004, steps(1111, 1112, 1113)),
]
SHORT = [(1001, steps(1, 2, 3)), (1002, steps(11, 13)), (1003, steps(111, 113)), FOUR[3]]

CASES = [
    Case("simple", [(5, steps(*range(1, 10)))], [45], {1: 9}, (9, 9)),
    Case("length1", [(99, steps(42))], [42], {1: 1}, (1, 1)),
    Case(
        "half_batch", [(1, steps(1, 2, 3, 4)), (2, steps(0, 9, 5, 13))], [10, 27], {2: 4}, (4, 8)
    ),
    Case("full_batch", FOUR, [6, 36, 336, 3336], {4: 3}, (3, 12)),
    Case(
        "backlog",
        [*FOUR, (1005, steps(11111, 11112, 11113))],
        [6, 36, 336, 3336, 33336],
        {4: 3, 1: 3},
        (6, 15),
    ),
    Case(
        "backlog_fill",
        [*SHORT, (1005, steps(11111)), (1006, steps(22222))],
        [6, 24, 224, 3336, 11111, 22222],
        {4: 3},
        (3, 12),
    ),
    Case(
        "backlog_fill_no_end",
        [*SHORT, (1005, steps(11111)), (1006, steps(22222, 22223, 22224))],
        [6, 24, 224, 3336, 11111, 66669],
        {4: 3, 3: 2},
        (5, 14),
        oldest={4: 3, 1: 2},
    ),
    Case(
        "same_corrid_no_end",
        [
            (1001, [*steps(1, 2, ends=False), *steps(10, 20)]),
            (1002, steps(11, 12, 13, 14)),
            (1003, steps(111, 112, 113, 114)),
            (1004, steps(1111, 1112, 1113, 1114)),
        ],
        [30, 50, 450, 4450],
        {4: 4},
        (4, 16),
    ),
]


def arrive(model: Model, case: Case, **fields: Any) -> list[list[Entry]]:
    """Let all sequences' requests come at once, as those that are held do."""
    made = [
        [model.ask(number, value, flags, **fields) for value, flags in requests]
        for number, requests in case.requests
    ]
    model.offer(*[one for requests in made for one in requests])
    return made


@kinds
@both
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_table(case: Case, make: type[SequenceBatcher], states: tuple[Any, ...]) -> None:
    """Sums, batch sizes, executions and inferences as in Triton's table (SQ-04, SQ-06, SQ-07, SQ-11, SQ-13)."""
    model = Model(make, states=states)
    made = arrive(model, case)
    model.run()
    assert [model.answers[requests[-1]] for requests in made] == list(case.last)
    is_oldest = make is OldestBatcher and case.oldest is not None
    assert model.sizes == (case.oldest if is_oldest else case.sizes)
    assert model.counts == case.counts
    assert model.batcher.live == 0


@kinds
def test_backlog_with_a_padded_row(states: tuple[Any, ...]) -> None:
    """Null rows count in the sizes but not as inferences: 12 of 36 rows are requests (SQ-11, §5.3)."""
    model = Model(OwnRows, states=states)
    held = [model.ask(number, 0, "S") for number in (1, 2, 3)]
    model.offer(*held)
    model.run()
    model.ran.clear()
    model.offer(*model.chain(4, range(9)))
    for number in (1, 2, 3):
        model.offer(model.ask(number, 5))
    model.run()
    assert model.sizes == {4: 9}
    assert model.counts == (9, 12)


@pytest.mark.parametrize("make", STRATEGIES, ids=["direct", "oldest"])
def test_no_sequence_start(make: type[SequenceBatcher]) -> None:
    """SQ-03: a first request without START is refused, and nothing runs."""
    model = Model(make)
    lost = [model.ask(3, 1), model.ask(3, 2, "E")]
    model.offer(*lost)
    model.run()
    assert model.sums(*lost) == ["sequence_unknown"] * 2
    assert "must specify the START flag on the first request of the sequence" in model.text(
        lost[0]
    )
    assert model.counts == (0, 0)


@both
def test_no_sequence_start2(make: type[SequenceBatcher]) -> None:
    """SQ-03, SQ-20: after END an id needs START again; the refusal is answered behind the sequence before it."""
    model = Model(make)
    good = model.chain(3, [1, 2, 3])
    bad = [model.ask(3, 55), model.ask(3, 56, "E")]
    model.offer(*good, *bad)
    assert model.answers == {}
    model.run()
    assert model.sums(*good, *bad) == [1, 3, 6, "sequence_unknown", "sequence_unknown"]
    assert model.order == [*good, *bad]
    assert model.counts == (3, 3)


@both
def test_ragged_allowed(make: type[SequenceBatcher]) -> None:
    """SQ-12, MR-25: requests of different lengths run together where the input is ragged."""
    model = Model(make, inputs=(variable(allow_ragged_batch=True),))
    made = [
        model.chain(number, values, shape=(shape,))
        for number, values, shape in ((1, (1, 2, 3), 4), (2, (11, 12, 13), 8), (3, (5, 6, 7), 16))
    ]
    model.offer(*[one for requests in made for one in requests])
    model.run()
    assert [model.answers[requests[-1]] for requests in made] == [6, 36, 18]
    assert model.sizes == {3: 3}


def test_ragged_not_allowed_direct() -> None:
    """SQ-12: what does not match the first request is left for the next execution, its row padded."""
    model = Model(OwnRows, inputs=(variable(),))
    model.offer(model.ask(1, 1, "SE", shape=(4,)), model.ask(2, 2, "SE", shape=(8,)))
    model.offer(model.ask(3, 3, "SE", shape=(4,)))
    model.run()
    assert model.rows_run == [[1, None, 3], [None, 2]]


def test_ragged_not_allowed_oldest() -> None:
    """SQ-13, DB-12: a request of another shape ends the batch; the order of arrival stays."""
    model = Model(OldestBatcher, inputs=(variable(),))
    model.offer(model.ask(1, 1, "SE", shape=(4,)), model.ask(2, 2, "SE", shape=(8,)))
    model.offer(model.ask(3, 3, "SE", shape=(4,)))
    model.run()
    assert model.rows_run == [[1], [2], [3]]


@both
def test_backlog_sequence_timeout(make: type[SequenceBatcher]) -> None:
    """SQ-08: one of four falls silent; its slot goes to the fifth, and its late request hears that it expired."""
    model = Model(make, states=())
    model.offer(*[model.ask(number, number, "S") for number in (1, 2, 3, 4)])
    model.run()
    fifth = model.chain(5, [10, 20])
    model.offer(*fifth)
    model.run()
    assert model.sums(*fifth) == [None, None]
    model.tick(3000)
    model.offer(*[model.ask(number, 1) for number in (2, 3, 4)])
    model.tick(3000)
    model.sequences.reap(fifth[0].tp, model.now_ns / 1e6)
    model.run()
    late = model.ask(1, 1)
    model.offer(late)
    assert model.sums(*fifth, late) == [10, 30, "sequence_expired"]
    assert "must specify the START flag" in model.text(late)


@both
def test_request_timeout(make: type[SequenceBatcher]) -> None:
    """SQ-09: the second sequence times out in the backlog as a whole; the first's timeouts do nothing in its slot."""
    model = Model(make, rows=0, candidates=1, states=())
    first = model.chain(1, [1, 2], timeout_us=3_000_000)
    second = model.chain(2, [10, 20, 30], timeout_us=3_000_000)
    model.offer(*first, *second)
    for _ in first:
        model.take()
        model.tick(5000)
        model.finish()
    model.run()
    assert model.sums(*first, *second) == [1, 3, *["timeout_expired"] * 3]
    assert "timeout of the corresponding sequence has been expired" in model.text(second[2])
    assert model.counts == (2, 2)


@both
def test_batch_size_and_no_correlation_id(make: type[SequenceBatcher]) -> None:
    """SQ-01, SQ-02: a request of two rows and one without an id are refused at once."""
    model = Model(make)
    wide = model.ask(1, 1, "S")
    wide.rows = 2
    nameless = model.ask(0, 1, "S")
    model.offer(wide, nameless)
    model.run()
    assert "must specify batch-size 1 due to requirements of sequence batcher" in model.text(wide)
    assert "must specify a non-zero or non-empty correlation ID" in model.text(nameless)
    assert model.counts == (0, 0)


def test_preserve_ordering() -> None:
    """SB-03: answers of interleaved sequences are put back into the order of arrival, and each waits for its turn."""
    model = Model(OldestBatcher, rows=2, candidates=2)
    made = [model.ask(number, 1, flags) for flags in ("S", "", "E") for number in (1, 2, 3)]
    ordering: PreserveOrdering[int] = PreserveOrdering()
    ordering.admit(made)
    model.offer(*made)
    model.run()
    assert model.order != made
    released: list[Entry] = []
    for one in model.order:
        released += [entry for entry, _ in ordering.done([one], [0])]
    assert released == made
