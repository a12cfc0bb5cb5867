"""A model's state topic as its worker meets it: with too few partitions, outlived by its requests, or made again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set

from headrace.consumers.restore import Restored, restore
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import SequenceState
from headrace.schemas.snapshot import SequenceCodec
from headrace.streams.log import Log, Source

logger = logging.getLogger(__name__)


class StateTopic:
    """The state topic of a sequence model.

    Attributes:
        name: Its name.
    """

    def __init__(self, log: Log, name: str, codec: SequenceCodec) -> None:
        """Keep the parts.

        Args:
            log: Where it is.
            name: Of a compacted topic with as many partitions as the requests topic.
            codec: Of what it holds.
        """
        self.name = name
        self._log = log
        self._codec = codec
        self._ends: Mapping[TP, int] = {}

    async def input_partitions(self, requests: Sequence[TP]) -> int:
        """Return how many partitions the requests topic has now.

        Args:
            requests: Partitions of it that are ours.

        Raises:
            LogError: It cannot be asked, or the broker that answered does not know yet what we were assigned.
        """
        highest = max(tp.partition for tp in requests)
        topic = requests[0].topic
        count = await self._log.partitions(topic)
        if count is None or count <= highest:
            raise LogError(
                f"{topic} has {count or 0} partitions as a broker says, expected more than {highest}",
                retriable=True,
            )
        return count

    async def read(
        self, requests: Sequence[TP], source: Source, input_partitions: int
    ) -> Mapping[int, Restored[SequenceState]]:
        """Read the states of partitions that are being taken over (P-5 step 3).

        What belongs to an earlier requests topic of the same name is left out and removed (FAULTS B104): an offset that
        the partition does not have yet would close records of ids that are used again.

        Args:
            requests: Partitions of the requests topic.
            source: Their group member.
            input_partitions: How many their topic has: states that were written under another number are lost.

        Raises:
            LogError: It cannot be read, or has no place for the states of one of them.
        """
        numbers = [tp.partition for tp in requests]
        await self._check_partitions(requests[0].topic, max(numbers), input_partitions)

        async def ends() -> Mapping[int, int]:
            found = await source.end_offsets(frozenset(requests))
            return {tp.partition: end for tp, end in found.items()}

        found = await restore(
            self._log,
            self.name,
            numbers,
            self._codec,
            input_partitions=input_partitions,
            ends=ends,
        )
        await self._remove_outdated(requests[0].topic, found)
        return found

    async def _check_partitions(self, requests: str, highest: int, expected: int) -> None:
        """Say what is wrong where states have no place, instead of waiting for it to appear."""
        count = await self._log.partitions(self.name)
        if count is not None and count <= highest:
            raise LogError(
                f"state topic {self.name} has {count} partitions, expected {expected} as {requests} has: add them, "
                f"kafka-topics.sh --alter --topic {self.name} --partitions {expected}",
                retriable=False,
            )

    async def _remove_outdated(
        self, requests: str, found: Mapping[int, Restored[SequenceState]]
    ) -> None:
        """Remove states of an earlier requests topic before the new one's records can reach their offsets.

        Even if the partition is another's by now: no state can be as of an offset that its topic never had.
        """
        outs = []
        for partition, restored in found.items():
            outs += [Out(self.name, partition, key, None) for key in restored.outdated]
            if restored.outdated:
                logger.warning(
                    "%d states in %s/%d are as of offsets that %s/%d does not have, it was made again or cut: "
                    "they are removed",
                    len(restored.outdated),
                    self.name,
                    partition,
                    requests,
                    partition,
                )
        if outs:
            async with self._log.publisher() as publisher:
                await publisher.publish(outs)

    def partitions(self, requests: Set[TP]) -> Set[TP]:
        """Return the partitions with the states of these."""
        return {TP(self.name, tp.partition) for tp in requests}

    def went_back(self, ends: Mapping[TP, int]) -> bool:
        """Whether one of its ends is lower than at the last call: another worker has made the topic again."""
        before, self._ends = self._ends, dict(ends)
        return any(end < before.get(tp, 0) for tp, end in ends.items())
