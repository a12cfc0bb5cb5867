"""Triton's statistics, summed over live workers, from status records on a hand-moved clock (SEMANTICS §2.7)."""

import pytest
from headrace.schemas.errors import Code, InvalidRequest
from headrace.streams.counts import (
    MAX_BATCH_SIZES,
    MAX_RESPONSE_INDEXES,
    BatchCounts,
    Failure,
    ModelCounts,
    ResponseCounts,
)
from headrace.streams.fleet import Fleet
from headrace.streams.statistics import statistics
from headrace.streams.status import ModelState, VersionStatus, WorkerStatus, encode_status

NOW = 1_700_000_000_000
READY = ModelState.READY


def counted(**more):
    return ModelCounts(
        **{
            "success": 3,
            "inference_count": 9,
            "exec_count": 2,
            "last_inference_ms": NOW - 5,
            "request_ns": 700,
            "fail_ns": 11,
            "queue_ns": 100,
            "compute_input_ns": 20,
            "compute_infer_ns": 500,
            "compute_output_ns": 30,
            "batches": {4: BatchCounts(2, 7, 250, 15)},
        }
        | more
    )


def tell(fleet, worker="w1", model="m", versions=None, **more):
    versions = versions or (VersionStatus(1, READY, counts=counted()),)
    status = WorkerStatus(worker, model, NOW, versions=tuple(versions), timeout_ms=3_000, **more)
    fleet.apply(status.key, encode_status(status), NOW)


def duration(count, ns):
    return {"count": count, "ns": ns}


@pytest.fixture
def fleet():
    return Fleet()


def test_ST01_ST03_the_shape_is_tritons(fleet):
    """Queue and compute count successes; durations are nanoseconds."""
    counts = counted()
    counts.failure[Failure.BACKEND] = 1
    counts.failure[Failure.REJECTED] = 2
    tell(fleet, versions=[VersionStatus(1, READY, counts=counts)])
    assert statistics(fleet, NOW, "m") == {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": NOW - 5,
                "inference_count": 9,
                "execution_count": 2,
                "inference_stats": {
                    "success": duration(3, 700),
                    "fail": duration(3, 11),
                    "queue": duration(3, 100),
                    "compute_input": duration(3, 20),
                    "compute_infer": duration(3, 500),
                    "compute_output": duration(3, 30),
                    "cache_hit": duration(0, 0),
                    "cache_miss": duration(0, 0),
                },
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": 4,
                        "compute_input": duration(2, 7),
                        "compute_infer": duration(2, 250),
                        "compute_output": duration(2, 15),
                    }
                ],
                "memory_usage": [],
            }
        ]
    }


def test_KX11_workers_are_summed_and_shown_apart_where_they_are_asked_for(fleet):
    """Batch sizes are merged; a dead worker's part is gone; a draining one still counts."""
    tell(fleet, "w1")
    other = counted(success=1, last_inference_ms=NOW, batches={1: BatchCounts(1, 1, 1, 1)})
    tell(fleet, "w2", versions=[VersionStatus(1, READY, counts=other)], draining=True)
    (found,) = statistics(fleet, NOW, "m", by_worker=True)["model_stats"]
    assert found["inference_stats"]["success"] == duration(4, 1_400)
    assert found["last_inference"] == NOW
    assert [(b["batch_size"], b["compute_infer"]) for b in found["batch_stats"]] == [
        (1, duration(1, 1)),
        (4, duration(2, 250)),
    ]
    assert [(w["worker"], w["inference_stats"]["success"]["count"]) for w in found["workers"]] == [
        ("w1", 3),
        ("w2", 1),
    ]
    fleet.apply(b"worker/w1/m", None, NOW)
    tell(fleet, "w2", versions=[VersionStatus(1, READY, counts=other)])
    (found,) = statistics(fleet, NOW, "m")["model_stats"]
    assert found["inference_stats"]["success"]["count"] == 1
    assert "workers" not in found


def test_ST06_only_ready_versions_are_listed(fleet):
    tell(
        fleet,
        model="b",
        versions=[
            VersionStatus(1, READY),
            VersionStatus(2, ModelState.LOADING),
            VersionStatus(3, READY),
        ],
    )
    tell(fleet, model="a", versions=[VersionStatus(1, ModelState.UNAVAILABLE, "broken")])
    found = statistics(fleet, NOW)["model_stats"]
    assert [(item["name"], item["version"]) for item in found] == [("b", "1"), ("b", "3")]
    (found,) = statistics(fleet, NOW, "b", "03")["model_stats"]
    assert found["version"] == "3"


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("broken", "", "requested model 'broken' is not available"),
        ("m", "2", "requested model version is not available for model 'm'"),
        ("m", "9" * 40, "requested model version is not available for model 'm'"),
    ],
)
def test_ST06_an_unknown_model_or_version_is_a_400(fleet, model, version, words):
    """Not a 404 as elsewhere."""
    tell(fleet)
    tell(fleet, model="broken", versions=[VersionStatus(1, ModelState.UNAVAILABLE, "x")])
    with pytest.raises(InvalidRequest, match=words) as caught:
        statistics(fleet, NOW, model, version)
    assert caught.value.code is Code.INVALID_ARG


def test_a_fleet_without_models_has_no_statistics(fleet):
    assert statistics(fleet, NOW) == {"model_stats": []}


def test_DC03_responses_are_keyed_by_their_index(fleet):
    responses = {
        0: ResponseCounts(success=2, success_ns=40, compute_infer_ns=40, compute_output_ns=4),
        1: ResponseCounts(fail=1, fail_ns=7, empty=1, empty_ns=9, cancel=3, compute_infer_ns=7),
    }
    tell(fleet, versions=[VersionStatus(1, READY, counts=counted(responses=responses))])
    (found,) = statistics(fleet, NOW, "m")["model_stats"]
    assert list(found["response_stats"]) == ["0", "1"]
    assert found["response_stats"]["0"]["success"] == duration(2, 40)
    assert found["response_stats"]["0"]["compute_output"] == duration(2, 4)
    assert found["response_stats"]["1"] == {
        "compute_infer": duration(1, 7),
        "compute_output": duration(1, 0),
        "success": duration(0, 0),
        "fail": duration(1, 7),
        "empty_response": duration(1, 9),
        "cancel": duration(3, 0),
    }


def test_what_is_counted_by_size_or_by_response_is_bounded():
    """A status record must not grow with what clients send."""
    counts = ModelCounts()
    for rows in range(2 * MAX_BATCH_SIZES):
        counts.batch(rows).count += 1
        counts.response(rows).success += 1
    assert len(counts.batches) == MAX_BATCH_SIZES
    assert len(counts.responses) == MAX_RESPONSE_INDEXES
