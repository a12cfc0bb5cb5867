"""The memory log's reader (`headrace.streams.memory` makes it)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from headrace.schemas.record import TP
from headrace.streams.log import EARLIEST, LATEST, Block, Span

if TYPE_CHECKING:
    from headrace.streams.memory import MemoryLog
    from headrace.streams.memory_partition import MemoryPartition


class MemoryReader:
    """Reads spans from memory; see `headrace.streams.log.Reader`."""

    def __init__(
        self, log: MemoryLog, spans: Mapping[TP, Span], *, committed: bool = False
    ) -> None:
        """Keep the spans; entering resolves them. ``committed`` hides aborted and open transactions."""
        self._log = log
        self._committed = committed
        self._spans = dict(spans)
        self._next: dict[TP, int] = {}
        self._turn = 0

    async def __aenter__(self) -> Self:
        """Resolve the spans; `LogError` names a partition that does not exist."""
        await asyncio.sleep(0)
        for tp, span in self._spans.items():
            store = self._log.existing(tp)
            special: dict[int | None, int] = {EARLIEST: store.start, LATEST: self._end(store)}
            start = special.get(span.start, span.start)
            self._spans[tp] = Span(start, special.get(span.end, span.end))
            self._next[tp] = max(start, store.start)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out what the spans still hold."""
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            changed = self._log.changed
            blocks = self._take(max_records)
            left = deadline - loop.time()
            if blocks or left <= 0 or self.done():
                return blocks
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    def _take(self, max_records: int) -> list[Block]:
        tps = sorted(self._spans)
        self._turn += 1
        start = self._turn % len(tps) if tps else 0
        blocks = []
        for tp in tps[start:] + tps[:start]:
            store, end = self._log.existing(tp), self._spans[tp].end
            at = max(self._next[tp], store.start)
            limit = self._end(store) if end is None else min(end, self._end(store))
            if max_records <= 0 or at >= limit:
                continue
            records = store.read(at, limit, max_records, committed=self._committed)
            self._next[tp] = records[-1].offset + 1 if len(records) == max_records else limit
            if records:
                max_records -= len(records)
                blocks.append(Block(tp, 0, records))
        return blocks

    def positions(self) -> Mapping[TP, int]:
        """Next offsets."""
        return dict(self._next)

    def done(self) -> bool:
        """Whether each span has an end and is read to it; holes before the end count as read."""
        for tp, span in self._spans.items():
            if span.end is None:
                return False
            store, at = self._log.existing(tp), self._next[tp]
            if at < span.end and (
                self._end(store) < span.end
                or store.read(at, span.end, 1, committed=self._committed)
            ):
                return False
        return True

    def _end(self, store: MemoryPartition) -> int:
        return store.stable if self._committed else store.end
