"""The contract of `headrace.streams.log`, the same for all three logs; what only some can do goes by `Feature`."""

import asyncio
import time
from dataclasses import replace

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from headrace.schemas.errors import ConfigError, LogError
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
from headrace.streams.topology import Topology
from log_kit import PATIENCE_S, Worker, join, outs, read, records_of


@pytest.fixture
async def topic(log, unique):
    """A topic with four partitions."""
    name = unique("t")
    assert await log.ensure([TopicSpec(name, 4)]) == []
    return name


@pytest.fixture
async def publish(log):
    """Publishes records."""
    async with log.publisher() as publisher:
        yield publisher.publish


class TestTopics:
    """Creating and looking."""

    async def test_created_topics_are_listed_with_their_partitions(self, log, unique):
        """`ensure` makes what is missing; `partitions` says None where there is nothing, and creates nothing."""
        a, b, absent = unique("a"), unique("b"), unique("absent")
        assert await log.ensure([TopicSpec(a, 3), TopicSpec(b, 1)]) == []
        assert await log.partitions(a) == 3
        assert await log.partitions(absent) is None
        listed = await log.topics()
        assert (listed[a], listed[b], listed.get(absent)) == (3, 1, None)
        assert await log.partitions(absent) is None

    async def test_an_existing_topic_that_differs_is_a_warning(self, log, unique):
        """Partition count and settings are compared, and the topic stays as it is."""
        name = unique("t")
        await log.ensure([TopicSpec(name, 2, {"cleanup.policy": "compact"})])
        assert await log.ensure([TopicSpec(name, 2, {"cleanup.policy": "compact"})]) == []
        (warning,) = await log.ensure([TopicSpec(name, 5, {"cleanup.policy": "delete"})])
        assert name in warning
        assert "2 partitions" in warning
        assert "compact" in warning
        assert await log.partitions(name) == 2

    async def test_the_topics_of_a_stateful_model_are_as_they_should_be(self, log, unique):
        """Every setting of ours is one that the log takes and tells again; another lag is a warning."""
        topology = Topology(prefix=unique("p"))
        specs = topology.model_specs("m", stateful=True)
        assert await log.ensure(specs) == []
        assert await log.ensure(specs) == []
        slower = replace(topology, session_timeout_ms=60_000).model_specs("m", stateful=True)
        (warning,) = await log.ensure(slower)
        assert "min.compaction.lag.ms" in warning
        assert "600000" in warning

    async def test_B104_a_deleted_topic_is_seen_as_gone_and_not_brought_back(
        self, log, topic, publish
    ):
        """Publishing to it fails with its name; nobody's metadata request creates it again."""
        if Feature.DELETE_TOPICS not in log.features:
            pytest.skip("topics cannot be deleted")
        _worker, source = join(log, f"g-{topic}", topic)
        async with source:
            await publish(outs(topic, 0, 1))
            await read(source, 1)
            deleted = log.delete(topic if not hasattr(log, "warnings") else [topic])
            if deleted is not None:
                await deleted
            assert await log.partitions(topic) is None
            await source.poll(1, 0.1)
            assert await log.partitions(topic) is None

    async def test_a_topic_that_does_not_exist_is_named(self, log, unique, publish):
        """By publishers, readers and sources alike."""
        absent = unique("absent")
        with pytest.raises(LogError, match=absent):
            await publish(outs(absent, 0, 1))
        with pytest.raises(LogError, match=absent):
            async with log.reader({TP(absent, 0): Span(EARLIEST)}):
                pass
        with pytest.raises(LogError, match=absent):
            async with log.source("g", {absent}, Worker()):
                pass
        assert await log.partitions(absent) is None

    async def test_a_partition_that_does_not_exist_is_named(self, log, topic, publish):
        """Number and topic are in the sentence."""
        with pytest.raises(LogError, match=rf"{topic}.*") as failed:
            await publish(outs(topic, 9, 1))
        assert "9" in failed.value.detail


class TestRecords:
    """What goes in comes out."""

    async def test_records_come_in_order_in_blocks_of_one_partition(self, log, topic, publish):
        """Each block is one partition's, in offset order, and together they are everything."""
        for partition in range(4):
            await publish(outs(topic, partition, 50))
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            source.resume(source.assignment().keys())
            blocks = await read(source, 200)
        for block in blocks:
            assert block.records
            assert block.epoch == worker.ever[0][1]
            assert {(r.topic, r.partition) for r in block.records} == {block.tp}
        for partition in range(4):
            mine = [r for r in records_of(blocks) if r.partition == partition]
            assert [r.offset for r in mine] == list(range(50))
            assert [r.value for r in mine] == [b"%d" % i for i in range(50)]

    async def test_P1_the_position_is_behind_what_was_handed_out(self, log, topic, publish):
        """Not behind what is fetched, paused, or not assigned; a seek moves it."""
        await publish(outs(topic, 0, 5))
        _worker, source = join(log, f"g-{topic}", topic)
        async with source:
            tp = TP(topic, 0)
            source.seek(tp, 0)
            await read(source, 1, max_records=2)
            assert source.position(tp) == 2
            source.pause({tp})
            assert await source.poll(10, 0.05) == []
            assert source.position(tp) == 2
            source.resume({tp})
            await read(source, 3)
            assert source.position(tp) == (await source.end_offsets({tp}))[tp] == 5
            source.seek(tp, 1)
            assert source.position(tp) == 1
            assert source.position(TP(topic, 99)) == -1

    async def test_keys_values_headers_and_nulls_are_untouched(self, log, topic, publish):
        """Bytes are bytes: empty, null, not UTF-8, repeated header names, null header values (B32)."""
        headers = (("a", b"\xff\x00"), ("a", b""), ("ü", b"x"), ("n", None))
        await publish(
            [
                Out(topic, 0, b"k\xff", b"", headers),
                Out(topic, 0, b"", None, ()),
                Out(topic, 0, None, bytes(range(256)), headers[:1]),
            ]
        )
        async with log.reader({TP(topic, 0): Span(EARLIEST, 3)}) as reader:
            got = records_of(await read(reader, 3))
        assert [(r.key, r.value, tuple(r.headers)) for r in got] == [
            (b"k\xff", b"", headers),
            (b"", None, ()),
            (None, bytes(range(256)), headers[:1]),
        ]

    async def test_timestamps_are_milliseconds_of_now(self, log, topic, publish):
        """Ours are set when a record is produced."""
        before = time.time_ns() // 1_000_000
        await publish(outs(topic, 0, 1))
        async with log.reader({TP(topic, 0): Span(EARLIEST, 1)}) as reader:
            (record,) = records_of(await read(reader, 1))
        assert before <= record.timestamp <= time.time_ns() // 1_000_000

    async def test_a_poll_returns_no_more_than_asked_for(self, log, topic, publish):
        """The bound is over all partitions."""
        for partition in range(4):
            await publish(outs(topic, partition, 20))
        _worker, source = join(log, f"g-{topic}", topic)
        async with source:
            source.resume(source.assignment().keys())
            seen = 0
            async with asyncio.timeout(PATIENCE_S):
                while seen < 80:
                    blocks = await source.poll(7, 0.5)
                    assert len(records_of(blocks)) <= 7
                    seen += len(records_of(blocks))

    async def test_an_empty_poll_takes_its_timeout_and_new_records_end_it(
        self, log, topic, publish
    ):
        """A waiting poll is woken by records, long before its own timeout."""
        _worker, source = join(log, f"g-{topic}", topic)
        async with source:
            source.resume(source.assignment().keys())
            assert list(await source.poll(10, 0)) == []
            assert list(await source.poll(10, 0.05)) == []
            started = asyncio.get_running_loop().time()
            waiting = asyncio.create_task(source.poll(10, PATIENCE_S))
            await publish(outs(topic, 1, 1))
            assert len(records_of(await waiting)) == 1
            assert asyncio.get_running_loop().time() - started < PATIENCE_S / 2

    async def test_large_records_pass_and_too_large_ones_are_refused_before_they_are_sent(
        self, logs, unique
    ):
        """The refusal names size, limit and option; neighbours in the same call are not sent either."""
        name = unique("large")
        async with logs.open(max_record_bytes=3_000_000) as log, log.publisher() as publisher:
            await log.ensure([TopicSpec(name, 1)])
            assert log.max_record_bytes == 3_000_000
            await publisher.publish([Out(name, 0, None, b"x" * 2_500_000)])
            with pytest.raises(
                LogError, match=r"300\d{4} bytes.*3000000 bytes .*\(max.request.size"
            ) as refused:
                await publisher.publish([*outs(name, 0, 1), Out(name, 0, None, b"x" * 3_000_001)])
            assert not refused.value.retriable
            async with log.reader({TP(name, 0): Span(EARLIEST, 1)}) as reader:
                (record,) = records_of(await read(reader, 1))
                assert len(record.value) == 2_500_000
                assert reader.done()
            worker, source = join(log, f"g-{name}", name)
            async with source:
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
                big = [*outs(name, 0, 1), Out(name, 0, None, b"x" * 3_000_001)]
                delivery.put(TP(name, 0), big)
                with pytest.raises(LogError, match=r"max\.re"):
                    await delivery.settle(
                        {TP(name, 0): Position(1, "", worker.epochs[TP(name, 0)])}
                    )
                await delivery.release(TP(name, 0), abort=True)
                assert await source.end_offsets({TP(name, 0)}) == {TP(name, 0): 1}

    async def test_B93_a_thousand_concurrent_publishes_share_round_trips(
        self, log, topic, publish, monkeypatch
    ):
        """Awaiting all at once takes a twentieth of the requests that one after the other takes (real brokers)."""
        asked = []
        send = AIOKafkaClient.send

        async def counted(client, node, request, **how):
            if isinstance(request, ProduceRequest):
                asked.append(node)
            return await send(client, node, request, **how)

        monkeypatch.setattr(AIOKafkaClient, "send", counted)
        for i in range(50):
            await publish(outs(topic, 0, 1, start=i))
        one_by_one = len(asked)
        await asyncio.gather(*[publish(outs(topic, 0, 1, start=i)) for i in range(1000)])
        assert await self._end(log, topic) == 1050
        if type(log).__name__ == "KafkaLog" and Feature.LOG_APPEND_TIME in log.features:
            assert one_by_one >= 50
            assert len(asked) - one_by_one <= 1000 / 20

    async def _end(self, log, topic):
        async with log.source(f"end-{topic}", {topic}, Worker()) as source:
            return (await source.end_offsets({TP(topic, 0)}))[TP(topic, 0)]


class TestReader:
    """Spans without a group."""

    async def test_a_span_is_read_from_start_to_end_and_done(self, log, topic, publish):
        """Start is inclusive, end exclusive, and `positions` is where it stands."""
        for _ in range(3):
            await publish(outs(topic, 0, 10))
        await publish(outs(topic, 1, 2))
        spans = {
            TP(topic, 0): Span(5, 25),
            TP(topic, 1): Span(EARLIEST, 2),
            TP(topic, 2): Span(0, 0),
        }
        async with log.reader(spans) as reader:
            assert not reader.done()
            blocks = await read(reader, 22)
            assert reader.done()
            assert reader.positions() == {TP(topic, 0): 25, TP(topic, 1): 2, TP(topic, 2): 0}
            assert list(await reader.poll(10, PATIENCE_S)) == []
        first = [r.offset for r in records_of(blocks) if r.partition == 0]
        assert first == list(range(5, 25))
        assert {b.epoch for b in blocks} == {0}

    async def test_latest_is_the_end_at_opening(self, log, topic, publish):
        """Nothing that was there before comes, everything after does, whatever the batches were."""
        await publish(outs(topic, 0, 7))
        await publish(outs(topic, 0, 5))
        async with log.reader({TP(topic, 0): Span(LATEST)}) as reader:
            assert reader.positions() == {TP(topic, 0): 12}
            assert list(await reader.poll(10, 0.2)) == []
            await publish(outs(topic, 0, 3, start=100))
            assert [r.value for r in records_of(await read(reader, 3))] == [b"100", b"101", b"102"]
            assert not reader.done()

    async def test_latest_as_an_end_is_the_end_at_opening(self, log, topic, publish):
        """What comes later is not waited for, and a partition without records is read at once."""
        await publish(outs(topic, 0, 7))
        await publish(outs(topic, 0, 5))
        spans = {TP(topic, p): Span(EARLIEST, LATEST) for p in (0, 1)}
        async with log.reader(spans, committed=True) as reader:
            await publish(outs(topic, 0, 3, start=100))
            await publish(outs(topic, 1, 3, start=100))
            got = records_of(await read(reader, 12))
            assert [(r.partition, r.offset) for r in got] == [(0, i) for i in range(12)]
            assert reader.done()
            assert list(await reader.poll(10, PATIENCE_S)) == []
            assert reader.positions() == {TP(topic, 0): 12, TP(topic, 1): 0}
        async with log.reader({TP(topic, 1): Span(LATEST, LATEST)}) as reader:
            assert reader.done()

    async def test_offsets_are_the_true_ones(self, log, topic, publish):
        """Beginning and end, also when the last batch has many records."""
        await publish(outs(topic, 0, 3))
        await publish(outs(topic, 0, 4))
        async with log.source(f"g-{topic}", {topic}, Worker()) as source:
            tps = {TP(topic, 0), TP(topic, 1)}
            assert await source.end_offsets(tps) == {TP(topic, 0): 7, TP(topic, 1): 0}
            assert await source.beginning_offsets(tps) == {TP(topic, 0): 0, TP(topic, 1): 0}


class TestSource:
    """Pausing, seeking, epochs."""

    async def test_partitions_start_paused_and_hand_out_only_while_resumed(
        self, log, topic, publish
    ):
        """P-5: nothing comes before `resume`, nothing after `pause`, and no record is lost between."""
        for partition in range(2):
            await publish(outs(topic, partition, 10))
        worker = Worker()
        async with log.source(f"g-{topic}", {topic}, worker) as source:
            assert list(await source.poll(100, 0.2)) == []
            source.resume({TP(topic, 0)})
            blocks = await read(source, 4, max_records=4)
            source.pause({TP(topic, 0)})
            assert list(await source.poll(100, 0.2)) == []
            source.resume({TP(topic, 1)})
            others = await read(source, 10)
            assert {b.tp for b in others} == {TP(topic, 1)}
            source.resume({TP(topic, 0)})
            blocks += await read(source, 6)
        assert [r.offset for r in records_of(blocks)] == list(range(10))

    async def test_resume_reaches_a_poll_that_is_waiting(self, log, topic, publish):
        """A takeover ends while the loop waits; its records come at once."""
        await publish(outs(topic, 0, 1))
        async with log.source(f"g-{topic}", {topic}, Worker()) as source:
            waiting = asyncio.create_task(source.poll(10, PATIENCE_S))
            await asyncio.sleep(0)
            source.resume({TP(topic, 1)})
            await asyncio.sleep(0.05)
            source.resume({TP(topic, 0)})
            async with asyncio.timeout(PATIENCE_S / 3):
                assert len(records_of(await waiting)) == 1

    async def test_seek_sets_the_next_offset_and_drops_what_was_fetched(self, log, topic, publish):
        """Back and forth; and only where it is assigned."""
        await publish(outs(topic, 0, 20))
        async with log.source(f"g-{topic}", {topic}, Worker()) as source:
            source.resume({TP(topic, 0)})
            await read(source, 5, max_records=5)
            source.seek(TP(topic, 0), 2)
            assert [r.offset for r in records_of(await read(source, 18))] == list(range(2, 20))
            source.seek(TP(topic, 0), 19)
            assert [r.offset for r in records_of(await read(source, 1))] == [19]
            with pytest.raises(LogError, match="not assigned"):
                source.seek(TP(topic, 99), 0)

    async def test_B16_nothing_fetched_ahead_comes_out_under_another_epoch(
        self, log, topic, publish
    ):
        """Revoke and reassign with records in the buffer: offsets go on from the commit, epochs rise."""
        await publish(outs(topic, 0, 50))
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            source.resume(source.assignment().keys())
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            blocks = await read(source, 10, max_records=10)
            old = worker.epochs[TP(topic, 0)]
            await delivery.settle({TP(topic, 0): Position(10, "", old)})
            source.pause({TP(topic, 0)})
            _other, second = join(log, f"g-{topic}", topic)
            polls = asyncio.create_task(self._keep_reading(source, blocks, 50, second))
            async with second:
                pass
            await polls
        by_epoch = {}
        for block in blocks:
            by_epoch.setdefault(block.epoch, []).extend(r.offset for r in block.records)
        assert min(by_epoch) == old
        assert len(by_epoch) > 1
        assert {offset for offsets in by_epoch.values() for offset in offsets} == set(range(50))
        for epoch, offsets in by_epoch.items():
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
            assert offsets[0] == (0 if epoch == old else 10)

    async def _keep_reading(self, source, blocks, until, second):
        async with asyncio.timeout(PATIENCE_S):
            while {r.offset for r in records_of(blocks)} != set(range(until)):
                blocks += await source.poll(5, 0.05)
                if second.assignment():
                    blocks += await second.poll(5, 0.0)


class TestGroup:
    """Several members."""

    async def test_two_members_share_all_partitions_once_and_epochs_rise(self, log, topic):
        """Join and leave: each partition has one owner, and every assignment a new epoch."""
        one, first = join(log, f"g-{topic}", topic)
        everything = {TP(topic, p) for p in range(4)}
        async with first:
            assert set(first.assignment()) == everything
            two, second = join(log, f"g-{topic}", topic)
            polling = asyncio.create_task(self._poll_until(first, lambda: len(one.epochs) == 2))
            async with second:
                await polling
                assert set(first.assignment()) | set(second.assignment()) == everything
                assert not set(first.assignment()) & set(second.assignment())
                assert one.revoked_tps == [frozenset(everything)]
                assert first.assignment() == one.epochs
            await self._poll_until(first, lambda: set(one.epochs) == everything)
        epochs = [epoch for _, epoch in one.ever]
        assert epochs == sorted(set(epochs))
        assert not one.lost_tps
        assert not two.lost_tps

    async def _poll_until(self, source, condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await source.poll(100, 0.05)

    async def test_P07_a_member_knows_which_partitions_nobody_else_had(self, log, topic):
        """Those that come back in the next generation are kept; a first assignment and another's partitions are not."""
        one, first = join(log, f"g-{topic}", topic)
        async with first:
            assert first.kept() == set()
            two, second = join(log, f"g-{topic}", topic)
            polling = asyncio.create_task(self._poll_until(first, lambda: len(one.epochs) == 2))
            async with second:
                await polling
                assert first.kept() == one.epochs.keys()
                assert second.kept() == set()
                ours = set(one.epochs)
            await self._poll_until(first, lambda: len(one.epochs) == 4)
            # What the other one had meanwhile is read anew, whoever had it before.
            assert first.kept() <= ours
            assert not first.kept() & two.epochs.keys()

    async def test_B76_two_members_of_a_group_run_each_record_once(self, log, topic, publish):
        """100 records, 100 runs; a group without a name is refused."""
        for partition in range(4):
            await publish(outs(topic, partition, 25))
        one, first = join(log, f"g-{topic}", topic)
        two, second = join(log, f"g-{topic}", topic)
        async with first, second:
            await self._poll_until(first, lambda: len(first.assignment()) == 2)
            for worker, source in ((one, first), (two, second)):
                source.resume(worker.epochs.keys())
                for tp in worker.epochs:
                    source.seek(tp, 0)
            runs = []
            async with asyncio.timeout(PATIENCE_S):
                while len(runs) < 100:
                    runs += records_of(await first.poll(100, 0.05))
                    runs += records_of(await second.poll(100, 0.05))
            runs += records_of(await first.poll(100, 0.2))
            runs += records_of(await second.poll(100, 0.2))
        assert len({(r.partition, r.offset) for r in runs}) == len(runs) == 100
        with pytest.raises(ConfigError, match="group"):
            log.source("", {topic}, Worker())

    async def test_B4_a_second_member_joins_while_the_first_is_inside_a_batch(
        self, log, topic, unique, publish
    ):
        """The first settles within its grace and commits nothing of what is gone; each record has one answer."""
        answers = unique("answers")
        await log.ensure([TopicSpec(answers, 4)])
        for partition in range(4):
            await publish(outs(topic, partition, 5))
        one, first = join(log, f"g-{topic}", topic)
        async with first:
            first.resume(first.assignment().keys())
            delivery = log.delivery(first, Mode.AT_LEAST_ONCE)
            batch = await read(first, 20)
            held = dict(one.epochs)

            async def drain(tps):
                for block in batch:
                    delivery.put(
                        block.tp, [Out(answers, r.partition, None, r.value) for r in block.records]
                    )
                done = await delivery.settle({tp: Position(5, "", held[tp]) for tp in tps})
                assert set(done.values()) == {Outcome.SETTLED}
                one.on_revoked = None

            one.on_revoked = drain
            two, second = join(log, f"g-{topic}", topic)
            polling = asyncio.create_task(self._poll_until(first, lambda: len(one.epochs) == 2))
            async with second:
                await polling
                gone = next(tp for tp in held if tp not in one.epochs)
                stale = await delivery.settle({gone: Position(1, "", held[gone])})
                assert stale == {gone: Outcome.FENCED}
                committed = await second.committed(set(held))
                assert {at.offset for at in committed.values()} == {5}
                second.resume(two.epochs.keys())
                assert list(await second.poll(100, 0.3)) == []
                ends = await second.end_offsets({TP(topic, p) for p in range(4)})
                assert set(ends.values()) == {5}
        async with log.reader({TP(answers, p): Span(EARLIEST, 5) for p in range(4)}) as reader:
            assert len(records_of(await read(reader, 20))) == 20
            assert reader.done()


class TestDelivery:
    """Answers, then commits."""

    async def test_commits_carry_metadata_and_are_found_by_the_next_owner(
        self, log, topic, publish
    ):
        """P-1: offset and finished set come back whole; where nothing was committed there is None."""
        await publish(outs(topic, 0, 5))
        worker, source = join(log, f"g-{topic}", topic)
        tps = {TP(topic, p) for p in range(4)}
        async with source:
            assert await source.committed(tps) == dict.fromkeys(tps)
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            settled = await delivery.settle(
                {
                    TP(topic, 0): Position(2, "3-4", worker.epochs[TP(topic, 0)]),
                    TP(topic, 1): Position(0, "", worker.epochs[TP(topic, 1)]),
                }
            )
            assert set(settled.values()) == {Outcome.SETTLED}
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            found = await source.committed(tps)
            kept = "3-4" if Feature.COMMIT_METADATA in log.features else ""
            assert (found[TP(topic, 0)].offset, found[TP(topic, 0)].metadata) == (2, kept)
            assert (found[TP(topic, 1)].offset, found[TP(topic, 1)].metadata) == (0, "")
            assert found[TP(topic, 2)] is None
            source.resume({TP(topic, 0)})
            assert [r.offset for r in records_of(await read(source, 3))] == [2, 3, 4]

    async def test_a_settle_publishes_in_order_then_what_waits_for_it_then_commits(
        self, log, topic, unique
    ):
        """P-3: ``after_ack`` records come after the others; all are there when the position is."""
        target = unique("target")
        await log.ensure([TopicSpec(target, 2)])
        worker, source = join(log, f"g-{topic}", topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            owner = TP(topic, 0)
            delivery.put(owner, [Out(target, 0, b"s", b"late")], after_ack=True)
            delivery.put(owner, outs(target, 0, 3))
            delivery.put(owner, outs(target, 1, 2))
            delivery.put(owner, outs(target, 0, 2, start=3))
            done = await delivery.settle({owner: Position(7, "", worker.epochs[owner])})
            assert done == {owner: Outcome.SETTLED}
            assert (await source.committed({owner}))[owner].offset == 7
        spans = {TP(target, 0): Span(EARLIEST, 6), TP(target, 1): Span(EARLIEST, 2)}
        async with log.reader(spans) as reader:
            got = records_of(await read(reader, 8))
        assert [r.value for r in got if r.partition == 0] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
            b"late",
        ]
        assert [r.value for r in got if r.partition == 1] == [b"0", b"1"]

    async def test_only_the_owners_that_are_settled_are_published(self, log, topic, unique):
        """Another owner's records stay buffered until its own settle."""
        target = unique("target")
        await log.ensure([TopicSpec(target, 1)])
        worker, source = join(log, f"g-{topic}", topic)
        a, b = TP(topic, 0), TP(topic, 1)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            delivery.put(a, outs(target, 0, 1, start=1))
            delivery.put(b, outs(target, 0, 1, start=2))
            await delivery.settle({b: Position(1, "", worker.epochs[b])})
            assert await self._values(log, target, 1) == [b"2"]
            await delivery.settle({a: Position(1, "", worker.epochs[a])})
            assert await self._values(log, target, 2) == [b"2", b"1"]

    async def _values(self, log, topic, count):
        async with log.reader({TP(topic, 0): Span(EARLIEST, count)}) as reader:
            return [r.value for r in records_of(await read(reader, count))]

    async def test_a_failed_settle_commits_nothing_and_the_next_one_publishes_again(
        self, log, topic, unique
    ):
        """B22: the records of a failed settle stay buffered, those of its neighbours too, and none is lost."""
        target, absent = unique("target"), unique("absent")
        await log.ensure([TopicSpec(target, 1)])
        worker, source = join(log, f"g-{topic}", topic)
        owner = TP(topic, 0)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            delivery.put(owner, outs(target, 0, 2))
            delivery.put(owner, outs(absent, 0, 1))
            for _ in range(2):
                with pytest.raises(LogError, match=absent):
                    await delivery.settle({owner: Position(3, "", worker.epochs[owner])})
                assert (await source.committed({owner}))[owner] is None
            await log.ensure([TopicSpec(absent, 1)])
            for offset in (3, 4):
                done = await delivery.settle({owner: Position(offset, "", worker.epochs[owner])})
                assert done == {owner: Outcome.SETTLED}
                assert (await source.committed({owner}))[owner].offset == offset
            assert await self._values(log, target, 2) == [b"0", b"1"]
            assert await self._values(log, absent, 1) == [b"0"]

    async def test_settles_may_overlap_and_each_owner_keeps_its_order(self, log, topic, unique):
        """A hundred settles at once over two owners: per owner in the order of the calls, the last position wins."""
        target = unique("target")
        await log.ensure([TopicSpec(target, 2)])
        worker, source = join(log, f"g-{topic}", topic)
        owners = [TP(topic, 0), TP(topic, 1)]
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            settles = []
            for i in range(50):
                for owner in owners:
                    delivery.put(owner, outs(target, owner.partition, 1, start=i))
                    position = Position(i + 1, "", worker.epochs[owner])
                    settles.append(asyncio.create_task(delivery.settle({owner: position})))
                    await asyncio.sleep(0)
            for done in await asyncio.gather(*settles):
                assert set(done.values()) == {Outcome.SETTLED}
            await delivery.flush()
            committed = await source.committed(set(owners))
            assert {at.offset for at in committed.values()} == {50}
        async with log.reader({TP(target, p): Span(EARLIEST, 50) for p in (0, 1)}) as reader:
            got = records_of(await read(reader, 100))
        for partition in (0, 1):
            values = [r.value for r in got if r.partition == partition]
            assert values == [b"%d" % i for i in range(50)]

    async def test_a_stale_epoch_is_fenced_and_commits_nothing(self, log, topic, unique):
        """P-8: work that was admitted under another epoch neither publishes nor commits."""
        target = unique("target")
        await log.ensure([TopicSpec(target, 1)])
        worker, source = join(log, f"g-{topic}", topic)
        owner = TP(topic, 0)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            delivery.put(owner, outs(target, 0, 1))
            stale = Position(9, "", worker.epochs[owner] - 1)
            assert await delivery.settle({owner: stale}) == {owner: Outcome.FENCED}
            assert (await source.committed({owner}))[owner] is None
            assert await delivery.settle({owner: Position(1, "", worker.epochs[owner])}) == {
                owner: Outcome.SETTLED
            }
            assert (await source.committed({owner}))[owner].offset == 1
            async with log.source(f"end-{target}", {target}, Worker()) as end:
                assert await end.end_offsets({TP(target, 0)}) == {TP(target, 0): 0}

    async def test_commits_follow_within_the_interval_and_at_the_latest_on_leaving(
        self, logs, unique
    ):
        """A settle does not wait for its commit; `flush` and leaving make it. So a hand-over repeats nothing."""
        name = unique("t")
        async with logs.open(commit_interval_ms=3_600_000) as log:
            await log.ensure([TopicSpec(name, 1)])
            owner = TP(name, 0)
            worker, source = join(log, f"g-{name}", name)
            async with source:
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
                await delivery.settle({owner: Position(1, "", worker.epochs[owner])})
                assert (await source.committed({owner}))[owner] is None
                await delivery.flush()
                assert (await source.committed({owner}))[owner].offset == 1
                await delivery.settle({owner: Position(2, "x", worker.epochs[owner])})
            worker, source = join(log, f"g-{name}", name)
            async with source:
                found = (await source.committed({owner}))[owner]
                kept = "x" if Feature.COMMIT_METADATA in log.features else ""
                assert (found.offset, found.metadata) == (2, kept)

    async def test_what_is_settled_is_committed_when_partitions_are_revoked(self, logs, unique):
        """The next owner starts after it, though the interval is far from over."""
        name = unique("t")
        async with logs.open(commit_interval_ms=3_600_000) as log:
            await log.ensure([TopicSpec(name, 2)])
            one, first = join(log, f"g-{name}", name)
            async with first:
                delivery = log.delivery(first, Mode.AT_LEAST_ONCE)
                await delivery.settle(
                    {tp: Position(4, "", epoch) for tp, epoch in one.epochs.items()}
                )
                _two, second = join(log, f"g-{name}", name)
                joining = asyncio.create_task(second.__aenter__())
                async with asyncio.timeout(PATIENCE_S):
                    while not joining.done():
                        await first.poll(1, 0.05)
                await joining
                found = await second.committed({TP(name, 0), TP(name, 1)})
                assert {at.offset for at in found.values()} == {4}
                await second.__aexit__(None, None, None)

    async def test_release_forgets_a_partition(self, log, topic, unique):
        """With ``abort`` its buffered records are dropped, without they are published."""
        target = unique("target")
        await log.ensure([TopicSpec(target, 1)])
        worker, source = join(log, f"g-{topic}", topic)
        a, b = TP(topic, 0), TP(topic, 1)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            delivery.put(a, outs(target, 0, 1, start=1))
            await delivery.release(a, abort=True)
            delivery.put(b, outs(target, 0, 1, start=2))
            await delivery.release(b, abort=False)
            assert await self._values(log, target, 1) == [b"2"]
            await delivery.settle({a: Position(1, "", worker.epochs[a])})
            assert await source.end_offsets({TP(topic, 0)}) == {TP(topic, 0): 0}
            async with log.source(f"end-{target}", {target}, Worker()) as end:
                assert await end.end_offsets({TP(target, 0)}) == {TP(target, 0): 1}

    async def test_exactly_once_is_refused_where_there_are_no_transactions(self, log, topic):
        """P-9: a sentence at start, not a surprise later."""
        if Feature.TRANSACTIONS in log.features:
            pytest.skip("this log has transactions")
        with pytest.raises(LogError, match=r"exactly_once needs.*4\.0.*at_least_once") as refused:
            log.delivery(log.source("g", {topic}, Worker()), Mode.EXACTLY_ONCE)
        assert not refused.value.retriable
