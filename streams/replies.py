"""A gateway's reply partitions: claimed through the status topic, read without a group.

The least used partitions of the replies topic are taken, so that every gateway reads about its own share (FAULTS
B60). Of two gateways that choose the same one at the same moment, the one whose claim comes later in the status topic
moves on. Where there are more gateways than partitions they share, and drop each other's replies by their
correlation ids. Reading starts at the end as it is before we say that we listen, so no reply to a call of
ours can lie before.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Record
from headrace.streams.announce import Announcer
from headrace.streams.log import LATEST, Log, Span
from headrace.streams.status import GatewayStatus
from headrace.streams.watch import POLL_RECORDS, POLL_S, StatusWatch, retrying

CLAIM_ROUNDS = 8
"""Times that a gateway claims anew because another was first; then sharing a partition is good enough."""

AT_ONCE = 16
"""Replies that are handed out without a turn of the event loop: in between, what their callers ask next comes in and
goes out, so that broker and worker are at it while the others are still being answered."""

CLAIM_READ_S = 2.0
"""Seconds that a gateway waits to read its own claim back."""


class Replies:
    """Claims and reads a gateway's reply partitions; see the module's docstring.

    Attributes:
        topic: The replies topic.
        status: Our word in the status topic; its time is the claim's.
        listening: Set while replies are being read.
        trouble: Why they are not; None while they are, or are about to be.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        watch: StatusWatch,
        status: GatewayStatus,
        *,
        wanted: int,
        on_reply: Callable[[Record], None],
    ) -> None:
        """Keep the parts.

        Args:
            log: Open log.
            topic: The replies topic.
            watch: Tells what other gateways claim.
            status: Our id and heartbeat.
            wanted: Partitions to claim, as far as there are that many.
            on_reply: Called with every record of our partitions.
        """
        self.topic = topic
        self.status = status
        self.listening = asyncio.Event()
        self.trouble: LogError | None = None
        self._log = log
        self._watch = watch
        self._wanted = wanted
        self._on_reply = on_reply
        self._resume: dict[TP, Span] = {}
        self._turn: Iterator[int] = iter(())

    def next_partition(self) -> int:
        """Return the partition that the next call's reply shall go to; only while listening."""
        return next(self._turn)

    def current_status(self) -> GatewayStatus:
        """Return our word for the status topic, as of now."""
        self.status = replace(self.status, at_ms=self._watch.clock_ms())
        return self.status

    async def run(self, announcer: Announcer) -> None:
        """Claim and read until cancelled."""

        async def follow() -> None:
            if not self._resume:
                await self._claim(announcer)
            await self._read()

        await retrying(f"reading {self.topic}", follow, self._failed)

    def _failed(self, error: LogError) -> None:
        self.trouble = error

    async def _claim(self, announcer: Announcer) -> None:
        await self._watch.caught_up.wait()
        partitions = await self._log.partitions(self.topic)
        if not partitions:
            raise LogError(f"topic {self.topic} does not exist", retriable=True)
        claimed: tuple[int, ...] = ()
        for _ in range(CLAIM_ROUNDS):
            claimed = self._choose(partitions)
            self.status = replace(
                self.status, at_ms=self._watch.clock_ms(), reply_partitions=claimed
            )
            await announcer.write([self.status])
            await self._watch.until(self._is_claim_read, CLAIM_READ_S)
            if not self._is_crowded(partitions):
                break
        self._turn = itertools.cycle(claimed)
        self._resume = {TP(self.topic, partition): Span(LATEST) for partition in claimed}

    def _choose(self, partitions: int) -> tuple[int, ...]:
        """Return the least used partitions, in an order of our own where several are equally free."""
        own = self.status.gateway
        used = self._watch.fleet.claims(self._watch.clock_ms(), besides=own)
        start = zlib.crc32(own.encode())
        order = sorted(range(partitions), key=lambda p: (used[p], (p - start) % partitions))
        return tuple(sorted(order[: self._wanted]))

    def _is_claim_read(self) -> bool:
        """Whether our claim came back: then every claim before it has been read too."""
        own = self.status
        return self._watch.fleet.claimed(own.gateway) == own.reply_partitions

    def _is_crowded(self, partitions: int) -> bool:
        """Whether somebody claimed a partition of ours first while a freer one exists: the later one moves."""
        own, now_ms = self.status, self._watch.clock_ms()
        earlier = self._watch.fleet.claims(now_ms, besides=own.gateway, only_earlier=True)
        used = self._watch.fleet.claims(now_ms, besides=own.gateway)
        free = [used[p] for p in range(partitions) if p not in own.reply_partitions]
        return bool(free) and any(earlier[p] > min(free) for p in own.reply_partitions)

    async def _read(self) -> None:
        async with self._log.reader(self._resume) as reader:
            self.listening.set()
            self.trouble = None
            try:
                while True:
                    for block in await reader.poll(POLL_RECORDS, POLL_S):
                        for count, record in enumerate(block.records, 1):
                            self._on_reply(record)
                            if not count % AT_ONCE:
                                await asyncio.sleep(0)
            finally:
                self.listening.clear()
                # Replies that come while the log is away are still ours: go on where we were.
                self._resume = {tp: Span(at) for tp, at in reader.positions().items()}
