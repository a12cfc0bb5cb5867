r"""Records of strangers whose header names are no UTF-8: read all the same, with what is no text escaped.

Kafka's protocol calls a header's name a string, but clients in C write whatever bytes they are given. aiokafka decodes
names while it unpacks a fetch, raises in the middle of it, and would do so again for ever: one such record stops its
partition, and its reader (FAULTS B32). Names are text in all of Headrace, so the bytes come out as ``\xff``: none
of ours is spelled so, and the record is served like any other with a header that nobody knows.
"""

from __future__ import annotations

from typing import Any, Self, SupportsIndex, overload

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy


def read_any_header_name() -> None:
    """Have aiokafka's fetchers of this process read header names of any bytes; called once or more, before them.

    Nothing changes for records whose names are text: the slower way is taken for a fetch in which one is not.
    """
    fetcher.MemoryRecords = _Kept
    fetcher.PartitionRecords = _PartitionRecords


class _Kept(MemoryRecords):  # type: ignore[misc]  # aiokafka is untyped for us
    """A fetch's records, with their bytes for a second look."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # as above
    """Unpacks a fetch, and once a name is no text, the rest of it the slower way."""

    _records: Any
    _records_iterator: Any

    def __next__(self) -> Any:
        # As aiokafka's own, so that the usual record costs nothing more.
        try:
            return next(self._records_iterator)
        except StopIteration:
            self._records_iterator = None
            raise
        except UnicodeDecodeError:
            self._records = _Records(self._records.data, self.next_fetch_offset)
            self._records_iterator = self._unpack_records()
        return next(self)


class _Records(_MemoryRecordsPy):  # type: ignore[misc]  # as above
    """The batches of a fetch from an offset on, names escaped."""

    def __init__(self, data: bytes, start: int) -> None:
        super().__init__(data)
        self.data = data
        # A batch that was unpacked already must not be seen again: it would set the position back.
        while (batch := self._batch()) is not None and batch.next_offset <= start:
            self._cache_next()

    def next_batch(self) -> Any:
        batch = self._batch()
        if batch is None:
            return super().next_batch()
        self._cache_next()
        return batch

    def _batch(self) -> _Batch | None:
        """Return the next batch; None where there is none, or it has the old format, which knows no headers."""
        part = self._next_slice
        return None if part is None or part[self.MAGIC_OFFSET] < 2 else _Batch(part)


class _Batch(_DefaultRecordBatchPy):  # type: ignore[misc]  # as above
    """A batch whose names are escaped."""

    _buffer: Any

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Escaping(self._buffer)


class _Escaping(bytearray):
    """Bytes whose slices decode without an error; only names are decoded."""

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> Self: ...
    def __getitem__(self, key: SupportsIndex | slice, /) -> int | Self:
        found = super().__getitem__(key)
        return found if isinstance(found, int) else type(self)(found)

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)
