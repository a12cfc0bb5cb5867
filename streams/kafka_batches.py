"""Records into batches as Kafka stores them, for whichever producer sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from headrace.schemas.errors import LogError
from headrace.schemas.record import Out

ROOM_BYTES = 1024  # under this much below the limit, a record's size is computed exactly


def by_target(outs: Sequence[Out]) -> dict[tuple[str, int], list[Out]]:
    """Sort records by topic and partition, in order."""
    targets: dict[tuple[str, int], list[Out]] = {}
    for out in outs:
        key = (out.topic, out.partition)
        found = targets.get(key)
        if found is None:
            targets[key] = [out]
        else:
            found.append(out)
    return targets


def pack(
    records: Sequence[Out], create: Callable[[], BatchBuilder], max_record_bytes: int
) -> list[BatchBuilder]:
    """Pack records of one target into batches, in order.

    Args:
        records: At least one.
        create: Makes an empty batch.
        max_record_bytes: Largest record, keys and headers included.

    Raises:
        LogError: A record is larger.
    """
    now_ms = time.time_ns() // 1_000_000
    batch = create()
    batches = [batch]
    append = batch.append
    for out in records:
        value, headers = out.value, out.headers
        if value is None or len(value) > max_record_bytes - ROOM_BYTES:
            _check(out, max_record_bytes)
        if type(headers) is not list:  # the record builder takes nothing else
            headers = list(headers)
        if append(timestamp=now_ms, key=out.key, value=value, headers=headers) is None:
            batch = create()
            batches.append(batch)
            append = batch.append
            append(timestamp=now_ms, key=out.key, value=value, headers=headers)
    return batches


def transactional_batch(producer: Mapping[str, object]) -> BatchBuilder:
    """Make an empty batch of a transaction; ``producer``: aiokafka's arguments of one."""
    compression = producer.get("compression_type")
    code = AIOKafkaProducer._COMPRESSORS[compression][1] if compression else 0  # noqa: SLF001  # no other table of them
    return BatchBuilder(producer["max_batch_size"], code, is_transactional=1)


def check_size(out: Out, max_record_bytes: int) -> None:
    """Check one record, by the exact size only where that could matter; `LogError` if it is too large."""
    value = out.value
    if value is None or len(value) > max_record_bytes - ROOM_BYTES:
        _check(out, max_record_bytes)


def _check(out: Out, max_record_bytes: int) -> None:
    """Check one record; `LogError` if it is too large, or has neither key nor value."""
    if out.value is None and out.key is None:
        raise LogError(
            f"a record for {out.topic}/{out.partition} has neither key nor value", retriable=False
        )
    size: int = DefaultRecordBatchBuilder.estimate_size_in_bytes(
        out.key, out.value, list(out.headers)
    )
    if size > max_record_bytes:
        raise LogError(
            f"a record of {size} bytes for {out.topic}/{out.partition} is above the limit of "
            f"{max_record_bytes} bytes before compression (max.request.size)",
            retriable=False,
        )
