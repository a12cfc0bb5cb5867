"""Asks a model by a record: `headrace infer` over Kafka is `headrace.streams.client` for one call."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

from headrace.deploy.broker import named_kafka, open_log
from headrace.deploy.claims import claims_of
from headrace.deploy.inputs import InputSpec, specs_of
from headrace.deploy.settings import Settings
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.streams.client import Client
from headrace.streams.idempotency import read_key


class LogClient:
    """Asks models over Kafka, under the names of `headrace.deploy.client.HttpClient`. An async context manager.

    Attributes:
        is_replayed: The latest answer is that of an earlier request with the same idempotency key.
    """

    def __init__(self, settings: Settings, *, timeout_ms: int, key: str = "") -> None:
        """Keep where the brokers are, and how long a call may take.

        Raises:
            InvalidRequest: ``key`` is no idempotency key; ``""`` is none.
        """
        read_key(key or None)
        self.is_replayed = False
        self._settings = settings
        self._timeout_s = timeout_ms / 1000
        self._key = key
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect, and read what workers say.

        Raises:
            LogError: No broker answers, or the topics of replies and status cannot be read.
        """
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(
                open_log(named_kafka(self._settings), self._settings)
            )
            client = Client(
                log,
                prefix=self._settings.topic_prefix,
                timeout_s=self._timeout_s,
                claims=claims_of(self._settings, log.max_record_bytes),
            )
            self._client = await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect."""
        await self._stack.aclose()

    async def input_specs(self, model: str, version: str) -> list[InputSpec]:
        """Return what a model takes, from what its workers say."""
        return specs_of(self._client.route(model, version).signature)

    async def infer(self, model: str, version: str, request: InferRequest) -> InferResponse:
        """Ask a model by a record and await its reply."""
        answer = await self._client.ask(model, request, version=version, key=self._key)
        self.is_replayed = answer.is_replayed
        return answer.response
