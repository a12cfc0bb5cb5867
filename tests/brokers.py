"""Starts brokers for tests: one Apache Kafka node from Maven's jars, and the embedded broker.

Both listen on loopback only, keep their data in a temporary folder or in memory, and are ended by their own
process id.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest
from headrace.streams import embedded_child
from headrace.streams.embedded import EmbeddedBroker
from headrace.streams.kafka_client import answers

VERSION = "4.1.0"
POM = Path(__file__).parents[1] / "deploy" / "kafka" / "pom.xml"
START_S = 60.0

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{more_listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{more_listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
log.dirs={folder}/data
num.partitions=1
auto.create.topics.enable=true
broker.heartbeat.interval.ms=500
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
message.max.bytes=10000000
num.network.threads=2
num.io.threads=4
log.cleaner.backoff.ms=1000
{more}
"""


class Unavailable(Exception):
    """What a broker needs is not on this machine; the sentence says what."""


def lacking(what: str) -> NoReturn:
    """Skip a test for what this machine lacks; fail it where CI=true, for there nothing may be passed over."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def cache() -> Path:
    """Folder for what is downloaded once."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace" / f"kafka-{VERSION}"


def jars() -> Path:
    """Return the folder of Kafka's jars, fetched by Maven at the first time, and archive the classes of a broker."""
    return fetched(POM, cache(), _archive_classes)


def fetched(pom: Path, folder: Path, finish: Callable[[Path], None] = lambda _: None) -> Path:
    """Return the folder of the jars that a pom names, fetched by Maven at the first time.

    Args:
        pom: File.
        folder: Where to keep them; with what ``finish`` makes of them, and only for this very pom.
        finish: Called with their folder once they are there.
    """
    if shutil.which("java") is None:
        raise Unavailable("Java 17 or newer is not installed")
    libs, ready = folder / "libs", folder / "ready"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may start at once
        if ready.exists() and ready.read_text() == pom.read_text():
            return libs
        if shutil.which("mvn") is None:
            raise Unavailable("Maven is not installed")
        shutil.rmtree(libs, ignore_errors=True)  # another version of a jar would stand beside it
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={libs}"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"Maven could not fetch what {pom} names: {done.stdout[-500:]}")
        finish(libs)
        ready.write_text(pom.read_text())
    return libs


def java(libs: Path, *options: str) -> list[str]:
    """Return the begin of a command line, before the name of one of Kafka's programs and its arguments.

    Without the optimising compiler, and with the classes of a broker in an archive, a start takes a quarter of the time
    on two cores. Java does without an archive that is not there, or not of this Java and these jars.
    """
    program = shutil.which("java") or "java"
    fast = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return [program, *fast, *(options or (_archived(libs),)), "-cp", f"{libs}/*"]


def _archived(libs: Path) -> str:
    return f"-XX:SharedArchiveFile={libs.parent / 'broker.jsa'}"


def _archive_classes(libs: Path) -> None:
    """Run a broker, which writes them when it ends."""
    with tempfile.TemporaryDirectory(dir=libs.parent) as folder:
        written = Path(folder) / "broker.jsa"
        node = KafkaNode(Path(folder) / "node", libs=libs)
        node.start(f"-XX:ArchiveClassesAtExit={written}")
        node.stop()
        if written.exists():  # not where it had to be killed
            written.replace(libs.parent / "broker.jsa")


class KafkaNode:
    """One Apache Kafka node in KRaft mode; `stop`, `start` and `kill` for faults.

    Attributes:
        bootstrap: ``host:port``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        more: str = "",
        listeners: Mapping[str, int] | None = None,
        libs: Path | None = None,
    ) -> None:
        """Format the storage.

        Args:
            folder: For data, configuration and log.
            more: Further lines of the broker's configuration.
            listeners: Further listeners by name of `PROPERTIES`' protocol map, with their ports.
            libs: Kafka's jars; None is those of `jars`.
        """
        self._libs = libs or jars()
        self._folder = folder
        self._port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._config = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        added = "".join(f",{name}://127.0.0.1:{port}" for name, port in (listeners or {}).items())
        self._config.write_text(
            PROPERTIES.format(
                port=self._port,
                controller=controller,
                folder=folder,
                more=more,
                more_listeners=added,
            )
        )
        self._java("kafka.tools.StorageTool", "format", "-t", "LKq2V1I4QDq5Sp4jMR4h0w")

    def _java(self, main: str, *arguments: str) -> None:
        subprocess.run(
            [*java(self._libs), main, *arguments, "-c", str(self._config)],
            check=True,
            capture_output=True,
            timeout=START_S,
        )

    def start(self, *options: str) -> None:
        """Start, with these options of Java, and wait until it answers; it dies with this process."""
        with (self._folder / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", embedded_child.__file__, str(os.getpid())),
                    *(*java(self._libs, *options), "kafka.Kafka", str(self._config)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        in_thread(self._until_up())

    async def _until_up(self) -> None:
        async with asyncio.timeout(START_S):
            while not await answers("127.0.0.1", self._port):
                assert self._process is not None
                assert self._process.poll() is None, self.log_tail()
                await asyncio.sleep(0.1)

    def stop(self) -> None:
        """Stop it as an operator would, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        process.stdin.close()

    def log_tail(self) -> str:
        """Return the end of its log."""
        return (self._folder / "kafka.log").read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def embedded_broker() -> Iterator[Mapping[str, str]]:
    """Run an embedded broker from a thread of its own; yields the properties of a client."""
    up, stop = threading.Event(), threading.Event()
    broker = EmbeddedBroker()
    failed: list[BaseException] = []

    async def run() -> None:
        try:
            async with broker:
                up.set()
                await asyncio.to_thread(stop.wait)
        except BaseException as exc:
            failed.append(exc)
            raise
        finally:
            up.set()

    def live() -> None:
        with contextlib.suppress(Exception):
            asyncio.run(run())

    thread = threading.Thread(target=live)
    thread.start()
    try:
        up.wait()
        if failed:
            raise failed[0]
        yield broker.properties
    finally:
        stop.set()
        thread.join()


def in_thread(coroutine) -> None:
    """Run a coroutine to its end from code that may itself run inside a loop."""
    failed: list[BaseException] = []

    def live() -> None:
        try:
            asyncio.run(coroutine)
        except BaseException as exc:  # noqa: BLE001  # handed to the caller
            failed.append(exc)

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
