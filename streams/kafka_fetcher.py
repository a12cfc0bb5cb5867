"""aiokafka's fetcher, called directly: for what ``getmany`` and the consumer's own methods cannot do.

They cannot take the set of partitions by reference (so that a resumption reaches a poll that is waiting), keep what
was fetched of paused partitions, find partitions in a set, or tell a position without waiting for one. And who waits
for records hears of them four turns of the loop later than here; a turn is milliseconds in a busy gateway. The version
of aiokafka is pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
            found = await take(fetcher, tps, max_records, timeout_s)
    except TimeoutError:
        return {}
    fetched = fetcher._records  # noqa: SLF001  # it is looked through in its order
    for tp in found:
        if tp in fetched:
            fetched[tp] = fetched.pop(tp)
    return found


async def take(
    fetcher: Any, tps: set[tuple[str, int]], max_records: int, timeout_s: float
) -> Mapping[TP, Sequence[Record]]:
    """Do what ``Fetcher.fetched_records`` does, in fewer turns of the loop."""
    if "_proc_fetch_request" not in vars(fetcher):
        _tell_at_once(fetcher)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while True:
        found: Mapping[TP, Sequence[Record]]
        found = await fetcher.fetched_records(tps, 0, max_records)
        if found or fetcher._closed or loop.time() >= until_s:  # noqa: SLF001  # see the module's docstring
            return found
        waiter = fetcher._create_fetch_waiter()  # noqa: SLF001  # idem
        timer = loop.call_at(until_s, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def wake(consumer: AIOKafkaConsumer) -> None:
    """Let a fetch that waits look at its partitions again."""
    _wake(consumer._fetcher)  # noqa: SLF001  # see the module's docstring


def _wake(fetcher: Any) -> None:
    for waiter in tuple(fetcher._fetch_waiters):  # noqa: SLF001  # idem
        _end(waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _tell_at_once(fetcher: Any) -> None:
    """Let the task that has got records tell who waits for them, not the routine that waits for that task."""
    process = fetcher._proc_fetch_request  # noqa: SLF001  # see the module's docstring

    async def processed(*args: object) -> bool:
        if await process(*args):
            _wake(fetcher)
        return False  # who waits is told

    fetcher._proc_fetch_request = processed  # noqa: SLF001  # idem


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
