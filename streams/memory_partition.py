"""The records of one partition of the memory log."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

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

    Attributes:
        start: First offset that is kept.
        end: Offset of the next record.
    """

    __slots__ = ("_offsets", "_records", "end", "start")

    def __init__(self) -> None:
        """Start empty at 0."""
        self._offsets: list[int] = []
        self._records: list[MemoryRecord] = []
        self.start = 0
        self.end = 0

    def append(self, out: Out, timestamp_ms: int) -> None:
        """Add a record at the end."""
        self._offsets.append(self.end)
        self._records.append(
            MemoryRecord(
                out.topic, out.partition, self.end, timestamp_ms, out.key, out.value, out.headers
            )
        )
        self.end += 1

    def read(self, start: int, end: int, limit: int) -> list[MemoryRecord]:
        """Return up to ``limit`` records with ``start`` ≤ offset < ``end``."""
        low = bisect_left(self._offsets, start)
        high = bisect_left(self._offsets, end, lo=low)
        return self._records[low : min(high, low + limit)]

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

        Args:
            until_ms: Records with a later timestamp are not looked at, as within ``min.compaction.lag.ms``.
            tombstones: Remove last records that are null too, as after ``delete.retention.ms``.
        """
        old = next(
            (i for i, record in enumerate(self._records) if record.timestamp > until_ms),
            len(self._records),
        )
        last = {record.key: record.offset for record in self._records[:old]}
        self._records = [
            record
            for i, record in enumerate(self._records)
            if i >= old
            or record.key is None
            or (last[record.key] == record.offset and not (tombstones and record.value is None))
        ]
        self._offsets = [record.offset for record in self._records]
