"""From a block's records to what intake offers: decoded in the loop or in a thread, and not beside a suspect."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from headrace.consumers.admission import Decoder
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.schema_requests import size_of
from headrace.consumers.suspects import Suspects
from headrace.schemas.record import Record
from headrace.schemas.requests import Decoded


class Reading:
    """How the values of one model's records are read, in one membership."""

    def __init__(
        self,
        decoder: Decoder,
        placement: Placement,
        max_inline_bytes: int,
        suspects: Suspects | None,
    ) -> None:
        """Keep the parts.

        Args:
            decoder: Reads the model's records.
            placement: Learns of the reply topics that they name.
            max_inline_bytes: A larger block is decoded in a thread.
            suspects: Records that may end the process; None where the log keeps no attempts (P-14).
        """
        self._decoder = decoder
        self._placement = placement
        self._max_inline_bytes = max_inline_bytes
        self._suspects = suspects

    async def read(self, part: Partition, records: Sequence[Record], size: int) -> Decoded:
        """Decode records; all reply topics are known then.

        Args:
            part: Their partition.
            records: In offset order.
            size: Bytes of their values.
        """
        if self._suspects is None:
            decoded = await self._decode(part, records, size)
        else:
            async with self._suspects.reading(part):
                shown = self._suspects.shown(part, records)
                decoded = await self._decode(part, shown, size)
        failed = [failure.entry for failure in decoded.failures]
        unknown = self._placement.unknown(chain(failed, *decoded.by_version.values()))
        if unknown:
            await self._placement.learn(unknown)
        return decoded

    async def read_again(self, part: Partition, records: Sequence[Record]) -> Decoded:
        """Decode records once more: what they lacked is known by now."""
        return await self.read(part, records, size_of(records))

    async def _decode(self, part: Partition, records: Sequence[Record], size: int) -> Decoded:
        if size > self._max_inline_bytes:
            # Heartbeats share the loop with us (FAULTS B2).
            return await asyncio.to_thread(self._decoder.decode, part.tp, part.epoch, records)
        return self._decoder.decode(part.tp, part.epoch, records)
