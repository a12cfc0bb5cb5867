"""Commits and committed offsets by the protocol's own requests.

aiokafka's ``commit`` sends the current generation whoever admitted the work, and its ``committed`` drops the
metadata (DELIVERY P-1, P-8). So both requests are built here and sent over aiokafka's coordinator connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Set

from aiokafka import errors as kafka_errors
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
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


async def fetch_committed(
    coordinator: GroupCoordinator, group: str, tps: Set[TP]
) -> dict[TP, Position | None]:
    """Fetch offset and metadata of each partition; tries again until cancelled while the coordinator moves."""
    if not tps:
        return {}
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(tps):
        topics[tp.topic].append(tp.partition)
    request = OffsetFetchRequest(group, list(topics.items()))
    while True:
        await coordinator.ensure_coordinator_known()
        try:
            response = await coordinator._send_req(request)  # noqa: SLF001  # there is no public way
            found: dict[TP, Position | None] = dict.fromkeys(tps)
            _check(coordinator, getattr(response, "error_code", 0))
            for topic, partitions in response.topics:
                for partition, offset, metadata, code in partitions:
                    _check(coordinator, code)
                    if offset >= 0:
                        found[TP(topic, partition)] = Position(offset, metadata or "")
        except KafkaError as exc:
            if not exc.retriable:
                raise
            await asyncio.sleep(BACKOFF_S)
        else:
            return found


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
