"""Calls that are answered later: accepted once the log has them, and found again by any gateway (FAULTS B65).

Nothing about such a call lives in one process alone: that it was accepted, and its answer, are records of the topic
``<p>.async-replies``, which every gateway reads from the first such call or poll that comes to it. A gateway that never
sees one reads nothing. The answer is the worker's to any record that names a reply topic, so in exactly_once it is in
the transaction of its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from headrace.schemas.errors import (
    InvalidRequest,
    LogError,
    NotFound,
    Reason,
    Unavailable,
)
from headrace.schemas.record import TP, Out
from headrace.streams.async_table import AsyncBounds, AsyncCall, AsyncTable, acceptance, is_id
from headrace.streams.calls import Calls
from headrace.streams.listening import ensure_if_allowed
from headrace.streams.log import EARLIEST, LATEST, Log, Reader, Span
from headrace.streams.topology import Topology, partition_for_key
from headrace.streams.watch import POLL_RECORDS, POLL_S, Clock, retrying

LISTEN_S = 10.0
"""Seconds that the first call or poll waits until all that was accepted before has been read."""

CATCH_UP_POLL_S = 0.05
"""Seconds that a poll waits before: where the last records are aborted ones, nothing tells that the end is reached."""

FOLLOW_S = 1.0
"""Seconds that a poll waits for a call which another gateway may have accepted just now."""


class AsyncCalls:
    """See the module's docstring.

    Attributes:
        table: What is known.
        bounds: Of it.
        calls: Admits and produces requests, and reads answers.
    """

    def __init__(
        self,
        log: Log,
        topology: Topology,
        bounds: AsyncBounds,
        calls: Calls,
        clock_ms: Clock,
    ) -> None:
        """Keep the parts; nothing is read before `listen`.

        Args:
            log: Open.
            topology: Names the topic.
            bounds: Of what is known.
            calls: Admits and produces requests, and reads answers.
            clock_ms: The wall clock.
        """
        self.table = AsyncTable(bounds)
        self.bounds = bounds
        self.calls = calls
        self._log = log
        self._topology = topology
        self._clock_ms = clock_ms
        self._topic = topology.async_replies
        self._partitions = 0
        self._group: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_complete = False
        self._changed = asyncio.Event()
        self._trouble = ""

    def attach(self, group: asyncio.TaskGroup) -> None:
        """Bring where the reading is to run; it ends by `close`."""
        self._group = group

    async def listen(self) -> None:
        """Read the topic from now on, and wait until what was there is known.

        Raises:
            Unavailable: It cannot be read now; says why.
        """
        if self._task is None:
            assert self._group is not None, "entered first"
            reading = retrying(f"reading {self._topic}", self._follow, self._failed)
            self._task = self._group.create_task(reading)
        try:
            async with asyncio.timeout(LISTEN_S):
                while not self._is_complete:
                    if self._trouble:
                        raise Unavailable(f"calls cannot be answered later now: {self._trouble}")
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(
                f"topic {self._topic} was not read within {LISTEN_S:g} s: try again later"
            ) from None

    def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()

    def place(self, id_: str) -> TP:
        """Return where the answer to a call goes; after `listen`."""
        return TP(self._topic, partition_for_key(id_.encode(), self._partitions))

    def check_room(self) -> None:
        """Refuse a call where as many wait as may be known.

        Raises:
            Unavailable: Names the number and its option.
        """
        if self.table.is_full:
            raise Unavailable(
                f"{self.table.waiting} calls wait for their answers, expected at most "
                f"{self.bounds.max_calls} (--max-async-calls): try again later"
            )

    async def accept(self, call: AsyncCall, request: Out) -> AsyncCall:
        """Write that a call was accepted, then its request: so nobody reads its answer before.

        Returns:
            The call as it is known: its answer will come there.

        Raises:
            LogError: One of them was not acknowledged.
        """
        await self.calls.deliver(acceptance(self.place(call.id), call))
        known = self.table.add(call)
        await self.calls.deliver(request)
        return known

    def cancel(self, call: AsyncCall) -> None:
        """Ask the workers to drop a request, if it still waits (SEMANTICS CX-01)."""
        self.calls.cancel(call.model, call.id.encode())

    async def check_reply_topic(self, topic: str) -> None:
        """Refuse a topic for answers that no worker would write to.

        Raises:
            InvalidRequest: It is not allowed, or does not exist.
            Unavailable: It could not be looked up.
        """
        why = ""
        if not self._topology.reply_allowed(topic):
            why = "is not allowed, expected one that --allow-reply-topics matches"
        else:
            try:
                if not await self._log.partitions(topic):
                    why = "does not exist"
            except LogError as error:
                raise Unavailable(
                    f"reply topic {topic!r} could not be looked up: {error.detail}"
                ) from error
        if why:
            raise InvalidRequest(
                f"reply topic {topic[:250]!r} {why}", reason=Reason.REPLY_TOPIC_REFUSED
            )

    async def find(self, id_: str) -> AsyncCall:
        """Return a call, whichever gateway accepted it.

        Raises:
            NotFound: Nobody did, or it is not kept any more.
            Unavailable: As `listen`.
        """
        if is_id(id_):
            await self.listen()
            call = await self._known(id_)
            if call is not None:
                return call
        kept_s = 2 * self.bounds.window_ms // 1000
        raise NotFound(
            f"request '{id_[:60]}' is not known: none was accepted under this id, or it is not kept any more (at most "
            f"{self.bounds.max_calls} calls, for at most {kept_s} s)",
            reason=Reason.UNKNOWN_REQUEST,
        )

    async def wait(self, call: AsyncCall, seconds: float) -> None:
        """Wait for a call's answer, for so long at most."""
        try:
            async with asyncio.timeout(seconds):
                while not call.is_answered:
                    await self._changed.wait()
        except TimeoutError:
            pass

    async def _known(self, id_: str) -> AsyncCall | None:
        try:
            async with asyncio.timeout(FOLLOW_S):
                while (call := self.table.find(id_, self._clock_ms())) is None:
                    await self._changed.wait()
        except TimeoutError:
            return None
        return call

    def _failed(self, error: LogError) -> None:
        self._trouble = error.detail
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self) -> None:
        await ensure_if_allowed(self._log, [self._topology.async_spec(self.bounds.window_ms)])
        self._partitions = await self._log.partitions(self._topic) or 0
        tps = [TP(self._topic, number) for number in range(self._partitions)]
        reader = partial(self._log.reader, committed=True)
        async with reader({tp: Span(LATEST) for tp in tps}) as probe:
            ends = probe.positions()
        async with reader({tp: Span(EARLIEST) for tp in tps}) as records:
            self._trouble = ""
            while True:
                await self._read(records, ends)

    async def _read(self, records: Reader, ends: Mapping[TP, int]) -> None:
        if not self._is_complete:
            positions = records.positions()
            self._is_complete = all(positions.get(tp, 0) >= end for tp, end in ends.items())
            self._notify()
        timeout_s = POLL_S if self._is_complete else CATCH_UP_POLL_S
        for block in await records.poll(POLL_RECORDS, timeout_s):
            now_ms = self._clock_ms()
            for record in block.records:
                self.table.apply(record, now_ms)
            self._notify()
