"""The open calls of a gateway: admitted, produced, awaited, closed; with one answer each, or with 0..n that stream.

Both kinds share everything but what they wait for: a call of one answer a future, one that streams a
`headrace.streams.streamed.ReplyStream`, which stays in the table of pending calls until its reader has had the final
response. A call whose caller goes away leaves a cancel record (SEMANTICS PB-49, GR-05, CX-01).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial

from headrace.schemas.errors import InferError, QueueFull, Reason, Unavailable
from headrace.schemas.headers import RequestOptions, find_header
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import CORRELATION_ID, STATUS, Header, Out, Record
from headrace.streams.call_records import (
    expired,
    not_produced,
    refuse_decoupled,
    refuse_mapped,
    request_record,
    time_left,
)
from headrace.streams.call_timer import CallTimer
from headrace.streams.call_values import CallValues, Reply
from headrace.streams.cancels import Cancel, cancel_record
from headrace.streams.idempotency import KeyedCall, KeyedFuture, reply_future
from headrace.streams.listening import Listening
from headrace.streams.model_view import Route
from headrace.streams.open_call import STOPPING, Call, DirectSlot, Slot
from headrace.streams.outbox import Outbox
from headrace.streams.pending import Pending
from headrace.streams.replies import Replies
from headrace.streams.streamed import ReplyStream, Streamed, StreamRoom, place_of
from headrace.streams.watch import Clock

logger = logging.getLogger(__name__)


class Calls:
    """See the module's docstring.

    Attributes:
        is_draining: New calls are refused for good.
        refused: Calls that ended before anything was produced, by reason.
        abandoned: Calls whose caller went away, each cancelled by a record.
        repeated: Responses of streams that came more than once, as after a takeover.
    """

    def __init__(
        self,
        values: CallValues,
        *,
        cancels: str,
        max_pending: int,
        timeout_ms: int,
        max_stream_bytes: int,
        clock_ms: Clock,
    ) -> None:
        """Keep the parts.

        Args:
            values: Checks, stores and fetches what calls carry.
            cancels: Topic of cancel records.
            max_pending: Calls that may be open at once.
            timeout_ms: How long a call waits that names no deadline of its own.
            max_stream_bytes: Bytes of responses that may wait for the reader of one stream.
            clock_ms: Wall clock, ms since the epoch.
        """
        self.refused: Counter[Reason] = Counter()
        self.abandoned = 0
        self.repeated = 0
        self.is_draining = False
        self._values = values
        self._cancels = cancels
        self._timeout_ms = timeout_ms
        self._clock_ms = clock_ms
        self._pending: Pending[Slot] = Pending(max_pending=max_pending)
        self._timer = CallTimer(self._pending, lambda slot: _fail(slot, expired()))
        self._room = StreamRoom(max_stream_bytes)
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        """Show the numbers."""
        return repr(self._pending)

    def attach(self, outbox: Outbox, replies: Replies, listening: Listening) -> None:
        """Bring what produces requests, where their replies shall go, and whether these would be heard."""
        self._outbox = outbox
        self._replies = replies
        self._listening = listening

    @property
    def open(self) -> int:
        """Calls that wait for their reply, or for its value."""
        return len(self._pending) + self._values.fetching

    @property
    def late(self) -> int:
        """Replies that came after their call had ended (FAULTS B63)."""
        return self._pending.late

    @property
    def foreign(self) -> int:
        """Other gateways' replies that were read and dropped."""
        return self._pending.foreign

    @property
    def waiting_bytes(self) -> int:
        """Bytes of responses that wait for the readers of streams."""
        return self._room.used

    async def drained(self) -> None:
        """Wait until no call is open any more; after new ones are refused."""
        if self.open:
            await self._idle.wait()

    def end_all(self) -> None:
        """Answer what still waits for its reply with 503."""
        for slot in self._pending.close():
            _fail(slot, Unavailable(STOPPING, reason=Reason.DRAINING))

    def close(self) -> None:
        """Answer what is open, and watch no deadline any more."""
        self.is_draining = True
        self.end_all()
        self._timer.cancel()

    async def ask(
        self,
        route: Route,
        version: str,
        request: InferRequest,
        *,
        deadline_ms: int,
        extra: tuple[Header, ...],
        keyed: KeyedCall | None,
    ) -> InferResponse:
        """Ask for the one answer; see `headrace.streams.gateway.Gateway.infer`."""
        future = reply_future(keyed)
        call = self._open(route, request, deadline_ms, future, many=False)
        key = b"" if keyed is None else keyed.key
        try:
            await self._send(call, route, version, request, (extra, key), future)
            response = await self._values.response(await future, call.deadline_s)
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        finally:
            self.end(call)
        return response if response.id == request.id else response._replace(id=request.id)

    async def stream(
        self,
        route: Route,
        version: str,
        request: InferRequest,
        *,
        deadline_ms: int,
        extra: tuple[Header, ...],
        keyed: KeyedCall | None,
    ) -> AsyncGenerator[Streamed, None]:
        """Ask for 0..n answers; see `headrace.streams.gateway.Gateway.stream`. An empty final one is yielded too."""
        hear = None if keyed is None else keyed.hear
        replies: ReplyStream[Reply] = ReplyStream(self._room, hear)
        call = self._open(route, request, deadline_ms, replies, many=True)
        is_over = False
        try:
            key = b"" if keyed is None else keyed.key
            await self._send(call, route, version, request, (extra, key), replies)
            while not is_over:
                reply, is_over = await replies.next()
                response = await self._values.response(reply, call.deadline_s)
                if response.id != request.id:
                    response = response._replace(id=request.id)
                yield Streamed(response, is_over)
        except InferError as error:
            is_over = error.reason is not Reason.SLOW_READER
            raise
        finally:
            if not is_over:
                self.abandon(call)
            self.repeated += replies.repeated
            replies.close()
            self.end(call)

    def _open(
        self, route: Route, request: InferRequest, deadline_ms: int, slot: Slot, *, many: bool
    ) -> Call:
        """Admit a call; whoever opens one closes it.

        Raises:
            InferError: Why not, counted.
        """
        try:
            return self._opened(route, request, deadline_ms, slot, many=many)
        except InferError as error:
            self.refused[error.reason] += 1
            raise

    def _opened(
        self, route: Route, request: InferRequest, deadline_ms: int, slot: Slot, *, many: bool
    ) -> Call:
        model = route.signature.model_name
        self.admit(route, request, many=many)
        now_ms = self._clock_ms()
        left_ms = self._timeout_ms
        if deadline_ms:
            left_ms = time_left(model, deadline_ms, now_ms)
        deadline_s = asyncio.get_running_loop().time() + left_ms / 1_000
        correlation_id = self._pending.add(slot, int(deadline_s * 1e9), stays=many)
        load = route.load(request.priority)
        token = load.opened() if load is not None else 0
        return Call(model, correlation_id, now_ms + left_ms, deadline_s, load, token)

    def begin(self, route: Route, version: str, request: InferRequest, slot: DirectSlot) -> bool:
        """Open a call of one answer and produce it, without a wait; False where that takes one. `end` follows.

        Raises:
            InferError: Why it is refused, not counted: whoever asks again with `ask` is.
        """
        call = self._opened(route, request, 0, slot, many=False)
        options = self._options(call, (), b"")
        make = partial(request_record, route, version, request, options, spread=self._outbox.turn)
        out = None
        try:
            out = self._values.request_now(call.model, request, make)
        finally:
            if out is None:
                self.end(call)
        if out is None:
            return False
        slot.call = call
        self._produce(call, out, slot)
        return True

    def admit(self, route: Route, request: InferRequest, *, many: bool) -> None:
        """Refuse what would surely be refused behind the log (FAULTS B53, SEMANTICS QT-01).

        Raises:
            InferError: Why.
        """
        if self.is_draining:
            raise Unavailable(STOPPING, reason=Reason.DRAINING)
        if not self._listening.is_complete():
            raise Unavailable(
                f"the gateway does not read its replies on topic {self._replies.topic} now"
            )
        if route.mapped:
            refuse_mapped(route)
        if route.config.decoupled and not many:
            refuse_decoupled(route)
        self._values.check(route, request)
        load = route.load(request.priority)
        if load is not None and load.is_full:
            raise QueueFull(
                f"[request id: {request.id or '<id_unknown>'}] Exceeds maximum queue size"
            )

    async def _send(
        self,
        call: Call,
        route: Route,
        version: str,
        request: InferRequest,
        more: tuple[tuple[Header, ...], bytes],
        slot: Slot,
    ) -> None:
        """Produce a call's request; ``more`` are further headers, and the idempotency key."""
        options = self._options(call, *more)
        out = await self.written(route, version, request, options, call.deadline_s)
        self._produce(call, out, slot)

    def _options(self, call: Call, extra: tuple[Header, ...], key: bytes) -> RequestOptions:
        replies = self._replies
        # By place, as of each call there is one.
        return RequestOptions(
            "",
            call.deadline_ms,
            replies.topic,
            replies.next_partition(),
            call.correlation_id,
            key,
            extra,
        )

    def _produce(self, call: Call, out: Out, slot: Slot) -> None:
        model = call.model
        self._timer.wake_at(call.deadline_s)
        self._outbox.send(out, lambda error: _fail(slot, not_produced(model, error)))

    async def written(
        self,
        route: Route,
        version: str,
        request: InferRequest,
        options: RequestOptions,
        deadline_s: float,
    ) -> Out:
        """Write the record of an admitted request; a value that is too large for one is stored before.

        Raises:
            InferError: It cannot be written or stored, or not until ``deadline_s`` by the loop's clock.
        """
        make = partial(request_record, route, version, request, options, spread=self._outbox.turn)
        return await self._values.request(route.signature.model_name, request, make, deadline_s)

    async def fetched(self, call: Call, reply: Reply) -> InferResponse:
        """Return a call's response, its value from the store where it is there; `InferError` if it cannot be had."""
        return await self._values.response(reply, call.deadline_s)

    async def deliver(self, out: Out) -> None:
        """Produce a record and wait for its acknowledgement; `LogError` if there is none."""
        await self._outbox.deliver(out)

    async def response_of(self, record: Record) -> InferResponse:
        """Read a reply that no open call waits for.

        Raises:
            InferError: It is an error, or cannot be read or fetched.
        """
        deadline_s = asyncio.get_running_loop().time() + self._timeout_ms / 1_000
        return await self._values.response(self._values.reply(record), deadline_s)

    def end(self, call: Call) -> None:
        """Close a call; it may have ended before."""
        self._pending.discard(call.correlation_id)
        if call.load is not None:
            call.load.closed(call.token)
        if self.is_draining and not self.open:
            self._idle.set()

    def abandon(self, call: Call) -> None:
        """Tell the workers that nobody waits any more (SEMANTICS PB-49, GR-05, CX-01)."""
        self.abandoned += 1
        self.cancel(call.model, call.correlation_id)

    def cancel(self, model: str, correlation_id: bytes) -> None:
        """Ask the workers to drop a request that waits in a queue."""
        out = cancel_record(self._cancels, 0, Cancel(model, correlation_id))
        self._outbox.send(out, lambda error: logger.debug("a cancel was not written: %s", error))

    def on_reply(self, record: Record) -> None:
        """Hand a reply to its call; others' are dropped by the header, undecoded (FAULTS B60)."""
        correlation_id = find_header(record.headers, CORRELATION_ID) or b""
        slot = self._pending.take(correlation_id)
        if slot is None or slot.done():
            return
        if isinstance(slot, ReplyStream):
            self._on_response(slot, record)
            return
        if isinstance(slot, KeyedFuture):
            slot.hear(record.headers)
        try:
            reply = self._values.reply(record)
        except InferError as error:
            slot.set_exception(error)
        else:
            slot.set_result(reply)

    def _on_response(self, stream: ReplyStream[Reply], record: Record) -> None:
        """Hand one of many replies on; those that come once more are dropped undecoded. An error is the last."""
        if stream.hear_headers is not None:
            stream.hear_headers(record.headers)
        place = place_of(record.headers)
        is_error = (find_header(record.headers, STATUS) or b"OK") != b"OK"
        if not is_error and not stream.is_wanted(place):
            return
        try:
            stream.hear(self._values.reply(record), place, len(record.value or b""))
        except InferError as error:
            stream.set_exception(error)


def _fail(slot: Slot, error: InferError) -> None:
    """End a call that has not ended yet."""
    if not slot.done():
        slot.set_exception(error)
