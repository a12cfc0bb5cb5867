"""Commits, committed offsets and membership by the protocol's own requests, and aiokafka's rebalance callbacks.

aiokafka's ``commit`` sends the current generation whoever admitted the work, and its ``committed`` drops the
metadata (DELIVERY P-1, P-8). So both requests are built here and sent over aiokafka's coordinator connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Response
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.kafka_transaction_offsets import (
    UNSTABLE_OFFSET_COMMIT,
    StableOffsetFetchRequest,
)
from headrace.streams.log import Position

BACKOFF_S = 0.05

# UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID (which aiokafka does not know): the member is not the
# one that admitted the work, or the group has gone on.
NOT_OURS = frozenset({25, 22, 82})
MOVED = (
    kafka_errors.GroupCoordinatorNotAvailableError,
    kafka_errors.NotCoordinatorForGroupError,
    kafka_errors.RequestTimedOutError,
)


class CommitRefused(Exception):
    """The coordinator knows another generation or member: nothing was committed."""


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Hands aiokafka's callbacks to a source; both are quick but for the drain, during which it heartbeats."""

    def __init__(
        self, revoke: Callable[[], Awaitable[None]], assign: Callable[[Set[TP]], None]
    ) -> None:
        """Keep whom to call."""
        self._revoke = revoke
        self._assign = assign

    async def on_partitions_revoked(self, revoked: Set[TopicPartition]) -> None:
        """Give up; aiokafka names what it had, which is what the source has."""
        del revoked
        await self._revoke()

    def on_partitions_assigned(self, assigned: Set[TopicPartition]) -> None:
        """Take over."""
        self._assign(frozenset(TP(*tp) for tp in assigned))


async def fetch_committed(
    coordinator: GroupCoordinator, group: str, tps: Set[TP]
) -> dict[TP, Position | None]:
    """Fetch offset and metadata of each partition.

    Tries again until cancelled while the coordinator moves, or a transaction is about to change one.
    """
    if not tps:
        return {}
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(tps):
        topics[tp.topic].append(tp.partition)
    request = StableOffsetFetchRequest(group, list(topics.items()))
    while True:
        await coordinator.ensure_coordinator_known()
        try:
            response = await coordinator._send_req(request)  # noqa: SLF001  # there is no public way
            found = _fetched(coordinator, response)
        except KafkaError as exc:
            if not exc.retriable:
                raise
        else:
            if found is not None:
                return {**dict.fromkeys(tps), **found}
        await asyncio.sleep(BACKOFF_S)


def _fetched(coordinator: GroupCoordinator, response: Response) -> dict[TP, Position] | None:
    """Read an answer; None where a position is not stable."""
    found: dict[TP, Position] = {}
    codes = {getattr(response, "error_code", 0)}
    for topic, partitions, *_ in response.topics:
        for partition in partitions:
            number, offset, metadata, code = _fields(partition)
            codes.add(code)
            if offset >= 0:
                found[TP(topic, number)] = Position(offset, metadata or "")
    for code in codes - {UNSTABLE_OFFSET_COMMIT}:
        _check(coordinator, code)
    return None if UNSTABLE_OFFSET_COMMIT in codes else found


def _fields(partition: Sequence[Any]) -> tuple[int, int, str | None, int]:
    """Return number, offset, metadata and error code, of which the later versions have others between and behind."""
    number, offset, *rest = partition
    metadata, code = rest if len(rest) == 2 else rest[1:3]
    return number, offset, metadata, code


async def commit_positions(
    coordinator: GroupCoordinator,
    group: str,
    member: tuple[int, str],
    current: Callable[[], Mapping[TP, Position]],
) -> Set[TP]:
    """Commit in one request under the generation and member id that admitted the work.

    Args:
        coordinator: Of the consumer.
        group: Its name.
        member: Generation and member id at the assignment.
        current: What may still be committed; asked again before each try, since a rebalance may come between.

    Returns:
        The partitions that were committed; a deleted topic's are not among them.

    Raises:
        CommitRefused: The coordinator knows another generation or member.
        LogError: A position cannot be stored, such as metadata above the broker's limit.
        KafkaError: Not authorised, and the like.
    """
    while positions := current():
        await coordinator.ensure_coordinator_known()
        topics: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for tp, at in positions.items():
            topics[tp.topic].append((tp.partition, at.offset, at.metadata))
        request = OffsetCommitRequest(
            group, *member, OffsetCommitRequest.DEFAULT_RETENTION_TIME, list(topics.items())
        )
        try:
            response = await coordinator._send_req(request)  # noqa: SLF001  # there is no public way
            return _committed(coordinator, response, positions)
        except KafkaError as exc:
            if not exc.retriable and not isinstance(exc, kafka_errors.RebalanceInProgressError):
                raise
            await asyncio.sleep(BACKOFF_S)
    return frozenset()


async def is_member(coordinator: GroupCoordinator, group: str, member: tuple[int, str]) -> bool:
    """Ask whether a generation and member id still count; tries again until cancelled while the coordinator moves."""
    while True:
        await coordinator.ensure_coordinator_known()
        try:
            response = await coordinator._send_req(HeartbeatRequest(group, *member))  # noqa: SLF001  # there is no public way
            if response.error_code in NOT_OURS:
                return False
            _check(coordinator, response.error_code)
        except kafka_errors.RebalanceInProgressError:
            return True  # until it is over
        except KafkaError as exc:
            if not exc.retriable:
                raise
            await asyncio.sleep(BACKOFF_S)
        else:
            return True


def _committed(
    coordinator: GroupCoordinator, response: OffsetCommitRequest, positions: Mapping[TP, Position]
) -> Set[TP]:
    done = set()
    for topic, partitions in response.topics:
        for partition, code in partitions:
            tp, error = TP(topic, partition), kafka_errors.for_code(code)
            if code in NOT_OURS:
                raise CommitRefused
            if error is kafka_errors.OffsetMetadataTooLargeError:
                raise LogError(
                    f"committing {topic}/{partition} failed: {len(positions[tp].metadata)} bytes of metadata are "
                    "above the broker's offset.metadata.max.bytes",
                    retriable=False,
                )
            if error is not kafka_errors.UnknownTopicOrPartitionError:
                _check(coordinator, code)
                done.add(tp)
    return done


def _check(coordinator: GroupCoordinator, code: int) -> None:
    error = kafka_errors.for_code(code)
    if error is kafka_errors.NoError:
        return
    if error in MOVED:
        coordinator.coordinator_dead()
    raise error()
