"""Calls of one answer without a task of their own: whoever begins one is told of its end.

A task, and each coroutine that awaits another on its way to the reply, cost a busy gateway more than reading and
writing the call does. What cannot be produced at once goes the usual way (`headrace.streams.gateway.Gateway.infer`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from headrace.schemas.errors import Code, InferError
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.streams.call_observer import Observer
from headrace.streams.call_values import Reply
from headrace.streams.calls import Calls
from headrace.streams.model_view import Route
from headrace.streams.open_call import Call

logger = logging.getLogger(__name__)

OnEnd: TypeAlias = Callable[[InferResponse | InferError], None]
"""Told how a call has ended; it must not raise."""


class DirectCalls:
    """Begins them."""

    def __init__(self, calls: Calls, observer: Observer | None) -> None:
        """Keep the table of open calls, and who counts them if somebody shall."""
        self._calls = calls
        self._observer = observer

    def begin(
        self, route: Route, version: str, request: InferRequest, on_end: OnEnd
    ) -> DirectCall | None:
        """Ask a model.

        Args:
            route: Of the model.
            version: Version number as text, ``""`` is the worker's highest ready one.
            request: Its own model name and version are not looked at.
            on_end: Called once, with the response under the request's id or with what the call ended with.

        Returns:
            The open call; None where it cannot be produced at once.

        Raises:
            InferError: Why it is refused. Nobody is told then, and nothing counted.
        """
        direct = DirectCall(self._calls, self._observer, request.id, on_end)
        is_begun = self._calls.begin(route, version, request, direct)
        return direct if is_begun else None


class DirectCall:
    """An open call; see `headrace.streams.open_call.DirectSlot`.

    Attributes:
        call: Of the table of open calls.
    """

    __slots__ = (
        "_calls",
        "_fetching",
        "_id",
        "_is_over",
        "_observer",
        "_on_end",
        "_started_s",
        "call",
    )

    call: Call

    def __init__(self, calls: Calls, observer: Observer | None, id_: str, on_end: OnEnd) -> None:
        """Start now; ``id_`` is the request's."""
        self._calls = calls
        self._observer = observer
        self._id = id_
        self._on_end = on_end
        self._is_over = False
        self._fetching: asyncio.Task[None] | None = None
        self._started_s = asyncio.get_running_loop().time()

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._is_over

    def set_result(self, reply: Reply) -> None:
        """End with a reply; one whose value is in the store is fetched before."""
        self._is_over = True
        if isinstance(reply, InferResponse):
            self._end(reply)
        else:
            self._fetching = asyncio.create_task(self._fetch(reply))

    def set_exception(self, error: InferError) -> None:
        """End with an error."""
        self._is_over = True
        self._end(error)

    def cancel(self) -> None:
        """Give the call up: its caller has gone away, and is told nothing."""
        if self._fetching is not None:
            self._fetching.cancel()
        elif self._is_over:
            return
        self._is_over = True
        self._calls.abandon(self.call)
        self._close(Code.CANCELLED)

    async def _fetch(self, reply: Reply) -> None:
        try:
            response = await self._calls.fetched(self.call, reply)
        except InferError as error:
            self._end(error)
        else:
            self._end(response)

    def _end(self, outcome: InferResponse | InferError) -> None:
        self._fetching = None
        if isinstance(outcome, InferResponse):
            self._close(Code.OK)
            if outcome.id != self._id:
                outcome = outcome._replace(id=self._id)
        else:
            self._close(outcome.code)
        try:
            self._on_end(outcome)
        except Exception:  # a bug there must not end who reads the replies of all calls
            logger.exception("a call of model %s was not answered", self.call.model)

    def _close(self, code: Code) -> None:
        self._calls.end(self.call)
        if self._observer is not None:
            seconds = asyncio.get_running_loop().time() - self._started_s
            self._observer.ended(self.call.model, code, seconds)
