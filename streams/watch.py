"""Follows the status topic and keeps a `Fleet`, for gateways and tools.

It reads every partition from its beginning, without a group, and knows when it has caught up with what was there
when it started. The log may fail at any time: it then starts over, and what is known ages meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.fleet import Fleet
from headrace.streams.log import EARLIEST, LATEST, Log, Reader, Span

POLL_RECORDS = 2_000
"""Records of one poll at most."""

POLL_S = 1.0
"""Seconds that a poll waits for records; only how often an idle loop turns."""

RETRY_S = 1.0
"""Seconds between attempts to reach a log that failed."""

Clock: TypeAlias = Callable[[], int]
"""Returns milliseconds since the epoch."""

logger = logging.getLogger(__name__)


def wall_ms() -> int:
    """Return milliseconds since the epoch: the clock that status records and deadlines are written by."""
    return time.time_ns() // 1_000_000


async def retrying(
    what: str, attempt: Callable[[], Awaitable[None]], tell: Callable[[LogError], None]
) -> None:
    """Run an endless loop again and again when the log fails, with one warning each time it does.

    Args:
        what: What stops while the log is away, for the warning.
        attempt: Coroutine function that returns only by `LogError`, or by being cancelled.
        tell: Told of each failure, for whoever asks why nothing happens.
    """
    while True:
        try:
            await attempt()
        except LogError as error:
            logger.warning("%s stops for %s s: %s", what, RETRY_S, error)
            tell(error)
        await asyncio.sleep(RETRY_S)


class StatusWatch:
    """Reads the status topic into a fleet; see the module's docstring.

    Attributes:
        fleet: What is known.
        clock_ms: The wall clock.
        caught_up: Set once everything that was there at the start has been read.
        trouble: Why it does not read now; None while it does.
    """

    def __init__(
        self, log: Log, topic: str, clock_ms: Clock, *, fleet: Fleet | None = None
    ) -> None:
        """Keep the parts; `run` reads."""
        self.fleet = Fleet() if fleet is None else fleet
        self.caught_up = asyncio.Event()
        self.trouble: LogError | None = None
        self._changed = asyncio.Event()
        self._log = log
        self._topic = topic
        self.clock_ms = clock_ms

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something that depends on the fleet holds; False if it does not after that long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follow the topic until cancelled."""
        await retrying(f"reading {self._topic}", self._follow, self._failed)

    def _failed(self, error: LogError) -> None:
        self.trouble = error

    async def _follow(self) -> None:
        partitions = await self._log.partitions(self._topic)
        if partitions is None:
            raise LogError(f"topic {self._topic} does not exist", retriable=True)
        tps = [TP(self._topic, partition) for partition in range(partitions)]
        # A second reader tells where the topic ends now; the port has no other way without a group.
        async with self._log.reader({tp: Span(LATEST) for tp in tps}) as probe:
            ends = probe.positions()
        async with self._log.reader({tp: Span(EARLIEST) for tp in tps}) as reader:
            self.trouble = None
            while True:
                if not self.caught_up.is_set() and _has_reached(reader, ends):
                    self.caught_up.set()
                await self._poll(reader, ends)

    async def _poll(self, reader: Reader, ends: Mapping[TP, int]) -> None:
        timeout_s = POLL_S if self.caught_up.is_set() else 0.05
        for block in await reader.poll(POLL_RECORDS, timeout_s):
            now_ms, end = self.clock_ms(), ends[block.tp]
            for record in block.records:
                self.fleet.apply(record.key, record.value, now_ms, live=record.offset >= end)
            self._changed.set()
            self._changed = asyncio.Event()


def _has_reached(reader: Reader, ends: Mapping[TP, int]) -> bool:
    positions = reader.positions()
    return all(positions.get(tp, 0) >= end for tp, end in ends.items())
