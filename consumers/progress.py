"""Whether every partition gets on: its position against its end, over time (FAULTS B7, B8).

A member may look healthy and read nothing, or all but one partition. Only the end, asked beside what reads, tells a
partition without news from one that is stuck; so it is asked, for those that stand still, and what is found keeps the
worker from being ready. A stuck partition is fetched again, and when that does not help the process ends. What is
paused is not read and cannot be stuck: back-pressure, its share of the queue, a takeover and a long execution last as
long as they like.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set

from headrace.consumers.partition import Partition
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.log import Source

logger = logging.getLogger(__name__)

LOOKS = 4
"""Looks within the time-out; what is stuck is found at most half of the time-out late."""

FETCHES = 2
"""Times that a stuck partition is fetched again, a time-out apart; after one more the process ends."""


class PartitionStuck(Exception):
    """Nothing of a partition is handed out though it has records, and only a new process may mend that."""


class Watch:
    """Looks after the partitions of one membership.

    Attributes:
        stuck: Those that have had records for the time-out and handed out none.
    """

    def __init__(
        self, partitions: Mapping[TP, Partition], source: Source, timeout_s: float
    ) -> None:
        """Keep the parts.

        Args:
            partitions: Those that are ours, as they come and go.
            source: Who reads them.
            timeout_s: How long one may stand still before its end, how long the log may not tell the end, and how
                long the group may not tell what is ours, seconds.
        """
        self.stuck: Set[TP] = frozenset()
        self._partitions = partitions
        self._source = source
        self._timeout_s = timeout_s
        self._before: dict[TP, tuple[int, int]] = {}  # the last look's epoch and position
        self._still: dict[TP, int] = {}  # looks at which it had records and had not moved
        self._asked_at: float | None = None  # what has no answer yet

    def trouble(self) -> str:
        """Return a sentence about what does not get on, ``""`` where all does."""
        now = asyncio.get_running_loop().time()
        for tp in sorted(self.stuck & self._partitions.keys()):
            return (
                f"{tp.topic}/{tp.partition} has had records for more than {self._timeout_s:g} s and hands out none, "
                f"the next one would be {self._position(self._partitions[tp])}"
            )
        if self._asked_at is not None and now - self._asked_at > self._timeout_s:
            return f"the log has not told for {now - self._asked_at:.0f} s where partitions end"
        left_at = self._source.left_at()
        if left_at is not None and now - left_at > self._timeout_s:
            return f"the group has not told for {now - left_at:.0f} s which partitions are ours"
        return ""

    async def run(self) -> None:
        """Look for ever.

        Raises:
            PartitionStuck: One could not be mended.
        """
        while True:
            await asyncio.sleep(self._timeout_s / LOOKS)
            await self._look()

    async def _look(self) -> None:
        if any(part.decoding and not part.paused for part in self._partitions.values()):
            return  # nothing is polled until it is admitted; what stands in line keeps nobody else
        now = self._positions()
        standing = {tp for tp, at in now.items() if self._stands(tp, at)}
        self._before = now
        ends = await self._ends(standing)
        if ends is not None:
            after = self._positions()
            self._judge(
                {tp for tp in standing if after.get(tp) == now[tp] and now[tp][1] < ends[tp]}
            )

    def _positions(self) -> dict[TP, tuple[int, int]]:
        """Return epoch and position of the partitions that are read now."""
        return {
            tp: (part.epoch, self._position(part))
            for tp, part in self._partitions.items()
            if part.active and not part.paused
        }

    def _position(self, part: Partition) -> int:
        """Return the next offset to be handed out; that is past what holds no record, where the source knows it."""
        return max(self._source.position(part.tp), part.ledger.next_offset)

    def _stands(self, tp: TP, at: tuple[int, int]) -> bool:
        """Whether a partition has not moved since the last look, under the same epoch."""
        epoch, position = self._before.get(tp, (-1, -1))
        return epoch == at[0] and position >= at[1]

    async def _ends(self, tps: Set[TP]) -> Mapping[TP, int] | None:
        """Return where partitions end, None where the log does not tell."""
        if not tps:
            self._asked_at = None
            return {}
        if self._asked_at is None:
            self._asked_at = asyncio.get_running_loop().time()
        try:
            ends = await self._source.end_offsets(tps)
        except LogError as exc:
            logger.warning("the ends of partitions are not known: %s", exc.detail)
            return None
        self._asked_at = None
        return ends

    def _judge(self, behind: Set[TP]) -> None:
        """Count a look at which these stood still before their end, and do what is due."""
        self._still = {tp: self._still.get(tp, -1) + 1 for tp in behind}
        self.stuck = frozenset(tp for tp, looks in self._still.items() if looks >= LOOKS)
        for tp in sorted(self.stuck):
            again, early = divmod(self._still[tp], LOOKS)
            if early:
                continue
            if again > FETCHES:
                raise PartitionStuck(
                    f"{self.trouble()}, though it was fetched again {FETCHES} times"
                )
            logger.warning("%s; it is fetched again", self.trouble())
            self._fetch_again(tp)

    def _fetch_again(self, tp: TP) -> None:
        """Have a source drop what it knows of a partition, and read on behind what it handed out."""
        self._source.pause({tp})
        self._source.seek(tp, self._partitions[tp].ledger.next_offset)
        self._source.resume({tp})
