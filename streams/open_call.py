"""What is known of a call that is open, and what it waits for."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol, TypeAlias

from headrace.schemas.errors import InferError
from headrace.streams.call_values import Reply
from headrace.streams.load import QueueLoad
from headrace.streams.streamed import ReplyStream

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
"""The text of SEMANTICS SV-11."""


class Call(NamedTuple):
    """A call that is open.

    Attributes:
        model: Model name.
        correlation_id: By which its replies are known.
        deadline_ms: When its caller gives up, ms since the epoch.
        deadline_s: The same by the loop's clock.
        load: Of the queue that its request joins, where that is known.
        token: What ``load`` wants back.
    """

    model: str
    correlation_id: bytes
    deadline_ms: int
    deadline_s: float
    load: QueueLoad | None
    token: int


class DirectSlot(Protocol):
    """What is told of a call's end instead of waiting for it.

    Attributes:
        call: Set once it is open.
    """

    call: Call

    def done(self) -> bool:
        """Whether the call has ended."""

    def set_result(self, reply: Reply) -> None:
        """End it with a reply."""

    def set_exception(self, error: InferError) -> None:
        """End it with an error."""


Slot: TypeAlias = "asyncio.Future[Reply] | ReplyStream[Reply] | DirectSlot"
"""What a call waits for."""
