"""The scene of a fault: worker processes, maybe a gateway, a steady load, and somebody who reads every answer.

One repository with a stateless model and one of sequences is served by three `headrace worker` processes, of which some
reach the brokers through proxies. Faults are injected into it by `chaos.faults`, and what came of it is judged by
`chaos.verdict`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from chaos.disk import Disk
from chaos.load import Load, Outcome
from chaos.tap import Tap
from cluster import Cluster
from fault_kit import until, until_members, write_model
from headrace.deploy.commands_audit import kafka_progress
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.audit_offsets import Progress
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import translate
from headrace.streams.log import LATEST, Mode, Span
from headrace.streams.topology import Topology
from sequence_kit import MODEL as SEQUENCES
from sequence_kit import write_folds
from tcp_proxy import TcpProxy, proxies
from worker_process import Crew, WorkerProcess, gateway_process

ROWS = "rows"
"""Name of the stateless model."""
NAMES = ("w1", "w2", "w3")
PARTITIONS = 6
RECOVER_S = 60.0
"""Within so long after a fault everything that was asked until then must be answered: else it hangs."""
CLIENT = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "fetch.max.wait.ms": "100",
    "request.timeout.ms": "10000",
    "metadata.max.age.ms": "5000",
}


class Scene:
    """Processes and load on a cluster, under one prefix of topics; an async context manager.

    Attributes:
        cluster: The brokers.
        mode: The delivery guarantee of the workers.
        topology: Names of topics.
        log: For looking.
        load: What is sent.
        tap: What is answered.
        between: Node → the proxy that ``proxied`` workers reach it through.
        proxied: Workers behind the proxies.
        disk: The small file system of one node; None without one.
        properties: Of a client that reaches the brokers without a proxy.
    """

    def __init__(
        self,
        cluster: Cluster,
        mode: Mode,
        folder: Path,
        prefix: str,
        *,
        proxied: Sequence[str] = ("w1",),
        disk: Disk | None = None,
        partitions: int = PARTITIONS,
    ) -> None:
        """Keep the parts; entering starts them.

        Args:
            cluster: The brokers, running.
            mode: The delivery guarantee.
            folder: For the repository and what processes print.
            prefix: Of the topics.
            proxied: Workers behind the proxies.
            disk: The small file system of one node.
            partitions: Of the requests topics.
        """
        self.cluster = cluster
        self.mode = mode
        self.topology = Topology(prefix=prefix, partitions=partitions)
        self.between: Mapping[int, TcpProxy] = {}
        self.log: KafkaLog
        self.load: Load
        self.tap: Tap
        self._folder = folder
        self.proxied = frozenset(proxied)
        self.disk = disk
        self._crews: dict[bool, Crew] = {}
        self._stack = AsyncExitStack()
        self._gateway = AsyncExitStack()
        self.properties = {"bootstrap.servers": cluster.bootstrap, **CLIENT}

    async def __aenter__(self) -> Self:
        """Start workers and gateway, connect load and tap."""
        repository = write_folds(self._folder / "models")
        write_model(repository, name=ROWS, batch=16, instances=2, delay_us=2000)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self.between = await enter(proxies(self.cluster.proxies))
            self.log = await enter(KafkaLog(self.properties))
            stack.push_async_callback(self._delete_topics)  # once nobody uses them any more
            for is_proxied in (False, True):
                where = self.cluster.proxied_bootstrap if is_proxied else self.cluster.bootstrap
                crew = Crew(
                    repository,
                    {**self.properties, "bootstrap.servers": where},
                    self.topology.prefix,
                    folder=self._folder / "crew",
                    options=self._options(),
                )
                self._crews[is_proxied] = await enter(crew)
            await self.start(*NAMES)
            stack.push_async_callback(self.end_gateway)
            self.load = await enter(
                Load(self.cluster.bootstrap, self.topology, rows=ROWS, sequences=SEQUENCES)
            )
            there = await self.log.topics()
            topics = (*self.results(), self.topology.replies)
            tps = [TP(topic, number) for topic in topics for number in range(there[topic])]
            self.tap = await enter(Tap(self.cluster.bootstrap, tps, self.mode))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End everything; brokers stay."""
        await self._stack.aclose()

    async def _delete_topics(self) -> None:
        """Rid the brokers of the topics: those of many scenes would fill the small disk."""
        with contextlib.suppress(LogError):  # there may be no broker to ask
            names = await self.log.topics()
            await self.log.delete([n for n in names if n.startswith(f"{self.topology.prefix}.")])

    def _options(self) -> Sequence[str]:
        options = ("--partitions", str(self.topology.partitions), "--commit-interval-ms", "100")
        return (*options, "--delivery", str(self.mode))

    # Names.

    @property
    def models(self) -> Sequence[str]:
        """Both models."""
        return (ROWS, SEQUENCES)

    @property
    def groups(self) -> Sequence[str]:
        """The models' consumer groups."""
        return [self.topology.group(model) for model in self.models]

    def requests(self) -> Sequence[str]:
        """Return the models' requests topics."""
        return [self.topology.requests(model) for model in self.models]

    def results(self) -> Sequence[str]:
        """Return the models' results topics."""
        return [self.topology.results(model) for model in self.models]

    # Processes.

    @property
    def workers(self) -> dict[str, WorkerProcess]:
        """Name → the process, of those that were started and not killed."""
        return {name: w for crew in self._crews.values() for name, w in crew.workers.items()}

    async def start(self, *names: str) -> None:
        """Start workers side by side, until they are ready."""
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._crews[name in self.proxied].start(name))

    async def kill(self, name: str) -> None:
        """Kill a worker."""
        await self.workers[name].kill()
        await self._crews[name in self.proxied].end(name)

    async def start_gateway(self) -> None:
        """Start the gateway, on new ports; the load calls it from now on."""
        context = gateway_process(
            self.properties, self.topology.prefix, folder=self._folder / "gateway"
        )
        gateway = await self._gateway.enter_async_context(context)
        self.load.gateway_url = gateway.url

    async def end_gateway(self) -> None:
        """Kill the gateway if one runs."""
        self.load.gateway_url = ""
        await self._gateway.aclose()

    def check_processes(self) -> None:
        """Check that nobody has ended by himself."""
        for name, worker in self.workers.items():
            ended = worker.process.returncode
            assert ended is None, f"worker {name} ended with {ended}: {worker.tail()}"

    # Waiting.

    async def until_members(self, count: int) -> None:
        """Wait until both groups are stable with so many members."""
        for group in self.groups:
            await until_members(self.cluster.bootstrap, group, count)

    async def until_flowing(self) -> None:
        """Wait until more is answered than now, and then all that was asked."""
        before = len(self.tap.ids)
        await until(lambda: len(self.tap.ids) > before, "the first answers")
        await self.until_answered("the start")

    async def until_answered(self, what: str, within_s: float = RECOVER_S) -> None:
        """Wait until everything that was sent up to now is answered, calls apart: the service goes on."""
        asked = set(self.load.steps.keys() | self.load.rows.keys()) - self.tap.ids
        deadline = asyncio.get_running_loop().time() + within_s
        while left := asked - self.tap.ids:
            self.check_processes()
            assert asyncio.get_running_loop().time() < deadline, (
                f"{len(left)} requests have no answer {within_s:g} s after {what}, the first is "
                f"{min(left)}\n{self.tails()}"
            )
            await asyncio.sleep(0.05)

    async def until_calls_answered(self) -> None:
        """Wait until one more call is answered."""
        before = self.load.calls[Outcome.ANSWERED]
        await until(lambda: self.load.calls[Outcome.ANSWERED] > before, "an answer of the gateway")

    def tails(self) -> str:
        """Return the end of what each worker printed."""
        return "\n".join(f"-- {name}: {w.tail()}" for name, w in self.workers.items())

    async def ends(self) -> dict[TP, int]:
        """Return where the requests end now."""
        there = await self.log.topics()
        tps = [TP(topic, number) for topic in self.requests() for number in range(there[topic])]
        async with self.log.reader({tp: Span(LATEST) for tp in tps}) as reader:
            return dict(reader.positions())

    async def finished(self) -> dict[TP, Progress]:
        """Return what the groups have committed as finished."""
        ask = kafka_progress(translate(self.properties))
        ends, found = await self.ends(), {}
        for model in self.models:
            topic = self.topology.requests(model)
            own = {tp for tp in ends if tp.topic == topic}
            found |= await ask(self.topology.group(model), own)
        return found

    async def drain(self, within_s: float = RECOVER_S) -> bool:
        """Wait until all that lies in the requests topics is committed as finished; False if that takes too long."""
        ends = await self.ends()
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            found = await self.finished()
            if all(found.get(tp, Progress()).offset >= end for tp, end in ends.items()):
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.1)


@asynccontextmanager
async def under_load(scene: Scene, *, calls: bool) -> AsyncIterator[None]:
    """Send and read while the block runs; then end sequences and calls, and wait until all is committed and read.

    What is not committed then is the business of the judge, not ours.
    """
    stop = asyncio.Event()
    reading = asyncio.create_task(scene.tap.run())
    sending = asyncio.create_task(scene.load.run(stop, calls=calls))
    try:
        yield
        stop.set()
        await sending
        await scene.drain()
        await scene.tap.until_end()
    finally:
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)
