"""Counts the answers of every accepted request: missing, duplicated and orphaned ones (DESIGN §1, principle 4).

The order of the steps keeps traffic that goes on from being mistaken for a fault. First what the group has committed,
then the requests, then the ends of the topics of answers: whatever was committed then has its answer before those ends.
Last the end of the requests again: an answer that names one above it names none. Topics are read once, requests
without an answer a second time for where theirs should lie and whether it may have been deleted, and answers again only
where some are repeated, to compare them.

Memory: a byte per offset of the requests' range (see `headrace.streams.audit_tally`), so that ten million requests take
ten megabytes; first answers that wait for their repeats up to ``max_compare_bytes``; examples up to ``max_examples`` of
a kind and model. The counts are exact whatever the bounds are.

What it takes for granted: no topic was made again within the range, no requests topic is compacted, and a range that is
given by timestamps finds them ascending, as they are on our own requests topics (P-15).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.audit_book import AuditBook, ModelBook
from headrace.streams.audit_compare import Comparison
from headrace.streams.audit_missing import find_missing
from headrace.streams.audit_offsets import Budget, Progress
from headrace.streams.audit_range import EVERYTHING, AuditRange, OnStep, Scan
from headrace.streams.audit_report import AuditReport
from headrace.streams.log import Log
from headrace.streams.topology import Topology

ProgressOf: TypeAlias = Callable[[str, Set[TP]], Awaitable[Mapping[TP, Progress]]]
"""Returns what a consumer group has finished of partitions; one that is not returned has nothing finished."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Bounds of an audit.

    Attributes:
        committed: Audit the read-committed view; False is everything that was ever written.
        max_examples: Examples of each kind and model.
        max_memory_bytes: What is kept per request: a byte per offset.
        max_compare_bytes: First answers that wait for their repeats.
        max_compare_rounds: Readings of the answers for comparing; what does not fit into them is not compared.
        max_reply_topics: Reply topics that are read, besides that of the gateways.
        stall_s: Seconds without progress after which reading is given up.
        skew_ms: By so much the clocks of workers and brokers may differ: an answer may be that much older than its
            request.
    """

    committed: bool = True
    max_examples: int = 10
    max_memory_bytes: int = 512 << 20
    max_compare_bytes: int = 128 << 20
    max_compare_rounds: int = 8
    max_reply_topics: int = 100
    stall_s: float = 30.0
    skew_ms: int = 60_000


class Auditor:
    """Audits models on a log."""

    def __init__(
        self,
        log: Log,
        topology: Topology,
        settings: AuditSettings = AuditSettings(),
        *,
        progress: ProgressOf | None = None,
        on_step: OnStep = lambda _step, _done, _total: None,
    ) -> None:
        """Keep the parts.

        Args:
            log: Entered already.
            topology: Names of topics, and which reply topics are allowed.
            settings: Bounds.
            progress: What groups have finished; None takes every request as finished, so that none is pending.
            on_step: Told of progress.
        """
        self._log = log
        self._topology = topology
        self._settings = settings
        self._progress_of = progress
        self._scan = Scan(log, settings.committed, settings.stall_s, on_step)
        self._partitions: Mapping[str, int] = {}
        self._notes: list[str] = []

    async def audit(
        self,
        models: Collection[str] = (),
        span: AuditRange = EVERYTHING,
    ) -> AuditReport:
        """Audit these models, or all that have topics.

        Raises:
            LogError: A topic is missing or cannot be read to its end, or a bound is too small.
        """
        self._notes = []
        self._partitions = await self._log.topics()
        names = sorted(set(models)) or self._all_models()
        book = AuditBook([self._model(name) for name in names], self._partitions)
        tps = self._audited(book, span)
        progress = await self._finished(book, tps)
        book.begin(await self._request_spans(tps, span), Budget(self._settings.max_memory_bytes))
        await self._read_requests(book)
        answers = await self._answer_spans(book, span)
        await self._read_answers(book, answers)
        for tally in book.tallies():
            tally.close(None if progress is None else progress.get(tally.tp, Progress()))
        await find_missing(
            self._scan,
            book,
            answers,
            partitions=self._partitions,
            replies=self._topology.replies,
            skew_ms=self._settings.skew_ms,
        )
        await self._compare(book, answers)
        reports = [model.report() for model in book.models.values()]
        return AuditReport(reports, self._settings.committed, book.foreign, tuple(self._notes))

    def _all_models(self) -> list[str]:
        """Return the models whose requests topic is there, by its usual name or a mapped one."""
        first, last = f"{self._topology.prefix}.", ".requests"
        own = {
            topic[len(first) : -len(last)]
            for topic in self._partitions
            if topic.startswith(first) and topic.endswith(last) and len(topic) > len(first + last)
        }
        mapped = self._topology.mapped
        own |= {name for name in mapped if self._topology.requests(name) in self._partitions}
        if not own:
            raise LogError(f"there is no topic {first}<model>{last} to audit", retriable=False)
        return sorted(own)

    def _model(self, name: str) -> ModelBook:
        requests, results = self._topology.requests(name), self._topology.results(name)
        for topic in (requests, results):
            if topic not in self._partitions:
                raise LogError(f"topic {topic} of model '{name}' does not exist", retriable=False)
        mapped = self._topology.mapped.get(name)
        return ModelBook(
            name,
            requests,
            results,
            self._settings.max_examples,
            skips_nulls=mapped is not None and mapped.skips_nulls,
        )

    def _audited(self, book: AuditBook, span: AuditRange) -> set[TP]:
        tps = {
            TP(model.requests, number)
            for model in book.models.values()
            for number in range(self._partitions[model.requests])
        }
        for tp in span.offsets:
            if tp not in tps:
                raise LogError(f"{tp.topic}/{tp.partition} does not exist", retriable=False)
        return set(span.offsets) or tps

    async def _finished(self, book: AuditBook, tps: Set[TP]) -> dict[TP, Progress] | None:
        if self._progress_of is None:
            return None
        found: dict[TP, Progress] = {}
        for model in book.models.values():
            own = {tp for tp in tps if tp.topic == model.requests}
            if own:
                found |= await self._progress_of(self._topology.group(model.model), own)
        return found

    async def _request_spans(self, tps: Set[TP], span: AuditRange) -> dict[TP, tuple[int, int]]:
        begin, end = await self._scan.beginnings(tps), await self._scan.ends(tps)
        spans = {tp: (begin[tp], end[tp]) for tp in sorted(tps)}
        if span.offsets:
            return {
                tp: (max(start, begin[tp]), end[tp] if stop is None else min(stop, end[tp]))
                for tp, (start, stop) in span.offsets.items()
            }
        if span.since_ms is not None:
            starts = await self._scan.at_timestamp(spans, span.since_ms)
            spans = {tp: (starts[tp], stop) for tp, (_, stop) in spans.items()}
        if span.until_ms is not None:
            stops = await self._scan.at_timestamp(spans, span.until_ms)
            spans = {tp: (start, stops[tp]) for tp, (start, _) in spans.items()}
        return spans

    async def _read_requests(self, book: AuditBook) -> None:
        tallies = {tally.tp: tally for tally in book.tallies()}
        spans = {tp: (tally.start, tally.end) for tp, tally in tallies.items()}
        await self._scan.read("requests", spans, book.add_requests)
        for tp, start in (await self._scan.beginnings(tallies)).items():
            if start > tallies[tp].start:
                tallies[tp].narrow(start)
                self._notes.append(
                    f"{tp.topic}/{tp.partition}: requests below {start} were deleted while they were audited"
                )

    async def _answer_spans(self, book: AuditBook, span: AuditRange) -> dict[TP, tuple[int, int]]:
        """Return what to read of each topic that may hold answers, and of the dead letters."""
        topics = {model.results for model in book.models.values()} | await self._reply_topics(book)
        topics |= {self._topology.replies, self._topology.dead_letters} & self._partitions.keys()
        tps = [
            TP(topic, n) for topic in sorted(topics) for n in range(self._partitions.get(topic, 0))
        ]
        begin, end = await self._scan.beginnings(tps), await self._scan.ends(tps)
        tallies = {tally.tp: tally for tally in book.tallies()}
        for tp, newest in (await self._scan.ends(tallies)).items():
            tallies[tp].newest = newest
        spans = {tp: (begin[tp], end[tp]) for tp in tps}
        if span.is_whole:
            return spans
        first_ms = min((t.first_ms for t in tallies.values() if t.first_ms is not None), default=0)
        starts = await self._scan.at_timestamp(spans, first_ms - self._settings.skew_ms)
        return {tp: (starts[tp], stop) for tp, (_, stop) in spans.items()}

    async def _reply_topics(self, book: AuditBook) -> set[str]:
        """Return the topics that requests named and that may be written to, as far as they exist."""
        names = {raw.decode(errors="replace") for raw in book.named}
        self._partitions = {**self._partitions, **await self._log.topics()}
        usable = sorted(
            name
            for name in names
            if name in self._partitions and self._topology.reply_allowed(name)
        )
        bound = self._settings.max_reply_topics
        if len(usable) > bound or book.is_crowded:
            self._notes.append(
                f"requests name more than {bound} reply topics, others are not read"
            )
        return set(usable[:bound])

    async def _read_answers(self, book: AuditBook, spans: Mapping[TP, tuple[int, int]]) -> None:
        letters = self._topology.dead_letters

        def take(tp: TP, records: Sequence[Record]) -> None:
            if tp.topic == letters:
                book.add_dead_letters(records)
            else:
                book.add_answers(tp, records)

        await self._scan.read("answers", spans, take)

    async def _compare(self, book: AuditBook, answers: Mapping[TP, tuple[int, int]]) -> None:
        """Compare repeated answers with the first ones, in as many readings as their values need."""
        letters = self._topology.dead_letters
        spans = {tp: span for tp, span in answers.items() if tp.topic != letters}
        for _ in range(self._settings.max_compare_rounds):
            if not any(tally.counts.duplicated_unknown for tally in book.tallies()):
                return
            comparison = Comparison(self._settings.max_compare_bytes)
            take = partial(book.compare, comparison)
            await self._scan.read("repeated answers", spans, take)
            comparison.close()
            if not comparison.deferred:
                return
