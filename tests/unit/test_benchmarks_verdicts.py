"""A benchmark's verdicts: missing, repeated and wrong answers end it, and bars are read the right way round."""

import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 200


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def seen(numbers):
    """What an observer saw if each of these requests was answered rightly."""
    from benchmarks.observer import Seen
    from benchmarks.workload import POOL, expected

    answers = expected()[np.array(numbers) % POOL].copy()
    return Seen(np.array(numbers), np.zeros(len(numbers)), answers)


def test_all_right_answers_in_any_order_pass():
    from benchmarks.contest import check

    check("x", seen(list(reversed(range(COUNT)))), range(COUNT))


@pytest.mark.parametrize(
    ("numbers", "word"),
    [
        ([n for n in range(COUNT) if n != 7], "1 are unanswered .such as .7.."),
        ([*range(COUNT), 7], "1 answers are repeated"),
    ],
)
def test_missing_and_repeated_answers_fail(numbers, word):
    from benchmarks.contest import check
    from benchmarks.processes import BenchmarkFailed

    with pytest.raises(BenchmarkFailed, match=word):
        check("x", seen(numbers), range(COUNT))


def test_an_answer_to_another_request_is_wrong():
    from benchmarks.contest import check
    from benchmarks.processes import BenchmarkFailed

    mixed_up = seen(range(COUNT))
    mixed_up.answers[[3, 4]] = mixed_up.answers[[4, 3]]
    with pytest.raises(BenchmarkFailed, match="2 are wrong"):
        check("x", mixed_up, range(COUNT))


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ([("id", b"5"), ("status", b"INTERNAL"), ("x-trace", b"trace-5")], "headers"),
        ([("id", b"6"), ("status", b"OK"), ("x-trace", b"trace-6")], "headers"),
        ([("id", b"5"), ("status", b"OK"), ("x-trace", b"trace-6")], "x-trace"),
        ([("id", b"5"), ("status", b"OK")], "x-trace"),
    ],
)
def test_an_error_answer_or_a_foreign_header_is_no_answer(headers, word):
    from benchmarks.formats import Avro, WrongAnswer

    with pytest.raises(WrongAnswer, match=word):
        Avro().answer(b"5", b"", headers)


def test_benchmark_requests_are_requests_of_the_contract():
    """The preloaded values, written by fastavro alone, are what the worker's own codec reads."""
    from headrace.schemas.codec import decode_request

    from benchmarks.formats import Avro
    from benchmarks.workload import INPUT, pool

    _, value, headers = Avro().request(3)
    request = decode_request(value, dict(headers)["content-type"].decode(), headers)
    assert [tensor.name for tensor in request.inputs] == [INPUT]
    assert bytes(request.inputs[0].data) == pool()[3].tobytes()


def test_requests_of_sequences_take_turns_and_only_the_first_starts():
    """SQ-03: one START each; the key is the sequence's id, and 0 is no id."""
    from headrace.schemas.batch import Entry
    from headrace.schemas.headers import read_headers

    from benchmarks.formats import Steps

    found = []
    for number in range(6):
        key, _, headers = Steps(3).request(number)
        entry = Entry()
        assert read_headers(entry, headers) is None
        assert key == str(entry.sequence_id).encode()
        found.append((entry.id, entry.sequence_id, entry.sequence_start))
    assert found == [
        ("0", 1, True),
        ("1", 2, True),
        ("2", 3, True),
        ("3", 1, False),
        ("4", 2, False),
        ("5", 3, False),
    ]


@pytest.mark.parametrize("steps", [[0, 2, 3], [0, 1, 1, 2, 3]], ids=["lost", "twice"])
def test_an_answer_after_a_lost_or_doubled_step_is_wrong(steps):
    """The answers that numpy gives a sequence whose state is one step behind or ahead are no right ones."""
    from benchmarks.recurrent import STATE, is_right, step
    from benchmarks.workload import pool

    live, numbers, answers = 2, [], []
    state = np.zeros((1, STATE), np.float32)
    for turn in steps:
        numbers.append(turn * live)
        answer, state = step(pool()[[numbers[-1]]], state)
        answers.append(answer[0])
    right = is_right(live, np.array(numbers), np.array(answers))
    assert right[0]
    assert not right[-1]
    assert is_right(live, np.array(numbers[:1]), np.array(answers[:1])).all()


def test_an_answer_under_another_sequences_key_is_no_answer():
    from benchmarks.formats import Steps, WrongAnswer

    headers = [("id", b"5"), ("status", b"OK"), ("x-trace", b"trace-5")]
    with pytest.raises(WrongAnswer, match="headers"):
        Steps(3).answer(b"2", b"", headers)


@pytest.mark.parametrize(
    ("ratio", "at_most", "met"),
    [(0.79, False, False), (0.8, False, True), (0.8, True, True), (0.81, True, False)],
)
def test_a_bar_is_kept_on_its_own_side(ratio, at_most, met):
    from benchmarks.figures import Bar, Figure

    bar = Bar("ratio", 0.8, at_most=at_most)
    figure = Figure("x", "kafka", 1.0, "records/s", "loop", 2.0, bar, ratio)
    assert bar.is_met(figure) is met
    assert ("MISSED" in figure.verdict()) is not met


def test_a_missing_ratio_misses_its_bar():
    from benchmarks.figures import Bar, Figure

    figure = Figure("x", "kafka", 1.0, "records/s", bar=Bar("ratio", 0.8))
    assert not figure.bar.is_met(figure)


def test_a_line_holds_the_agreed_fields():
    from benchmarks.figures import Figure

    line = json.loads(
        Figure("x", "kafka", 35123.4, "records/s", "loop", 4.56789, None, 0.9).line()
    )
    assert line == {
        "name": "x",
        "broker": "kafka",
        "value": 35123,
        "unit": "records/s",
        "against": "loop",
        "against_value": 4.568,
        "ratio": 0.9,
    }


def test_the_steps_of_a_call_are_measured_from_the_gateways_own_functions():
    """Every step takes some time, and whole calls in memory come back with the table's answer."""
    import asyncio

    from benchmarks.gateway_steps import in_memory

    found = asyncio.run(in_memory(64, 1))
    assert set(found) >= {"parse", "check", "record", "answer", "write", "calls"}
    assert all(us >= 0 for us in found.values())
