"""Each partition's sequences: the live ones, what ended, and the partition's own time. Pure.

Here is how they come with a partition and go with it, or by silence; what becomes of a record is decided in
`headrace.consumers.sequences`, where the rules are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import NamedTuple

from headrace.consumers.batcher import Refusal
from headrace.consumers.live_sequence import LiveSequence
from headrace.schemas.batch import Entry
from headrace.schemas.infer import SequenceId
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState, sequence_id_of
from headrace.schemas.signature import Signature
from headrace.streams.status import SequenceCounts

REAP_AT_ONCE = 1000
"""Sequences that one look of the reaper expires at most: it shares the loop with heartbeats."""


class Routed(NamedTuple):
    """A block's records.

    Attributes:
        by_version: Entries for each version's batcher, in order.
        refusals: Answered at once: no sequence has them wait.
        closed: Finished by an earlier owner: nothing runs.
    """

    by_version: dict[int, list[Entry]]
    refusals: list[Refusal]
    closed: list[Entry]


class SequenceTable:
    """One partition's sequences.

    Attributes:
        epoch: Our epoch of its assignment.
        lanes: Sequence id → live sequence, the longest silent first. 7 and "7" are different ids here too (KX-12).
        markers: Key → what ended.
        details: Key → why its state could not be restored.
        log_ms: Greatest record timestamp that was read.
    """

    __slots__ = ("details", "epoch", "lanes", "log_ms", "markers")

    def __init__(self, epoch: int) -> None:
        """Start empty."""
        self.epoch = epoch
        # An ordered dict, for the longest silent one must be found without walking over removed places.
        self.lanes: OrderedDict[SequenceId, LiveSequence] = OrderedDict()
        self.markers: dict[bytes, SequenceState] = {}
        self.details: dict[bytes, str] = {}
        self.log_ms = 0

    def silent(self, before_ms: float) -> Iterator[LiveSequence]:
        """Yield the idle sequences whose last record is older; not while the table changes.

        Busy ones are passed over, and there are never more of them than requests in flight: with memory of its own
        a model may have the longest silent one in the backlog, waiting for the slot of a silent one behind it.
        """
        for lane in self.lanes.values():
            if lane.timestamp_ms >= before_ms:
                return
            if lane.is_idle:
                yield lane


class SequenceTables:
    """The tables of the partitions that are ours: takeover, silence, and what there is to show.

    Attributes:
        counts: What happened to the sequences.
        keeps_state: The model declares its state.
    """

    def __init__(
        self,
        signatures: Mapping[int, Signature],
        *,
        counts: SequenceCounts,
        idle_ms: float,
        keeps_state: bool,
        release: Callable[[LiveSequence], None],
    ) -> None:
        """Start without partitions; the arguments are those of `headrace.consumers.sequences.Sequences`."""
        self.counts = counts
        self._signatures = signatures
        self._idle_ms = idle_ms
        self.keeps_state = keeps_state
        self._release = release
        self._tables: dict[TP, SequenceTable] = {}
        self._live = 0

    def __repr__(self) -> str:
        """Show the counts."""
        return f"{type(self).__name__}({self._live} live on {len(self._tables)} partitions)"

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
        for lane in table.lanes.values():
            if lane.state is not None:
                yield lane.key, lane.state

    def finished(self, tp: TP, key: bytes) -> int:
        """Return the offset up to which a sequence's records are finished, -1 where nothing is known of it."""
        table = self._tables[tp]
        lane = table.lanes.get(sequence_id_of(key))
        state = table.markers.get(key) if lane is None else lane.state
        return -1 if state is None else state.offset

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
            sequence_id = sequence_id_of(key)
            table.lanes[sequence_id] = LiveSequence(
                key, sequence_id, tp, epoch, state.version, state
            )
            self.counts.restored += 1
        self.counts.lost += len(details)
        self._live += len(table.lanes)
        return lost

    def _unusable(self, state: SequenceState) -> str:
        if not self.keeps_state:
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

    def idle(self, lane: LiveSequence) -> None:
        """Take note that nothing is queued or runs of a sequence any more: one that has ended becomes a marker."""
        table = self._tables.get(lane.tp)
        if lane.is_open or table is None or table.lanes.get(lane.sequence_id) is not lane:
            return
        del table.lanes[lane.sequence_id]
        self._live -= 1
        if lane.state is not None:
            table.markers[lane.key] = lane.state
            self._mark(lane.state.flag)

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
            del table.lanes[lane.sequence_id]
            self._live -= 1
            if marker is not None:
                table.markers[lane.key] = reaped[lane.key] = marker
                self._mark(Flag.EXPIRED)
        return reaped

    def _mark(self, flag: Flag) -> None:
        """Count the end of a sequence."""
        match flag:
            case Flag.EXPIRED:
                self.counts.expired += 1
            case Flag.ENDED:
                self.counts.ended += 1
            case Flag.LOST:
                self.counts.lost += 1
