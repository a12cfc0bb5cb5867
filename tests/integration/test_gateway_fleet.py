"""Several gateways, a log that fails, and many calls that end in every way, on the memory log."""

import asyncio
import random
from collections import Counter

import pytest
from gateway_kit import TOPOLOGY, Worker, echo, make_topics, reply, running, silent, until
from headrace.schemas.avro import parse_request
from headrace.schemas.errors import (
    BackendError,
    Code,
    DeadlineExceeded,
    InferError,
    InvalidRequest,
    LogError,
    NotFound,
    Reason,
    Unavailable,
)
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import REPLY_PARTITION
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.memory import MemoryLog
from headrace.streams.status import GatewayStatus, decode_status, gateway_key

X = Tensor("INPUT0", Datatype.FP32, (1, 2), bytes(8))
REQUEST = InferRequest((X,))


@pytest.fixture
def log():
    return MemoryLog()


def gateway(log, name="g1", **settings):
    return Gateway(log, TOPOLOGY, GatewaySettings(gateway_id=name, **settings))


async def ready(gateway):
    async with asyncio.timeout(10):
        await gateway.wait_ready()
    return gateway


def claims(log):
    """Return each gateway's claimed partitions by its newest status record."""
    found = {}
    for record in log.records(TOPOLOGY.status, 0):
        status = decode_status(record.key, record.value) if record.value else None
        if isinstance(status, GatewayStatus):
            found[status.gateway] = status.reply_partitions
        elif record.value is None:
            found.pop(record.key.decode().partition("/")[2], None)
    return found


async def test_gateways_claim_different_partitions_and_leave_tombstones(log):
    await make_topics(log)
    async with gateway(log, "a") as first:
        await ready(first)
        async with gateway(log, "b") as second, gateway(log, "c", reply_partitions=2) as third:
            await ready(second)
            await ready(third)
            found = claims(log)
            assert sorted(sum(found.values(), ())) == [0, 1, 2, 3]
            async with gateway(log, "d") as fourth:
                await ready(fourth)
                assert len(claims(log)["d"]) == 1
        assert list(claims(log)) == ["a"]
    assert claims(log) == {}
    assert log.records(TOPOLOGY.status, 0)[-1].key == gateway_key("a")


async def test_B60_each_gateway_reads_its_own_share(log):
    """FAULTS B60: four gateways, 1,000 calls; each reads a quarter of the replies' bytes, and none of another's."""
    worker = Worker(log)
    read = Counter()
    real = log.reader

    def counting(spans, *, committed=False):
        reader = real(spans, committed=committed)
        if all(tp.topic == TOPOLOGY.replies for tp in spans):
            poll = reader.poll

            async def counted(max_records, timeout_s):
                blocks = await poll(max_records, timeout_s)
                read[tuple(spans)] += sum(len(r.value) for block in blocks for r in block.records)
                return blocks

            reader.poll = counted
        return reader

    log.reader = counting
    async with running(worker), asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        found = []

        async def serve(name):
            async with gateway(log, name) as mine:
                found.append(await ready(mine))
                await stop.wait()

        # One after the other, so that each sees the claims of those before.
        for number in range(4):
            group.create_task(serve(f"g{number}"))
            await until(lambda number=number: len(found) == number + 1)
        for mine in found:
            answers = await asyncio.gather(*(mine.infer("echo", "", REQUEST) for _ in range(250)))
            assert len(answers) == 250
        asked = Counter(int(dict(r.headers)[REPLY_PARTITION]) for r in worker.seen)
        assert set(asked.values()) == {250}
        assert len(read) == 4
        assert len(set(read.values())) == 1
        assert [mine.foreign_replies for mine in found] == [0] * 4
        stop.set()


async def test_B60_a_gateway_that_dies_loses_only_its_own_open_calls(log):
    """Without a word, as by SIGKILL: its neighbour's calls and streams go on, and a new one takes its place."""
    worker = Worker(log, script=silent)
    async with running(worker), gateway(log, "a") as dead, gateway(log, "b") as alive:
        await ready(dead)
        await ready(alive)
        lost, kept = (
            [asyncio.create_task(mine.infer("echo", "", REQUEST)) for _ in range(5)]
            for mine in (dead, alive)
        )
        streamed = alive.stream("echo", "", REQUEST)
        kept.append(asyncio.create_task(anext(streamed)))
        await until(lambda: len(worker.held) == 11)
        for loop in dead._loops:
            loop.cancel()
        await asyncio.wait(dead._loops)
        log.append([reply(record, echo(REQUEST, record)) for record in worker.held])
        await asyncio.gather(*kept)
        await streamed.aclose()
        assert not any(call.done() for call in lost)
        assert (dead.open_calls, alive.open_calls, alive.late_replies) == (5, 0, 0)
        worker.script = echo
        async with gateway(log, "c") as after:
            await ready(after)
            for mine in (alive, after):
                assert (await mine.infer("echo", "", REQUEST)).outputs
        dead.end_calls()
        ended = await asyncio.gather(*lost, return_exceptions=True)
        assert all(isinstance(error, Unavailable) for error in ended)


async def test_two_gateways_on_one_partition_drop_each_others_replies_unread(log):
    await make_topics(log)
    topology = TOPOLOGY.__class__(prefix="t", partitions=2, reply_partitions=1)
    log = MemoryLog()
    await log.ensure(topology.shared_specs())
    async with (
        running(Worker(log)),
        Gateway(log, topology) as first,
        Gateway(log, topology) as second,
    ):
        await ready(first)
        await ready(second)
        answers = await asyncio.gather(
            *(g.infer("echo", "", REQUEST) for g in (first, second) for _ in range(20))
        )
        assert len(answers) == 40
        await until(lambda: (first.foreign_replies, second.foreign_replies) == (20, 20))
        assert first.late_replies == 0


async def test_B58_without_its_replies_a_gateway_is_not_ready_and_refuses_at_once(
    log, monkeypatch
):
    """FAULTS B58: a replies topic that may not be read."""
    real = log.reader

    def refused(spans, *, committed=False):
        if any(tp.topic == TOPOLOGY.replies for tp in spans):
            raise LogError("not authorised to read topic t.replies", retriable=False)
        return real(spans, committed=committed)

    async with running(Worker(log)):
        log.reader = refused
        async with gateway(log) as mine:
            await until(lambda: mine.fleet.models() and claims(log).get("g1"))
            assert not mine.is_ready()
            with pytest.raises(
                Unavailable, match=r"does not read its replies on topic t\.replies"
            ):
                await mine.infer("echo", "", REQUEST)
            log.reader = real
            await ready(mine)
            assert mine.is_ready()
            assert (await mine.infer("echo", "", REQUEST)).outputs[0].data == bytes(8)


async def test_replies_that_come_while_the_log_is_away_are_read_afterwards(log):
    """The reader fails under an open call; it goes on where it was, so the call is answered."""
    worker = Worker(log, script=silent)
    failing = {}
    real = log.reader

    def reader(spans, *, committed=False):
        made = real(spans, committed=committed)
        if any(tp.topic == TOPOLOGY.replies for tp in spans):
            poll = made.poll

            async def breaks(max_records, timeout_s):
                if failing:
                    raise LogError("the leader moved", retriable=True)
                return await poll(max_records, min(timeout_s, 0.01))

            made.poll = breaks
        return made

    log.reader = reader
    async with running(worker), gateway(log) as mine:
        await ready(mine)
        call = asyncio.create_task(mine.infer("echo", "", REQUEST))
        await until(lambda: worker.held)
        failing["now"] = True
        await until(lambda: not mine.is_listening)
        record = worker.held[0]
        async with log.publisher() as publisher:
            await publisher.publish([reply(record, echo(parse_request(record.value), record))])
        failing.clear()
        assert (await call).outputs[0].name == "OUTPUT0"


async def test_a_gateway_learns_of_models_that_come_and_go(log):
    async with gateway(log) as mine:
        await ready(mine)
        with pytest.raises(NotFound, match="no worker has announced any model"):
            await mine.infer("echo", "", REQUEST)
        worker = Worker(log)
        async with running(worker):
            await until(lambda: mine.fleet.models() == ["echo"])
            assert (await mine.infer("echo", "1", REQUEST)).model_version == "1"
            await worker.announce(draining=True)
            await until(lambda: mine.ready_versions("echo") == [])
            with pytest.raises(Unavailable):
                await mine.infer("echo", "", REQUEST)


async def test_a_deadline_that_has_passed_is_answered_without_a_record(log):
    worker = Worker(log)
    async with running(worker), gateway(log) as mine:
        await ready(mine)
        with pytest.raises(DeadlineExceeded) as caught:
            await mine.infer("echo", "", REQUEST, deadline_ms=mine.now_ms() - 5)
        assert caught.value.reason is Reason.DEADLINE_PASSED
        assert worker.seen == []
        assert mine.refused[Reason.DEADLINE_PASSED] == 1


async def test_topics_that_may_not_be_created_are_named_at_start(log):
    log.refuse_creation()
    with pytest.raises(LogError, match=r"t\.replies"):
        async with gateway(log):
            pass


class Ends(Counter):
    """Counts how calls ended, as an observer does."""

    def ended(self, model: str, code: Code, seconds: float) -> None:
        """Count by code; the time is a time."""
        assert model == "echo"
        assert seconds >= 0
        self[code] += 1


async def outcome_of(mine, kind):
    """Make one call of a kind and return how it ended."""
    inputs = () if kind == "invalid" else (X,)
    wait_ms = 30 if kind == "silent" else 20_000
    call = asyncio.create_task(
        mine.infer("echo", "", InferRequest(inputs, id=kind), deadline_ms=mine.now_ms() + wait_ms)
    )
    if kind == "cancelled":
        await asyncio.sleep(0)
        call.cancel()
    await asyncio.wait([call])
    if call.cancelled():
        return "cancelled"
    error = call.exception()
    return error.reason if isinstance(error, InferError) else "ok"


async def test_B101_2000_mixed_calls_leave_nothing_open(log):
    """FAULTS B101: results, errors, expiries, cancels, refusals and failed produces; the table ends empty."""
    rng = random.Random(11)

    def script(request: InferRequest, record):
        match request.id:
            case "error":
                return BackendError("it raised")
            case "silent":
                return None
        return echo(request, record)

    ends = Ends()
    worker = Worker(log, script=script)
    # One failed produce is one failed call: what gathers fails together.
    settings = GatewaySettings(gateway_id="g", max_pending=64, gather_ms=0)
    async with running(worker), Gateway(log, TOPOLOGY, settings, observer=ends) as mine:
        await ready(mine)
        outcomes = Counter()
        kinds = ["ok"] * 6 + ["error", "silent", "invalid", "unproduced", "cancelled", "cancelled"]
        gate = asyncio.Semaphore(80)  # some more than may be open, so that some are refused

        async def one(kind):
            async with gate:
                if kind == "unproduced":
                    log.fail_produce()
                outcomes[await outcome_of(mine, kind)] += 1

        await asyncio.gather(*(one(rng.choice(kinds)) for _ in range(2_000)))
        assert outcomes.total() == 2_000
        for expected in ("ok", "cancelled", Reason.BACKEND_FAILED, Reason.DEADLINE_PASSED):
            assert outcomes[expected] > 50, outcomes
        assert outcomes[Reason.INVALID_REQUEST] > 50
        assert mine.open_calls == 0
        assert mine._calls._pending._deadlines == [] or mine._calls._pending.wake_at() is None
        assert ends.total() == 2_000
        assert ends[Code.OK] == outcomes["ok"]
        assert mine.abandoned == outcomes["cancelled"]
        load = mine.route("echo", "").load(0)
        assert load._opened == 0
        await until(lambda: mine._outbox._running == 0)


async def test_a_bad_request_is_refused_by_the_gateway_itself_for_any_caller(log):
    """FAULTS B53 for calls that do not come over HTTP."""
    worker = Worker(log)
    async with running(worker), gateway(log) as mine:
        await ready(mine)
        wrong = Tensor("INPUT0", Datatype.INT64, (1, 1), bytes(8))
        with pytest.raises(InvalidRequest, match="data-type is 'INT64'"):
            await mine.infer("echo", "", InferRequest((wrong,)))
        assert worker.seen == []
        assert mine.refused == {Reason.INVALID_REQUEST: 1}
