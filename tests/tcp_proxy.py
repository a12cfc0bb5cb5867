"""A TCP proxy on loopback that does to connections what networks do: delay, cut, go silent, refuse.

It belongs to the event loop that started it. Nothing is buffered without a bound: at most `MAX_HELD` pieces of
`PIECE_BYTES` wait in each direction of a connection, then its sender is not read from any more.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

PIECE_BYTES = 64 * 1024
MAX_HELD = 16


class TcpProxy:
    """Forwards one port to another. An async context manager; faults last until `heal`.

    Attributes:
        port: Where clients connect.
        target: Port that they reach.
        delay_s: How long every piece is under way, in each direction.
        accepted: Connections that were taken so far.
    """

    def __init__(self, port: int, target: int) -> None:
        """Keep both ports, on loopback; entering listens."""
        self.port = port
        self.target = target
        self.delay_s = 0.0
        self.accepted = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def __repr__(self) -> str:
        """Show the ports and what is open."""
        return f"TcpProxy({self.port} to {self.target}, {len(self._connections)} connections)"

    async def __aenter__(self) -> Self:
        """Listen."""
        await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close everything."""
        self._stop_listening()
        self._abort()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections and refuse new ones: the cable is out."""
        self.refuse()
        self._abort()

    def drop(self) -> None:
        """Reset all connections; new ones are taken."""
        self._abort()

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        self._stop_listening()

    def silence(self) -> None:
        """Forward nothing and close nothing, also of connections that are yet to come: half-open."""
        self._flowing.clear()

    async def heal(self) -> None:
        """End all faults; what was sent into the silence arrives."""
        self.delay_s = 0.0
        self._flowing.set()
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        try:
            await self._connect(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy closes: a cancelled handler would be reported as a failure
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._connections.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            return  # nobody is there: the client is reset, as by a host without a listener
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._forward(reader, far_writer))
                ways.create_task(self._forward(far_reader, writer))
        except* OSError:
            pass  # one side was reset, and now the other is
        finally:
            far_writer.transport.abort()
            self._writers.discard(far_writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until its end, which is forwarded, too."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_HELD)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(reader, held))
            both.create_task(self._write(held, writer))

    async def _read(
        self, reader: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            piece = await reader.read(PIECE_BYTES)
            await held.put((clock() + self.delay_s, piece))
            if not piece:
                return

    async def _write(
        self, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, piece = await held.get()
            await asyncio.sleep(due - clock())
            await self._flowing.wait()
            if not piece:
                with contextlib.suppress(OSError):  # reset meanwhile
                    writer.write_eof()
                return
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def proxies(ports: Mapping[int, tuple[int, int]]) -> AsyncIterator[Mapping[int, TcpProxy]]:
    """Run a proxy for each node of a cluster: node → (where clients connect, what they reach)."""
    async with AsyncExitStack() as stack:
        yield {
            node: await stack.enter_async_context(TcpProxy(*pair)) for node, pair in ports.items()
        }
