"""`ModelStreamInfer`: many requests and their responses on one stream (SEMANTICS GR-02, GR-03, GR-05).

One coroutine reads, one writes, and each request has a task of its own, so requests are served side by side. Tasks
start in the order in which requests came and produce before they wait, so the steps of a sequence reach the log in that
order. As Triton does, responses of normal models are written in the order of their requests, those of decoupled models
as they come.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, aclosing
from typing import Any, TypeAlias

import grpc.aio
from headrace.schemas.errors import (
    BackendError,
    InferError,
    InvalidRequest,
    Reason,
    Unavailable,
)
from headrace.streams.grpc_call import (
    KEY,
    Context,
    GrpcPart,
    deadline_ms,
    parsed,
    read_metadata,
    texts,
)
from headrace.streams.grpc_convert import stream_error, stream_response
from headrace.streams.grpc_infer import Asked, read_request, response_bytes
from headrace.streams.open_call import STOPPING
from headrace.streams.shared_memory import SharedTargets
from headrace.streams.trace_settings import Trace
from tritonclient.grpc import service_pb2

logger = logging.getLogger(__name__)

REAL_STATUS = ("triton_grpc_error", "true")
"""Metadata by which a client asks that an error ends the stream with its own status (SEMANTICS GR-02)."""

Said: TypeAlias = bytes | InferError | None
"""What the writer is told: a message, the error that ends the stream, or that all is said."""

Turn: TypeAlias = "asyncio.Task[None] | None"
"""The request whose response must be written before; None for the first."""


async def model_stream_infer(part: GrpcPart, context: Context) -> None:
    """Answer one stream until its client has said and heard everything.

    Raises:
        InferError: The stream shall end with this error's status.
        grpc.aio.InternalError: Its client has gone.
    """
    stream = _Stream(part, context)
    part.endings.add(stream.end)
    try:
        await stream.run()
    finally:
        part.endings.discard(stream.end)


class _Stream:
    """One stream. Its requests are bounded by ``max_stream_requests``, and so is what waits to be written."""

    def __init__(self, part: GrpcPart, context: Context) -> None:
        """Read what its metadata say.

        Raises:
            InvalidRequest: Something of it counts for single calls only.
        """
        metadata = context.invocation_metadata()
        self._part = part
        self._gateway = part.gateway
        self._context = context
        self._has_real_status = REAL_STATUS in tuple(metadata or ())
        said = read_metadata(metadata)
        if said.keyed is not None:
            raise InvalidRequest(
                f"metadata '{KEY}' counts for one request, expected none on a stream, which has any number",
                reason=Reason.INVALID_HEADER,
            )
        self._trace = said.trace
        self._forwarding = part.settings.forwarding
        self._metadata = texts(metadata) if self._forwarding is not None else []
        self._deadline_ms = deadline_ms(part.gateway, context)
        self._slots = asyncio.Semaphore(part.settings.max_stream_requests)
        self._said: asyncio.Queue[Said] = asyncio.Queue(part.settings.max_stream_requests)
        self._open: set[asyncio.Task[None]] = set()
        self._ending = asyncio.get_running_loop().create_future()
        self._writes_since = 0.0  # by the loop's clock; 0 while nothing is written
        self._is_unread = False

    def end(self) -> None:
        """Read no more: the server stops. What is open is answered first."""
        if not self._ending.done():
            self._ending.set_result(None)

    async def run(self) -> None:
        """Write what is to be said, until all is said or an error ends the stream.

        Raises:
            InferError: The one that ends it.
            grpc.aio.InternalError: Its client has gone.
        """
        failure: Exception | None = None
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(group))
            self._look(listening)
            try:
                while (said := await self._said.get()) is not None:
                    if isinstance(said, InferError):
                        failure = said
                        break
                    self._writes_since = clock()
                    await self._context.write(said)
                    self._writes_since = 0.0
                    if self._is_unread:
                        failure = self._unread()
                        break
            except grpc.aio.InternalError as error:
                failure = error
            finally:
                self._looking.cancel()
            self._cancel(listening)
        if failure is not None:
            raise failure

    def _look(self, listening: asyncio.Task[None]) -> None:
        """Let go of all that waits for a client which takes nothing in; looks again by itself where it does.

        The write goes on: gRPC takes neither a status nor an end before it has ended.
        """
        loop = asyncio.get_running_loop()
        left_s = self._part.settings.write_timeout_s
        if self._writes_since:
            left_s += self._writes_since - loop.time()
        if left_s > 0:
            self._looking = loop.call_later(left_s, self._look, listening)
            return
        self._is_unread = True
        self._cancel(listening)
        while not self._said.empty():
            self._said.get_nowait()

    def _cancel(self, listening: asyncio.Task[None]) -> None:
        for task in (listening, *self._open):
            task.cancel()

    def _unread(self) -> Unavailable:
        return Unavailable(
            f"nothing of this stream was read for {self._part.settings.write_timeout_s} s, expected that its responses "
            "are: the stream has ended",
            reason=Reason.SLOW_READER,
        )

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        """Read until the client or the server ends it, and say so once every request has been answered."""
        reading = group.create_task(self._read(group))
        try:
            await asyncio.wait((reading, self._ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
        end = None if reading.done() else Unavailable(STOPPING, reason=Reason.DRAINING)
        while self._open:
            await asyncio.wait(self._open)
        await self._said.put(end)

    async def _read(self, group: asyncio.TaskGroup) -> None:
        turn: Turn = None
        while (value := await self._context.read()) is not grpc.aio.EOF:
            await self._slots.acquire()
            message = service_pb2.ModelInferRequest()
            asked: Asked | InferError
            try:
                message = parsed(service_pb2.ModelInferRequest, value)
                asked = await read_request(self._part, message, len(value))
                if self._forwarding is not None:
                    request = self._forwarding.apply(asked.request, self._metadata)
                    asked = asked._replace(request=request)
            except InferError as error:
                asked = error
            task = group.create_task(self._serve(message, asked, turn))
            if isinstance(asked, InferError) or not asked.is_decoupled:
                turn = task
            self._open.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._slots.release()

    async def _serve(self, message: Any, asked: Asked | InferError, turn: Turn) -> None:
        """Answer one request; whatever goes wrong with it is said on the stream (GR-02)."""
        try:
            if isinstance(asked, InferError):
                raise asked  # noqa: TRY301  # one way out for all errors
            if asked.is_decoupled:
                await self._serve_decoupled(asked)
                return
            with self._shared(asked) as shared, self._traced(asked) as trace:
                response = await self._gateway.infer(
                    asked.model,
                    asked.version,
                    asked.request,
                    deadline_ms=self._deadline_ms,
                    extra=self._trace,
                )
                trace.version = response.model_version
                said = await response_bytes(response, shared)
            await self._say(stream_response(said, final=True), turn)
        except InferError as error:
            await self._say_error(message, error, turn)
        except (
            Exception
        ):  # the edge: a bug of ours is this request's error, and a trace in the log
            logger.exception("a request of ModelStreamInfer failed")
            bug = BackendError("internal error, see the gateway's log")
            await self._say_error(message, bug, turn)

    async def _serve_decoupled(self, asked: Asked) -> None:
        """Write a decoupled model's responses as they come (DC-01); who reads slowly holds up this one only."""
        streamed = self._gateway.stream(
            asked.model,
            asked.version,
            asked.request,
            deadline_ms=self._deadline_ms,
            extra=self._trace,
            empty_final=asked.wants_empty_final,
        )
        with self._shared(asked) as shared, self._traced(asked) as trace:
            async with aclosing(streamed) as responses:
                async for response, is_final in responses:
                    trace.version = response.model_version
                    said = await response_bytes(response, shared)
                    await self._said.put(stream_response(said, final=is_final))

    def _shared(self, asked: Asked) -> AbstractContextManager[SharedTargets]:
        return self._part.extensions.memory.targets(asked.request.outputs)

    def _traced(self, asked: Asked) -> AbstractContextManager[Trace]:
        return self._part.extensions.traces.request(asked.model, asked.request.id)

    async def _say_error(self, message: Any, error: InferError, turn: Turn) -> None:
        said: Said = error if self._has_real_status else stream_error(message, error)
        await self._say(said, turn)

    async def _say(self, said: Said, turn: Turn) -> None:
        if turn is not None and not turn.done():
            await asyncio.wait((turn,))
        await self._said.put(said)
