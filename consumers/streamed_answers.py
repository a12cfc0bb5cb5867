"""Lets the responses of a decoupled model leave while their execution goes on (at_least_once; SEMANTICS DC-01)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.consumers.answering import Answering
from headrace.consumers.emitting import Emitting, Parts
from headrace.consumers.encoding import Encoded, encode_emitted
from headrace.repository.models import LoadedVersion
from headrace.schemas.batch import Batch


class StreamedAnswers:
    """Of one model version. They leave through its one line of encoding, so that all answers keep their order."""

    def __init__(self, answering: Answering, number: int) -> None:
        """Answer through ``answering``, which has version ``number`` by the time that something executes."""
        self._answering = answering
        self._number = number

    def told(self, batch: Batch, parts: Parts, release: Callable[[], None]) -> None:
        """Encode and publish; see `headrace.consumers.emitting.Told`."""
        answering = self._answering
        version = answering.versions[self._number]
        version.encoding.run(
            partial(encode_emitted, version.encoder, batch, parts),
            partial(self._encoded, release),
            partial(answering.failed, version.scheduler),
            is_long=False,
        )

    def _encoded(self, release: Callable[[], None], encoded: Encoded) -> None:
        answering = self._answering
        answering.publish(encoded.answers, ())
        tps = {entry.tp for entry, _, _ in encoded.answers}
        parts = {part for tp in tps if (part := answering.partitions.get(tp)) is not None}
        answering.unacknowledged.add(parts, release)


def make_emitting(loaded: LoadedVersion, answering: Answering) -> Emitting | None:
    """Return how a version's executions tell what they emit; None for a model that is not decoupled.

    In exactly_once, and where ``preserve_ordering`` holds answers back, they keep it until they end.
    """
    if not loaded.config.decoupled:
        return None
    batching = loaded.config.dynamic_batching
    if answering.replies or (batching is not None and batching.preserve_ordering):
        return Emitting(None)
    return Emitting(StreamedAnswers(answering, loaded.version).told)
