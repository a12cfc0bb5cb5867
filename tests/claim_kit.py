"""Claim-check stores for tests: a folder, memory, and one that fails, hangs or lies as a script says."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.schemas.claim_check import claim_for, write_claim
from headrace.schemas.errors import Reason, Unavailable
from headrace.streams.claim_objects import FsspecObjects
from headrace.streams.claims import ClaimBounds, Claims

T = TypeVar("T")

KINDS = ("memory", "file")
HOUR_MS = 3_600_000


def objects(kind: str, folder: Path) -> FsspecObjects:
    """Return a new store of that kind: in memory, or in the folder."""
    if kind == "memory":
        return FsspecObjects(f"memory://claims-{uuid.uuid4().hex}")
    return FsspecObjects(str(folder / "claims"))


class FaultyObjects:
    """A store in front of another one whose script may raise, wait or return something else before each call.

    Attributes:
        url: Of the store behind.
        script: Called with what is asked for; what it raises is raised.
        calls: What was asked for, in order.
        busy: Calls that are in the script or the store now.
        most: The most that were at once.
    """

    def __init__(
        self, behind: FsspecObjects, script: Callable[[str], None] = lambda _: None
    ) -> None:
        """Keep both."""
        self.url = behind.url
        self.script = script
        self.calls: list[str] = []
        self.busy = self.most = 0
        self._behind = behind
        self._lock = threading.Lock()

    def write(self, name: str, value: bytes) -> None:
        """As the store's."""
        with self._asked("write"):
            self._behind.write(name, value)

    def read(self, name: str, limit: int) -> bytes:
        """As the store's."""
        with self._asked("read"):
            return self._behind.read(name, limit)

    def delete(self, name: str) -> bool:
        """As the store's."""
        with self._asked("delete"):
            return self._behind.delete(name)

    def names(self, folder: str) -> Sequence[str]:
        """As the store's."""
        with self._asked("names"):
            return self._behind.names(folder)

    def forget(self, folder: str) -> None:
        """As the store's."""
        self._behind.forget(folder)

    def _asked(self, what: str) -> _Asked:
        return _Asked(self, what)


class _Asked:
    """One call, counted while it runs."""

    def __init__(self, store: FaultyObjects, what: str) -> None:
        self._store = store
        self._what = what

    def __enter__(self) -> None:
        store = self._store
        with store._lock:
            store.calls.append(self._what)
            store.busy += 1
            store.most = max(store.most, store.busy)
        try:
            store.script(self._what)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        with self._store._lock:
            self._store.busy -= 1


def unreachable(_what: str) -> None:
    """Be a store that nobody reaches."""
    raise Unavailable("connection refused", reason=Reason.CLAIM_UNREACHABLE)


def claims(store: FsspecObjects | FaultyObjects, above: int = 1000, **bounds: object) -> Claims:
    """Return a store's claims, with bounds as given."""
    return Claims(store, ClaimBounds(above, **bounds))


class TimedCalls:
    """Calls that take seeded virtual time and no thread.

    Attributes:
        delays_s: The times, seconds, each as likely as another.
    """

    delays_s = (0.01, 0.05, 0.3)

    def __init__(self, rng: random.Random) -> None:
        """Keep where the times come from."""
        self._rng = rng

    async def call(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, later."""
        await asyncio.sleep(self._rng.choice(self.delays_s))
        return work()


class VirtualClaims(Claims):
    """A store in memory for simulations; no answer is large enough for it."""

    def __init__(self, rng: random.Random) -> None:
        """Make a new one."""
        super().__init__(objects("memory", Path()), ClaimBounds(above=1 << 20))
        self._threads = TimedCalls(rng)  # type: ignore[assignment]  # has what is called

    def keep(self, value: bytes) -> bytes:
        """Store a value at once; returns its claim's header."""
        name = uuid.uuid4().hex
        self._objects.write(name, value)
        return write_claim(claim_for(f"{self._objects.url}/{name}", value))
