"""Kafka's two transaction protocols, as one set of questions: which requests are sent, and what their answers say.

The second one (`headrace.streams.kafka_transaction_requests`) is spoken where the cluster has finalised it. The first
one, which such clusters take from older clients, too, has to name partitions and group before anything is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from aiokafka.protocol.api import Request, Response
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from headrace.schemas.record import TP
from headrace.streams.kafka_transaction_requests import (
    NO_TAGS,
    EndTxnRequest_v5,
    Exactly,
    ProduceRequest_v12,
    TxnOffsetCommitRequest_v5,
)
from headrace.streams.log import Position

ACKS = -1  # of every in-sync replica
NO_GENERATION = -1
NO_EPOCH = -1

Codes: TypeAlias = Iterator[tuple[TP, int]]


class Identity(NamedTuple):
    """Who a producer is to the brokers.

    Attributes:
        transactional_id: Its own name.
        producer_id: What the coordinator gave it.
        epoch: Rises with each takeover, in the second protocol with each transaction, too.
    """

    transactional_id: str
    producer_id: int
    epoch: int


class Dialect(Protocol):
    """Makes requests and reads their answers; error codes are the protocol's own."""

    def add_partitions(self, who: Identity, tps: Sequence[TP]) -> Request | None:
        """Name partitions before their first batch; None where nothing is to be said."""

    def add_offsets(self, who: Identity, group: str) -> Request | None:
        """Name the group before its positions; None where nothing is to be said."""

    def produce(self, who: Identity, batches: Mapping[TP, bytes], timeout_ms: int) -> Request:
        """Write a batch to each of some partitions of one leader."""

    def commit_position(self, who: Identity, group: str, tp: TP, at: Position) -> Request:
        """Commit a position with the transaction."""

    def end(self, who: Identity, *, is_commit: bool) -> Request:
        """End the transaction."""

    def after(self, who: Identity, response: Response) -> Identity | None:
        """Return who the producer is after an end, None where it is the same one that goes on counting."""


def codes(response: Response) -> Codes:
    """Return partition and error code of each, of any answer by topics."""
    topics = response.errors if hasattr(response, "errors") else response.topics
    for topic, partitions, *_ in topics:
        for number, code, *_rest in partitions:
            yield TP(topic, number), code


class Second:
    """Brokers add what is written to the transaction by themselves."""

    def add_partitions(self, who: Identity, tps: Sequence[TP]) -> None:
        """Say nothing."""

    def add_offsets(self, who: Identity, group: str) -> None:
        """Say nothing."""

    def produce(self, who: Identity, batches: Mapping[TP, bytes], timeout_ms: int) -> Request:
        """Write a batch to each."""
        topics: dict[str, list[tuple[int, bytes, dict[int, bytes]]]] = defaultdict(list)
        for tp, batch in batches.items():
            topics[tp.topic].append((tp.partition, batch, NO_TAGS))
        flat = [(topic, parts, NO_TAGS) for topic, parts in topics.items()]
        return Exactly(ProduceRequest_v12(who.transactional_id, ACKS, timeout_ms, flat, NO_TAGS))

    def commit_position(self, who: Identity, group: str, tp: TP, at: Position) -> Request:
        """Commit a position."""
        part = (tp.partition, at.offset, NO_EPOCH, at.metadata, NO_TAGS)
        return Exactly(
            TxnOffsetCommitRequest_v5(
                who.transactional_id,
                group,
                who.producer_id,
                who.epoch,
                NO_GENERATION,
                "",
                None,
                [(tp.topic, [part], NO_TAGS)],
                NO_TAGS,
            )
        )

    def end(self, who: Identity, *, is_commit: bool) -> Request:
        """End the transaction."""
        return Exactly(EndTxnRequest_v5(*who, is_commit, NO_TAGS))

    def after(self, who: Identity, response: Response) -> Identity | None:
        """Return who it is now: whatever comes late of this transaction is fenced."""
        if response.producer_id < 0:
            return None
        return Identity(who.transactional_id, response.producer_id, response.producer_epoch)


class First:
    """Partitions and group are named first; the epoch stays."""

    def add_partitions(self, who: Identity, tps: Sequence[TP]) -> Request:
        """Name them."""
        topics: dict[str, list[int]] = defaultdict(list)
        for tp in tps:
            topics[tp.topic].append(tp.partition)
        return AddPartitionsToTxnRequest(*who, list(topics.items()))

    def add_offsets(self, who: Identity, group: str) -> Request:
        """Name it."""
        return AddOffsetsToTxnRequest(*who, group)

    def produce(self, who: Identity, batches: Mapping[TP, bytes], timeout_ms: int) -> Request:
        """Write a batch to each."""
        topics: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for tp, batch in batches.items():
            topics[tp.topic].append((tp.partition, batch))
        return ProduceRequest(who.transactional_id, ACKS, timeout_ms, list(topics.items()))

    def commit_position(self, who: Identity, group: str, tp: TP, at: Position) -> Request:
        """Commit a position."""
        part = (tp.partition, at.offset, at.metadata)
        return TxnOffsetCommitRequest(
            who.transactional_id, group, who.producer_id, who.epoch, [(tp.topic, [part])]
        )

    def end(self, who: Identity, *, is_commit: bool) -> Request:
        """End the transaction."""
        return EndTxnRequest(*who, is_commit)

    def after(self, who: Identity, response: Response) -> None:
        """Return nobody else."""
