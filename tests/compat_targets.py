"""Starts the servers of the compatibility suite as child processes: ``headrace serve``, and Triton where it can be had.

Triton comes from scripts that are not ours: `HEADRACE_PEERS` names their folder, `PEER_WORK` the one that their
``setup.sh`` has filled. Both servers get Triton's own option names, listen on loopback, and end with their test.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import compat_models
from headrace.deploy.serving import free_ports, tail

START_S = 120.0
STOP_S = 40.0
POLL_S = 0.05


class Answer(NamedTuple):
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> object:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error's body; it must be one (SEMANTICS PB-30)."""
        found = json.loads(self.body)
        assert list(found) == ["error"]
        return found["error"]


@dataclass
class Target:
    """A running server.

    Attributes:
        name: ``headrace`` or ``triton``.
        http: ``host:port`` of V2 over HTTP.
        grpc: The same over gRPC.
        metrics: The same of the metrics page.
        process: The child process.
        early: Statuses that readiness had before it was 200: what answered though it was not ready.
        version: As the server's metadata says.
        is_stopping: It was asked to end.
    """

    name: str
    http: str
    grpc: str
    metrics: str
    process: subprocess.Popen[bytes]
    early: list[int] = field(default_factory=list)
    version: tuple[int, ...] = ()
    is_stopping: bool = False

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        address: str = "",
    ) -> Answer:
        """Send one request, byte for byte as it is written here, on a connection of its own."""
        connection = http.client.HTTPConnection(address or self.http, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            names = {key.lower(): value for key, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())

    def stop(self) -> None:
        """Ask it to end, once: a second signal would end it without a drain."""
        if not self.is_stopping:
            self.is_stopping = True
            self.process.send_signal(signal.SIGTERM)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a GET."""
        return self.ask("GET", path, headers=headers)

    def post(
        self, path: str, value: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a POST: bytes as they are, None as an empty body, anything else as JSON."""
        if value is None:
            body = b""
        elif isinstance(value, bytes):
            body = value
        else:
            body = json.dumps(value).encode()
        return self.ask("POST", path, body, headers)


def peers() -> Path | None:
    """Return the folder of the scripts that start Triton, None where there is none or it is not set up."""
    scripts, work = os.environ.get("HEADRACE_PEERS"), os.environ.get("PEER_WORK")
    if not scripts or not work or not (Path(work) / "vtriton" / "bin" / "python").exists():
        return None
    return Path(scripts)


def names() -> list[str]:
    """Return the servers that can be started here."""
    return ["headrace", "triton"] if peers() else ["headrace"]


@contextlib.contextmanager
def running(
    name: str, repository: Path, options: Sequence[str] = (), ready_at: str = "/v2/health/ready"
) -> Iterator[Target]:
    """Run a server around the block, entered once ``ready_at`` answers 200.

    Args:
        name: ``headrace`` or ``triton``.
        repository: Written for it by `compat_models`.
        options: Further options, by Triton's names.
        ready_at: Path to wait for; a model's where the server's readiness never comes.
    """
    start = _start_headrace if name == "headrace" else _start_triton
    log = repository.parent / f"{repository.name}.log"
    target = start(repository, options, log)
    try:
        _wait(target, log, ready_at)
        version = target.get("/v2").json["version"]
        target.version = tuple(int(part) for part in version.split(".")[:2])
        yield target
    finally:
        target.stop()
        try:
            target.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            target.process.kill()
            target.process.wait()


class Pool:
    """Starts each server when the first case asks for it, again after one that it did not outlive.

    What could not be started is not tried again: each later case is told why.
    """

    def __init__(self, start: Callable[[str], contextlib.AbstractContextManager[Target]]) -> None:
        """Keep how the server of a name is started."""
        self._start = start
        self._stack = contextlib.ExitStack()
        self._found: dict[str, Target | AssertionError] = {}

    def __call__(self, name: str) -> Target:
        """Return the running server of this name."""
        known = self._found.get(name)
        if known is None or (isinstance(known, Target) and known.process.poll() is not None):
            try:
                self._found[name] = self._stack.enter_context(self._start(name))
            except AssertionError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, AssertionError):
            raise found
        return found

    def close(self) -> None:
        """End what runs."""
        self._stack.close()


def write(
    name: str, root: Path, models: Mapping[str, compat_models.Model] = compat_models.MODELS
) -> Path:
    """Write a repository for one of the servers; returns ``root``."""
    made = compat_models.write_headrace if name == "headrace" else compat_models.write_triton
    return made(root, models)


def _start_headrace(repository: Path, options: Sequence[str], log: Path) -> Target:
    broker, grpc, http_, metrics, worker = free_ports(5)
    words = {
        "--broker-port": broker,
        "--grpc-port": grpc,
        "--http-port": http_,
        "--metrics-port": metrics,
        "--worker-port": worker,
    }
    argv = [sys.executable, "-m", "headrace.deploy.cli", "serve", str(repository)]
    argv += [word for pair in words.items() for word in map(str, pair)]
    process = _spawn([*argv, *options], log, {})
    return Target("headrace", *(f"127.0.0.1:{port}" for port in (http_, grpc, metrics)), process)


def _start_triton(repository: Path, options: Sequence[str], log: Path) -> Target:
    ports = free_ports(3)
    variables = ("TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT")
    env = {key: str(port) for key, port in zip(variables, ports, strict=True)}
    scripts = peers()
    assert scripts is not None
    argv = ["bash", str(scripts / "start_triton.sh"), str(repository)]
    none = str(Path(__file__).parent / "compat" / "triton_none.sh")
    env |= {"TRITON_CONTROL_MODE": "none", "BASH_ENV": none}
    process = _spawn([*argv, *options], log, env)
    return Target("triton", *(f"127.0.0.1:{port}" for port in ports), process)


def _spawn(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            argv, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **env}
        )


def _wait(target: Target, log: Path, path: str) -> None:
    """Ask until the path answers 200; what answers otherwise is noted."""
    for _ in range(int(START_S / POLL_S)):
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = target.get(path).status
            if status == 200:
                return
            target.early.append(status)
        with contextlib.suppress(subprocess.TimeoutExpired):
            target.process.wait(POLL_S)
            raise AssertionError(f"{target.name} ended before it was ready:\n{tail(log)}")
    raise AssertionError(f"{target.name} is not ready after {START_S} s:\n{tail(log)}")
