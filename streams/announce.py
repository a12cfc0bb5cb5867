"""Writes status records: each to the partition of its key, so that compaction keeps the newest word of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.log import Log, Publisher
from headrace.streams.status import Status, encode_status
from headrace.streams.topology import partition_for_key

logger = logging.getLogger(__name__)


class Announcer:
    """Writes one process's words to the status topic, and their tombstones."""

    def __init__(self, log: Log, publisher: Publisher, topic: str) -> None:
        """Keep the open log and publisher."""
        self._log = log
        self._publisher = publisher
        self._topic = topic
        self._partitions = 0

    async def write(self, statuses: Iterable[Status]) -> None:
        """Produce status records and await their acknowledgement.

        Raises:
            LogError: The log refused or could not be reached; try again at the next heartbeat.
        """
        await self._publish([(status.key, encode_status(status)) for status in statuses])

    async def clear(self, keys: Iterable[bytes]) -> None:
        """Produce tombstones: on a clean stop one's own, of the long dead anybody's.

        Raises:
            LogError: As `write`.
        """
        await self._publish([(key, None) for key in keys])

    async def beat(
        self,
        interval_s: float,
        status: Callable[[], Status],
        gone: Callable[[], Iterable[bytes]],
    ) -> None:
        """Write our word at each heartbeat, and sweep the words of the long dead away, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.write([status()])
                await self.clear(gone())
            except LogError as error:
                logger.warning("the status was not written: %s", error)

    async def _publish(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        if not pairs:
            return
        if not self._partitions:
            self._partitions = await self._log.partitions(self._topic) or 0
        if not self._partitions:
            raise LogError(f"topic {self._topic} does not exist", retriable=True)
        await self._publisher.publish(
            [
                Out(self._topic, partition_for_key(key, self._partitions), key, value)
                for key, value in pairs
            ]
        )
