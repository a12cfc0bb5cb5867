"""The index: states and readiness."""

import pytest
from headrace.repository.index import UNLOADED, Index, State, VersionState

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


def test_every_change_is_counted_for_who_publishes_the_index():
    index = Index()
    seen = [index.generation]
    index.add("m")
    seen.append(index.generation)
    index.set("m", {1: READY, 2: READY})
    seen.append(index.generation)
    assert seen == sorted(set(seen))
