"""Triton's metric lines, to the letter."""

import pytest
from headrace.streams.counts import Failure, ModelCounts
from headrace.streams.metrics_text import Series, triton_metrics


def counted() -> ModelCounts:
    counts = ModelCounts(
        success=3,
        inference_count=12,
        exec_count=2,
        request_ns=1_000_001_999,
        queue_ns=17_999,
        compute_input_ns=18_000,
        compute_infer_ns=19_999,
        compute_output_ns=20_001,
        pending=6,
    )
    counts.failure[Failure.CANCELED] = 4
    return counts


@pytest.mark.parametrize(
    "line",
    [
        'nv_inference_request_success{model="m",version="1"} 3',
        'nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 0',
        'nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 4',
        'nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 0',
        'nv_inference_request_failure{model="m",reason="OTHER",version="1"} 0',
        'nv_inference_count{model="m",version="1"} 12',
        'nv_inference_exec_count{model="m",version="1"} 2',
        'nv_inference_request_duration_us{model="m",version="1"} 1000001',
        'nv_inference_queue_duration_us{model="m",version="1"} 17',
        'nv_inference_compute_input_duration_us{model="m",version="1"} 18',
        'nv_inference_compute_infer_duration_us{model="m",version="1"} 19',
        'nv_inference_compute_output_duration_us{model="m",version="1"} 20',
        'nv_inference_pending_request_count{model="m",version="1"} 6',
        "# TYPE nv_inference_request_success counter",
        "# TYPE nv_inference_pending_request_count gauge",
    ],
)
def test_MX01_to_MX10_lines_are_tritons(line):
    """SEMANTICS MX-01…MX-10, MX-02: all four reasons from the start."""
    assert line in triton_metrics([Series("m", 1, {}, counted())]).splitlines()


def test_tags_are_labels_with_an_underscore_in_alphabetical_order_and_escaped():
    text = triton_metrics([Series("m", 2, {"zone": 'a"b\\c\nd', "Area": "x"}, ModelCounts())])
    assert (
        'nv_inference_count{_Area="x",_zone="a\\"b\\\\c\\nd",model="m",version="2"} 0'
        in text.splitlines()
    )


def test_MX30_series_appear_with_a_version_and_vanish_with_it():
    assert triton_metrics([]) == ""
    both = triton_metrics([Series("b", 1, {}, ModelCounts()), Series("a", 3, {}, ModelCounts())])
    lines = [line for line in both.splitlines() if line.startswith("nv_inference_count{")]
    assert lines == [
        'nv_inference_count{model="a",version="3"} 0',
        'nv_inference_count{model="b",version="1"} 0',
    ]


def test_the_text_parses_as_prometheus_text():
    """Each family has one TYPE line and its samples behind it."""
    from prometheus_client.parser import text_string_to_metric_families

    text = triton_metrics([Series("m", 1, {"t": "v"}, counted())])
    families = list(text_string_to_metric_families(text))
    assert len(families) == 10
    assert all(family.samples for family in families)
