"""The whole service in one process on any log: worker with real threads, gateway, HTTP server, metrics page.

Tests put records in as any producer may, ask over HTTP, and look at what came out: answers by the record that they
answer, dead letters, committed offsets, metrics. Nothing here knows what a test is about.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import aiohttp
import numpy as np
from aiokafka import AIOKafkaProducer
from headrace.backends.backend import Backend, find_backend
from headrace.consumers.mapped import MappedModel
from headrace.consumers.pool import Pool
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import ConfigError
from headrace.schemas.record import SOURCE, TP, Out, Record
from headrace.streams.claims import Claims
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.gateway_metrics import GatewayMetrics
from headrace.streams.http import HttpServer
from headrace.streams.http_call import HttpSettings
from headrace.streams.log import EARLIEST, Log, Span
from headrace.streams.memory import MemoryLog
from headrace.streams.metrics import MetricsServer, metrics_page
from headrace.streams.topology import Topology
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 30.0
"""How long anything may take on a busy machine before a test gives up."""


async def until(
    condition: Callable[[], object], what: str = "", timeout_s: float = WAIT_S
) -> None:
    """Wait for a condition that other tasks or threads bring about."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():  # any condition at all: nobody could set an event
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.002)


TWO_NUMBERS = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }]
"""
"""Configuration of a model that gives back two numbers."""


def write_models(root: Path, configs: Mapping[str, str], versions: Sequence[int] = (1,)) -> Path:
    """Write a repository of models that need no file, such as the identity backend's."""
    for name, text in configs.items():
        for version in versions:
            (root / name / str(version)).mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text, encoding="utf-8")
    return root


@asynccontextmanager
async def loaded(
    root: Path, find: Callable[[str], Backend] = find_backend
) -> AsyncIterator[Repository]:
    """Load every model of a repository; ``find`` brings backends of a test's own."""
    repository = Repository([root], find=find)
    assert not repository.load(), repository.failures
    try:
        yield repository
    finally:
        repository.close()


class Producer:
    """Produces records as strangers do: whatever the protocol can carry, nothing of ours in between."""

    def __init__(self, log: Log, properties: Mapping[str, str]) -> None:
        self._log = log
        self._bootstrap = properties.get("bootstrap.servers", "")

    async def send(self, outs: Sequence[Out]) -> list[str]:
        """Write records in order; returns the ``source`` that each one's answer must name."""
        if isinstance(self._log, MemoryLog):
            return [self._append(out) for out in outs]
        async with AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", max_request_size=8_000_000
        ) as producer:
            return [await _send(producer, out) for out in outs]

    def _append(self, out: Out) -> str:
        assert isinstance(self._log, MemoryLog)
        offset = self._log.existing(TP(out.topic, out.partition)).end
        self._log.append([out])
        return f"{out.topic}/{out.partition}/{offset}"


async def _send(producer: AIOKafkaProducer, out: Out) -> str:
    # A batch of one: `send` refuses a record with neither key nor value, which other clients do write.
    batch = producer.create_batch()
    batch.append(timestamp=None, key=out.key, value=out.value, headers=list(out.headers))
    future = await producer.send_batch(batch, out.topic, partition=out.partition)
    written = await future
    return f"{out.topic}/{out.partition}/{written.offset}"


class Tap:
    """Reads topics from their beginning and keeps what came, without a group. An async context manager.

    Attributes:
        records: In the order of reading.
    """

    def __init__(self, log: Log, *topics: str) -> None:
        self.records: list[Record] = []
        self._log = log
        self._topics = topics
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        spans = {}
        for topic in self._topics:
            for number in range(await self._log.partitions(topic) or 0):
                spans[TP(topic, number)] = Span(EARLIEST)
        reader = await self._stack.enter_async_context(self._log.reader(spans))

        async def follow() -> None:
            while True:
                for block in await reader.poll(10_000, 0.2):
                    self.records += block.records

        self._task = asyncio.create_task(follow())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._stack.aclose()

    def by_source(self, topic: str = "") -> dict[str, list[Record]]:
        """Return answers by the record that they answer, of one topic or of all."""
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            source = dict(record.headers).get(SOURCE)
            if source is not None and topic in ("", record.topic):
                found[source.decode()].append(record)
        return found

    async def answered(self, sources: Iterable[str], timeout_s: float = WAIT_S) -> None:
        """Wait until every one of these records has an answer."""
        missing = set(sources)

        def none_missing() -> bool:
            missing.difference_update(self.by_source())
            return not missing

        deadline = asyncio.get_running_loop().time() + timeout_s
        while not none_missing():
            self.check()
            assert asyncio.get_running_loop().time() < deadline, f"unanswered: {sorted(missing)}"
            await asyncio.sleep(0.01)

    def check(self) -> None:
        """Raise what ended the reading, if anything did."""
        if self._task.done():
            self._task.result()


class _Nobody:
    """A group member that takes nothing over: it only asks what was committed."""

    def assigned(self, tps: object, epoch: int) -> None:
        """Take nothing over."""

    async def revoked(self, tps: object, deadline: float) -> None:
        """Have nothing to hand back."""

    def lost(self, tps: object) -> None:
        """Have nothing to lose."""


async def committed(log: Log, topology: Topology, model: str) -> dict[int, tuple[int, int]]:
    """Return partition → (committed offset, end) of a model's requests; its workers have left the group."""
    topic = topology.requests(model)
    tps = {TP(topic, number) for number in range(await log.partitions(topic) or 0)}
    async with log.source(topology.group(model), {topic}, _Nobody()) as source:
        positions = await source.committed(tps)
        ends = await source.end_offsets(tps)
    return {
        tp.partition: (at.offset if (at := positions[tp]) is not None else 0, ends[tp])
        for tp in tps
    }


@dataclass
class Service:
    """What runs.

    Attributes:
        log: Everything's log.
        topology: Names of topics.
        repository: Loaded models.
        worker: The worker.
        gateway: The gateway, once `gatewaying` runs it.
        session: An HTTP client of it.
        url: The root of its V2 API.
        never_unready: Whether the worker was ready at each look since it first was.
    """

    log: Log
    topology: Topology
    repository: Repository
    worker: Worker
    running: asyncio.Task[None]
    stop: asyncio.Event
    never_unready: bool = True
    gateway: Gateway = field(init=False)
    session: aiohttp.ClientSession = field(init=False)
    url: str = ""
    metrics_url: str = ""

    def model(self, name: str, version: int = 1):
        """Return a loaded model, for what a test double remembers."""
        return self.repository.models[name].versions[version].model

    def counts(self, name: str, version: int = 1):
        """Return what the worker counts of a version."""
        return self.worker.models[name].answering.versions[version].observer.counts

    def version(self, name: str, version: int = 1):
        """Return a version at work."""
        return self.worker.models[name].answering.versions[version]

    def settled(self, name: str) -> bool:
        """Whether nothing that was read is unfinished."""
        parts = self.worker.models[name].partitions.values()
        return bool(parts) and all(part.in_flight == 0 for part in parts)

    async def stop_worker(self) -> None:
        """Drain and leave."""
        self.stop.set()
        await self.running

    async def crash_worker(self) -> None:
        """End the worker without a word: what it said last stays in the status topic."""
        self.running.cancel()
        await asyncio.wait([self.running])

    def worker_page(self) -> str:
        """Return the worker's own metrics."""
        return generate_latest(self.worker.registry).decode()

    async def page(self) -> str:
        """Return the gateway's metrics page."""
        async with self.session.get(self.metrics_url) as response:
            assert response.status == 200
            return await response.text()

    async def sample(self, name: str, **labels: str) -> float:
        """Return one value of the gateway's metrics page; it must be there."""
        return samples(await self.page(), name, **labels)


def samples(page: str, name: str, **labels: str) -> float:
    """Return the sum of a page's samples of that name with at least these labels; there must be one.

    The parser puts ``_total`` behind a counter's name, which Triton's do not have.
    """
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in (name, f"{name}_total") and labels.items() <= sample.labels.items()
    ]
    assert found, f"no sample {name}{labels} on the page"
    return sum(found)


@asynccontextmanager
async def working(
    log: Log,
    repository: Repository,
    topology: Topology,
    *,
    plant: Callable[[Worker], None] = lambda _: None,
    pool: Callable[..., Pool] = Pool,
    wait: bool = True,
    claims: Claims | None = None,
    mapped: Mapping[str, MappedModel] = MappingProxyType({}),
    **settings: object,
) -> AsyncIterator[Service]:
    """Run a worker around the block; it drains when the block ends.

    Args:
        log: Open.
        repository: Loaded.
        topology: Names of topics.
        plant: Puts a part of the test's own into the worker, before it joins its groups.
        pool: Makes the instances' threads.
        wait: Wait until it is ready.
        claims: Store of values that no record can hold.
        mapped: Models on topics of other people's.
        settings: Of `WorkerSettings`.
    """
    bounds = {"worker_id": "w1", "exit_timeout_s": 10.0, "status_interval_s": 0.5} | settings
    bound = WorkerSettings(**bounds)
    worker = Worker(log, repository, topology, bound, pool=pool, claims=claims, mapped=mapped)
    stop = asyncio.Event()
    async with worker:
        plant(worker)
        running = asyncio.create_task(worker.run(stop))
        service = Service(log, topology, repository, worker, running, stop)
        looking = asyncio.create_task(_look(service))
        try:
            if wait:
                await until(lambda: worker.ready() or running.done(), f"{worker.troubles()}")
            yield service
        finally:
            looking.cancel()
            stop.set()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()


async def _look(service: Service) -> None:
    """Note whether readiness falls before the stop."""
    seen = False
    while not service.stop.is_set():
        ready = service.worker.ready()
        if seen and not ready:
            service.never_unready = False
        seen = seen or ready
        await asyncio.sleep(0.005)


@asynccontextmanager
async def gatewaying(
    service: Service,
    settings: GatewaySettings = GatewaySettings(interval_ms=500),  # noqa: B008  # frozen
    claims: Claims | None = None,
    **http: object,
) -> AsyncIterator[Service]:
    """Run a gateway with its HTTP and metrics servers around the block, on the worker's log."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    gateway = Gateway(service.log, service.topology, settings, observer=metrics, claims=claims)
    metrics.watch(gateway)

    def page() -> bytes:
        return metrics_page(gateway.fleet.series(gateway.now_ms()), registry)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateway)
        shown = await stack.enter_async_context(MetricsServer(page, port=0))
        async with asyncio.timeout(WAIT_S):
            await gateway.wait_ready()
        bounds = {"port": 0, "drain_timeout_s": 5.0} | http
        server = await stack.enter_async_context(HttpServer(gateway, HttpSettings(**bounds)))
        service.gateway = gateway
        service.url = f"http://127.0.0.1:{server.port}"
        service.metrics_url = f"http://127.0.0.1:{shown.port}/metrics"
        connector = aiohttp.TCPConnector(limit=0)
        service.session = await stack.enter_async_context(
            aiohttp.ClientSession(service.url, connector=connector)
        )
        await until(gateway.is_ready, f"{gateway}")
        yield service


@asynccontextmanager
async def serving(
    log: Log,
    root: Path,
    topology: Topology,
    *,
    find: Callable[[str], Backend] = find_backend,
    gateway: GatewaySettings = GatewaySettings(interval_ms=500),  # noqa: B008  # frozen
    http: Mapping[str, object] | None = None,
    **worker: object,
) -> AsyncIterator[Service]:
    """Run worker, gateway and HTTP server of a repository around the block."""
    async with (
        loaded(root, find) as repository,
        working(log, repository, topology, **worker) as service,
        gatewaying(service, gateway, **(http or {})) as whole,
    ):
        yield whole


Play = Callable[[Batch], "Mapping[str, np.ndarray] | None"]


class ScriptedBackend:
    """A backend of a test's own: echoes INPUTi as OUTPUTi unless its script says otherwise.

    Attributes:
        play: Called in the instance's thread with each batch; what it returns goes out, None is an echo.
        repeatable: Batches may run again.
        makes: How often its instance can still be made.
        executions: The request ids of each execution that began, in order.
        rows: Its rows, in the same order.
    """

    name = "scripted"
    default_filename = ""
    default_cpu_count = 1
    default_max_batch_size = 0
    supports_decoupled = False
    concurrency = 1
    device = "CPU"

    def __init__(self, play: Play = lambda _: None, *, repeatable: bool = True) -> None:
        self.play = play
        self.repeatable = repeatable
        self.makes = 1_000
        self.executions: list[list[str]] = []
        self.rows: list[int] = []

    def __call__(self, name: str) -> Self:
        """Be found by every name."""
        return self

    def gpus(self) -> tuple[int, ...]:
        """None."""
        return ()

    def complete(self, config, path):
        """Nothing is left open."""
        return config

    def load(self, config, path) -> Self:
        """Be the model, too."""
        return self

    def instance(self, name: str, device: object) -> Self:
        """And its one instance."""
        if not self.makes:
            raise ConfigError("no instance can be made any more")
        self.makes -= 1
        return self

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Note what came, ask the script, echo."""
        self.executions.append([entry.id for entry in batch.entries if entry is not None])
        self.rows.append(batch.rows)
        outputs = self.play(batch)
        if outputs is None:
            outputs = {
                name.replace("INPUT", "OUTPUT"): array for name, array in batch.inputs().items()
            }
        emit(Responses(outputs))

    def healthy(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to free."""


class Gate:
    """Lets executions through one by one, when the test says so."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self.waiting = 0

    def __call__(self, batch: Batch) -> None:
        """Wait for a pass: the script of a `ScriptedBackend`."""
        self.waiting += 1
        assert self._passes.acquire(timeout=WAIT_S)
        self.waiting -= 1

    def open(self, passes: int = 1) -> None:
        """Let so many executions go on, now or later."""
        self._passes.release(passes)
