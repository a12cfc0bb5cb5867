"""A real Schema Registry for tests: Apicurio by its Confluent interface, in memory, fetched once by Maven.

What a registry does wrong is played by a server in front of it: it asks for a password, fails, hangs, or answers as
something that is no registry at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLContext

import brokers
from aiohttp import ClientSession, web
from headrace.deploy.demo_topics_java import REGISTRY, fetch_registry
from headrace.schemas.errors import ConfigError
from headrace.streams import embedded_child
from yarl import URL

PATH = "/apis/ccompat/v7"
START_S = 90.0
LOOK_S = 0.1


class Registry:
    """One registry; what it knows ends with it.

    Attributes:
        port: Where it listens.
        url: Of its Confluent interface.
    """

    def __init__(self, folder: Path) -> None:
        """Start the process; it dies with this one. `wait` waits until it answers."""
        app = fetch_registry()
        self.port = brokers.free_port()
        self.url = f"http://127.0.0.1:{self.port}{PATH}"
        self._log = folder / "registry.log"
        program = shutil.which("java") or "java"
        fast = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        runner = app / f"apicurio-registry-app-{REGISTRY}-runner.jar"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", embedded_child.__file__, str(os.getpid())),
                    *(program, *fast, "-jar", str(runner)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=app,
                env={
                    **os.environ,
                    "QUARKUS_HTTP_HOST": "127.0.0.1",
                    "QUARKUS_HTTP_PORT": str(self.port),
                },
            )

    def wait(self) -> None:
        """Wait until it answers, and have it refuse what is not compatible with what was there before."""
        brokers.in_thread(self._until_up())
        self.ask("PUT", "/config", {"compatibility": "BACKWARD"})

    async def _until_up(self) -> None:
        async with asyncio.timeout(START_S):
            while True:
                assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
                with contextlib.suppress(urllib.error.URLError):
                    self.ask("GET", "/subjects")
                    return
                await asyncio.sleep(LOOK_S)

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> object:
        """Ask it as anybody may; returns what it says."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def register(self, subject: str, schema: str, **more: object) -> int:
        """Register a schema as a producer does; returns its id."""
        found = self.ask("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})
        return found["id"]

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(30)
        self._process.stdin.close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Registry]:
    """Run a registry; skips without Java, and fails where CI=true."""
    try:
        registry = Registry(folder)
    except ConfigError as missing:
        brokers.lacking(f"no Schema Registry: {missing}")
    try:
        registry.wait()
        yield registry
    finally:
        registry.stop()


Script = Callable[[web.Request], Awaitable[web.Response | None]]


class Front:
    """A server before a registry: passes on what its script returns None for.

    Attributes:
        url: Of the registry behind it, as clients may know it.
        asked: Method and path of all requests so far.
        script: Asked first, for each request.
    """

    def __init__(self, behind: str, url: str) -> None:
        """Keep both URLs."""
        self.url = url
        self.asked: list[str] = []
        self.script: Script | None = None
        self._behind = behind

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        path = request.raw_path.removeprefix(PATH)  # an escaped slash stays one
        self.asked.append(f"{request.method} {path}")
        if self.script is not None and (found := await self.script(request)) is not None:
            return found
        async with (
            ClientSession() as session,
            session.request(
                request.method,
                URL(self._behind + path, encoded=True),
                data=await request.read(),
                headers={"Content-Type": request.content_type},
            ) as response,
        ):
            kind = response.content_type
            return web.Response(
                status=response.status, body=await response.read(), content_type=kind
            )


@asynccontextmanager
async def front(behind: str = "", *, tls: SSLContext | None = None) -> AsyncIterator[Front]:
    """Run a server before the registry at a URL."""
    port = brokers.free_port()
    scheme = "http" if tls is None else "https"
    found = Front(behind, f"{scheme}://127.0.0.1:{port}{PATH}")
    runner = web.ServerRunner(web.Server(found.answer), shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield found
    finally:
        await runner.cleanup()
