"""One model on a log of any kind, workers that come and go, and what was sent, answered and committed.

The fault tests stand on this: a scene plays on a `Stage`, and what it saw is checked by a function that must
also be able to fail, which it shows on a log with a planted bug.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.pool import Pool
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import SOURCE, STATUS, TP, Header, Out, Record
from headrace.schemas.tensor import Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, Log, Mode, Position, Reader, Span
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_source import MemorySource
from headrace.streams.topology import Topology

PATIENCE_S = 60.0
"""Longest wait for what must come; only a failing test waits that long."""

both_modes = pytest.mark.parametrize("mode", [*Mode])
"""Runs a test in at_least_once and in exactly_once."""

Key = tuple[int, int]
"""Partition and offset of a request."""


class Answer(NamedTuple):
    """One answer as it lies on the results topic."""

    status: str
    reason: str
    values: tuple[float, ...]
    text: str = ""


class Logs(Protocol):
    """Opens logs on one broker; a second one is another process's, except in memory (`conftest.Logs`)."""

    kind: str
    properties: Mapping[str, str]

    def open(self, **options: object) -> AsyncExitStack:
        """Open one."""


class OneMemoryLog:
    """A memory log that the test has made, maybe with a planted bug."""

    kind = "memory"
    properties: Mapping[str, str] = {}

    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    @asynccontextmanager
    async def open(self, **options: object) -> AsyncIterator[MemoryLog]:
        """Hand out the one log."""
        del options
        async with self.log:
            yield self.log


class KafkaLogs:
    """Logs of one class on one Kafka, maybe with a planted bug."""

    kind = "kafka"

    def __init__(self, properties: Mapping[str, str], log: type[KafkaLog] = KafkaLog) -> None:
        self.properties = properties
        self._log = log

    @asynccontextmanager
    async def open(self, **options: object) -> AsyncIterator[KafkaLog]:
        """Open one."""
        async with self._log(self.properties, **options) as log:
            yield log


async def until(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Wait for a condition that other tasks or threads bring about."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():  # other processes' and threads' state: there is no event to wait for
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come"
        await asyncio.sleep(0.005)


def write_model(
    root: Path,
    *,
    name: str = "echo",
    batch: int = 1,
    instances: int = 1,
    delay_us: int | None = None,
    dims: int = 1,
    **parameters: object,
) -> Path:
    """Write a repository with one identity model; returns its root.

    Args:
        root: Folder that is made.
        name: Of the model.
        batch: Its ``max_batch_size``.
        instances: How many may execute at the same time.
        delay_us: ``max_queue_delay`` of its dynamic batcher; None has no batcher.
        dims: Size of a row.
        parameters: The script, see `headrace.backends.identity_script`.
    """
    (root / name / "1").mkdir(parents=True)
    script = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    batching = ""
    if delay_us is not None:
        batching = f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}\n"
    (root / name / "config.pbtxt").write_text(
        'backend: "identity"\n'
        f"max_batch_size: {batch}\n"
        f'input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [{dims}] }}]\n'
        f'output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [{dims}] }}]\n'
        f"instance_group [{{ count: {instances} kind: KIND_CPU }}]\n" + batching + script
    )
    return root


class Running:
    """A worker in this process.

    Attributes:
        worker: It.
        log: Its own log.
    """

    def __init__(self, worker: Worker, log: Log, repository: Repository) -> None:
        self.worker = worker
        self.log = log
        (model,) = repository.models.values()
        self._model = model.versions[max(model.versions)].model
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        async with self.worker:
            await self.worker.run(self._stop)

    @property
    def executions(self) -> list[int]:
        """Rows of each execution that its model began."""
        return list(self._model.executions)

    @property
    def rebalances(self) -> int:
        """How often partitions came and went."""
        return sum(model.assignment.rebalances for model in self.worker.models.values())

    def partitions(self) -> set[int]:
        """Numbers of the partitions that it serves."""
        return {
            tp.partition
            for model in self.worker.models.values()
            for tp, part in model.partitions.items()
            if part.active
        }

    def in_flight(self) -> int:
        """Admitted and unsettled records."""
        return sum(
            part.in_flight
            for model in self.worker.models.values()
            for part in model.partitions.values()
        )

    async def until_ready(self) -> None:
        """Wait until it serves; raises what ended it instead."""
        await until(
            lambda: self.task.done() or (self.worker.models and self.worker.ready()),
            "readiness",
        )
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        """Stop it as SIGTERM does, and wait."""
        self._stop.set()
        await self.task

    def ask_to_stop(self) -> None:
        """Stop it as SIGTERM does, without waiting."""
        self._stop.set()

    async def kill(self) -> None:
        """End it like a killed process: on the memory log nothing of it runs any more and nothing is told."""
        assert isinstance(self.log, MemoryLog)
        for model in self.worker.models.values():
            if model.source is not None:
                assert isinstance(model.source, MemorySource)
                self.log.crash(model.source)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Stage:
    """The topics of one model, what was sent to it, and what came back.

    Attributes:
        topology: Names.
        answers: Request → its answers, as far as `read` has got.
        dead_letters: Requests with a copy on the dead-letter topic.
        letters: The same, each as often as it has one.
        sent: Requests in the order of sending.
        committed_view: Read what is committed, as readers of exactly_once do.
        mode: The guarantee of its workers, unless they are told another one.
    """

    committed_view = False
    mode = Mode.AT_LEAST_ONCE

    def __init__(
        self,
        logs: Logs,
        prefix: str,
        *,
        partitions: int = 2,
        model: str = "echo",
        mode: Mode | None = None,
    ) -> None:
        if mode is not None:
            self.mode, self.committed_view = mode, mode is Mode.EXACTLY_ONCE
        self.topology = Topology(prefix=prefix, partitions=partitions, reply_partitions=2)
        self.model = model
        self.group = self.topology.group(model)
        self.requests = self.topology.requests(model)
        self.logs = logs
        self.answers: dict[Key, list[Answer]] = {}
        self.dead_letters: set[Key] = set()
        self.letters: list[Key] = []
        self.sent: list[Key] = []
        self.log: Log
        self._ends = dict.fromkeys(range(partitions), 0)
        self._turns = itertools.cycle(range(partitions))
        self._stack = AsyncExitStack()
        self._reader: Reader
        self._names = itertools.count(1)

    async def __aenter__(self) -> Self:
        """Make the topics and begin to read answers."""
        async with AsyncExitStack() as stack:
            self.log = await stack.enter_async_context(self.logs.open(commit_interval_ms=0))
            specs = [*self.topology.shared_specs(), *self.topology.model_specs(self.model)]
            await self.log.ensure(specs)
            topics = (self.topology.results(self.model), self.topology.dead_letters)
            spans = {
                TP(topic, number): Span(EARLIEST)
                for topic in topics
                for number in range(self.topology.partitions)
            }
            self._reader = await stack.enter_async_context(
                self.log.reader(spans, committed=self.committed_view)
            )
            self._publisher = await stack.enter_async_context(self.log.publisher())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close."""
        await self._stack.aclose()

    async def send(
        self,
        values: Sequence[float],
        *,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        size: int = 1,
    ) -> list[Key]:
        """Send one request per value, in turn to all partitions or to one; returns where they lie."""
        outs = []
        for value in values:
            at = next(self._turns) if partition is None else partition
            tensor = Tensor.from_numpy("INPUT0", np.full((1, size), value, np.float32))
            raw, own = encode_request(InferRequest((tensor,), id=str(value)))
            outs.append(Out(self.requests, at, None, raw, [*own, *headers]))
        return await self.send_raw(outs)

    async def send_raw(self, outs: Sequence[Out]) -> list[Key]:
        """Send records as they are."""
        keys = []
        for out in outs:
            keys.append((out.partition, self._ends[out.partition]))
            self._ends[out.partition] += 1
        if isinstance(self.log, MemoryLog):
            self.log.append(outs)  # whatever fault its produces have just now
        else:
            await self._publisher.publish(outs)
        self.sent += keys
        return keys

    def started_anew(self) -> None:
        """Count offsets from 0 again: the requests topic was deleted."""
        self._ends = dict.fromkeys(self._ends, 0)

    async def until_topic(self, topic: str) -> None:
        """Wait until a topic is there."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.log.partitions(topic) is None:  # another process makes it
                await self.read()

    async def read_all(self) -> None:
        """Read until a moment brings nothing more."""
        while await self.read(0.5):
            pass

    async def read(self, timeout_s: float = 0.02) -> bool:
        """Read what there is on results and dead letters; False if that is nothing."""
        blocks = await self._reader.poll(5000, timeout_s)
        for block in blocks:
            for record in block.records:
                if block.tp.topic == self.topology.dead_letters:
                    key = _key(record, "dead-letter-source")
                    self.dead_letters.add(key)
                    self.letters.append(key)
                else:
                    key = _key(record, SOURCE)
                    self.answers.setdefault(key, []).append(answer_of(record))
        return bool(blocks)

    async def until(
        self,
        condition: Callable[[], object],
        what: str,
        within_s: float = PATIENCE_S,
        *,
        must: bool = True,
    ) -> None:
        """Read answers until a condition holds; ``must`` false lets a scene with a planted bug go on."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                assert not must, f"{what} did not come; answered {sorted(self.answers)}"
                return
            await self.read()
        await self.read(0.0)

    async def until_answered(
        self, keys: Sequence[Key], within_s: float = PATIENCE_S, *, must: bool = True
    ) -> None:
        """Read until all of these have an answer."""
        await self.until(lambda: set(keys) <= self.answers.keys(), "answers", within_s, must=must)

    async def until_committed(
        self,
        condition: Callable[[Mapping[int, Position]], object],
        within_s: float = PATIENCE_S,
        *,
        must: bool = True,
    ) -> Mapping[int, Position]:
        """Look at the group's positions until a condition holds; returns them."""
        deadline = asyncio.get_running_loop().time() + within_s
        async with self._looking() as look:
            while True:
                found = await look()
                if condition(found):
                    return found
                if asyncio.get_running_loop().time() > deadline:
                    assert not must, f"the commit did not come: {found}"
                    return found
                await self.read(0.05)

    async def committed(self) -> Mapping[int, Position]:
        """Return the group's positions by partition, with metadata."""
        async with self._looking() as look:
            return await look()

    def is_all_committed(self, found: Mapping[int, Position]) -> bool:
        """Whether positions are at the end of all that was sent."""
        return all(found.get(p, Position(0)).offset == end for p, end in self._ends.items())

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[Callable[[], object]]:
        if isinstance(self.log, MemoryLog):
            log = self.log

            async def look() -> dict[int, Position]:
                at = log.committed(self.group)
                return {tp.partition: p for tp, p in at.items() if tp.topic == self.requests}

            yield look
            return
        admin = AIOKafkaAdminClient(bootstrap_servers=self.logs.properties["bootstrap.servers"])
        await admin.start()
        wanted = [TopicPartition(self.requests, number) for number in self._ends]

        async def ask() -> dict[int, Position]:
            at = await admin.list_consumer_group_offsets(self.group, partitions=wanted)
            return {
                tp.partition: Position(p.offset, p.metadata)
                for tp, p in at.items()
                if tp.topic == self.requests and p.offset >= 0
            }

        try:
            yield ask
        finally:
            await admin.close()

    @asynccontextmanager
    async def worker(
        self,
        repository: Path,
        *,
        pool: Callable[..., object] = Pool,
        log: Log | None = None,
        revoke_grace_s: float = 5.0,
        **settings: object,
    ) -> AsyncIterator[Running]:
        """Run a worker while the block runs, on a log of its own; it is stopped at the end if it still runs."""
        options = {"commit_interval_ms": 20, "revoke_grace_s": revoke_grace_s}
        models = Repository([repository])
        assert not models.load()
        name = f"w{next(self._names)}"
        settings = {"delivery": self.mode, **settings}
        bounds = WorkerSettings(name, revoke_grace_s=revoke_grace_s, **settings)  # type: ignore[arg-type]  # fields by name
        async with AsyncExitStack() as stack:
            stack.callback(models.close)
            if log is None:
                log = await stack.enter_async_context(self.logs.open(**options))
            worker = Worker(log, models, self.topology, bounds, pool=pool)  # type: ignore[arg-type]  # as the worker's
            running = Running(worker, log, models)
            try:
                await running.until_ready()
                yield running
            except BaseException:
                running.task.cancel()  # without the patience of a drain
                await asyncio.gather(running.task, return_exceptions=True)
                raise
            if not running.task.done():
                await running.stop()
        if not running.task.cancelled():
            running.task.result()


def _key(record: Record, header: str) -> Key:
    _, partition, offset = dict(record.headers)[header].decode().rsplit("/", 2)
    return int(partition), int(offset)


def answer_of(record: Record) -> Answer:
    """Read an answer."""
    headers = dict(record.headers)
    status, reason = headers[STATUS].decode(), headers.get("reason", b"").decode()
    try:
        (output,) = decode_response(record.value, record.headers).outputs
    except InferError as error:
        assert status != "OK"
        return Answer(status, reason, (), error.detail)
    return Answer(status, reason, tuple(output.numpy().reshape(-1)[:4].tolist()))


# What must be true of every scene.


def finished(position: Position | None, end: int) -> set[int]:
    """Return the offsets below ``end`` that a committed position calls finished (DELIVERY P-1)."""
    if position is None:
        return set()
    ledger = OffsetLedger()
    warning = ledger.restore(position)
    assert not warning, warning
    return {offset for offset in range(end) if ledger.is_finished(offset)}


def check_answers(stage: Stage, keys: Sequence[Key], *, once: bool) -> None:
    """Check that each request has one answer (``once``), or at least one and all equal (P-16)."""
    for key in keys:
        found = stage.answers.get(key, [])
        assert found or key in stage.dead_letters, f"request {key} has no answer"
        assert len(set(found)) <= 1, f"request {key} has different answers: {found}"
        assert not once or len(found) == 1, f"request {key} has {len(found)} answers"


def check_committed(stage: Stage, committed: Mapping[int, Position]) -> None:
    """Check that what is committed as finished has its answer (B13, B19, B22)."""
    for partition, offset in stage.sent:
        if offset in finished(committed.get(partition), offset + 1):
            assert (partition, offset) in stage.answers, (
                f"request {(partition, offset)} is committed and has no answer: {committed}"
            )


async def group_of(bootstrap: str, group: str) -> tuple[str, int]:
    """Return state and number of members of a group, as the broker has them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        (response,) = await admin.describe_consumer_groups([group])
        (found,) = response.groups
        return found[2], len(found[5])
    finally:
        await admin.close()


async def until_members(bootstrap: str, group: str, count: int) -> None:
    """Wait until a group is stable with so many members, or empty."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    wanted = ("Stable" if count else "Empty", count)
    while (found := await group_of(bootstrap, group)) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"{found}, expected {count} members"
        await asyncio.sleep(0.05)
