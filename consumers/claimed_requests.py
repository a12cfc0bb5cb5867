"""Requests whose values are in the claim-check store: fetched before they are admitted, in order per partition.

A block of records with such a request leaves intake's way and becomes the partition's *line*; the partition is paused,
so few blocks follow it there, and the other partitions go on. What stands before a claimed request is admitted at once,
then values are fetched, a few side by side, verified, and decoded as if they had been in their records. What is fetched
counts against ``max_queued_bytes`` from before it is asked for until it is settled. Records without the header never
come here: the decoder finds it in the same pass as all others.

A suspect (P-14) does not leave intake's way: reading its value may be what ends the process, and whoever announced that
waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from headrace.consumers.admission import Decoder
from headrace.consumers.partition import Partition
from headrace.consumers.schema_requests import SchemaDecoder
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.repository.models import LoadedModel
from headrace.schemas.batch import Entry
from headrace.schemas.claim_check import Claim, ResolvedRecord, claim_of
from headrace.schemas.errors import DeadlineExceeded, InferError, Reason
from headrace.schemas.record import TP, Record
from headrace.schemas.requests import Decoded, Failure, RequestDecoder
from headrace.streams.claims import Claims

LOOK_S = 0.1
"""How often a line that waits looks whether its partition is still ours and whether there is room, seconds."""


class ClaimDecoder:
    """A decoder beside the store that has the values which records lack.

    Attributes:
        decode: As the decoder's own: claimed requests come out as failures.
        claims: The store.
        schemas: The decoder, where it has a Schema Registry beside it.
    """

    def __init__(self, decoder: Decoder, claims: Claims) -> None:
        """Keep the parts."""
        self.decode = decoder.decode
        self.claims = claims
        self.schemas = decoder if isinstance(decoder, SchemaDecoder) else None


def request_decoder(
    name: str,
    model: LoadedModel,
    max_record_bytes: int,
    claims: Claims | None,
    mapped: Decoder | None = None,
) -> Decoder:
    """Return the decoder of a model's requests, beside the store where there is one.

    Args:
        name: Of the model.
        model: Its versions.
        max_record_bytes: Larger values are refused, also from the store.
        claims: The store; without it claimed requests are answered that there is none.
        mapped: Reads the records of a mapped topic; None where they are V2 requests.
    """
    signatures = {number: version.signature for number, version in model.versions.items()}
    decoder = mapped or RequestDecoder(
        signatures, model_name=name, max_record_bytes=max_record_bytes
    )
    return decoder if claims is None else ClaimDecoder(decoder, claims)


def schemas_of(decoder: Decoder) -> SchemaDecoder | None:
    """Return the part of a decoder that has a Schema Registry beside it, None where there is none."""
    found = decoder.schemas if isinstance(decoder, ClaimDecoder) else decoder
    return found if isinstance(found, SchemaDecoder) else None


class Outcome(NamedTuple):
    """What became of one record: an entry for a version, or a failure."""

    entry: Entry
    version: int
    failure: Failure | None

    @property
    def is_claimed(self) -> bool:
        """Whether its value is in the store."""
        return self.failure is not None and _is_claimed(self.failure)

    @property
    def size(self) -> int:
        """Bytes of the record's own value."""
        return len(self.entry.record.value or b"")


Take = Callable[[Partition, Decoded], None]


class ClaimedRequests:
    """The lines of one model's partitions; see the module's docstring.

    Attributes:
        failed: What ended a line that nothing should end: a bug, for intake to raise.
    """

    def __init__(
        self,
        decoder: ClaimDecoder,
        partitions: Mapping[TP, Partition],
        *,
        settings: WorkerSettings,
        clock: Clock,
        read: Callable[[Partition, Sequence[Record]], Awaitable[Decoded]],
        take: Take,
        ended: Callable[[], None],
        sequences: bool,
        counts_settling: bool = True,
    ) -> None:
        """Keep the parts.

        Args:
            decoder: With the store.
            partitions: Those that are ours.
            settings: Bounds.
            clock: Time.
            read: Decodes records, once that may begin.
            take: Admits what a line has ready.
            ended: Called when a line has ended: its partition may be resumed.
            sequences: Records are steps of sequences, which no deadline skips (DELIVERY P-15).
            counts_settling: As intake's: whether what is being published takes room.
        """
        self.failed: BaseException | None = None
        self._decoder = decoder
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._read = read
        self._take = take
        self._line_ended = ended
        self._sequences = sequences
        self._counts_settling = counts_settling
        self._lines: dict[Partition, deque[Outcome]] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._room = asyncio.Event()
        self._closed = False

    def __contains__(self, part: Partition) -> bool:
        """Whether a partition has a line."""
        return part in self._lines

    def takes(self, part: Partition, decoded: Decoded) -> bool:
        """Take a block that holds a claimed request, or stands behind one that does; False of any other."""
        line = self._lines.get(part)
        if line is None:
            if not any(map(_is_claimed, decoded.failures)):
                return False
            line = self._lines[part] = deque()
            part.decoding += 1
            task = self._tasks[part] = asyncio.create_task(self._work(part, line))
            task.add_done_callback(lambda task: self._ended(part, task))
        line.extend(_outcomes(decoded))
        return True

    async def whole(self, part: Partition, decoded: Decoded) -> Decoded:
        """Return what a suspect's block becomes once its value is there, or what it is if it is ours no more."""
        if not any(map(_is_claimed, decoded.failures)):
            return decoded
        line = self._lines[part] = deque(_outcomes(decoded))  # of one: suspects come singly
        try:
            while line[0].is_claimed and self._is_ours(part):
                await self._fetch_first(part, line)
        finally:
            del self._lines[part]
        return _decoded(line)

    def room_made(self) -> None:
        """Look again whether there is room."""
        self._room.set()

    def close(self) -> None:
        """Drop all lines: whoever owns the partitions next reads their records."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()

    def _ended(self, part: Partition, task: asyncio.Task[None]) -> None:
        del self._tasks[part]
        for outcome in self._lines.pop(part):
            part.in_flight -= 1
            part.in_flight_bytes -= outcome.size
        if task.cancelled():
            return  # what was not routed was read all the same (`Partition.decoding`)
        part.decoding -= 1
        self.failed = self.failed or task.exception()
        self._line_ended()

    async def _work(self, part: Partition, line: deque[Outcome]) -> None:
        while line and self._is_ours(part):
            ready: list[Outcome] = []
            while line and not line[0].is_claimed:
                ready.append(line.popleft())
            if ready:
                self._take(part, _decoded(ready))
            if line:
                await self._fetch_first(part, line)

    async def _fetch_first(self, part: Partition, line: deque[Outcome]) -> None:
        """Put what the claimed requests that stand first become in their place, as many as may be fetched at once."""
        claims: list[Claim | None] = []
        # A copy: blocks may come behind them while there is no room for the first.
        for outcome in tuple(islice(line, self._decoder.claims.bounds.max_calls)):
            if not outcome.is_claimed:
                break
            claim = _claim_of(outcome)
            size = 0 if claim is None else claim.size
            if not await self._has_room(part, size, may_wait=not claims):
                break
            part.in_flight_bytes += size  # counted as taken before it is asked for
            claims.append(claim)
        group = asyncio.gather(
            *(self._fetched(part, outcome, c) for outcome, c in zip(line, claims, strict=False))
        )
        # Who loses its partition, or is cancelled, asks for no result.
        group.add_done_callback(lambda group: group.exception())
        fetched: Sequence[Outcome] = ()
        try:
            while not group.done() and self._is_ours(part):
                await asyncio.wait([group], timeout=LOOK_S)
            found = group.result() if group.done() else ()
            fetched = found if self._is_ours(part) else ()
        finally:
            group.cancel()
            # Whatever became of them: their entries hold what they have, and are counted so.
            part.in_flight_bytes -= sum(claim.size for claim in claims if claim is not None)
        for outcome in fetched:
            part.in_flight_bytes += outcome.size - line.popleft().size
        line.extendleft(reversed(fetched))

    async def _fetched(self, part: Partition, outcome: Outcome, claim: Claim | None) -> Outcome:
        """Return what a claimed request became: an entry, or the failure to get its value."""
        entry = outcome.entry
        try:
            self._check_deadline(entry)
            claim = claim or claim_of(entry.record)
            assert claim is not None
            value = await self._decoder.claims.get(claim)
        except InferError as error:
            dead = error.reason not in (Reason.TOO_LARGE, Reason.DEADLINE_PASSED)
            return Outcome(entry, 0, Failure(entry, error, dead_letter=dead))
        read = partial(self._read, part, (ResolvedRecord(entry.record, value),))
        decoded = await read()
        if self._decoder.schemas is not None:
            decoded = await self._decoder.schemas.whole(decoded, read)
        return _outcomes(decoded)[0]

    def _check_deadline(self, entry: Entry) -> None:
        if self._sequences or not entry.deadline_ms:
            return
        if self._clock.wall_ms() >= entry.deadline_ms:
            raise DeadlineExceeded(
                f"the request's deadline, {entry.deadline_ms} ms since the epoch, passed before its value was fetched",
                reason=Reason.DEADLINE_PASSED,
            )

    async def _has_room(self, part: Partition, size: int, *, may_wait: bool) -> bool:
        """Whether so many bytes may be in flight more; waits for it, or until nothing else will make room.

        A suspect's always may: all that could make room may wait for it, and a process has one at a time.
        """
        if part not in self._tasks:
            return True
        limit = self._settings.max_queued_bytes
        while self._is_ours(part):
            total = sum(
                p.bytes_waiting(counts_settling=self._counts_settling)
                for p in self._partitions.values()
            )
            in_lines = sum(outcome.size for line in self._lines.values() for outcome in line)
            if total + size <= limit or (may_wait and total <= in_lines):
                return True
            if not may_wait:
                return False
            self._room.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._room.wait()
            except TimeoutError:
                continue  # what is in flight may have gone with its partition
        return False

    def _is_ours(self, part: Partition) -> bool:
        return not self._closed and part.active and self._partitions.get(part.tp) is part


def _is_claimed(failure: Failure) -> bool:
    return failure.error.reason is Reason.UNSUPPORTED_CLAIM_CHECK


def _claim_of(outcome: Outcome) -> Claim | None:
    try:
        return claim_of(outcome.entry.record)
    except InferError:
        return None  # said again where it is fetched


def _outcomes(decoded: Decoded) -> list[Outcome]:
    """Return a block's outcomes in the order of their records."""
    found = [
        Outcome(entry, version, None)
        for version, entries in decoded.by_version.items()
        for entry in entries
    ]
    found += [Outcome(failure.entry, 0, failure) for failure in decoded.failures]
    return sorted(found, key=lambda outcome: outcome.entry.record.offset)


def _decoded(outcomes: Sequence[Outcome]) -> Decoded:
    """Put outcomes together again, in their order."""
    by_version: dict[int, list[Entry]] = {}
    failures: list[Failure] = []
    for entry, version, failure in outcomes:
        if failure is None:
            by_version.setdefault(version, []).append(entry)
        else:
            failures.append(failure)
    keyed = [o.entry for o in outcomes if o.failure is None and o.entry.idempotency_key]
    return Decoded(by_version, failures, keyed)
