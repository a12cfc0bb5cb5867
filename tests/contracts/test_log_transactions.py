"""Exactly-once delivery, the same for both logs that have transactions: in memory and Apache Kafka (DELIVERY)."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from conftest import Logs
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import (
    EARLIEST,
    LATEST,
    Feature,
    Mode,
    Outcome,
    Position,
    Span,
    TopicSpec,
)
from log_kit import PATIENCE_S, Snapshots, Worker, join, outs, read, records_of, values

LARGE = (
    b"x" * 600_000
)  # fills a round of its own: it is sent, and acknowledged, before what is behind it
IN_TIME_S = 5.0  # half the transaction timeout


class Exploding(Snapshots):
    """A cover that fails in the middle of a transaction, as if the process had ended there."""

    def snapshots(self, owner, position):
        super().snapshots(owner, position)

        def chunks():
            yield from self.dirty.get(owner, ())
            raise RuntimeError("planted")

        return chunks()


@pytest.fixture(
    params=[
        pytest.param("memory", id="memory"),
        pytest.param("kafka", id="kafka", marks=pytest.mark.kafka),
    ]
)
def logs(request):
    """Each kind of log that has transactions."""
    kind = request.param
    return Logs(kind, {} if kind == "memory" else request.getfixturevalue("kafka_properties"))


@pytest.fixture
async def topic(log, unique):
    """A topic with two partitions."""
    name = unique("t")
    await log.ensure([TopicSpec(name, 2)])
    return name


@pytest.fixture
async def target(log, unique):
    """Another one, for what follows from the first."""
    name = unique("target")
    await log.ensure([TopicSpec(name, 2)])
    return name


@asynccontextmanager
async def member(log, topic, cover=None):
    """Run a member with an exactly-once delivery that has taken over all it was assigned."""
    worker, source = join(log, f"g-{topic}", topic)
    async with source:
        delivery = log.delivery(source, Mode.EXACTLY_ONCE, cover)
        taken = await delivery.take_over(dict(worker.epochs))
        assert taken == worker.epochs.keys()
        yield worker, source, delivery


def at(worker, owner, offset, metadata=""):
    return {owner: Position(offset, metadata, worker.epochs[owner])}


async def committed(source, owner):
    found = (await source.committed({owner}))[owner]
    return None if found is None else (found.offset, found.metadata)


async def leave_open(log, topic, target):
    """Leave a transaction open that has written one large record, by a delivery that nobody uses any more."""
    cover = Exploding()
    worker, source = join(log, f"g-{topic}", topic)
    await source.__aenter__()
    delivery = log.delivery(source, Mode.EXACTLY_ONCE, cover)
    owner = TP(topic, 0)
    await delivery.take_over(dict(worker.epochs))
    cover.dirty[owner] = [outs(target, 0, 1)]
    delivery.put(owner, [Out(target, 0, None, LARGE)])
    with pytest.raises(RuntimeError, match="planted"):
        await delivery.settle(at(worker, owner, 1))
    return worker, source, delivery


class TestCut:
    """A transaction is a cut (P-10)."""

    async def test_the_log_says_that_it_has_transactions(self, log):
        """P-9: the contract suite selects by it."""
        assert Feature.TRANSACTIONS in log.features

    async def test_P10_everything_that_follows_from_a_cut_is_committed_together(
        self, log, topic, target, unique
    ):
        """Answers, dead letters, a next hop's requests, snapshots, offset and finished set: none before, all after."""
        dead, hop, state = unique("dead"), unique("hop"), unique("state")
        await log.ensure([TopicSpec(name, 2) for name in (dead, hop, state)])
        owner, cover = TP(topic, 0), Snapshots()
        async with member(log, topic, cover) as (worker, source, delivery):
            cover.dirty[owner] = [outs(state, 0, 2), outs(state, 1, 1)]
            delivery.put(owner, outs(state, 0, 1, start=9), after_ack=True)
            delivery.put(owner, outs(target, 0, 3))
            delivery.put(owner, outs(target, 1, 1))
            delivery.put(owner, outs(dead, 0, 1))
            delivery.put(owner, outs(hop, 1, 2))
            everything = [(target, 0), (target, 1), (dead, 0), (hop, 1), (state, 0), (state, 1)]
            assert [await values(log, *place) for place in everything] == [[]] * 6
            assert await committed(source, owner) is None
            assert await delivery.settle(at(worker, owner, 4, "6-7")) == {owner: Outcome.SETTLED}
            assert [await values(log, *place) for place in everything] == [
                [b"0", b"1", b"2"],
                [b"0"],
                [b"0"],
                [b"0", b"1"],
                [b"9", b"0", b"1"],
                [b"0"],
            ]
            assert await committed(source, owner) == (4, "6-7")
        assert cover.told == [
            ("settled", owner, 4),
            ("snapshots", owner, 4),
            ("saved", owner, [b"0", b"1"]),
            ("saved", owner, [b"0"]),
            ("committed", owner, 4),
        ]

    async def test_P1_the_next_owner_finds_offset_and_finished_set_of_a_transaction(
        self, log, topic
    ):
        """The metadata of a transactional offset commit is stored, and replaced by the next one's."""
        owner = TP(topic, 1)
        async with member(log, topic) as (worker, _, delivery):
            await delivery.settle(at(worker, owner, 2, "3-4"))
            await delivery.settle(at(worker, owner, 2, "3-5"))
        async with member(log, topic) as (worker, source, delivery):
            assert await committed(source, owner) == (2, "3-5")
            assert await delivery.settle(at(worker, owner, 6, "")) == {owner: Outcome.SETTLED}
            assert await committed(source, owner) == (6, "")

    async def test_P9_a_position_is_never_told_late(self, log, topic):
        """D9: what a transaction has committed is told right behind it, and not what was committed before."""
        owner = TP(topic, 0)
        async with member(log, topic) as (worker, source, delivery):
            told = []
            for offset in range(1, 31):
                await delivery.settle(at(worker, owner, offset))
                told.append(await committed(source, owner))
            assert told == [(offset, "") for offset in range(1, 31)]

    async def test_P10_a_cut_ends_at_its_settle(self, log, topic, target):
        """What is put while it runs goes with the next one, whatever becomes of the first."""
        owner = TP(topic, 0)
        async with member(log, topic) as (worker, source, delivery):
            delivery.put(owner, outs(target, 0, 1))
            settling = asyncio.create_task(delivery.settle(at(worker, owner, 1)))
            await asyncio.sleep(0)
            delivery.put(owner, outs(target, 0, 1, start=1))
            assert await settling == {owner: Outcome.SETTLED}
            assert await values(log, target) == [b"0"]
            assert await committed(source, owner) == (1, "")
            assert await delivery.settle(at(worker, owner, 2)) == {owner: Outcome.SETTLED}
            assert await values(log, target) == [b"0", b"1"]

    async def test_settles_may_overlap_and_each_owner_keeps_its_order(self, log, topic, target):
        """P-18: fifty settles at once over two owners: per owner in the order of the calls, the last position wins."""
        owners = [TP(topic, 0), TP(topic, 1)]
        async with member(log, topic) as (worker, source, delivery):
            settles = []
            for i in range(25):
                for owner in owners:
                    delivery.put(owner, outs(target, owner.partition, 1, start=i))
                    settle = delivery.settle(at(worker, owner, i + 1))
                    settles.append(asyncio.create_task(settle))
                    await asyncio.sleep(0)
            for done in await asyncio.gather(*settles):
                assert set(done.values()) == {Outcome.SETTLED}
            for owner in owners:
                got = await values(log, target, owner.partition)
                assert got == [b"%d" % i for i in range(25)]
                assert await committed(source, owner) == (25, "")

    async def test_only_the_owners_that_are_settled_are_published(self, log, topic, target):
        """Another owner's records stay buffered until its own settle, and one settle may have many owners."""
        a, b = TP(topic, 0), TP(topic, 1)
        async with member(log, topic) as (worker, _, delivery):
            delivery.put(a, outs(target, 0, 1, start=1))
            delivery.put(b, outs(target, 1, 1, start=2))
            await delivery.settle(at(worker, b, 1))
            assert [await values(log, target, p) for p in (0, 1)] == [[], [b"2"]]
            delivery.put(b, outs(target, 1, 1, start=3))
            both = at(worker, a, 1) | at(worker, b, 2)
            assert await delivery.settle(both) == dict.fromkeys(both, Outcome.SETTLED)
            assert [await values(log, target, p) for p in (0, 1)] == [[b"1"], [b"2", b"3"]]

    async def test_a_settle_without_news_makes_no_transaction(self, log, topic, target):
        """P-12: an idle partition hides nothing and costs nothing; a due tombstone alone makes one."""
        owner, cover = TP(topic, 0), Snapshots()
        async with member(log, topic, cover) as (worker, _, delivery):
            delivery.put(owner, outs(target, 0, 1))
            await delivery.settle(at(worker, owner, 1))
            end = await self._end(log, target)
            assert await delivery.settle(at(worker, owner, 1)) == {owner: Outcome.SETTLED}
            assert await self._end(log, target) == end == 2, "a record and a marker"
            cover.dirty[owner] = [[Out(target, 0, b"k", None)]]
            assert await delivery.settle(at(worker, owner, 1)) == {owner: Outcome.SETTLED}
            assert await self._end(log, target) == 4

    async def _end(self, log, topic):
        async with log.source(f"end-{topic}", {topic}, Worker()) as source:
            return (await source.end_offsets({TP(topic, 0)}))[TP(topic, 0)]


class TestAbort:
    """Nothing of what did not commit is ever seen."""

    async def test_P11_an_abort_hides_everything_and_is_told_to_the_cover(
        self, log, topic, target, unique
    ):
        """An answer is written already when a snapshot cannot be: nobody reads it, and a second try comes out once."""
        absent, owner, cover = unique("absent"), TP(topic, 0), Snapshots()
        async with member(log, topic, cover) as (worker, source, delivery):
            delivery.put(owner, outs(target, 0, 1))
            await delivery.settle(at(worker, owner, 1))
            cover.told.clear()
            cover.dirty[owner] = [outs(absent, 0, 1)]
            delivery.put(owner, [Out(target, 0, None, LARGE)])
            delivery.put(owner, outs(target, 1, 1), after_commit=True)
            with pytest.raises(LogError, match=absent) as failed:
                await delivery.settle(at(worker, owner, 2))
            assert not failed.value.retriable
            assert await values(log, target, committed=False) == [b"0", LARGE], "it was there"
            assert await values(log, target) == [b"0"]
            assert await values(log, target, 1, committed=False) == [], "P-13"
            assert await committed(source, owner) == (1, "")
            assert cover.names() == ["settled", "snapshots", "aborted"]
            # Until it is taken over again, nothing is published for it.
            delivery.put(owner, outs(target, 0, 1, start=7))
            assert await delivery.settle(at(worker, owner, 3)) == {owner: Outcome.ABORTED}
            await log.ensure([TopicSpec(absent, 1)])
            assert await delivery.take_over(dict(worker.epochs)) == worker.epochs.keys()
            delivery.put(owner, outs(target, 0, 1, start=2))
            assert await delivery.settle(at(worker, owner, 2)) == {owner: Outcome.SETTLED}
            assert await values(log, target) == [b"0", b"2"]
            assert await values(log, absent) == [b"0"]
            assert await committed(source, owner) == (2, "")

    async def test_P11_one_owners_abort_leaves_the_others_alone(self, log, topic, target, unique):
        """What committed beside it is committed."""
        absent, cover = unique("absent"), Snapshots()
        a, b = TP(topic, 0), TP(topic, 1)
        async with member(log, topic, cover) as (worker, source, delivery):
            cover.dirty[a] = [outs(absent, 0, 1)]
            delivery.put(a, outs(target, 0, 1))
            delivery.put(b, outs(target, 1, 1))
            with pytest.raises(LogError, match=absent):
                await delivery.settle(at(worker, a, 1) | at(worker, b, 1))
            assert [await values(log, target, p) for p in (0, 1)] == [[], [b"0"]]
            assert [await committed(source, tp) for tp in (a, b)] == [None, (1, "")]

    async def test_P11_sizes_are_checked_before_anything_is_sent(self, logs, unique):
        """A too large record: nothing of the call is published or committed, and everything stays buffered."""
        topic, target = unique("t"), unique("target")
        async with logs.open(max_record_bytes=100_000) as log:
            await log.ensure([TopicSpec(topic, 2), TopicSpec(target, 2)])
            a, b = TP(topic, 0), TP(topic, 1)
            cover = Snapshots()
            async with member(log, topic, cover) as (worker, source, delivery):
                delivery.put(a, outs(target, 0, 1))
                delivery.put(b, [*outs(target, 1, 1), Out(target, 1, None, b"x" * 100_001)])
                both = at(worker, a, 1) | at(worker, b, 1)
                with pytest.raises(LogError, match=r"max\.request\.size") as refused:
                    await delivery.settle(both)
                assert not refused.value.retriable
                assert cover.told == []
                assert [await committed(source, tp) for tp in (a, b)] == [None, None]
                assert await values(log, target, committed=False) == []
                assert await delivery.settle(at(worker, a, 1)) == {a: Outcome.SETTLED}
                assert await values(log, target) == [b"0"]
                assert await values(log, target, 1, committed=False) == []

    async def test_P13_replies_follow_the_commit_outside_of_the_transaction(
        self, log, topic, target
    ):
        """They are seen by whoever reads uncommitted, in order, and behind what they follow."""
        owner = TP(topic, 0)
        async with member(log, topic) as (worker, _, delivery):
            delivery.put(owner, outs(target, 0, 2), after_commit=True)
            delivery.put(owner, outs(target, 0, 2, start=2))
            await delivery.settle(at(worker, owner, 4))
            await delivery.flush()
            assert await values(log, target) == [b"2", b"3", b"0", b"1"]
            delivery.put(owner, outs(target, 0, 1, start=4), after_commit=True)
            await delivery.settle(at(worker, owner, 5))
            await delivery.flush()
            assert await values(log, target) == [b"2", b"3", b"0", b"1", b"4"]

    async def test_P13_a_reply_that_cannot_be_sent_undoes_nothing(
        self, log, topic, target, unique
    ):
        """Its caller's call times out; those of the next settle come."""
        owner, absent = TP(topic, 0), unique("absent")
        async with member(log, topic) as (worker, source, delivery):
            delivery.put(owner, outs(absent, 0, 1), after_commit=True)
            delivery.put(owner, outs(target, 0, 1))
            assert await delivery.settle(at(worker, owner, 1)) == {owner: Outcome.SETTLED}
            assert await committed(source, owner) == (1, "")
            delivery.put(owner, outs(target, 1, 1), after_commit=True)
            await delivery.settle(at(worker, owner, 2))
            await delivery.flush()
            assert await values(log, target, 1) == [b"0"]

    async def test_P3_a_cut_whose_states_are_forgotten_is_never_committed(
        self, log, topic, target
    ):
        """D3: nothing of it is published either."""
        owner, cover = TP(topic, 0), Snapshots()
        cover.forgotten = {owner}
        async with member(log, topic, cover) as (worker, source, delivery):
            delivery.put(owner, outs(target, 0, 1))
            assert await delivery.settle(at(worker, owner, 1)) == {owner: Outcome.ABORTED}
            assert await values(log, target, committed=False) == []
            assert await committed(source, owner) is None


class TestFencing:
    """One owner at a time."""

    async def test_P8_a_stale_epoch_is_fenced_and_commits_nothing(self, log, topic, target):
        """Work that was admitted under another epoch neither publishes nor commits."""
        owner = TP(topic, 0)
        async with member(log, topic) as (worker, source, delivery):
            delivery.put(owner, outs(target, 0, 1))
            stale = Position(9, "", worker.epochs[owner] - 1)
            assert await delivery.settle({owner: stale}) == {owner: Outcome.FENCED}
            assert await delivery.take_over({owner: worker.epochs[owner] - 1}) == set()
            assert await committed(source, owner) is None
            assert await delivery.settle(at(worker, owner, 1)) == {owner: Outcome.SETTLED}
            assert await values(log, target, committed=False) == []

    async def test_P5_without_a_takeover_nothing_is_published(self, log, topic, target):
        """Who forgot it, or released the partition, is told to take it over."""
        owner = TP(topic, 0)
        async with member(log, topic) as (worker, source, delivery):
            await delivery.release(owner, abort=False)
            other = log.delivery(source, Mode.EXACTLY_ONCE)
            for one in (delivery, other):
                one.put(owner, outs(target, 0, 1))
                assert await one.settle(at(worker, owner, 1)) == {owner: Outcome.ABORTED}
            assert await values(log, target, committed=False) == []
            assert await committed(source, owner) is None

    async def test_P6_fenced_though_still_the_assignee_is_to_be_taken_over_again(
        self, log, topic, target
    ):
        """Somebody else took the transactional id: the outcome says so, nothing is seen, and a takeover mends it."""
        owner, cover = TP(topic, 0), Snapshots()
        async with member(log, topic, cover) as (worker, source, delivery):
            delivery.put(owner, outs(target, 0, 1))
            await delivery.settle(at(worker, owner, 1))
            cover.told.clear()
            other = log.delivery(source, Mode.EXACTLY_ONCE)
            assert await other.take_over(dict(worker.epochs)) == worker.epochs.keys()
            delivery.put(owner, outs(target, 0, 1, start=1))
            fenced = await delivery.settle(at(worker, owner, 2))
            assert fenced == {owner: Outcome.PRODUCER_FENCED}
            assert cover.names() == ["settled", "snapshots", "aborted"]
            assert await values(log, target) == [b"0"]
            assert await committed(source, owner) == (1, "")
            assert await delivery.take_over(at_epochs(worker, owner)) == {owner}
            delivery.put(owner, outs(target, 0, 1, start=2))
            assert await delivery.settle(at(worker, owner, 2)) == {owner: Outcome.SETTLED}
            assert await values(log, target) == [b"0", b"2"]
            other.put(owner, outs(target, 0, 1, start=3))
            assert await other.settle(at(worker, owner, 3)) == {owner: Outcome.PRODUCER_FENCED}

    async def test_P5_B27_a_takeover_ends_what_was_left_open(self, logs, topic, target):
        """The same transactional id finds it: readers go on at once, not when the transaction is too old."""
        async with logs.open() as first, logs.open() as second:
            _, source, _ = await leave_open(first, topic, target)
            async with second.publisher() as publisher:
                await publisher.publish(outs(target, 0, 1, start=5))
            assert await values(second, target, committed=False) == [LARGE, b"5"]
            assert await values(second, target) == [], "hidden behind the open one"
            async with second.source("end", {target}, Worker()) as reading:
                tp = TP(target, 0)
                reading.resume({tp})
                assert await reading.end_offsets({tp}) == {tp: 0}
                assert not records_of(await reading.poll(10, 0.2))
                assert reading.position(tp) == 0
                started = asyncio.get_running_loop().time()
                worker, again = join(second, f"g-{topic}", topic)
                joining = asyncio.create_task(again.__aenter__())
                async with asyncio.timeout(PATIENCE_S):
                    while not joining.done():
                        await source.poll(1, 0.05)
                await joining
                # It has one of the two partitions, and which one is the group's choice.
                await source.__aexit__(None, None, None)
                async with asyncio.timeout(PATIENCE_S):
                    while len(worker.epochs) < 2:
                        await again.poll(1, 0.05)
                delivery = second.delivery(again, Mode.EXACTLY_ONCE)
                assert await delivery.take_over(dict(worker.epochs)) == worker.epochs.keys()
                assert asyncio.get_running_loop().time() - started < 2 * IN_TIME_S
                assert await committed(again, TP(topic, 0)) is None
                assert await values(second, target) == [b"5"]
                assert [r.value for r in records_of(await read(reading, 1))] == [b"5"]
                ends = await reading.end_offsets({tp})
                assert ends == {tp: 3}, (
                    "the aborted record, its marker's place is behind the other"
                )
                async with asyncio.timeout(PATIENCE_S):
                    while reading.position(tp) < 3:
                        assert not await reading.poll(1, 0.05)
                await again.__aexit__(None, None, None)

    async def test_B23_an_owner_that_was_replaced_in_the_middle_commits_nothing(
        self, logs, unique
    ):
        """The group's offset does not go back, and one answer per record is to be seen."""
        topic, target = unique("t"), unique("target")
        async with logs.open() as first, logs.open() as second:
            await first.ensure([TopicSpec(topic, 1), TopicSpec(target, 2)])
            owner = TP(topic, 0)
            _, source, _ = await leave_open(first, topic, target)
            zombie = first.delivery(source, Mode.EXACTLY_ONCE)
            old = source.assignment()[owner]
            await zombie.take_over({owner: old})
            zombie.put(owner, outs(target, 1, 1))
            assert await zombie.settle({owner: Position(1, "", old)}) == {owner: Outcome.SETTLED}
            await source.__aexit__(None, None, None)
            async with member(second, topic) as (worker, source, delivery):
                delivery.put(owner, outs(target, 1, 1, start=1))
                await delivery.settle(at(worker, owner, 2))
                zombie.put(owner, outs(target, 1, 1, start=8))
                fenced = await zombie.settle({owner: Position(1, "", old)})
                assert fenced == {owner: Outcome.FENCED}
                assert await committed(source, owner) == (2, "")
                assert await values(second, target, 1) == [b"0", b"1"]

    async def test_P5_a_revocation_waits_for_the_cut_that_runs(self, logs, unique):
        """The next owner starts behind it, and each record has one answer."""
        topic, target = unique("t"), unique("target")
        async with logs.open() as log:
            await log.ensure([TopicSpec(topic, 2), TopicSpec(target, 2)])
            async with member(log, topic) as (one, first, delivery):
                held = dict(one.epochs)
                settles = []

                async def begin_to_settle(tps):
                    for tp in tps:
                        delivery.put(tp, outs(target, tp.partition, 3))
                    upto = {tp: Position(3, "", held[tp]) for tp in tps}
                    settles.append(asyncio.create_task(delivery.settle(upto)))
                    await asyncio.sleep(0)
                    one.on_revoked = None

                one.on_revoked = begin_to_settle
                _, second = join(log, f"g-{topic}", topic)
                joining = asyncio.create_task(second.__aenter__())
                async with asyncio.timeout(PATIENCE_S):
                    while not joining.done():
                        await first.poll(1, 0.05)
                await joining
                assert await settles[0] == dict.fromkeys(held, Outcome.SETTLED)
                assert [await committed(second, tp) for tp in sorted(held)] == [(3, "")] * 2
                # P-7: what came back is taken over again, under its new epoch.
                assert await delivery.take_over(dict(one.epochs)) == one.epochs.keys()
                (kept,) = one.epochs
                delivery.put(kept, outs(target, kept.partition, 1, start=3))
                assert await delivery.settle(at(one, kept, 4)) == {kept: Outcome.SETTLED}
                assert await values(log, target, kept.partition) == [b"0", b"1", b"2", b"3"]
                await second.__aexit__(None, None, None)


def at_epochs(worker, *owners):
    return {owner: worker.epochs[owner] for owner in owners}


class TestReading:
    """Sources, and readers of what is committed, see neither open nor aborted transactions."""

    async def test_B24_a_partition_that_ends_in_an_aborted_transaction_is_read_to_its_end(
        self, log, topic, target, unique
    ):
        """Markers take offsets, and positions pass them and what was aborted."""
        owner, cover = TP(topic, 0), Snapshots()
        async with member(log, topic, cover) as (worker, _, delivery):
            delivery.put(owner, outs(target, 0, 2))
            await delivery.settle(at(worker, owner, 2))
            cover.dirty[owner] = [outs(unique("absent"), 0, 1)]
            delivery.put(owner, [Out(target, 0, None, LARGE)])
            with pytest.raises(LogError):
                await delivery.settle(at(worker, owner, 3))
        tp = TP(target, 0)
        async with (
            asyncio.timeout(PATIENCE_S),
            log.reader({tp: Span(EARLIEST, LATEST)}, committed=True) as reader,
        ):
            got = []
            while not reader.done():
                got += records_of(await reader.poll(10, 1.0))
            assert ([r.value for r in got], reader.positions()) == ([b"0", b"1"], {tp: 5})
        worker, source = join(log, f"hop-{target}", target)
        async with source, asyncio.timeout(PATIENCE_S):
            got = records_of(await read(source, 2))
            while source.position(tp) < 5:
                assert not await source.poll(10, 0.05)
            assert [r.offset for r in got] == [0, 1]
            assert await source.end_offsets({tp}) == {tp: 5}
