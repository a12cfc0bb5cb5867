"""What is encoded in a thread, and in which order its answers leave (FAULTS B2)."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from headrace.consumers.answering import Answering
from headrace.consumers.encoding import Encoded, Encoding, holds_the_loop
from headrace.consumers.execution import Execution, Part
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.observe import ModelObserver, WorkerMetrics
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.settings import Clock
from headrace.consumers.version import Version
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.record import AVRO, JSON, TP
from prometheus_client import CollectorRegistry
from service_parts import make_entry, make_signature

LIMIT = 4096
SIGNATURE = make_signature()


def execution_of(array: object, *formats: str, first: int = 0) -> Execution:
    entries = [make_entry(offset=first + i) for i in range(len(formats))]
    for entry, accept in zip(entries, formats, strict=True):
        entry.accept = accept
    part = Part(Batch(SIGNATURE, entries), [Responses({"OUTPUT0": array})], None)  # type: ignore[dict-item]  # also what is none
    return Execution([part], 1, 0, 0, 0)


def floats(size: int) -> np.ndarray:
    return np.zeros((1, size // 4), np.float32)


TEXT = np.array([["x" * 2000]], object)
MANY = np.full((1, LIMIT), "x", object)


@pytest.mark.parametrize(
    ("array", "formats", "expected"),
    [
        (floats(1000 * LIMIT), (AVRO,), False),
        (floats(1000 * LIMIT), (AVRO, JSON), True),
        (floats(LIMIT), ("", JSON), True),
        (floats(LIMIT // 4), (JSON,), False),
        (TEXT, (AVRO,), False),
        (TEXT, (JSON,), True),
        (MANY, (AVRO,), True),
        ("no array", (JSON,), False),
    ],
)
def test_B2_numbers_as_text_and_many_strings_hold_the_loop(array, formats, expected) -> None:
    """What is only copied does not, nor what is small."""
    assert holds_the_loop(execution_of(array, *formats), LIMIT) is expected


def test_an_output_that_is_no_mapping_is_left_to_the_encoder() -> None:
    """It says what is wrong with it; here nothing is raised."""
    execution = Execution(
        [Part(Batch(SIGNATURE, [make_entry()]), [Responses(None)], None)],  # type: ignore[arg-type]  # a plug-in's
        1,
        0,
        0,
        0,
    )
    assert not holds_the_loop(execution, LIMIT)


def encoded() -> Encoded:
    return Encoded([], [], 0)


async def test_what_ends_later_is_encoded_later() -> None:
    """One after the other, in a thread, and idle only when the last has been handed back."""
    encoding = Encoding()
    gate, over = threading.Event(), asyncio.Event()
    began: list[int] = []
    ended: list[tuple[int, bool]] = []
    threads: set[threading.Thread] = set()

    def work(number: int) -> Encoded:
        began.append(number)
        threads.add(threading.current_thread())
        assert gate.wait(10)
        return encoded()

    def done(number: int) -> None:
        ended.append((number, encoding.idle))
        if number == 2:
            over.set()

    for number in range(3):
        encoding.apart(lambda n=number: work(n), lambda _, n=number: done(n), ended.append)
    assert not encoding.idle
    gate.set()
    async with asyncio.timeout(10):
        await over.wait()
    assert began == [0, 1, 2]
    assert ended == [(0, False), (1, False), (2, True)]
    assert threading.main_thread() not in threads


async def test_a_failure_in_the_thread_is_told() -> None:
    """B42: nobody awaits the thread, and a request that hangs must not look served."""
    encoding = Encoding()
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    encoding.apart(lambda: 1 / 0, lambda _: None, told.set_result)  # type: ignore[arg-type,return-value]  # it raises
    async with asyncio.timeout(10):
        assert isinstance(await told, ZeroDivisionError)


async def test_what_is_closed_is_not_handed_back() -> None:
    """The worker has ended."""
    encoding = Encoding()
    gate, ended = threading.Event(), []

    def work() -> Encoded:
        assert gate.wait(10)
        return encoded()

    encoding.apart(work, ended.append, ended.append)
    task = encoding._task
    await asyncio.sleep(0)
    encoding.close()
    gate.set()
    assert task is not None
    await asyncio.gather(task, return_exceptions=True)
    assert ended == []


class Idle:
    """A scheduler and pool with nothing to do."""

    version = 1
    idle = True
    executing = 0
    batcher = ()


class Published:
    """What reached the settler: offsets in order, and whether everything was idle then."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.at_once: list[bool] = []
        self.changed = asyncio.Event()

    def put(self, part, outs, offsets, size, *, states, recorded, replies, awaited) -> None:
        assert not states
        assert not recorded
        assert not replies
        assert len(outs) == len(offsets)
        self.offsets += offsets

    def schedule(self, *, at_once: bool, awaited: bool = False, backlog: bool = False) -> None:
        self.at_once.append(at_once)
        self.changed.set()


class HeldEncoder(ResponseEncoder):
    """Waits at its gate where the answer is JSON."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.gate = threading.Event()

    def encode(self, batch, responses, *, response_index=None):
        if batch.entries[0].accept == JSON:
            assert self.gate.wait(10)
        return super().encode(batch, responses, response_index=response_index)


def answering_of(encoder: ResponseEncoder, part: Partition, settler: Published) -> Answering:
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
    observer = ModelObserver("echo", 1, WorkerMetrics(CollectorRegistry()))
    answering.versions[1] = Version(Idle(), Idle(), encoder, observer)  # type: ignore[arg-type]  # of which little is asked
    answering.attach({part.tp: part}, settler, lambda: None, lambda exc: None)  # type: ignore[arg-type]  # as above
    for entry_of in (execution_of(floats(8), JSON), execution_of(floats(8), AVRO, first=1)):
        batch = entry_of.parts[0].batch
        for entry in batch.entries:
            assert entry is not None
            entry.admitted_ns = 0
        answering.executed(Idle(), batch, entry_of)  # type: ignore[arg-type]  # as above
    return answering


async def test_an_answer_does_not_overtake_one_in_the_thread_and_the_model_is_not_idle() -> None:
    """With one instance answers leave in the order of execution; a drain waits for them."""
    encoder, settler = HeldEncoder(), Published()
    part = Partition(TP("t", 0), 1, 1, OffsetLedger())
    answering = answering_of(encoder, part, settler)
    assert not answering.idle()
    assert settler.offsets == []
    encoder.gate.set()
    async with asyncio.timeout(10):
        while len(settler.offsets) < 2:
            await settler.changed.wait()
            settler.changed.clear()
    assert settler.offsets == [0, 1]
    assert settler.at_once == [False, True]
    assert answering.idle()


async def test_P7_an_answer_from_the_thread_is_dropped_where_the_partition_has_changed_hands() -> (
    None
):
    """Whoever owns it now answers it."""
    encoder, settler = HeldEncoder(), Published()
    part = Partition(TP("t", 0), 1, 1, OffsetLedger())
    answering = answering_of(encoder, part, settler)
    part.epoch = 2
    encoder.gate.set()
    async with asyncio.timeout(10):
        while len(settler.at_once) < 2:
            await settler.changed.wait()
            settler.changed.clear()
    assert settler.offsets == []
    assert answering.idle()
