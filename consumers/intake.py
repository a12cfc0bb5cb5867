"""Intake: polls a model's records, decodes them in blocks, and offers them to the schedulers.

Back-pressure never discards: what nobody awaits is held and its partition paused until there is room; what a
caller awaits is refused at once when its queue is full (SEMANTICS QT-01), since waiting would only make it late.
Polling itself never stops for long, so a slow model cannot cost the group membership (FAULTS B1).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from headrace.consumers.admission import Admission, Decoder
from headrace.consumers.batcher import Refusal
from headrace.consumers.claimed_requests import ClaimDecoder, ClaimedRequests, schemas_of
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.reading import Reading
from headrace.consumers.schema_requests import SchemaLines, size_of
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.suspects import Suspects
from headrace.schemas.batch import Entry
from headrace.schemas.errors import Cancelled, InferError, Reason
from headrace.schemas.record import TP, Record
from headrace.schemas.requests import Decoded
from headrace.streams.log import Block, Source

FULL_WAIT_S = 0.1
"""While full, how long to wait for room before polling again for the membership's sake, seconds."""

HELD_SLICE = 64
"""Entries held back that are offered at a time: each executed batch makes room for about as many."""


class Intake:
    """Polling, admission and back-pressure of one model.

    Attributes:
        stopped: No record is admitted any more.
    """

    def __init__(
        self,
        partitions: Mapping[TP, Partition],
        *,
        decoder: Decoder,
        admission: Admission,
        placement: Placement,
        settings: WorkerSettings,
        clock: Clock,
        sequences: bool = False,
        shares: bool = False,
        counts_settling: bool = True,
        suspects: Suspects | None = None,
    ) -> None:
        """Keep the parts; `run` polls.

        Args:
            partitions: Those that are ours.
            decoder: Reads the model's records; a `ClaimDecoder` where their values may be in a store.
            admission: Who takes them.
            placement: Where answers go.
            settings: Bounds.
            clock: Time.
            sequences: Records are steps of sequences: even bad ones are answered in their turn.
            shares: A partition is paused at its share of the queue. Not where sequences keep a slot to their END: what
                waits for that one may be all that its partition has in flight.
            counts_settling: What is being published takes room of what may be admitted. False where a settle takes as
                long as a transaction: each partition has one at a time, of what was admitted once.
            suspects: Records that run alone; None where the log keeps no attempts (P-14).
        """
        self._partitions = partitions
        self._decoder = decoder
        self._admission = admission
        self._placement = placement
        self._settings = settings
        self._clock = clock
        self._sequences = sequences
        self._shares = shares
        self._counts_settling = counts_settling
        self._claimed: ClaimedRequests | None = None
        self._schemas: SchemaLines | None = None
        self._suspects = suspects
        self._reading = Reading(decoder, placement, settings.max_inline_bytes, suspects)
        self._lines: list[ClaimedRequests | SchemaLines | Suspects] = []
        self._room = asyncio.Event()
        self._cancelled: OrderedDict[bytes, None] = OrderedDict()
        self.stopped = False

    def cancel(self, ids: Iterable[bytes]) -> None:
        """Remember cancels whose request has not been read yet; bounded, oldest forgotten first."""
        for correlation_id in ids:
            self._cancelled[correlation_id] = None
        while len(self._cancelled) > self._settings.max_cancels:
            self._cancelled.popitem(last=False)

    def stop(self, source: Source) -> None:
        """Admit nothing from now on; polling goes on for the membership's sake."""
        self.stopped = True
        for line in (self._schemas, self._claimed):
            if line is not None:
                line.close()
        if self._suspects is not None:
            self._suspects.stop()
        self._pause(source, self._partitions.values())

    def room_made(self, source: Source) -> None:
        """Look again at what is held and paused: a settle or an execution made room."""
        for part in self._partitions.values():
            if part.held and part.active:
                self._offer_held(part)
        for line in self._lines:
            line.room_made()
        if not self._full():
            self._room.set()
            self._resume(source)

    async def run(self, source: Source) -> None:
        """Poll for ever; ends by cancellation, or by a `LogError` of the source."""
        ended, admit = partial(self._resume, source), partial(self._admit, source, waits=True)
        if isinstance(self._decoder, ClaimDecoder):
            self._claimed = ClaimedRequests(
                self._decoder,
                self._partitions,
                settings=self._settings,
                clock=self._clock,
                read=self._reading.read_again,
                take=partial(self._take, source),
                ended=ended,
                sequences=self._sequences,
                counts_settling=self._counts_settling,
            )
        if (schemas := schemas_of(self._decoder)) is not None:
            self._schemas = SchemaLines(
                schemas,
                self._partitions,
                decode=self._reading.read_again,
                route=partial(self._route, source),
                admit=admit,
                ended=ended,
            )
        if self._suspects is not None:
            self._suspects.begin(admit, ended)
        lines = (self._suspects, self._schemas, self._claimed)
        self._lines = [line for line in lines if line is not None]
        try:
            await self._poll(source)
        finally:
            for line in self._lines:
                line.close()

    async def _poll(self, source: Source) -> None:
        while True:
            timeout_s = FULL_WAIT_S
            if self.stopped or self._full():
                timeout_s = 0.0
                await self._wait_for_room(source)
            else:
                # What is in flight may have gone with its partition: then nothing ends that would tell of room.
                self._resume(source)
            blocks = await source.poll(self._settings.max_poll_records, timeout_s)
            # Admitting may wait: a partition that was taken over since this poll has sought back, and the gap
            # before its block would look like a hole in the log.
            read = [
                (part, block)
                for block in blocks
                if (part := self._partitions.get(block.tp)) is not None
            ]
            for part, _ in read:
                part.decoding += 1
            for part, block in read:
                if not self.stopped:
                    await self._read(source, part, block)
                if not self.stopped:  # else it is dropped, and who reads it next decides about it
                    part.decoding -= 1
            # The client hands out what it has prefetched without suspending; let the answers go out too.
            await asyncio.sleep(0)
            for line in self._lines:
                if line.failed is not None:
                    raise line.failed

    def _full(self) -> bool:
        records = size = 0
        for part in self._partitions.values():
            records += self._records(part)
            size += part.bytes_waiting(counts_settling=self._counts_settling)
        settings = self._settings
        return records >= settings.max_queued_records or size >= settings.max_queued_bytes

    async def _wait_for_room(self, source: Source) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(FULL_WAIT_S):
                await self._room.wait()
        except TimeoutError:
            # Full for longer than a moment: the coming poll is for the membership only.
            self._pause(source, self._partitions.values())

    def _pause(self, source: Source, parts: Iterable[Partition]) -> None:
        fresh = [part for part in parts if part.active and not part.paused]
        for part in fresh:
            part.paused = True
        if fresh:
            source.pause({part.tp for part in fresh})

    def _resume(self, source: Source) -> None:
        if self.stopped:
            return
        ready = [
            part
            for part in self._partitions.values()
            if part.paused and part.active and not self._must_pause(part)
        ]
        for part in ready:
            part.paused = False
        if ready:
            source.resume({part.tp for part in ready})

    def _must_pause(self, part: Partition) -> bool:
        """Whether no more of a partition is to be read for now, though the queue may have room.

        A batch takes one step of each sequence: one partition that fills the queue alone leaves the sequences of all
        others out of every batch.
        """
        if part.held or not part.ledger.may_admit():
            return True
        if any(part in line for line in self._lines):
            return True
        if not self._shares:
            return False
        settings = self._settings
        share = settings.max_queued_records // len(self._partitions)
        return self._records(part) >= max(share, 2 * settings.max_poll_records)

    def _records(self, part: Partition) -> int:
        """Return how many of a partition's records take room of what may be admitted."""
        return part.records_waiting(counts_settling=self._counts_settling)

    async def _read(self, source: Source, part: Partition, block: Block) -> None:
        """Admit a block that was polled, or let its records stand in line where they run alone."""
        if not self._is_ours(part) or part.source_epoch != block.epoch:
            return  # prefetched before the partition changed hands (FAULTS B16)
        first = block.records[0].offset
        if first < part.ledger.next_offset:
            # Its offsets would count as finished; only a topic that was deleted and made again has them (B104).
            self._admission.went_back(part, first)
            return
        if self._suspects is not None and self._suspects.takes(part, block):
            self._pause(source, (part,))
            return
        if self._schemas is not None and self._schemas.joined(part, block):
            self._pause(source, (part,))
            return
        await self._admit(source, part, block)

    async def _admit(
        self, source: Source, part: Partition, block: Block, *, waits: bool = False
    ) -> None:
        """Admit a block and take what it becomes; ``waits``: for its schemas, else it stands in line for them."""
        records = part.ledger.admit(block.records)
        if not records:
            self._admission.skipped(part)
            return
        size = size_of(records)
        part.in_flight += len(records)
        part.in_flight_bytes += size
        decoded = await self._reading.read(part, records, size)
        if self._schemas is not None:
            if waits:
                decoded = await self._schemas.whole(part, records, decoded)
            elif self._schemas.takes(part, records, decoded):
                self._pause(source, (part,))
                return
        if self._claimed is not None and self._suspects is not None and self._suspects.reads(part):
            decoded = await self._claimed.whole(part, decoded)
        self._route(source, part, records, decoded)

    def _route(
        self, source: Source, part: Partition, records: Sequence[Record], decoded: Decoded
    ) -> None:
        """Take what a block has become, unless it is ours no more."""
        if self.stopped or not self._is_ours(part):
            # Revoked, taken over anew or draining since: whoever owns it next reads these records.
            part.in_flight -= len(records)
            part.in_flight_bytes -= size_of(records)
            return
        if decoded.skipped:
            self._admission.passed_over(decoded.skipped)
        if self._suspects is not None:
            decoded = self._suspects.judge(part, decoded)
        if self._claimed is not None and self._claimed.takes(part, decoded):
            self._pause(source, (part,))
            return
        self._take(source, part, decoded)

    def _take(self, source: Source, part: Partition, decoded: Decoded) -> None:
        """Offer what was decoded of a partition, and pause it where that was enough for now."""
        for failure in decoded.failures:
            self._placement.resolve(failure.entry)
        if self._sequences:
            self._offer_steps(part, decoded)
        else:
            self._offer_requests(part, decoded)
        if self._must_pause(part):
            self._pause(source, (part,))

    def _offer_requests(self, part: Partition, decoded: Decoded) -> None:
        if decoded.failures:
            self._admission.fail(part, decoded)
        for version, entries in decoded.by_version.items():
            refusals = self._screen(entries)
            fit = entries
            if refusals:
                self._admission.refuse(refusals)
                refused = {id(refusal.entry) for refusal in refusals}
                fit = [entry for entry in entries if id(entry) not in refused]
            if decoded.keyed:
                fit = self._admission.screen(part, version, fit)
            self._offer(part, version, fit)

    def _offer_steps(self, part: Partition, decoded: Decoded) -> None:
        """Offer a block of a sequence model, in the order of its partition whatever versions are asked for."""
        entries: list[Entry] = []
        for version, found in decoded.by_version.items():
            for entry in found:
                entry.version = version
            for refusal in self._screen(found):
                refusal.entry.error = refusal.error
            entries += found
        for failure in decoded.failures:
            failure.entry.error, failure.entry.dead_letter = failure.error, failure.dead_letter
            entries.append(failure.entry)
        if decoded.failures or len(decoded.by_version) > 1:
            entries.sort(key=lambda entry: entry.record.offset)
        if decoded.keyed:
            self._admission.screen_steps(part, decoded.keyed)
        self._admission.route(part, entries)

    def _is_ours(self, part: Partition) -> bool:
        return part.active and self._partitions.get(part.tp) is part

    def _screen(self, entries: Sequence[Entry]) -> list[Refusal]:
        """Set absolute deadlines; returns what must not be queued (reply address, cancelled)."""
        refusals: list[Refusal] = []
        for entry in entries:
            if entry.deadline_ms:
                left_ms = entry.deadline_ms - self._clock.wall_ms()
                entry.expires_ns = max(1, self._clock.now_ns() + left_ms * 1_000_000)
            if entry.reply_topic:
                error: InferError | None = self._placement.resolve(entry)
                if error is None and entry.correlation_id in self._cancelled:
                    error = Cancelled("the request was cancelled before it was queued")
                if error is not None:
                    refusals.append(Refusal(entry, error))
        return refusals

    def _offer(self, part: Partition, version: int, entries: Sequence[Entry]) -> list[Entry]:
        """Offer entries; returns those that are held now, in order: nobody awaits them and their queue is full."""
        refusals = self._admission.offer(version, entries)
        if not refusals:
            return []
        answers: list[Refusal] = []
        held: list[Entry] = []
        for refusal in refusals:
            if refusal.error.reason is Reason.QUEUE_FULL and not refusal.entry.awaited:
                refusal.entry.model_version = str(version)
                held.append(refusal.entry)
            else:
                answers.append(refusal)
        part.held += held
        if answers:
            self._admission.refuse(answers)
        return held

    def _offer_held(self, part: Partition) -> None:
        """Offer what is held again, a slice at a time, and of a queue that is found full nothing more."""
        held, part.held = part.held, type(part.held)()
        full: set[tuple[str, int]] = set()
        while held:
            version = held[0].model_version
            run: list[Entry] = []
            while held and len(run) < HELD_SLICE and held[0].model_version == version:
                entry = held.popleft()
                (part.held if (version, entry.priority) in full else run).append(entry)
            if run:
                refused = self._offer(part, int(version), run)
                full.update([(version, entry.priority) for entry in refused])
