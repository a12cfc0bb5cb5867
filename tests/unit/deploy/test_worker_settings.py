"""What the options of a worker become: its bounds, and the address that it tells others."""

import socket

import pytest
from headrace.consumers.settings import WorkerSettings
from headrace.deploy.settings import Settings
from headrace.deploy.worker_bounds import advertised_url, worker_settings
from headrace.streams.log import Mode


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8003"),
        ("10.0.0.7", "http://10.0.0.7:8003"),
        ("fd00::7", "http://[fd00::7]:8003"),
        ("0.0.0.0", f"http://{socket.gethostname()}:8003"),
        ("::", f"http://{socket.gethostname()}:8003"),
    ],
)
def test_the_address_that_a_worker_tells_is_one_that_others_can_use(address, url):
    """Every interface is no address: then it is the host's name."""
    assert advertised_url(Settings(http_address=address), 8003) == url


def test_what_the_operator_says_goes_before_what_is_derived():
    settings = Settings(http_address="0.0.0.0", worker_advertised_url="https://w1.example")
    assert advertised_url(settings, 8003) == "https://w1.example"
    assert worker_settings(settings, 8003).advertised_url == "https://w1.example"


def test_the_defaults_of_sequences_are_the_same_in_both_places():
    bounds, plain = worker_settings(Settings(), 8003), WorkerSettings("w")
    for name in (
        "max_live_sequences",
        "max_backlogged_sequences",
        "max_ended_sequences",
        "ended_ttl_s",
        "snapshot_every",
        "sequence_skew_s",
    ):
        assert getattr(bounds, name) == getattr(plain, name), name


def test_P17_the_options_of_idempotency_keys_arrive_at_their_bounds_and_have_the_same_defaults():
    """Of the option's name, seconds apart."""
    names = (
        "max_idempotency_keys",
        "max_idempotency_bytes",
        "max_sequence_keys",
        "max_sequence_key_bytes",
    )
    default, plain = worker_settings(Settings(), 8003), WorkerSettings("w")
    given = {name: number for number, name in enumerate(names, 2)}
    bounds = worker_settings(Settings(idempotency_window_secs=9, **given), 8003)
    for name in names:
        assert getattr(default, name) == getattr(plain, name), name
        assert getattr(bounds, name) == given[name]
    assert default.idempotency_window_s == plain.idempotency_window_s == 3600
    assert bounds.idempotency_window_s == 9


def test_each_option_of_sequences_arrives_at_its_bound():
    settings = Settings(
        max_live_sequences=1,
        max_backlogged_sequences=2,
        max_ended_sequences=3,
        ended_ttl_secs=4,
        snapshot_every=5,
        sequence_skew_secs=6,
    )
    bounds = worker_settings(settings, 8003)
    assert bounds.max_live_sequences == 1
    assert bounds.max_backlogged_sequences == 2
    assert bounds.max_ended_sequences == 3
    assert bounds.ended_ttl_s == 4
    assert bounds.snapshot_every == 5
    assert bounds.sequence_skew_s == 6


def test_the_defaults_of_faults_are_the_same_in_both_places():
    bounds, plain = worker_settings(Settings(), 8003), WorkerSettings("w")
    for name in (
        "max_attempts",
        "max_crashes",
        "retry_backoff_s",
        "retry_backoff_max_s",
        "execution_timeout_s",
        "max_abandoned_executions",
        "max_starved_executions",
        "memory_ceiling_s",
    ):
        assert getattr(bounds, name) == getattr(plain, name), name


def test_each_option_of_faults_arrives_at_its_bound():
    settings = Settings(
        max_attempts=7,
        max_crashes=9,
        retry_backoff_ms=20,
        retry_backoff_max_ms=3000,
        execution_timeout_ms=400,
        max_abandoned_executions=5,
        max_starved_executions=6,
        memory_ceiling_secs=8,
    )
    bounds = worker_settings(settings, 8003)
    assert (bounds.max_attempts, bounds.retry_backoff_s, bounds.retry_backoff_max_s) == (
        7,
        0.02,
        3,
    )
    assert (bounds.execution_timeout_s, bounds.max_abandoned_executions) == (0.4, 5)
    assert bounds.max_crashes == 9
    assert (bounds.max_starved_executions, bounds.memory_ceiling_s) == (6, 8)


def test_the_defaults_of_delivery_are_the_same_in_both_places():
    bounds, plain = worker_settings(Settings(), 8003), WorkerSettings("w")
    assert bounds.delivery is plain.delivery is Mode.AT_LEAST_ONCE
    assert bounds.transaction_interval_s == plain.transaction_interval_s == 0.1


def test_each_option_of_delivery_arrives_at_its_bound():
    settings = Settings(delivery="exactly_once", transaction_interval_ms=20)
    bounds = worker_settings(settings, 8003)
    assert bounds.delivery is Mode.EXACTLY_ONCE
    assert bounds.transaction_interval_s == 0.02
