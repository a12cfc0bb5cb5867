"""Calls with an idempotency key: what the gateway's edge says of them (DELIVERY P-17)."""

from __future__ import annotations

import asyncio

from headrace.schemas.headers import find_header
from headrace.schemas.idempotency_key import checked_key
from headrace.schemas.record import REPLAYED, Headers
from headrace.streams.call_values import Reply

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"


class KeyedCall:
    """The key of one call, and what its reply said of it.

    Attributes:
        key: Of the call.
        is_replayed: The answer is that of an earlier request with the same key.
    """

    __slots__ = ("is_replayed", "key")

    def __init__(self, key: bytes) -> None:
        """Start without a reply."""
        self.key = key
        self.is_replayed = False

    def hear(self, headers: Headers) -> None:
        """Take note of what a reply says."""
        self.is_replayed = find_header(headers, REPLAYED) == b"true"


class KeyedFuture(asyncio.Future[Reply]):
    """What a call with a key waits for; it hears of the reply's headers too."""

    def __init__(self, keyed: KeyedCall) -> None:
        """Belong to the running loop and a call."""
        super().__init__()
        self._keyed = keyed

    def hear(self, headers: Headers) -> None:
        """Take note of what the reply says."""
        self._keyed.hear(headers)


def reply_future(keyed: KeyedCall | None) -> asyncio.Future[Reply]:
    """Return what a call waits for."""
    return asyncio.get_running_loop().create_future() if keyed is None else KeyedFuture(keyed)


def read_key(raw: str | None) -> KeyedCall | None:
    """Read the HTTP header; None where there is none.

    Raises:
        InvalidRequest: It is no key.
    """
    if raw is None:
        return None
    return KeyedCall(checked_key(raw.encode("utf-8", "surrogateescape"), KEY_HEADER))
