"""The embedded broker as a process: where it listens, when it dies, what it says when it cannot start."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.embedded import EmbeddedBroker
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, Feature, Span, TopicSpec

pytestmark = pytest.mark.embedded


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def listening_sockets(pid):
    """Return local addresses as /proc writes them."""
    links = [fd.readlink().name for fd in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # another process's state: nothing to wait on
            await asyncio.sleep(0.02)


async def test_it_serves_and_leaves_nothing_behind():
    """A record goes in and comes out; afterwards process, folder and port are gone."""
    async with EmbeddedBroker() as broker:
        pid, folder = broker.pid, broker.log_file.parent
        assert broker.is_alive()
        async with KafkaLog(broker.properties) as log, log.publisher() as publisher:
            assert Feature.TRANSACTIONS not in log.features
            await log.ensure([TopicSpec("t", 1)])
            await publisher.publish([Out("t", 0, b"k", b"v")])
            async with log.reader({TP("t", 0): Span(EARLIEST, 1)}) as reader:
                (block,) = await reader.poll(1, 10)
                assert block.records[0].value == b"v"
    assert not is_running(pid)
    assert not folder.exists()
    assert not broker.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_it_listens_on_loopback_only():
    """Every listening socket of the process is on 127.0.0.1."""
    async with EmbeddedBroker() as broker:
        listening = listening_sockets(broker.pid)
        port = int(broker.bootstrap.rpartition(":")[2])
        assert listening == [f"0100007F:{port:04X}"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
async def test_it_dies_when_its_parent_is_killed(tmp_path):
    """SIGKILL leaves no chance to clean up; the kernel ends the broker."""
    program = """
import asyncio, sys
from pathlib import Path
from headrace.streams.embedded import EmbeddedBroker
async def main():
    async with EmbeddedBroker(log_dir=Path(sys.argv[1])) as broker:
        print(broker.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 30))
    assert is_running(pid)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not is_running(pid))


async def test_a_port_that_is_taken_is_named_with_what_the_broker_says(tmp_path):
    """One sentence: port, exit code, last words, log file."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LogError) as failed:
            async with EmbeddedBroker(log_dir=tmp_path, port=port, start_timeout_s=10):
                pass
    assert f"127.0.0.1:{port}" in failed.value.detail
    assert "exit code" in failed.value.detail
    assert str(tmp_path / "embedded-broker.log") in failed.value.detail
    assert not failed.value.retriable


async def test_two_brokers_do_not_get_in_each_other_s_way():
    """Each has a port and records of its own."""
    async with EmbeddedBroker() as one, EmbeddedBroker() as two:
        assert one.bootstrap != two.bootstrap
        async with KafkaLog(one.properties) as first, KafkaLog(two.properties) as second:
            await first.ensure([TopicSpec("t", 1)])
            assert await second.partitions("t") is None


async def test_a_dead_broker_is_an_error_within_the_bound():
    """Publishing to a broker that was killed fails, does not hang, and says what was tried."""
    async with EmbeddedBroker() as broker:
        quick = {"request.timeout.ms": "1500", "retry.backoff.ms": "50"}
        async with KafkaLog({**broker.properties, **quick}) as log, log.publisher() as publisher:
            await log.ensure([TopicSpec("t", 1)])
            await publisher.publish([Out("t", 0, None, b"v")])
            os.kill(broker.pid, signal.SIGKILL)
            await until(lambda: not broker.is_alive())
            async with asyncio.timeout(15):
                with pytest.raises(LogError, match="publishing to t/0 failed") as failed:
                    await publisher.publish([Out("t", 0, None, b"v")])
            assert failed.value.retriable
