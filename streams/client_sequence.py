"""Steps of one sequence as a context manager: START on its first request, END when the block ends, however it ends."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, Unpack

from headrace.schemas.errors import InferError, Reason, Unavailable
from headrace.schemas.infer import InferRequest, SequenceId
from headrace.schemas.model_config import ControlKind
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype
from headrace.streams.client_values import Answer, Inputs, Options, nothing_like, request_of

if TYPE_CHECKING:
    from headrace.streams.client_async import Client

GONE = frozenset(
    {
        Reason.SEQUENCE_UNKNOWN,
        Reason.SEQUENCE_EXPIRED,
        Reason.SEQUENCE_LOST,
        Reason.QUEUE_FULL,
    }
)
"""After an error for one of these the worker knows no such sequence, so there is none to end."""

logger = logging.getLogger(__name__)


class SequenceSteps:
    """One sequence of a stateful model; see the module's docstring. Steps reach the model in the order of the calls.

    END is a request, and so one more step of the model. Say ``end=True`` with the last inputs where they are known;
    else the block's end sends one of zeros in the shapes of the first step, and drops its answer.

    Attributes:
        id: Of the sequence, once the block has begun.
        is_live: START was sent, END was not, and no error said that the sequence is gone.
    """

    def __init__(self, client: Client, model: str, sequence_id: SequenceId, version: str) -> None:
        """Keep what `headrace.streams.client_async.Client.sequence` was asked for."""
        self.id: SequenceId = sequence_id
        self.is_live = False
        self._client = client
        self._model = model
        self._version = version
        self._first: InferRequest | None = None
        self._is_over = False

    def __repr__(self) -> str:
        """Show whose it is, and whether it lives."""
        return (
            f"SequenceSteps({self._model}, {self.id!r}, {'live' if self.is_live else 'not live'})"
        )

    async def __aenter__(self) -> Self:
        """Choose an id, if none was given; nothing is sent.

        Raises:
            InferError: There is no such model, or none is ready.
        """
        signature = self._client.route(self._model, self._version).signature
        if not self.id:
            self.id = new_id(signature)
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        """Send END, if it is still to be sent.

        Raises:
            InferError: It could not be sent, or was not answered in time; only logged where the block has raised.
        """
        if not self.is_live or self._first is None:
            return
        request = self._first._replace(
            inputs=nothing_like(self._first),
            id="",
            sequence_start=False,
            sequence_end=True,
        )
        self.is_live = False
        try:
            async with aclosing(
                self._client.ask_many(self._model, request, version=self._version)
            ) as answers:
                async for _ in answers:
                    pass
        except InferError as error:
            logger.info("the END of sequence %r was not answered: %s", self.id, error)
            if kind is None and error.reason not in GONE:
                raise

    async def infer(
        self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]
    ) -> Answer:
        """Make a step and await its one answer.

        Args:
            inputs: Arrays by input name; batch size 1.
            end: It is the last one.
            options: As of `headrace.streams.client_async.Client.infer`; the version is the sequence's.

        Raises:
            InferError: The step failed. Whether the sequence goes on, `is_live` says.
        """
        request = self._step(inputs, options, end=end)
        try:
            return await self._client.ask(self._model, request, **options)
        except InferError as error:
            self._heard(error)
            raise

    async def stream(
        self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]
    ) -> AsyncGenerator[Answer, None]:
        """Make a step of a decoupled model and yield its answers; else as `infer`.

        Raises:
            InferError: As `infer`.
        """
        request = self._step(inputs, options, end=end)
        try:
            async with aclosing(self._client.ask_many(self._model, request, **options)) as answers:
                async for answer in answers:
                    yield answer
        except InferError as error:
            self._heard(error)
            raise

    def _step(self, inputs: Inputs, options: Options, *, end: bool) -> InferRequest:
        """Make the next request, checked as it will be before it is sent: what is refused here is no step."""
        if self._is_over:
            raise Unavailable(f"sequence {self.id!r} has ended, expected no step behind its END")
        options["version"] = self._version
        signature = self._client.route(self._model, self._version).signature
        request = request_of(signature, inputs, options)._replace(
            sequence_id=self.id,
            sequence_start=self._first is None,
            sequence_end=end,
        )
        admitted = signature.admit(request.inputs, request.outputs)
        signature.check_sequence(self.id, admitted.rows)
        if self._first is None:
            self._first = request
            self.is_live = True
        if end:
            self._is_over, self.is_live = True, False
        return request

    def _heard(self, error: InferError) -> None:
        if error.reason in GONE:
            self.is_live = False


def new_id(signature: Signature) -> SequenceId:
    """Return an id that nobody else will choose, of the kind that the model's CORRID takes (SEMANTICS SQ-14)."""
    number = secrets.randbits(63) or 1
    for control in signature.controls:
        if control.kind is ControlKind.CORRID and control.datatype is Datatype.BYTES:
            return f"{number:x}"
    return number
