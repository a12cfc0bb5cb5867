"""Metrics of sequences: read from the counts at each scrape, by model and by nothing that a client says."""

import dataclasses

from headrace.consumers.observe import SequenceMetrics
from prometheus_client import CollectorRegistry, generate_latest

ZEROS = {
    'headrace_live_sequences{model="m"} 0.0',
    'headrace_backlogged_sequences{model="m"} 0.0',
    'headrace_sequences_parked_total{model="m"} 0.0',
    'headrace_sequences_ended_total{model="m"} 0.0',
    'headrace_sequences_expired_total{model="m"} 0.0',
    'headrace_sequences_restored_total{model="m"} 0.0',
    'headrace_sequences_lost_total{model="m"} 0.0',
    'headrace_sequences_split_total{model="m"} 0.0',
    'headrace_snapshots_total{model="m"} 0.0',
    'headrace_snapshot_bytes_total{model="m"} 0.0',
    'headrace_snapshot_failures_total{kind="corrupt",model="m"} 0.0',
    'headrace_snapshot_failures_total{kind="shape",model="m"} 0.0',
    'headrace_snapshot_failures_total{kind="newer",model="m"} 0.0',
    'headrace_takeover_seconds_count{model="m"} 0.0',
}


def page(registry):
    return set(generate_latest(registry).decode().splitlines())


def test_a_worker_without_sequence_models_shows_no_series():
    registry = CollectorRegistry()
    SequenceMetrics(registry)
    assert [line for line in page(registry) if not line.startswith("#")] == []


def test_MX30_every_series_of_a_model_is_there_at_0_from_the_start():
    registry = CollectorRegistry()
    SequenceMetrics(registry).model("m")
    assert page(registry) >= ZEROS


def test_what_is_counted_is_shown_under_its_own_name():
    """Each count a number of its own, so that no two can be mixed up; another model's stay at 0."""
    registry = CollectorRegistry()
    metrics = SequenceMetrics(registry)
    counts, other = metrics.model("m"), metrics.model("n")
    assert metrics.model("m") is counts is not other
    for number, field in enumerate(dataclasses.fields(counts), start=1):
        setattr(counts, field.name, number)
    metrics.took_over("m", 0.2)
    shown = page(registry)
    assert {
        'headrace_live_sequences{model="m"} 1.0',
        'headrace_backlogged_sequences{model="m"} 2.0',
        'headrace_sequences_parked_total{model="m"} 3.0',
        'headrace_sequences_ended_total{model="m"} 4.0',
        'headrace_sequences_expired_total{model="m"} 5.0',
        'headrace_sequences_restored_total{model="m"} 6.0',
        'headrace_sequences_lost_total{model="m"} 7.0',
        'headrace_sequences_split_total{model="m"} 8.0',
        'headrace_snapshots_total{model="m"} 9.0',
        'headrace_snapshot_bytes_total{model="m"} 10.0',
        'headrace_snapshot_failures_total{kind="corrupt",model="m"} 11.0',
        'headrace_snapshot_failures_total{kind="shape",model="m"} 12.0',
        'headrace_snapshot_failures_total{kind="newer",model="m"} 13.0',
        'headrace_takeover_seconds_bucket{le="0.25",model="m"} 1.0',
        'headrace_takeover_seconds_bucket{le="0.1",model="m"} 0.0',
    } <= shown
    assert {line.replace('"m"', '"n"') for line in ZEROS} <= shown
