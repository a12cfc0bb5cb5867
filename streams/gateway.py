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
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Self

from headrace.schemas.errors import Code, InferError, LogError, Reason, Unavailable
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import Header
from headrace.streams.announce import Announcer
from headrace.streams.async_calls import AsyncCalls
from headrace.streams.async_table import AsyncBounds
from headrace.streams.call_observer import Observer
from headrace.streams.call_values import CallValues
from headrace.streams.calls import Calls
from headrace.streams.claims import Claims
from headrace.streams.direct_call import DirectCalls
from headrace.streams.fleet import Fleet
from headrace.streams.idempotency import KeyedCall
from headrace.streams.listening import Listening, ensure_if_allowed
from headrace.streams.log import Log
from headrace.streams.model_view import Route
from headrace.streams.outbox import Outbox
from headrace.streams.pending import DEFAULT_MAX_PENDING
from headrace.streams.replies import Replies
from headrace.streams.status import DEFAULT_INTERVAL_MS, DEFAULT_TIMEOUT_MS, GatewayStatus
from headrace.streams.streamed import DEFAULT_MAX_STREAM_BYTES, Streamed
from headrace.streams.topology import Topology
from headrace.streams.watch import Clock, StatusWatch, wall_ms

logger = logging.getLogger(__name__)

DEFAULT_GATHER_MS = 15
"""Half of what a call takes where so many come that gathering pays."""

MAX_FIRST_TURN = 1 << 16
"""Gateways begin at different partitions, or several of them would send their bursts to the same one in step."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Bounds and names of one gateway.

    Attributes:
        gateway_id: Its name in the status topic; random where empty.
        max_pending: Calls that may be open at once.
        timeout_ms: How long a call waits that names no deadline of its own.
        gather_ms: Milliseconds that requests may gather to be produced together while many calls come; 0 is not at all.
        max_record_bytes: Largest value that is produced; not above the producer's ``max.request.size``.
        reply_partitions: Partitions of the replies topic that are claimed, as far as there are that many.
        interval_ms: Milliseconds between two status records.
        status_timeout_ms: Milliseconds after the last one at which other gateways take its reply partitions for free.
        strict_readiness: Ready needs every version of every model READY (SEMANTICS SV-02).
        max_stream_bytes: Bytes of responses that may wait for the reader of one stream; one that reads more slowly
            loses it. All streams together may hold 16 times that.
        later: Bounds of calls that are answered later (FAULTS B65).
    """

    gateway_id: str = ""
    max_pending: int = DEFAULT_MAX_PENDING
    timeout_ms: int = 60_000
    gather_ms: int = DEFAULT_GATHER_MS
    max_record_bytes: int = 1_000_000
    reply_partitions: int = 1
    interval_ms: int = DEFAULT_INTERVAL_MS
    status_timeout_ms: int = DEFAULT_TIMEOUT_MS
    strict_readiness: bool = True
    max_stream_bytes: int = DEFAULT_MAX_STREAM_BYTES
    later: AsyncBounds = AsyncBounds()  # noqa: RUF009  # frozen


class Gateway:
    """See the module's docstring. An async context manager; `is_ready` tells when calls may come.

    Attributes:
        settings: As given.
        gateway_id: Its name.
        fleet: What workers say.
        async_calls: Those that are answered later.
        direct: Those that are told of their end.
        is_leaving: It is not ready any more, though calls are still taken until it drains.
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
        self._log = log
        self._topology = topology
        self._observer = observer
        self._clock_ms = clock_ms
        self._calls = Calls(
            CallValues(claims, settings.max_record_bytes),
            cancels=topology.cancels,
            max_pending=settings.max_pending,
            timeout_ms=settings.timeout_ms,
            max_stream_bytes=settings.max_stream_bytes,
            clock_ms=clock_ms,
        )
        self.direct = DirectCalls(self._calls, observer)
        self.async_calls = AsyncCalls(log, topology, settings.later, self._calls, clock_ms)
        self._watch = StatusWatch(log, topology.status, clock_ms)
        self.fleet: Fleet = self._watch.fleet
        self._replies = Replies(
            log,
            topology.replies,
            self._watch,
            GatewayStatus(self.gateway_id, clock_ms(), timeout_ms=settings.status_timeout_ms),
            wanted=settings.reply_partitions,
            on_reply=self._calls.on_reply,
        )
        self._listening = Listening(self._watch, self._replies)
        self.is_leaving = False

    def __repr__(self) -> str:
        """Show what it holds."""
        return f"Gateway({self.gateway_id}, {self._calls}, {self.fleet})"

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
                publisher,
                self._group,
                first_turn=secrets.randbelow(MAX_FIRST_TURN),
                gather_s=self.settings.gather_ms / 1_000,
                open_calls=lambda: self._calls.open,
            )
            self._calls.attach(self._outbox, self._replies, self._listening)
            self.async_calls.attach(self._group)
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
        self.is_leaving = True
        self._calls.close()
        self.async_calls.close()
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
        return self._calls.open

    @property
    def late_replies(self) -> int:
        """Replies that came after their call had ended (FAULTS B63)."""
        return self._calls.late

    @property
    def foreign_replies(self) -> int:
        """Other gateways' replies that were read and dropped."""
        return self._calls.foreign

    @property
    def repeated_responses(self) -> int:
        """Responses of streams that came more than once, as after a takeover."""
        return self._calls.repeated

    @property
    def waiting_bytes(self) -> int:
        """Bytes of responses that wait for the readers of streams."""
        return self._calls.waiting_bytes

    @property
    def refused(self) -> Counter[Reason]:
        """Calls that ended before anything was produced, by reason."""
        return self._calls.refused

    @property
    def abandoned(self) -> int:
        """Calls whose caller went away, each cancelled by a record."""
        return self._calls.abandoned

    @property
    def is_draining(self) -> bool:
        """Whether new calls are refused for good."""
        return self._calls.is_draining

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
        self.is_leaving = self._calls.is_draining = True
        if self.open_calls:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._calls.drained()
            except TimeoutError:
                logger.warning("%d calls are still open after %s s", self.open_calls, timeout_s)
        return not self.open_calls

    def end_calls(self) -> None:
        """Answer what still waits for its reply with 503."""
        self._calls.end_all()

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
            response = await self._calls.ask(
                route, version, request, deadline_ms=deadline_ms, extra=extra, keyed=keyed
            )
            code = Code.OK
        except InferError as error:
            code = error.code
            raise
        finally:
            if self._observer is not None:
                self._observer.ended(model, code, loop.time() - started)
        return response

    async def stream(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        deadline_ms: int = 0,
        extra: tuple[Header, ...] = (),
        keyed: KeyedCall | None = None,
        empty_final: bool = False,
    ) -> AsyncGenerator[Streamed, None]:
        """Ask a model and yield its answers as they come: 0..n of a decoupled one, the one of any other.

        Close it (`contextlib.aclosing`) where you stop before its end: a call that is given up leaves a cancel record
        (SEMANTICS GR-05).

        Args:
            model: As of `infer`, and so are the others.
            version: Version number as text.
            request: Goes to the model.
            deadline_ms: Of the whole stream, ms since the epoch; 0 is the default wait.
            extra: Further record headers.
            keyed: Its idempotency key; the responses of a repeat are those of the first, and under a key all come
                together (DELIVERY P-17).
            empty_final: Yield a final response without outputs too, which only says that nothing follows.

        Yields:
            Responses in the order of the model, under the request's id.

        Raises:
            InferError: The stream ended with it; responses may have come before.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        route = self.route(model, version)
        code = Code.CANCELLED
        try:
            async with aclosing(
                self._calls.stream(
                    route, version, request, deadline_ms=deadline_ms, extra=extra, keyed=keyed
                )
            ) as responses:
                async for streamed in responses:
                    if streamed.final:
                        code = Code.OK
                    if streamed.response.outputs or empty_final or not streamed.final:
                        yield streamed
        except InferError as error:
            code = error.code
            raise
        finally:
            if self._observer is not None:
                self._observer.ended(model, code, loop.time() - started)
