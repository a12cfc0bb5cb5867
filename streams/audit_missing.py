"""Looks at each finished request without an answer: where its answer should lie, and whether it may have been there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from headrace.schemas.headers import find_header
from headrace.schemas.record import ID, TP, Record
from headrace.streams.audit_book import AuditBook, reply_address
from headrace.streams.audit_range import Scan
from headrace.streams.audit_report import Kind

MAX_SHOWN_CHARS = 200
"""Of a word that a client chose."""


async def find_missing(
    scan: Scan,
    book: AuditBook,
    answers: Mapping[TP, tuple[int, int]],
    *,
    partitions: Mapping[str, int],
    replies: str,
    skew_ms: int,
) -> None:
    """Count each finished request without an answer as missing, as a missing reply, or as unknown.

    Args:
        scan: Reads the requests again, from the first without an answer to the last.
        book: With every answer entered.
        answers: What was read of each partition that may hold answers.
        partitions: Partition count of every topic.
        replies: Topic of the replies to gateways.
        skew_ms: By so much the timestamp of an answer may be before that of its request.
    """
    left = {t.tp: t.unaccounted_span for t in book.tallies() if t.unaccounted}
    if not left:
        return
    look = _Look(book, await _kept_since(scan, answers, skew_ms), partitions, replies)
    await scan.read("unanswered requests", left, look.take)
    for tally in book.tallies():
        tally.counts.unknown += tally.unaccounted  # deleted since they were read first
        tally.unaccounted = 0


class _Look:
    """Sorts unanswered requests."""

    def __init__(
        self,
        book: AuditBook,
        kept_ms: Mapping[TP, float],
        partitions: Mapping[str, int],
        replies: str,
    ) -> None:
        self._book = book
        self._kept_ms = kept_ms
        self._partitions = partitions
        self._replies = replies

    def take(self, tp: TP, records: Sequence[Record]) -> None:
        """Count those of a block that have no answer."""
        _, tally = self._book.book_of(tp)
        for record in records:
            if tally.is_unaccounted(record.offset):
                self._sort(tp, record)

    def _sort(self, tp: TP, record: Record) -> None:
        model, tally = self._book.book_of(tp)
        topic, partition = reply_address(record) or (model.results, -1)
        if partition >= self._partitions.get(topic, partition + 1):
            topic, partition = model.results, -1  # refused, and answered there
        if partition < 0:
            partition = tp.partition % max(self._partitions.get(topic, 0), 1)
        place = TP(topic, partition)
        shown = f"{topic[:MAX_SHOWN_CHARS]!r}/{partition}"
        kind = Kind.UNKNOWN
        if place not in self._kept_ms:
            detail = f"its answer was due in {shown}, which does not exist or is not allowed"
        elif record.timestamp <= self._kept_ms[place]:
            detail = f"the answers of its time have been deleted from {shown}"
        else:
            kind, detail = Kind.MISSING, f"{tally.explain(record.offset)} in {shown}"
        tally.unaccounted -= 1
        if kind is Kind.UNKNOWN:
            tally.counts.unknown += 1
        elif topic == self._replies:
            tally.counts.missing_replies += 1
        else:
            tally.counts.missing += 1
        source = f"{tp.topic}/{tp.partition}/{record.offset}"
        model.show(kind, source, detail=f"{detail}; {_told(record)}")


async def _kept_since(
    scan: Scan, answers: Mapping[TP, tuple[int, int]], skew_ms: int
) -> dict[TP, float]:
    """Return up to which time of a request its answer may have been deleted, ms since the epoch, of each partition."""
    begin = await scan.beginnings(answers)
    shortened = {tp: (begin[tp], end) for tp, (_, end) in answers.items() if begin[tp] > 0}
    first = await scan.first_records(shortened)
    kept = dict.fromkeys(answers, -math.inf)
    for tp in shortened:
        kept[tp] = first[tp].timestamp + skew_ms if tp in first else math.inf
    return kept


def _told(record: Record) -> str:
    """Return when a request came and what its caller calls it."""
    try:
        at = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(
            timespec="milliseconds"
        )
    except (OverflowError, ValueError, OSError):
        at = str(record.timestamp)
    name = find_header(record.headers, ID)
    told = f"it came at {at}"
    return f"{told} with id {name[:MAX_SHOWN_CHARS]!r}" if name else told
