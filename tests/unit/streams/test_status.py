"""Status and cancel records: what is written is read back, and strangers' bytes harm nobody."""

import json
from types import SimpleNamespace

import pytest
from headrace.schemas.record import CORRELATION_ID, MODEL_NAME
from headrace.streams.cancels import Cancel, cancel_record, read_cancel
from headrace.streams.counts import BatchCounts, Failure, ModelCounts, ResponseCounts
from headrace.streams.status import (
    GatewayStatus,
    ModelState,
    QueueStatus,
    SequenceCounts,
    VersionStatus,
    WorkerStatus,
    decode_status,
    encode_status,
    worker_key,
)


def worker_status() -> WorkerStatus:
    counts = ModelCounts(success=3, inference_count=9, exec_count=2, request_ns=40_000, pending=1)
    counts.failure[Failure.BACKEND] = 2
    counts.batches[4] = BatchCounts(2, 30, 40, 50)
    counts.responses[1] = ResponseCounts(success=1, success_ns=9, empty=2)
    return WorkerStatus(
        worker="w1",
        model="mlp/ü",
        at_ms=1_700_000_000_000,
        requests_topic="h.mlp.requests",
        results_topic="h.mlp.results",
        partitions=4,
        assigned=(0, 3),
        versions=(
            VersionStatus(1, ModelState.READY, config={"name": "mlp"}, counts=counts),
            VersionStatus(2, ModelState.UNAVAILABLE, "no such file"),
        ),
        queues=(QueueStatus(0, 5, 8),),
        draining=True,
        guarantee="at_least_once",
        timeout_ms=1_500,
        url="http://10.0.0.7:8003",
        sequences=SequenceCounts(live=5, backlogged=2, parked=9, snapshots_newer=1),
    )


@pytest.mark.parametrize(
    "status", [worker_status(), GatewayStatus("g1", 7, reply_partitions=(2,), timeout_ms=27)]
)
def test_what_is_written_is_read_back(status):
    assert decode_status(status.key, encode_status(status)) == status


def test_keys_tell_writers_and_models_apart():
    assert worker_status().key == "worker/w1/mlp/ü".encode()
    assert GatewayStatus("g", 0).key == b"gateway/g"
    with pytest.raises(ValueError, match="slash"):
        worker_key("a/b", "m")


def test_unknown_fields_states_and_kinds_of_a_later_release_are_ignored():
    status = worker_status()
    body = json.loads(encode_status(status))
    body["colour"] = "blue"
    body["versions"][1]["state"] = "HIBERNATING"
    body["versions"][0]["counts"]["tokens"] = 4
    read = decode_status(status.key, json.dumps(body).encode())
    assert read.versions[0] == status.versions[0]
    assert read.versions[1].state is ModelState.UNKNOWN
    assert decode_status(b"router/r1", b"{}") is None


def test_missing_fields_take_their_defaults_and_all_failure_reasons_exist():
    """SEMANTICS MX-02: four series at 0."""
    read = decode_status(
        b"worker/w/m",
        b'{"worker":"w","model":"m","at_ms":1,"versions":[{"version":1,"state":"READY"}]}',
    )
    assert read.versions[0].counts.failure == dict.fromkeys(Failure, 0)
    assert read.queues == ()
    assert read.url == ""
    assert read.sequences is None


def test_counts_of_sequences_are_compatible_both_ways():
    """What an older release does not write is 0, what a newer one adds is ignored, and none stays none."""
    status = worker_status()
    body = json.loads(encode_status(status))
    body["sequences"] = {"live": 3, "hibernating": 7}
    read = decode_status(status.key, json.dumps(body).encode())
    assert read.sequences == SequenceCounts(live=3)
    body["sequences"] = None
    assert decode_status(status.key, json.dumps(body).encode()).sequences is None
    stateless = WorkerStatus("w", "m", 1)
    assert b"sequences" not in encode_status(stateless)
    assert decode_status(stateless.key, encode_status(stateless)) == stateless


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{",
        b"null",
        b'{"worker":1,"model":"m","at_ms":1}',
        b'{"worker":"w","model":"m"}',
        b'{"worker":"w","model":"m","at_ms":true}',
        b'{"worker":"w","model":"m","at_ms":1,"versions":[3]}',
        b'{"worker":"w","model":"m","at_ms":1,"assigned":["x"]}',
        b'{"worker":"w","model":"m","at_ms":1,"url":1}',
        b'{"worker":"w","model":"m","at_ms":1,"sequences":3}',
        b'{"worker":"w","model":"m","at_ms":1,"sequences":{"live":"3"}}',
        b'{"worker":"w","model":"m","at_ms":1,"versions":[{"version":1,"state":"READY","config":1}]}',
        b"[" * 100_000,
    ],
)
def test_corrupt_records_are_one_kind_of_error(value):
    with pytest.raises(ValueError):  # noqa: PT011  # the contract is the kind; texts come from the JSON parser too
        decode_status(b"worker/w/m", value)


def test_counts_of_processes_add_up():
    total = ModelCounts()
    for _ in range(2):
        total.add(worker_status().versions[0].counts)
    assert (total.success, total.inference_count, total.pending) == (6, 18, 2)
    assert total.failure[Failure.BACKEND] == 4


def test_a_cancel_is_read_back_and_a_stranger_is_none():
    out = cancel_record("h.cancels", 0, Cancel("mlp", b"\x00\xff" * 8))
    assert out.value is not None
    assert read_cancel(out) == Cancel("mlp", b"\x00\xff" * 8)
    for headers in ([], [(MODEL_NAME, b"\xff"), (CORRELATION_ID, b"1")], [(MODEL_NAME, None)]):
        assert read_cancel(SimpleNamespace(headers=headers)) is None
