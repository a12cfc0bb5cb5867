"""Reads the cancels of callers that went away, and hands them to the models that they name (SEMANTICS CX-01)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.cancels import read_cancel
from headrace.streams.log import LATEST, Log, Span

logger = logging.getLogger(__name__)

POLL_RECORDS = 1000
POLL_S = 0.5


class Cancellable(Protocol):
    """The worker of a model."""

    def cancel(self, ids: set[bytes]) -> None:
        """Answer queued requests with these correlation ids CANCELLED, and remember the others' ids."""


class Cancelling:
    """The cancels of one worker process."""

    def __init__(
        self, models: Mapping[str, Cancellable], log: Log, topic: str, *, retry_s: float
    ) -> None:
        """Keep the parts; `run` reads.

        Args:
            models: By name, as they come.
            log: Where the topic lies.
            topic: Of cancels.
            retry_s: Pause after the log has failed, seconds.
        """
        self._models = models
        self._log = log
        self._topic = topic
        self._retry_s = retry_s

    async def run(self) -> None:
        """Read from the topic's end on, for ever."""
        while True:
            try:
                await self._read()
            except LogError as exc:
                logger.warning("cancels cannot be read, trying again: %s", exc.detail)
                await asyncio.sleep(self._retry_s)

    async def _read(self) -> None:
        count = await self._log.partitions(self._topic)
        if count is None:
            raise LogError(f"topic {self._topic} does not exist", retriable=True)
        spans = {TP(self._topic, number): Span(LATEST) for number in range(count)}
        async with self._log.reader(spans) as reader:
            while True:
                for block in await reader.poll(POLL_RECORDS, POLL_S):
                    self._cancel(block.records)

    def _cancel(self, records: Sequence[Record]) -> None:
        ids: dict[str, set[bytes]] = {}
        for record in records:
            cancel = read_cancel(record)
            if cancel is not None:
                ids.setdefault(cancel.model, set()).add(cancel.correlation_id)
        for model, cancelled in ids.items():
            if (worker := self._models.get(model)) is not None:
                worker.cancel(cancelled)
