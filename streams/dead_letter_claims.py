"""Which of several redrives of the same letters sends each: the one whose mark came first.

A redrive marks a letter before it sends it, in the letter's own partition, so all of them see their marks in one order.
Those of one try have the same attempt: whoever planned it from an earlier state has a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.schemas.dead_letter import RedriveState, read_mark
from headrace.schemas.record import TP, Record
from headrace.streams.dead_letter_topic import STALL_S, LetterId, read_blocks
from headrace.streams.log import LATEST, Log, Span


class RedriveClaims:
    """The marks of one try at some letters, read as far as they are needed."""

    def __init__(self, log: Log, topic: str, run: str, attempts: Mapping[LetterId, int]) -> None:
        """Look at nothing yet.

        Args:
            log: Entered already.
            topic: The dead-letter topic.
            run: Names this redrive in its marks.
            attempts: Letter → that its request will be marked with.
        """
        self._log = log
        self._topic = topic
        self._run = run
        self._attempts = attempts
        self._first: dict[LetterId, str] = {}
        self._sent: set[LetterId] = set()
        self._at: dict[TP, int] = {}
        for found in sorted(attempts, reverse=True):
            self._at[TP(topic, found.partition)] = found.offset + 1

    async def look(self) -> None:
        """Read the marks up to now.

        Raises:
            LogError: Reading failed, or made no progress.
        """
        # Marks are in no transaction, and must be seen before somebody else's ends.
        spans = {tp: Span(at, LATEST) for tp, at in self._at.items()}
        async with self._log.reader(spans) as reader:
            async for block in read_blocks(reader, self._topic, STALL_S):
                for record in block.records:
                    self._take(record)
            self._at = dict(reader.positions())

    def _take(self, record: Record) -> None:
        try:
            mark = read_mark(record)
        except ValueError:
            return
        if mark is None:
            return
        found = LetterId(record.partition, mark.offset)
        if self._attempts.get(found) != mark.attempt:
            return
        if mark.state is RedriveState.BEGUN:
            self._first.setdefault(found, mark.run)
        else:
            self._sent.add(found)

    def is_ours(self, found: LetterId) -> bool:
        """Whether this redrive is to send a letter: its mark came first."""
        return self._first.get(found) == self._run

    def is_sent(self, found: LetterId) -> bool:
        """Whether another one has sent it already."""
        return found in self._sent
