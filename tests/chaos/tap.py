"""Reads every answer as a customer does, and notes when each came: how long results stood still."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from fault_kit import Answer, answer_of
from headrace.schemas.headers import find_header
from headrace.schemas.record import ID, SOURCE, TP
from headrace.streams.log import Mode

POLL_MS = 100
END_S = 30.0


class Tap:
    """A consumer of answers without a group, of its own client; an async context manager.

    Attributes:
        answers: Source of a request → its answers, in the order of arrival.
        ids: Ids of the requests that have an answer.
    """

    def __init__(self, bootstrap: str, tps: Iterable[TP], mode: Mode) -> None:
        """Read these partitions from their beginnings; in exactly_once what is committed."""
        self.answers: dict[str, list[Answer]] = {}
        self.ids: set[str] = set()
        self._tps = [TopicPartition(*tp) for tp in sorted(tps)]
        self._came: dict[TP, list[float]] = defaultdict(list)
        committed = mode is Mode.EXACTLY_ONCE
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            request_timeout_ms=10_000,
            metadata_max_age_ms=2_000,
        )

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._consumer.start()
        self._consumer.assign(self._tps)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        await self._consumer.stop()

    async def run(self) -> None:
        """Read until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            found = await self._consumer.getmany(timeout_ms=POLL_MS)
            now = clock()
            for tp, records in found.items():
                self._came[TP(*tp)].append(now)
                for record in records:
                    source = (find_header(record.headers, SOURCE) or b"").decode()
                    self.answers.setdefault(source, []).append(answer_of(record))
                    self.ids.add((find_header(record.headers, ID) or b"").decode())

    async def until_end(self) -> None:
        """Wait until all that there is now was read; `run` runs."""
        ends = await self._consumer.end_offsets(self._tps)
        async with asyncio.timeout(END_S):
            for tp, end in ends.items():
                while await self._consumer.position(tp) < end:  # noqa: ASYNC110  # it does not say when it moves
                    await asyncio.sleep(0.05)

    def stalls(self, begin: float, end: float) -> Mapping[TP, float]:
        """Return the longest time that each partition brought nothing while the load went on, seconds.

        A stillness counts from its beginning within the time to the next answer, also one that comes after it.
        """
        found = {}
        for tp, times in self._came.items():
            within = [begin, *[at for at in times if at > begin]]
            gaps = [
                later - earlier for earlier, later in itertools.pairwise(within) if earlier < end
            ]
            found[tp] = max(gaps, default=0.0)
        return found
