"""Sends dead letters again as the requests that they were, to the partition that they came from.

Each batch of letters goes in three acknowledged steps: a mark per letter that its redrive has begun, the requests, and
a mark per letter that they were sent. The marks are records of the dead-letter topic itself, behind their letters in
the same partition, so that no other topic is needed and retention never takes a mark before its letter. Whoever is
killed in between leaves letters *in doubt*: sent or not, and never silently sent twice. Of two redrives of the same
letters at the same time, the one whose first mark comes first sends a letter (`headrace.streams.dead_letter_claims`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.schemas.dead_letter import (
    DeadLetter,
    Redrive,
    RedriveState,
    redriven,
    write_mark,
)
from headrace.schemas.record import ATTEMPT, TP, Out
from headrace.streams.dead_letter_claims import RedriveClaims
from headrace.streams.dead_letter_topic import LetterRow, LetterState, read_letters
from headrace.streams.log import Log, Publisher

logger = logging.getLogger(__name__)

BATCH_LETTERS = 100
"""Letters that are sent together, and at most so many are in doubt after a crash."""

BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of the requests that are sent together; a single larger one is sent alone."""

ATTEMPT_ROOM_BYTES = len(ATTEMPT) + 32
"""What the header of the attempt adds to a request."""


@dataclass(frozen=True, slots=True)
class Options:
    """How letters are redriven.

    Attributes:
        again: Also those that were redriven, or may have been.
        without_deadline: Leave out a request's own deadline.
        now_ms: Time, ms since the epoch: deadlines before it have passed.
        max_record_bytes: Largest record that the log publishes.
    """

    again: bool
    without_deadline: bool
    now_ms: int
    max_record_bytes: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What becomes of a letter.

    Attributes:
        row: The letter.
        attempt: That its request will be marked with.
        refusal: Why it is not sent; ``""`` where it is.
    """

    row: LetterRow
    attempt: int
    refusal: str = ""

    @property
    def target(self) -> TP:
        """Where it goes."""
        return self.row.letter.source

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {
            "id": str(self.row.id),
            "topic": self.target.topic,
            "partition": self.target.partition,
            "attempt": self.attempt,
            "refusal": self.refusal or None,
        }


def plan(rows: Sequence[LetterRow], topics: Mapping[str, int], options: Options) -> list[Planned]:
    """Say of each letter whether it will be sent, and if not, why. Pure.

    Args:
        rows: In the order in which they are to be sent.
        topics: Partition counts of the topics that exist.
        options: How.
    """
    return [Planned(row, _attempt(row), _refusal(row, topics, options)) for row in rows]


def _attempt(row: LetterRow) -> int:
    return (row.letter.attempts if row.redrive is None else row.redrive.attempt) + 1


def _refusal(row: LetterRow, topics: Mapping[str, int], options: Options) -> str:
    letter = row.letter
    topic, partition = letter.source
    count = topics.get(topic)
    limit = options.max_record_bytes - ATTEMPT_ROOM_BYTES
    late_ms = options.now_ms - row.deadline_ms if row.deadline_ms else 0
    reasons = (
        (
            row.state is LetterState.REDRIVEN and not options.again,
            "it was redriven already, expected --again to send it once more",
        ),
        (
            row.state is LetterState.IN_DOUBT and not options.again,
            "a redrive that did not end may have sent it, expected --again to send it anyway",
        ),
        (
            not letter.is_whole,
            (
                "it is not kept whole, expected its original: "
                f"{topic}/{partition}/{letter.offset}, if that is still there"
            ),
        ),
        (
            count is None,
            f"topic {topic} does not exist, expected the topic that it came from",
        ),
        (
            count is not None and partition >= count,
            f"topic {topic} has {count} partitions, expected partition {partition} that it came from",
        ),
        (
            row.key_bytes is None and row.value_bytes is None,
            "it has neither key nor value, expected one of them: no producer of ours writes such a record",
        ),
        (
            row.request_bytes > limit,
            f"its request has up to {row.request_bytes} bytes, expected at most {limit} (max.request.size)",
        ),
        (
            late_ms > 0 and not options.without_deadline,
            (
                f"its deadline-ms passed {late_ms / 1000:.0f} s ago and it would be answered deadline_passed, "
                "expected --drop-deadline"
            ),
        ),
    )
    return next((text for holds, text in reasons if holds), "")


async def redrive(
    log: Log,
    topic: str,
    planned: Sequence[Planned],
    options: Options,
    on_sent: Callable[[Sequence[Planned]], None],
) -> None:
    """Send what was planned and is not refused, in bounded batches, each partition's in the order of the letters.

    Args:
        log: Entered already.
        topic: The dead-letter topic.
        planned: By `plan`.
        options: Those that it was planned with.
        on_sent: Called with what was sent of each batch, once its requests and marks are acknowledged: the others are
            sent by another redrive.

    Raises:
        LogError: Reading or publishing failed. What `on_sent` was told of was sent; what else was in the batch at hand
            is in doubt, and the rest was not touched.
    """
    going = {one.row.id: one for one in planned if not one.refusal}
    batch: list[tuple[Planned, DeadLetter]] = []
    size = 0
    run = secrets.token_hex(8)
    claims = RedriveClaims(log, topic, run, {found: one.attempt for found, one in going.items()})
    async with log.publisher() as publisher:

        async def flush() -> None:
            await publisher.publish(_marks(topic, batch, RedriveState.BEGUN, run))
            await claims.look()
            ours = [(one, letter) for one, letter in batch if claims.is_ours(one.row.id)]
            if ours:
                await _send(publisher, topic, ours, options, run)
            # Behind the other's last mark, our first one would say that it is in doubt.
            late = [(one, letter) for one, letter in batch if claims.is_sent(one.row.id)]
            if late:
                await publisher.publish(_marks(topic, late, RedriveState.SENT, run))
            if len(ours) < len(batch):
                logger.warning(
                    "another redrive has begun with %d dead letters before this one and sends them",
                    len(batch) - len(ours),
                )
            on_sent([one for one, _ in ours])

        async for found, letter in read_letters(log, topic, going):
            if batch and (
                len(batch) >= BATCH_LETTERS or size + letter.request_bytes > BATCH_BYTES
            ):
                await flush()
                batch, size = [], 0
            batch.append((going[found], letter))
            size += letter.request_bytes
        if batch:
            await flush()


async def _send(
    publisher: Publisher,
    topic: str,
    batch: Sequence[tuple[Planned, DeadLetter]],
    options: Options,
    run: str,
) -> None:
    await publisher.publish(
        [
            redriven(letter, one.attempt, without_deadline=options.without_deadline)
            for one, letter in batch
        ]
    )
    await publisher.publish(_marks(topic, batch, RedriveState.SENT, run))


def _marks(
    topic: str, batch: Sequence[tuple[Planned, DeadLetter]], state: RedriveState, run: str
) -> list[Out]:
    return [
        write_mark(
            TP(topic, one.row.id.partition), Redrive(one.row.id.offset, state, one.attempt, run)
        )
        for one, _ in batch
    ]
