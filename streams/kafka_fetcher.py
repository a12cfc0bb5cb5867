"""aiokafka's fetcher, called directly: for what ``getmany`` and the consumer's own methods cannot do.

They cannot take the set of partitions by reference (so that a resumption reaches a poll that is waiting), keep what
was fetched of paused partitions, find partitions in a set, or tell a position without waiting for one. The version of
aiokafka is pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from headrace.schemas.record import TP, Record

SLACK_S = 0.1  # the fetcher's own timeout comes first; ours only bounds its wait for an assignment

UNKNOWN = -1
"""Position of a partition that has none yet, or is not assigned."""


async def fetch(
    consumer: AIOKafkaConsumer, tps: set[tuple[str, int]], max_records: int, timeout_s: float
) -> Mapping[TP, Sequence[Record]]:
    """Hand out at most ``max_records`` of what is fetched; waits up to ``timeout_s`` for the first.

    Partitions take turns: a poll begins with those that the ones before left out. Else one with much fetched ahead
    would fill the queue alone, and sequences of the others would be missing in every batch.

    Args:
        consumer: Started.
        tps: From which partitions; read again while it waits.
        max_records: Over all of them.
        timeout_s: Seconds.
    """
    timeout_s = max(timeout_s, 0.0)
    fetcher = consumer._fetcher  # noqa: SLF001  # see the module's docstring
    try:
        async with asyncio.timeout(timeout_s + SLACK_S):
            found: Mapping[TP, Sequence[Record]] = await fetcher.fetched_records(
                tps, timeout_s, max_records
            )
    except TimeoutError:
        return {}
    fetched = fetcher._records  # noqa: SLF001  # it is looked through in its order
    for tp in found:
        if tp in fetched:
            fetched[tp] = fetched.pop(tp)
    return found


def wake(consumer: AIOKafkaConsumer) -> None:
    """Let a fetch that waits look at its partitions again."""
    for waiter in tuple(consumer._fetcher._fetch_waiters):  # noqa: SLF001  # see the module's docstring
        if not waiter.done():
            waiter.set_result(None)


def put_back(consumer: AIOKafkaConsumer, fetched: Mapping[TP, Sequence[Record]]) -> None:
    """Let what was handed out be fetched again, of the partitions that are still assigned."""
    for tp, records in fetched.items():
        if position(consumer, tp) != UNKNOWN:
            consumer._fetcher.seek_to(TopicPartition(*tp), records[0].offset)  # noqa: SLF001  # see the module's docstring


def fetch_again(consumer: AIOKafkaConsumer, tps: Iterable[TP]) -> None:
    """Fetch again from where we were: a parse error loses what was parsed before it."""
    for tp in tps:
        at = position(consumer, tp)
        if at != UNKNOWN:
            consumer._fetcher.seek_to(TopicPartition(*tp), at)  # noqa: SLF001  # see the module's docstring


def position(consumer: AIOKafkaConsumer, tp: TP) -> int:
    """Return the next offset to hand out, past what holds no record (transaction markers, compacted ones).

    It moves past these when a fetch looks at them.
    """
    subscription = consumer._subscription.subscription  # noqa: SLF001  # see the module's docstring
    if subscription is None or subscription.assignment is None:
        return UNKNOWN
    state = subscription.assignment.state_value(TopicPartition(*tp))
    if state is None or not state.has_valid_position:
        return UNKNOWN
    at: int = state.position
    return at
