"""A live gateway with a real worker in a thread of its own, and a caller that sends it any bytes at all.

Everything is on a memory log: what is tried is the edge. Each exchange has a connection of its own and a time limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bad_cases import PAIR, WORDS
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Service, serving, until, write_models

PATIENCE_S = 0.03
"""How long a caller who may have said too little waits before it says that this was all: a server that hears the end
first does not answer any more."""

LIMIT_S = 20.0
"""How long any exchange may take: no answer and no end by then is a hang."""

ECHO = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
"""
MODELS = {"echo": ECHO, "pair": PAIR, "words": WORDS}
MAX_INPUT_BYTES = 2**20
GROWTH_KB = 200_000
"""How much the process may grow over a whole run: a few bodies of the largest size, as text and as objects."""

GOOD_BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
).encode()


class Reply(NamedTuple):
    """One answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header, ``""`` where there is none."""
        return dict(self.headers).get(name, "")


class _Logged(logging.Handler):
    """Keeps errors of ours that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []
        logging.getLogger("headrace").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.errors.append(f"{record.getMessage()}: {record.exc_info}")


class Target:
    """The running service.

    Attributes:
        seen: Statuses that came, and ``closed`` for connections that ended without one.
        logged: Errors that the service logged: no caller may make it believe that it has a bug.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service) -> None:
        self._loop = loop
        self.service = service
        self.port = int(service.url.rpartition(":")[2])
        self.url = service.url
        self.seen: Counter[str] = Counter()
        self.logged = _Logged()
        self._rss_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def exchange(self, data: bytes, *, ends: bool = False, to_end: bool = False) -> list[Reply]:
        """Send bytes and read what comes.

        Args:
            data: All at once.
            ends: It may be incomplete: where nothing is heard at once, the server is told that no more will come.
            to_end: Read until the server closes, not only one answer.

        Raises:
            AssertionError: Neither an answer nor an end came in time, or what came is no HTTP.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as caller:
            # Reset at the end: tens of thousands of calls would else leave no port.
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            try:
                caller.sendall(data)
                if ends and not _is_answered(caller):
                    caller.shutdown(socket.SHUT_WR)
                replies = _read(caller, to_end=to_end, bodiless=data.startswith(b"HEAD "))
            except ConnectionError:
                replies = []
            except TimeoutError:
                raise AssertionError(f"a hang: {data[:300]!r}") from None
        self.seen.update([str(reply.status) for reply in replies] or ["closed"])
        return replies

    def check(self) -> None:
        """A good call works, nothing is open, the worker runs, and memory has not grown without end."""
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
        (reply,) = self.exchange(
            head + b"Content-Length: %d\r\n\r\n%s" % (len(GOOD_BODY), GOOD_BODY)
        )
        assert reply.status == 200, reply
        assert json.loads(reply.body)["outputs"][0]["data"] == [1, 2]
        assert not self.logged.errors
        assert self.service.never_unready
        assert not self.service.running.done()
        waiting = until(lambda: self.service.gateway.open_calls == 0, "no call is open")
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result(LIMIT_S * 2)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._rss_kb
        assert grown < GROWTH_KB, f"grown by {grown} kB"


@contextmanager
def target(root: Path) -> Iterator[Target]:
    """Run the service in a thread around the block."""
    started: list[Target] = []
    is_started, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        topology = Topology(prefix="fuzz", partitions=1, reply_partitions=1)
        bounds = {"max_input_bytes": MAX_INPUT_BYTES, "drain_timeout_s": 5.0}
        async with (
            MemoryLog() as log,
            serving(log, write_models(root, MODELS), topology, http=bounds) as service,
        ):
            started.append(Target(asyncio.get_running_loop(), service))
            is_started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert is_started.wait(60)
        yield started[0]
    finally:
        started[0]._loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        logging.getLogger("headrace").removeHandler(started[0].logged)


def _is_answered(caller: socket.socket) -> bool:
    """Wait a moment for something to come, an end too."""
    caller.settimeout(PATIENCE_S)
    try:
        caller.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        caller.settimeout(LIMIT_S)
    return True


def _read(caller: socket.socket, *, to_end: bool, bodiless: bool) -> list[Reply]:
    """Read answers until the server closes, or one; ``bodiless`` are those to HEAD."""
    replies: list[Reply] = []
    with caller.makefile("rb") as stream:
        while to_end or not replies:
            line = stream.readline(70_000)
            if not line:
                return replies
            reply = _reply(line, stream, bodiless=bodiless)
            if reply.status != 100:
                replies.append(reply)
    return replies


def _reply(line: bytes, stream: BinaryIO, *, bodiless: bool) -> Reply:
    version, status, *_ = line.split(b" ", 2)
    assert version.startswith(b"HTTP/"), line
    headers = []
    while (line := stream.readline(70_000)) not in (b"\r\n", b""):
        assert line.endswith(b"\r\n"), line
        name, separator, value = line[:-2].partition(b": ")
        assert separator, line
        headers.append((name.decode("ascii").lower(), value.decode("latin-1")))
    length = int(dict(headers).get("content-length", "0"))
    body = b"" if bodiless else stream.read(length)
    if not bodiless and dict(headers).get("transfer-encoding") == "chunked":
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    return Reply(int(status), tuple(headers), body)
