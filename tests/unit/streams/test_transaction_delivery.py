"""Exactly-once delivery on the memory log, with each of its steps failing, late, or the last one of a process."""

import asyncio
from contextlib import suppress

import pytest
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import Mode, Outcome, Position, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_transactions import Fault, Step
from log_kit import Snapshots, Worker, outs
from virtual_loop import run_virtual

A0, A1 = TP("a", 0), TP("a", 1)
RECORDS = 6
WITHIN_S = 60.0  # of virtual time; an open transaction is aborted after 10


def wall_ms():
    return int(asyncio.get_running_loop().time() * 1000)


class SteppedLog(MemoryLog):
    """A log that writes down every request and answer of its transactions, and lets a process end at one of them.

    Attributes:
        trips: Steps in order, each twice: the request, then the answer.
        ends_at: Number of the trip at which the process ends whose it is; counted from 1.
        ended: It has.
    """

    def __init__(self, ends_at=0, **options):
        super().__init__(clock_ms=wall_ms, revoke_grace_s=1.0, **options)
        self.trips = []
        self.ends_at = ends_at
        self.ended = asyncio.Event()

    async def travel(self, step, source):
        await super().travel(step, source)
        self.trips.append(step)
        if len(self.trips) == self.ends_at:
            self.crash(source)
            self.ended.set()
            await asyncio.Event().wait()


class RevealingLog(SteppedLog):
    """Planted bug: what is aborted is seen, and its positions stay as they were."""

    def complete(self, transaction, *, committed):
        if not committed:
            transaction.positions.clear()
        super().complete(transaction, committed=True)


async def prepared(log):
    await log.ensure([TopicSpec("a", 1), TopicSpec("out", 1), TopicSpec("state", 1)])
    log.append([Out("a", 0, None, b"%d" % i) for i in range(RECORDS)])
    return log


def position_of(log):
    return log.committed("g").get(A0, Position(0)).offset


async def work(log):
    """Answer everything as a worker must: take over, go on from what is committed, settle; again after a failure."""
    cover = Snapshots()
    async with log.source("g", {"a"}, Worker()) as source:
        delivery = log.delivery(source, Mode.EXACTLY_ONCE, cover)
        while position_of(log) < RECORDS:
            epochs = source.assignment()
            with suppress(LogError):
                if await delivery.take_over(epochs):
                    at = (await source.committed({A0}))[A0] or Position(0)
                    source.seek(A0, at.offset)
                    source.resume({A0})
                    await answer(source, delivery, cover, epochs[A0])
            await source.poll(1, 0.1)


async def answer(source, delivery, cover, epoch):
    while blocks := await source.poll(2, 0.1):
        (block,) = blocks
        delivery.put(A0, [Out("out", 0, None, r.value) for r in block.records])
        last = block.records[-1].offset
        cover.dirty[A0] = [[Out("state", 0, b"k", b"%d" % last)]]
        outcome = (await delivery.settle({A0: Position(last + 1, "", epoch)}))[A0]
        if outcome is not Outcome.SETTLED:
            return


def check(log):
    """Each record is answered once in the committed view, and the state and the position are the last one's."""
    answers = [record.value for record in log.records("out", 0, committed=True)]
    assert answers == [b"%d" % i for i in range(RECORDS)]
    states = [int(record.value) for record in log.records("state", 0, committed=True)]
    assert states == sorted(set(states))
    assert states[-1] == RECORDS - 1
    assert position_of(log) == RECORDS
    assert log.transactions.open() == []


async def work_through(log):
    async with asyncio.timeout(WITHIN_S):
        await work(log)
    check(log)


def all_trips():
    async def play():
        log = await prepared(SteppedLog())
        await work_through(log)
        return log.trips

    return run_virtual(play())


@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize("step", [Step.START, Step.PRODUCE, Step.POSITION, Step.COMMIT])
def test_P10_P11_whatever_step_fails_each_record_is_answered_once(step, done):
    """Its effect happened or not; three times in a row."""

    async def play():
        log = await prepared(SteppedLog())
        log.failing[step] = Fault(3, done=done)
        await work_through(log)
        assert log.failing[step].times == 0

    run_virtual(play())


def test_P10_an_abort_that_fails_is_made_good_by_the_takeover():
    """Nothing stays hidden behind it until it is too old."""

    async def play():
        log = await prepared(SteppedLog())
        log.failing[Step.POSITION] = Fault(1)
        log.failing[Step.ABORT] = Fault(1)
        started = asyncio.get_running_loop().time()
        await work_through(log)
        assert asyncio.get_running_loop().time() - started < 5
        assert log.failing[Step.ABORT].times == 0

    run_virtual(play())


def test_B97_a_process_may_end_at_every_step():
    """Whatever request was its last one, and whether it arrived: the next owner's view has each answer once."""
    trips = all_trips()
    assert {*trips} >= {Step.START, Step.PRODUCE, Step.POSITION, Step.COMMIT}

    async def play(ends_at):
        log = await prepared(SteppedLog(ends_at))
        doomed = asyncio.create_task(work(log))
        await log.ended.wait()
        started = asyncio.get_running_loop().time()
        await work_through(log)
        assert asyncio.get_running_loop().time() - started < 5, "B27: not when it is too old"
        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)

    for ends_at in range(1, len(trips) + 1):
        run_virtual(play(ends_at))


def test_the_checks_above_can_fail():
    """Where aborted records are seen, an answer comes twice."""

    async def play():
        log = await prepared(RevealingLog())
        log.failing[Step.COMMIT] = Fault(1)
        await work_through(log)

    with pytest.raises(AssertionError):
        run_virtual(play())


async def taken_over(log, cover=None):
    """Return an entered source with its worker and its delivery."""
    worker = Worker()
    worker.source = source = log.source("g", {"a"}, worker)
    await source.__aenter__()
    delivery = log.delivery(source, Mode.EXACTLY_ONCE, cover)
    assert await delivery.take_over(dict(worker.epochs)) == worker.epochs.keys()
    return worker, source, delivery


def test_B25_a_transaction_that_is_too_old_is_aborted_and_run_again_without_a_duplicate():
    """Its timer runs out while a produce waits: nothing is seen, readers go on, and the second try counts."""

    async def play():
        log = await prepared(SteppedLog())
        cover = Snapshots()
        worker, source, delivery = await taken_over(log, cover)
        delivery.put(A0, outs("out", 0, 1))
        source.pause({A0})
        log.hold_produce()
        settling = asyncio.create_task(delivery.settle({A0: Position(1, "", worker.epochs[A0])}))
        await source.poll(1, 5)
        assert log.transactions.open() == ["g:a:0"], "its position came first"
        assert await settling == {A0: Outcome.ABORTED}
        assert asyncio.get_running_loop().time() >= 10
        assert cover.names() == ["settled", "snapshots", "aborted"]
        assert log.transactions.open() == []
        log.free_produce()
        assert await delivery.take_over(dict(worker.epochs)) == {A0}
        delivery.put(A0, outs("out", 0, 1))
        position = Position(1, "", worker.epochs[A0])
        assert await delivery.settle({A0: position}) == {A0: Outcome.SETTLED}
        assert [r.value for r in log.records("out", 0)] == [b"0"]
        await source.__aexit__(None, None, None)

    run_virtual(play())


def test_P6_an_id_that_the_log_has_forgotten_is_to_be_taken_over_again():
    """As after a week without use: who is still the assignee takes over again."""

    async def play():
        log = await prepared(SteppedLog())
        worker, source, delivery = await taken_over(log)
        log.transactions.forget("g:a:0")
        delivery.put(A0, outs("out", 0, 1))
        position = Position(1, "", worker.epochs[A0])
        assert await delivery.settle({A0: position}) == {A0: Outcome.PRODUCER_FENCED}
        assert await delivery.take_over(dict(worker.epochs)) == {A0}
        delivery.put(A0, outs("out", 0, 1))
        assert await delivery.settle({A0: position}) == {A0: Outcome.SETTLED}
        assert [r.value for r in log.records("out", 0)] == [b"0"]
        await source.__aexit__(None, None, None)

    run_virtual(play())


def test_P6_a_zombie_that_was_fenced_asks_the_group_before_it_fences_back():
    """It believes that it has the partition, and is told that it has not."""

    async def play():
        log = await prepared(SteppedLog())
        worker, zombie, delivery = await taken_over(log)
        log.evict(zombie, learns_after_s=30)
        _, source, _ = await taken_over(log)
        assert zombie.owns(A0, worker.epochs[A0])
        delivery.put(A0, outs("out", 0, 1))
        position = Position(1, "", worker.epochs[A0])
        assert await delivery.settle({A0: position}) == {A0: Outcome.FENCED}
        assert log.committed("g") == {}
        assert log.records("out", 0) == []
        await source.__aexit__(None, None, None)
        await zombie.__aexit__(None, None, None)

    run_virtual(play())


def test_P7_a_partition_that_is_kept_keeps_its_producer_and_others_get_a_new_one():
    """No start between generations of one member; what others may have had, and what failed, is started."""

    def starts(log):
        return log.trips.count(Step.START) // 2

    async def play():
        log = SteppedLog()
        await log.ensure([TopicSpec("a", 2), TopicSpec("out", 1)])
        one, first, delivery = await taken_over(log)
        assert starts(log) == 2
        await log.rebalance("g")
        assert await delivery.take_over(dict(one.epochs)) == {A0, A1}
        assert starts(log) == 2
        _, second, _ = await taken_over(log)
        assert starts(log) == 3
        assert await delivery.take_over(dict(one.epochs)) == one.epochs.keys()
        assert starts(log) == 3
        assert repr(delivery).startswith("TransactionalDelivery(1 producers")
        await second.__aexit__(None, None, None)
        await log.rebalance("g")
        assert await delivery.take_over(dict(one.epochs)) == {A0, A1}
        assert starts(log) == 4
        log.evict(first)
        await first.poll(1, 0.1)
        await log.rebalance("g")
        assert await delivery.take_over(dict(one.epochs)) == {A0, A1}
        assert starts(log) == 6
        await first.__aexit__(None, None, None)

    run_virtual(play())


def test_a_settle_that_is_cancelled_commits_all_the_same():
    """Half a transaction would hide what is behind it from everybody."""

    async def play():
        log = await prepared(SteppedLog())
        worker, source, delivery = await taken_over(log)
        delivery.put(A0, outs("out", 0, 1))
        log.hold_produce()
        settling = asyncio.create_task(delivery.settle({A0: Position(1, "", worker.epochs[A0])}))
        await source.poll(1, 1)
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        assert settling.cancelled()
        log.free_produce()
        await delivery.flush()
        assert [r.value for r in log.records("out", 0, committed=True)] == [b"0"]
        assert position_of(log) == 1
        await source.__aexit__(None, None, None)

    run_virtual(play())


def test_P13_a_transaction_does_not_wait_for_the_replies_before_it():
    """It commits while they are on their way; they go out in the order of the cuts, and who leaves waits for them."""

    async def play():
        log = await prepared(SteppedLog())
        worker, source, delivery = await taken_over(log)
        first, second = (Position(n, "", worker.epochs[A0]) for n in (1, 2))
        source.pause({A0})
        log.hold_produce()
        delivery.put(A0, outs("out", 0, 1), after_commit=True)
        assert await delivery.settle({A0: first}) == {A0: Outcome.SETTLED}
        delivery.put(A0, outs("out", 0, 1, start=1), after_commit=True)
        settling = asyncio.create_task(delivery.settle({A0: second}))
        await source.poll(1, 1)
        assert position_of(log) == 2
        assert not settling.done(), "replies of no more than two cuts wait"
        assert log.records("out", 0) == []
        log.free_produce()
        await delivery.flush()
        assert await settling == {A0: Outcome.SETTLED}
        assert [r.value for r in log.records("out", 0)] == [b"0", b"1"]
        await source.__aexit__(None, None, None)

    run_virtual(play())


def test_P10_transactions_of_many_partitions_run_side_by_side():
    """As many as are settled together: whoever cuts bounds their number."""

    async def play():
        log = SteppedLog()
        await log.ensure([TopicSpec("a", 100), TopicSpec("out", 1)])
        worker, source, delivery = await taken_over(log)
        log.hold_produce()
        for tp in worker.epochs:
            delivery.put(tp, outs("out", 0, 1))
        upto = {tp: Position(1, "", epoch) for tp, epoch in worker.epochs.items()}
        settling = asyncio.create_task(delivery.settle(upto))
        await source.poll(1, 1)
        assert len(log.transactions.open()) == 100
        log.free_produce()
        assert await settling == dict.fromkeys(upto, Outcome.SETTLED)
        assert len(log.records("out", 0, committed=True)) == 100
        await source.__aexit__(None, None, None)

    run_virtual(play())


async def test_compaction_removes_aborted_records_and_keeps_what_an_open_transaction_hides():
    """As a broker's cleaner does: up to the last stable offset, as if what was aborted had never been."""
    log = MemoryLog()
    await log.ensure([TopicSpec("s", 1)])
    store, one, other = log.existing(TP("s", 0)), object(), object()
    for value, transaction in ((b"1", None), (b"2", one), (b"3", other), (b"4", None)):
        store.append(Out("s", 0, b"k", value), 0, transaction)
    store.complete(one, committed=False)
    assert store.stable == 2
    log.compact("s")
    assert [r.value for r in log.records("s", 0)] == [b"1", b"3", b"4"]
    assert [r.value for r in log.records("s", 0, committed=True)] == [b"1"]
    store.complete(other, committed=True)
    log.compact("s")
    assert [(r.offset, r.value) for r in log.records("s", 0, committed=True)] == [(3, b"4")]
    assert (store.stable, store.end) == (6, 6)
