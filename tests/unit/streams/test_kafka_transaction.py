"""What is told of a broker that cannot do exactly_once, and how its transactions are named."""

import pytest
from headrace.schemas.record import TP
from headrace.streams.kafka_transaction import transactional_id, why_no_transactions

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
