"""Partitions whose records left intake's way: each has a line of what follows, and a task that works it off."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Generic, TypeVar

from headrace.consumers.partition import Partition
from headrace.schemas.record import TP

Item = TypeVar("Item")


class Lines(Generic[Item]):
    """The lines of one model's partitions, in one membership.

    While a partition has one, `Partition.decoding` counts it: nothing of it is polled that was not admitted.

    Attributes:
        failed: What ended a line that nothing should end, for intake to raise.
    """

    def __init__(self, partitions: Mapping[TP, Partition]) -> None:
        """Start without any; ``partitions`` are those that are ours."""
        self.failed: BaseException | None = None
        self._partitions = partitions
        self._line_ended: Callable[[], None] = lambda: None
        self._lines: dict[Partition, deque[Item]] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}

    def __contains__(self, part: Partition) -> bool:
        """Whether a partition has a line."""
        return part in self._lines

    def close(self) -> None:
        """Drop all lines: whoever owns the partitions next reads their records."""
        for task in self._tasks.values():
            task.cancel()

    def _begin(
        self, part: Partition, work: Callable[[deque[Item]], Coroutine[None, None, None]]
    ) -> deque[Item]:
        """Let a partition have a line, which ``work`` works off; returns it, empty."""
        line = self._lines[part] = deque()
        part.decoding += 1
        task = self._tasks[part] = asyncio.create_task(work(line))
        task.add_done_callback(lambda task: self._ended(part, task))
        return line

    def _ended(self, part: Partition, task: asyncio.Task[None]) -> None:
        del self._tasks[part]
        rest = self._lines.pop(part)
        if not task.cancelled():
            self.failed = self.failed or task.exception()
        if rest or task.cancelled():
            return  # what was not admitted was read all the same (`Partition.decoding`)
        part.decoding -= 1
        self._line_ended()

    def _is_ours(self, part: Partition) -> bool:
        return part.active and self._partitions.get(part.tp) is part
