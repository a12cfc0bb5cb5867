"""Starts `headrace serve` and other commands as child processes, and stops them as an operator would."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from headrace.schemas.errors import ConfigError
from prometheus_client.parser import text_string_to_metric_families

START_S = 60.0
"""Seconds until the service must be ready."""
STOP_S = 40.0
"""Seconds until it must have ended: its own time-out for what is in flight, and a little."""


class Service:
    """A running `headrace serve`.

    Attributes:
        bootstrap: Address of its broker.
        url: Root of its V2 API.
        grpc: Host and port of its V2 API over gRPC.
        metrics_url: Root of the gateway's metrics.
        worker_url: Root of the worker's own port.
        log: File with what it prints.
        process: The child process, once started.
    """

    def __init__(self, ports: Sequence[int], log: Path) -> None:
        """Keep the addresses: ports of broker, V2, gRPC, metrics and worker; ``log`` is what it prints."""
        broker, http, grpc, metrics, worker = ports
        self.bootstrap = f"127.0.0.1:{broker}"
        self.url = f"http://127.0.0.1:{http}"
        self.grpc = f"127.0.0.1:{grpc}"
        self.metrics_url = f"http://127.0.0.1:{metrics}"
        self.worker_url = f"http://127.0.0.1:{worker}"
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    def stop(self) -> None:
        """Ask it to stop, once: a second signal would end it without a drain."""
        if self.process is not None and self.process.returncode is None and not self._is_stopping:
            self._is_stopping = True
            self.process.send_signal(signal.SIGTERM)

    async def is_ready(self) -> bool:
        """Ask whether every model is ready at the gateway, and the worker has its partitions."""
        return await are_ready(self.url, self.worker_url)


async def are_ready(*roots: str) -> bool:
    """Ask each of these roots whether it is ready; what does not answer is not."""
    try:
        async with aiohttp.ClientSession() as session:
            for root in roots:
                async with session.get(f"{root}/v2/health/ready") as answer:
                    if answer.status != 200:
                        return False
    except aiohttp.ClientError:
        return False
    return True


async def batch_rows(worker_url: str, model: str) -> dict[str, int]:
    """Return a worker's histogram of batch sizes: a bucket's rows, such as ``5-8``, → number of batches.

    Args:
        worker_url: Root of the worker's own port.
        model: Name of the model.
    """
    async with aiohttp.ClientSession() as session, session.get(f"{worker_url}/metrics") as answer:
        text = await answer.text()
    rows: dict[str, int] = {}
    lower, before = 0, 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name != "headrace_batch_rows_bucket" or sample.labels["model"] != model:
                continue
            total, bound = int(sample.value), sample.labels["le"]
            if bound == "+Inf":
                name = f"> {lower}"
            else:
                upper = int(float(bound))
                name = str(upper) if upper == lower + 1 else f"{lower + 1}-{upper}"
                lower = upper
            if total > before:
                rows[name] = total - before
            before = total
    return rows


@asynccontextmanager
async def serving(path: Path, log: Path, options: Sequence[str] = ()) -> AsyncIterator[Service]:
    """Serve a repository or a model on the embedded broker, on free ports, while the block runs.

    Args:
        path: As for ``headrace serve``.
        log: File to write what it prints to.
        options: Further options.

    Raises:
        ConfigError: It does not become ready, or does not end cleanly; the last lines of its log are in the sentence.
    """
    names = ("--broker-port", "--http-port", "--grpc-port", "--metrics-port", "--worker-port")
    ports = free_ports(len(names))
    addresses = [
        word for name, port in zip(names, ports, strict=True) for word in (name, str(port))
    ]
    service = Service(ports, log)
    service.process = process = await start_command(log, "serve", str(path), *addresses, *options)
    try:
        await until_ready(service.is_ready, process, log)
        yield service
    finally:
        service.stop()
        status = await until_ended(process)
    if status != 0:
        raise ConfigError(f"headrace serve ended with status {status}:\n{tail(log)}")


async def start_command(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start `headrace` with these arguments; what it prints goes into ``log``."""
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", *arguments),
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
        )


async def until_ready(
    is_ready: Callable[[], Awaitable[bool]],
    process: asyncio.subprocess.Process,
    log: Path,
    command: str = "serve",
) -> None:
    """Wait until a started command is ready.

    Raises:
        ConfigError: It ends, or is not ready in time; the last lines of its log are in the sentence.
    """
    deadline = asyncio.get_running_loop().time() + START_S
    while not await is_ready():
        if process.returncode is not None:
            raise ConfigError(f"headrace {command} did not start:\n{tail(log)}")
        if asyncio.get_running_loop().time() > deadline:
            raise ConfigError(
                f"headrace {command} is not ready after {START_S:.0f} s:\n{tail(log)}"
            )
        await asyncio.sleep(0.1)


async def until_ended(process: asyncio.subprocess.Process) -> int:
    """Wait until a process that was asked to stop has ended, and kill it past `STOP_S`; returns its status."""
    try:
        return await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        return await process.wait()


def tail(log: Path, lines: int = 20) -> str:
    """Return the end of what a process has printed."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
