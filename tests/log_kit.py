"""A group member's worker and the steps that the contract tests of the log have in common."""

from __future__ import annotations

import asyncio

from headrace.schemas.record import TP, Out
from headrace.streams.log import EARLIEST, LATEST, Span

PATIENCE_S = 30.0


class Worker:
    """A `Rebalance` that takes over as DELIVERY P-5 says, and drains what it holds when it is revoked."""

    def __init__(self):
        self.epochs = {}
        self.ever = []
        self.revoked_tps = []
        self.lost_tps = []
        self.source = None
        self.on_revoked = None

    def assigned(self, tps, epoch):
        self.epochs.update(dict.fromkeys(tps, epoch))
        self.ever.append((frozenset(tps), epoch))
        if self.source is not None:
            self.source.resume(tps)

    async def revoked(self, tps, deadline):
        assert deadline > asyncio.get_running_loop().time()
        if self.on_revoked is not None:
            await self.on_revoked(tps)
        self.revoked_tps.append(frozenset(tps))
        for tp in tps:
            self.epochs.pop(tp, None)

    def lost(self, tps):
        self.lost_tps.append(frozenset(tps))
        for tp in tps:
            self.epochs.pop(tp, None)


def join(log, group, topic, worker=None):
    """Make a member whose worker resumes whatever it is assigned."""
    worker = worker or Worker()
    worker.source = log.source(group, {topic}, worker)
    return worker, worker.source


async def read(source, count, *, max_records=1000):
    """Poll until ``count`` records have come; returns blocks."""
    blocks = []
    async with asyncio.timeout(PATIENCE_S):
        while sum(len(b.records) for b in blocks) < count:
            blocks += await source.poll(max_records, 0.5)
    return blocks


async def values(log, topic, partition=0, *, committed=True):
    """Read everything that a partition holds up to now, by default what is committed; returns values."""
    found = []
    spans = {TP(topic, partition): Span(EARLIEST, LATEST)}
    async with (
        log.reader(spans, committed=committed) as reader,
        asyncio.timeout(PATIENCE_S),
    ):
        while not reader.done():
            found += records_of(await reader.poll(1000, 1.0))
    return [record.value for record in found]


def records_of(blocks):
    return [record for block in blocks for record in block.records]


def outs(topic, partition, count, *, start=0, **more):
    return [Out(topic, partition, None, b"%d" % i, **more) for i in range(start, start + count)]


class Snapshots:
    """A `Cover` that hands out what it is given and writes down what it is told.

    Attributes:
        dirty: Owner → chunks of its next commit.
        forgotten: Owners of which nothing is known.
        told: Every call in order: its name, the owner and the position's offset or the records.
    """

    def __init__(self):
        self.dirty = {}
        self.forgotten = set()
        self.told = []

    def settled(self, owner, position):
        self.told.append(("settled", owner, position.offset))

    def snapshots(self, owner, position):
        self.told.append(("snapshots", owner, position.offset))
        return None if owner in self.forgotten else iter(self.dirty.get(owner, ()))

    def saved(self, owner, outs):
        self.told.append(("saved", owner, [out.value for out in outs]))

    def committed(self, owner, position):
        self.told.append(("committed", owner, position.offset))

    def aborted(self, owner):
        self.told.append(("aborted", owner))

    def names(self):
        return [name for name, *_ in self.told]
