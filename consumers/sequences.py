"""Which sequences a worker holds: every record of a sequence model passes here, in the order of its partition. Pure.

Rules of this module:

1. A sequence belongs to the partition of its key, and an id's requests are one order (SEMANTICS KX-03). What a
   record is (start, step, end, too late, unknown) depends on the records before it and their timestamps alone, so
   whoever reads the partition again decides the same (DELIVERY P-15).
2. A record at or below its sequence's state is finished: it is closed without running (P-3).
3. A request that is refused while others of its sequence wait is answered in its turn (`Entry.error`).
4. What ended stays as a marker until its tombstone, so that a late request hears why (FAULTS B89).
5. Silence alone frees memory only when it is sure what the log will say (P-15): the partition's own time is past the
   deadline, or ours is by a margin and the partition is read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice

from headrace.consumers.batcher import Refusal
from headrace.consumers.live_sequence import ENDING, LiveSequence
from headrace.consumers.sequence_table import Routed, SequenceTable
from headrace.consumers.sequence_words import SequenceWords
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, InvalidRequest
from headrace.schemas.model_config import ControlKind
from headrace.schemas.record import TP
from headrace.schemas.sequence import (
    MAX_ID_BYTES,
    Flag,
    SequenceState,
    sequence_id_of,
    sequence_key,
)
from headrace.schemas.signature import Signature
from headrace.streams.status import SequenceCounts

MAX_KEY_BYTES = MAX_ID_BYTES + 2
REAP_AT_ONCE = 1000
"""Sequences that one look of the reaper expires at most: it shares the loop with heartbeats."""


class Sequences:
    """The live and ended sequences of one model, by input partition.

    Attributes:
        counts: What happened to them.
    """

    def __init__(
        self,
        signatures: Mapping[int, Signature],
        *,
        counts: SequenceCounts,
        idle_us: int,
        keeps_state: bool,
        checks_keys: bool = True,
        max_live: int,
        release: Callable[[LiveSequence], None],
        adopt: Callable[[LiveSequence], None],
        on_split: Callable[[bytes, TP, TP], None] = lambda *_: None,
    ) -> None:
        """Start without partitions.

        Args:
            signatures: By version that is served; all of one configuration.
            counts: Where to count.
            idle_us: Longest silence of a sequence, µs (SB-04).
            keeps_state: The model declares its state; else a takeover loses it.
            checks_keys: A record's key must be its sequence id; False for topics that people map.
            max_live: Live sequences over all partitions; a START beyond is refused.
            release: Takes an idle sequence's slot away.
            adopt: Hands a sequence's queue to the batcher of its ``home``.
            on_split: Told of a sequence that is live on two partitions.
        """
        self.counts = counts
        self._signatures = signatures
        self._signature = signatures[max(signatures)]
        self._must_check = any(c.kind is ControlKind.CORRID for c in self._signature.controls)
        self._idle_ms = idle_us / 1000
        self._words = SequenceWords(self._signature.model_name, self._idle_ms)
        self._keeps_state = keeps_state
        self._checks_keys = checks_keys
        self._max_live = max_live
        self._release = release
        self._adopt = adopt
        self._on_split = on_split
        self._tables: dict[TP, SequenceTable] = {}
        self._live = 0

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Sequences({self._live} live on {len(self._tables)} partitions)"

    def __len__(self) -> int:
        """Return the number of live sequences."""
        return self._live

    def __iter__(self) -> Iterator[LiveSequence]:
        """Iterate over the live sequences, per partition the longest silent first."""
        for table in self._tables.values():
            yield from table.lanes.values()

    def recent(self, limit: int) -> list[LiveSequence]:
        """Return the live sequences that were active last, the latest first."""
        newest = [reversed(table.lanes.values()) for table in self._tables.values()]
        return list(islice(merge(*newest, key=lambda lane: -lane.timestamp_ms), limit))

    def states(self, tp: TP) -> Iterator[tuple[bytes, SequenceState]]:
        """Iterate over key and latest state of a partition's sequences, ended ones too; not while they change."""
        table = self._tables.get(tp)
        if table is None:
            return
        yield from table.markers.items()
        for key, lane in table.lanes.items():
            if lane.state is not None:
                yield key, lane.state

    def open(
        self,
        tp: TP,
        epoch: int,
        states: Mapping[bytes, SequenceState],
        details: Mapping[bytes, str],
    ) -> dict[bytes, SequenceState]:
        """Take a partition over with what its state topic says (DELIVERY P-5).

        Args:
            tp: Input partition.
            epoch: Our epoch of the assignment.
            states: Key → the sequence as of its greatest input offset (P-4).
            details: Key → why a state is unusable; it is a `Flag.LOST` marker in ``states``.

        Returns:
            Key → marker of the sequences that are lost by this takeover and should be remembered so.
        """
        self.close(tp)
        table = self._tables[tp] = SequenceTable(epoch)
        table.details.update(details)
        lost: dict[bytes, SequenceState] = {}
        # The reaper needs the longest silent first, and the topic's order is that of the snapshots.
        for key, state in sorted(states.items(), key=lambda item: item[1].timestamp_ms):
            if state.flag is not Flag.LIVE:
                table.markers[key] = state
                continue
            why = self._unusable(state)
            if why:
                table.details[key] = why
                table.markers[key] = lost[key] = state.marked(Flag.LOST, state.offset)
                self._mark(Flag.LOST)
                continue
            table.lanes[key] = LiveSequence(
                key, sequence_id_of(key), tp, epoch, state.version, state
            )
            self.counts.restored += 1
        self.counts.lost += len(details)
        self._live += len(table.lanes)
        return lost

    def _unusable(self, state: SequenceState) -> str:
        if not self._keeps_state:
            return "its worker is gone, and the memory that the model keeps of its own with it"
        if state.version not in self._signatures:
            return f"it was on version {state.version}, which is not served any more"
        return ""

    def resume(self, tp: TP, epoch: int) -> None:
        """Go on with a partition that came back before anybody else had it (DELIVERY P-7)."""
        table = self._tables[tp]
        table.epoch = epoch
        # What was read and never ran is read again, and decides by its own time (P-15).
        table.log_ms = 0

    def close(self, tp: TP) -> None:
        """Forget a partition: it is somebody else's, or taken over anew."""
        table = self._tables.pop(tp, None)
        if table is not None:
            self._live -= len(table.lanes)

    def forget(self, tp: TP, keys: Iterable[bytes]) -> None:
        """Forget markers whose tombstones are written."""
        table = self._tables.get(tp)
        if table is None:
            return
        for key in keys:
            table.markers.pop(key, None)
            table.details.pop(key, None)

    def route(self, tp: TP, entries: Sequence[Entry]) -> Routed:
        """Decide what becomes of a block's records; sets ``sequence``, ``version`` and maybe ``error`` of each.

        Args:
            tp: Their partition, which was opened.
            entries: In offset order. An ``error`` that is set already says that the request is bad.
        """
        table = self._tables[tp]
        routed = Routed({}, [], [])
        for entry in entries:
            sequence_id = entry.sequence_id
            if not sequence_id:
                error = entry.error or self._bad(entry, b"")
                assert error is not None  # no id is an error in itself
                routed.refusals.append(Refusal(entry, error))
                continue
            key = sequence_key(sequence_id)
            lane = table.lanes.get(key)
            state = table.markers.get(key) if lane is None else lane.state
            if state is not None and entry.record.offset <= state.offset:
                routed.closed.append(entry)
                continue
            error = entry.error
            if error is None and (
                entry.rows != 1
                or self._must_check
                or entry.record.key != key[2:]
                or len(key) > MAX_KEY_BYTES
            ):
                error = self._bad(entry, key)
            if error is None:
                error = self._place(table, lane, key, entry)
            if error is not None:
                self._refuse(table, key, entry, error, routed)
                continue
            lane = entry.sequence
            try:
                routed.by_version[lane.home].append(entry)
            except KeyError:
                routed.by_version[lane.home] = [entry]
        if entries:
            table.log_ms = max(table.log_ms, entries[-1].record.timestamp)
        return routed

    def _bad(self, entry: Entry, key: bytes) -> InferError | None:
        """Return what is wrong with a request by itself (SQ-01, SQ-02, SQ-14, DESIGN §4)."""
        try:
            self._signature.check_sequence(entry.sequence_id, entry.rows)
        except InvalidRequest as exc:
            return exc
        if not self._checks_keys or entry.record.key == key[2:]:
            return None
        return self._words.other_key(entry.record.key, key[2:])

    def _place(
        self, table: SequenceTable, lane: LiveSequence | None, key: bytes, entry: Entry
    ) -> InferError | None:
        """Bind a request to its sequence; returns an error where it has none."""
        at_ms = entry.record.timestamp
        if lane is not None and lane.is_open and at_ms - lane.timestamp_ms > self._idle_ms:
            lane.is_open, lane.closed_as = False, Flag.EXPIRED
            if not entry.sequence_start:
                return self._words.expired(entry.sequence_id, at_ms - lane.timestamp_ms)
        if entry.sequence_start:
            if lane is None:
                if self._live >= self._max_live:
                    return self._words.too_many(self._live, self._max_live)
                lane = self._new(table, key, entry)
            else:
                if not lane.is_open:
                    # It is never idle between the two, and `idle` counts the others.
                    self._mark(lane.closed_as)
                # On another version, its batcher hands it over: earlier steps may still be on their way there.
                table.lanes.move_to_end(key)
            lane.version = entry.version
        elif lane is None or not lane.is_open:
            return self._closed(table, lane, key, entry)
        elif entry.model_version and entry.version != lane.version:
            return self._words.other_version(entry.sequence_id, entry.version, lane.version)
        else:
            entry.version = lane.version
            table.lanes.move_to_end(key)
        lane.is_open = not entry.sequence_end
        lane.closed_as = Flag.ENDED
        lane.timestamp_ms = at_ms
        entry.sequence = lane
        return None

    def _new(self, table: SequenceTable, key: bytes, entry: Entry) -> LiveSequence:
        state = table.markers.pop(key, None)
        table.details.pop(key, None)
        lane = LiveSequence(key, entry.sequence_id, entry.tp, table.epoch, entry.version, state)
        table.lanes[key] = lane
        self._live += 1
        self._elsewhere(table, key, entry)
        return lane

    def _elsewhere(self, table: SequenceTable, key: bytes, entry: Entry) -> TP | None:
        """Return another partition on which a request's sequence is live; counted and told (DESIGN §4)."""
        for tp, other in self._tables.items():
            if other is not table and (twin := other.lanes.get(key)) and twin.is_open:
                self.counts.split += 1
                self._on_split(key, entry.tp, tp)
                return tp
        return None

    def _closed(
        self, table: SequenceTable, lane: LiveSequence | None, key: bytes, entry: Entry
    ) -> InferError:
        """Return why a request without START has no sequence: which text and reason depends on how it ended."""
        flag: Flag | None = None
        last_ms = 0
        if lane is not None:
            flag, last_ms = lane.closed_as, lane.timestamp_ms
        elif (marker := table.markers.get(key)) is not None:
            flag, last_ms = marker.flag, marker.timestamp_ms
        sequence_id = entry.sequence_id
        if flag is Flag.EXPIRED:
            return self._words.expired(sequence_id, entry.record.timestamp - last_ms)
        if flag is Flag.LOST:
            return self._words.lost(sequence_id, table.details.get(key, "its state is gone"))
        there = self._elsewhere(table, key, entry)
        if there is None:
            return self._words.unknown(sequence_id)
        return self._words.unknown(sequence_id, there=there.partition, here=entry.tp.partition)

    def _refuse(
        self, table: SequenceTable, key: bytes, entry: Entry, error: InferError, routed: Routed
    ) -> None:
        """Answer a request with an error: in its turn if its sequence is known, else at once."""
        lane = table.lanes.get(key)
        if lane is not None:
            if (mark := ENDING.get(error.reason)) is not None and lane.is_open:
                lane.is_open, lane.closed_as = False, mark  # cancelled before it was read (SQ-16)
            entry.error, entry.sequence = error, lane
            entry.version = lane.version
            routed.by_version.setdefault(lane.home, []).append(entry)
            return
        marker = table.markers.get(key)
        if marker is not None:
            ended = LiveSequence(
                key, entry.sequence_id, entry.tp, table.epoch, marker.version, marker
            )
            entry.error, entry.sequence = error, ended
            ended.refuse(entry)
            if ended.state is not None:
                table.markers[key] = ended.state
        routed.refusals.append(Refusal(entry, error))

    def _mark(self, flag: Flag) -> None:
        """Count the end of a sequence."""
        match flag:
            case Flag.EXPIRED:
                self.counts.expired += 1
            case Flag.ENDED:
                self.counts.ended += 1
            case Flag.LOST:
                self.counts.lost += 1

    def idle(self, lane: LiveSequence) -> None:
        """Take note that nothing is queued or runs of a sequence any more: one that has ended becomes a marker."""
        table = self._tables.get(lane.tp)
        if lane.is_open or table is None or table.lanes.get(lane.key) is not lane:
            return
        del table.lanes[lane.key]
        self._live -= 1
        if lane.state is not None:
            table.markers[lane.key] = lane.state
            self._mark(lane.state.flag)

    def moved(self, lane: LiveSequence) -> None:
        """Hand a sequence over whose next request starts it anew on another version."""
        assert lane.head is not None
        lane.home = lane.head.version
        self._adopt(lane)

    def silent(self, tp: TP, wall_ms: float) -> bool:
        """Whether some sequence of a partition would be expired by `reap` if ``wall_ms`` is certain."""
        table = self._tables.get(tp)
        if table is None:
            return False
        return next(table.silent(max(wall_ms, table.log_ms) - self._idle_ms), None) is not None

    def reap(self, tp: TP, wall_ms: float = 0) -> dict[bytes, SequenceState]:
        """Expire idle sequences that were silent for too long (FAULTS B88: each once).

        Args:
            tp: The partition.
            wall_ms: A time that any further record of the partition will be after; the partition's own time is
                always taken into account.

        Returns:
            Key → marker of each.
        """
        table = self._tables.get(tp)
        reaped: dict[bytes, SequenceState] = {}
        if table is None:
            return reaped
        before_ms = max(wall_ms, table.log_ms) - self._idle_ms
        for lane in list(islice(table.silent(before_ms), REAP_AT_ONCE)):
            marker = lane.expire()
            self._release(lane)
            del table.lanes[lane.key]
            self._live -= 1
            if marker is not None:
                table.markers[lane.key] = reaped[lane.key] = marker
                self._mark(Flag.EXPIRED)
        return reaped
