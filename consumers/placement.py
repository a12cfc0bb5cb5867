"""Where answers go: the reply topic that a request names, else the model's results topic (DESIGN §4).

Pure but for the look-ups: partition counts of reply topics are asked of the log, those of one block together, and
remembered, bounded; that a topic is missing is remembered for a moment only.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import TypeAlias

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InvalidRequest, LogError, Reason

MISSING_S = 5.0
"""For so long a reply topic is believed to be missing, or not to be known, without another look-up, seconds."""

REFRESH_S = 60.0
"""A known reply topic's partitions are counted again after so long: one that grew has new ones, seconds."""

LOOKUP_TIMEOUT_S = 3.0
"""All look-ups of one block take at most so long together, seconds: meanwhile nothing else is admitted."""

MAX_LOOKUPS = 32
"""Look-ups that are under way at the same time."""

Found: TypeAlias = int | LogError | None
"""Partition count of a topic, None where it does not exist, or why that is not known."""


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
        lookup_timeout_s: float = LOOKUP_TIMEOUT_S,
        missing_s: float = MISSING_S,
        refresh_s: float = REFRESH_S,
        own: Set[str] = frozenset(),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the addresses.

        Args:
            results_topic: Where answers go whose request names no reply topic.
            results_partitions: Its partitions; fewer than the requests' are used modulo (FAULTS R8).
            allowed: Whether a reply topic may be written to (``--allow-reply-topics``).
            lookup: Partition count of a topic, None where it does not exist.
            max_topics: Reply topics to remember, and as many that are missing.
            lookup_timeout_s: Longest time for all look-ups of one block.
            missing_s: How long a failed look-up is remembered.
            refresh_s: After this time a known topic is looked up, and one that has refused answers is tried again.
            own: Topics of the service that clients may name all the same, as gateways do: if they refuse answers, then
                the service is to be mended, and nobody is told that it was theirs.
            now_s: Monotonic seconds.
        """
        self._results_topic = results_topic
        self._results_partitions = results_partitions
        self._allowed = allowed
        self._lookup = lookup
        self._max_topics = max_topics
        self._timeout_s = lookup_timeout_s
        self._missing_s = missing_s
        self._refresh_s = refresh_s
        self._own = own | {results_topic}
        self._now_s = now_s
        # By topic, the least recently used first: count, or the reason against it, and until when that is believed.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._refused: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def unknown(self, entries: Iterable[Entry]) -> set[str]:
        """Return the reply topics among these that `learn` must look up before they are resolved."""
        named = {entry.reply_topic for entry in entries}
        named.discard("")
        if not named:
            return named
        now = self._now_s()
        return {
            topic for topic in named if not self._is_fresh(topic, now) and self._allowed(topic)
        }

    def _is_fresh(self, topic: str, now: float) -> bool:
        if (known := self._known.get(topic)) is not None:
            self._known.move_to_end(topic)
            return now < known[1]
        refused = self._refused.get(topic)
        return refused is not None and now < refused[1]

    async def learn(self, topics: Iterable[str]) -> None:
        """Look up the partition counts of reply topics, together and within ``lookup_timeout_s``.

        A topic that is known already keeps its count if it cannot be looked up now. Of another one the requests are
        refused, so that a topic that nobody may describe does not stop the partition.

        Raises:
            LogError: The log cannot be reached now; try again later.
        """
        found = await self._look_up(topics)
        now = self._now_s()
        for topic, count in found.items():
            known = self._known.pop(topic, None)
            self._refused.pop(topic, None)
            if isinstance(count, LogError) and known is not None:
                self._known[topic] = (known[0], now + self._missing_s)
            elif isinstance(count, LogError):
                self._refuse(
                    topic, f"could not be looked up: {count.detail}", now, self._missing_s
                )
            elif count:
                self._known[topic] = (count, now + self._refresh_s)
            else:
                self._refuse(topic, "does not exist", now, self._missing_s)
        for remembered in (self._known, self._refused):
            while len(remembered) > max(self._max_topics, len(found)):
                remembered.popitem(last=False)
        for topic, count in found.items():
            if isinstance(count, LogError) and count.retriable and topic in self._refused:
                del self._refused[topic]
                raise count

    def _refuse(self, topic: str, why: str, now: float, for_s: float) -> None:
        self._refused[topic] = (f"reply topic {topic!r} {why}", now + for_s)

    async def _look_up(self, topics: Iterable[str]) -> dict[str, Found]:
        """Return what the log says of each topic; what has not come in time is an error that is not retriable."""
        slots = asyncio.Semaphore(MAX_LOOKUPS)

        async def ask(topic: str) -> int | None:
            async with slots:
                return await self._lookup(topic)

        tasks = {topic: asyncio.create_task(ask(topic)) for topic in topics}
        if not tasks:
            return {}
        try:
            await asyncio.wait(tasks.values(), timeout=self._timeout_s)
            return {topic: self._outcome(task) for topic, task in tasks.items()}
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _outcome(self, task: asyncio.Task[int | None]) -> Found:
        if not task.done():
            return LogError(f"no answer within {self._timeout_s:g} s", retriable=False)
        try:
            return task.result()
        except LogError as exc:
            return exc

    def counted(self, there: Mapping[str, int]) -> bool:
        """Take the results topic's partition count as it is now; True if it is smaller than it was."""
        count, before = there.get(self._results_topic, 0), self._results_partitions
        if count:  # a missing topic is made again as it was
            self._results_partitions = count
        return 0 < count < before

    async def vanished(self) -> set[str]:
        """Return the reply topics that were there and are not any more.

        Raises:
            LogError: Some could not be looked up, and none of the others is gone.
        """
        found = await self._look_up(list(self._known))
        gone = {
            topic
            for topic, count in found.items()
            if not isinstance(count, LogError) and not count
        }
        failures = [count for count in found.values() if isinstance(count, LogError)]
        if failures and not gone:
            raise failures[0]
        return gone

    def forget(self) -> None:
        """Look every reply topic up again: one may have been deleted."""
        self._known.clear()
        self._refused.clear()

    def resolve(self, entry: Entry) -> InvalidRequest | None:
        """Fix an entry's reply partition, or return why its address cannot be used.

        A refused address is cleared, so that the error goes to the results topic.
        """
        topic = entry.reply_topic
        if not topic:
            return None
        known = self._known.get(topic)
        if known is None:
            detail = self.why_not(topic)
        elif entry.reply_partition >= known[0]:
            detail = (
                f"reply partition {entry.reply_partition} does not exist, "
                f"{topic!r} has {known[0]} partitions"
            )
        else:
            if entry.reply_partition < 0:
                entry.reply_partition = entry.tp.partition % known[0]
            return None
        entry.reply_topic = ""
        return InvalidRequest(detail, reason=Reason.REPLY_TOPIC_REFUSED)

    def refuse(self, topic: str, why: str) -> bool:
        """Refuse a reply topic for ``refresh_s`` whose answers could not be published; False where it is nobody's.

        A request that comes then is refused before it runs. Topics of our own are none that a client is to blame for.
        """
        if topic in self._own or self._known.pop(topic, None) is None:
            return topic in self._refused
        now = self._now_s()
        self._refuse(topic, f"refuses answers: {why}", now, self._refresh_s)
        return True

    def why_not(self, topic: str) -> str:
        """Return the sentence that says why a reply topic cannot be used."""
        if not self._allowed(topic):
            return f"reply topic {topic!r} is not allowed, expected one that --allow-reply-topics matches"
        refused = self._refused.get(topic)
        return f"reply topic {topic!r} does not exist" if refused is None else refused[0]

    def results(self, partition: int) -> tuple[str, int]:
        """Return topic and partition of the answers to a request partition that name no reply topic."""
        return self._results_topic, partition % self._results_partitions
