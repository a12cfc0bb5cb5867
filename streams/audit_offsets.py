"""What an audit keeps per offset, within a bound: pages that are made when something lies in them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from headrace.schemas.errors import LogError
from headrace.streams.log import Position
from numpy.typing import NDArray

SHIFT = 16
PAGE = 1 << SHIFT
"""Offsets of a page."""
MASK = PAGE - 1


class Budget:
    """Bounds what an audit keeps in memory.

    Attributes:
        used_bytes: What it keeps now.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start with everything left."""
        self._max_bytes = max_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Use so many bytes, or give them back where ``size`` is negative.

        Raises:
            LogError: There are not so many left.
        """
        self.used_bytes += size
        if self.used_bytes > self._max_bytes:
            raise LogError(
                f"the range to audit takes more than {self._max_bytes >> 20} MiB of memory, expected one with fewer "
                "requests: it takes a byte per offset",
                retriable=False,
            )


class OffsetBytes:
    """A byte per offset, 0 at first."""

    __slots__ = ("_budget", "pages")

    def __init__(self, budget: Budget) -> None:
        """Start without pages."""
        self._budget = budget
        self.pages: dict[int, bytearray] = {}

    def __getitem__(self, offset: int) -> int:
        """Return the byte of an offset."""
        page = self.pages.get(offset >> SHIFT)
        return 0 if page is None else page[offset & MASK]

    def __setitem__(self, offset: int, value: int) -> None:
        """Set the byte of an offset."""
        self.fill(offset, offset + 1, value)

    def fill(self, start: int, end: int, value: int) -> None:
        """Set the bytes from ``start`` to before ``end``."""
        while start < end:
            page = self.pages.get(start >> SHIFT)
            if page is None:
                self._budget.take(PAGE)
                page = self.pages[start >> SHIFT] = bytearray(PAGE)
            low = start & MASK
            count = min(PAGE - low, end - start)
            if count == 1:
                page[low] = value
            else:
                page[low : low + count] = bytes((value,)) * count
            start += count


class OffsetNumbers:
    """A number below 2^32 per offset, 0 at first."""

    __slots__ = ("_budget", "pages")

    def __init__(self, budget: Budget) -> None:
        """Start without pages."""
        self._budget = budget
        self.pages: dict[int, NDArray[np.uint32]] = {}

    def __getitem__(self, offset: int) -> int:
        """Return the number of an offset."""
        page = self.pages.get(offset >> SHIFT)
        return 0 if page is None else int(page[offset & MASK])

    def __setitem__(self, offset: int, value: int) -> None:
        """Set the number of an offset."""
        page = self.pages.get(offset >> SHIFT)
        if page is None:
            self._budget.take(4 * PAGE)
            page = self.pages[offset >> SHIFT] = np.zeros(PAGE, np.uint32)
        page[offset & MASK] = value


@dataclass(frozen=True, slots=True)
class Progress:
    """What a consumer group has finished of a partition (DELIVERY P-1).

    Attributes:
        offset: Everything below it.
        finished: Runs above it, start inclusive and end exclusive, ascending.
    """

    offset: int = 0
    finished: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, position: Position | None, decode: Callable[[str], Sequence[int] | None]
    ) -> Progress:
        """Read a committed position.

        Args:
            position: None where nothing was committed yet.
            decode: Reads its metadata into unfinished and finished stretches in turn; None if they are not ours. Then
                nothing above the offset counts as finished.
        """
        if position is None:
            return cls()
        lengths, at, runs = decode(position.metadata) or (), position.offset, []
        for index in range(0, len(lengths) - 1, 2):
            start = at + lengths[index]
            at = start + lengths[index + 1]
            runs.append((start, at))
        return cls(position.offset, tuple(runs))

    def covers(self, offset: int) -> bool:
        """Say whether a request is finished."""
        run = bisect_right(self.finished, offset, key=lambda one: one[0]) - 1
        return offset < self.offset or (run >= 0 and offset < self.finished[run][1])

    def mask(self, base: int) -> NDArray[np.bool_]:
        """Return which offsets of the page that begins at ``base`` are finished."""
        mask = np.zeros(PAGE, np.bool_)
        for start, end in ((0, self.offset), *self.finished):
            if end > base:
                mask[max(start - base, 0) : end - base] = True
        return mask
