"""What must be durable before a commit, the same for all three logs (DELIVERY P-3, P-5, P-7)."""

import asyncio

import pytest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import (
    Feature,
    Mode,
    Outcome,
    Position,
    TopicSpec,
)
from headrace.streams.memory import MemoryLog
from log_kit import PATIENCE_S, Snapshots, join, outs, values
from planted_covers import HastyLog, RashLog

NEVER_MS = 3_600_000


@pytest.fixture
async def topic(log, unique):
    """A topic with two partitions."""
    name = unique("t")
    await log.ensure([TopicSpec(name, 2)])
    return name


def snapshots(topic, *values, partition=0):
    return [Out(topic, partition, b"key", b"s%d" % value) for value in values]


async def settle_with_snapshots(log, topic, state):
    """Settle answers with snapshots behind them, twice, on one partition, where the order shows."""
    worker, source = join(log, f"g-{topic}", topic)
    owner, cover = TP(topic, 0), Snapshots()
    async with source:
        position = Position(2, "", worker.epochs[owner])
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE, cover)
        cover.dirty[owner] = [snapshots(state, 0, 1), snapshots(state, 2)]
        delivery.put(owner, outs(state, 0, 2, start=100), after_ack=True)
        delivery.put(owner, outs(state, 0, 3))
        assert await delivery.settle({owner: position}) == {owner: Outcome.SETTLED}
        assert (await source.committed({owner}))[owner].offset == 2
        cover.dirty[owner] = [snapshots(state, 3)]
        # The position is the old one, as when only a tombstone has become due (P-2).
        assert await delivery.settle({owner: position}) == {owner: Outcome.SETTLED}
    answers = [b"0", b"1", b"2", b"100", b"101"]
    assert await values(log, state) == [*answers, b"s0", b"s1", b"s2", b"s3"]
    assert cover.told == [
        ("settled", owner, 2),
        ("snapshots", owner, 2),
        ("saved", owner, [b"s0", b"s1"]),
        ("saved", owner, [b"s2"]),
        ("committed", owner, 2),
        ("settled", owner, 2),
        ("snapshots", owner, 2),
        ("saved", owner, [b"s3"]),
        ("committed", owner, 2),
    ]


async def fail_a_snapshot(log, topic, state, absent):
    """Publish a chunk that arrives and one that cannot: nothing is committed until both are there."""
    worker, source = join(log, f"g-{topic}", topic)
    owner, cover = TP(topic, 0), Snapshots()
    async with source:
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE, cover)
        # Each fills a round of its own.
        large = [Out(state, 0, b"k", b"x" * 600_000)]
        cover.dirty[owner] = [large, snapshots(absent, 1)]
        for _ in range(2):
            with pytest.raises(LogError, match=absent):
                await delivery.settle({owner: Position(2, "", worker.epochs[owner])})
            assert (await source.committed({owner}))[owner] is None
        assert cover.names() == ["settled", "snapshots", "saved"] * 2
        await log.ensure([TopicSpec(absent, 1)])
        cover.dirty[owner] = [snapshots(absent, 1)]
        await delivery.flush()
        assert (await source.committed({owner}))[owner].offset == 2
        assert cover.names()[6:] == ["snapshots", "saved", "committed"]
        await delivery.flush()
        assert len(cover.told) == 9, "nothing is pending"
    assert await values(log, absent) == [b"s1"]


async def settle_until_failure(delivery, source):
    """Settle nothing, again and again, until somebody's failure shows."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await delivery.settle({})
            await source.poll(1, 0.05)


class TestCover:
    """Answers, then snapshots, then the commit."""

    async def test_P3_snapshots_follow_the_answers_and_precede_the_commit(
        self, log, topic, unique
    ):
        """In the log the answers come first; the cover hears of each step once it is done, and not before."""
        state = unique("state")
        await log.ensure([TopicSpec(state, 1)])
        await settle_with_snapshots(log, topic, state)

    async def test_P3_a_snapshot_that_fails_keeps_the_position_back(self, log, topic, unique):
        """The settle raises, the position stays pending, and the next flush publishes what is still missing."""
        state, absent = unique("state"), unique("absent")
        await log.ensure([TopicSpec(state, 1)])
        await fail_a_snapshot(log, topic, state, absent)

    async def test_P3_a_failure_between_settles_shows_at_the_next_one(self, logs, unique):
        """Commits of the interval are tried again by themselves; somebody hears of it all the same."""
        name, absent = unique("t"), unique("absent")
        async with logs.open(commit_interval_ms=20) as log:
            await log.ensure([TopicSpec(name, 1)])
            worker, source = join(log, f"g-{name}", name)
            owner, cover = TP(name, 0), Snapshots()
            async with source:
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE, cover)
                cover.dirty[owner] = [snapshots(absent, 1)]
                await delivery.settle({owner: Position(1, "", worker.epochs[owner])})
                async with asyncio.timeout(PATIENCE_S):
                    while "snapshots" not in cover.names():
                        await source.poll(1, 0.05)
                with pytest.raises(LogError, match=absent):
                    await settle_until_failure(delivery, source)
                assert "committed" not in cover.names()
                await log.ensure([TopicSpec(absent, 1)])
                async with asyncio.timeout(PATIENCE_S):
                    while "committed" not in cover.names():
                        await source.poll(1, 0.05)
                assert (await source.committed({owner}))[owner].offset == 1

    async def test_P3_a_revocation_publishes_snapshots_before_it_commits(self, logs, unique):
        """The next owner finds the state that belongs to the position that it starts from."""
        name, state = unique("t"), unique("state")
        async with logs.open(commit_interval_ms=NEVER_MS) as log:
            await log.ensure([TopicSpec(name, 2), TopicSpec(state, 2)])
            one, first = join(log, f"g-{name}", name)
            cover = Snapshots()
            async with first:
                delivery = log.delivery(first, Mode.AT_LEAST_ONCE, cover)
                held = dict(one.epochs)
                for tp in held:
                    cover.dirty[tp] = [snapshots(state, tp.partition, partition=tp.partition)]
                await delivery.settle({tp: Position(4, "", epoch) for tp, epoch in held.items()})
                assert cover.names() == ["settled"] * 2
                _two, second = join(log, f"g-{name}", name)
                joining = asyncio.create_task(second.__aenter__())
                async with asyncio.timeout(PATIENCE_S):
                    while not joining.done():
                        await first.poll(1, 0.05)
                await joining
                names = ["settled"] * 2 + ["snapshots"] * 2 + ["saved"] * 2 + ["committed"] * 2
                assert cover.names() == names
                assert [await values(log, state, p) for p in (0, 1)] == [[b"s0"], [b"s1"]]
                found = await second.committed(set(held))
                assert {at.offset for at in found.values()} == {4}
                await second.__aexit__(None, None, None)

    async def test_P3_leaving_and_releasing_publish_snapshots_too(self, logs, unique):
        """Whatever makes a commit makes its snapshots."""
        name, state = unique("t"), unique("state")
        async with logs.open(commit_interval_ms=NEVER_MS) as log:
            await log.ensure([TopicSpec(name, 2), TopicSpec(state, 1)])
            worker, source = join(log, f"g-{name}", name)
            a, b, cover = TP(name, 0), TP(name, 1), Snapshots()
            async with source:
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE, cover)
                cover.dirty = {a: [snapshots(state, 1)]}
                await delivery.settle({a: Position(1, "", worker.epochs[a])})
                await delivery.release(a, abort=False)
                assert (await source.committed({a}))[a].offset == 1
                cover.dirty = {b: [snapshots(state, 2)]}
                await delivery.settle({b: Position(2, "", worker.epochs[b])})
            assert await values(log, state) == [b"s1", b"s2"]
            commits = [(tp, offset) for name, tp, offset in cover.told if name == "committed"]
            assert commits == [(a, 1), (b, 2)]

    async def test_P3_a_position_whose_states_are_forgotten_is_never_committed(
        self, log, topic, unique
    ):
        """D3: it is neither kept for the next time nor fenced, and another one of that epoch is committed as ever."""
        state = unique("state")
        await log.ensure([TopicSpec(state, 1)])
        worker, source = join(log, f"g-{topic}", topic)
        a, b, cover = TP(topic, 0), TP(topic, 1), Snapshots()
        cover.forgotten = {a}
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE, cover)
            cover.dirty[b] = [snapshots(state, 1)]
            upto = {tp: Position(2, "", worker.epochs[tp]) for tp in (a, b)}
            assert set((await delivery.settle(upto)).values()) == {Outcome.SETTLED}
            await delivery.flush()
            found = await source.committed({a, b})
            assert (found[a], found[b].offset) == (None, 2)
            cover.forgotten = set()
            later = {a: Position(3, "", worker.epochs[a])}
            assert await delivery.settle(later) == {a: Outcome.SETTLED}
            assert (await source.committed({a}))[a].offset == 3

    async def test_P7_P8_a_former_owner_publishes_no_snapshot(self, logs, unique):
        """What a revocation could not commit is not committed later under a new epoch, and leaves no trace."""
        name, state, absent = unique("t"), unique("state"), unique("absent")
        async with logs.open(commit_interval_ms=NEVER_MS) as log:
            await log.ensure([TopicSpec(name, 2), TopicSpec(state, 1)])
            one, first = join(log, f"g-{name}", name)
            cover = Snapshots()
            async with first:
                delivery = log.delivery(first, Mode.AT_LEAST_ONCE, cover)
                held = dict(one.epochs)
                for tp in held:
                    cover.dirty[tp] = [snapshots(absent, 1)]
                await delivery.settle({tp: Position(4, "", epoch) for tp, epoch in held.items()})
                _two, second = join(log, f"g-{name}", name)
                joining = asyncio.create_task(second.__aenter__())
                async with asyncio.timeout(PATIENCE_S):
                    while not joining.done():
                        await first.poll(1, 0.05)
                await joining
                assert cover.names() == ["settled"] * 2 + ["snapshots"] * 2
                for tp in held:
                    cover.dirty[tp] = [snapshots(state, 1)]
                await delivery.flush()
                assert len(cover.told) == 4
                assert set((await second.committed(set(held))).values()) == {None}
                await second.__aexit__(None, None, None)
            assert await values(log, state) == []


class TestConfirm:
    """The last step of a takeover (P-5)."""

    async def test_P5_a_takeover_is_confirmed_by_a_commit_of_what_was_read(
        self, log, topic, unique
    ):
        """The owner's is accepted and changes nothing; one of another epoch is not sent."""
        tps = {TP(topic, 0), TP(topic, 1)}
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            await delivery.settle({TP(topic, 1): Position(3, "5", worker.epochs[TP(topic, 1)])})
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            found = await source.committed(tps)
            first = await source.beginning_offsets(tps)
            read_now = {
                tp: Position(first[tp], "", worker.epochs[tp])
                if at is None
                else Position(at.offset, at.metadata, worker.epochs[tp])
                for tp, at in found.items()
            }
            assert await source.confirm(read_now) == tps
            again = await source.committed(tps)
            kept = "5" if Feature.COMMIT_METADATA in log.features else ""
            assert (again[TP(topic, 0)].offset, again[TP(topic, 0)].metadata) == (0, "")
            assert (again[TP(topic, 1)].offset, again[TP(topic, 1)].metadata) == (3, kept)
            stale = {tp: Position(9, "", at.epoch - 1) for tp, at in read_now.items()}
            assert await source.confirm(stale) == set()
            mixed = {**stale, TP(topic, 0): read_now[TP(topic, 0)]}
            assert await source.confirm(mixed) == {TP(topic, 0)}
            assert (await source.committed(tps))[TP(topic, 1)].offset == 3


class TestPlanted:
    """The checks above can fail."""

    async def test_a_snapshot_ahead_of_its_answers_is_caught(self):
        """M1: a crash would leave a state that says more than was answered."""
        log = RashLog()
        await log.ensure([TopicSpec("t", 2), TopicSpec("state", 1)])
        with pytest.raises(AssertionError):
            await settle_with_snapshots(log, "t", "state")

    async def test_a_commit_ahead_of_its_snapshots_is_caught(self):
        """D3: a crash would leave a position whose state is lost."""
        log = HastyLog()
        await log.ensure([TopicSpec("t", 2), TopicSpec("state", 1)])
        with pytest.raises(AssertionError):
            await fail_a_snapshot(log, "t", "state", "absent")

    async def test_the_unplanted_log_passes_both(self):
        """So it is the plant that is caught."""
        log = MemoryLog()
        await log.ensure([TopicSpec("t", 2), TopicSpec("state", 1)])
        await settle_with_snapshots(log, "t", "state")
        log = MemoryLog()
        await log.ensure([TopicSpec("t", 2), TopicSpec("state", 1)])
        await fail_a_snapshot(log, "t", "state", "absent")
