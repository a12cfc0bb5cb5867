"""Answers in one piece, as they arrive on a socket: the same to a client as aiohttp's own."""

import asyncio
from email.utils import parsedate_to_datetime

import aiohttp
import pytest
from aiohttp import web
from headrace.streams.http_whole import JOINED_BYTES, WholeResponse

SAID = {"Content-Type": "application/json", "X-A": "b"}
USUAL = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def talk(handler, *requests):
    """Send requests over one connection; returns each answer's status line, headers and body, and whether it ended."""
    runner = web.ServerRunner(web.Server(handler, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    answers = []
    try:
        async with asyncio.timeout(10):
            for request in requests:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:-2])
                body = await reader.readexactly(int(headers["Content-Length"]))
                answers.append((head[0], headers, body))
            writer.write_eof()
            ended = await reader.read() == b""
    finally:
        writer.close()
        await runner.cleanup()
    return answers, ended


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES, JOINED_BYTES + 1])
async def test_several_answers_follow_each_other_on_a_connection(size):
    """Short ones go with their headers, long ones behind them."""

    async def answer(_request):
        return WholeResponse(b"x" * size, SAID)

    answers, ended = await talk(answer, USUAL, USUAL)
    assert ended
    for status, headers, body in answers:
        assert status == "HTTP/1.1 200 OK"
        assert body == b"x" * size
        assert parsedate_to_datetime(headers.pop("Date")).tzinfo is not None
        assert headers == {**SAID, "Content-Length": str(size)}


@pytest.mark.parametrize(
    ("request_bytes", "says"),
    [
        (b"GET / HTTP/1.0\r\nHost: x\r\n\r\n", None),
        (b"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", "keep-alive"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "close"),
    ],
)
async def test_old_and_closing_callers_are_told_about_the_connection(request_bytes, says):
    """What becomes of it depends on them."""

    async def answer(_request):
        return WholeResponse(b"{}", SAID)

    [(status, headers, body)], ended = await talk(answer, request_bytes)
    assert ended
    assert (status[-6:], body) == ("200 OK", b"{}")
    assert headers.get("Connection") == says
    assert headers["X-A"] == "b"


async def test_headers_may_be_changed_before_it_is_written():
    """As of any response: DELIVERY P-17's mark comes so."""

    async def answer(_request):
        response = WholeResponse(b"{}", SAID)
        assert not response.prepared
        response.headers["X-B"] = "c"
        return response

    [(_, headers, body)], _ = await talk(answer, USUAL)
    assert body == b"{}"
    assert (headers["X-A"], headers["X-B"], headers["Content-Type"]) == (
        "b",
        "c",
        "application/json",
    )


async def test_an_ordinary_client_understands_it():
    """Over a connection that it keeps."""

    async def answer(request):
        return WholeResponse(await request.read(), SAID)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        for n in range(3):
            async with session.post("/", data=b"%d" % n) as got:
                assert (got.status, await got.read()) == (200, b"%d" % n)
    await runner.cleanup()
