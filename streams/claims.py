"""The claim-check store: values that are too large for a record, on their way in and out (DESIGN §4, FAULTS B95).

What it moves is bounded: calls at once, bytes at once, the size of a value, the time that a call may take. A value is
stored before its record is produced, so whoever reads the record finds it; what was stored for a record that never
came is removed like all others, once it is older than the store keeps values. Nobody removes a value because it was
read: the record may be read again after a crash, by another group, or from the dead letters.

An object's name says when it was written, ``<date>T<hour>/<ms since the epoch>-<random>``, by the writer's clock: the
cleaner lists only folders that are old enough, touches nothing whose name is not such, and asks the store for no times.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, TypeVar

from headrace.schemas.claim_check import (
    Claim,
    check_value,
    claim_for,
    claim_of,
    name_in,
)
from headrace.schemas.errors import InferError, Reason, TooLarge, Unavailable
from headrace.schemas.record import Record
from headrace.streams.claim_objects import Objects
from headrace.streams.claim_threads import Overdue, Threads

logger = logging.getLogger(__name__)

T = TypeVar("T")

RECORD_ROOM_BYTES = 64 * 1024
"""Left in a record for key and headers when the size from which values are stored is not given."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Pauses before a failed call is tried again, doubling from the first to the longest."""

MAX_FAILURES = 10
"""Values that cannot be removed before a clean-up is given up: one of them must not keep all behind it for ever."""

_FOLDER = re.compile(r"\d{4}-\d\d-\d\dT\d\d")
_OBJECT = re.compile(r"(\d{1,15})-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """What is stored, and within which bounds.

    Attributes:
        above: Values with more bytes than this are stored.
        max_bytes: Largest value that is stored or fetched, bytes.
        max_moving_bytes: Bytes of all values that are being stored or fetched at once; a single one may have more.
        max_calls: Calls to the store at once, each in a thread.
        timeout_s: How long a call may take, and how long after its first failure it is tried again, seconds.
        ttl_s: How old values become, seconds; 0 keeps them for ever. Longer than their records are kept and
            re-driven, or these find nothing.
        clean_interval_s: How often the cleaner looks, seconds.
    """

    above: int
    max_bytes: int = 64 * 1024 * 1024
    max_moving_bytes: int = 256 * 1024 * 1024
    max_calls: int = 4
    timeout_s: float = 30.0
    ttl_s: float = 7 * 24 * 3600.0
    clean_interval_s: float = 600.0


def default_above(max_record_bytes: int) -> int:
    """Return the size from which values are stored where none is given: a record's, without key and headers."""
    return max(max_record_bytes - RECORD_ROOM_BYTES, max_record_bytes // 2)


class Cleaned(NamedTuple):
    """What a clean-up did: values removed, and values of the same hours that are not old enough yet."""

    removed: int
    kept: int


class Claims:
    """See the module's docstring. Entered, it cleans up now and then if it is told to.

    Attributes:
        bounds: As given.
    """

    def __init__(
        self,
        objects: Objects,
        bounds: ClaimBounds,
        *,
        cleans: bool = False,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Keep the parts.

        Args:
            objects: Where values are kept.
            bounds: Limits.
            cleans: Remove what is too old while entered.
            clock_ms: Milliseconds since the epoch.
        """
        self.bounds = bounds
        self._objects = objects
        self._cleans = cleans
        self._clock_ms = clock_ms
        self._threads = Threads(bounds.max_calls, bounds.timeout_s)
        self._moving = _Budget(bounds.max_moving_bytes)
        self._cleaner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Show where, and what is going on."""
        return f"Claims({self._objects.url}, {self._threads}, {self._moving})"

    async def __aenter__(self) -> Self:
        """Start the cleaner."""
        if self._cleans and self.bounds.ttl_s:
            self._cleaner = asyncio.create_task(self._keep_clean())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the cleaner; a call that hangs is left behind."""
        if self._cleaner is not None:
            self._cleaner.cancel()
            await asyncio.wait([self._cleaner])

    async def put(self, value: bytes) -> Claim:
        """Store a value; returns the claim for its record's header.

        Raises:
            TooLarge: It is above ``max_bytes``.
            Unavailable: The store does not take it (`Reason.CLAIM_UNREACHABLE`).
        """
        self._check_size(len(value))
        name = object_name(self._clock_ms(), secrets.token_hex(16))

        def work() -> Claim:
            self._objects.write(name, value)
            return claim_for(f"{self._objects.url}/{name}", value)

        return await self._move(len(value), work)

    async def get(self, claim: Claim) -> bytes:
        """Fetch a value and verify it.

        Raises:
            InvalidRequest: Its URL is not in this store (`Reason.CLAIM_REFUSED`), there is no such object
                (`Reason.CLAIM_MISSING`), or it is not what was claimed (`Reason.CLAIM_MISMATCH`).
            TooLarge: It is above ``max_bytes``; nothing is fetched.
            Unavailable: The store does not answer (`Reason.CLAIM_UNREACHABLE`).
        """
        name = name_in(self._objects.url, claim.url)
        self._check_size(claim.size)

        def work() -> bytes:
            value = self._objects.read(name, claim.size + 1)  # one more tells a longer object
            check_value(claim, value)
            return value

        return await self._move(claim.size, work)

    async def value_of(self, record: Record) -> bytes | None:
        """Return a record's value, fetched where it is in the store: what a reader of results calls on each.

        Raises:
            InferError: As `get`; or the header is malformed.
        """
        claim = claim_of(record)
        return record.value if claim is None else await self.get(claim)

    async def clean(self, *, dry_run: bool = False) -> Cleaned:
        """Remove what is older than ``ttl_s``; others may do so at the same time.

        Args:
            dry_run: Only count.

        Raises:
            Unavailable: The store does not answer, or some value cannot be removed; the others were.
        """
        until_ms = self._clock_ms() - int(self.bounds.ttl_s * 1000)
        removed = kept = 0
        failures: list[Unavailable] = []
        for folder in sorted(filter(_FOLDER.fullmatch, await self._names(""))):
            if folder > _folder(until_ms):
                break
            names = await self._names(folder)
            written = {name: int(match[1]) for name in names if (match := _OBJECT.fullmatch(name))}
            old = [name for name, at_ms in written.items() if at_ms <= until_ms]
            kept += len(written) - len(old)
            for name in old:
                delete = partial(self._objects.delete, f"{folder}/{name}")
                try:
                    removed += dry_run or await self._call(delete)
                except Unavailable as exc:
                    failures.append(exc)
                    if len(failures) == MAX_FAILURES:
                        raise
            if len(old) == len(names) and folder < _folder(until_ms) and not dry_run:
                await self._call(partial(self._objects.forget, folder))
        if failures:
            raise failures[0]
        return Cleaned(removed, kept)

    async def _keep_clean(self) -> None:
        while True:
            try:
                removed, _ = await self.clean()
                if removed:
                    logger.info("%d values were removed from %s", removed, self._objects.url)
            except InferError as exc:
                logger.warning("the claim-check store cannot be cleaned: %s", exc.detail)
            await asyncio.sleep(self.bounds.clean_interval_s)

    async def _names(self, folder: str) -> Sequence[str]:
        return await self._call(partial(self._objects.names, folder))

    def _check_size(self, size: int) -> None:
        if size > self.bounds.max_bytes:
            raise TooLarge(
                f"the value has {size} bytes, expected at most {self.bounds.max_bytes} (--claim-check-max-bytes)"
            )

    async def _move(self, size: int, work: Callable[[], T]) -> T:
        await self._moving.take(size)
        try:
            return await self._call(work)
        finally:
            self._moving.give_back(size)

    async def _call(self, work: Callable[[], T]) -> T:
        """Call the store, again after what may pass."""
        loop = asyncio.get_running_loop()
        pause_s, until_s = FIRST_PAUSE_S, 0.0
        while True:
            try:
                return await self._threads.call(work)
            except Overdue as exc:
                raise Unavailable(
                    f"the claim-check store at {self._objects.url} does not answer: {exc} (--claim-check-timeout-secs)",
                    reason=Reason.CLAIM_UNREACHABLE,
                ) from exc
            except InferError as exc:
                until_s = until_s or loop.time() + self.bounds.timeout_s
                if not exc.retriable or loop.time() + pause_s > until_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def object_name(now_ms: int, token: str) -> str:
    """Return the name of an object that is written now."""
    return f"{_folder(now_ms)}/{now_ms}-{token}"


def _folder(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(max(0, at_ms) / 1000))


class _Budget:
    """Bytes that may be taken at once, in the order of asking; more than all of them counts as all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"{self._taken} of {self._limit} bytes moving"

    async def take(self, size: int) -> None:
        """Wait until so many bytes are free, and take them."""
        size = min(size, self._limit)
        if not self._waiting and self._taken + size <= self._limit:
            self._taken += size
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.give_back(size)  # they were ours a moment ago
            else:
                self._hand_out()  # those behind us may fit
            raise

    def give_back(self, size: int) -> None:
        """Give taken bytes back."""
        self._taken -= min(size, self._limit)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            size, mine = self._waiting[0]
            if mine.done():
                self._waiting.popleft()  # cancelled
            elif self._taken + size > self._limit:
                return
            else:
                self._waiting.popleft()
                self._taken += size
                mine.set_result(None)
