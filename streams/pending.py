"""The table of open calls: who waits for which reply, and until when.

Pure: the time is passed in. A correlation id is this table's random prefix and a counter, so a reader can drop
other gateways' replies by the id alone, without decoding them, and ids of an earlier life of the process are
never taken for ours.
"""

from __future__ import annotations

import heapq
import secrets
from typing import Generic, TypeVar

from headrace.schemas.errors import Unavailable

Slot = TypeVar("Slot")

PREFIX_BYTES = 8
COUNTER_BYTES = 8

DEFAULT_MAX_PENDING = 4096
"""Calls that may be open at once, unless configured; more are refused with 503."""

_SPARE_DEADLINES = 64


class Pending(Generic[Slot]):
    """Open calls by correlation id. Every call leaves once: by `take`, `discard` or `expire`.

    One that gets many replies stays when they are taken, until it is discarded or expires.

    Attributes:
        late: Replies to calls that had ended already (FAULTS B63).
        foreign: Replies of other gateways.
    """

    def __init__(
        self, *, max_pending: int = DEFAULT_MAX_PENDING, prefix: bytes | None = None
    ) -> None:
        """Start empty; ``prefix`` is 8 bytes, random unless given."""
        self.late = 0
        self.foreign = 0
        self._max_pending = max_pending
        self._prefix = secrets.token_bytes(PREFIX_BYTES) if prefix is None else prefix
        assert len(self._prefix) == PREFIX_BYTES
        self._next = 0
        self._open: dict[bytes, tuple[Slot, int]] = {}
        self._staying: dict[bytes, tuple[Slot, int]] = {}
        self._deadlines: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Return the number of open calls."""
        return len(self._open) + len(self._staying)

    def __repr__(self) -> str:
        """Show the numbers."""
        return f"Pending({len(self)} open, {self.late} late, {self.foreign} foreign)"

    def add(self, slot: Slot, deadline_ns: int, *, stays: bool = False) -> bytes:
        """Open a call; returns its correlation id.

        Args:
            slot: What the caller wants back.
            deadline_ns: When it expires, on the same clock as `expire`'s.
            stays: It gets many replies.

        Raises:
            Unavailable: As many calls as allowed are open already.
        """
        if len(self._open) + len(self._staying) >= self._max_pending:
            raise Unavailable(
                f"{len(self)} calls are open, expected at most {self._max_pending} "
                "(max_pending): try again later"
            )
        correlation_id = self._prefix + self._next.to_bytes(COUNTER_BYTES, "big")
        self._next += 1
        (self._staying if stays else self._open)[correlation_id] = (slot, deadline_ns)
        heapq.heappush(self._deadlines, (deadline_ns, correlation_id))
        return correlation_id

    def take(self, correlation_id: bytes) -> Slot | None:
        """Return the call that a reply belongs to, and close it; None, and counted, where it is late or another's."""
        found = self._open.pop(correlation_id, None)
        if found is not None:
            self._trim()
            return found[0]
        found = self._staying.get(correlation_id)
        if found is not None:
            return found[0]
        if correlation_id.startswith(self._prefix):
            self.late += 1
        else:
            self.foreign += 1
        return None

    def discard(self, correlation_id: bytes) -> bool:
        """Close a call whose caller went away; False where it had ended already."""
        if self._open.pop(correlation_id, None) is None and (
            self._staying.pop(correlation_id, None) is None
        ):
            return False  # nothing has changed that could be trimmed
        self._trim()
        return True

    def expire(self, now_ns: int) -> list[Slot]:
        """Close the calls whose deadline has come, the earliest first."""
        expired: list[Slot] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, correlation_id = heapq.heappop(self._deadlines)
            found = self._pop(correlation_id)
            if found is not None:
                expired.append(found[0])
        return expired

    def close(self) -> list[Slot]:
        """Close all calls, those of one reply first, in the order in which they were opened."""
        slots = [slot for slot, _ in (*self._open.values(), *self._staying.values())]
        self._open.clear()
        self._staying.clear()
        self._deadlines.clear()
        return slots

    def wake_at(self) -> int | None:
        """Return the earliest deadline of an open call, ns; None without any."""
        while self._deadlines and not self._is_open(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_open(self, correlation_id: bytes) -> bool:
        return correlation_id in self._open or correlation_id in self._staying

    def _pop(self, correlation_id: bytes) -> tuple[Slot, int] | None:
        found = self._open.pop(correlation_id, None)
        return self._staying.pop(correlation_id, None) if found is None else found

    def _trim(self) -> None:
        """Rebuild the heap when most of it belongs to ended calls, so that it stays as bounded as the table."""
        if len(self._deadlines) > 2 * (len(self._open) + len(self._staying)) + _SPARE_DEADLINES:
            both = (*self._open.items(), *self._staying.items())
            self._deadlines = [(at, key) for key, (_, at) in both]
            heapq.heapify(self._deadlines)
