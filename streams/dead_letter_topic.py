"""Reads the dead-letter topic: which letters it holds, what became of them, and each one's original bytes.

Read from beginning to end, without a group, in the committed view. What is found of a letter is a row without its
bytes: the topic may hold many large ones. Rows are bounded by `MAX_MATCHES`, and every wait by `STALL_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Self

from headrace.schemas.dead_letter import (
    DeadLetter,
    Redrive,
    RedriveState,
    read_dead_letter,
    read_mark,
)
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.log import EARLIEST, LATEST, Block, Log, Reader, Span

DEFAULT_LIMIT = 100
"""Letters that are listed, unless asked for otherwise."""

MAX_LIMIT = 10_000
"""Letters that are listed or redriven by one command at most."""

MAX_MATCHES = 50_000
"""Letters that may match a selection: about 100 MB of rows; whoever has more narrows it."""

POLL_RECORDS = 100
"""Records of one poll: with Kafka's default of 1 MiB each, at most 100 MiB at a time."""

POLL_S = 0.5
"""Seconds that a poll waits for records; only how often an idle loop turns."""

STALL_S = 20.0
"""Seconds without progress after which reading is given up."""


class LetterId(NamedTuple):
    """Where a letter lies in the dead-letter topic, spelled ``partition/offset``."""

    partition: int
    offset: int

    def __str__(self) -> str:
        """Return it as it is typed and printed."""
        return f"{self.partition}/{self.offset}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Read one.

        Raises:
            ValueError: It is no ``partition/offset``.
        """
        partition, _, offset = text.partition("/")
        for number in (partition, offset):
            if not (number.isascii() and number.isdigit() and len(number) < 20):
                raise ValueError(
                    f"{text[:60]!r} is no dead letter's id, expected partition/offset such as 0/42"
                )
        return cls(int(partition), int(offset))


class LetterState(StrEnum):
    """What became of a letter."""

    PENDING = "pending"
    IN_DOUBT = "in-doubt"
    REDRIVEN = "redriven"


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter without its bytes.

    Attributes:
        id: Where it lies.
        written_ms: When it was written there, ms since the epoch.
        letter: Without key, value and headers.
        key_bytes: Length of the original key; None is a null key.
        value_bytes: Length of the original value as it was, also where it is not kept; None is a null value.
        header_count: Of the original.
        request_bytes: Upper bound of the original's size as a record.
        deadline_ms: The original's own deadline, ms since the epoch; 0 is none.
        redrive: The last mark that was left at it, None without one.
    """

    id: LetterId
    written_ms: int
    letter: DeadLetter
    key_bytes: int | None
    value_bytes: int | None
    header_count: int
    request_bytes: int
    deadline_ms: int
    redrive: Redrive | None = None

    @property
    def state(self) -> LetterState:
        """What became of it."""
        if self.redrive is None:
            return LetterState.PENDING
        sent = self.redrive.state is RedriveState.SENT
        return LetterState.REDRIVEN if sent else LetterState.IN_DOUBT

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        letter = self.letter
        return {
            "id": str(self.id),
            "state": self.state.value,
            "written_ms": self.written_ms,
            "source": f"{letter.source.topic}/{letter.source.partition}/{letter.offset}",
            "timestamp_ms": letter.timestamp_ms,
            "model": letter.model,
            "version": letter.version,
            "status": letter.status,
            "reason": letter.reason,
            "class": letter.error_class,
            "detail": letter.detail,
            "attempts": letter.attempts,
            "redriven_attempt": None if self.redrive is None else self.redrive.attempt,
            "key_bytes": self.key_bytes,
            "value_bytes": self.value_bytes,
            "headers": self.header_count,
            "is_whole": letter.is_whole,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters; an empty set is all.

    Attributes:
        ids: These.
        models: Of these models.
        reasons: With these reason words.
        partitions: Whose requests were in these partitions of their topics.
        since_ms: Written at or after, ms since the epoch.
        until_ms: Written before; None is for ever.
        states: Of which this became; of a letter's later marks the last one counts.
    """

    ids: frozenset[LetterId] = frozenset()
    models: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    partitions: frozenset[int] = frozenset()
    since_ms: int = 0
    until_ms: int | None = None
    states: frozenset[LetterState] = frozenset()

    def admits(self, row: LetterRow) -> bool:
        """Whether a letter is one of these, whatever became of it."""
        letter = row.letter
        return (
            (not self.ids or row.id in self.ids)
            and (not self.models or letter.model in self.models)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.partitions or letter.source.partition in self.partitions)
            and row.written_ms >= self.since_ms
            and (self.until_ms is None or row.written_ms < self.until_ms)
        )


@dataclass(slots=True)
class Found:
    """What the topic holds.

    Attributes:
        rows: The selected letters, partition by partition in the order of their offsets.
        others: Records that are neither letters nor marks: somebody else's.
    """

    rows: list[LetterRow] = field(default_factory=list)
    others: int = 0

    def newest(self, limit: int) -> list[LetterRow]:
        """Return so many of the latest written, those first."""
        return sorted(self.rows, key=lambda row: (-row.written_ms, row.id))[:limit]

    def oldest(self, limit: int) -> list[LetterRow]:
        """Return so many of the first written, in the order of their partitions."""
        first = sorted(self.rows, key=lambda row: (row.written_ms, row.id))[:limit]
        return sorted(first, key=lambda row: row.id)


async def find_letters(
    log: Log, topic: str, selection: Selection, *, stall_s: float = STALL_S
) -> Found:
    """Read the topic, as much of it as matters, and return the letters of a selection.

    Raises:
        LogError: The topic does not exist, reading fails or makes no progress, or more than `MAX_MATCHES` match.
    """
    count = await log.partitions(topic)
    if count is None:
        raise LogError(f"topic {topic} does not exist: no worker has been here", retriable=False)
    rows: dict[LetterId, LetterRow] = {}
    found = Found()
    starts = dict.fromkeys(range(count), EARLIEST)
    if selection.ids:  # marks lie behind their letters, so what is before them says nothing
        starts = {
            number: min(one.offset for one in selection.ids if one.partition == number)
            for number in {one.partition for one in selection.ids}
            if number < count
        }
    spans = {TP(topic, number): Span(start, LATEST) for number, start in starts.items()}
    if not spans:
        return found
    async with log.reader(spans, committed=True) as reader:
        async for block in read_blocks(reader, topic, stall_s):
            for record in block.records:
                _take(record, selection, rows, found)
            if len(rows) > MAX_MATCHES:
                raise LogError(
                    f"more than {MAX_MATCHES} dead letters in topic {topic} match, expected fewer: "
                    "narrow the selection",
                    retriable=False,
                )
    states = selection.states
    found.rows = sorted(
        (row for row in rows.values() if not states or row.state in states),
        key=lambda row: row.id,
    )
    return found


def _take(
    record: Record, selection: Selection, rows: dict[LetterId, LetterRow], found: Found
) -> None:
    """Note a record: a letter that is selected, or what became of one; a mark lies behind its letter."""
    try:
        mark = read_mark(record)
        if mark is not None:
            marked = LetterId(record.partition, mark.offset)
            if marked in rows:
                rows[marked] = replace(rows[marked], redrive=mark)
            return
        row = row_of(record)
    except ValueError:
        found.others += 1
        return
    if selection.admits(row):
        rows[row.id] = row


def row_of(record: Record) -> LetterRow:
    """Return the row of a record of the dead-letter topic.

    Raises:
        ValueError: It is no dead letter.
    """
    letter = read_dead_letter(record)
    key, value = letter.key, letter.value
    return LetterRow(
        LetterId(record.partition, record.offset),
        record.timestamp,
        replace(letter, key=None, value=None, headers=()),
        None
        if key is None and not letter.omitted_key_bytes
        else len(key or b"") + letter.omitted_key_bytes,
        None if value is None else len(value) + letter.omitted_bytes,
        len(letter.headers) + letter.omitted_headers,
        letter.request_bytes,
        letter.deadline_ms,
    )


async def read_letters(
    log: Log, topic: str, ids: Iterable[LetterId], *, stall_s: float = STALL_S
) -> AsyncIterator[tuple[LetterId, DeadLetter]]:
    """Yield these letters whole, each partition's in order; those that are not there any more are passed over.

    Raises:
        LogError: The topic does not exist, or reading fails or makes no progress.
    """
    wanted = frozenset(ids)
    spans = await _spans(log, topic, wanted)
    if not spans:
        return
    async with log.reader(spans, committed=True) as reader:
        async for block in read_blocks(reader, topic, stall_s):
            for record in block.records:
                found = LetterId(record.partition, record.offset)
                if found not in wanted:
                    continue
                try:
                    letter = read_dead_letter(record)
                except ValueError:
                    continue
                yield found, letter


async def _spans(log: Log, topic: str, wanted: Iterable[LetterId]) -> Mapping[TP, Span]:
    """Return what is to be read: nothing behind the partitions' ends, where a reader would wait for ever."""
    count = await log.partitions(topic)
    if count is None:
        raise LogError(f"topic {topic} does not exist: no worker has been here", retriable=False)
    offsets: dict[TP, list[int]] = {}
    for found in wanted:
        if found.partition < count:
            offsets.setdefault(TP(topic, found.partition), []).append(found.offset)
    if not offsets:
        return {}
    async with log.reader({tp: Span(LATEST) for tp in offsets}, committed=True) as probe:
        ends = probe.positions()
    return {
        tp: Span(min(found), min(max(found) + 1, ends[tp]))
        for tp, found in offsets.items()
        if min(found) < ends[tp]
    }


async def read_blocks(reader: Reader, topic: str, stall_s: float) -> AsyncIterator[Block]:
    """Yield what an open reader hands out, until its spans are read; `LogError` naming the topic without progress."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    at: Mapping[TP, int] = {}
    while not reader.done():
        blocks: Sequence[Block] = await reader.poll(POLL_RECORDS, POLL_S)
        for block in blocks:
            yield block
        if blocks or reader.positions() != at:
            since, at = loop.time(), dict(reader.positions())
        elif loop.time() - since > stall_s:
            raise LogError(
                f"reading topic {topic} made no progress for {stall_s:g} s", retriable=True
            )
