"""A fetch with header names that are no text is unpacked whole: every record once, in order, names escaped."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from headrace.streams.kafka_foreign import read_any_header_name

GOOD, BAD = "name-good", "zzzzzzzzz"
RAW = b"\xff\xfe\x00\x80name\xc3"
ESCAPED = "\\xff\\xfe\x00\\x80name\\xc3"
CRC_AT, CHECKED_FROM = 17, 21


def batch(first: int, names: Sequence[str], *, codec: int = 0) -> bytes:
    """Return a batch of one record for each name; a record's value is its offset."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, 0, 100_000)
    for number, name in enumerate(names):
        value = str(first + number).encode()
        builder.append(
            number, timestamp=1, key=None, value=value, headers=[("a", None), (name, b"v")]
        )
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, first)
    return bytes(built)


def foreign(plain: bytes) -> bytes:
    """Put bytes that are no text where the bad names stand, as a client in C does."""
    found = bytearray(plain.replace(BAD.encode(), RAW))
    struct.pack_into(">I", found, CRC_AT, calc_crc32c(memoryview(found)[CHECKED_FROM:]))
    return bytes(found)


def unpacked(*batches: bytes, start: int = 0) -> list[tuple[int, str]]:
    """Return offset and second header's name of each record that a fetch of these batches hands out."""
    read_any_header_name()
    records = fetcher.PartitionRecords(
        TopicPartition("t", 0),
        fetcher.MemoryRecords(b"".join(batches)),
        None,
        start,
        None,
        None,
        True,
        0,
    )
    found = []
    for record in records:
        assert record.value == str(record.offset).encode()
        assert record.headers[0] == ("a", None)
        assert record.headers[1][1] == b"v"
        found.append((record.offset, record.headers[1][0]))
    assert records.next_fetch_offset == 9
    return found


@pytest.mark.parametrize("bad", [(), (0,), (8,), (4,), (2, 3, 5), tuple(range(9))])
@pytest.mark.parametrize("start", [0, 1, 4, 8])
def test_B32_every_record_comes_out_once_whatever_its_headers_are_called(bad, start) -> None:
    """Three batches of three, from any position; only what is no text is escaped."""
    names = [BAD if offset in bad else GOOD for offset in range(9)]
    firsts = [first for first in (0, 3, 6) if first + 3 > start]  # a broker sends no batch before
    batches = [foreign(batch(first, names[first : first + 3])) for first in firsts]
    assert unpacked(*batches, start=start) == [
        (offset, ESCAPED if offset in bad else GOOD) for offset in range(start, 9)
    ]


def test_B32_without_it_the_fetch_ends_in_the_middle() -> None:
    """The planted bug is aiokafka as it is: the record cannot be got past."""
    from aiokafka.record.memory_records import MemoryRecords

    plain = fetcher.PartitionRecords.__mro__[1] if _is_ours() else fetcher.PartitionRecords
    data = foreign(batch(0, [GOOD, BAD, GOOD]))
    records = plain(TopicPartition("t", 0), MemoryRecords(data), None, 0, None, None, True, 0)
    assert next(records).offset == 0
    with pytest.raises(UnicodeDecodeError):
        next(records)


def _is_ours() -> bool:
    return fetcher.PartitionRecords.__module__ == "headrace.streams.kafka_foreign"


def test_a_compressed_batch_is_read_too() -> None:
    """gzip: the names are found behind the decompression."""
    import gzip

    plain = foreign(batch(0, [GOOD, BAD] + [GOOD] * 7))
    header, body = bytearray(plain[:61]), gzip.compress(plain[61:])
    struct.pack_into(">i", header, 8, 61 - 12 + len(body))
    struct.pack_into(">h", header, 21, 1)
    packed = header + body
    struct.pack_into(">I", packed, CRC_AT, calc_crc32c(memoryview(packed)[CHECKED_FROM:]))
    found = unpacked(bytes(packed))
    assert found == [(n, ESCAPED if n == 1 else GOOD) for n in range(9)]
