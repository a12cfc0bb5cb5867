"""What becomes of the records that a model's intake has read: the worker's answer to `headrace.consumers.intake`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.consumers.answering import Answering
from headrace.consumers.assignment import Assignment
from headrace.consumers.batcher import Refusal
from headrace.consumers.model_sequences import ModelSequences
from headrace.consumers.partition import Partition
from headrace.consumers.remembered_answers import RememberedAnswers, refuse_keyed
from headrace.consumers.replays import replayed
from headrace.schemas.batch import Entry
from headrace.schemas.idempotency import not_remembered
from headrace.schemas.requests import Decoded

logger = logging.getLogger(__name__)


class Parts(Protocol):
    """What is needed of a `headrace.consumers.worker.ModelWorker`: its parts as they are now."""

    @property
    def model_name(self) -> str:
        """Which model."""

    @property
    def answering(self) -> Answering:
        """Its versions, and who answers."""

    @property
    def assignment(self) -> Assignment:
        """Its partitions."""

    @property
    def sequences(self) -> ModelSequences | None:
        """Its sequences."""

    @property
    def remembered(self) -> RememberedAnswers | None:
        """Its remembered answers."""


class Admitting:
    """A `headrace.consumers.admission.Admission`."""

    def __init__(self, worker: Parts) -> None:
        """Keep whose parts they are."""
        self._worker = worker

    def offer(self, version: int, entries: Sequence[Entry]) -> Sequence[Refusal]:
        """Queue entries for a version."""
        return self._worker.answering.offer(version, entries)

    def refuse(self, refusals: Iterable[Refusal], *, dead_letters: Sequence[Entry] = ()) -> None:
        """Answer entries with their errors."""
        self._worker.answering.refuse(refusals, dead_letters=dead_letters)

    def fail(self, part: Partition, decoded: Decoded) -> None:
        """Answer failures; the one of a request that ended its workers is remembered under its key (P-14, P-17).

        Else whoever repeats it would end as many again.
        """
        failures = decoded.failures
        keyed = set(decoded.keyed) & {failure.entry for failure in failures}
        if keyed:
            asked = [failure.entry for failure in failures if failure.entry in keyed]
            leading = set(self.screen(part, 0, asked))
            failures = [f for f in failures if f.entry not in keyed or f.entry in leading]
        self.refuse(
            [Refusal(failure.entry, failure.error) for failure in failures],
            dead_letters=[failure.entry for failure in failures if failure.dead_letter],
        )

    def screen(self, part: Partition, version: int, entries: Sequence[Entry]) -> list[Entry]:
        """Answer repeats with what is remembered, or let them follow; returns the others."""
        if self._worker.remembered is None:
            found = refuse_keyed(self._worker.model_name, entries)
        else:
            found = self._worker.remembered.screen(part, version, entries)
        if found.refusals:
            self.refuse(found.refusals)
        if found.replays or found.closed:
            answers = [answer for entry, kept in found.replays for answer in replayed(entry, kept)]
            finished = [*[entry for entry, _ in found.replays], *found.closed]
            self._worker.answering.publish(answers, finished)
        return found.queue

    def screen_steps(self, part: Partition, keyed: Sequence[Entry]) -> None:
        """Let repeats be answered in their turn, without a step of their sequence."""
        keeper = self._worker.sequences
        assert keeper is not None
        if keeper.keyed is not None:
            keeper.keyed.screen(part.tp, keyed)
            return
        for entry in keyed:
            error = not_remembered(self._worker.model_name, entry.idempotency_key)
            entry.error = entry.error or error

    def route(self, part: Partition, entries: Sequence[Entry]) -> None:
        """Queue steps of sequences where their sequence runs; those that have none to wait for are answered."""
        assert self._worker.sequences is not None
        routed = self._worker.sequences.route(part, entries)
        if routed.refusals:
            self._worker.answering.refuse_steps(routed.refusals)
        for number, steps in routed.by_version.items():
            self._worker.answering.offer_steps(number, steps)

    def passed_over(self, entries: Sequence[Entry]) -> None:
        """Finish records without an answer."""
        self._worker.answering.publish((), entries)

    def skipped(self, part: Partition) -> None:
        """Let a position be committed that moved without an answer."""
        self._worker.answering.skipped(part)

    def went_back(self, part: Partition, offset: int) -> None:
        """Take a partition over again whose log hands out an offset that we are past: it was made again or cut."""
        logger.warning(
            "%s/%d went back from offset %d to %d; its position is read again",
            *part.tp,
            part.ledger.next_offset,
            offset,
        )
        self._worker.assignment.again(part)
