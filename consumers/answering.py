"""Turns outcomes into answers: encodes responses and errors, addresses them, counts them (DESIGN §5, step 5).

Results of a partition's old epoch are dropped here (DELIVERY P-7): whoever owns it now answers them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from headrace.consumers.batcher import Refusal
from headrace.consumers.bounded_answers import bound_answer, bounded
from headrace.consumers.dead_letters import dead_entries, dead_letter
from headrace.consumers.emitting import Unacknowledged
from headrace.consumers.encoding import (
    Answer,
    Encoded,
    encode_execution,
    holds_the_loop,
)
from headrace.consumers.execution import Execution
from headrace.consumers.keyed import Keyed
from headrace.consumers.outgoing import Outgoing
from headrace.consumers.partition import Partition, records_of
from headrace.consumers.placement import Placement
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.sequence_keys import Repeat
from headrace.consumers.settings import Clock
from headrace.consumers.settle import Settler
from headrace.consumers.version import Version
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import BackendError, InferError, Reason
from headrace.schemas.record import TP, Headers, Out
from headrace.schemas.snapshot import Stored

logger = logging.getLogger(__name__)

NOTHING = Encoded([], [], 0)

ErrorEncoder: TypeAlias = Callable[[Entry, InferError, str, str], tuple[bytes, Headers]]
"""Entry, error, model name, model version → value and headers."""


class Answering:
    """Answers of one model; implements `headrace.consumers.scheduler.Outcomes`.

    Attributes:
        versions: Version number → what serves it.
        partitions: Those that are ours.
        unacknowledged: Responses that left while their execution went on.
        records: Answers of sequences are remembered with their state (P-16).
        replies: Topic of answers that follow the commit of their records (P-13); ``""`` where none do.
        keyed: What becomes of answers to requests with an idempotency key; None where they are refused (P-17).
    """

    def __init__(
        self,
        model_name: str,
        *,
        placement: Placement,
        encode_error: ErrorEncoder,
        dead_letters: tuple[str, int],
        max_record_bytes: int,
        max_inline_bytes: int = 1024 * 1024,
        clock: Clock,
        count_refused: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        """Keep the parts; versions are added by whoever loads them.

        Args:
            model_name: Which model.
            placement: Where answers go.
            encode_error: Writes error answers.
            dead_letters: Topic and partition count of dead letters.
            max_record_bytes: Largest record that the log publishes, key and headers included.
            max_inline_bytes: A batch whose answers take as long to write as this many bytes of JSON to read is
                encoded in a thread (`WorkerSettings.max_inline_bytes`, FAULTS B2).
            clock: Time.
            count_refused: Told of each request that is answered with an error without running.
        """
        self.versions: dict[int, Version] = {}
        self._model_name = model_name
        self._placement = placement
        self._encode_error = encode_error
        self._dead_letters = dead_letters
        self._max_bytes = max_record_bytes
        self._max_inline_bytes = max_inline_bytes
        self._clock = clock
        self._count_refused = count_refused
        self.partitions: Mapping[TP, Partition] = {}
        self.unacknowledged = Unacknowledged()
        self._settler: Settler | None = None
        self._room_made: Callable[[], None] = lambda: None
        self._failed: Callable[[BaseException], None] = lambda _: None
        self.records = False
        self.replies = ""
        self.keyed: Keyed | None = None

    def attach(
        self,
        partitions: Mapping[TP, Partition],
        settler: Settler,
        room_made: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Bring the parts of a new membership.

        Args:
            partitions: Those that are ours.
            settler: Publishes.
            room_made: Called when a batch has left the queue.
            failed: Called when a scheduler failed.
        """
        self.partitions = partitions
        self._settler = settler
        self._room_made = room_made
        self._failed = failed

    def healthy(self) -> bool:
        """Whether every instance of every version can execute."""
        return all(version.pool.healthy() for version in self.versions.values())

    def trouble(self) -> str:
        """Return why some instance cannot execute, ``""`` if all can."""
        return next((v.pool.trouble() for v in self.versions.values() if not v.pool.healthy()), "")

    def idle(self) -> bool:
        """Whether nothing is queued, nothing runs and nothing is being encoded, in any version."""
        return all(v.scheduler.idle and v.encoding.idle for v in self.versions.values())

    def at_rest(self) -> bool:
        """Whether nothing runs and nothing is being encoded, whatever is queued."""
        return all(v.scheduler.executing == 0 and v.encoding.idle for v in self.versions.values())

    def close(self) -> None:
        """Leave what is still being encoded; nobody publishes it any more."""
        for version in self.versions.values():
            version.encoding.close()
            version.scheduler.close()

    def offer(self, number: int, entries: Sequence[Entry]) -> Sequence[Refusal]:
        """Queue entries for a version; returns those that its queue has no room for."""
        version = self.versions[number]
        refusals = version.scheduler.offer(entries)
        if version.ordering is not None:
            refused = {id(refusal.entry) for refusal in refusals}
            version.ordering.admit([entry for entry in entries if id(entry) not in refused])
        return refusals

    def in_one_line(self) -> None:
        """Let all versions' answers leave through one line: a sequence may begin anew on another version (P-18)."""
        first, *others = self.versions.values()
        for version in others:
            version.encoding, version.ordering = first.encoding, first.ordering

    def offer_steps(self, number: int, entries: Sequence[Entry]) -> None:
        """Queue steps of sequences for a version; those that are refused at once are answered."""
        version = self.versions[number]
        if version.ordering is not None:
            version.ordering.admit(
                entries
            )  # also those that are refused: their errors leave in their turn
        refusals = version.scheduler.offer(entries)
        if refusals:
            self.refused(version.scheduler, refusals)

    def refuse_steps(self, refusals: Sequence[Refusal]) -> None:
        """Answer records of no live sequence; those of an ended one behind its own answers, which may be on their way.

        Else a crash in between would leave a marker that covers an answer which nobody gave (P-3).
        """
        version = next(iter(self.versions.values()))
        ended = [refusal for refusal in refusals if refusal.entry.sequence is not None]
        others = [refusal for refusal in refusals if refusal.entry.sequence is None]
        if others:
            self.refuse(others, dead_letters=dead_entries(others))
        if ended:
            if version.ordering is not None:
                version.ordering.admit([refusal.entry for refusal in ended])
            self._behind(version, partial(self._answer, version, ended))

    def drop(self, tp: TP) -> int:
        """Remove a partition's queued entries without answering; returns how many records they were."""
        return self._remove(tp, Scheduler.drop)

    def suspend(self, tp: TP) -> int:
        """Remove a partition's queued steps, as `drop` does, and keep its sequences."""
        return self._remove(tp, Scheduler.suspend)

    def _remove(self, tp: TP, remove: Callable[[Scheduler, TP], Sequence[Entry]]) -> int:
        count = 0
        for version in self.versions.values():
            dropped = remove(version.scheduler, tp)
            count += records_of(dropped)
            self._skip(version, dropped)
        return count

    def counted(self, there: Mapping[str, int]) -> bool:
        """Take the partition counts of the topics of answers as they are now; True if one is smaller than it was."""
        topic, before = self._dead_letters
        count = there.get(topic, 0)
        if count:  # a missing topic is made again as it was
            self._dead_letters = (topic, count)
        return self._placement.counted(there) or 0 < count < before

    def _backlog(self) -> bool:
        """Whether some version's queue is longer than what its instances execute."""
        return any(
            len(version.scheduler.batcher) > version.scheduler.executing
            for version in self.versions.values()
        )

    def executed(self, scheduler: Scheduler, batch: Batch, execution: Execution) -> None:
        """Answer a batch that ran, later where its answers are large."""
        version = self.versions[scheduler.version]
        encode = partial(
            encode_execution,
            version.encoder,
            execution,
            decoupled=version.decoupled,
            now_ns=self._clock.now_ns,
        )
        done = partial(self._encoded, scheduler, batch, execution)
        failed = partial(self.failed, scheduler)
        is_long = holds_the_loop(execution, self._max_inline_bytes)
        version.encoding.run(encode, done, failed, is_long=is_long)
        self._room_made()

    def _encoded(
        self, scheduler: Scheduler, batch: Batch, execution: Execution, encoded: Encoded
    ) -> None:
        version = self.versions[scheduler.version]
        answers, failures, _ = encoded
        version.observer.executed(batch, execution, encoded, self._clock.wall_ms())
        finished = [entry for entry in batch.entries if entry is not None]
        copies: list[tuple[Entry, Out]] = []
        for entry, error in failures:
            answers.append((entry, *self._error(entry, error, str(scheduler.version))))
            if isinstance(error, BackendError):
                # What the model failed on, after its last try; what a client sent wrong is its own.
                self._give_up(scheduler, entry, error)
                copies.append((entry, self._dead_letter(entry, error)))
        if version.ordering is None:
            self.publish(answers, finished, copies)
        else:
            by_entry: dict[Entry, list[Answer]] = {entry: [] for entry in finished}
            for answer in answers:
                by_entry[answer[0]].append(answer)
            self._release(version.ordering.done(finished, list(by_entry.values())))

    def refused(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Answer entries that left the queue without running; steps of sequences behind the answers before them."""
        version = self.versions[scheduler.version]
        answer = partial(self._refused, version, refusals)
        if all(refusal.entry.sequence is None for refusal in refusals):
            answer()
        else:
            self._behind(version, answer)

    def _behind(self, version: Version, answer: Callable[[], None]) -> None:
        """Answer behind what is being encoded."""
        if version.encoding.idle:
            answer()
        else:
            failed = partial(self.failed, version.scheduler)
            version.encoding.apart(lambda: NOTHING, lambda _: answer(), failed)

    def _refused(self, version: Version, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            if not isinstance(refusal.error, Repeat):
                version.observer.refused(refusal, self._clock.now_ns())
        self._answer(version, refusals)
        self._room_made()

    def _answer(self, version: Version, refusals: Sequence[Refusal]) -> None:
        """Answer with errors; steps of sequences in their turn where ``preserve_ordering`` holds answers back."""
        ordering = version.ordering
        if ordering is None or all(refusal.entry.sequence is None for refusal in refusals):
            self.refuse(refusals, dead_letters=dead_entries(refusals))
            return
        answers: list[list[Answer]] = []
        for entry, error in refusals:
            entry.error = error
            self._count(error)
            answers.append([(entry, *self._error(entry, error, entry.model_version))])
        self._release(ordering.done([refusal.entry for refusal in refusals], answers))

    def broken(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Answer entries that were tried for the last time: their instance died, or ran for too long (FAULTS B42)."""
        why = refusals[0].error.detail
        logger.error("%d requests of '%s' are given up: %s", len(refusals), self._model_name, why)
        for entry, error in refusals:
            self._give_up(scheduler, entry, error)
        self.refused(scheduler, refusals)

    def _give_up(self, scheduler: Scheduler, entry: Entry, error: InferError) -> None:
        """Let the record of a request that ran for the last time be kept as a dead letter, with the version."""
        entry.error, entry.dead_letter = error, True
        entry.model_version = str(scheduler.version)

    def failed(self, scheduler: Scheduler, exc: BaseException) -> None:
        """Pass on that the scheduler itself failed: a bug, after which nothing of it can be trusted (FAULTS B42)."""
        logger.error(
            "the scheduler of model '%s' version %d failed: %r",
            self._model_name,
            scheduler.version,
            exc,
        )
        self._failed(exc)

    def skipped(self, part: Partition) -> None:
        """Let a position be committed that moved without an answer: the records were finished before."""
        if self._settler is not None:
            self._settler.put(part, (), (), 0)
            self._settler.schedule(at_once=False)

    def refuse(self, refusals: Iterable[Refusal], *, dead_letters: Sequence[Entry] = ()) -> None:
        """Answer entries with their errors; ``dead_letters`` are copied to the dead-letter topic too."""
        answers: list[Answer] = []
        finished: list[Entry] = []
        errors: dict[int, InferError] = {}
        for entry, error in refusals:
            answers.append((entry, *self._error(entry, error, entry.model_version)))
            finished.append(entry)
            errors[id(entry)] = error
            self._count(error)
        copies = [(entry, self._dead_letter(entry, errors[id(entry)])) for entry in dead_letters]
        self.publish(answers, finished, copies)
        for version in self.versions.values():
            self._skip(version, finished)

    def _skip(self, version: Version, entries: Sequence[Entry]) -> None:
        """Let nobody wait for entries that were answered out of turn, or are not ours any more."""
        if version.ordering is not None and entries:
            self._release(version.ordering.skip(entries))

    def _release(self, released: Sequence[tuple[Entry, list[Answer]]]) -> None:
        answers = [answer for _, waiting in released for answer in waiting]
        copies = [
            (entry, self._dead_letter(entry, entry.error))
            for entry, _ in released
            if entry.dead_letter and entry.error is not None
        ]
        self.publish(answers, [entry for entry, _ in released], copies)

    def _count(self, error: InferError) -> None:
        if not isinstance(error, Repeat):
            self._count_refused(error.reason)

    def _error(self, entry: Entry, error: InferError, version: str) -> tuple[bytes, Headers]:
        if isinstance(error, Repeat):
            return b"", ()  # what it repeats is put in its place
        return self._encode_error(entry, error, self._model_name, version)

    def publish(
        self,
        answers: Sequence[Answer],
        finished: Sequence[Entry],
        copies: Sequence[tuple[Entry, Out]] = (),
    ) -> None:
        """Buffer answers per input partition, drop those of old epochs, and wake the settler.

        ``finished`` are answered with these, or were before; ``copies`` follow beside, such as dead letters.
        """
        settler = self._settler
        if settler is None:
            return  # between two memberships: whoever reads the records next answers them
        kept: Mapping[Entry, Stored] = {}
        if self.keyed is not None and self.keyed.keys.flying:
            fit = partial(bounded, max_bytes=self._max_bytes, encode=self._error)
            answers, finished, kept = self.keyed.ended(answers, finished, fit)
        outgoing = Outgoing(
            self.partitions,
            self._placement,
            max_bytes=self._max_bytes,
            bound=partial(bound_answer, max_bytes=self._max_bytes, encode=self._error),
            records=self.records,
            replies=self.replies,
        )
        outgoing.answer(answers)
        for entry, out in copies:
            outgoing.copy(entry, out)
        outgoing.finish(finished)
        if kept:
            outgoing.keep(kept)
        outgoing.put(settler)
        settler.schedule(at_once=self.idle(), awaited=outgoing.awaited, backlog=self._backlog())

    def _dead_letter(self, entry: Entry, error: InferError) -> Out:
        topic, partitions = self._dead_letters
        return dead_letter(
            entry,
            error,
            model_name=self._model_name,
            target=TP(topic, entry.tp.partition % partitions),
            max_record_bytes=self._max_bytes,
        )
