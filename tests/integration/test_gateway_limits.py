"""The bounds of the gateway's HTTP server, each reached over a socket of the test's own: what comes back, what goes on.

FAULTS B53's and B101's kind: a caller who is slow, huge or no HTTP at all gets one answer and costs the others nothing.
"""

import asyncio
import gzip
import json
import resource
import socket
from contextlib import asynccontextmanager

import pytest
import uvloop
from gateway_kit import Peer, Worker, running, serving
from headrace.schemas.errors import ConfigError
from headrace.streams.extensions import Extensions
from headrace.streams.http import HttpServer
from headrace.streams.http_body import MAX_CHUNKS
from headrace.streams.http_call import MAX_OBJECT_BYTES, HttpSettings
from headrace.streams.http_connections import MAX_REFUSALS
from headrace.streams.memory import MemoryLog
from headrace.streams.shared_memory import SharedMemory

GOOD = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
).encode()
HEAD = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
LIMIT_S = 20.0


@pytest.fixture
def log():
    return MemoryLog()


def plain(body=GOOD, *lines):
    return HEAD + b"".join([b"%s\r\n" % line for line in lines]) + _length(body) + body


def _length(body):
    return b"Content-Length: %d\r\n\r\n" % len(body)


@asynccontextmanager
async def peer(session):
    url = session._base_url
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=2**20)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield Peer(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def gateway_for(log, **bounds):
    """Run the echo model behind a gateway; at the end a good call works and nothing is open."""
    async with running(Worker(log)), serving(log, **bounds) as (gateway, session):
        yield gateway, session
        async with asyncio.timeout(LIMIT_S):
            while (status := await one_call(session)) == 503:  # noqa: ASYNC110  # nobody could set an event
                await asyncio.sleep(0.01)  # it has not heard yet that the others are gone
        assert status == 200
        assert gateway.open_calls == 0


async def one_call(session):
    async with peer(session) as one:
        return (await one.ask(plain()))[0]


async def test_several_servers_share_a_port_where_all_say_so(log):
    async with serving(log, reuse_port=True) as (gateway, session):
        port = session._base_url.port
        async with HttpServer(gateway, HttpSettings(port=port, reuse_port=True)) as other:
            assert other.port == port
        with pytest.raises(ConfigError, match=r"http-port = 127\.0\.0\.1:"):
            await HttpServer(gateway, HttpSettings(port=port)).__aenter__()


async def connections_are_bounded(log):
    async with (
        gateway_for(log, max_connections=2) as (_, session),
        peer(session) as first,
        peer(session) as second,
    ):
        assert (await first.ask(plain()))[0] == 200
        assert (await second.ask(plain()))[0] == 200
        async with peer(session) as third:
            status, answer, headers = await third.ask(plain())
            assert (status, headers["retry-after"]) == (503, "1")
            assert "--http-max-connections" in answer["error"]
            assert await third.is_closed()
        assert (await first.ask(plain()))[0] == 200


async def a_flood_is_refused(log):
    async with gateway_for(log, max_connections=1) as (_, session), peer(session) as first:
        assert (await first.ask(plain()))[0] == 200
        url = session._base_url
        many = [await asyncio.open_connection(url.host, url.port) for _ in range(2 * MAX_REFUSALS)]
        silent = 0
        for reader, writer in many:
            try:
                silent += await reader.read(8) != b"HTTP/1.1"
            except ConnectionError:
                silent += 1
            writer.close()
        assert 1 <= silent <= MAX_REFUSALS
        assert (await first.ask(plain()))[0] == 200


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("scene", [connections_are_bounded, a_flood_is_refused])
def test_connections_are_bounded_and_further_ones_are_told_so(loop, scene, log):
    """On asyncio's loop and on uvloop's, which servers run: a refusal touches the connection itself."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scene(log))


async def test_a_head_that_never_ends_is_cut_off(log):
    """Slowloris: a byte now and then keeps nobody's connection."""
    async with (
        gateway_for(log, header_timeout_s=0.2) as (_, session),
        peer(session) as silent,
        peer(session) as slow,
    ):
        slow.writer.write(HEAD)
        for one in (silent, slow):
            assert await one.is_closed()


async def test_a_further_head_that_never_ends_is_cut_off_like_an_idle_connection(log):
    async with gateway_for(log, keepalive_s=0.2) as (_, session), peer(session) as slow:
        assert (await slow.ask(plain()))[0] == 200
        slow.writer.write(HEAD)
        assert await slow.is_closed()


async def test_a_connection_that_has_asked_may_be_idle_longer_than_a_first_head_may_take(log):
    async with (
        gateway_for(log, header_timeout_s=0.1) as (_, session),
        peer(session) as early,
        peer(session) as witness,
    ):
        assert (await early.ask(plain()))[0] == 200
        assert await witness.is_closed()  # as long as the limit
        assert (await early.ask(plain()))[0] == 200


async def test_a_body_that_does_not_come_is_504_and_its_connection_ends(log):
    async with gateway_for(log, read_timeout_s=0.2) as (_, session), peer(session) as slow:
        status, answer, _ = await slow.ask(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert status == 504
        assert "body did not come within 0.2 s" in answer["error"]


async def test_a_caller_that_takes_nothing_of_its_answer_is_cut_off(log):
    """The system ends the connection; the call's place is free again."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("the system has no TCP_USER_TIMEOUT")
    big = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "shape": [1, 100_000],
                    "datatype": "FP32",
                    "data": [0] * 100_000,
                }
            ]
        }
    ).encode()
    async with gateway_for(log, write_timeout_s=0.5) as (_, session):
        url = session._base_url
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((url.host, url.port))
            await asyncio.to_thread(deaf.sendall, plain(big) * 8)
            deaf.settimeout(LIMIT_S)

            def until_cut():
                # Nothing is read: only a look whether the connection still stands.
                deaf.recv(1, socket.MSG_PEEK)
                while not deaf.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    try:
                        deaf.send(b" ")
                    except ConnectionError:
                        return

            await asyncio.wait_for(asyncio.to_thread(until_cut), LIMIT_S)


@pytest.mark.parametrize(
    ("head", "fragment"),
    [
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", "no HTTP"),
        (HEAD + b"X: " + b"a" * 9_000 + b"\r\n\r\n", "no HTTP"),
        (HEAD + b"X: 1\r\n" * 200 + b"\r\n", "Too many headers"),
        (b"BREW /v2 HTTP/1.1\r\nHost: x\r\n\r\n", "no HTTP"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", "Missing 'Host'"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 client hello\r\n\r\n", "no HTTP"),
        (HEAD + b"Authorization: Bearer to\x00ken\r\n\r\n", "no HTTP"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "no HTTP"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "no HTTP"),
        (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n", "no HTTP"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "no HTTP"),
        (HEAD + b"X\r\n folded: 1\r\n\r\n", "no HTTP"),
    ],
)
async def test_PB30_what_is_no_http_is_400_in_the_v2_form_and_repeated_nowhere(
    log, caplog, head, fragment
):
    async with gateway_for(log) as (_, session), peer(session) as one:
        status, answer, _ = await one.ask(head)
        assert status == 400
        assert fragment in answer["error"]
        assert b"aaaa" not in answer["error"].encode()
        assert "Bearer" not in answer["error"]
        assert await one.is_closed()
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


async def test_PB24_a_flood_of_tiny_chunks_is_refused(log):
    """As many as Triton takes are taken: its text, its number."""
    async with gateway_for(log) as (_, session):
        for over in (0, 1):
            count = MAX_CHUNKS + over
            chunks = b"1\r\n \r\n" * (count - 1) + b"%x\r\n%s\r\n" % (len(GOOD), GOOD)
            async with peer(session) as one:
                data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
                status, answer, _ = await one.ask(data)
                if over:
                    assert status == 400
                    assert answer["error"] == (
                        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send "
                        "fewer or larger HTTP chunks."
                    )
                else:
                    assert status == 200


@pytest.mark.parametrize(
    "tail",
    [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}!!0\r\n\r\n",
        b"ffffffffffffffffff\r\n{}\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_broken_chunks_are_400(log, tail):
    async with gateway_for(log) as (_, session), peer(session) as one:
        status, answer, _ = await one.ask(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + tail)
        assert status == 400
        assert "no HTTP" in answer["error"] or "body is broken" in answer["error"]
        assert await one.is_closed()


async def test_a_body_that_breaks_after_its_call_began_is_400(log):
    async with gateway_for(log) as (_, session), peer(session) as one:
        one.writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0)
        one.writer.write(b"2\r\n{ \r\n")
        await one.writer.drain()
        status, answer, _ = await one.ask(b"nonsense\r\n")
        assert status == 400
        assert "no HTTP" in answer["error"] or "body is broken" in answer["error"]


async def test_PB24_a_gzip_bomb_takes_no_memory(log):
    """60 MB of zeros in 60 kB, ten times: 400, and the process does not grow by one of them."""
    bomb = gzip.compress(b"\0" * 60_000_000, 1)
    async with gateway_for(log, max_input_bytes=2**20) as (_, session):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10):
            async with peer(session) as one:
                status, answer, _ = await one.ask(plain(bomb, b"Content-Encoding: gzip"))
                assert status == 400
                assert "--http-max-input-size" in answer["error"]
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kb < 30_000


@pytest.mark.parametrize("dims", [[2**40], [2**31, 2**31], [1, 2**62], [1] * 10_000, [0, 2**62]])
async def test_a_claimed_size_is_not_allocated(log, dims):
    """JSON, binary and raw form: the answer is 400 or Triton's 500 of PB-32, and memory stays."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = {"name": "INPUT0", "shape": dims, "datatype": "FP32"}
    texts = [{**tensor, "data": [1]}, {**tensor, "parameters": {"binary_data_size": 2**62}}]
    async with gateway_for(log) as (_, session), peer(session) as one:
        for text in texts:
            body = json.dumps({"inputs": [text]}).encode()
            for lines in ([], [b"Inference-Header-Content-Length: %d" % len(body)]):
                status, answer, _ = await one.ask(plain(body, *lines))
                assert status == 400 or (
                    status == 500 and answer["error"].startswith("Unable to parse")
                ), answer
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


async def test_an_errors_text_is_bounded_whatever_it_repeats(log):
    body = {"inputs": [{"name": "N" * 500_000, "shape": [1], "datatype": "FP32", "data": [1]}]}
    async with gateway_for(log) as (_, session), peer(session) as one:
        status, answer, _ = await one.ask(plain(json.dumps(body).encode()))
        assert status == 400
        assert len(answer["error"]) < 5_000


async def test_PB34_more_inputs_than_the_model_has_are_refused_before_they_are_read(log):
    """Thousands of empty tensors: the count is wrong, so none is made."""
    items = [{"name": f"I{n}", "shape": [0], "datatype": "?"} for n in range(50_000)]
    body = json.dumps({"inputs": items}).encode()
    async with gateway_for(log) as (_, session), peer(session) as one:
        status, answer, _ = await one.ask(plain(body))
        assert status == 400
        assert "expected 1 inputs but got 50000 inputs for model 'echo'" in answer["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/echo/trace/setting",
        "/v2/systemsharedmemory/region/r/register",
    ],
)
async def test_B2_a_body_of_settings_may_not_be_as_large_as_one_of_tensors(log, path):
    """Reading JSON lets nobody else run: it is refused by its size alone."""
    extensions = Extensions(memory=SharedMemory(is_allowed=True))
    body = b'{"x": "' + b"a" * MAX_OBJECT_BYTES + b'"}'
    async with gateway_for(log, extensions=extensions) as (_, session), peer(session) as one:
        head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode()
        status, answer, _ = await one.ask(head + _length(body) + body)
        assert status == 400
        assert (
            f"JSON has {len(body)} bytes, expected at most {MAX_OBJECT_BYTES}" in answer["error"]
        )
