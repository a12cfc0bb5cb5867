"""What is told of a broker that cannot do exactly_once, and how its transactions are named."""

import pytest
from headrace.schemas.record import TP
from headrace.streams.kafka_transaction import transactional_id, why_no_transactions
from headrace.streams.kafka_transaction_errors import code_of_parts, error_of, may_pass
from headrace.streams.kafka_transaction_requests import (
    FEATURE,
    ApiVersionsResponse_v3,
    TxnOffsetCommitResponse_v5,
)

END_TXN = 26


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({END_TXN: (0, 4)}, "takes EndTxn up to version 4"),  # Apache Kafka 3.9
        ({END_TXN: (0, 1)}, "takes EndTxn up to version 1"),
        ({0: (0, 12)}, "has no transactions at all"),
        ({}, "has no transactions at all"),
    ],
)
def test_P9_an_older_broker_is_refused_by_what_it_has_and_what_is_expected(versions, found):
    """One sentence: what is missing, what it should be, and what to do instead."""
    sentence = why_no_transactions(versions)
    assert sentence.startswith("exactly_once needs the transactions of Apache Kafka 4.0 or newer")
    assert found in sentence
    assert "at_least_once" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("last", [5, 6])
def test_P9_4_0_and_newer_are_taken(last):
    """EndTxn version 5 came with 4.0."""
    assert why_no_transactions({END_TXN: (0, last)}) == ""


def test_B27_a_transactional_id_is_made_of_group_topic_and_partition():
    """Whoever owns the partition next makes the same one, and no other partition's owner does."""
    assert transactional_id("h.echo", TP("h.echo.requests", 3)) == "h.echo:h.echo.requests:3"


def finalised(*features):
    """What a broker answers whose cluster has finalised these: name, highest and lowest level."""
    found = bytes([len(features) + 1])
    for name, highest, lowest in features:
        found += bytes([len(name) + 1]) + name.encode()
        found += highest.to_bytes(2, "big") + lowest.to_bytes(2, "big") + b"\0"
    tag = b"\x02" + bytes([len(found)]) + found
    return ApiVersionsResponse_v3.decode(b"\0\0" + b"\x01" + b"\0\0\0\0" + b"\x01" + tag)


def test_P9_the_finalised_level_of_a_feature_is_read_and_none_is_0():
    """The second protocol is spoken from level 2 on; a cluster of before has none, or says nothing of features."""
    others = ("group.version", 1, 1), ("metadata.version", 27, 7)
    assert finalised(*others, (FEATURE, 2, 2)).feature(FEATURE) == 2
    assert finalised(*others).feature(FEATURE) == 0
    assert ApiVersionsResponse_v3(0, [], 0, {}).feature(FEATURE) == 0


@pytest.mark.parametrize(
    ("code", "name", "passes"),
    [
        (13, "NetworkException", True),
        (14, "GroupLoadInProgressError", True),
        (51, "ConcurrentTransactions", True),
        (47, "InvalidProducerEpoch", False),
        (90, "ProducerFenced", False),
        (120, "TransactionAbortable", False),
    ],
)
def test_P11_what_a_broker_answers_is_asked_again_only_where_that_can_help(code, name, passes):
    """By the protocol's numbers, those among them that the client library has no name for."""
    error = error_of(code, "t")
    assert (type(error).__name__, may_pass(error)) == (name, passes)


def test_P11_the_error_that_refused_a_partition_comes_before_those_it_took_along():
    """A broker that refuses one partition says of the others that they were not tried."""
    parts = [(0, 55, {}), (1, 29, {}), (2, 55, {})]
    response = TxnOffsetCommitResponse_v5(0, [("t", parts, {})], {})
    assert code_of_parts(response) == (29, "t")
    assert code_of_parts(TxnOffsetCommitResponse_v5(0, [("t", [(0, 0, {})], {})], {})) == (0, "")
