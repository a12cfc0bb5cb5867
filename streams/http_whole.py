"""A whole answer in one piece: what most calls get, at half of what aiohttp's own way to the socket costs them.

aiohttp puts headers into a multidict, looks each of its own up in it, and writes it out again. Here they are joined as
they are. Whoever asks for the headers to change them, and callers of HTTP/1.0 or who close, get aiohttp's own response.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

JOINED_BYTES = 64 * 1024
"""Longer bodies are written behind their headers: joining them would copy them."""

_OK = "200 OK"


class WholeResponse(web.StreamResponse):
    """An answer with status 200; treat it as any other.

    Attributes:
        body: All of it.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Take body and headers, both written here: names and values are not checked."""
        # Not the base class's, which would make a multidict: what it keeps is replaced below.
        self.body = body
        self._said = headers
        self._is_written = False
        self._usual: web.Response | None = None

    def __repr__(self) -> str:
        """Show the size."""
        return f"WholeResponse({len(self.body)} bytes)"

    @property
    def status(self) -> int:
        """Always 200."""
        return 200

    @property
    def prepared(self) -> bool:
        """Whether it is written, at least in part."""
        return self._is_written or (self._usual is not None and self._usual.prepared)

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return True if self._usual is None else self._usual.keep_alive

    @property
    def headers(self) -> CIMultiDict[str]:
        """Headers, to be changed before it is written."""
        return self._as_usual().headers

    def _as_usual(self) -> web.Response:
        if self._usual is None:
            self._usual = web.Response(body=self.body, headers=self._said)
        return self._usual

    def head(self) -> bytes:
        """Write status line and headers, for who writes the body behind them."""
        return written_head(_OK, self._said, len(self.body))

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write it."""
        if self._usual is not None or request.version != HttpVersion11 or not request.keep_alive:
            return await self._as_usual().prepare(request)
        writer, body = request.writer, self.body
        head = self.head()
        self._is_written = True
        if len(body) <= JOINED_BYTES:
            await writer.write(head + body)
        else:
            await writer.write(head)
            await writer.write(body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """End it."""
        if self._usual is not None:
            await self._usual.write_eof(data)


def whole_bytes(response: web.Response) -> bytes:
    """Write an answer of aiohttp's that holds its body, for a connection that stays open."""
    body = response.body
    assert isinstance(body, bytes), "the answer is there"
    status = f"{response.status} {response.reason}"
    return written_head(status, response.headers, len(body)) + body


def written_head(status: str, headers: Mapping[str, str], length: int) -> bytes:
    """Write status line and headers."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    date = _date(int(time.time()))
    return f"HTTP/1.1 {status}\r\n{lines}Content-Length: {length}\r\nDate: {date}\r\n\r\n".encode()


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)
