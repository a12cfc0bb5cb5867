"""Where answers go: the reply topic that a request names, else the model's results topic (DESIGN §4).

Pure but for one lookup: partition counts of reply topics are asked of the log once and remembered, bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InvalidRequest, Reason


class Placement:
    """Addresses of one model's answers."""

    def __init__(
        self,
        results_topic: str,
        results_partitions: int,
        *,
        allowed: Callable[[str], bool],
        lookup: Callable[[str], Awaitable[int | None]],
        max_topics: int,
    ) -> None:
        """Keep the addresses.

        Args:
            results_topic: Where answers go whose request names no reply topic.
            results_partitions: Its partitions; fewer than the requests' are used modulo (FAULTS R8).
            allowed: Whether a reply topic may be written to (``--allow-reply-topics``).
            lookup: Partition count of a topic, None where it does not exist.
            max_topics: Reply topics to remember.
        """
        self._results_topic = results_topic
        self._results_partitions = results_partitions
        self._allowed = allowed
        self._lookup = lookup
        self._max_topics = max_topics
        self._counts: OrderedDict[str, int] = OrderedDict()

    def unknown(self, entries: Iterable[Entry]) -> set[str]:
        """Return the reply topics among these that `learn` must look up first."""
        counts = self._counts
        return {
            entry.reply_topic
            for entry in entries
            if entry.reply_topic
            and entry.reply_topic not in counts
            and self._allowed(entry.reply_topic)
        }

    async def learn(self, topics: Iterable[str]) -> None:
        """Look up the partition counts of reply topics."""
        for topic in topics:
            count = await self._lookup(topic)
            if count:
                self._counts[topic] = count
                while len(self._counts) > self._max_topics:
                    self._counts.popitem(last=False)

    async def vanished(self) -> set[str]:
        """Return the reply topics that were there and are not any more."""
        return {topic for topic in list(self._counts) if not await self._lookup(topic)}

    def forget(self) -> None:
        """Look every reply topic up again: one may have been deleted."""
        self._counts.clear()

    def resolve(self, entry: Entry) -> InvalidRequest | None:
        """Fix an entry's reply partition, or return why its address cannot be used.

        A refused address is cleared, so that the error goes to the results topic.
        """
        topic = entry.reply_topic
        if not topic:
            return None
        count = self._counts.get(topic)
        if count is None:
            detail = (
                f"reply topic {topic!r} does not exist"
                if self._allowed(topic)
                else f"reply topic {topic!r} is not allowed, expected one that --allow-reply-topics matches"
            )
        elif entry.reply_partition >= count:
            detail = (
                f"reply partition {entry.reply_partition} does not exist, "
                f"{topic!r} has {count} partitions"
            )
        else:
            if entry.reply_partition < 0:
                entry.reply_partition = entry.tp.partition % count
            return None
        entry.reply_topic = ""
        return InvalidRequest(detail, reason=Reason.REPLY_TOPIC_REFUSED)

    def target(self, entry: Entry) -> tuple[str, int]:
        """Return topic and partition of an entry's answer; its address has been resolved."""
        topic = entry.reply_topic
        if topic:
            return topic, entry.reply_partition
        return self._results_topic, entry.tp.partition % self._results_partitions
