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

from collections.abc import Callable, Mapping, Sequence

from headrace.consumers.batcher import Refusal
from headrace.consumers.live_sequence import ENDING, LiveSequence
from headrace.consumers.sequence_table import Routed, SequenceTable, SequenceTables
from headrace.consumers.sequence_words import SequenceWords
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, InvalidRequest
from headrace.schemas.model_config import ControlKind
from headrace.schemas.record import TP
from headrace.schemas.sequence import MAX_ID_BYTES, Flag, sequence_key
from headrace.schemas.signature import Signature
from headrace.streams.status import SequenceCounts

MAX_KEY_BYTES = MAX_ID_BYTES + 2


class Sequences(SequenceTables):
    """The live and ended sequences of one model, by input partition, and what becomes of each record."""

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
        first_sight: bool = False,
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
            first_sight: A request of no live sequence starts one, whatever ended before; for topics that people map.
        """
        super().__init__(
            signatures,
            counts=counts,
            idle_ms=idle_us / 1000,
            keeps_state=keeps_state,
            release=release,
        )
        self._signature = signatures[max(signatures)]
        self._must_check = any(c.kind is ControlKind.CORRID for c in self._signature.controls)
        self._words = SequenceWords(self._signature.model_name, self._idle_ms)
        self._checks_keys = checks_keys
        self._max_live = max_live
        self._adopt = adopt
        self._on_split = on_split
        self._first_sight = first_sight

    def route(self, tp: TP, entries: Sequence[Entry]) -> Routed:
        """Decide what becomes of a block's records; sets ``sequence``, ``version`` and maybe ``error`` of each.

        Args:
            tp: Their partition, which was opened.
            entries: In offset order. An ``error`` that is set already says that the request is bad.
        """
        table = self._tables[tp]
        routed = Routed({}, [], [])
        find, touch = table.lanes.get, table.lanes.move_to_end
        must_check, idle_ms = self._must_check, self._idle_ms
        home = -1
        steps: list[Entry] = []
        for entry in entries:
            record = entry.record
            lane = find(entry.sequence_id)
            # A step of an open sequence stands here, so that it costs no call: nothing is wrong with it.
            if (
                lane is not None
                and lane.is_open
                and lane.text == record.key
                and not (entry.sequence_start or entry.sequence_end or must_check)
                and entry.error is None
                and entry.rows == 1
                and (lane.state is None or lane.state.offset < record.offset)
                and record.timestamp - lane.timestamp_ms <= idle_ms
                and (not entry.model_version or entry.version == lane.version)
            ):
                entry.version = lane.version
                entry.sequence = lane
                lane.timestamp_ms = record.timestamp
                touch(entry.sequence_id)
            else:
                lane = self._decide(table, lane, entry, routed)
                if lane is None:
                    continue
            if lane.home != home:
                home = lane.home
                steps = routed.by_version.setdefault(home, [])
            steps.append(entry)
        if entries:
            table.log_ms = max(table.log_ms, entries[-1].record.timestamp)
        return routed

    def _decide(
        self, table: SequenceTable, lane: LiveSequence | None, entry: Entry, routed: Routed
    ) -> LiveSequence | None:
        """Decide about a request that may be anything; returns the sequence in whose turn it is answered, if any."""
        sequence_id = entry.sequence_id
        if not sequence_id:
            error = entry.error or self._bad(entry, b"")
            assert error is not None  # no id is an error in itself
            routed.refusals.append(Refusal(entry, error))
            return None
        key = sequence_key(sequence_id)
        state = table.markers.get(key) if lane is None else lane.state
        if state is not None and entry.record.offset <= state.offset:
            routed.closed.append(entry)
            return None
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
            return self._refuse(table, key, entry, error, routed)
        found: LiveSequence = entry.sequence
        return found

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
            if not (entry.sequence_start or self._first_sight):
                return self._words.expired(entry.sequence_id, at_ms - lane.timestamp_ms)
        if self._first_sight and (lane is None or not lane.is_open):
            entry.sequence_start = True
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
                table.lanes.move_to_end(entry.sequence_id)
            lane.version = entry.version
        elif lane is None or not lane.is_open:
            return self._closed(table, lane, key, entry)
        elif entry.model_version and entry.version != lane.version:
            return self._words.other_version(entry.sequence_id, entry.version, lane.version)
        else:
            entry.version = lane.version
            table.lanes.move_to_end(entry.sequence_id)
        lane.is_open = not entry.sequence_end
        lane.closed_as = Flag.ENDED
        lane.timestamp_ms = at_ms
        entry.sequence = lane
        return None

    def _new(self, table: SequenceTable, key: bytes, entry: Entry) -> LiveSequence:
        state = table.markers.pop(key, None)
        table.details.pop(key, None)
        lane = LiveSequence(key, entry.sequence_id, entry.tp, table.epoch, entry.version, state)
        table.lanes[entry.sequence_id] = lane
        self._live += 1
        self._elsewhere(table, key, entry)
        return lane

    def _elsewhere(self, table: SequenceTable, key: bytes, entry: Entry) -> TP | None:
        """Return another partition on which a request's sequence is live; counted and told (DESIGN §4)."""
        for tp, other in self._tables.items():
            if (
                other is not table
                and (twin := other.lanes.get(entry.sequence_id))
                and twin.is_open
            ):
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
    ) -> LiveSequence | None:
        """Answer a request with an error: in its turn if its sequence is known, which is returned, else at once."""
        lane = table.lanes.get(entry.sequence_id)
        if lane is not None:
            if (mark := ENDING.get(error.reason)) is not None and lane.is_open:
                lane.is_open, lane.closed_as = False, mark  # cancelled before it was read (SQ-16)
            entry.error, entry.sequence = error, lane
            entry.version = lane.version
            return lane
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
        return None

    def moved(self, lane: LiveSequence) -> None:
        """Hand a sequence over whose next request starts it anew on another version."""
        assert lane.head is not None
        lane.home = lane.head.version
        self._adopt(lane)
