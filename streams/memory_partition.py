"""The records of one partition of the memory log."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import islice

from headrace.schemas.record import Headers, Out


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A consumed record; fits `headrace.schemas.record.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class MemoryPartition:
    """Records of one partition in offset order, with holes where compaction or markers left them.

    A transaction is whatever object its coordinator names it by.

    Attributes:
        start: First offset that is kept.
        end: Offset of the next record.
    """

    __slots__ = ("_aborted", "_offsets", "_open", "_records", "end", "start")

    def __init__(self) -> None:
        """Start empty at 0."""
        self._offsets: list[int] = []
        self._records: list[MemoryRecord] = []
        self._open: dict[object, list[int]] = {}
        self._aborted: set[int] = set()
        self.start = 0
        self.end = 0

    @property
    def stable(self) -> int:
        """Last stable offset: the first one of the earliest open transaction, the end where there is none."""
        return min([offsets[0] for offsets in self._open.values()], default=self.end)

    def append(self, out: Out, timestamp_ms: int, transaction: object | None = None) -> None:
        """Add a record at the end, of an open transaction if one is named."""
        if transaction is not None:
            self._open.setdefault(transaction, []).append(self.end)
        self._offsets.append(self.end)
        self._records.append(
            MemoryRecord(
                out.topic, out.partition, self.end, timestamp_ms, out.key, out.value, out.headers
            )
        )
        self.end += 1

    def complete(self, transaction: object, *, committed: bool) -> None:
        """Write a transaction's marker, which takes an offset; nothing where it has written nothing."""
        offsets = self._open.pop(transaction, None)
        if offsets is None:
            return
        if not committed:
            self._aborted.update(offsets)
        self.hole(1)

    def read(
        self, start: int, end: int, limit: int, *, committed: bool = False
    ) -> list[MemoryRecord]:
        """Return up to ``limit`` records with ``start`` ≤ offset < ``end``; ``committed``: of no other transactions."""
        if committed:
            end = min(end, self.stable)
        low = bisect_left(self._offsets, start)
        high = bisect_left(self._offsets, end, lo=low)
        if not committed or not self._aborted:
            return self._records[low : min(high, low + limit)]
        found = (r for r in self._records[low:high] if r.offset not in self._aborted)
        return list(islice(found, limit))

    def hole(self, offsets: int) -> None:
        """Use up offsets without records, as transaction markers do."""
        self.end += offsets

    def trim(self, start: int) -> None:
        """Delete records before ``start``, as retention does."""
        low = bisect_left(self._offsets, start)
        del self._offsets[:low], self._records[:low]
        self.start = max(self.start, start)

    def compact(self, until_ms: int, *, tombstones: bool) -> None:
        """Keep the last record of each key among those that are old enough; what is younger stays as it is.

        Nothing behind an open transaction is looked at, and aborted records are removed.

        Args:
            until_ms: Records with a later timestamp are not looked at, as within ``min.compaction.lag.ms``.
            tombstones: Remove last records that are null too, as after ``delete.retention.ms``.
        """
        old = bisect_left(self._offsets, self.stable)
        old = next(
            (i for i, record in enumerate(self._records[:old]) if record.timestamp > until_ms), old
        )
        looked_at, rest = self._records[:old], self._records[old:]
        self._records = [r for r in looked_at if r.offset not in self._aborted]
        old = len(self._records)
        last = {record.key: record.offset for record in self._records}
        self._records += rest
        self._records = [
            record
            for i, record in enumerate(self._records)
            if i >= old
            or record.key is None
            or (last[record.key] == record.offset and not (tombstones and record.value is None))
        ]
        self._offsets = [record.offset for record in self._records]
