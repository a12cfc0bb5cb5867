"""Reads spans of partitions without a group, by aiokafka: replies, status, cancels, replay."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.api import Response
from aiokafka.protocol.fetch import FetchRequest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.kafka_client import bounded, stop_consumer, tame, translated
from headrace.streams.kafka_fetcher import UNKNOWN, position, take
from headrace.streams.kafka_offsets import end_offsets
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, topics_rights
from headrace.streams.log import EARLIEST, LATEST, Block, Span

NOWHERE = TopicPartition("", -1)  # an empty set would mean all partitions
LOOK_S = (
    0.05  # how often a poll looks whether it is at the end: nothing tells of what holds no records
)


class KafkaReader:
    """See `headrace.streams.log.Reader`."""

    def __init__(
        self,
        settings: KafkaSettings,
        spans: Mapping[TP, Span],
        *,
        committed: bool,
        missing: Callable[[Set[str]], Awaitable[Set[str]]],
        ends_by_batch: bool,
    ) -> None:
        """Keep the parts; entering opens.

        Args:
            settings: Translated properties.
            spans: What to read.
            committed: Hide aborted and open transactions.
            missing: Says which topics do not exist.
            ends_by_batch: See `headrace.streams.kafka_offsets`.
        """
        self._settings = settings
        self._spans = dict(spans)
        self._committed = committed
        self._missing = missing
        self._ends_by_batch = ends_by_batch
        self._needs = settings.needs(*topics_rights(Operation.READ, {tp.topic for tp in spans}))
        self._consumer: AIOKafkaConsumer | None = None
        self._open: set[tuple[str, int]] = {NOWHERE}

    def __repr__(self) -> str:
        """Show how much is left."""
        return f"KafkaReader({len(self._open) - 1} of {len(self._spans)} partitions open)"

    async def __aenter__(self) -> Self:
        """Connect and seek; `LogError` names a topic that does not exist, or that may not be read."""
        gone = await self._missing({tp.topic for tp in self._spans})
        if gone:
            raise LogError(f"topic {', '.join(sorted(gone))} does not exist", retriable=True)
        self._consumer = AIOKafkaConsumer(
            **self._settings.client,
            **self._settings.fetch,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if self._committed else "read_uncommitted",
        )
        tame(self._consumer._client)  # noqa: SLF001  # it has no option for it
        tps = [TopicPartition(*tp) for tp in self._spans]
        self._consumer.assign(tps)
        try:
            await bounded(
                self._seek(),
                2 * self._settings.request_timeout_s,
                self._doing(),
                self._needs,
            )
        except BaseException:
            await stop_consumer(self._consumer)
            raise
        return self

    async def _seek(self) -> None:
        consumer = self._running()
        await consumer.start()
        special = {
            which: {tp for tp, span in self._spans.items() if which in (span.start, span.end)}
            for which in (EARLIEST, LATEST)
        }
        told: dict[int, Mapping[TP, int]] = {EARLIEST: {}, LATEST: {}}
        if special[EARLIEST]:
            asked = [TopicPartition(*tp) for tp in special[EARLIEST]]
            first = await consumer.beginning_offsets(asked)
            told[EARLIEST] = {TP(*tp): offset for tp, offset in first.items()}
        if special[LATEST]:
            told[LATEST] = await end_offsets(
                consumer, special[LATEST], by_batch=self._ends_by_batch
            )
        for tp, span in self._spans.items():
            start = told.get(span.start, {}).get(tp, span.start)
            end = None if span.end is None else told.get(span.end, {}).get(tp, span.end)
            self._spans[tp] = Span(start, end)
            consumer.seek(TopicPartition(*tp), start)
            self._open.add(tp)
        if not self._ends_by_batch:
            await self._check_rights(consumer)
        self._close_read()

    async def _check_rights(self, consumer: AIOKafkaConsumer) -> None:
        """Fetch once without waiting: where nothing is written, one that may not read would look like one that may.

        Any other failure is left to the fetches that follow.
        """
        by_leader: dict[int, dict[str, list[tuple[int, int, int]]]] = {}
        for tp, span in self._spans.items():
            leader = consumer._client.cluster.leader_for_partition(TopicPartition(*tp))  # noqa: SLF001  # no public way
            if leader is not None and leader >= 0:
                topics = by_leader.setdefault(leader, {})
                topics.setdefault(tp.topic, []).append((tp.partition, span.start, 1))
        requests = [
            consumer._client.send(node, FetchRequest(0, 0, 1, 0, list(topics.items()), rack_id=""))  # noqa: SLF001  # idem
            for node, topics in by_leader.items()
        ]
        denied = {
            topic
            for answer in await asyncio.gather(*requests, return_exceptions=True)
            if isinstance(answer, Response)
            for topic, partitions in answer.topics
            for _, code, *_ in partitions
            if code == TopicAuthorizationFailedError.errno
        }
        if denied:
            raise TopicAuthorizationFailedError(denied)

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        if self._consumer is not None:
            await stop_consumer(self._consumer)

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out what the spans still hold.

        Raises:
            LogError: Reading is refused, or a record cannot be parsed.
        """
        await asyncio.sleep(0)  # the fetcher does not yield while it has records
        if len(self._open) == 1:
            return ()
        try:
            fetched = await self._fetch(max_records, max(timeout_s, 0.0))
        except KafkaError as exc:
            raise translated(exc, self._doing(), self._needs) from exc
        blocks = []
        for found, records in fetched.items():
            tp = TP(*found)
            kept = self._within(tp, records)
            if kept:
                blocks.append(Block(tp, 0, kept))
        self._close_read()
        return blocks

    async def _fetch(self, max_records: int, timeout_s: float) -> Mapping[TP, Sequence[Record]]:
        """Wait for records, or until the last span is at its end: by aborted records, markers, or holes (B24)."""
        consumer = self._running()
        deadline = asyncio.get_running_loop().time() + timeout_s
        ends = all(span.end is not None for span in self._spans.values())
        while True:
            left = max(deadline - asyncio.get_running_loop().time(), 0.0)
            wait_s = min(left, LOOK_S) if ends else left
            fetched = await take(consumer._fetcher, self._open, max_records, wait_s)  # noqa: SLF001  # as there
            if fetched or not ends or left <= LOOK_S or self.done():
                return fetched

    def positions(self) -> Mapping[TP, int]:
        """Next offsets."""
        return {tp: self._position(tp) for tp in self._spans}

    def done(self) -> bool:
        """Whether each span with an end is read to it and none is without."""
        self._close_read()
        return len(self._open) == 1

    def _within(self, tp: TP, records: Sequence[Record]) -> Sequence[Record]:
        end = self._spans[tp].end
        if end is None or records[-1].offset < end:
            return records
        return records[: bisect_left(records, end, key=lambda record: record.offset)]

    def _position(self, tp: TP) -> int:
        at = position(self._running(), tp)
        if at == UNKNOWN:
            at = self._spans[tp].start
        end = self._spans[tp].end
        return at if end is None else min(at, end)

    def _close_read(self) -> None:
        for tp in [tp for tp in self._open if tp != NOWHERE]:
            own = TP(*tp)
            end = self._spans[own].end
            if end is not None and self._position(own) >= end:
                self._open.discard(tp)
                self._running().pause(TopicPartition(*tp))

    def _doing(self) -> str:
        return f"reading {', '.join(sorted({tp.topic for tp in self._spans}))}"

    def _running(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "entered first"
        if self._consumer._closed:  # noqa: SLF001  # a closed fetcher would wait without an error
            raise LogError("the reader is closed", retriable=False)
        return self._consumer
