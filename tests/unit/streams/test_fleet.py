"""The fleet, worked out from status records on a hand-moved clock."""

import dataclasses

import pytest
from headrace.schemas.config_text import config_from_json, config_to_json
from headrace.schemas.errors import Code, NotFound, Reason, Unavailable
from headrace.streams.counts import Failure, ModelCounts
from headrace.streams.fleet import Fleet
from headrace.streams.load import QueueLoad
from headrace.streams.status import (
    GatewayStatus,
    ModelState,
    QueueStatus,
    VersionStatus,
    WorkerStatus,
    encode_status,
)

NOW = 1_700_000_000_000
READY, UNAVAILABLE = ModelState.READY, ModelState.UNAVAILABLE


def config(name="mlp", **more):
    source = {
        "name": name,
        "backend": "identity",
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
        **more,
    }
    return config_to_json(config_from_json(source))


def word(worker="w1", model="mlp", versions=None, **more):
    if versions is None:
        versions = (VersionStatus(1, READY, config=config(model)),)
    defaults = {
        "at_ms": NOW,
        "requests_topic": f"h.{model}.requests",
        "partitions": 4,
        "timeout_ms": 3_000,
    }
    return WorkerStatus(worker=worker, model=model, versions=tuple(versions), **defaults | more)


def tell(fleet, status, now_ms=NOW, **how):
    fleet.apply(status.key, encode_status(status), now_ms, **how)


@pytest.fixture
def fleet():
    return Fleet()


def test_the_live_workers_of_a_model_are_listed_by_name(fleet):
    """Not those of other models, nor one that said nothing for too long; a draining one still is there."""
    tell(fleet, word("w2", url="http://b"))
    tell(fleet, word("w1", draining=True))
    tell(fleet, word("w3", "other"))
    tell(fleet, word("w4", timeout_ms=30))
    assert [(s.worker, s.url) for s in fleet.workers("mlp", NOW + 100)] == [
        ("w1", ""),
        ("w2", "http://b"),
    ]
    assert fleet.workers("unknown", NOW) == []


def test_a_ready_version_is_found_with_its_topic_and_signature(fleet):
    tell(fleet, word())
    route = fleet.route("mlp", "", NOW)
    assert (route.topic, route.partitions) == ("h.mlp.requests", 4)
    assert (route.signature.version, route.signature.inputs[0].wire_dims()) == (1, [-1, 2])
    assert fleet.route("mlp", "1", NOW).signature is route.signature
    assert route.config_json["name"] == "mlp"


def test_signatures_are_compiled_once_until_the_configuration_changes(fleet):
    tell(fleet, word())
    first = fleet.route("mlp", "", NOW).signature
    tell(fleet, word(at_ms=NOW + 1_000), NOW + 1_000)
    assert fleet.route("mlp", "", NOW + 1_000).signature is first
    bigger = VersionStatus(1, READY, config=config() | {"max_batch_size": 8})
    tell(fleet, word(versions=[bigger], at_ms=NOW + 2_000), NOW + 2_000)
    assert fleet.route("mlp", "", NOW + 2_000).signature.max_batch_size == 8


def test_MR07_without_a_version_the_highest_ready_one_is_taken(fleet):
    tell(
        fleet,
        word(
            versions=[
                VersionStatus(1, READY, config=config()),
                VersionStatus(2, READY, config=config()),
                VersionStatus(3, UNAVAILABLE, "broken"),
            ]
        ),
    )
    assert fleet.route("mlp", "", NOW).signature.version == 2
    assert fleet.route("mlp", "01", NOW).signature.version == 1


@pytest.mark.parametrize(
    ("model", "version", "error", "text"),
    [
        (
            "nope",
            "",
            NotFound,
            "Request for unknown model: 'nope' is not found, known models: bad, mlp",
        ),
        ("mlp", "9", NotFound, "'mlp' version 9 is not found"),
        ("mlp", "0", NotFound, "'mlp' version 0 is not found"),
        ("mlp", "9" * 5_000, NotFound, "is not found"),
        ("mlp", "x", NotFound, "'mlp' version x is not found"),
        ("bad", "", NotFound, "'bad' has no available versions"),
        ("bad", "1", Unavailable, "'bad' version 1 is not at ready state"),
    ],
)
def test_PB33_lookup_errors_and_B77_known_models_are_listed(fleet, model, version, error, text):
    tell(fleet, word())
    tell(fleet, word(model="bad", versions=[VersionStatus(1, UNAVAILABLE, "no file")]))
    with pytest.raises(error, match=text):
        fleet.route(model, version, NOW)


def test_R6_reasons_tell_an_unknown_model_from_an_unknown_version(fleet):
    tell(fleet, word())
    for asked, reason in (
        (("x", ""), Reason.UNKNOWN_MODEL),
        (("mlp", "7"), Reason.UNKNOWN_VERSION),
    ):
        with pytest.raises(NotFound) as caught:
            fleet.route(*asked, NOW)
        assert caught.value.reason is reason


def test_a_silent_worker_is_dead_after_its_timeout_and_its_model_not_ready(fleet):
    tell(fleet, word())
    fleet.route("mlp", "", NOW + 2_999)
    with pytest.raises(Unavailable, match="no live worker") as caught:
        fleet.route("mlp", "", NOW + 3_000)
    assert caught.value.code is Code.UNAVAILABLE
    assert not fleet.is_ready(NOW + 3_000)
    assert fleet.index(NOW + 3_000)[0]["state"] == "UNAVAILABLE"
    tell(fleet, word(at_ms=NOW + 4_000), NOW + 4_000)
    fleet.route("mlp", "", NOW + 4_000)


def test_a_word_that_arrives_now_proves_life_whatever_the_workers_clock_says(fleet):
    tell(fleet, word(at_ms=NOW - 500_000))
    fleet.route("mlp", "", NOW)
    late = Fleet()
    tell(late, word(at_ms=NOW - 500_000), live=False)
    with pytest.raises(Unavailable):
        late.route("mlp", "", NOW)
    ahead = Fleet()
    tell(ahead, word(at_ms=NOW + 500_000), live=False)
    with pytest.raises(Unavailable):
        ahead.route("mlp", "", NOW + 3_000)


def test_a_tombstone_ends_a_word_and_the_last_one_ends_the_model(fleet):
    tell(fleet, word())
    tell(fleet, word("w2"))
    fleet.apply(word().key, None, NOW)
    fleet.route("mlp", "", NOW)
    fleet.apply(word("w2").key, None, NOW)
    fleet.apply(b"worker/never/seen", None, NOW)
    with pytest.raises(NotFound):
        fleet.route("mlp", "", NOW)
    assert fleet.models() == []
    assert fleet._compiled == {}


def test_a_draining_worker_takes_no_more_work(fleet):
    tell(fleet, word(draining=True))
    with pytest.raises(Unavailable, match="no live worker"):
        fleet.route("mlp", "", NOW)
    assert fleet.index(NOW) == [
        {"name": "mlp", "version": "1", "state": "UNLOADING", "reason": "draining"}
    ]
    tell(fleet, word("w2"))
    assert fleet.route("mlp", "", NOW).partitions == 4
    assert fleet.is_ready(NOW)


def test_a_version_is_ready_when_any_live_worker_has_it_ready(fleet):
    tell(fleet, word("w1", versions=[VersionStatus(1, UNAVAILABLE, "out of memory")]))
    assert not fleet.is_ready(NOW)
    tell(fleet, word("w2"))
    assert fleet.is_ready(NOW)
    assert fleet.index(NOW) == [{"name": "mlp", "version": "1", "state": "READY"}]


def test_PB63_the_index_shows_states_reasons_and_models_without_versions(fleet):
    tell(fleet, word(model="b", versions=[VersionStatus(0, UNAVAILABLE, "no such backend")]))
    tell(fleet, word(model="a", versions=[]))
    tell(fleet, word(model="c"))
    assert fleet.index(NOW) == [
        {"name": "a"},
        {"name": "b", "state": "UNAVAILABLE", "reason": "no such backend"},
        {"name": "c", "version": "1", "state": "READY"},
    ]
    assert fleet.index(NOW, only_ready=True) == [{"name": "c", "version": "1", "state": "READY"}]


@pytest.mark.parametrize(
    ("versions", "ready"),
    [
        ([VersionStatus(1, READY)], True),
        ([VersionStatus(1, READY), VersionStatus(2, ModelState.LOADING)], False),
        ([VersionStatus(1, READY), VersionStatus(2, UNAVAILABLE, "unloaded")], True),
        ([VersionStatus(1, UNAVAILABLE, "unloaded because")], False),
        ([], False),
    ],
)
def test_SV02_strict_readiness_wants_every_version_ready(fleet, versions, ready):
    tell(fleet, word(versions=versions))
    assert fleet.is_ready(NOW) is ready
    assert fleet.is_ready(NOW, strict=False)


def test_an_empty_fleet_is_not_ready(fleet):
    assert not fleet.is_ready(NOW)


def test_corrupt_records_are_counted_and_skipped(fleet):
    tell(fleet, word())
    fleet.apply(word().key, b"\xff", NOW)
    fleet.apply(None, b"{}", NOW)
    fleet.apply(b"worker/other/mlp", encode_status(word()), NOW)
    fleet.apply(b"router/of/the/future", b"?", NOW)
    assert fleet.corrupt == 3
    fleet.route("mlp", "", NOW)


def test_a_configuration_that_cannot_be_read_makes_its_model_unavailable_not_the_gateway(fleet):
    tell(fleet, word(versions=[VersionStatus(1, READY, config={"max_batch_size": "many"})]))
    with pytest.raises(Unavailable, match="cannot be read"):
        fleet.route("mlp", "", NOW)


def test_the_long_dead_are_forgotten_and_named_for_tombstones():
    fleet = Fleet(forget_after_ms=10_000)
    tell(fleet, word())
    tell(fleet, GatewayStatus("g", NOW, (1,), 3_000))
    assert fleet.forget(NOW + 13_000) == []
    assert sorted(fleet.forget(NOW + 13_001)) == [b"gateway/g", b"worker/w1/mlp"]
    assert fleet.models() == []


def test_reply_partitions_that_live_gateways_claim_are_counted(fleet):
    tell(fleet, GatewayStatus("g1", NOW, (0, 2), 1_000))
    tell(fleet, GatewayStatus("g2", NOW, (2,), 5_000))
    assert fleet.claims(NOW) == {0: 1, 2: 2}
    assert fleet.claims(NOW, besides="g2") == {0: 1, 2: 1}
    assert fleet.claims(NOW + 3_000) == {2: 1}


def test_KX11_counts_are_summed_over_live_workers_of_loaded_versions(fleet):
    """SEMANTICS MX-30, KX-11."""

    def counted(worker, success):
        counts = ModelCounts(success=success)
        counts.failure[Failure.OTHER] = 1
        tags = config(metric_tags={"team": "a"})
        return word(
            worker,
            versions=[
                VersionStatus(1, READY, config=tags, counts=counts),
                VersionStatus(2, UNAVAILABLE, "broken", config=tags),
            ],
        )

    tell(fleet, counted("w1", 3))
    tell(fleet, counted("w2", 4))
    (series,) = fleet.series(NOW)
    assert (series.model, series.version, series.tags) == ("mlp", 1, {"team": "a"})
    assert (series.counts.success, series.counts.failure[Failure.OTHER]) == (7, 2)
    assert fleet.series(NOW + 3_000) == []


def test_QT06_a_request_joins_the_queue_of_its_level(fleet):
    levels = {
        "dynamic_batching": {"priority_levels": 2, "default_priority_level": 2},
    }
    queues = (QueueStatus(1, 0, 4), QueueStatus(2, 9, 9))
    versions = [VersionStatus(1, READY, config=config(**levels))]
    tell(fleet, word(versions=versions, queues=queues))
    route = fleet.route("mlp", "", NOW)
    assert [route.load(p).is_full for p in (0, 1, 2, 3)] == [True, False, True, True]


def test_queue_limits_add_up_over_live_workers_and_one_without_a_limit_lifts_it(fleet):
    full = word(queues=(QueueStatus(0, 4, 4),))
    tell(fleet, full)
    assert fleet.route("mlp", "", NOW).load(0).is_full
    tell(fleet, word("w2", queues=(QueueStatus(0, 1, 4),)))
    assert not fleet.route("mlp", "", NOW).load(0).is_full
    tell(fleet, dataclasses.replace(full, worker="w2"))
    assert fleet.route("mlp", "", NOW).load(0).is_full
    tell(fleet, word("w3", queues=(QueueStatus(0, 100, 0),)))
    assert not fleet.route("mlp", "", NOW).load(0).is_full


def test_KX02_own_calls_fill_a_queue_and_their_end_empties_it():
    load = QueueLoad()
    load.reset(waiting=0, limit=2, capacity=1)
    tokens = []
    while not load.is_full:
        tokens.append(load.opened())
    assert len(tokens) == 3  # two wait, one executes
    load.closed(tokens.pop())
    assert not load.is_full
    load.reset(waiting=2, limit=2, capacity=1)
    assert load.is_full
    load.closed(tokens.pop())  # it waited when the workers spoke
    assert not load.is_full
