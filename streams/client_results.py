"""Iterates over a topic of results, each one once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from headrace.schemas.errors import InferError, LogError
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import TP, Record
from headrace.streams.client_values import Result
from headrace.streams.deduplicate import Deduplicator
from headrace.streams.log import Log, Reader, Span
from headrace.streams.watch import POLL_RECORDS, POLL_S


class Results:
    """The results of one topic, in the order of each partition; what comes twice is dropped (DESIGN §6).

    An asynchronous iterator; also a context manager, which closes it. The client closes it, too, at its own end: then
    the iteration ends.

    Attributes:
        topic: What is read.
        once: Counts what was dropped.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        span: Span,
        read: Callable[[Record], Awaitable[InferResponse]],
        reading: set[Results],
    ) -> None:
        """Keep the parts; the first step opens the reader.

        Args:
            log: Open.
            topic: Of results or replies.
            span: Of each partition.
            read: Reads a record, and fetches its value where that is in the claim-check store.
            reading: Where it stands until it is closed, so that the client can close it.
        """
        self.topic = topic
        self.once = Deduplicator()
        self._log = log
        self._span = span
        self._read = read
        self._reading = reading
        self._reader: Reader | None = None
        self._ready: deque[Record] = deque()
        self._is_closed = False
        self._lock = asyncio.Lock()
        reading.add(self)

    def __repr__(self) -> str:
        """Show the topic and what waits."""
        return f"Results({self.topic}, {len(self._ready)} read, {self.once.dropped} dropped)"

    async def __aenter__(self) -> Self:
        """Open: what is written from here on comes.

        Raises:
            LogError: The topic does not exist or cannot be read.
        """
        async with self._lock:
            if not self._is_closed:
                await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        await self.aclose()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Result:
        """Return the next result; waits for one.

        Raises:
            LogError: The topic does not exist or cannot be read.
        """
        async with self._lock:
            while not self._ready:
                if self._is_closed:
                    raise StopAsyncIteration
                reader = await self._open()
                for block in await reader.poll(POLL_RECORDS, POLL_S):
                    self._ready.extend(self.once.fresh(block.records))
                if not self._ready and reader.done():
                    await self._close()
            record = self._ready.popleft()
        try:
            return Result(record, await self._read(record))
        except InferError as error:
            return Result(record, error)

    def positions(self) -> Mapping[TP, int]:
        """Return the next offset to read of each partition, behind what has been read ahead; none before the start."""
        return {} if self._reader is None else self._reader.positions()

    async def aclose(self) -> None:
        """Read no more; an iteration that waits ends within a poll."""
        self._is_closed = True
        async with self._lock:
            self._ready.clear()
            await self._close()

    async def _open(self) -> Reader:
        if self._reader is None:
            count = await self._log.partitions(self.topic)
            if not count:
                raise LogError(f"topic {self.topic} does not exist", retriable=True)
            spans = {TP(self.topic, number): self._span for number in range(count)}
            reader = self._log.reader(spans, committed=True)
            self._reader = await reader.__aenter__()
        return self._reader

    async def _close(self) -> None:
        self._is_closed = True
        self._reading.discard(self)
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.__aexit__(None, None, None)
