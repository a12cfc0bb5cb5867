"""The V2 protocol over gRPC in front of a gateway (SEMANTICS §2.10), on gRPC's own asyncio server.

Methods take and return bytes: messages are parsed once and here, so bytes that are none become INVALID_ARGUMENT, and
responses are written without a message in between. Errors become statuses in one place. A call belongs to its client:
when that goes away, its task is cancelled, and with it the call (GR-05).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio
from headrace.schemas.errors import BackendError, ConfigError, InferError
from headrace.streams import grpc_health, grpc_reflection
from headrace.streams.access import Access, Group
from headrace.streams.extensions import Extensions
from headrace.streams.gateway import Gateway
from headrace.streams.grpc_call import Context, GrpcPart, Method, parsed, texts
from headrace.streams.grpc_errors import abort
from headrace.streams.grpc_infer import model_infer
from headrace.streams.grpc_info import METHODS
from headrace.streams.grpc_settings import GrpcSettings, channel_options
from headrace.streams.grpc_stream import model_stream_infer
from headrace.streams.grpc_tls import credentials

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""How long what is left after the drain may take, such as a client that does not read its answer, seconds."""

Streaming: TypeAlias = Callable[[GrpcPart, Context], Awaitable[None]]


class GrpcServer:
    """Serves V2 over gRPC for a gateway. An async context manager: enter it once the gateway is ready (PB-23).

    Leaving refuses new calls, answers open ones within ``drain_timeout_s``, ends streams, and only then closes its
    socket (SEMANTICS SV-10, FAULTS B68).

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        gateway: Gateway,
        settings: GrpcSettings = GrpcSettings(),  # noqa: B008  # frozen
        extensions: Extensions | None = None,
        *,
        access: Access | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            gateway: Asks the models.
            settings: Where to listen, and bounds.
            extensions: What clients may set, shared with whoever else serves the gateway; None makes our own.
            access: What calls need; None needs nothing.
        """
        self.port = settings.port
        self._access = access
        self._part = GrpcPart(gateway, settings, extensions or Extensions())

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address or port cannot be had, or a TLS file cannot be read.
        """
        settings = self._part.settings
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        address = f"{host}:{settings.port}"
        self._server = grpc.aio.server(options=channel_options(settings))
        self._server.add_generic_rpc_handlers(self._handlers())
        try:
            if settings.tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials(settings.tls))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen there: {error}", field="grpc-port", value=address
            ) from error
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drain, tell those that are still open, then close."""
        gateway = self._part.gateway
        if not await gateway.drain(self._part.settings.drain_timeout_s):
            gateway.end_calls()  # while there is a connection to say it on
        for end in tuple(self._part.endings):
            end()
        await self._server.stop(CLOSE_S)

    def _handlers(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        unary, streaming = (
            grpc.unary_unary_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        )
        inference = {
            name: unary(partial(self._answer, method)) for name, method in METHODS.items()
        }
        inference["ModelInfer"] = unary(self._infer)
        inference["ModelStreamInfer"] = streaming(
            partial(self._stream, Group.INFERENCE, model_stream_infer)
        )
        health = {
            "Check": unary(partial(self._answer, grpc_health.CHECK)),
            # Read as a stream of one, so that streams have one shape.
            "Watch": streaming(partial(self._stream, Group.HEALTH, grpc_health.watch)),
        }
        services = {grpc_reflection.INFERENCE: inference, grpc_health.SERVICE: health}
        for package, service in grpc_reflection.SERVICES.items():
            serve = partial(
                self._stream, Group.METADATA, partial(grpc_reflection.reflect, package)
            )
            services[service] = {"ServerReflectionInfo": streaming(serve)}
        return [
            grpc.method_handlers_generic_handler(service, methods)
            for service, methods in services.items()
        ]

    async def _infer(self, value: bytes, context: Context) -> bytes:
        try:
            self._admit(Group.INFERENCE, context)
            return await model_infer(self._part, value, context)
        except InferError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001  # the edge, as `_bug` says
            await abort(context, _bug("ModelInfer", error))

    async def _answer(self, method: Method, value: bytes, context: Context) -> bytes:
        try:
            self._admit(method.group, context)
            found = await method.answer(self._part, parsed(method.request, value))
            return found.SerializeToString()
        except InferError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001  # the edge, as `_bug` says
            await abort(context, _bug(method.request.DESCRIPTOR.name, error))

    async def _stream(
        self, group: Group, serve: Streaming, _requests: object, context: Context
    ) -> None:
        try:
            self._admit(group, context)
            await serve(self._part, context)
        except InferError as error:
            await abort(context, error)
        except grpc.aio.InternalError as error:
            # A client that goes in the middle of a message is no bug.
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001  # the edge, as `_bug` says
            await abort(context, _bug("a stream", error))

    def _admit(self, group: Group, context: Context) -> None:
        """Refuse a call that may not be made (SEMANTICS PB-22).

        Raises:
            AccessDenied: As `Access.check`.
        """
        if self._access is not None:
            self._access.check(group, dict(texts(context.invocation_metadata())).get)


def _bug(where: str, error: Exception) -> InferError:
    """Return what a client is told of a bug of ours; its trace is in the log."""
    logger.error("%s failed", where, exc_info=error)
    return BackendError("internal error, see the gateway's log")
