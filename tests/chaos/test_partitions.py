"""A requests topic of sequences gets more partitions while workers run: keys move, and states stay where they were.

Until the state topic has as many partitions, the model is not ready and says what to do. A sequence whose key has moved
is unknown where it comes to, and one that has not is lost, for nobody can know that it has not moved and come back.
Producers choose partitions, so the tests do it by hand.
"""

from __future__ import annotations

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from chaos.scene import CLIENT
from fault_kit import KafkaLogs
from headrace.schemas.errors import Reason
from headrace.streams.log import Mode
from sequence_kit import MODEL, SequenceStage, Step, reasons, write_sums

pytestmark = pytest.mark.kafka

QUICK = {"session.timeout.ms": "3000", "metadata.max.age.ms": "500"}


@pytest.fixture(params=list(Mode))
def mode(request):
    """Both guarantees."""
    return request.param


class Committed(SequenceStage):
    """A stage whose reader sees what is committed."""

    committed_view = True


@pytest.fixture
async def stage(three, unique):
    """A stage whose topics have two partitions."""
    properties = {"bootstrap.servers": three[0].bootstrap, **CLIENT, **QUICK}
    async with Committed(KafkaLogs(properties), unique("grow"), partitions=2) as stage:
        yield stage


async def grow(stage, topic, count):
    """Add partitions, as an operator does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stage.logs.properties["bootstrap.servers"])
    await admin.start()
    try:
        done = await admin.create_partitions({topic: NewPartitions(total_count=count)})
        assert [error[1] for error in done.topic_errors] == [0]
    finally:
        await admin.close()
    for number in range(count):
        stage._ends.setdefault(number, 0)


async def grow_requests(stage, running, count):
    """Add partitions to the requests: the model is not ready and says what to do."""
    state = stage.topology.state(MODEL)
    await grow(stage, stage.requests, count)
    await stage.until(lambda: state in " ".join(running.worker.troubles()), "the refusal")
    (trouble,) = running.worker.troubles()
    assert f"kafka-topics.sh --alter --topic {state} --partitions {count}" in trouble
    assert not running.worker.ready()


async def grow_states(stage, running, count):
    """Do what it says: the model serves all partitions."""
    await grow(stage, stage.topology.state(MODEL), count)
    await stage.until(lambda: running.worker.ready() and len(running.partitions()) == count, "all")


async def test_P4_more_partitions_are_refused_until_states_have_as_many(stage, mode, tmp_path):
    """What came meanwhile is answered then; who has moved is unknown there, who stayed is lost: nobody is mixed up."""
    async with stage.worker(write_sums(tmp_path / "models"), delivery=mode) as running:
        begun = await stage.step(Step(7, 1, start=True), Step(8, 10, start=True), partition=0)
        await stage.until_answered(begun)
        await stage.until_committed_all()
        await grow_requests(stage, running, 3)
        moved = await stage.step(Step(8, 20), partition=2)
        await grow_states(stage, running, 3)
        stayed = await stage.step(Step(7, 2), partition=0)
        await stage.until_answered([*stayed, *moved])
        assert reasons(stage, moved) == {moved[0]: Reason.SEQUENCE_UNKNOWN}
        assert reasons(stage, stayed) == {stayed[0]: Reason.SEQUENCE_LOST}
        assert "had 2 partitions when it was written and has 3 now" in stage.answer(stayed[0]).text
        anew = await stage.step(Step(7, 3, start=True), Step(7, 4), partition=0)
        await stage.until_answered(anew)
        assert stage.values(anew) == [3, 7]


async def test_P4_a_sequence_that_comes_back_to_a_former_partition_is_not_mixed_with_itself(
    stage, mode, tmp_path
):
    """Begun on 0, begun anew on 2 of three partitions, and with four it is on 0 again: nothing may be answered of 1."""
    async with stage.worker(write_sums(tmp_path / "models"), delivery=mode) as running:
        first = await stage.step(Step(7, 1, start=True), partition=0)
        await stage.until_answered(first)
        await stage.until_committed_all()
        await grow_requests(stage, running, 3)
        await grow_states(stage, running, 3)
        second = await stage.step(Step(7, 100, start=True), partition=2)
        await stage.until_answered(second)
        assert stage.values(second) == [100]
        await stage.until_committed_all()
        await grow_requests(stage, running, 4)
        await grow_states(stage, running, 4)
        back = await stage.step(Step(7, 1000), partition=0)
        await stage.until_answered(back)
        assert reasons(stage, back) == {back[0]: Reason.SEQUENCE_LOST}


async def test_P4_P7_what_is_kept_over_a_rebalance_is_not_gone_on_with_under_another_number(
    stage, mode, tmp_path
):
    """States have their place before the requests grow: the worker keeps its partitions, and never stops to serve."""
    async with stage.worker(write_sums(tmp_path / "models"), delivery=mode) as running:
        begun = await stage.step(Step(7, 1, start=True), Step(7, 2), partition=1)
        await stage.until_answered(begun)
        await stage.until_committed_all()
        await grow(stage, stage.topology.state(MODEL), 3)
        await grow(stage, stage.requests, 3)
        await stage.until(lambda: running.worker.ready() and len(running.partitions()) == 3, "all")
        assert not running.worker.troubles()
        stayed = await stage.step(Step(7, 3), partition=1)
        await stage.until_answered(stayed)
        assert reasons(stage, stayed) == {stayed[0]: Reason.SEQUENCE_LOST}


async def test_B104_new_partitions_are_served_soon_whatever_the_age_of_metadata(
    three, unique, mode, tmp_path
):
    """The client would look again after five minutes: until then keys may move twice."""
    properties = {"bootstrap.servers": three[0].bootstrap, **CLIENT}
    async with (
        Committed(KafkaLogs(properties), unique("grow"), partitions=2) as stage,
        stage.worker(
            write_sums(tmp_path / "models"), delivery=mode, topic_check_interval_s=0.2
        ) as running,
    ):
        await grow(stage, stage.topology.state(MODEL), 3)
        await grow(stage, stage.requests, 3)
        new = await stage.step(Step(7, 1, start=True), partition=2)
        await stage.until_answered(new)
        assert len(running.partitions()) == 3
