"""The outbox: few publishes for many records, each record's failure told to its own caller."""

import asyncio

import pytest
from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.gathering import LOOK_S
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.outbox import MAX_PUBLISHES, Outbox
from virtual_loop import run_virtual


class Counting:
    """A publisher of the memory log that counts its calls and how many run at once."""

    def __init__(self, log):
        self._inner = log.publisher()
        self.sizes = []
        self.running = 0
        self.most = 0

    async def publish(self, outs):
        """Count and pass on."""
        self.sizes.append(len(outs))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._inner.publish(outs)
        finally:
            self.running -= 1


@pytest.fixture
async def log():
    log = MemoryLog()
    await log.ensure([TopicSpec("t", 1)])
    return log


def out(number):
    return Out("t", 0, None, str(number).encode())


async def test_B93_what_gathers_in_one_turn_is_one_publish(log):
    publisher, errors = Counting(log), []
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for number in range(100):
            outbox.send(out(number), errors.append)
        outbox.close()
    assert publisher.sizes == [100]
    assert [r.value for r in log.records("t", 0)] == [str(n).encode() for n in range(100)]
    assert errors == []


async def test_B93_records_gather_while_enough_publishes_are_under_way(log):
    publisher, errors = Counting(log), []
    log.hold_produce()
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for number in range(50):
            outbox.send(out(number), errors.append)
            for _ in range(3):
                await asyncio.sleep(0)
        assert publisher.running == MAX_PUBLISHES
        log.free_produce()
    assert publisher.most == MAX_PUBLISHES
    assert publisher.sizes == [1] * MAX_PUBLISHES + [50 - MAX_PUBLISHES]
    assert len(log.records("t", 0)) == 50


async def test_a_failed_publish_is_told_to_each_of_its_callers_and_the_next_goes_on(log):
    publisher, errors = Counting(log), []
    log.fail_produce()
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        outbox.send(out(1), errors.append)
        outbox.send(out(2), errors.append)
        while not errors:  # noqa: ASYNC110  # two turns of the loop
            await asyncio.sleep(0)
        outbox.send(out(3), errors.append)
        outbox.close()
    assert [type(error) for error in errors] == [LogError, LogError]
    assert [r.value for r in log.records("t", 0)] == [b"3"]


async def test_a_closed_outbox_refuses_and_says_so(log):
    errors = []
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(Counting(log), group)
        outbox.close()
        outbox.send(out(1), errors.append)
    assert len(errors) == 1
    assert log.records("t", 0) == []


class Turning:
    """Publishes that end only when the test lets them, in any order; what was produced, in the order of the ends."""

    def __init__(self):
        """Start with none under way."""
        self.waiting = []
        self.produced = []

    async def publish(self, outs):
        """Wait to be let go on."""
        gate = asyncio.get_running_loop().create_future()
        self.waiting.append((gate, outs))
        await gate
        self.produced += [(out.key, out.value) for out in outs]

    async def let(self, index, error=None):
        """Let one of the waiting publishes end, and others begin."""
        gate, _ = self.waiting.pop(index)
        gate.set_exception(error) if error else gate.set_result(None)
        await turns()

    async def let_all(self, count):
        """Let this many publishes end, one after the other, as soon as each is under way."""
        async with asyncio.timeout(10):
            for _ in range(count):
                while not self.waiting:  # noqa: ASYNC110  # turns of the loop
                    await asyncio.sleep(0)
                await self.let(0)


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def step(key, number, topic="t"):
    return Out(topic, 0, key, str(number).encode())


async def test_P18_a_sequences_records_keep_their_order_though_publishes_overtake_each_other(
    monkeypatch,
):
    """Each in a publish of its own; whichever is slow, the second step is not there before the first."""
    monkeypatch.setattr("headrace.streams.outbox.MAX_PUBLISHES", 4)
    publisher, errors = Turning(), []
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for number, key in enumerate([b"a", b"b", b"a", None, b"b", b"a"]):
            outbox.send(step(key, number), errors.append)
            await turns()
        assert [[o.key for o in outs] for _, outs in publisher.waiting] == [[b"a"], [b"b"], [None]]
        while publisher.waiting:
            await publisher.let(-1)
        outbox.close()
    assert [value for key, value in publisher.produced if key == b"a"] == [b"0", b"2", b"5"]
    assert [value for key, value in publisher.produced if key == b"b"] == [b"1", b"4"]
    assert len(publisher.produced) == 6
    assert errors == []


async def test_P18_the_same_key_on_another_topic_waits_for_nobody():
    publisher = Turning()
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for topic in ("t", "u"):
            outbox.send(step(b"a", 0, topic), lambda _: None)
            await turns()
        assert len(publisher.waiting) == 2
        while publisher.waiting:
            await publisher.let(0)


async def test_P18_a_failed_step_lets_the_next_one_go():
    publisher, errors = Turning(), []
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for number in range(2):
            outbox.send(step(b"a", number), errors.append)
            await turns()
        await publisher.let(0, LogError("no leader", retriable=True))
        await publisher.let(0)
    assert [error.detail for error in errors] == ["no leader"]
    assert publisher.produced == [(b"a", b"1")]


async def test_P18_a_closed_outbox_still_sends_what_waited_for_its_turn():
    publisher = Turning()
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        for number in range(3):
            outbox.send(step(b"a", number), lambda _: None)
            await turns()
        ends = asyncio.create_task(publisher.let_all(2))
        outbox.close()  # and the group is left with two records still to be sent
    await ends
    assert publisher.produced == [(b"a", b"0"), (b"a", b"1"), (b"a", b"2")]


async def test_B65_who_waits_for_the_acknowledgement_hears_of_it_and_of_a_failure(log):
    """Beside records whose senders do not wait."""
    publisher, errors = Counting(log), []
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(publisher, group)
        log.hold_produce()
        waiting = asyncio.create_task(outbox.deliver(out(1)))
        outbox.send(out(2), errors.append)
        await asyncio.sleep(0)
        assert not waiting.done()
        log.free_produce()
        await waiting
        log.fail_produce(1)
        with pytest.raises(LogError):
            await outbox.deliver(out(3))
        outbox.close()
    assert sorted(r.value for r in log.records("t", 0)) == [b"1", b"2"]
    assert errors == []


def gathered(sends, *, open_calls=40, gather_s=0.015, hold=False):
    """Play sends at these seconds on virtual time; returns the sizes of the publishes and when each began."""

    async def play():
        log = MemoryLog()
        await log.ensure([TopicSpec("t", 1)])
        loop = asyncio.get_running_loop()
        publisher, times = Counting(log), []
        publish = publisher.publish

        async def timed(outs):
            times.append(round(loop.time() - begun, 6))
            await publish(outs)

        publisher.publish = timed
        begun = loop.time()
        if hold:
            log.hold_produce()
        async with asyncio.TaskGroup() as group:
            outbox = Outbox(publisher, group, gather_s=gather_s, open_calls=lambda: open_calls)
            for number, at_s in enumerate(sends):
                await asyncio.sleep(begun + at_s - loop.time())
                outbox.send(out(number), lambda error: pytest.fail(str(error)))
            if hold:
                await asyncio.sleep(1)
                log.free_produce()
            await asyncio.sleep(1)
            outbox.close()
        values = [int(record.value) for record in log.records("t", 0)]
        assert values == list(range(len(sends)))
        return publisher.sizes, times

    return run_virtual(play())


def test_B93_requests_that_come_one_by_one_gather_while_more_come():
    sizes, times = gathered([n * 0.001 for n in range(10)])
    assert sizes == [10]
    assert 0.009 < times[0] <= 0.015


def test_B93_nothing_waits_longer_than_the_bound():
    sizes, times = gathered([n * 0.001 for n in range(31)], gather_s=0.01)
    assert sum(sizes) == 31
    assert max(sizes) <= 12
    assert times[0] == pytest.approx(0.01)


def test_B93_a_lone_request_among_many_open_calls_waits_a_moment_only():
    assert gathered([0.0]) == ([1], [LOOK_S])
    assert gathered([0.0, 0.001, 0.5]) == ([2, 1], [2 * LOOK_S, 0.5 + LOOK_S])


def test_B93_with_few_open_calls_nothing_waits():
    assert gathered([0.0, 0.001, 0.002], open_calls=3) == ([1, 1, 1], [0.0, 0.001, 0.002])


def test_B93_what_gathers_behind_publishes_that_hang_goes_out_when_they_end():
    sizes, times = gathered([n * 0.1 for n in range(5)], hold=True)
    assert sizes == [1] * MAX_PUBLISHES + [5 - MAX_PUBLISHES]
    assert times[MAX_PUBLISHES] >= 1.4
