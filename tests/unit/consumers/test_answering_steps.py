"""Answers of sequences leave in the order of their requests, whatever way each takes (P-3, P-18, SQ-20)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
from headrace.consumers.answering import Answering
from headrace.consumers.batcher import Refusal
from headrace.consumers.execution import Execution, Part
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.observe import ModelObserver, WorkerMetrics
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.settings import Clock
from headrace.consumers.version import Version
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.record import JSON, TP
from prometheus_client import CollectorRegistry
from service_parts import make_entry, make_signature

HERE = TP("t", 0)
SIGNATURES = {version: make_signature(version=version) for version in (1, 2)}


class Settled:
    """Keeps the offsets of what is answered, in order."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.changed = asyncio.Event()

    def put(self, part, outs, offsets, size, *, states, recorded, replies, awaited) -> None:
        self.offsets += offsets
        self.changed.set()

    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        """Settle never: order is all that is looked at."""

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.offsets) < count:
                self.changed.clear()
                await self.changed.wait()


class Queue:
    """A scheduler with nothing queued."""

    idle = True
    executing = 0
    batcher = ()

    def __init__(self, version: int) -> None:
        self.version = version


class Slow(ResponseEncoder):
    """Waits at its gate where the answer is JSON."""

    def __init__(self, version: int) -> None:
        super().__init__(SIGNATURES[version])
        self.gate = threading.Event()

    def encode(self, batch, responses, *, response_index=None):
        if batch.entries[0].accept == JSON:
            assert self.gate.wait(10)
        return super().encode(batch, responses, response_index=response_index)


def make_answering(settler: Settled, *, preserve_ordering: bool = False) -> Answering:
    async def lookup(topic: str) -> None:
        del topic

    answering = Answering(
        "echo",
        placement=Placement("r", 1, allowed=bool, lookup=lookup, max_topics=1),
        encode_error=encode_error,
        dead_letters=("d", 1),
        max_record_bytes=2**20,
        max_inline_bytes=8,
        clock=Clock(),
    )
    metrics = WorkerMetrics(CollectorRegistry())
    for version in SIGNATURES:
        answering.versions[version] = Version(
            Queue(version),  # type: ignore[arg-type]  # of which little is asked
            Queue(version),  # type: ignore[arg-type]  # as above
            Slow(version),
            ModelObserver("echo", version, metrics),
            preserve_ordering=preserve_ordering,
        )
    answering.in_one_line()
    part = Partition(HERE, 1, 1, OffsetLedger())
    answering.attach({HERE: part}, settler, lambda: None, lambda exc: None)  # type: ignore[arg-type]  # as above
    return answering


def step(offset: int, *, accept: str = "", known: bool = True) -> Entry:
    entry = make_entry((1.0, 2.0), offset=offset)
    entry.tp = HERE
    entry.accept = accept
    entry.sequence_id = 7
    entry.admitted_ns = 0
    if known:
        entry.sequence = LiveSequence(b"u:7", 7, HERE, 1, 1)
    return entry


def execute(answering: Answering, version: int, entries: Sequence[Entry]) -> None:
    batch = Batch(SIGNATURES[version], list(entries))
    outputs = Responses({"OUTPUT0": np.ones((len(entries), 2), np.float32)})
    execution = Execution([Part(batch, [outputs], None)], 1, 0, 0, 0)
    answering.executed(answering.versions[version].scheduler, batch, execution)


def open_gates(answering: Answering) -> None:
    for version in answering.versions.values():
        encoder = version.encoder
        assert isinstance(encoder, Slow)
        encoder.gate.set()


async def test_P03_a_late_record_waits_for_the_answer_of_its_end() -> None:
    """A marker that covers both must not be staged while END's answer is still being written."""
    settler = Settled()
    answering = make_answering(settler)
    execute(answering, 1, [step(1, accept=JSON)])
    answering.refuse_steps([Refusal(step(2), InvalidRequest("late"))])
    assert settler.offsets == []
    answering.refuse_steps([Refusal(step(3, known=False), InvalidRequest("nobody's"))])
    assert settler.offsets == [3]
    open_gates(answering)
    await settler.until(3)
    assert settler.offsets == [3, 1, 2]


async def test_P18_versions_share_one_line() -> None:
    """A sequence that begins anew on another version: its first answer waits for the last one of before."""
    settler = Settled()
    answering = make_answering(settler)
    execute(answering, 1, [step(1, accept=JSON)])
    execute(answering, 2, [step(2)])
    assert settler.offsets == []
    open_gates(answering)
    await settler.until(2)
    assert settler.offsets == [1, 2]


async def test_SQ20_an_error_in_its_turn_waits_where_ordering_is_preserved() -> None:
    """Its sequence's earlier answer is held for another sequence's: the error is held behind it."""
    settler = Settled()
    answering = make_answering(settler, preserve_ordering=True)
    others, ours, wrong, late = step(0), step(1), step(2), step(3)
    ordering = answering.versions[1].ordering
    assert ordering is answering.versions[2].ordering
    assert ordering is not None
    ordering.admit([others, ours, wrong])
    execute(answering, 1, [ours])
    answering.refused(
        answering.versions[1].scheduler, [Refusal(wrong, InvalidRequest("two rows"))]
    )
    answering.refuse_steps([Refusal(late, InvalidRequest("after END"))])
    assert settler.offsets == []
    execute(answering, 2, [others])
    assert settler.offsets == [0, 1, 2, 3]
    assert len(ordering) == 0
