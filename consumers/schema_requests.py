"""Records whose schemas are not known yet: brought before they are admitted, in order per partition (FAULTS B34).

A block with such a record leaves intake's way and becomes the partition's *line*; the partition is paused, so few
blocks follow it there, and the other partitions go on. The schemas are fetched, however long the registry is away: a
record that cannot be read for now is never answered with an error, let alone kept as a dead letter. Then the whole
block is decoded anew. A registry's word that there is no such schema is the record's own error.

Where all schemas are known this costs nothing: the decoder finds what it lacks in the same pass as all else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from headrace.consumers.admission import Decoder
from headrace.consumers.lines import Lines
from headrace.consumers.partition import Partition
from headrace.schemas.errors import LogError, SchemaNeeded
from headrace.schemas.mapping_format import RegistryFormat, Schemas
from headrace.schemas.record import TP, Record
from headrace.schemas.requests import Decoded
from headrace.streams.log import Block

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often a line that waits looks whether its partition is still ours, seconds."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
"""Pauses before a registry that failed is asked again, beyond the client's own retries; doubling."""


class SchemaDecoder:
    """A decoder whose records name schemas, beside the registry that has them.

    Attributes:
        decode: As the decoder's own: records whose schemas are not known come out as failures.
        trouble: Why records wait, ``""`` where none does.
    """

    def __init__(self, decoder: Decoder, record_format: RegistryFormat, schemas: Schemas) -> None:
        """Keep the parts.

        Args:
            decoder: Reads records by the format.
            record_format: Learns schemas.
            schemas: The registry.
        """
        self.decode = decoder.decode
        self.trouble = ""
        self._format = record_format
        self._schemas = schemas
        self._waiting = 0

    async def whole(self, decoded: Decoded, decode: Callable[[], Awaitable[Decoded]]) -> Decoded:
        """Return what a block becomes once all of its schemas are known; waits for them.

        Args:
            decoded: What it became.
            decode: Decodes it anew.
        """
        while lacking := self._lacking(decoded):
            await self._bring(lacking)
            decoded = await decode()
            self._format.forget()
        return decoded

    def _lacking(self, decoded: Decoded) -> list[bytes | None]:
        """Return the values of records whose schemas are not known."""
        return [
            failure.entry.record.value for failure in decoded.failures if is_waiting(failure.error)
        ]

    async def _bring(self, values: Sequence[bytes | None]) -> None:
        """Have the format learn what it lacks for these values."""
        lacking: Iterable[int] = self._format.missing(values)
        pause_s = FIRST_PAUSE_S
        self._waiting += 1
        try:
            while lacking := await self._learn(lacking):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.trouble = ""

    async def _learn(self, lacking: Iterable[int]) -> list[int]:
        """Ask for schemas; returns the ids of those that the registry did not tell of."""
        ids = list(lacking)
        found = await asyncio.gather(*map(self._schemas.fetch, ids), return_exceptions=True)
        left = []
        # Nothing waits from here until the block is decoded: what is learned now is known then.
        for schema_id, schema in zip(ids, found, strict=True):
            if isinstance(schema, LogError):
                left.append(schema_id)
                self._say(schema_id, schema)
            elif isinstance(schema, BaseException):
                raise schema
            else:
                self._format.learn(schema_id, schema)
        return left

    def _say(self, schema_id: int, error: LogError) -> None:
        text = f"records wait for schema {schema_id}: {error.detail}"
        if not self.trouble:
            logger.warning("%s; their partitions are paused", text)
        self.trouble = text


def is_waiting(error: Exception) -> bool:
    """Whether an error says only that a schema was not fetched yet."""
    return isinstance(error, SchemaNeeded)


class SchemaLines(Lines[Block]):
    """The lines of one model's partitions, in one membership; see the module's docstring."""

    def __init__(
        self,
        decoder: SchemaDecoder,
        partitions: Mapping[TP, Partition],
        *,
        decode: Callable[[Partition, Sequence[Record]], Awaitable[Decoded]],
        route: Callable[[Partition, Sequence[Record], Decoded], None],
        admit: Callable[[Partition, Block], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        """Keep the parts.

        Args:
            decoder: With the registry.
            partitions: Those that are ours.
            decode: Decodes a block's records.
            route: Takes a block that was decoded.
            admit: Admits a block behind the first, and waits for its schemas.
            ended: Called when a line has ended: its partition may be resumed.
        """
        super().__init__(partitions)
        self._decoder = decoder
        self._decode = decode
        self._route = route
        self._admit = admit
        self._line_ended = ended
        self._closed = False

    def joined(self, part: Partition, block: Block) -> bool:
        """Take a block that stands behind one that waits; False of any other."""
        line = self._lines.get(part)
        if line is None:
            return False
        line.append(block)
        return True

    def takes(self, part: Partition, records: Sequence[Record], decoded: Decoded) -> bool:
        """Take a block that was admitted and lacks schemas; False of any other."""
        if not lacks(decoded):
            return False
        self._begin(part, partial(self._work, part, records, decoded))
        return True

    async def whole(self, part: Partition, records: Sequence[Record], decoded: Decoded) -> Decoded:
        """Return what a block becomes once all of its schemas are known, or what it is if it is ours no more."""
        if not lacks(decoded):
            return decoded
        task = asyncio.ensure_future(
            self._decoder.whole(decoded, lambda: self._decode(part, records))
        )
        try:
            while not task.done() and not self._closed and self._is_ours(part):
                await asyncio.wait([task], timeout=LOOK_S)
            return task.result() if task.done() else decoded
        finally:
            task.cancel()

    def room_made(self) -> None:
        """Nothing here waits for room."""

    def close(self) -> None:
        """Drop all lines: whoever owns the partitions next reads their records."""
        self._closed = True
        super().close()

    async def _work(
        self, part: Partition, records: Sequence[Record], decoded: Decoded, line: deque[Block]
    ) -> None:
        try:
            decoded = await self.whole(part, records, decoded)
        except asyncio.CancelledError:
            part.in_flight -= len(records)
            part.in_flight_bytes -= size_of(records)
            raise
        self._route(part, records, decoded)
        while line and self._is_ours(part) and not self._closed:
            await self._admit(part, line.popleft())


def lacks(decoded: Decoded) -> bool:
    """Whether a block has records whose schemas are not known."""
    return any(is_waiting(failure.error) for failure in decoded.failures)


def size_of(records: Sequence[Record]) -> int:
    """Return the bytes of records' values."""
    return sum([len(r.value) for r in records if r.value is not None])
