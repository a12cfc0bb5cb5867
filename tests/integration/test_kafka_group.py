"""What only a real group coordinator shows: evicted members, stale generations, static members, silent rebalances."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.group import LeaveGroupRequest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Mode, Outcome, Position, TopicSpec

pytestmark = pytest.mark.kafka
PATIENCE_S = 30


class Worker:
    """A `Rebalance` that resumes what it is assigned and writes down what it is told."""

    def __init__(self):
        self.epochs, self.revocations, self.losses = {}, [], []
        self.source = None

    def assigned(self, tps, epoch):
        self.epochs.update(dict.fromkeys(tps, epoch))
        self.source.resume(tps)

    async def revoked(self, tps, deadline):
        self.revocations.append(tps)
        for tp in tps:
            del self.epochs[tp]

    def lost(self, tps):
        self.losses.append(tps)
        for tp in tps:
            del self.epochs[tp]


def member(log, group, topic):
    worker = Worker()
    worker.source = log.source(group, {topic}, worker)
    return worker, worker.source


@pytest.fixture
async def topic(kafka_properties, unique):
    """A topic of two partitions with ten records each."""
    name = unique("t")
    async with KafkaLog(kafka_properties) as log, log.publisher() as publisher:
        await log.ensure([TopicSpec(name, 2)])
        await publisher.publish([Out(name, i % 2, None, b"%d" % i) for i in range(20)])
    return name


async def poll_until(source, condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await source.poll(100, 0.1)


async def evict(source):
    """Take a member out of its group behind its back, as an expired session would."""
    coordinator = source._consumer._coordinator
    request = LeaveGroupRequest(source.group, coordinator.member_id)
    await coordinator._send_req(request)


async def test_P7_an_evicted_member_is_told_that_it_lost_and_joins_again(kafka_properties, topic):
    """Generation -1 at the revocation means lost: nothing is drained, and the next epoch is higher."""
    async with KafkaLog(kafka_properties) as log:
        worker, source = member(log, f"g-{topic}", topic)
        async with source:
            before = dict(worker.epochs)
            assert len(before) == 2
            await evict(source)
            await poll_until(source, lambda: worker.losses and len(worker.epochs) == 2)
            assert worker.losses == [frozenset(before)]
            assert worker.revocations == []
            assert min(worker.epochs.values()) > max(before.values())


async def test_P8_a_member_that_was_evicted_commits_nothing(kafka_properties, topic):
    """The request itself carries generation and member id, so the coordinator refuses it before we know."""
    slow = {**kafka_properties, "heartbeat.interval.ms": "5900"}
    async with KafkaLog(slow, commit_interval_ms=0) as log:
        worker, source = member(log, f"g-{topic}", topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            owner, epoch = TP(topic, 0), worker.epochs[TP(topic, 0)]
            await delivery.settle({owner: Position(1, "", epoch)})
            await evict(source)
            assert await delivery.settle({owner: Position(5, "", epoch)}) == {
                owner: Outcome.FENCED
            }
            assert (await source.committed({owner}))[owner].offset == 1
            # P-5: the last step of a takeover is refused alike.
            assert await source.confirm({owner: Position(1, "", epoch)}) == set()
            # D10: on the empty group, a commit with generation -1 would have been accepted.
            assert await delivery.settle({owner: Position(6, "", epoch)}) == {
                owner: Outcome.FENCED
            }


async def test_a_fenced_commit_in_the_background_shows_at_the_next_settle(kafka_properties, topic):
    """A settle that did not wait for its commit still learns that the partition is gone."""
    slow = {**kafka_properties, "heartbeat.interval.ms": "5900"}
    async with KafkaLog(slow, commit_interval_ms=20) as log:
        worker, source = member(log, f"g-{topic}", topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            owner, epoch = TP(topic, 0), worker.epochs[TP(topic, 0)]
            await evict(source)
            async with asyncio.timeout(PATIENCE_S):
                outcome, offset = Outcome.SETTLED, 0
                while outcome is Outcome.SETTLED:
                    offset += 1
                    outcome = (await delivery.settle({owner: Position(offset, "", epoch)}))[owner]
                    await source.poll(1, 0.01)
            assert outcome is Outcome.FENCED
            assert (await source.committed({owner}))[owner] is None


def static(kafka_properties, name, **more):
    """Make the log of a process whose members are static ones of this name."""
    return KafkaLog({**kafka_properties, "group.instance.id": name, **more}, commit_interval_ms=0)


@pytest.mark.parametrize("leaver", ["leader", "follower"])
async def test_B10_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    kafka_properties, topic, leaver
):
    """A restart within the session moves nothing of the others'; what it takes over it may commit (P-5)."""
    async with static(kafka_properties, "a") as one, static(kafka_properties, "b") as two:
        workers = [member(log, f"g-{topic}", topic) for log in (one, two)]
        (first_worker, first), (second_worker, second) = workers
        await first.__aenter__()
        await second.__aenter__()
        await poll_until(first, lambda: len(first.assignment()) == 1)
        restarted, (stays, other) = (
            ((first_worker, first), (second_worker, second))
            if leaver == "leader"
            else ((second_worker, second), (first_worker, first))
        )
        (held,) = restarted[1].assignment().items()
        told = len(stays.revocations)
        await restarted[1].__aexit__(None, None, None)
        again_worker, again = member(one if leaver == "leader" else two, f"g-{topic}", topic)
        async with again:
            assert set(again_worker.epochs) == {held[0]}
            assert again_worker.epochs[held[0]] > held[1]
            position = Position(0, "", again_worker.epochs[held[0]])
            assert await again.confirm({held[0]: position}) == {held[0]}
            await other.poll(1, 1.0)
            assert len(stays.revocations) == told
            assert len(stays.epochs) == 1
        await other.__aexit__(None, None, None)


async def test_B10_P7_who_is_replaced_under_the_same_generation_commits_nothing(
    kafka_properties, topic
):
    """Replacing a static member leaves the generation as it is: epochs and member ids tell them apart."""
    slow = {"heartbeat.interval.ms": "5900"}
    async with (
        static(kafka_properties, "a", **slow) as one,
        static(kafka_properties, "a", **slow) as two,
    ):
        stopped_worker, stopped = member(one, f"g-{topic}", topic)
        worker, source = member(two, f"g-{topic}", topic)
        owner = TP(topic, 0)
        async with stopped:
            delivery = one.delivery(stopped, Mode.AT_LEAST_ONCE)
            epoch = stopped_worker.epochs[owner]
            await delivery.settle({owner: Position(1, "", epoch)})
            async with source:
                assert worker.epochs.keys() == stopped_worker.epochs.keys()
                generation, name = source.membership.member
                assert stopped.membership.member[0] == generation
                assert stopped.membership.member[1] != name
                assert await stopped.confirm({owner: Position(1, "", epoch)}) == set()
                fenced = await delivery.settle({owner: Position(5, "", epoch)})
                assert fenced == {owner: Outcome.FENCED}
                ours = Position(1, "", worker.epochs[owner])
                assert await source.confirm({owner: ours}) == {owner}
                mine = two.delivery(source, Mode.AT_LEAST_ONCE)
                position = Position(2, "", worker.epochs[owner])
                assert await mine.settle({owner: position}) == {owner: Outcome.SETTLED}
                assert (await source.committed({owner}))[owner].offset == 2


async def test_B1_a_member_that_has_everything_paused_is_not_idle(kafka_properties, topic):
    """`max.poll.interval.ms` is short, everything is paused for longer: no rebalance, no loss."""
    quick = {**kafka_properties, "max.poll.interval.ms": "1500"}
    async with KafkaLog(quick) as log:
        worker, source = member(log, f"g-{topic}", topic)
        async with source:
            before = dict(source.assignment())
            source.pause(before.keys())
            until = asyncio.get_running_loop().time() + 4
            await poll_until(source, lambda: asyncio.get_running_loop().time() > until)
            assert source.assignment() == before
            assert not worker.revocations
            assert not worker.losses
            source.resume(before.keys())
            assert await source.poll(10, 5)


async def test_B7_a_rebalance_that_never_ends_is_a_failure_of_the_source(kafka_properties, topic):
    """Else a member would wait for its assignment for ever; joining anew is the worker's business."""
    async with KafkaLog(kafka_properties) as log:
        _, source = member(log, f"g-{topic}", topic)
        async with source:
            assert source.left_at() is None
            source._join_s = 0.3
            await source.revoke()  # as aiokafka does when it begins to join again
            assert source.left_at() is not None
            with pytest.raises(LogError, match=f"joining group g-{topic} again took longer than"):
                await poll_until(source, lambda: False)


async def test_members_of_one_process_each_keep_what_they_had(kafka_properties, unique):
    """aiokafka's sticky assignor keeps its state in the class; each source here has a class of its own."""
    name = unique("t")
    async with KafkaLog(kafka_properties) as log:
        await log.ensure([TopicSpec(name, 6)])
        _, first = member(log, f"g-{name}", name)
        _, second = member(log, f"g-{name}", name)
        async with first, second:
            await poll_until(first, lambda: len(first.assignment()) == 3)
            had = set(first.assignment()), set(second.assignment())
            for _ in range(3):
                epoch = max(first.assignment().values())
                first._consumer._coordinator.request_rejoin()
                await poll_until(
                    first,
                    lambda epoch=epoch: (
                        first.assignment()
                        and second.assignment()
                        and min(*first.assignment().values(), *second.assignment().values())
                        > epoch
                    ),
                )
                assert (set(first.assignment()), set(second.assignment())) == had


async def test_committed_metadata_is_there_for_other_clients_too(kafka_properties, topic):
    """What we commit is an ordinary commit: any client sees the offset."""
    async with KafkaLog(kafka_properties, commit_interval_ms=0) as log:
        worker, source = member(log, f"g-{topic}", topic)
        async with source:
            delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
            owner = TP(topic, 1)
            await delivery.settle({owner: Position(4, "6-7", worker.epochs[owner])})
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka_properties["bootstrap.servers"],
        group_id=f"g-{topic}",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        from aiokafka import TopicPartition

        assert await consumer.committed(TopicPartition(*owner)) == 4
    finally:
        await consumer.stop()
