"""Infer calls of the usual form, which are answered without a task of their own: same answers, same bounds, same ends.

Whether a call went that way is told by aiohttp's server, which counts the requests that its own tasks have had.
"""

import asyncio
import json

import pytest
from gateway_kit import Peer, Worker, echo, reply, running, serving, silent, until
from headrace.schemas.errors import BackendError, Code
from headrace.schemas.infer import InferResponse
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams import http_connections, http_direct, http_infer
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.memory import MemoryLog

HEAD = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /v2/models/echo/ready HTTP/1.1\r\nHost: x\r\n\r\n"
WITHIN_S = 20.0


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def servers(monkeypatch):
    """Collects the servers that are made; ``requests_count`` is that of aiohttp's own tasks."""
    made = []

    class Counted(http_connections.BoundedServer):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr("headrace.streams.http.BoundedServer", Counted)
    return made


def body(value=1, columns=1, **more):
    tensor = {"name": "INPUT0", "shape": [1, columns], "datatype": "FP32"}
    return json.dumps({"inputs": [{**tensor, "data": [value] * columns}], **more}).encode()


def request(content, *lines):
    length = b"Content-Length: %d\r\n\r\n" % len(content)
    return HEAD + b"".join([b"%s\r\n" % line for line in lines]) + length + content


@pytest.fixture
async def connect():
    """Opens connections of the test's own, and closes them."""
    opened = []

    async def open_one(session):
        url = session._base_url
        peer = Peer(*await asyncio.open_connection(url.host, url.port, limit=2**24))
        opened.append(peer)
        return peer

    yield open_one
    for peer in opened:
        peer.writer.close()


def shown(answer):
    return answer["outputs"][0]["data"]


async def test_calls_of_the_usual_form_need_no_task_of_aiohttps(connect, log, servers):
    async with running(Worker(log)), serving(log) as (gateway, session):
        peer = await connect(session)
        for value in (1, 2, 3):
            status, answer, headers = await peer.ask(request(body(value, id=f"call {value}")))
            assert (status, shown(answer), answer["id"]) == (200, [value], f"call {value}")
            assert headers["content-type"] == "application/json"
        assert gateway.open_calls == 0
    assert servers[0].requests_count == 0


@pytest.mark.parametrize(
    "line",
    [
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"X-Headrace-Timeout-Ms: 20000",
        b"IDEMPOTENCY-KEY: once",
        b"Content-Encoding: identity",
        b"Prefer: wait=1",
        b"Connection: close",
    ],
)
async def test_calls_that_ask_for_more_go_the_usual_way_and_are_answered_alike(
    line, connect, log, servers
):
    async with running(Worker(log)), serving(log) as (_, session):
        _, plain, _ = await (await connect(session)).ask(request(body(7)))
        status, answer, _ = await (await connect(session)).ask(request(body(7), line))
        assert (status, answer) == (200, plain)
    assert servers[0].requests_count == 1


async def test_a_body_that_comes_later_than_its_head_goes_the_usual_way(connect, log, servers):
    async with running(Worker(log)), serving(log) as (_, session):
        peer = await connect(session)
        data = request(body(5))
        peer.writer.write(data[:-10])
        await until(lambda: servers[0].requests_count == 1)
        assert shown((await peer.ask(data[-10:]))[1]) == [5]
        assert shown((await peer.ask(request(body(6))))[1]) == [6]
    assert servers[0].requests_count == 1


async def test_requests_of_one_connection_are_answered_in_their_order(connect, log, servers):
    """Of either way, sent without waiting for an answer: the first is answered last by its worker."""
    held = []

    def script(asked, record):
        if asked.id == "late":
            held.append(record)
            return None
        return echo(asked, record)

    async with running(Worker(log, script=script)), serving(log) as (_, session):
        peer = await connect(session)
        parts = [request(body(1, id="late")), request(body(2)), GET, request(body(3)), GET]
        peer.writer.write(b"".join(parts))
        await until(lambda: held)
        await asyncio.sleep(0.05)
        late = InferResponse(
            (Tensor("OUTPUT0", Datatype.FP32, (1, 1), b"\0\0\x80?"),), "", "echo", "1"
        )
        log.append([reply(held[0], late)])
        answers = [await peer.answer() for _ in parts]
    assert [status for status, _, _ in answers] == [200] * 5
    assert [answers[n][1] and shown(answers[n][1]) for n in range(5)] == [
        [1],
        [2],
        None,
        [3],
        None,
    ]
    assert servers[0].requests_count == 3  # behind the first GET aiohttp's task goes on by itself


async def test_more_requests_than_a_connection_may_queue_are_all_answered(connect, log):
    async with running(Worker(log)), serving(log) as (_, session):
        peer = await connect(session)
        peer.writer.write(b"".join([request(body(n)) for n in range(500)]))
        async with asyncio.timeout(WITHIN_S):
            assert [shown((await peer.answer())[1]) for _ in range(500)] == [
                [n] for n in range(500)
            ]


async def ask_on_and_on(peer, worker):
    for asked in range(1_000):  # 80 MB of answers
        peer.writer.write(request(body(1)))
        await until(lambda count=asked: len(worker.seen) > count, 1.0)


async def test_a_caller_that_reads_no_answers_is_not_answered_on_and_on(connect, log):
    """What it has not taken is bounded: its further requests wait."""
    many = Tensor("OUTPUT0", Datatype.FP32, (1, 20_000), b"\0\0\x80?" * 20_000)
    worker = Worker(log, script=lambda *_: InferResponse((many,), "", "echo", "1"))
    async with running(worker), serving(log) as (_, session):
        peer = await connect(session)
        peer.reader._transport.pause_reading()
        with pytest.raises(TimeoutError):
            await ask_on_and_on(peer, worker)
        peer.reader._transport.abort()


async def test_a_call_may_take_longer_than_an_idle_connection_is_kept(connect, log):
    worker = Worker(log)
    async with running(worker), serving(log, keepalive_s=0.1) as (_, session):
        peer = await connect(session)
        assert (await peer.ask(request(body(1))))[0] == 200  # the timer of idle connections runs
        worker.script = silent
        peer.writer.write(request(body(2)))
        await until(lambda: worker.held)
        await asyncio.sleep(0.4)
        log.append([reply(worker.held[0], echo_of(2.0))])
        assert shown((await peer.answer())[1]) == [2]
        assert await peer.reader.read(1) == b""  # idle since


def echo_of(value):
    data = {1.0: b"\0\0\x80?", 2.0: b"\0\0\0@"}[value]
    return InferResponse((Tensor("OUTPUT0", Datatype.FP32, (1, 1), data),), "", "echo", "1")


async def test_errors_of_workers_and_refusals_look_as_on_the_usual_way(connect, log, servers):
    def script(_asked, _record):
        return BackendError("the model is out of order")

    async with running(Worker(log, script=script)), serving(log) as (gateway, session):
        peer = await connect(session)
        direct = await peer.ask(request(body(1)))
        usual = await peer.ask(request(body(1), b"Prefer: wait=1"))
        assert direct[:2] == usual[:2] == (500, {"error": "the model is out of order"})
        wrong = await peer.ask(request(body(1, columns=1).replace(b"INPUT0", b"INPUT9")))
        assert wrong[0] == 400
        assert "unexpected inference input 'INPUT9'" in wrong[1]["error"]
        assert (await peer.ask(request(b"{")))[0] == 500  # as Triton (SEMANTICS PB-32)
        assert gateway.open_calls == 0
        assert sum(gateway.refused.values()) == 1  # counted once
    assert servers[0].requests_count == 3


async def test_an_output_that_JSON_cannot_show_is_an_error(connect, log):  # the format's name
    """SEMANTICS PB-45, found when the answer is written."""

    def script(_asked, _record):
        halves = Tensor("OUTPUT0", Datatype.FP16, (1, 1), b"\0\0")
        return InferResponse((halves,), "", "echo", "1")

    async with running(Worker(log, script=script)), serving(log) as (_, session):
        peer = await connect(session)
        status, answer, _ = await peer.ask(request(body(1)))
        assert status == 400
        assert "FP16" in answer["error"]
        assert (await peer.ask(GET))[0] == 200


@pytest.mark.parametrize("large", [False, True])
async def test_a_bug_in_writing_an_answer_is_500_and_the_connection_goes_on(
    large, connect, log, monkeypatch, caplog
):
    def broken(*_):
        raise RuntimeError("a bug")

    async with running(Worker(log)), serving(log) as (_, session):
        peer = await connect(session)
        with monkeypatch.context() as planted:
            planted.setattr(http_direct, "written_answer", broken)
            planted.setattr(http_direct, "is_quick", lambda *_: not large)
            status, answer, _ = await peer.ask(request(body(1)))
        assert (status, answer) == (500, {"error": "internal error, see the gateway's log"})
        assert shown((await peer.ask(request(body(2))))[1]) == [2]
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize("encoding", [b"", b"Accept-Encoding: gzip"])
async def test_large_answers_are_written_beside_the_loop_also_while_the_server_closes(
    encoding, connect, log, monkeypatch, servers
):
    """`to_thread` is what writes them; leaving the server waits for it."""
    monkeypatch.setattr(http_infer, "OFF_LOOP_SHOWN_BYTES", 1_000)
    monkeypatch.setattr(http_infer, "OFF_LOOP_COMPRESSED_BYTES", 1_000)
    writing = asyncio.Event()
    in_thread = asyncio.to_thread

    async def slowly(*args):
        writing.set()
        await asyncio.sleep(0.3)
        return await in_thread(*args)

    async with running(Worker(log)):
        async with serving(log) as (_, session):
            peer = await connect(session)
            monkeypatch.setattr(asyncio, "to_thread", slowly)
            lines = [encoding] if encoding else []
            peer.writer.write(request(body(1, columns=1_000), *lines))
            await writing.wait()
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert (b"Content-Encoding: gzip" in head) is bool(encoding)
    assert servers[0].requests_count == 0


async def test_calls_are_counted_as_on_the_usual_way(connect, log):
    ended = []

    class Observer:
        def ended(self, model, code, seconds):
            ended.append((model, code, seconds > 0))

    made = Gateway.__init__

    def observed(self, log, topology, settings=GatewaySettings(), **more):  # noqa: B008  # frozen
        made(self, log, topology, settings, observer=Observer(), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gateway, "__init__", observed)
        worker = Worker(log)
        async with running(worker), serving(log) as (gateway, session):
            peer = await connect(session)
            await peer.ask(request(body(1)))
            worker.script = silent
            peer.writer.write(request(body(2)))
            await until(lambda: worker.held)
            peer.writer.close()
            await until(lambda: gateway.abandoned == 1)
            assert gateway.open_calls == 0
    assert ended == [("echo", Code.OK, True), ("echo", Code.CANCELLED, True)]
