"""The index: states, readiness and which version answers."""

import pytest
from headrace.repository.index import UNLOADED, Index, State, VersionState
from headrace.schemas.errors import NotFound, Reason, Unavailable

READY = VersionState(State.READY)
LOADING = VersionState(State.LOADING)
FAILED = VersionState(State.UNAVAILABLE, "no such model file")
GONE = VersionState(State.UNAVAILABLE, UNLOADED)


def index_of(**models):
    index = Index()
    for name, states in models.items():
        index.add(name)
        index.set(name, states)
    return index


def test_PB_63_rows_name_version_state_and_reason():
    index = index_of(b={10: READY, 9: FAILED}, a={1: LOADING})
    index.add("never")
    index.add("wrong", "config.pbtxt: name = x: expected y")
    assert index.rows() == [
        {"name": "a", "version": "1", "state": "LOADING"},
        {"name": "b", "version": "9", "state": "UNAVAILABLE", "reason": "no such model file"},
        {"name": "b", "version": "10", "state": "READY"},
        {"name": "never"},
        {"name": "wrong", "state": "UNAVAILABLE", "reason": "config.pbtxt: name = x: expected y"},
    ]
    assert index.rows(ready=True) == [{"name": "b", "version": "10", "state": "READY"}]
    assert index.ready_versions("b") == (10,)
    assert index.state("b", 9) == FAILED
    assert index.state("b", 8) is None
    assert index.state("unknown", 1) is None


@pytest.mark.parametrize(
    ("states", "ready"),
    [
        ({1: READY}, True),
        ({1: READY, 2: READY}, True),
        ({1: READY, 2: GONE}, True),
        ({1: GONE}, True),
        ({}, False),
        ({1: READY, 2: FAILED}, False),
        ({1: LOADING}, False),
        ({1: VersionState(State.UNLOADING)}, False),
        ({1: VersionState(State.UNKNOWN)}, False),
    ],
)
def test_SV_02_strict_readiness_asks_every_known_version(states, ready):
    """A version that was unloaded is forgiven; a model without any version is not."""
    index = index_of(good={1: READY}, m=states)
    assert index.is_ready() is ready
    assert index.is_ready(strict=False)


def test_SV_02_an_empty_server_is_ready():
    assert Index().is_ready()


def test_MR_07_without_a_version_the_highest_that_is_ready_now_answers():
    index = index_of(m={1: READY, 9: READY, 10: LOADING})
    assert index.route("m") == 9
    index.set("m", {10: READY})
    assert index.route("m") == 10
    index.set("m", {10: FAILED})
    assert index.route("m") == 9
    assert index.route("m", "1") == 1


@pytest.mark.parametrize(
    ("model", "version", "error", "reason", "text"),
    [
        ("x", "", NotFound, Reason.UNKNOWN_MODEL, "unknown model: 'x' is not found"),
        ("x", "1", NotFound, Reason.UNKNOWN_MODEL, "unknown model: 'x' is not found"),
        ("m", "3", NotFound, Reason.UNKNOWN_VERSION, "'m' version 3 is not found"),
        ("m", "0", NotFound, Reason.UNKNOWN_VERSION, "'m' version 0 is not found"),
        ("m", "-1", NotFound, Reason.UNKNOWN_VERSION, "'m' version -1 is not found"),
        ("m", "²", NotFound, Reason.UNKNOWN_VERSION, "'m' version ² is not found"),
        ("m", "9" * 5000, NotFound, Reason.UNKNOWN_VERSION, "is not found"),
        ("m", "2", Unavailable, Reason.NOT_READY, "'m' version 2 is not at ready state"),
        ("off", "", NotFound, Reason.UNKNOWN_VERSION, "'off' has no available versions"),
        ("none", "", NotFound, Reason.UNKNOWN_VERSION, "'none' has no available versions"),
    ],
)
def test_PB_33_what_cannot_answer_says_why(model, version, error, reason, text):
    index = index_of(m={1: READY, 2: FAILED}, off={1: GONE}, none={})
    with pytest.raises(error) as caught:
        index.route(model, version)
    assert type(caught.value) is error
    assert caught.value.reason is reason
    assert text in caught.value.detail


def test_every_change_is_counted_for_who_publishes_the_index():
    index = Index()
    seen = [index.generation]
    index.add("m")
    seen.append(index.generation)
    index.set("m", {1: READY, 2: READY})
    seen.append(index.generation)
    assert seen == sorted(set(seen))
