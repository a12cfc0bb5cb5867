"""What of a partition is finished: the lowest unfinished offset and the finished ones above it. Pure.

Rules of this module (DELIVERY P-1):

1. The committed offset is the lowest unfinished one, from what was admitted and finished, never inferred.
   What is not in the log (transaction markers, compacted records) counts as finished once reading is past it.
2. The set F of finished offsets above it travels in the commit's metadata, so that a takeover runs none of
   them again. F always fits: admission stops before any order of finishing could make it too long.
3. F is kept as runs, so finishing a whole batch in order, or stepping over a hole of any length, is one step.

The metadata is text: ``h1`` (its version), then ``;key=value`` pairs in any order, of which unknown ones are
passed over. ``f`` is F: from the committed offset on, the lengths of unfinished and finished stretches in
turn, each in Elias' gamma code (as many zeros as the number has bits after its first, then the number in
binary), padded with zeros to whole bytes, in URL-safe base64 without ``=``. Small lengths take least: in
the worst order of finishing an offset costs 1.5 bits, a hole of a million 39 bits. An empty F is no metadata.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from headrace.consumers.attempts import Mark
from headrace.schemas.record import Record
from headrace.streams.log import Position

VERSION = "h1"

METADATA_BYTES = 4096
"""Kafka's own default of ``offset.metadata.max.bytes``."""

RESERVED_BYTES = 64
"""Left free of F in the metadata: the version tag and the pair of attempts (P-14)."""

MAX_SPAN = 10_000
"""Offsets between the lowest unfinished and the highest admitted one (FAULTS B20)."""

BLOCK_RECORDS = 2048
"""Most records that one `OffsetLedger.admit` brings: a poll's bound."""

_CELL_BITS = 2
"""Bits of F that an admitted offset can cost at most, see `_weight`."""

_HOLE_CELLS = 64
"""Cells that the longest hole can cost: it is met by reading on, behind `OffsetLedger.may_admit`'s answer."""


class OffsetLedger:
    """Progress of one partition under one epoch.

    Attributes:
        epoch: The epoch under which work is admitted; goes into each `Position`.
        reach: How far the next offset to read may be beyond the lowest unfinished one while `may_admit` holds.
    """

    def __init__(
        self,
        *,
        epoch: int = 0,
        max_span: int = MAX_SPAN,
        max_metadata_bytes: int = METADATA_BYTES,
        block_records: int = BLOCK_RECORDS,
    ) -> None:
        """Start without a position: `begin`, `restore` or the first `admit` sets it.

        Args:
            epoch: Our epoch of the assignment.
            max_span: Bound on the distance between the lowest unfinished and the highest admitted offset.
            max_metadata_bytes: The broker's ``offset.metadata.max.bytes``; narrows ``max_span`` if need be.
            block_records: Records that one `admit` may bring; `may_admit` keeps room for as many.
        """
        self.epoch = epoch
        # base64 carries 6 bits per character; up to 7 of the last ones pad to a whole byte.
        self._max_bits = max(0, (max_metadata_bytes - RESERVED_BYTES) * 6 - 8)
        self._block_records = block_records
        # A block may have a marker behind each of its records, and somewhere one long hole.
        room = self._max_bits // _CELL_BITS - 2 * block_records - _HOLE_CELLS
        self.reach = min(max_span - block_records, room)
        self._low = self._next = -1
        self._starts: list[
            int
        ] = []  # finished runs above the lowest unfinished offset: sorted, disjoint,
        self._ends: list[int] = []  # not touching; ends are exclusive
        self._holes: deque[tuple[int, int]] = (
            deque()
        )  # start and cells saved of long holes above it
        self._saved = 0
        self._position: Position | None = None
        self._mark: Mark | None = None

    def __repr__(self) -> str:
        """Show where it stands."""
        return f"OffsetLedger(low={self._low}, next={self._next}, {len(self._starts)} runs above)"

    @property
    def low(self) -> int:
        """The lowest unfinished offset, -1 before anything is known."""
        return self._low

    @property
    def next_offset(self) -> int:
        """The next offset to read, -1 before anything is known."""
        return self._next

    @property
    def mark(self) -> Mark | None:
        """What this owner says of attempts; None where it says nothing."""
        return self._mark if self._mark is not None and self._mark.is_in_force(self._low) else None

    def say(self, mark: Mark | None) -> None:
        """Let positions say this of attempts from now on; called again after each of its changes."""
        self._mark = mark
        self._position = None

    def begin(self, offset: int) -> None:
        """Start at an offset with nothing finished above it: nothing was committed yet."""
        self._low = self._next = offset
        self._starts.clear()
        self._ends.clear()
        self._holes.clear()
        self._saved = 0
        self._position = None

    def restore(self, position: Position) -> str:
        """Start again from a committed position, F included (takeover, seek-back); the epoch is kept.

        Returns:
            A sentence to warn with if the metadata is not ours or damaged, else ``""``: F is empty then, and
            records that were finished above the position may run once more.
        """
        self.begin(position.offset)
        lengths = decode_metadata(position.metadata)
        if lengths is None:
            return (
                f"commit metadata '{position.metadata[:40]}' at offset {position.offset} is not Headrace's, "
                f"expected '{VERSION};f=…': records above it that were finished may run again"
            )
        at = position.offset
        for index in range(0, len(lengths), 2):
            start = at + lengths[index]
            at = start + lengths[index + 1]
            self._starts.append(start)
            self._ends.append(at)
            self._note_hole(start, at)
        return ""

    def may_admit(self) -> bool:
        """Tell whether another block may be admitted; if not, its partition is to be paused (B20).

        Always true while nothing admitted is unfinished, so a restored F cannot stop the reading.
        """
        if self._low == self._next:
            return True
        known = max(self._next, self._ends[-1] - self._block_records if self._ends else 0)
        return known - self._low - self._saved <= self.reach

    def admit(self, records: Sequence[Record]) -> Sequence[Record]:
        """Take in records as they were read, in offset order, and return those that are to run.

        The others are in F: finished under an earlier owner, closed without running (P-1). A record that was
        admitted and is unfinished is returned again, so reading goes back only together with `restore`.
        """
        if not records:
            return records
        first, end = records[0].offset, records[-1].offset + 1
        if self._next < 0:
            self.begin(first)
        self.advance(first)
        if end - first != len(records):
            for one, other in pairwise(records):
                if one.offset + 1 != other.offset:
                    self._step_over(one.offset + 1, other.offset)
        fresh = records
        if first < self._low or (self._ends and first < self._ends[-1]):
            fresh = [record for record in records if not self.is_finished(record.offset)]
        if end > self._next:
            self._next = end
            self._settle()
        return fresh

    def advance(self, next_offset: int) -> None:
        """Note that reading is past every offset below this one: what was not admitted there does not exist."""
        if next_offset > self._next:
            self._step_over(self._next, next_offset)
            self._next = next_offset
            self._settle()

    def finish(self, offsets: Sequence[int]) -> None:
        """Note that admitted records are finished, in any order; a whole batch at once is cheapest.

        Offsets that are finished already are passed over.
        """
        if not offsets:
            return
        first, end = offsets[0], offsets[-1] + 1
        if end - first == len(offsets) and list(offsets) == list(range(first, end)):
            runs = [(first, end)]
        else:
            runs = _runs(offsets)
        last = runs[-1][1] - 1
        assert last < self._next, f"offset {last} was never admitted, next is {self._next}"
        for start, stop in runs:
            self._add(start, stop)
        self._settle()

    def is_finished(self, offset: int) -> bool:
        """Tell whether an offset is finished, or known not to exist."""
        if offset < self._low:
            return True
        run = bisect_right(self._starts, offset) - 1
        return run >= 0 and offset < self._ends[run]

    def position(self) -> Position:
        """Return what to commit; the same object as before if nothing has changed.

        Should a log with very many long holes between its records, or a lowered bound, make F too long, its
        highest runs are left out; their records may run once more after a crash.
        """
        assert self._low >= 0, "nothing was read or restored yet"
        if self._position is None or self._position.epoch != self.epoch:
            self._position = Position(self._low, self._metadata(), self.epoch)
        return self._position

    def _metadata(self) -> str:
        starts, ends = self._starts, self._ends
        lengths = [0] * (2 * len(starts))
        lengths[0::2] = map(sub, starts, [self._low, *ends[:-1]])
        lengths[1::2] = map(sub, ends, starts)
        finished = encode_metadata(lengths, max_bits=self._max_bits)
        pair = self._mark.written(self._low).pair() if self._mark is not None else ""
        return f"{finished or VERSION};{pair}" if pair else finished

    def _add(self, start: int, end: int) -> None:
        """Add the run [start, end) to F, whatever of it is there already."""
        starts, ends = self._starts, self._ends
        if end <= self._low:
            return
        left = bisect_left(ends, start)  # first run that touches or overlaps
        right = bisect_right(starts, end)  # first run beyond
        if left < right:
            start = min(start, starts[left])
            end = max(end, ends[right - 1])
        starts[left:right] = [start]
        ends[left:right] = [end]
        self._position = None

    def _step_over(self, start: int, end: int) -> None:
        """Count a hole as finished; one that is beyond all that is known is also taken out of the span."""
        start = max(start, self._low)
        if end <= start:
            return
        if not self._ends or start >= self._ends[-1]:
            self._note_hole(start, end)
        self._add(start, end)

    def _note_hole(self, start: int, end: int) -> None:
        saved = end - start - _weight(end - start)
        if saved > 0:
            self._holes.append((start, saved))
            self._saved += saved

    def _settle(self) -> None:
        """Move the lowest unfinished offset over the runs that begin at it; it never falls."""
        while self._starts and self._starts[0] <= self._low:
            self._low = max(self._low, self._ends.pop(0))
            del self._starts[0]
        self._next = max(self._next, self._low)
        while self._holes and self._holes[0][0] < self._low:
            self._saved -= self._holes.popleft()[1]


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs, start inclusive and end exclusive, that offsets in any order make up."""
    ascending = sorted(set(offsets))
    breaks = [(one + 1, other) for one, other in pairwise(ascending) if one + 1 != other]
    starts = [ascending[0], *(start for _, start in breaks)]
    ends = [*(end for end, _ in breaks), ascending[-1] + 1]
    return list(zip(starts, ends, strict=True))


def _weight(hole: int) -> int:
    """Return the cells, of `_CELL_BITS` bits each, that a hole can cost in F.

    A length n costs 2 log2(n) + 1 bits, rounded down; where a hole joins a finished run each further offset
    adds 2 bits at most, and two joined holes cost no more than both with one bit between them.
    """
    return min(hole, hole.bit_length() + 1)


def _gamma(length: int) -> str:
    """Return Elias' gamma code of a number from 1 on, as binary digits."""
    return f"{length:0{2 * length.bit_length() - 1}b}"


_CODES = ("", *(_gamma(length) for length in range(1, 1024)))


def encode_metadata(lengths: Sequence[int], *, max_bits: int) -> str:
    """Write F as commit metadata.

    Args:
        lengths: Unfinished and finished stretches in turn from the committed offset on, each at least 1.
        max_bits: Bound on the bits of their codes; what is beyond is left out from the end, in pairs.

    Returns:
        The text, ``""`` where there is nothing to say.
    """
    codes = [_CODES[length] if length < len(_CODES) else _gamma(length) for length in lengths]
    while sum(map(len, codes)) > max_bits:
        del codes[-max(2, len(codes) // 8 // 2 * 2) :]
    if not codes:
        return ""
    bits = "".join(codes)
    bits += "0" * (-len(bits) % 8)
    packed = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return f"{VERSION};f={base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def decode_metadata(text: str) -> list[int] | None:
    """Read F from commit metadata; None if the text is not ours or is damaged."""
    if not text:
        return []
    version, *pairs = text.split(";")
    if version != VERSION:
        return None
    fields = dict(pair.partition("=")[::2] for pair in pairs)
    packed = fields.get("f", "")
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    bits = "".join([f"{byte:08b}" for byte in raw])
    lengths: list[int] = []
    at = 0
    while (one := bits.find("1", at)) >= 0:
        end = 2 * one - at + 1
        if end > len(bits):
            return None
        lengths.append(int(bits[one:end], 2))
        at = end
    return lengths if len(lengths) % 2 == 0 and len(bits) - at < 8 else None
