"""Reads the state topic at a takeover: per key the snapshot from which its new owner goes on (DELIVERY P-4, P-5).

A record's key holds the nonce of the takeover that wrote it. Per record key the greatest input offset counts, a
tombstone removes that record key only, and among a key's nonces the greatest offset wins, a marker before a live one.
Every nonce's own best is kept until the end, not the winner alone: a zombie may have been ahead of the owner when the
owner removed it, and then the owner's is the one that counts.

A live winner that was written while the input topic had another number of partitions is lost: its key may have been
on another partition since, and nobody here knows what became of it there. It stays lost where the key has not moved,
for a topic may have grown more than once, and where producers put a key is their own affair.

Nothing is decoded but heads, until all is read (FAULTS B96): memory is bounded by what compaction would leave. A
snapshot that cannot be used makes its key lost, with a sentence, and the others go on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out, Record
from headrace.schemas.sequence import Flag
from headrace.schemas.snapshot import (
    CorruptSnapshot,
    Damage,
    S,
    SnapshotError,
    StateCodec,
    StateKind,
    nonce_partitions,
    read_rank,
    split_state_key,
    unpack_snapshot,
)
from headrace.streams.log import EARLIEST, LATEST, Log, Reader, Span

POLL_S = 1.0
"""Wait of one poll, seconds."""

SLICE_KEYS = 200
"""Keys that are decoded without letting the loop do anything else: about 1 ms of snapshots of 4 kB."""

UNKNOWN_RANK = (-1, False)


@dataclass(slots=True)
class Restored(Generic[S]):
    """What one state partition holds.

    Attributes:
        states: Key → its latest state: live, a marker, or `Flag.LOST` where it cannot be used.
        answers: Key → input offset → the answer recorded with that state (P-16).
        nonces: Key → nonces under which it is in the topic, the winner's last; to be removed by the next owner.
        failures: Lost key → why, in one sentence.
        damage: How many of each kind.
        finally_lost: Lost keys that nobody can ever go on with, with a known offset; those of another layout or a newer
            release may still be good for whoever has that.
        written_ms: Key of a marker → timestamp of its record, ms: its age counts from there.
        outdated: Record keys of states beyond the end of their input partition: of an earlier topic of that name.
        records: Records read.
        bytes: Their values' bytes.
        ignored: Records among them that are not of this store, and record keys that nobody of it makes.
    """

    states: dict[bytes, S] = field(default_factory=dict)
    answers: dict[bytes, Mapping[int, Out]] = field(default_factory=dict)
    nonces: dict[bytes, Sequence[bytes]] = field(default_factory=dict)
    failures: dict[bytes, str] = field(default_factory=dict)
    damage: dict[Damage, int] = field(default_factory=dict)
    finally_lost: set[bytes] = field(default_factory=set)
    written_ms: dict[bytes, int] = field(default_factory=dict)
    outdated: list[bytes] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    ignored: int = 0


_Best: TypeAlias = tuple[tuple[int, bool], Record, str]
"""Rank, record, and why its head cannot be read: then the rank is that of the one before it."""


class Newest(NamedTuple):
    """How much of a topic that keeps more than anybody wants is read.

    Attributes:
        keys: Record keys that are kept of a partition, the newest.
        size: The same in bytes of their values.
        offsets: Only so many last offsets of a partition are read.
    """

    keys: int
    size: int
    offsets: int


class StateFold:
    """Folds the records of one state partition, in the order of the log. Pure."""

    def __init__(self, kind: str = StateKind.SEQUENCE, newest: Newest | None = None) -> None:
        """Start empty; records of other kinds are ignored, and of those beyond ``newest`` the oldest forgotten."""
        self._prefix = kind.encode() + b"/"
        self._newest = newest
        self._best: dict[bytes, _Best] = {}
        self.records = 0
        self.bytes = 0
        self.ignored = 0

    def add(self, records: Sequence[Record]) -> None:
        """Take the next records; what is done here is done twenty times per key."""
        best, prefix = self._best, self._prefix
        size = 0
        is_bounded = self._newest is not None
        self.records += len(records)
        for record in records:
            key, value = record.key, record.value
            if key is None or not key.startswith(prefix):
                self.ignored += 1
                continue
            if value is None:
                best.pop(key, None)
                continue
            size += len(value)
            old = best.get(key)
            try:
                rank = read_rank(value)
            except CorruptSnapshot as exc:
                best[key] = (UNKNOWN_RANK if old is None else old[0], record, exc.detail)
                continue
            # What follows a snapshot that cannot be read replaces it: its writer has gone on from there.
            if old is None or rank >= old[0] or old[2]:
                if is_bounded and old is not None:
                    del best[key]  # it is among the newest now
                best[key] = (rank, record, "")
        self.bytes += size
        if self._newest is not None:
            self._trim(self._newest)

    def _trim(self, newest: Newest) -> None:
        best = self._best
        sizes = {key: len(found[1].value or b"") for key, found in best.items()}
        size = sum(sizes.values())
        while best and (len(best) > newest.keys or size > newest.size):
            key = next(iter(best))
            size -= sizes[key]
            del best[key]

    def decode(
        self,
        codec: StateCodec[S],
        into: Restored[S],
        *,
        end: int = sys.maxsize,
        input_partitions: int = 0,
    ) -> Iterator[None]:
        """Choose the winners and decode them into ``into``, with a stop every `SLICE_KEYS` keys; empties the fold.

        Args:
            codec: Of the states.
            into: Filled.
            end: Of the input partition, fetched when all was read: no state of its can be as of a later offset.
            input_partitions: How many the input topic has; 0 takes states that were written under any number.
        """
        into.records, into.bytes, into.ignored = self.records, self.bytes, self.ignored
        found: dict[bytes, list[tuple[_Best, bytes]]] = {}
        shared: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
        while self._best:
            record_key, best = self._best.popitem()
            try:
                _, key, nonce = split_state_key(record_key)
                codec.check_key(key)
            except ValueError:
                into.ignored += 1
                continue
            if best[0][0] >= end:
                into.outdated.append(record_key)
                continue
            found.setdefault(key, []).append((best, nonce))
            if len(self._best) % SLICE_KEYS == 0:
                yield
        while found:
            key, candidates = found.popitem()
            candidates.sort(key=lambda candidate: candidate[0][0])
            nonces = tuple([nonce for _, nonce in candidates])
            into.nonces[key] = shared.setdefault(nonces, nonces)
            _decide(codec, into, key, [best for best, _ in candidates])
            if input_partitions and (was := nonce_partitions(nonces[-1])) != input_partitions:
                _lose_moved(codec, into, key, was, input_partitions)
            if len(found) % SLICE_KEYS == 0:
                yield


def _decide(codec: StateCodec[S], into: Restored[S], key: bytes, found: Sequence[_Best]) -> None:
    """Decode the winner, the last one; where any head cannot be read, it may have been that: the key is lost."""
    (offset, is_marker), record, _ = found[-1]
    unreadable = next((why for _, _, why in found if why), "")
    try:
        if unreadable:
            raise CorruptSnapshot(unreadable)
        state, answers = unpack_snapshot(codec, record.value or b"")
    except SnapshotError as exc:
        into.failures[key] = exc.detail
        into.damage[exc.damage] = into.damage.get(exc.damage, 0) + 1
        into.states[key] = codec.lost(offset, record.timestamp)
        if exc.damage is Damage.CORRUPT and offset >= 0:
            into.finally_lost.add(key)
        return
    into.states[key] = state
    if answers:
        into.answers[key] = answers
    if is_marker:
        into.written_ms[key] = record.timestamp


def _lose_moved(
    codec: StateCodec[S], into: Restored[S], key: bytes, was: int, partitions: int
) -> None:
    """Lose a live state that was written while the input topic had ``was`` partitions; its answers are kept."""
    state = into.states[key]
    if state.flag is not Flag.LIVE:
        return
    into.states[key] = codec.lost(state.offset, state.timestamp_ms)
    into.failures[key] = (
        f"its topic had {was or 'an unknown number of'} partitions when it was written and has {partitions} now: "
        "its requests may have gone to another one since"
    )
    into.finally_lost.add(key)


async def restore(
    log: Log,
    topic: str,
    partitions: Collection[int],
    codec: StateCodec[S],
    *,
    kind: str = StateKind.SEQUENCE,
    input_partitions: int = 0,
    ends: Callable[[], Awaitable[Mapping[int, int]]] | None = None,
    newest: Newest | None = None,
    max_records: int = 1000,
    stall_s: float = 30.0,
) -> Mapping[int, Restored[S]]:
    """Read state partitions from their beginning to what is their last stable offset now.

    Called when the committed offsets are known and before the membership is confirmed (P-5), by one reader over all
    partitions. Aborted and open transactions are hidden, and do not keep it from ending (FAULTS B24).

    Args:
        log: Where they are.
        topic: State topic.
        partitions: Which of its partitions.
        codec: Of what they hold.
        kind: What they hold.
        input_partitions: How many the input topic has now: what is live and was written under another number is lost. 0
            takes everything.
        ends: Fetches the end of each input partition. Called when all is read, for an earlier owner may have gone on
            until then; what is beyond is left out: the input topic was deleted and made again (FAULTS B104).
        newest: Only so much is read and kept; everything unless given.
        max_records: Records that are folded without letting the loop do anything else.
        stall_s: How long to wait for progress, seconds.

    Returns:
        Partition → what it holds.

    Raises:
        LogError: The topic cannot be read, or there was no progress.
    """
    folds = {partition: StateFold(kind, newest) for partition in partitions}
    spans = {TP(topic, partition): Span(EARLIEST, LATEST) for partition in folds}
    if spans and newest is not None:
        spans = await _last(log, spans, newest.offsets)
    if spans:
        async with log.reader(spans, committed=True) as reader:
            await _read(reader, folds, max_records, stall_s)
    found = await ends() if ends is not None and folds else {}
    restored: dict[int, Restored[S]] = {}
    for partition, fold in folds.items():
        restored[partition] = Restored[S]()
        end = found.get(partition, sys.maxsize)
        for _ in fold.decode(
            codec, restored[partition], end=end, input_partitions=input_partitions
        ):
            await asyncio.sleep(0)
    return restored


async def _last(log: Log, spans: Mapping[TP, Span], offsets: int) -> dict[TP, Span]:
    """Return the last stretch of each partition that is not empty."""
    async with log.reader(dict.fromkeys(spans, Span(LATEST)), committed=True) as reader:
        ends = reader.positions()
    return {tp: Span(max(0, end - offsets), end) for tp, end in ends.items() if end > 0}


async def _read(
    reader: Reader, folds: Mapping[int, StateFold], max_records: int, stall_s: float
) -> None:
    loop = asyncio.get_running_loop()
    reached, since = reader.positions(), loop.time()
    while not reader.done():
        for block in await reader.poll(max_records, min(POLL_S, stall_s)):
            folds[block.tp.partition].add(block.records)
            await asyncio.sleep(0)
        positions = reader.positions()
        if positions != reached:
            reached, since = positions, loop.time()
        elif loop.time() - since >= stall_s:
            where = ", ".join(f"{tp.topic}/{tp.partition} at {at}" for tp, at in reached.items())
            raise LogError(
                f"reading states made no progress for {stall_s:g} s: {where}", retriable=True
            )
