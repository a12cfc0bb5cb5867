"""Records whose schemas a registry cannot give for now wait; nothing is lost, overtaken or given up (FAULTS B34)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from claim_kit import claims, objects
from headrace.consumers.claimed_requests import ClaimDecoder
from headrace.consumers.intake import Intake
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.schema_requests import SchemaDecoder
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.schemas.avro_records import FramedAvro
from headrace.schemas.batch import Entry
from headrace.schemas.claim_check import write_claim
from headrace.schemas.errors import LogError, Reason
from headrace.schemas.framing import framed
from headrace.schemas.mapping_decoder import MappingDecoder
from headrace.schemas.record import CLAIM_CHECK, JSON, TP
from headrace.schemas.requests import Decoded
from headrace.streams.log import Block
from mapping_kit import plan
from service_kit import until
from service_parts import PlainRecord
from virtual_loop import run_virtual
from wire_kit import signature

A, B = TP("payments", 0), TP("payments", 1)
SCHEMA = (
    '{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"array","items":"float"}}]}'
)
BODY = b"\x08" + bytes(16) + b"\x00"
MAPPING = """
[source]
topic = "payments"
format = "avro"
framing = "confluent"
registry = "http://registry"
offset_reset = "earliest"
[inputs.x]
field = "x"
"""
NONE = 404
"""The id of a schema that there is none of."""


class Schemas:
    """A registry that may be away; remembers nothing, so that each question shows."""

    def __init__(self) -> None:
        self.is_up = asyncio.Event()
        self.refuses = False
        self.asked: list[int] = []

    async def fetch(self, schema_id: int) -> str | None:
        self.asked.append(schema_id)
        if self.refuses:
            raise LogError("the registry is away", retriable=True)
        await self.is_up.wait()
        return None if schema_id == NONE else SCHEMA

    async def register(self, subject: str, schema: str) -> int:
        raise AssertionError(f"nothing is registered: {subject}, {schema}")


class Source:
    """Hands out what it is given, of partitions that are not paused."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.paused: set[TP] = set()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        del max_records, timeout_s
        await asyncio.sleep(0.002)
        ready = [block for block in self.blocks if block.tp not in self.paused]
        self.blocks = deque(block for block in self.blocks if block.tp in self.paused)
        return ready

    def pause(self, tps) -> None:
        self.paused |= tps

    def resume(self, tps) -> None:
        self.paused -= tps


class Scene:
    """One intake: what it admits and answers, by partition."""

    def __init__(self, **options: int) -> None:
        self.schemas = Schemas()
        self.source = Source()
        self.format = FramedAvro(**options)
        one = signature()
        mapped = MappingDecoder({1: plan(MAPPING, one)}, self.format, content_type=JSON)
        self.decoder = SchemaDecoder(mapped, self.format, self.schemas)
        self.parts: dict[TP, Partition] = {}
        self.taken: dict[TP, list[int]] = {A: [], B: []}
        self.failed: dict[TP, list[tuple[int, Reason, bool]]] = {A: [], B: []}
        self.offsets = {A: 0, B: 0}
        self.intake = self.made(self.decoder)
        for tp in (A, B):
            self.assign(tp)

    def made(self, decoder) -> Intake:
        async def lookup(topic: str) -> None:
            del topic

        return Intake(
            self.parts,
            decoder=decoder,
            admission=self,
            placement=Placement("r", 1, allowed=bool, lookup=lookup, max_topics=1),
            settings=WorkerSettings("w"),
            clock=Clock(),
        )

    def assign(self, tp: TP) -> Partition:
        part = self.parts[tp] = Partition(tp, 1, 1, OffsetLedger())
        part.active, part.paused = True, False
        part.ledger.begin(self.offsets[tp])
        return part

    def offer(self, version: int, entries: Sequence[Entry]):
        assert version == 1
        for entry in entries:
            self.taken[entry.tp].append(entry.record.offset)
        return ()

    def fail(self, part: Partition, decoded: Decoded) -> None:
        for entry, error, dead_letter in decoded.failures:
            self.failed[part.tp].append((entry.record.offset, error.reason, dead_letter))

    def put(self, tp: TP, *ids: int, headers=(), value: bytes | None = None) -> None:
        """Append a block of records with these schemas' ids."""
        records = []
        for schema_id in ids:
            whole = framed(schema_id) + BODY if value is None else value
            records.append(PlainRecord(offset=self.offsets[tp], value=whole, headers=headers))
            self.offsets[tp] += 1
        self.source.blocks.append(Block(tp, 1, records))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.intake.run(self.source))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until_asked(self, *ids: int) -> None:
        await until(lambda: set(ids) <= set(self.schemas.asked), f"asked for {ids}")

    async def until_taken(self, tp: TP, count: int) -> None:
        await until(lambda: len(self.taken[tp]) == count, f"{count} taken of {tp}")


async def test_B34_a_partition_waits_and_the_others_go_on():
    scene = Scene()
    scene.format.learn(1, SCHEMA)
    async with scene.running():
        scene.put(A, 1)
        scene.put(A, 1, 2, 1)
        scene.put(A, 1)
        await scene.until_asked(2)
        scene.put(A, 3)
        scene.put(B, 1, 1)
        await scene.until_taken(B, 2)
        assert scene.taken[A] == [0]
        assert A in scene.source.paused
        assert scene.parts[A].decoding, "more is read than was routed"
        scene.schemas.is_up.set()
        await scene.until_taken(A, 6)
        await until(lambda: not scene.source.paused)
    assert scene.taken == {A: [0, 1, 2, 3, 4, 5], B: [0, 1]}
    assert scene.failed == {A: [], B: []}
    assert scene.parts[A].decoding == 0
    assert scene.schemas.asked == [2, 3], "each once"


def test_B34_an_outage_is_waited_out_and_told():
    """However often the registry fails, no record is answered with that."""
    run_virtual(an_outage())


async def an_outage() -> None:
    scene = Scene()
    scene.schemas.is_up.set()
    scene.schemas.refuses = True
    async with scene.running():
        scene.put(A, 1, 2)
        await until(lambda: len(scene.schemas.asked) >= 8)
        assert "the registry is away" in scene.decoder.trouble
        assert scene.taken[A] == []
        scene.schemas.refuses = False
        await scene.until_taken(A, 2)
    assert scene.failed[A] == []
    assert scene.decoder.trouble == ""


async def test_B34_an_absent_schema_is_its_records_own_error_and_asked_for_again():
    scene = Scene()
    scene.schemas.is_up.set()
    async with scene.running():
        scene.put(A, 1, NONE, 1)
        await scene.until_taken(A, 2)
        scene.put(A, NONE)
        await until(lambda: len(scene.failed[A]) == 2)
    dead = (Reason.UNKNOWN_SCHEMA, True)
    assert scene.failed[A] == [(1, *dead), (3, *dead)]
    assert scene.taken[A] == [0, 2]
    assert scene.schemas.asked.count(NONE) == 2


@pytest.mark.parametrize("ending", ["lost", "again", "drain"])
async def test_B34_what_waits_is_let_go_with_its_partition(ending):
    scene = Scene()
    part = scene.parts[A]
    async with scene.running():
        scene.put(A, 7, 7)
        await scene.until_asked(7)
        assert (part.in_flight, part.in_flight_bytes) == (2, 2 * len(framed(7) + BODY))
        if ending == "drain":
            scene.intake.stop(scene.source)
        else:
            part.active = False
            del scene.parts[A]
        if ending == "again":
            scene.offsets[A] = 0
            scene.assign(A).paused = True  # as its source has it
            scene.put(A, 7, 7)
        await until(lambda: part.in_flight == 0)
        scene.schemas.is_up.set()
        if ending == "again":
            await scene.until_taken(A, 2)
    assert part.in_flight_bytes == 0
    assert scene.taken[A] == ([0, 1] if ending == "again" else [])
    assert scene.failed[A] == []
    assert scene.decoder.trouble == ""


async def test_B34_more_schemas_than_are_kept_are_read_all_the_same():
    """Of one block, too."""
    scene = Scene(max_readers=2)
    scene.schemas.is_up.set()
    async with scene.running():
        for tp in (A, B, A):
            scene.put(tp, *range(5))
        await scene.until_taken(A, 10)
        await scene.until_taken(B, 5)
    assert scene.failed == {A: [], B: []}


async def test_B34_a_value_from_the_store_waits_for_its_schema_too(tmp_path: Path):
    scene = Scene()
    kept = claims(objects("memory", tmp_path))
    scene.intake = scene.made(ClaimDecoder(scene.decoder, kept))
    claim = write_claim(await kept.put(framed(5) + BODY))
    async with scene.running():
        scene.put(A, 0, headers=((CLAIM_CHECK, claim),), value=b"")
        scene.put(A, 6)
        await scene.until_asked(5)
        assert scene.taken[A] == []
        scene.schemas.is_up.set()
        await scene.until_taken(A, 2)
    assert scene.taken[A] == [0, 1]
    assert scene.failed[A] == []
