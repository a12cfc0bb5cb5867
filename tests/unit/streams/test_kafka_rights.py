"""Which right a refusal is about: by the error's kind, by the names that it brings, by what the part needs."""

import pytest
from aiokafka import errors
from headrace.streams.kafka_client import translated
from headrace.streams.kafka_rights import (
    NOBODY,
    Needs,
    Operation,
    Resource,
    Right,
    create_rights,
    topics_rights,
)

ANN = Needs(
    "User:ann",
    (Right(Operation.READ, Resource.GROUP, "g"), *topics_rights(Operation.READ, {"b", "a"})),
    others=Operation.WRITE,
)


@pytest.mark.parametrize(
    ("error", "clause"),
    [
        (errors.GroupAuthorizationFailedError(), "User:ann needs Read on Group g"),
        (errors.GroupAuthorizationFailedError("g"), "User:ann needs Read on Group g"),
        (
            errors.TopicAuthorizationFailedError(),
            "User:ann needs Read on Topic a and Read on Topic b",
        ),
        (errors.TopicAuthorizationFailedError("b"), "User:ann needs Read on Topic b"),
        (errors.TopicAuthorizationFailedError({"a"}), "User:ann needs Read on Topic a"),
        (errors.TopicAuthorizationFailedError({"c"}), "User:ann needs Write on Topic c"),
        (
            errors.TransactionalIdAuthorizationFailed("t"),
            "User:ann needs Write on TransactionalId t",
        ),
        (errors.ClusterAuthorizationFailedError(), "User:ann needs a right on Cluster"),
    ],
)
def test_B58_who_needs_what(error, clause):
    """Only what the error is about, and only what it names where it names something."""
    assert ANN.missing(error) == clause
    found = translated(error, "reading a", ANN)
    assert (found.detail, found.retriable) == (f"reading a is not allowed: {clause}", False)


def test_what_caused_an_error_counts():
    """aiokafka wraps some in an error of its own."""
    wrapped = errors.KafkaError("Unexpected error during batch delivery")
    wrapped.__cause__ = errors.TopicAuthorizationFailedError("a")
    assert ANN.missing(wrapped) == "User:ann needs Read on Topic a"


def test_other_errors_are_about_no_right():
    assert ANN.missing(errors.RequestTimedOutError()) == ""
    assert translated(errors.RequestTimedOutError(), "x", ANN).retriable


def test_of_whom_nothing_is_known_the_resource_is_named_all_the_same():
    error = errors.TopicAuthorizationFailedError("a")
    assert NOBODY.missing(error) == "this client needs a right on Topic a"


def test_either_of_two_rights_creates_a_topic():
    either = "Create on Topic a or Create on Cluster kafka-cluster"
    assert create_rights("a", may_exist=False) == either
    assert create_rights("a", may_exist=True) == f"{either}, and Describe on it if it exists"
