"""The speech demo's workers: `headrace worker` as a process that can be killed, and the topics that they leave."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from headrace.deploy.serving import (
    are_ready,
    batch_rows,
    free_ports,
    start_command,
    tail,
    until_ended,
    until_ready,
)
from headrace.schemas.errors import ConfigError
from headrace.streams.topology import Topology


class WorkerProcess:
    """A running `headrace worker`."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        """Keep the process, the port of its health and metrics, and the file with what it prints."""
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self._log = log
        self._is_killed = False

    async def until_ready(self) -> None:
        """Wait until its models are ready and it has its partitions; `ConfigError` if it ends or never is."""
        await until_ready(lambda: are_ready(self._url), self._process, self._log, "worker")

    async def batch_rows(self, model: str) -> dict[str, int]:
        """Return its histogram of batch sizes."""
        return await batch_rows(self._url, model)

    async def outlives(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until one of these tasks is done or fails, or this process ends: whichever comes first."""
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()

    async def kill(self) -> None:
        """End it with SIGKILL and wait until the system has."""
        self._is_killed = True
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """Stop it as an operator would; returns its exit status, 0 if it was killed here."""
        if self._is_killed:
            return 0
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await until_ended(self._process)

    def tail(self) -> str:
        """Return the end of what it has printed."""
        return tail(self._log)


@dataclass(frozen=True, slots=True)
class Operator:
    """Whoever starts the workers, each in the same way.

    Attributes:
        folder: With ``models``; takes the file of properties and what the workers print.
        properties: Kafka's.
        topology: Their topics.
        snapshot_every: Their option of this name.
    """

    folder: Path
    properties: Mapping[str, str]
    topology: Topology
    snapshot_every: int

    @asynccontextmanager
    async def working(self, name: str, *, is_awaited: bool = True) -> AsyncIterator[WorkerProcess]:
        """Run a worker of this name while the block runs, and wait until it is ready if that is asked for.

        Raises:
            ConfigError: It does not start, or does not end well.
        """
        file, log = self.folder / "client.properties", self.folder / f"worker-{name}.log"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        (port,) = free_ports(1)
        process = await start_command(
            log,
            *("worker", str(self.folder / "models"), "--kafka-config", str(file)),
            *("--worker-id", name, "--worker-port", str(port)),
            *("--topic-prefix", self.topology.prefix),
            *("--partitions", str(self.topology.partitions)),
            *("--snapshot-every", str(self.snapshot_every)),
        )
        worker = WorkerProcess(process, port, log)
        try:
            if is_awaited:
                await worker.until_ready()
            yield worker
        finally:
            status = await worker.stop()
        if status != 0:
            raise ConfigError(f"headrace worker ended with status {status}:\n{worker.tail()}")


async def remove_topics(bootstrap: str, topology: Topology) -> None:
    """Delete the topics with this prefix, which is of one run only."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        ours = [
            topic for topic in await admin.list_topics() if topic.startswith(f"{topology.prefix}.")
        ]
        if ours:
            await admin.delete_topics(ours)
    finally:
        await admin.close()
