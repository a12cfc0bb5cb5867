"""Looks after the topics of what is stored: what is in one that was made again is gone (FAULTS B104)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from headrace.schemas.record import TP
from headrace.streams.log import LATEST, Log, Span


class Keeper(Protocol):
    """Who stores something: a model's sequences, or its remembered answers."""

    @property
    def topic(self) -> str:
        """Where it is."""

    def state_partitions(self) -> Set[TP]:
        """Return the partitions of the topic that are written now."""

    def look(self, ends: Mapping[TP, int]) -> None:
        """Take note of the ends of these."""

    def write_again(self) -> None:
        """Write everything anew."""


async def watch_stored(log: Log, keepers: Sequence[Keeper], made_again: Set[str]) -> None:
    """Have everything written anew whose topic was made again, by us or another worker.

    Args:
        log: Where the topics are.
        keepers: Of all models.
        made_again: Topics that we have just made again.

    Raises:
        LogError: The ends cannot be read.
    """
    for keeper in keepers:
        if keeper.topic in made_again:
            keeper.write_again()
    spans = {tp: Span(LATEST) for keeper in keepers for tp in keeper.state_partitions()}
    if not spans:
        return
    async with log.reader(spans, committed=True) as reader:
        ends = reader.positions()
    for keeper in keepers:
        keeper.look({tp: end for tp, end in ends.items() if tp.topic == keeper.topic})
