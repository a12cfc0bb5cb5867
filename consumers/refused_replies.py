"""What becomes of answers for a reply topic that refuses them: a typed error on the results topic in their place.

A client may name a topic that the worker may look at and not write to, or one that goes away; and nothing of a settle
with an answer for it would ever be settled. Whether a topic takes records shows only when some are sent. Then what was
for it becomes errors that say why, and for a while its requests are refused before they run, as those that name a topic
which does not exist (`headrace.consumers.placement`).

At least once, an answer that becomes an error is one of a request that has run: a step of a sequence counts. In
exactly_once all of the transaction is undone and run again, without the refused ones.
"""

from __future__ import annotations

import logging
from collections.abc import Set

from headrace.consumers.placement import Placement
from headrace.schemas.answers import answer_instead
from headrace.schemas.errors import InvalidRequest, LogError, Reason
from headrace.schemas.headers import find_header
from headrace.schemas.record import SOURCE, Out

logger = logging.getLogger(__name__)


class RefusedReplies:
    """Decides for one model's answers."""

    def __init__(self, placement: Placement) -> None:
        """Keep where answers go."""
        self._placement = placement

    def note(self, exc: LogError) -> Set[str]:
        """Remember which reply topics have refused records; returns those that clients have named.

        Args:
            exc: Why something could not be published; its ``topics`` are what refused.
        """
        named = {topic for topic in exc.topics if self._placement.refuse(topic, exc.detail)}
        for topic in named:
            logger.warning("reply topic %s refuses answers: %s", topic, exc.detail)
        return named

    def redirect(self, out: Out) -> None:
        """Make an answer for a refused topic the error that says so, for the results topic."""
        source = find_header(out.headers, SOURCE) or b""
        _, partition, _ = source.decode().rsplit("/", 2)
        error = InvalidRequest(
            self._placement.why_not(out.topic), reason=Reason.REPLY_TOPIC_REFUSED
        )
        out.topic, out.partition = self._placement.results(int(partition))
        out.value, out.headers = answer_instead(out.headers, error)
