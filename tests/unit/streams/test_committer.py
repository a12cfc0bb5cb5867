"""The rounds of a commit, on the memory log: what is taken, what is told, and who is left out on the way."""

import asyncio

import pytest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.committer import ROUND_BYTES
from headrace.streams.log import Mode, Outcome, Position, TopicSpec
from headrace.streams.memory import MemoryLog
from log_kit import Snapshots, join, outs

A, B, C = (TP("a", partition) for partition in range(3))
NEVER_MS = 3_600_000


class NotingLog(MemoryLog):
    """Notes what is produced together."""

    def __init__(self, **options):
        super().__init__(**options)
        self.produced = []

    async def produce(self, outs):
        self.produced.append([out.value for out in outs])
        await super().produce(outs)


async def opened():
    log = NotingLog(commit_interval_ms=NEVER_MS)
    await log.ensure([TopicSpec("a", 3), TopicSpec("state", 1)])
    return log


def chunk(name, size=1):
    return [Out("state", 0, b"k", name * size)]


async def started(log, cover):
    worker, source = join(log, "g", "a")
    await source.__aenter__()
    return worker, source, log.delivery(source, Mode.AT_LEAST_ONCE, cover)


async def test_all_owners_chunks_share_rounds_and_each_is_told_of_its_own():
    """One acknowledgement is awaited for many partitions, and none is before the others in every round."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    cover.dirty = {
        A: [chunk(b"1"), chunk(b"2"), chunk(b"3")],
        B: [chunk(b"4")],
        C: [[], chunk(b"5")],
    }
    await delivery.settle({tp: Position(1, "", worker.epochs[tp]) for tp in (A, B, C)})
    log.produced.clear()
    await delivery.flush()
    assert log.produced == [[b"1", b"4"], [b"2", b"5"], [b"3"]]
    saved = [(owner, values) for name, owner, values in cover.told if name == "saved"]
    assert saved == [(A, [b"1"]), (B, [b"4"]), (A, [b"2"]), (C, [b"5"]), (A, [b"3"])]
    assert log.committed("g").keys() == {A, B, C}
    await source.__aexit__(None, None, None)


async def test_a_full_round_waits_and_those_behind_come_first_in_the_next_one():
    """What is encoded without a pause is bounded, whatever the number of partitions."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    cover.dirty = {
        tp: [chunk(b"%d" % tp.partition, ROUND_BYTES * 2 // 3) for _ in range(2)]
        for tp in (A, B, C)
    }
    await delivery.settle({tp: Position(1, "", worker.epochs[tp]) for tp in (A, B, C)})
    log.produced.clear()
    await delivery.flush()
    rounds = [[int(value[:1]) for value in values] for values in log.produced]
    assert rounds == [[0, 1], [2, 0], [1, 2]]
    await source.__aexit__(None, None, None)


async def test_what_is_settled_during_a_commit_waits_for_the_next_one():
    """The position that is committed is the one that the snapshots were asked for."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    epoch = worker.epochs[A]
    cover.dirty = {A: [chunk(b"1")]}
    await delivery.settle({A: Position(1, "", epoch)})
    log.hold_produce()
    flushing = asyncio.create_task(delivery.flush())
    await source.poll(1, 0.01)
    await delivery.settle({A: Position(2, "", epoch)})
    second = asyncio.create_task(delivery.flush())
    await source.poll(1, 0.01)
    assert cover.names() == ["settled", "snapshots", "settled"], "one flush waits for the other"
    log.free_produce()
    await flushing
    assert log.committed("g")[A].offset == 1
    await second
    assert log.committed("g")[A].offset == 2
    assert cover.names()[3:] == ["saved", "committed", "snapshots", "saved", "committed"]
    await source.__aexit__(None, None, None)


async def test_P7_an_owner_that_is_lost_during_a_commit_falls_out_of_it():
    """Its second chunk is not published, it is told nothing more, and the others are committed."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    epochs = dict(worker.epochs)
    cover.dirty = {A: [chunk(b"1"), chunk(b"2")]}
    await delivery.settle({A: Position(1, "", epochs[A])})
    log.hold_produce()
    flushing = asyncio.create_task(delivery.flush())
    await source.poll(1, 0.01)
    log.evict(source)
    await source.poll(1, 0.01)
    assert worker.lost_tps == [frozenset(epochs)]
    log.free_produce()
    await flushing
    assert [record.value for record in log.records("state", 0)] == [b"1"]
    assert cover.names() == ["settled", "snapshots"]
    assert log.committed("g") == {}
    await source.__aexit__(None, None, None)


async def test_P4_P8_a_zombie_s_snapshots_go_out_and_its_commit_is_refused():
    """Nobody asks at the broker before a record is appended; the position stays the new owner's."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    epoch = worker.epochs[A]
    cover.dirty = {A: [chunk(b"1")]}
    log.evict(source, learns_after_s=60)
    delivery.put(A, outs("state", 0, 1))
    assert await delivery.settle({A: Position(1, "", epoch)}) == {A: Outcome.SETTLED}
    await delivery.flush()
    assert [record.value for record in log.records("state", 0)] == [b"0", b"1"]
    assert cover.names() == ["settled", "snapshots", "saved"]
    assert log.committed("g") == {}
    assert await delivery.settle({A: Position(2, "", epoch)}) == {A: Outcome.FENCED}
    assert cover.names() == ["settled", "snapshots", "saved"]
    await source.__aexit__(None, None, None)


async def test_an_older_settle_that_comes_back_late_moves_nothing_back():
    """Settles may overlap: the highest position stands, and the cover hears of nothing else."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    for offset in (5, 3, 5):
        await delivery.settle({A: Position(offset, "", worker.epochs[A])})
    assert cover.told == [("settled", A, 5)] * 2
    await delivery.flush()
    assert log.committed("g")[A].offset == 5
    await source.__aexit__(None, None, None)


async def test_a_commit_that_fails_does_not_forget_what_was_settled_meanwhile():
    """The newer position stands; the older one is only kept where there is none."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    cover.dirty = {A: [chunk(b"1")]}
    await delivery.settle({tp: Position(1, "", worker.epochs[tp]) for tp in (A, B)})
    log.hold_produce()
    log.fail_produce()
    flushing = asyncio.create_task(delivery.flush())
    await source.poll(1, 0.01)
    await delivery.settle({A: Position(2, "", worker.epochs[A])})
    log.free_produce()
    with pytest.raises(LogError, match="produce failed"):
        await flushing
    await delivery.flush()
    assert {tp: at.offset for tp, at in log.committed("g").items()} == {A: 2, B: 1}
    await source.__aexit__(None, None, None)


async def test_P3_P8_a_release_waits_for_the_flush_that_has_the_partition():
    """Taken over anew under the same epoch, it must not be committed any more by who had it before."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    cover.dirty = {A: [chunk(b"1")]}
    await delivery.settle({A: Position(1, "", worker.epochs[A])})
    log.hold_produce()
    flushing = asyncio.create_task(delivery.flush())
    await source.poll(1, 0.01)
    releasing = asyncio.create_task(delivery.release(A, abort=True))
    await source.poll(1, 0.01)
    assert not releasing.done()
    log.free_produce()
    await releasing
    assert log.committed("g")[A].offset == 1
    await flushing
    await source.__aexit__(None, None, None)


async def test_P3_what_a_release_cannot_commit_is_not_committed_later():
    """The epoch stays the same where a partition is taken over anew, and the states are the new time's by then."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    await delivery.settle({tp: Position(5, "", worker.epochs[tp]) for tp in (A, B)})
    log.fail_commit()
    with pytest.raises(LogError, match="commit failed"):
        await delivery.release(A, abort=True)
    await delivery.settle({A: Position(2, "", worker.epochs[A])})
    await delivery.flush()
    assert {tp: at.offset for tp, at in log.committed("g").items()} == {A: 2, B: 5}
    await source.__aexit__(None, None, None)


async def test_P3_P8_a_settle_that_comes_back_after_a_release_settles_nothing():
    """Its position is the earlier time's: the topic may have been made again since."""
    log, cover = await opened(), Snapshots()
    worker, source, delivery = await started(log, cover)
    epoch = worker.epochs[A]
    delivery.put(A, outs("state", 0, 1))
    log.hold_produce()
    settling = asyncio.create_task(delivery.settle({A: Position(9, "", epoch)}))
    await source.poll(1, 0.01)
    await delivery.release(A, abort=True)
    log.free_produce()
    assert await settling == {A: Outcome.FENCED}
    assert await delivery.settle({A: Position(1, "", epoch)}) == {A: Outcome.SETTLED}
    await delivery.flush()
    assert log.committed("g")[A].offset == 1
    assert cover.names() == ["settled", "snapshots", "committed"]
    await source.__aexit__(None, None, None)


async def test_B97_a_settle_that_comes_back_behind_the_commit_of_a_later_one_moves_nothing_back():
    """Its answers are covered by what is committed; a partition that is released starts anew."""
    log = await opened()
    worker, source, delivery = await started(log, None)
    committer, epoch = delivery._committer, worker.epochs[A]
    for offset in (50, 31, 32, 50):
        assert committer.take_over(A, Position(offset, "", epoch), 0) is Outcome.SETTLED
        await delivery.flush()
        assert log.committed("g")[A].offset == 50
    await delivery.release(A, abort=False)
    assert committer.take_over(A, Position(7, "", epoch), 0) is Outcome.FENCED, "of before"
    assert committer.take_over(A, Position(7, "", epoch), 1) is Outcome.SETTLED
    await delivery.flush()
    assert log.committed("g")[A].offset == 7
    await source.__aexit__(None, None, None)
