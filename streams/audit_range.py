"""Which stretch of the requests an audit is about, and where that stretch and its answers lie in their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.log import EARLIEST, LATEST, Log, Span

POLL_RECORDS = 5_000
"""Records of one poll at most."""

POLL_S = 0.5
"""Seconds that a poll waits for records; only how often an idle loop turns."""

OnStep = Callable[[str, int, int], None]
"""Told now and then of what is done: a word for the step, how many offsets of how many."""


@dataclass(frozen=True, slots=True)
class AuditRange:
    """A stretch of the requests; without anything, all that there is now.

    Attributes:
        since_ms: First timestamp, ms since the epoch.
        until_ms: Timestamp behind the last.
        offsets: First offset and the one behind the last (None is the end) of some partitions; then only these are
            audited. Goes before the timestamps.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    offsets: Mapping[TP, tuple[int, int | None]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it begins where the log does."""
        return self.since_ms is None and not self.offsets


EVERYTHING = AuditRange()
"""All that there is now."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How an audit reads.

    Attributes:
        log: Entered already.
        committed: Hide aborted and open transactions.
        stall_s: Seconds without progress after which reading is given up.
        on_step: Told of progress.
    """

    log: Log
    committed: bool
    stall_s: float
    on_step: OnStep = lambda _step, _done, _total: None

    async def ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return the offset behind the last record that is there now, of an open transaction too."""
        return await self._at(tps, LATEST)

    async def beginnings(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return the first offset that is there now."""
        return await self._at(tps, EARLIEST)

    async def _at(self, tps: Iterable[TP], where: int) -> dict[TP, int]:
        spans = {tp: Span(where) for tp in tps}
        if not spans:
            return {}
        async with self.log.reader(spans) as reader:
            return dict(reader.positions())

    async def read(
        self,
        step: str,
        spans: Mapping[TP, tuple[int, int]],
        take: Callable[[TP, Sequence[Record]], object],
        *,
        enough: Callable[[Mapping[TP, int]], bool] = lambda _: False,
    ) -> None:
        """Read stretches of partitions to their ends.

        The read-committed view is waited for up to the ends as they are, so that an answer which is committed is not
        missed for another transaction that was open when it was looked for.

        Args:
            step: A word for it.
            spans: First offset and the one behind the last.
            take: Called with each block.
            enough: Told of the positions after each poll; stops the reading before the ends.

        Raises:
            LogError: Nothing came for ``stall_s``.
        """
        wanted = {tp: Span(start, end) for tp, (start, end) in spans.items() if start < end}
        total = sum(end - start for start, end in spans.values() if start < end)
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        async with self.log.reader(wanted, committed=self.committed) as reader:
            before, moved_s = -1, loop.time()
            while not reader.done():
                for block in await reader.poll(POLL_RECORDS, POLL_S):
                    take(block.tp, block.records)
                at = reader.positions()
                if enough(at):
                    return
                left = sum(max(wanted[tp].end or 0, at[tp]) - at[tp] for tp in wanted)
                self.on_step(step, total - left, total)
                if left != before:
                    before, moved_s = left, loop.time()
                elif loop.time() - moved_s > self.stall_s:
                    raise self._stalled(step, wanted, at)

    def _stalled(self, step: str, spans: Mapping[TP, Span], at: Mapping[TP, int]) -> LogError:
        tp = next(tp for tp, span in spans.items() if at[tp] < (span.end or 0))
        return LogError(
            f"reading {step} stands still at {tp.topic}/{tp.partition}/{at[tp]} for {self.stall_s:g} s, expected "
            f"offsets up to {spans[tp].end}: a transaction is open, or the broker does not answer",
            retriable=True,
        )

    async def first_records(self, spans: Mapping[TP, tuple[int, int]]) -> dict[TP, Record]:
        """Return the first record of each stretch that has one, of open and aborted transactions too."""
        found: dict[TP, Record] = {}

        def take(tp: TP, records: Sequence[Record]) -> None:
            found.setdefault(tp, records[0])

        def enough(at: Mapping[TP, int]) -> bool:
            return all(tp in found or place >= spans[tp][1] for tp, place in at.items())

        plain = replace(self, committed=False)
        await plain.read("timestamps", spans, take, enough=enough)
        return found

    async def at_timestamp(
        self, spans: Mapping[TP, tuple[int, int]], timestamp_ms: int
    ) -> dict[TP, int]:
        """Return the first offset of each stretch whose record is that young or younger, its end without one.

        By halving: some thirty short readings, of all partitions together. Where timestamps are not ascending, as
        those that clients wrote may be, it is one of several places.
        """
        low = {tp: start for tp, (start, _) in spans.items()}
        high = {tp: max(start, end) for tp, (start, end) in spans.items()}
        while middle := {tp: (low[tp] + high[tp]) // 2 for tp in spans if low[tp] < high[tp]}:
            found = await self.first_records({tp: (at, high[tp]) for tp, at in middle.items()})
            for tp, at in middle.items():
                record = found.get(tp)
                if record is None or record.timestamp >= timestamp_ms:
                    high[tp] = at
                else:
                    low[tp] = record.offset + 1
        return low
