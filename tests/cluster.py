"""Starts three Apache Kafka brokers for tests, and kills, stops, pauses and restarts them.

Each node is broker and controller (KRaft), on loopback only, from the jars of `brokers`. Topics have three replicas
of which two must be in sync, so any one node may be away. Beside the usual listener each node has one whose
advertised port is another than its own: a `tcp_proxy.TcpProxy` between the two sits on every connection of the clients
that enter through it, and on none of the brokers' own.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest
from brokers import in_thread, jars, java
from headrace.streams import embedded_child

PATIENCE_S = 60.0
"""How long a start, an election or a catch-up may take on a busy machine."""

ASK_S = 2.0
"""How long one node may take to answer a question."""

PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections: a node that is down must find its own port free again."""

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"

PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
listener.security.protocol.map=CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
listeners=CLIENT://127.0.0.1:{client},PROXIED://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=CLIENT://127.0.0.1:{client},PROXIED://127.0.0.1:{proxy}{listeners}
log.dirs={data}
metadata.log.dir={folder}/metadata
num.partitions=1
default.replication.factor={replication}
min.insync.replicas={in_sync}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={replication}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={replication}
share.coordinator.state.topic.min.isr={in_sync}
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
message.max.bytes=10000000
num.network.threads=2
num.io.threads=4
log.cleaner.backoff.ms=1000
log.cleaner.dedupe.buffer.size=16777216
{more}
"""


class Cluster:
    """Brokers 1 to ``size``. A context manager: entering starts all, leaving kills all, also when a test failed.

    Attributes:
        bootstrap: ``host:port`` of every node, comma-separated.
        proxied_bootstrap: The same by the advertised ports of the proxied listener: nothing answers there without
            a proxy.
        proxies: Node → (port that it advertises there, port that it listens on): what its proxy connects.
        listeners: Name of a further listener → its ``bootstrap.servers``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 3,
        data: Mapping[int, Path] | None = None,
        listeners: Mapping[str, str] | None = None,
        more: str = "",
        format_options: Sequence[str] = (),
    ) -> None:
        """Choose ports and write configurations.

        Args:
            folder: For logs, configurations and data.
            size: How many nodes; replication follows it.
            data: Folders for the records of some nodes, such as a small file system of their own.
            listeners: Further listeners, name → Kafka's security protocol.
            more: Further lines of each node's configuration.
            format_options: Further arguments of Kafka's storage tool, such as SCRAM users.
        """
        self._libs = jars()
        self._format_options = format_options
        nodes = range(1, size + 1)
        further = dict(listeners or {})
        ports = _free_ports(size * (4 + len(further)))
        clients = {node: next(ports) for node in nodes}
        controllers = {node: next(ports) for node in nodes}
        self.proxies = {node: (next(ports), next(ports)) for node in nodes}
        self.bootstrap = _addresses(clients.values())
        self.proxied_bootstrap = _addresses(port for port, _ in self.proxies.values())
        own = {node: {name: next(ports) for name in further} for node in nodes}
        self.listeners = {name: _addresses(own[node][name] for node in nodes) for name in further}
        self._ports = clients
        self._folders = {node: folder / f"node-{node}" for node in nodes}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        # A child dies with the thread that started it, so one thread starts all and lives as long as they.
        self._starter = ThreadPoolExecutor(1, "cluster")
        for node, place in self._folders.items():
            place.mkdir(parents=True, exist_ok=True)
            text = PROPERTIES.format(
                node=node,
                voters=",".join(f"{n}@127.0.0.1:{port}" for n, port in controllers.items()),
                protocols="".join(f",{name}:{protocol}" for name, protocol in further.items()),
                listeners="".join(f",{n}://127.0.0.1:{port}" for n, port in own[node].items()),
                client=clients[node],
                controller=controllers[node],
                proxy=self.proxies[node][0],
                behind=self.proxies[node][1],
                folder=place,
                data=(data or {}).get(node, place / "data"),
                replication=size,
                in_sync=max(1, size - 1),
                more=more,
            )
            (place / "server.properties").write_text(text)

    def __repr__(self) -> str:
        """Show what runs."""
        return f"Cluster({self.bootstrap}, running {self.running()})"

    def __enter__(self) -> Self:
        """Format the storage and start all nodes."""
        try:
            self._format()
            self.start(*self._folders)
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill all nodes."""
        self._end_all()

    def running(self) -> list[int]:
        """Return the nodes that run and are not paused."""
        return sorted(self._processes.keys() - self._paused)

    def start(self, *nodes: int) -> None:
        """Start nodes that do not run, side by side, and wait until each one answers and knows of all that run."""
        for node in nodes:
            assert node not in self._processes, f"node {node} runs already"
            self._processes[node] = self._starter.submit(self._spawn, node).result()
        in_thread(self._until(self._all_up, "every node to answer"))

    def stop(self, node: int) -> None:
        """Stop a node as an operator would: it hands its partitions over first."""
        self._end(node, signal.SIGTERM)

    def kill(self, node: int) -> None:
        """Kill a node."""
        self._end(node, signal.SIGKILL)

    def await_end(self, node: int) -> None:
        """Wait until a node has ended by itself, as one does whose disk is full."""
        self._processes[node].wait(PATIENCE_S)
        self._processes.pop(node).stdin.close()

    def ended(self) -> list[int]:
        """Return the nodes that have ended by themselves since the last call; `start` starts them again."""
        ended = [node for node, process in self._processes.items() if process.poll() is not None]
        for node in ended:
            self._paused.discard(node)
            self._processes.pop(node).stdin.close()
        return ended

    def restart(self, node: int) -> None:
        """Stop a node if it runs, and start it again."""
        if node in self._processes:
            self.stop(node)
        self.start(node)

    def pause(self, node: int) -> None:
        """Freeze a node: its connections stay open and nothing is answered."""
        self._processes[node].send_signal(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """Let a frozen node go on."""
        self._processes[node].send_signal(signal.SIGCONT)
        self._paused.discard(node)

    async def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; waits for an election while the leader is away."""
        found = -1

        async def is_led() -> bool:
            nonlocal found
            found = await self._leader(topic, partition)
            return found in self.running()

        await self._until(is_led, f"a leader of {topic}/{partition}")
        return found

    async def coordinator(self, group: str, *, transactional: bool = False) -> int:
        """Return the node that coordinates a group, or a transactional id; waits while it is away."""
        found = -1

        async def is_there() -> bool:
            nonlocal found
            answer = await self._ask(FindCoordinatorRequest(group, int(transactional)))
            found = answer.coordinator_id if answer is not None and not answer.error_code else -1
            return found in self.running()

        await self._until(is_there, f"the coordinator of {group}")
        return found

    async def until_in_sync(self) -> None:
        """Wait until every replica of every partition is in sync: then any one node may go."""

        async def is_whole() -> bool:
            answer = await self._ask(MetadataRequest(None, allow_auto_topic_creation=False))
            return answer is not None and all(
                set(p["isr"]) == set(p["replicas"]) and p["leader"] in self.running()
                for topic in answer.to_object()["topics"]
                for p in topic["partitions"]
            )

        await self._until(is_whole, "every replica to be in sync")

    def log_tail(self, node: int) -> str:
        """Return the end of a node's log."""
        return (self._folders[node] / "kafka.log").read_text(errors="replace")[-2000:]

    async def _leader(self, topic: str, partition: int) -> int:
        answer = await self._ask(MetadataRequest([topic], allow_auto_topic_creation=False))
        for found in answer.to_object()["topics"] if answer is not None else ():
            for part in found["partitions"]:
                if part["partition"] == partition:
                    return part["leader"]
        return -1

    async def _ask(self, request):
        """Return the answer of one node that runs; None where none answers. Whom it asks changes each time."""
        nodes = self.running()
        for node in random.sample(nodes, len(nodes)):
            answer = await self.ask_node(node, request)
            if answer is not None:
                return answer
        return None

    async def ask_node(self, node: int, request):
        """Return the answer of one node; None where it gives none in time."""
        try:
            async with asyncio.timeout(ASK_S):
                conn = await create_conn("127.0.0.1", self._ports[node])
                try:
                    return await conn.send(request)
                finally:
                    conn.close()
        except (OSError, TimeoutError, KafkaError):
            return None

    async def known(self) -> list[int]:
        """Return the running nodes of which every running node tells: none that was too busy for its heartbeats."""
        nodes = set(self.running())
        for node in self.running():
            request = MetadataRequest([], allow_auto_topic_creation=False)
            answer = await self.ask_node(node, request)
            nodes &= set() if answer is None else {broker[0] for broker in answer.brokers}
        return sorted(nodes)

    async def _all_up(self) -> bool:
        return await self.known() == self.running()

    async def _until(self, condition: Callable, what: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not await condition():
            for node in self.running():
                ended = self._processes[node].poll()
                assert ended is None, f"node {node} ended with {ended}: {self.log_tail(node)}"
            assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
            await asyncio.sleep(0.05)

    def _format(self) -> None:
        tool = "kafka.tools.StorageTool"
        running = [
            subprocess.Popen(
                [
                    *(*java(self._libs), tool, "format", "-t", CLUSTER_ID),
                    *(*self._format_options, "-c", str(place / "server.properties")),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for place in self._folders.values()
        ]
        for process in running:
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, said.decode(errors="replace")

    def _spawn(self, node: int) -> subprocess.Popen[bytes]:
        place = self._folders[node]
        with (place / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", embedded_child.__file__, str(os.getpid())),
                    *(*java(self._libs), "kafka.Kafka", str(place / "server.properties")),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def _end(self, node: int, how: signal.Signals) -> None:
        process = self._processes.pop(node)
        self._paused.discard(node)
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        process.stdin.close()

    def _end_all(self) -> None:
        for node in list(self._processes):
            self.kill(node)
        self._starter.shutdown()


def _addresses(ports) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def _free_ports(count: int) -> Iterator[int]:
    """Find ports that are free now; no two of them are the same."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return iter(found)
    raise OSError(f"fewer than {count} ports of {PORTS} are free")
