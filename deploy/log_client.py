"""Asks a model by a record: `headrace infer` over Kafka is a gateway for one call, so it knows and checks the same."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Self

from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.claims import claims_of
from headrace.deploy.failure import CommandFailed
from headrace.deploy.inputs import InputSpec
from headrace.deploy.settings import Settings
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.idempotency import read_key

LISTEN_S = 20.0
"""Seconds until what workers say must have been read."""


class LogClient:
    """Asks models over Kafka. An async context manager.

    Attributes:
        is_replayed: The latest answer is that of an earlier request with the same idempotency key.
    """

    def __init__(self, settings: Settings, *, timeout_ms: int, key: str = "") -> None:
        """Keep where the brokers are, and how long a call may take.

        Raises:
            InvalidRequest: ``key`` is no idempotency key; ``""`` is none.
        """
        self.is_replayed = False
        self._settings = settings
        self._timeout_ms = timeout_ms
        self._keyed = read_key(key or None)
        self._stack = AsyncExitStack()
        self._gateway: Gateway | None = None

    async def __aenter__(self) -> Self:
        """Connect, and read what workers say.

        Raises:
            CommandFailed: The topics of replies and status cannot be read in time.
            LogError: No broker answers.
        """
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(
                open_log(named_kafka(self._settings), self._settings)
            )
            settings = GatewaySettings(
                timeout_ms=self._timeout_ms, max_record_bytes=log.max_record_bytes
            )
            claims = claims_of(self._settings, log.max_record_bytes)
            gateway = Gateway(log, topology_of(self._settings), settings, claims=claims)
            self._gateway = await stack.enter_async_context(gateway)
            try:
                async with asyncio.timeout(LISTEN_S):
                    await gateway.wait_started()
            except TimeoutError as exc:
                why = "; ".join(["", *gateway.troubles()])
                raise CommandFailed(
                    f"the status topic could not be read within {LISTEN_S:g} s{why}"
                ) from exc
            if not gateway.is_listening:
                raise CommandFailed("; ".join(gateway.troubles()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Take our word back from the status topic and disconnect."""
        await self._stack.aclose()

    async def input_specs(self, model: str, version: str) -> list[InputSpec]:
        """Return what a model takes, from what its workers say."""
        assert self._gateway is not None, "entered first"
        signature = self._gateway.route(model, version).signature
        return [
            InputSpec(spec.name, spec.datatype, tuple(spec.wire_dims()))
            for spec in signature.inputs
        ]

    async def infer(self, model: str, version: str, request: InferRequest) -> InferResponse:
        """Ask a model by a record and await its reply."""
        assert self._gateway is not None, "entered first"
        response = await self._gateway.infer(model, version, request, keyed=self._keyed)
        self.is_replayed = self._keyed is not None and self._keyed.is_replayed
        return response
