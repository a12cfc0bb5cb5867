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
