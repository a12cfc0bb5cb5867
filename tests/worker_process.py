"""`headrace worker` as a real process: started as an operator starts it, watched by its own port, ended by its pid."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import aiohttp
from headrace.deploy.serving import free_ports
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

START_S = 90.0
"""Until it must be ready: imports and a join of the group on a busy machine."""
EXIT_S = 60.0
"""Until it must have ended after a signal."""


class WorkerProcess:
    """A running `headrace worker`.

    Attributes:
        process: The child; `pid`, `returncode`.
        log: File with what it prints.
        url: Where it listens.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.process = process
        self.log = log
        self.url = f"http://127.0.0.1:{port}"

    async def readiness(self) -> int:
        """Return the status of its readiness; 0 where nothing listens."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/v2/health/ready") as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, ConnectionError):
            return 0

    async def until_readiness(self, status: int) -> None:
        """Wait until readiness has this status; fails if the process ends first."""
        async with asyncio.timeout(START_S):
            while await self.readiness() != status:
                assert self.process.returncode is None, self.tail()
                await asyncio.sleep(0.02)

    async def until_printed(self, words: str) -> None:
        """Wait until it has printed something; fails if the process ends first."""
        async with asyncio.timeout(START_S):
            while words not in self.log.read_text(errors="replace"):
                assert self.process.returncode is None, self.tail()
                await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples over all labels."""
        return sum(sample.value for sample in await self.samples(name))

    async def samples(self, name: str) -> list[Sample]:
        """Return a metric's samples."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/metrics") as answer,
        ):
            text = await answer.text()
        return [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]

    async def until_metric(self, name: str, above: float = 0.0) -> None:
        """Wait until the sum of a metric is above a value; fails if the process ends first."""
        async with asyncio.timeout(START_S):
            while await self.metric(name) <= above:
                assert self.process.returncode is None, self.tail()
                await asyncio.sleep(0.05)  # it does not say when it changes

    async def rebalances(self) -> float:
        """Return its count of rebalances as of now: the gauge is set by a round of the worker's, twice awaited here."""
        for _ in range(2):
            before = await self.metric("headrace_loop_lag_seconds")  # measured in each round
            deadline = asyncio.get_running_loop().time() + START_S
            while await self.metric("headrace_loop_lag_seconds") == before:
                assert asyncio.get_running_loop().time() < deadline, self.tail()
                await asyncio.sleep(0.05)
        return await self.metric("headrace_rebalances")

    async def partitions(self, model: str) -> set[int]:
        """Return the partitions of the live sequences that it holds."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/v2/models/{model}/sequences?limit=1000") as answer,
        ):
            return {row["partition"] for row in (await answer.json())["sequences"]}

    def resident_bytes(self, field: str = "VmRSS") -> int:
        """Return the memory that it holds now, or its peak (``VmHWM``)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{field} is not in the process's status")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill it and wait."""
        self.signal(signal.SIGKILL)
        await self.exited()

    async def exited(self) -> int:
        """Wait for its end; returns its exit status, negative for a signal."""
        async with asyncio.timeout(EXIT_S):
            return await self.process.wait()

    def tail(self) -> str:
        """Return the end of what it printed."""
        return self.log.read_text(errors="replace")[-3000:]


@asynccontextmanager
async def worker_process(
    repository: Path,
    properties: Mapping[str, str],
    prefix: str,
    *,
    folder: Path,
    options: Sequence[str] = (),
    is_awaited: bool = True,
    program: Sequence[str] = ("-m", "headrace.deploy.cli"),
) -> AsyncIterator[WorkerProcess]:
    """Run a worker on a Kafka while the block runs; what still runs at its end is killed.

    Args:
        repository: Of its models.
        properties: Kafka's, ``bootstrap.servers`` among them.
        prefix: Of its topics.
        folder: For the file of properties and for what it prints.
        options: Further ones of the command line.
        is_awaited: Wait until it is ready.
        program: What Python runs with the command line of a worker.
    """
    file, log = _files(folder, properties)
    (port,) = free_ports(1)
    command = ["worker", str(repository), "--kafka-config", str(file), "--topic-prefix", prefix]
    command += ["--worker-port", str(port), "--partitions", "2", *options]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, *command),
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )
    worker = WorkerProcess(process, port, log)
    try:
        if is_awaited:
            await worker.until_readiness(200)
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def gateway_process(
    properties: Mapping[str, str], prefix: str, *, folder: Path, options: Sequence[str] = ()
) -> AsyncIterator[WorkerProcess]:
    """Run a gateway while the block runs, ready at its begin; its port is that of the V2 API."""
    file, log = _files(folder, properties)
    port, metrics = free_ports(2)
    command = ["gateway", "--kafka-config", str(file), "--topic-prefix", prefix]
    command += ["--http-port", str(port), "--grpc-port", "0", "--metrics-port", str(metrics)]
    command += options
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", *command),
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )
    gateway = WorkerProcess(process, port, log)
    try:
        await gateway.until_readiness(200)
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Crew:
    """Worker processes of one repository that come and go by name; an async context manager, which kills who is left.

    Attributes:
        workers: Name → the running process.
    """

    def __init__(
        self,
        repository: Path,
        properties: Mapping[str, str],
        prefix: str,
        *,
        folder: Path,
        options: Sequence[str] = (),
    ) -> None:
        self.workers: dict[str, WorkerProcess] = {}
        self._make = partial(worker_process, repository, properties, prefix)
        self._folder = folder
        self._options = options
        self._stacks: dict[str, AsyncExitStack] = {}

    async def __aenter__(self) -> Self:
        """Run nobody yet."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Kill who still runs."""
        for name in list(self.workers):
            await self.end(name)

    async def start(self, *names: str, options: Sequence[str] = ()) -> None:
        """Start workers of these names at the same time, and wait until they are ready."""
        more = (*self._options, *options)

        async def start(name: str) -> None:
            stack = AsyncExitStack()
            place = self._folder / name
            context = self._make(folder=place, options=("--worker-id", name, *more))
            self.workers[name] = await stack.enter_async_context(context)
            self._stacks[name] = stack

        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(start(name))

    async def held(self, model: str) -> dict[str, set[int]]:
        """Return name → the partitions whose sequences it holds."""
        return {name: await worker.partitions(model) for name, worker in self.workers.items()}

    async def until_held(self, model: str, count: int) -> None:
        """Wait until every worker holds sequences of so many partitions; somebody sends steps."""
        deadline = asyncio.get_running_loop().time() + START_S
        while any(len(partitions) != count for partitions in (await self.held(model)).values()):
            assert asyncio.get_running_loop().time() < deadline, await self.held(model)
            await asyncio.sleep(0.05)

    async def end(self, name: str) -> None:
        """Kill a worker, or clear up behind one that has ended."""
        del self.workers[name]
        await self._stacks.pop(name).aclose()


def _files(folder: Path, properties: Mapping[str, str]) -> tuple[Path, Path]:
    """Write the file of properties; returns it and the file for what the worker prints."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file, folder / "worker.log"
