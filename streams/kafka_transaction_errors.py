"""What brokers answer to requests of transactions: which errors may pass, which say that we are fenced, which last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiokafka import errors as kafka_errors
from aiokafka.errors import BrokerResponseError, KafkaError
from aiokafka.protocol.api import Response
from headrace.streams.kafka_client import FATAL
from headrace.streams.kafka_transaction_dialects import codes

Code: TypeAlias = Callable[[Response], tuple[int, str]]
"""Reads an answer's error code, 0 for none, and the topic that it is about."""

FENCED = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
)
# What the next try would meet again, with whatever producer.
LASTING = (
    *FATAL,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.OffsetMetadataTooLargeError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidTransactionTimeout,
    kafka_errors.PolicyViolationError,
    kafka_errors.UnsupportedForMessageFormatError,
)


class NetworkException(BrokerResponseError):  # type: ignore[misc]  # aiokafka is untyped
    """The broker's own request to the coordinator came to nothing; in aiokafka the code has its name of before 2018."""

    errno = 13
    retriable = True


class TransactionAbortable(BrokerResponseError):  # type: ignore[misc]  # aiokafka is untyped
    """The transaction cannot go on, and may be aborted."""

    errno = 120


UNNAMED: Mapping[int, Callable[[], KafkaError]] = {
    13: NetworkException,
    90: kafka_errors.ProducerFenced,
    120: TransactionAbortable,
}
"""Error codes that aiokafka does not know, or by another name."""

NOT_TRIED = 55
"""Error code of a partition that was refused for another one's sake."""


def code_of_all(response: Response) -> tuple[int, str]:
    """Return the one error of an answer."""
    return response.error_code, ""


def code_of_parts(response: Response) -> tuple[int, str]:
    """Return the first error of an answer, and the topic it is about."""
    found = [(code, tp.topic) for tp, code in codes(response) if code]
    return next((one for one in found if one[0] != NOT_TRIED), found[0] if found else (0, ""))


def error_of(code: int, topic: str) -> KafkaError | None:
    """Return what an error code means, None where it is none."""
    if not code:
        return None
    kind = UNNAMED.get(code) or kafka_errors.for_code(code)
    if kind is kafka_errors.TopicAuthorizationFailedError:
        return kind(topic)
    return kind()


def may_pass(error: KafkaError) -> bool:
    """Whether the same request may be taken later."""
    return error.retriable or isinstance(error, kafka_errors.ConcurrentTransactions)
