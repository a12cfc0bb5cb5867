"""What the memory log does beyond the contract: sticky sharing, and each fault it can be told to show."""

import asyncio

import pytest
from headrace.schemas.errors import ConfigError, LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import EARLIEST, Mode, Outcome, Position, Span, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_group import sticky
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_loop import run_virtual

A0, A1 = TP("a", 0), TP("a", 1)


class Notes:
    """A `Rebalance` that writes down what it is told."""

    def __init__(self):
        self.told = []
        self.epochs = {}

    def assigned(self, tps, epoch):
        self.told.append(("assigned", frozenset(tps)))
        self.epochs |= dict.fromkeys(tps, epoch)

    async def revoked(self, tps, deadline):
        self.told.append(("revoked", frozenset(tps)))

    def lost(self, tps):
        self.told.append(("lost", frozenset(tps)))


async def log_with(partitions=2, **options):
    log = MemoryLog(**options)
    await log.ensure([TopicSpec("a", partitions), TopicSpec("out", 1)])
    return log


def outs(n, topic="a", partition=0):
    return [Out(topic, partition, b"k", b"%d" % i) for i in range(n)]


async def test_a_failed_produce_commits_nothing_and_the_next_settle_publishes_again():
    """At-least-once: the records of a failed settle stay buffered (B22)."""
    log, notes = await log_with(), Notes()
    async with log, log.source("g", {"a"}, notes) as source:
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
        delivery.put(A0, outs(1, "out"))
        log.fail_produce()
        with pytest.raises(LogError) as failed:
            await delivery.settle({A0: Position(1, "", notes.epochs[A0])})
        assert failed.value.retriable
        assert (log.records("out", 0), log.committed("g")) == ([], {})
        assert await delivery.settle({A0: Position(1, "", notes.epochs[A0])}) == {
            A0: Outcome.SETTLED
        }
        assert [r.value for r in log.records("out", 0)] == [b"0"]
        assert log.committed("g")[A0].offset == 1


async def test_a_lost_acknowledgement_duplicates_answers():
    """A produce that is written and reported as failed shows up twice after the retry, never zero times."""
    log, notes = await log_with(), Notes()
    async with log, log.source("g", {"a"}, notes) as source:
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
        delivery.put(A0, outs(1, "out"))
        log.fail_produce(written=True, retriable=False)
        with pytest.raises(LogError):
            await delivery.settle({A0: Position(1, "", notes.epochs[A0])})
        await delivery.settle({A0: Position(1, "", notes.epochs[A0])})
        assert len(log.records("out", 0)) == 2


async def test_a_failed_commit_is_raised_and_made_good_by_flush():
    """Nothing is committed by a refused commit; the position is kept for the next attempt."""
    log, notes = await log_with(), Notes()
    async with log, log.source("g", {"a"}, notes) as source:
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
        log.fail_commit()
        with pytest.raises(LogError):
            await delivery.settle({A0: Position(3, "m", notes.epochs[A0])})
        assert log.committed("g") == {}
        await delivery.flush()
        assert log.committed("g")[A0] == Position(3, "m", notes.epochs[A0])


def test_commits_follow_within_their_interval_without_further_settles():
    """A crash between settle and commit leaves the old position, as on a real broker; in peace it moves by itself."""

    async def play():
        log, notes = await log_with(commit_interval_ms=100), Notes()
        async with log, log.source("g", {"a"}, notes) as source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            await delivery.settle({A0: Position(1, "", notes.epochs[A0])})
            await source.poll(1, 0.09)
            assert log.committed("g") == {}
            await source.poll(1, 0.02)
            assert log.committed("g")[A0].offset == 1
            await delivery.settle({A0: Position(2, "", notes.epochs[A0])})
            log.fail_commit()
            await source.poll(1, 0.15)
            assert log.committed("g")[A0].offset == 1
            with pytest.raises(LogError, match="commit failed"):
                await delivery.settle({})
            await source.poll(1, 0.15)
            assert log.committed("g")[A0].offset == 2
            await delivery.settle({A0: Position(3, "", notes.epochs[A0])})
            log.crash(source)
            async with log.source("g", {"a"}, Notes()) as other:
                await other.poll(1, 1)
            assert log.committed("g")[A0].offset == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(play())


async def test_an_evicted_member_publishes_but_does_not_commit_and_learns_of_its_loss():
    """P-4, P-7, P-8: a zombie's answers go out, its commits and its confirmation are refused, then it is told."""
    log, notes, other = await log_with(), Notes(), Notes()
    async with log, log.source("g", {"a"}, notes) as zombie, log.source("g", {"a"}, other):
        before = dict(zombie.assignment())
        mine = next(iter(before))
        log.evict(zombie)
        await log.rebalance("g")
        assert other.epochs.keys() == {A0, A1}
        delivery = log.delivery(zombie, Mode.AT_LEAST_ONCE)
        assert await zombie.confirm({mine: Position(0, "", before[mine])}) == set()
        delivery.put(mine, outs(1, "out"))
        fenced = await delivery.settle({mine: Position(9, "", before[mine])})
        assert fenced == {mine: Outcome.FENCED}
        assert log.committed("g") == {}
        assert len(log.records("out", 0)) == 1
        delivery.put(mine, outs(1, "out"))
        await delivery.settle({mine: Position(10, "", before[mine])})
        assert len(log.records("out", 0)) == 1, "a refused commit told it"
        await zombie.poll(1, 0)
        assert notes.told[-1] == ("lost", frozenset(before))
        await log.rebalance("g")
        assert len(zombie.assignment()) == 1


def test_a_zombie_reads_and_publishes_until_it_learns():
    """P-4: the new owner works beside one that was stopped for longer than its session, and then goes on."""

    async def play():
        log, notes, other = await log_with(commit_interval_ms=10_000), Notes(), Notes()
        async with log, log.source("g", {"a"}, notes) as zombie, log.source("g", {"a"}, other):
            before = dict(zombie.assignment())
            mine = next(iter(before))
            log.append(outs(1, "a", mine.partition))
            zombie.resume({mine})
            log.evict(zombie, learns_after_s=3)
            await log.rebalance("g")
            delivery = log.delivery(zombie, Mode.AT_LEAST_ONCE)
            (block,) = await zombie.poll(1, 1)
            assert block.epoch == before[mine]
            delivery.put(mine, outs(1, "out"))
            settled = await delivery.settle({mine: Position(1, "", before[mine])})
            assert settled == {mine: Outcome.SETTLED}
            assert len(log.records("out", 0)) == 1
            await zombie.poll(1, 2.9)
            assert ("lost", frozenset(before)) not in notes.told
            await zombie.poll(1, 0.2)
            assert ("lost", frozenset(before)) in notes.told
            await delivery.flush()
            assert log.committed("g") == {}

    run_virtual(play())


async def test_a_crashed_member_is_told_nothing_and_its_calls_fail():
    """A killed process neither revokes nor commits; the others get its partitions."""
    log, notes, other = await log_with(), Notes(), Notes()
    async with log, log.source("g", {"a"}, notes) as dead, log.source("g", {"a"}, other) as alive:
        told = list(notes.told)
        log.crash(dead)
        await log.rebalance("g")
        assert notes.told == told
        assert alive.assignment().keys() == {A0, A1}
        with pytest.raises(LogError, match="crashed"):
            await dead.poll(1, 0)


async def test_rotation_moves_partitions_and_stickiness_keeps_them():
    """A plain rebalance moves nothing; a rotated one moves everything."""
    log = await log_with()
    async with (
        log,
        log.source("g", {"a"}, Notes()) as one,
        log.source("g", {"a"}, Notes()) as two,
    ):
        had = one.assignment().keys(), two.assignment().keys()
        await log.rebalance("g")
        assert (one.assignment().keys(), two.assignment().keys()) == had
        await log.rebalance("g", rotate=True)
        assert (two.assignment().keys(), one.assignment().keys()) == had


async def test_redelivery_hands_out_the_same_records_under_the_same_epoch():
    """Duplicate delivery can be injected."""
    log, notes = await log_with(), Notes()
    log.append(outs(3))
    async with log, log.source("g", {"a"}, notes) as source:
        source.resume({A0})
        (first,) = await source.poll(10, 0)
        log.redeliver(source, A0, 2)
        (again,) = await source.poll(10, 0)
        assert [r.offset for r in again.records] == [1, 2]
        assert again.epoch == first.epoch


async def test_holes_trimming_and_compaction_do_not_stall_readers():
    """Offsets without records are passed over, by sources and by spans with an end."""
    log, notes = await log_with(), Notes()
    log.append([Out("a", 0, b"x", b"1"), Out("a", 0, b"x", b"2"), Out("a", 0, b"y", b"3")])
    log.compact("a")
    log.partition(A0).hole(2)
    async with log, log.reader({A0: Span(EARLIEST, 5)}) as reader:
        (block,) = await reader.poll(10, 0)
        assert [r.value for r in block.records] == [b"2", b"3"]
        assert await reader.poll(10, 0) == []
        assert reader.done()
        assert reader.positions() == {A0: 5}
        log.partition(A0).trim(2)
        async with log.source("g", {"a"}, notes) as source:
            source.resume({A0})
            source.seek(A0, 0)
            (block,) = await source.poll(10, 0)
            assert [r.offset for r in block.records] == [2]


async def test_compaction_keeps_what_kafka_keeps():
    """The last record of a key, tombstones for a while, everything without a key or within the lag."""
    now = [0]
    log = MemoryLog(clock_ms=lambda: now[0])
    await log.ensure([TopicSpec("s", 1, {"min.compaction.lag.ms": "10"})])

    def write(*pairs):
        log.append([Out("s", 0, key, value) for key, value in pairs])

    def left():
        return [(r.offset, r.key, r.value) for r in log.records("s", 0)]

    write((b"a", b"1"), (b"b", b"1"), (None, b"1"), (b"a", None))
    now[0] = 5
    write((b"b", b"2"))
    log.compact("s")
    assert len(left()) == 5, "all are younger than the lag"
    now[0] = 10
    log.compact("s")
    assert left() == [(1, b"b", b"1"), (2, None, b"1"), (3, b"a", None), (4, b"b", b"2")]
    now[0] = 20
    log.compact("s", tombstones=True)
    assert left() == [(2, None, b"1"), (4, b"b", b"2")]
    write((b"b", b"3"))
    assert left()[-1] == (5, b"b", b"3")


async def test_refused_creation_names_what_to_create():
    """The sentence holds topic, partitions and settings."""
    log = MemoryLog()
    log.refuse_creation()
    with pytest.raises(LogError, match=r"by hand t with 3 partitions and \{'x': 'y'\}"):
        await log.ensure([TopicSpec("t", 3, {"x": "y"})])
    log.refuse_creation("")
    assert await log.ensure([TopicSpec("t", 3, {"x": "y"})]) == []


async def test_B104_a_deleted_topic_is_revoked_and_comes_back_when_created_again():
    """A topic deleted while running leaves the assignment and returns with `ensure`."""
    log, notes = await log_with(), Notes()
    async with log, log.source("g", {"a"}, notes) as source:
        log.delete("a")
        await log.rebalance("g")
        assert source.assignment() == {}
        assert notes.told[-1] == ("revoked", frozenset({A0, A1}))
        await log.ensure([TopicSpec("a", 2)])
        await log.rebalance("g")
        assert source.assignment().keys() == {A0, A1}


async def test_held_produces_wait_until_they_are_freed():
    """Slow acknowledgements can be injected; nothing is committed before them."""
    log, notes = await log_with(), Notes()
    async with log, log.source("g", {"a"}, notes) as source:
        delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
        delivery.put(A0, outs(1, "out"))
        log.hold_produce()
        settling = asyncio.create_task(delivery.settle({A0: Position(1, "", notes.epochs[A0])}))
        await source.poll(1, 0)
        assert not settling.done()
        assert log.committed("g") == {}
        log.free_produce()
        assert await settling == {A0: Outcome.SETTLED}


async def test_an_error_in_a_revocation_reaches_the_worker_at_its_next_poll():
    """A bug in the worker's callback is not swallowed and does not stop the group."""

    class Broken(Notes):
        async def revoked(self, tps, deadline):
            raise AssertionError("bug")

    log = await log_with()
    async with log, log.source("g", {"a"}, Broken()) as source:
        await log.rebalance("g")
        with pytest.raises(AssertionError, match="bug"):
            await source.poll(1, 0)
        assert source.assignment().keys() == {A0, A1}


async def test_a_revocation_that_takes_longer_than_its_grace_is_abandoned():
    """Every wait is bounded: the group goes on without the slow worker's consent (P-5)."""

    class Slow(Notes):
        async def revoked(self, tps, deadline):
            await asyncio.Event().wait()

    log = await log_with(revoke_grace_s=0.01)
    async with log, log.source("g", {"a"}, Slow()), log.source("g", {"a"}, Notes()) as second:
        assert len(second.assignment()) == 1


def test_a_group_has_a_name():
    """An empty one is refused with a sentence (B76)."""
    log = MemoryLog()
    with pytest.raises(ConfigError, match="group"):
        log.source("", {"a"}, Notes())


@st.composite
def groups(draw):
    topics = draw(st.sets(st.sampled_from("abc"), min_size=1))
    tps = [TP(t, i) for t in sorted(topics) for i in range(draw(st.integers(1, 5)))]
    members = draw(st.integers(1, 5))
    before = [set() for _ in range(members)]
    for tp in tps:
        owner = draw(st.integers(-1, members - 1))
        if owner >= 0:
            before[owner].add(tp)
    return topics, tps, before


@settings(max_examples=200, deadline=None)
@given(groups())
def test_sticky_shares_cover_once_are_level_and_move_nothing_twice(case):
    """Each partition has one owner, loads differ by at most one, and a second run changes nothing."""
    topics, tps, before = case
    shares = sticky([topics] * len(before), before, tps)
    assert sorted(tp for share in shares for tp in share) == sorted(tps)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sticky([topics] * len(before), shares, tps) == shares


class Slow(Notes):
    """Gives up when it is let, and says when it has everything."""

    def __init__(self):
        super().__init__()
        self.lets_go = asyncio.Event()
        self.has_all = asyncio.Event()

    def assigned(self, tps, epoch):
        super().assigned(tps, epoch)
        if tps == {A0, A1}:
            self.has_all.set()

    async def revoked(self, tps, deadline):
        await self.lets_go.wait()


async def test_a_rebalance_goes_on_when_one_of_several_users_leaves_the_log():
    """Who leaves is another process: what it started must not end with it."""
    log, stays = await log_with(), Slow()
    stays.lets_go.set()
    async with log, log.source("g", {"a"}, stays):
        async with log, log.source("g", {"a"}, Notes()):
            stays.lets_go.clear()
            stays.has_all.clear()
        stays.lets_go.set()
        async with asyncio.timeout(5):
            await stays.has_all.wait()
