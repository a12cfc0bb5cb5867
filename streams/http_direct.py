"""Infer calls of the usual form over HTTP, answered without a task and a request object of their own.

Usual is what clients send all the time: HTTP/1.1 that stays open, a body that has come as a whole, no header that asks
for more than the answer. Everything else is left to the usual way (`headrace.streams.http`), also whatever is refused
before it is produced, so that errors are said in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import lru_cache

from aiohttp import HttpVersion11, StreamReader
from aiohttp.http_parser import RawRequestMessage
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.shared_span import REGION
from headrace.schemas.v2json import Binary, parse_request, wants_binary
from headrace.streams.access import Access
from headrace.streams.direct_call import DirectCall
from headrace.streams.extensions import Extensions
from headrace.streams.gateway import Gateway
from headrace.streams.http_call import HttpSettings, accepted
from headrace.streams.http_connections import Send
from headrace.streams.http_errors import internal_error, refusal
from headrace.streams.http_infer import (
    LENGTH_HEADER,
    OFF_LOOP_JSON_BYTES,
    answer_encoding,
    is_quick,
    read_header_length,
    written_answer,
)
from headrace.streams.http_routes import GROUPS, Kind, resolve
from headrace.streams.http_whole import WholeResponse, whole_bytes
from headrace.streams.model_view import Route

logger = logging.getLogger(__name__)

UNUSUAL = frozenset(
    (
        b"content-encoding",
        b"expect",
        b"idempotency-key",
        b"prefer",
        b"traceparent",
        b"transfer-encoding",
        b"x-headrace-reply-topic",
        b"x-headrace-timeout-ms",
    )
)
"""Headers that ask for more than an answer."""

MAX_REMEMBERED = 256
"""Sets of header names that are known to be usual or not: a client's are all alike."""

_REGION = REGION.encode()


class DirectInfer:
    """Begins them; see the module's docstring."""

    def __init__(
        self,
        gateway: Gateway,
        settings: HttpSettings,
        extensions: Extensions,
        access: Access | None,
    ) -> None:
        """Keep the parts, which are those of `headrace.streams.http.HttpServer`."""
        self._gateway = gateway
        self._settings = settings
        self._extensions = extensions
        self._access = access

    def begin(
        self, message: RawRequestMessage, payload: StreamReader, send: Send
    ) -> DirectCall | None:
        """Begin a call; None where the usual way has to answer it, which finds its body untouched.

        Args:
            message: What stands before the body.
            payload: The body.
            send: Called once with the answer, unless the call is cancelled.
        """
        if (
            message.method != "POST"
            or message.version != HttpVersion11
            or message.should_close
            or message.upgrade
            or type(payload) is not StreamReader  # none, or an empty one of another type
            or not payload.is_eof()
            or not _is_usual(tuple([name for name, _ in message.raw_headers]))
        ):
            return None
        target = resolve(message.path)
        if target is None or target.kind is not Kind.INFER or not self._extensions.traces.is_idle:
            return None
        chunks = payload._buffer  # noqa: SLF001  # looked at, not taken: the usual way may want it
        if len(chunks) != 1:
            return None
        try:
            if self._access is not None:
                self._access.check(GROUPS[target.kind], message.headers.get)
            route = self._gateway.route(target.model, target.version)
            asked = self._read(message.headers, chunks[0], route)
            if asked is None:
                return None
            answer = _Answer(wants_binary(asked), answer_encoding(message.headers), send)
            version = str(int(target.version)) if target.version else ""
            begun = self._gateway.direct.begin(route, version, asked, answer.ended)
        except Exception:  # noqa: BLE001  # the usual way meets it too, and says so; a bug is a 500 there, and logged
            return None
        if begun is not None:
            payload.read_nowait()  # it is held up by nobody any more
        return begun

    def _read(self, headers: Mapping[str, str], body: bytes, route: Route) -> InferRequest | None:
        """Read a request; None where that takes long, or what is in shared memory."""
        header_length = read_header_length(headers.get(LENGTH_HEADER))
        json_length = len(body) if header_length is None else header_length
        if (
            len(body) > self._settings.max_input_bytes
            or json_length >= OFF_LOOP_JSON_BYTES
            or body.find(_REGION, 0, json_length) >= 0
        ):
            return None
        asked = parse_request(body, header_length, route.signature)
        return accepted(asked, self._settings, headers)


class _Answer:
    """Writes what a call ends with."""

    __slots__ = ("_encoding", "_is_binary", "_send", "_writing")

    def __init__(self, is_binary: Binary, encoding: str, send: Send) -> None:
        self._is_binary = is_binary
        self._encoding = encoding
        self._send = send
        self._writing: asyncio.Task[None] | None = None

    def ended(self, outcome: InferResponse | InferError) -> None:
        if isinstance(outcome, InferError):
            self._refuse(outcome)
        elif is_quick(outcome, self._is_binary, self._encoding):
            try:
                written = written_answer(outcome, self._is_binary, self._encoding)
            except Exception as error:  # noqa: BLE001  # each has an answer
                self._refuse(error)
            else:
                self._send(written.head(), written.body)
        else:
            self._writing = asyncio.create_task(self._write(outcome))

    async def _write(self, response: InferResponse) -> None:
        """Write a large answer beside the event loop."""
        try:
            written: WholeResponse = await asyncio.to_thread(
                written_answer, response, self._is_binary, self._encoding
            )
        except Exception as error:  # noqa: BLE001  # each has an answer
            self._refuse(error)
        else:
            self._send(written.head(), written.body)

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, InferError):  # as on the usual way
            logger.error("an answer could not be written", exc_info=error)
            self._send(whole_bytes(internal_error()), b"")
            return
        self._send(whole_bytes(refusal(error)), b"")


@lru_cache(maxsize=MAX_REMEMBERED)
def _is_usual(names: tuple[bytes, ...]) -> bool:
    return UNUSUAL.isdisjoint([name.lower() for name in names])
