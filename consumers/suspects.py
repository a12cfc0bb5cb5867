"""Records that may have ended their worker's process run alone, each announced, until all are finished (P-14).

A block of a partition whose records are suspected leaves intake's way and becomes the partition's *line*; the partition
is paused, so few blocks follow it there, and the other partitions go on. Of a line one record at a time goes on, in
order: it is admitted, announced in the commit metadata once an instance could begin with it, and run while nothing
else of the process executes (`headrace.consumers.alone`). One that was announced and ended its process
`WorkerSettings.max_crashes` times is not run any more: it is answered, and kept as a dead letter. Behind the last
suspect the line goes on as any block does.

Where that does not help, it may be the reading that ends the process: then each is announced before it is read, too,
while nothing executes, and taken back behind that. One that ended its process so is neither read nor run any more. A
value that lies in a store is fetched and read at the same place, and of one that is given up not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import NamedTuple

from headrace.consumers.alone import Alone
from headrace.consumers.attempts import Mark, Marks
from headrace.consumers.lines import Lines
from headrace.consumers.partition import Partition
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.settle import Settler
from headrace.schemas.batch import Entry
from headrace.schemas.errors import LogError, WorkerCrashed
from headrace.schemas.record import TP, Headers, Record
from headrace.schemas.requests import Decoded, Failure
from headrace.streams.log import Block, Feature, Log

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often who waits looks whether the partition is still ours, seconds."""

RETRY_S = 0.2
"""Pause before an announcement that could not be committed is tried again, seconds."""


class Attempting(NamedTuple):
    """What a model's worker needs for attempts that outlive their process.

    Attributes:
        marks: What this process has written of its partitions.
        alone: The turn of the process's suspects.
        quarantined: Told of each record that is not run any more.
    """

    marks: Marks
    alone: Alone
    quarantined: Callable[[], None]


def attempting_on(
    log: Log, settings: WorkerSettings, alone: Alone, quarantined: Callable[[], None]
) -> Attempting | None:
    """Return what a model's worker needs; None where the log keeps no metadata of commits."""
    if Feature.COMMIT_METADATA not in log.features:
        return None
    return Attempting(Marks(span=settings.max_partition_span), alone, quarantined)


class Unread(NamedTuple):
    """A record without its value; see `headrace.schemas.record.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    headers: Headers
    value: None = None


class Trying(NamedTuple):
    """The record of a line that is decoded now.

    Attributes:
        record: As it was read from the log.
        deaths: How often it ended its process.
        unread: The last time while its value was read, and it may not do so again.
    """

    record: Record
    deaths: int
    unread: bool


class Suspects(Lines[Record]):
    """The lines of one model's partitions, in one membership; see the module's docstring."""

    def __init__(
        self,
        attempting: Attempting,
        partitions: Mapping[TP, Partition],
        settings: WorkerSettings,
        settler: Settler,
        at_rest: Callable[[], bool],
    ) -> None:
        """Keep the parts; `begin` brings what intake has.

        Args:
            attempting: Of the model.
            partitions: Those that are ours.
            settings: Bounds.
            settler: Commits announcements.
            at_rest: Whether nothing of the model executes.
        """
        super().__init__(partitions)
        self._attempting = attempting
        self._settings = settings
        self._settler = settler
        self._at_rest = at_rest
        self._admit: Callable[[Partition, Block], Awaitable[None]] | None = None
        self._trying: dict[Partition, Trying] = {}
        self._reading: set[Partition] = set()
        self._stopped = False
        self._changed = asyncio.Event()

    def begin(
        self, admit: Callable[[Partition, Block], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Bring what intake has.

        Args:
            admit: Decodes and offers a block's records.
            ended: Called when a line has ended: its partition may be resumed.
        """
        self._admit, self._line_ended = admit, ended

    def takes(self, part: Partition, block: Block) -> bool:
        """Take a block with suspected records, or behind one; False of any other."""
        line = self._lines.get(part)
        if line is None:
            mark = part.ledger.mark
            if mark is None or not mark.is_suspected(block.records[0].offset):
                return False
            line = self._begin(part, partial(self._work, part, mark))
        line.extend(block.records)
        return True

    def reading(self, part: Partition) -> AbstractAsyncContextManager[None]:
        """Return what lets records be read: a suspect at once, others while none is announced."""
        return nullcontext() if part in self._trying else self._attempting.alone.others()

    def reads(self, part: Partition) -> bool:
        """Whether a partition's block is a suspect whose value may be read: also one that lies elsewhere, now."""
        trying = self._trying.get(part)
        return trying is not None and trying.deaths < self._settings.max_crashes

    def shown(self, part: Partition, records: Sequence[Record]) -> Sequence[Record]:
        """Return what may be decoded of records: of one whose value ended its process, all but the value."""
        trying = self._trying.get(part)
        if trying is None or not trying.unread:
            return records
        return [
            Unread(r.topic, r.partition, r.offset, r.timestamp, r.key, r.headers) for r in records
        ]

    def judge(self, part: Partition, decoded: Decoded) -> Decoded:
        """Say of a record that ended its process before which try this is, or that it is not run any more."""
        trying = self._trying.get(part)
        if trying is None or not trying.deaths:
            return decoded
        entries = [entry for some in decoded.by_version.values() for entry in some]
        entries += [failure.entry for failure in decoded.failures]
        if trying.deaths < self._settings.max_crashes:
            for entry in entries:
                entry.set_attempt(entry.attempt + trying.deaths)
            return decoded
        given_up = [self._quarantine(entry, trying) for entry in entries]
        return Decoded({}, given_up, decoded.keyed)

    def room_made(self) -> None:
        """Look again whether what runs is finished."""
        self._changed.set()

    def stop(self) -> None:
        """Begin with no further record."""
        self._stopped = True

    async def _work(self, part: Partition, mark: Mark, line: deque[Record]) -> None:
        logger.warning(
            "%s/%d: %d workers ended at offset %d, the records below %d run one by one to find out whose fault it is",
            *part.tp,
            mark.known.crashes,
            part.ledger.low,
            mark.known.end,
        )
        while line and self._goes_on(part) and mark.is_suspected(offset := line[0].offset):
            if part.ledger.is_finished(offset):
                await self._pass_on(part, [line.popleft()])
                continue
            announce = partial(self._announce, part, mark, offset)
            async with self._attempting.alone.turn(part.tp, part.epoch, offset, announce):
                await self._try(part, mark, line)
        # What did not run was not announced: commit it, before something else has a chance to end the process.
        await self._until_finished(part)
        await self._write(part)
        while line and self._goes_on(part):
            rest = list(line)
            line.clear()
            await self._pass_on(part, rest)

    async def _try(self, part: Partition, mark: Mark, line: deque[Record]) -> None:
        """Run the first record of a line, and wait until it is finished."""
        await self._until_finished(part)
        if not self._goes_on(part):
            return
        record = line.popleft()
        deaths = mark.deaths(record.offset)
        is_unread = mark.known.reading and deaths >= self._settings.max_crashes
        self._trying[part] = Trying(record, deaths, is_unread)
        try:
            if mark.reads_alone and not is_unread:
                await self._read(part, mark, record)
            else:
                await self._pass_on(part, [record])
        finally:
            del self._trying[part]
        await self._until_finished(part, mark)

    async def _read(self, part: Partition, mark: Mark, record: Record) -> None:
        """Read a record where that may be what ends the process."""
        self._reading.add(part)
        try:
            async with self._attempting.alone.reading():
                await self._pass_on(part, [record])
                mark.recall()
                part.ledger.say(mark)
                await self._write(part)
        finally:
            self._reading.discard(part)

    async def _pass_on(self, part: Partition, records: list[Record]) -> None:
        assert self._admit is not None
        await self._admit(part, Block(part.tp, part.source_epoch, records))

    async def _announce(self, part: Partition, mark: Mark, offset: int) -> None:
        """Commit that a record runs, or is read; whatever keeps that from being so is told, or met by others."""
        mark.announce(offset, reading=part in self._reading)
        part.ledger.say(mark)
        await self._write(part)

    async def _write(self, part: Partition) -> None:
        while self._is_ours(part):
            try:
                await self._settler.write(part, is_ours=lambda: self._is_ours(part))
            except LogError as exc:
                if not exc.retriable:
                    self.failed = self.failed or exc
                    return
                logger.warning("%s/%d: %s; trying again", *part.tp, exc.detail)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _until_finished(self, part: Partition, mark: Mark | None = None) -> None:
        """Wait until nothing of a partition is in flight, or it is not ours any more.

        A step may wait for a slot whose sequence ends behind it: then nobody finds out, and the partition goes on.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.suspect_bound_s
        while part.in_flight > 0 and self._is_ours(part):
            self._changed.clear()
            self._settler.hurry()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                if mark is None or self._attempting.alone.has_begun or loop.time() < until:
                    continue
                if self._at_rest():
                    logger.warning(
                        "%s/%d: a suspect finds no slot; the others run as usual", *part.tp
                    )
                    mark.lift()
                    part.ledger.say(mark)
                    return

    def _quarantine(self, entry: Entry, trying: Trying) -> Failure:
        deaths = trying.deaths
        entry.record = trying.record  # with the value, which is kept
        entry.set_attempt(entry.attempt - 1 + deaths)
        what = "was read" if trying.unread else "ran"
        error = WorkerCrashed(
            f"{deaths} worker processes ended while nothing but this request {what}, expected fewer than "
            f"{self._settings.max_crashes} (max_crashes)"
        )
        logger.error("%s/%d@%d is given up: %s", *entry.tp, entry.record.offset, error.detail)
        self._attempting.quarantined()
        return Failure(entry, error, dead_letter=True)

    def _goes_on(self, part: Partition) -> bool:
        return self._is_ours(part) and not self._stopped
