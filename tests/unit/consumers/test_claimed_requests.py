"""A partition's line of claimed requests: what comes behind one that waits for room keeps its place (FAULTS B95)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from claim_kit import FaultyObjects, claims, objects
from headrace.consumers.claimed_requests import ClaimDecoder, ClaimedRequests
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.schemas.claim_check import write_claim
from headrace.schemas.codec import encode_request
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, TP, Record
from headrace.schemas.requests import Decoded, RequestDecoder
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.claims import Claims
from service_kit import until
from service_parts import PlainRecord, make_signature

A, B = TP("t", 0), TP("t", 1)
ROOM = 1000


def value_and_headers() -> tuple[bytes, list]:
    data = bytes(8)
    request = InferRequest((Tensor("INPUT0", Datatype.FP32, (1, 2), data),))
    return encode_request(request, AVRO, RequestOptions())


def plain(offset: int) -> PlainRecord:
    value, headers = value_and_headers()
    return PlainRecord(offset=offset, value=value, headers=tuple(headers))


async def claimed(kept: Claims, offset: int) -> PlainRecord:
    value, headers = value_and_headers()
    header = ("claim-check", write_claim(await kept.put(value)))
    return PlainRecord(offset=offset, headers=(*headers, header))


def partition(tp: TP) -> Partition:
    part = Partition(tp, 1, 1, OffsetLedger())
    part.active = True
    return part


def wait(for_what: threading.Event) -> None:
    assert for_what.wait(10.0)


class Lines:
    """The lines of two partitions, and what they let through."""

    def __init__(self, kept: Claims, *, counts_settling: bool = True) -> None:
        self.parts = {tp: partition(tp) for tp in (A, B)}
        self.taken: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.decoder = ClaimDecoder(RequestDecoder({1: make_signature()}, model_name="echo"), kept)
        self.lines = ClaimedRequests(
            self.decoder,
            self.parts,
            settings=WorkerSettings("w", max_queued_bytes=ROOM),
            clock=Clock(),
            read=self.read,
            take=self.take,
            ended=lambda: None,
            sequences=False,
            counts_settling=counts_settling,
        )

    async def read(self, part: Partition, records: Sequence[Record]) -> Decoded:
        self.meanwhile()
        return self.decoder.decode(part.tp, part.epoch, records)

    def take(self, part: Partition, decoded: Decoded) -> None:
        assert part is self.parts[A]
        assert not decoded.failures
        self.taken += [entry.record.offset for entry in decoded.by_version[1]]

    def offer(self, *records: PlainRecord) -> bool:
        """Bring a block, as intake does."""
        return self.lines.takes(self.parts[A], self.admit(*records))

    def admit(self, *records: PlainRecord) -> Decoded:
        """Count and decode a block."""
        part = self.parts[A]
        part.in_flight += len(records)
        part.in_flight_bytes += sum(len(record.value or b"") for record in records)
        return self.decoder.decode(A, 1, records)


async def test_B95_a_block_that_comes_while_a_line_waits_for_room_keeps_its_place(tmp_path: Path):
    """What is in flight elsewhere leaves no room for the first value; what comes meanwhile stands behind it."""
    kept = claims(objects("memory", tmp_path))
    all_of = Lines(kept)
    lines, other = all_of.lines, all_of.parts[B]
    other.in_flight_bytes = ROOM
    assert all_of.offer(await claimed(kept, 0), plain(1))
    await asyncio.sleep(0)
    assert all_of.offer(plain(2), await claimed(kept, 3))
    await asyncio.sleep(0)
    assert all_of.taken == []
    other.in_flight_bytes = 0
    lines.room_made()
    await until(lambda: all_of.parts[A] not in lines)
    assert lines.failed is None
    assert all_of.taken == [0, 1, 2, 3]


@pytest.mark.parametrize("counts_settling", [True, False])
async def test_B95_what_is_in_a_transaction_takes_no_room_of_a_claimed_value(
    tmp_path: Path, counts_settling: bool
):
    """In exactly_once a line goes on beside it; at least once it waits for the settle."""
    kept = claims(objects("memory", tmp_path))
    all_of = Lines(kept, counts_settling=counts_settling)
    lines, other = all_of.lines, all_of.parts[B]
    other.in_flight, other.in_flight_bytes = 1, ROOM
    other.settling, other.settling_bytes = 1, ROOM
    assert all_of.offer(await claimed(kept, 0))
    if counts_settling:
        await asyncio.sleep(0)
        assert all_of.parts[A] in lines
        other.in_flight = other.in_flight_bytes = other.settling = other.settling_bytes = 0
        lines.room_made()
    await until(lambda: all_of.parts[A] not in lines)
    assert all_of.taken == [0]
    assert other.in_flight_bytes == (0 if counts_settling else ROOM)


async def test_P14_a_suspects_value_is_fetched_where_nothing_else_could_make_room(tmp_path: Path):
    """All else may be waiting for the suspect. What it has now is counted, and its line is gone."""
    kept = claims(objects("memory", tmp_path))
    all_of = Lines(kept)
    lines, part = all_of.lines, all_of.parts[A]
    all_of.parts[B].in_flight_bytes = ROOM
    decoded = all_of.admit(await claimed(kept, 0))
    whole = await asyncio.wait_for(lines.whole(part, decoded), 10.0)
    assert not whole.failures
    (entry,) = whole.by_version[1]
    assert part.in_flight_bytes == len(entry.record.value) > 0
    assert part not in lines
    assert not lines.takes(part, whole)


@pytest.mark.parametrize("how", ["lost", "closed", "lost behind its last byte"])
async def test_P14_a_suspect_that_is_ours_no_more_is_left_as_it_was(tmp_path: Path, how: str):
    """Its partition goes, or the worker drains, while its value is fetched: nothing of it is counted any more."""
    let_go = threading.Event()
    kept = claims(FaultyObjects(objects("memory", tmp_path), lambda _: wait(let_go)))
    let_go.set()
    record = await claimed(kept, 0)
    let_go.clear()
    all_of = Lines(kept)
    lines, part = all_of.lines, all_of.parts[A]
    decoded = all_of.admit(record)
    fetching = asyncio.create_task(lines.whole(part, decoded))
    await until(lambda: part.in_flight_bytes > 0)
    assert part in lines
    try:
        if how == "closed":
            lines.close()
        elif how == "lost":
            part.active = False
        else:
            all_of.meanwhile = lambda: setattr(part, "active", False)
            let_go.set()
        left = await asyncio.wait_for(fetching, 5.0)
    finally:
        let_go.set()
    assert left.failures == decoded.failures
    assert not left.by_version
    assert (part.in_flight, part.in_flight_bytes) == (1, 0)
    assert part not in lines
