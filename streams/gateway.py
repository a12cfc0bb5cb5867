"""The gateway: turns a call into a record, and the reply record into the call's answer.

A call's way: look its model up in the fleet → validate → open it in the pending table → produce its request with our
reply address → await the reply. Nothing that would surely be refused enters the log (FAULTS B53). A gateway keeps
nothing that another could not: what it knows it reads from the status topic, and its reply partitions are claimed
there (DESIGN §11). HTTP and gRPC live elsewhere; errors here are `InferError` and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from headrace.schemas.errors import Code, InferError, LogError, QueueFull, Reason, Unavailable
from headrace.schemas.headers import RequestOptions, find_header
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import CORRELATION_ID, Header, Record
from headrace.streams.announce import Announcer
from headrace.streams.call_observer import Observer
from headrace.streams.call_records import (
    expired,
    not_produced,
    request_record,
    time_left,
)
from headrace.streams.call_timer import CallTimer
from headrace.streams.call_values import CallValues, Reply
from headrace.streams.cancels import Cancel, cancel_record
from headrace.streams.claims import Claims
from headrace.streams.fleet import Fleet
from headrace.streams.idempotency import KeyedCall, KeyedFuture, reply_future
from headrace.streams.listening import Listening, ensure_if_allowed
from headrace.streams.log import Log
from headrace.streams.model_view import Route
from headrace.streams.outbox import Outbox
from headrace.streams.pending import DEFAULT_MAX_PENDING, Pending
from headrace.streams.replies import Replies
from headrace.streams.status import DEFAULT_INTERVAL_MS, GatewayStatus
from headrace.streams.topology import Topology
from headrace.streams.watch import Clock, StatusWatch, wall_ms

logger = logging.getLogger(__name__)

MAX_FIRST_TURN = 1 << 16
"""Gateways begin at different partitions, or several of them would send their bursts to the same one in step."""

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
"""The text of SEMANTICS SV-11."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Bounds and names of one gateway.

    Attributes:
        gateway_id: Its name in the status topic; random where empty.
        max_pending: Calls that may be open at once.
        timeout_ms: How long a call waits that names no deadline of its own.
        max_record_bytes: Largest value that is produced; not above the producer's ``max.request.size``.
        reply_partitions: Partitions of the replies topic that are claimed, as far as there are that many.
        interval_ms: Milliseconds between two status records.
        strict_readiness: Ready needs every version of every model READY (SEMANTICS SV-02).
    """

    gateway_id: str = ""
    max_pending: int = DEFAULT_MAX_PENDING
    timeout_ms: int = 60_000
    max_record_bytes: int = 1_000_000
    reply_partitions: int = 1
    interval_ms: int = DEFAULT_INTERVAL_MS
    strict_readiness: bool = True


class Gateway:
    """See the module's docstring. An async context manager; `is_ready` tells when calls may come.

    Attributes:
        settings: As given.
        gateway_id: Its name.
        fleet: What workers say.
        is_leaving: It is not ready any more, though calls are still taken until it drains.
        is_draining: New calls are refused for good.
        refused: Calls that ended before anything was produced, by reason.
        abandoned: Calls whose caller went away, each cancelled by a record.
    """

    def __init__(
        self,
        log: Log,
        topology: Topology,
        settings: GatewaySettings = GatewaySettings(),  # frozen
        *,
        observer: Observer | None = None,
        clock_ms: Clock = wall_ms,
        claims: Claims | None = None,
    ) -> None:
        """Keep the parts.

        ``log`` is open already, ``clock_ms`` is the wall clock in ms since the epoch, ``claims`` the store of values
        that no record can hold; without it such requests are refused.
        """
        self.settings = settings
        self.gateway_id = settings.gateway_id or f"gateway-{secrets.token_hex(4)}"
        self.refused: Counter[Reason] = Counter()
        self.abandoned = 0
        self._log = log
        self._topology = topology
        self._observer = observer
        self._clock_ms = clock_ms
        self._pending: Pending[asyncio.Future[Reply]] = Pending(max_pending=settings.max_pending)
        self._timer = CallTimer(self._pending, lambda future: _fail(future, expired()))
        self._values = CallValues(claims, settings.max_record_bytes)
        self._watch = StatusWatch(log, topology.status, clock_ms)
        self.fleet: Fleet = self._watch.fleet
        self._replies = Replies(
            log,
            topology.replies,
            self._watch,
            GatewayStatus(self.gateway_id, clock_ms(), interval_ms=settings.interval_ms),
            wanted=settings.reply_partitions,
            on_reply=self._on_reply,
        )
        self._listening = Listening(self._watch, self._replies)
        self.is_leaving = self.is_draining = False
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        """Show what it holds."""
        return f"Gateway({self.gateway_id}, {self._pending}, {self.fleet})"

    async def __aenter__(self) -> Self:
        """Connect the producer and start reading; not ready yet, see `wait_ready`.

        Raises:
            LogError: Brokers cannot be reached, or topics cannot be created (the sentence says which by hand).
        """
        async with AsyncExitStack() as stack:
            for warning in await ensure_if_allowed(self._log, self._topology.shared_specs()):
                logger.warning(warning)
            publisher = await stack.enter_async_context(self._log.publisher())
            self._announcer = Announcer(self._log, publisher, self._topology.status)
            self._group = await asyncio.TaskGroup().__aenter__()
            self._outbox = Outbox(
                publisher, self._group, first_turn=secrets.randbelow(MAX_FIRST_TURN)
            )
            self._loops = [
                self._group.create_task(self._watch.run()),
                self._group.create_task(self._replies.run(self._announcer)),
                self._group.create_task(
                    self._announcer.beat(
                        self.settings.interval_ms / 1_000,
                        self._replies.current_status,
                        lambda: self.fleet.forget(self._clock_ms()),
                    )
                ),
            ]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Answer what is open with 503, leave the status topic and close; drain first if you can."""
        self.is_leaving = self.is_draining = True
        self.end_calls()
        self._timer.cancel()
        for loop in self._loops:
            loop.cancel()
        try:
            await self._announcer.clear([self._replies.status.key])
        except LogError as error:
            logger.warning("the gateway's word stays in the status topic: %s", error)
        self._outbox.close()
        try:
            # Not told what the body raised: it would come out wrapped in a group. Our own tasks' errors still do.
            await self._group.__aexit__(None, None, None)
        finally:
            await self._stack.aclose()

    @property
    def open_calls(self) -> int:
        """Calls that wait for their reply, or for its value."""
        return len(self._pending) + self._values.fetching

    @property
    def late_replies(self) -> int:
        """Replies that came after their call had ended (FAULTS B63)."""
        return self._pending.late

    @property
    def foreign_replies(self) -> int:
        """Other gateways' replies that were read and dropped."""
        return self._pending.foreign

    @property
    def is_listening(self) -> bool:
        """Whether a call could be answered: the fleet is known and our read position on the replies too."""
        return self._listening.is_complete()

    def troubles(self) -> list[str]:
        """Return a sentence for each reason of the log's that keeps us from listening."""
        return [error.detail for error in self._listening.errors()]

    def is_ready(self) -> bool:
        """Whether this gateway and, as configured, the fleet are ready (SEMANTICS SV-02)."""
        return (
            self.is_listening
            and not self.is_leaving
            and self.fleet.is_ready(self._clock_ms(), strict=self.settings.strict_readiness)
        )

    async def wait_ready(self) -> None:
        """Wait until the gateway listens; whether the fleet is ready is another matter."""
        await self._watch.caught_up.wait()
        await self._replies.listening.wait()

    async def wait_started(self) -> None:
        """Wait until the gateway listens, or `troubles` says what an operator must do first."""
        await self._listening.wait_started()

    def route(self, model: str, version: str) -> Route:
        """Look up a ready model version; ``""`` is the highest one.

        Raises:
            InferError: As `Fleet.route`; `Unavailable` until the status topic has been read.
        """
        if not self._watch.caught_up.is_set():
            raise Unavailable(f"the gateway has not read topic {self._topology.status} yet")
        return self.fleet.route(model, version, self._clock_ms())

    def ready_versions(self, model: str) -> list[int]:
        """Return a model's READY versions, ascending; none where it is unknown."""
        view = self.fleet.view(model, self._clock_ms())
        return view.ready_versions if view is not None else []

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds, by which deadlines are written."""
        return self._clock_ms()

    def leave(self) -> None:
        """Be not ready from now on, so that nobody sends new calls; those that come are answered (FAULTS B69)."""
        self.is_leaving = True

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and wait for open ones (FAULTS B68); False when some are still open after that long."""
        self.is_leaving = self.is_draining = True
        if self.open_calls:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("%d calls are still open after %s s", self.open_calls, timeout_s)
        return not self.open_calls

    def end_calls(self) -> None:
        """Answer what still waits for its reply with 503."""
        for future in self._pending.close():
            _fail(future, Unavailable(STOPPING, reason=Reason.DRAINING))

    async def infer(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        deadline_ms: int = 0,
        extra: tuple[Header, ...] = (),
        keyed: KeyedCall | None = None,
    ) -> InferResponse:
        """Ask a model and await its answer.

        Args:
            model: Model name.
            version: Version number as text, ``""`` is the worker's highest ready one.
            request: Its own model name and version are not looked at.
            deadline_ms: Milliseconds since the epoch at which the caller gives up; 0 is the default wait.
            extra: Further record headers, such as the trace context.
            keyed: Its idempotency key; None where a repeat shall run again.

        Returns:
            The response, under the request's id (FAULTS R5).

        Raises:
            InferError: Of whatever kind the call ended with. A cancelled call leaves a cancel record.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        route = self.route(model, version)
        code = Code.CANCELLED
        try:
            response = await self._call(route, version, request, deadline_ms, extra, keyed)
            code = Code.OK
        except InferError as error:
            code = error.code
            raise
        finally:
            if self._observer is not None:
                self._observer.ended(model, code, loop.time() - started)
        return response

    async def _call(
        self,
        route: Route,
        version: str,
        request: InferRequest,
        deadline_ms: int,
        extra: tuple[Header, ...],
        keyed: KeyedCall | None,
    ) -> InferResponse:
        """Admit, produce and await; the call is closed on every way out."""
        model = route.signature.model_name
        try:
            self._admit(route, request)
            now_ms = self._clock_ms()
            left_ms = self.settings.timeout_ms
            if deadline_ms:
                left_ms = time_left(model, deadline_ms, now_ms)
            loop = asyncio.get_running_loop()
            future = reply_future(keyed)
            deadline_s = loop.time() + left_ms / 1_000
            correlation_id = self._pending.add(future, int(deadline_s * 1e9))
        except InferError as error:
            self.refused[error.reason] += 1
            raise
        token = load.opened() if (load := route.load(request.priority)) is not None else 0
        try:
            options = RequestOptions(
                deadline_ms=now_ms + left_ms,
                reply_topic=self._replies.topic,
                reply_partition=self._replies.next_partition(),
                correlation_id=correlation_id,
                idempotency_key=b"" if keyed is None else keyed.key,
                extra=extra,
            )
            make = partial(
                request_record, route, version, request, options, spread=self._outbox.turn
            )
            out = await self._values.request(model, request, make, deadline_s)
            self._timer.wake_at(deadline_s)
            self._outbox.send(out, lambda error: _fail(future, not_produced(model, error)))
            response = await self._values.response(await future, deadline_s)
        except asyncio.CancelledError:
            self._cancel(model, correlation_id)
            raise
        finally:
            self._pending.discard(correlation_id)
            if load is not None:
                load.closed(token)
            if self.is_draining and not self.open_calls:
                self._idle.set()
        return response if response.id == request.id else replace(response, id=request.id)

    def _admit(self, route: Route, request: InferRequest) -> None:
        """Refuse what would surely be refused behind the log (FAULTS B53, SEMANTICS QT-01).

        Raises:
            InferError: Why.
        """
        if self.is_draining:
            raise Unavailable(STOPPING, reason=Reason.DRAINING)
        if not self.is_listening:
            raise Unavailable(
                f"the gateway does not read its replies on topic {self._topology.replies} now"
            )
        self._values.check(route, request)
        load = route.load(request.priority)
        if load is not None and load.is_full:
            raise QueueFull(
                f"[request id: {request.id or '<id_unknown>'}] Exceeds maximum queue size"
            )

    def _cancel(self, model: str, correlation_id: bytes) -> None:
        """Tell the workers that nobody waits any more (SEMANTICS PB-49, CX-01)."""
        self.abandoned += 1
        cancel = Cancel(model, correlation_id)
        out = cancel_record(self._topology.cancels, 0, cancel)
        self._outbox.send(out, lambda error: logger.debug("a cancel was not written: %s", error))

    def _on_reply(self, record: Record) -> None:
        """Hand a reply to its call; others' are dropped by the header, undecoded (FAULTS B60)."""
        correlation_id = find_header(record.headers, CORRELATION_ID) or b""
        future = self._pending.take(correlation_id)
        if future is None or future.done():
            return
        if isinstance(future, KeyedFuture):
            future.hear(record.headers)
        try:
            future.set_result(self._values.reply(record))
        except InferError as error:
            future.set_exception(error)


def _fail(future: asyncio.Future[Reply], error: InferError) -> None:
    """End a call that has not ended yet."""
    if not future.done():
        future.set_exception(error)
