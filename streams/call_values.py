"""The values of calls: in their records, or where they are too large for one in the claim-check store (B57, B95)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from headrace.schemas.claim_check import ResolvedRecord, write_claim
from headrace.schemas.headers import find_header
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import CLAIM_CHECK, Out, Record
from headrace.streams.call_records import check_request, check_size, expired, read_answer
from headrace.streams.claims import Claims
from headrace.streams.model_view import Route

Reply: TypeAlias = InferResponse | Record
"""What a call waits for; a record where its value is still in the store."""


class CallValues:
    """Checks the size of requests, stores large ones before they are produced, and fetches large answers.

    A call of a sequence that comes behind a large one of the same sequence waits for it: they reach the log in the
    order in which they came (DELIVERY P-18).

    Attributes:
        fetching: Calls whose answer is being fetched.
    """

    def __init__(self, claims: Claims | None, max_record_bytes: int) -> None:
        """Keep the store, and the bytes that a record's value may have."""
        self.fetching = 0
        self._claims = claims
        self._max_record_bytes = max_record_bytes
        self._above = max_record_bytes if claims is None else claims.bounds.above
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def check(self, route: Route, request: InferRequest) -> None:
        """Refuse what the worker would refuse, or no record nor the store can hold.

        Raises:
            InferError: Why.
        """
        if self._claims is None:
            check_request(route, request, self._max_record_bytes)
        else:
            limit = self._claims.bounds.max_bytes
            check_request(route, request, limit, "--claim-check-max-bytes")

    async def request(
        self, model: str, request: InferRequest, make: Callable[[], Out], deadline_s: float
    ) -> Out:
        """Return a call's record, with a claim where its value is too large; suspends only if it must.

        Args:
            model: Whose request it is.
            request: Of the call.
            make: Writes its record.
            deadline_s: When its caller gives up, by the loop's clock.

        Raises:
            InferError: It cannot be written or stored, or not in time.
        """
        out = self.request_now(model, request, make)
        if out is not None:
            return out
        try:
            async with asyncio.timeout_at(deadline_s), self._turn(_line(model, request)):
                out = await asyncio.to_thread(make) if self._is_large(request) else make()
                await self._store(model, out)
                return out
        except TimeoutError:
            raise expired() from None

    def request_now(
        self, model: str, request: InferRequest, make: Callable[[], Out]
    ) -> Out | None:
        """Return a call's record; None where its value has to be stored, or it waits for one that is.

        Raises:
            InferError: It cannot be written.
        """
        if self._is_large(request) or (self._turns and _line(model, request) in self._turns):
            return None
        out = make()
        return out if len(out.value or b"") <= self._above else None

    def _is_large(self, request: InferRequest) -> bool:
        return sum([len(tensor.data) for tensor in request.inputs]) > self._above

    async def _store(self, model: str, out: Out) -> None:
        value = out.value or b""
        if len(value) <= self._above:
            return
        if self._claims is None:
            check_size(model, len(value), self._max_record_bytes)
            return
        claim = await self._claims.put(value)
        out.value, out.headers = b"", [*out.headers, (CLAIM_CHECK, write_claim(claim))]

    def reply(self, record: Record) -> Reply:
        """Read a reply, or leave it as it is where its value is in the store.

        Raises:
            InferError: The worker's own error, or the reply cannot be read.
        """
        if (
            self._claims is None
            or record.value
            or find_header(record.headers, CLAIM_CHECK) is None
        ):
            return read_answer(record)
        return record

    async def response(self, reply: Reply, deadline_s: float) -> InferResponse:
        """Return a reply's response, fetched where it has to be.

        Raises:
            InferError: It cannot be fetched or read, or not in time.
        """
        if isinstance(reply, InferResponse):
            return reply
        assert self._claims is not None
        self.fetching += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                value = await self._claims.value_of(reply)
                return await asyncio.to_thread(read_answer, ResolvedRecord(reply, value or b""))
        except TimeoutError:
            raise expired() from None
        finally:
            self.fetching -= 1

    @asynccontextmanager
    async def _turn(self, line: str) -> AsyncIterator[None]:
        """Wait for the calls of the same sequence that came before."""
        if not line:
            yield
            return
        lock, count = self._turns.get(line) or (asyncio.Lock(), 0)
        self._turns[line] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._turns.pop(line)
            if count > 1:
                self._turns[line] = (lock, count - 1)


def _line(model: str, request: InferRequest) -> str:
    """Return what names a request's sequence, ``""`` without one."""
    if not request.sequence_id:
        return ""
    return f"{model} {type(request.sequence_id).__name__} {request.sequence_id}"
