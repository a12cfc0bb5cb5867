"""Whether a gateway hears what it needs to answer calls, and why not: the fleet's words and its replies.

Rights that are missing may be granted at any time, so nothing here gives up (FAULTS B58).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.schemas.errors import LogError
from headrace.streams.log import Log, TopicSpec
from headrace.streams.replies import Replies
from headrace.streams.watch import StatusWatch

START_POLL_S = 0.02
"""How often `Listening.wait_started` looks, seconds."""


async def ensure_if_allowed(log: Log, topics: Sequence[TopicSpec]) -> Sequence[str]:
    """Create topics as `Log.ensure` does, but go on where all that is refused may be there already.

    A topic that we may neither look at nor create is somebody else's to create, and whoever reads it says so.

    Raises:
        LogError: As `Log.ensure`, where a topic is missing for certain.
    """
    try:
        return await log.ensure(topics)
    except LogError as error:
        if error.retriable:
            raise
        for topic in topics:
            try:
                count = await log.partitions(topic.name)
            except LogError:
                continue
            if count is None:
                raise
        return [error.detail]


class Listening:
    """See the module's docstring."""

    def __init__(self, watch: StatusWatch, replies: Replies) -> None:
        """Keep the parts; their loops belong to the gateway."""
        self._watch = watch
        self._replies = replies

    def is_complete(self) -> bool:
        """Whether the fleet is known, and our read position on the replies too."""
        return self._watch.caught_up.is_set() and self._replies.listening.is_set()

    def errors(self) -> list[LogError]:
        """Return what keeps us from it now."""
        found = (self._watch.trouble, self._replies.trouble)
        return [error for error in found if error is not None]

    async def wait_started(self) -> None:
        """Wait until it is complete, or cannot be before an operator has done something."""
        # Each part has an event for what goes well, none has one for what does not.
        while not self.is_complete() and all(error.retriable for error in self.errors()):  # noqa: ASYNC110  # so
            await asyncio.sleep(START_POLL_S)
