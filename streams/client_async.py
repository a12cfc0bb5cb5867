"""A client over Kafka: asks models by records, and reads results.

It is a gateway for one program (`headrace.streams.gateway`): it knows the fleet from the status topic, refuses what
would surely be refused before it enters the log, and reads its replies from a partition of ``<p>.replies`` that it
claims. More clients than partitions share them, and drop each other's replies unread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Self, Unpack

from headrace.schemas.errors import LogError, Unavailable
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, SequenceId
from headrace.streams.call_records import expired, not_produced
from headrace.streams.claims import Claims
from headrace.streams.client_results import Results
from headrace.streams.client_sequence import SequenceSteps
from headrace.streams.client_values import Answer, Inputs, Options, request_of
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.idempotency import KeyedCall, read_key
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import EARLIEST, LATEST, Log, Span
from headrace.streams.model_view import Route
from headrace.streams.topology import Topology

LISTEN_S = 20.0
"""Seconds until what workers say must have been read."""

DEFAULT_TIMEOUT_S = 60.0
"""Seconds that a call may take, unless it or the client says otherwise."""

DEFAULT_MAX_IN_FLIGHT = 256
"""Calls that may be open at once, unless configured; further ones wait for their turn."""


class Client:
    """Asks models over Kafka. An async context manager; one for a whole program, used by any number of tasks.

    Every failure of a call is a kind of `headrace.schemas.errors.InferError`: the worker's own, or `DeadlineExceeded`,
    `Unavailable` (such as a log that takes no record), or a refusal before anything was sent.

    Example:
        async with Client("127.0.0.1:9092") as client:
            answer = await client.infer("mlp", {"x": array})
            print(answer["y"])
    """

    def __init__(
        self,
        kafka: str | Mapping[str, str] | Log,
        *,
        prefix: str = "headrace",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        claims: Claims | None = None,
    ) -> None:
        """Keep where the brokers are, and the bounds.

        Args:
            kafka: ``host:port`` (commas between several), properties by Kafka's own names, or a log that is open
                already and stays so.
            prefix: Of Headrace's topics.
            timeout_s: Seconds that a call may take, its wait for a turn included.
            max_in_flight: Calls that may be open at once; further ones wait.
            claims: Store of values that no record can hold; without it they are refused.

        Raises:
            ConfigError: A property or the prefix is wrong.
        """
        if isinstance(kafka, str):
            kafka = {"bootstrap.servers": kafka}
        self._log: Log = KafkaLog(kafka) if isinstance(kafka, Mapping) else kafka
        self._is_own_log = isinstance(kafka, Mapping)
        self._topology = Topology(prefix=prefix)
        self._timeout_s = timeout_s
        self._max_in_flight = max_in_flight
        self._turns = asyncio.Semaphore(max_in_flight)
        self._claims = claims
        self._gateway: Gateway | None = None
        self._reading: set[Results] = set()
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        """Show the log and what is open."""
        state = "closed" if self._gateway is None else f"{self._gateway.open_calls} open"
        return f"Client({self._log}, {state})"

    async def __aenter__(self) -> Self:
        """Connect, claim where replies go, and read what workers say.

        Raises:
            LogError: No broker answers, or the topics of replies and status cannot be read (says what is missing).
        """
        async with AsyncExitStack() as stack:
            if self._is_own_log:
                await stack.enter_async_context(self._log)
            settings = GatewaySettings(
                gateway_id=f"client-{secrets.token_hex(4)}",
                max_pending=self._max_in_flight,
                timeout_ms=max(1, int(self._timeout_s * 1000)),
                max_record_bytes=self._log.max_record_bytes,
            )
            gateway = Gateway(self._log, self._topology, settings, claims=self._claims)
            await stack.enter_async_context(gateway)
            try:
                async with asyncio.timeout(LISTEN_S):
                    await gateway.wait_started()
            except TimeoutError as exc:
                why = "; ".join(["", *gateway.troubles()])
                raise LogError(
                    f"the status topic could not be read within {LISTEN_S:g} s{why}",
                    retriable=True,
                ) from exc
            if not gateway.is_listening:
                raise LogError("; ".join(gateway.troubles()), retriable=False)
            self._gateway = gateway
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End what is open with `Unavailable`, take our word back from the status topic and disconnect."""
        self._gateway = None
        for results in list(self._reading):
            await results.aclose()
        await self._stack.aclose()

    @property
    def late(self) -> int:
        """Replies that came after their call had ended, and were dropped (FAULTS B63)."""
        return 0 if self._gateway is None else self._gateway.late_replies

    def models(self) -> list[str]:
        """Return the names of the models that workers have announced, sorted."""
        return self._entered().fleet.models()

    def route(self, model: str, version: str = "") -> Route:
        """Look up where requests for a model go, and what they must look like.

        Raises:
            NotFound: No such model or version; the sentence lists the known ones.
            Unavailable: None is ready.
        """
        return self._entered().route(model, version)

    async def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Answer:
        """Ask a model and await its one answer.

        Args:
            model: Name.
            inputs: Arrays by input name.
            options: See `Options`.

        Raises:
            InferError: By its kind; `Unsupported` for a decoupled model, which `stream` asks.
        """
        route = self.route(model, options.get("version", ""))
        return await self.ask(model, request_of(route.signature, inputs, options), **options)

    async def ask(self, model: str, request: InferRequest, **options: Unpack[Options]) -> Answer:
        """Ask with a request that is made already; of the options, those that it says itself do not count.

        Raises:
            InferError: As `infer`.
        """
        gateway, keyed = self._entered(), read_key(options.get("key") or None)
        async with self._turn(options) as deadline_ms:
            response = await gateway.infer(
                model,
                options.get("version", ""),
                request,
                deadline_ms=deadline_ms,
                extra=tuple(options.get("headers", ())),
                keyed=keyed,
            )
        return Answer(response, is_replayed=_is_replayed(keyed))

    async def stream(
        self, model: str, inputs: Inputs, **options: Unpack[Options]
    ) -> AsyncGenerator[Answer, None]:
        """Ask a model and yield its answers as they come, until the final one: 0..n of a decoupled model.

        Close it (`contextlib.aclosing`) where you stop before its end: the worker then stops, too.

        Raises:
            InferError: The stream ended with it; answers may have come before.
        """
        route = self.route(model, options.get("version", ""))
        request = request_of(route.signature, inputs, options)
        async with aclosing(self.ask_many(model, request, **options)) as answers:
            async for answer in answers:
                yield answer

    async def ask_many(
        self, model: str, request: InferRequest, **options: Unpack[Options]
    ) -> AsyncGenerator[Answer, None]:
        """Stream with a request that is made already, as `ask` does.

        Raises:
            InferError: As `stream`.
        """
        gateway, keyed = self._entered(), read_key(options.get("key") or None)
        async with (
            self._turn(options) as deadline_ms,
            aclosing(
                gateway.stream(
                    model,
                    options.get("version", ""),
                    request,
                    deadline_ms=deadline_ms,
                    extra=tuple(options.get("headers", ())),
                    keyed=keyed,
                )
            ) as responses,
        ):
            async for response, final in responses:
                yield Answer(response, final=final, is_replayed=_is_replayed(keyed))

    async def send(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> None:
        """Write a request whose answer goes to the model's results topic; returns once the log has it.

        Its ``timeout_s``, if given, is also how long the request may wait for the model.

        Raises:
            InferError: It was refused, or the log did not take it in time.
        """
        gateway = self._entered()
        calls, version = gateway.async_calls.calls, options.get("version", "")
        route = self.route(model, version)
        request = request_of(route.signature, inputs, options)
        keyed = read_key(options.get("key") or None)
        async with self._turn(options) as deadline_ms:
            calls.admit(route, request, many=True)
            record = RequestOptions(
                deadline_ms=deadline_ms if "timeout_s" in options else 0,
                idempotency_key=b"" if keyed is None else keyed.key,
                extra=tuple(options.get("headers", ())),
            )
            left_s = (deadline_ms - gateway.now_ms()) / 1000
            deadline_s = asyncio.get_running_loop().time() + left_s
            out = await calls.written(route, version, request, record, deadline_s)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await calls.deliver(out)
            except LogError as error:
                raise not_produced(model, error) from error
            except TimeoutError as error:
                raise expired() from error

    def sequence(
        self, model: str, sequence_id: SequenceId = 0, *, version: str = ""
    ) -> SequenceSteps:
        """Return a sequence to step through in an ``async with`` block: START and END are said by themselves.

        Args:
            model: A model with ``sequence_batching``.
            sequence_id: Its id; 0 makes one.
            version: Of all steps.
        """
        return SequenceSteps(self, model, sequence_id, version)

    def results(
        self,
        model: str = "",
        *,
        topic: str = "",
        from_beginning: bool = False,
        to_end: bool = False,
    ) -> Results:
        """Return the results of a model, or of any topic, to iterate over with ``async for``; duplicates are dropped.

        It joins no group and commits nothing. What comes is what is committed: nothing of aborted transactions.

        Args:
            model: Whose results topic is read, where ``topic`` does not say one.
            topic: Of results or replies.
            from_beginning: Read what is there already, too; else what comes from the first step on.
            to_end: Stop at the end as it is then.
        """
        gateway = self._entered()
        if not topic:
            self.route(model)
            newest = gateway.fleet.workers(model, gateway.now_ms())
            topic = newest[-1].results_topic if newest else self._topology.results(model)
        calls = gateway.async_calls.calls
        span = Span(EARLIEST if from_beginning else LATEST, LATEST if to_end else None)
        return Results(self._log, topic, span, calls.response_of, self._reading)

    def _entered(self) -> Gateway:
        if self._gateway is None:
            raise Unavailable("the client is not open, expected a call inside its `with` block")
        return self._gateway

    @asynccontextmanager
    async def _turn(self, options: Options) -> AsyncIterator[int]:
        """Wait until one more call may be open; yields when it has to end, ms since the epoch."""
        timeout_s = options.get("timeout_s", self._timeout_s)
        deadline_ms = self._entered().now_ms() + max(1, int(timeout_s * 1000))
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            raise expired() from None
        try:
            yield deadline_ms
        finally:
            self._turns.release()


def _is_replayed(keyed: KeyedCall | None) -> bool:
    return keyed is not None and keyed.is_replayed
