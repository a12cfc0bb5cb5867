"""The keyed store of an input partition: what must be durable before a position may be committed (DELIVERY P-2…P-4).

The way of a state, and what moves it on::

    stage      its answer is put for the coming settle
    begin      that settle begins
    settled    the answers are acknowledged: now a snapshot may say what follows from them
    snapshots  a commit begins: what is written is fixed
    saved      the snapshot is acknowledged: the commit may pass it

Per key only the latest counts, wherever it stands, and a step costs two stores into dicts: nothing is encoded before
a commit. A failed settle keeps what it was to settle for the next one, a failed commit what it was to save.

The rules, each with its counterexample in the tests:

1. A snapshot waits for the answers that it covers (M1), unless it carries all of them itself (``record_answers``,
   D8). Where a record has no room for them it waits, and the commit writes it. What it carries is what is not known
   to be out: a request that is delivered again is closed if its answer was acknowledged.
2. A commit waits for the snapshots of everything that was settled before it (P-3, D3).
3. A marker stays until an acknowledged commit has passed it and it is ``ended_ttl_ms`` old (P-2, D2). The age counts
   from its writing, as zombies' ages do: on a backlog, a request's own timestamp may be as old as it likes. The time
   must not be below the sequences' idle time: what a zombie wrote after our takeover read the topic is unknown to us,
   stays behind the tombstone, and the next owner restores it; by then it must be too old to go on (P-15). An early
   tombstone (``max_markers``) gives that up, and is counted.
4. Every takeover writes under keys of its own (P-4, D4b, M5). Others' keys go when ours has been acknowledged: the
   snapshot in it was continued from the greatest of theirs, so no reader can miss them, and the garbage is that of one
   takeover. Where we have none (a marker that was restored), the one that won goes last: a crash in between
   must not bring an older one back.
5. Two records of one of our keys never race: what a commit writes now, tombstones too, is left out of `begin`'s, and
   what `begin` wrote does not count as saved where a commit wrote an older one meanwhile. Else compaction could keep
   the older.

Pure: no await, no clock, no logging. What is stored is never copied, so it must be immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic

from headrace.consumers.restore import Restored
from headrace.consumers.stored_partition import StateOut, StoreCounts, StoredPartition
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag
from headrace.schemas.snapshot import S, StateCodec, pack_snapshot, state_key
from headrace.streams.log import Position

MAX_FORGOTTEN = 1000
"""Own tombstones of one settle, where they travel with it: it encodes them in one go."""


class StateStore(Generic[S]):
    """The states of one kind of all input partitions of a model; a `headrace.streams.cover.Cover`.

    One settle of a partition at a time, and one commit of it, which may run beside a settle.

    Attributes:
        counts: For metrics.
    """

    def __init__(
        self,
        topic: str,
        kind: str,
        codec: StateCodec[S],
        *,
        every: int = 0,
        record_answers: bool = False,
        ended_ttl_ms: int = 3_600_000,
        max_markers: int,
        chunk_bytes: int = 1 << 18,
        max_bytes: int = 0,
        wall_ms: Callable[[], int],
        on_forgotten: Callable[[TP, Sequence[bytes]], None],
        complete: Callable[[TP, Mapping[bytes, S]], Mapping[bytes, S]] | None = None,
        place: Callable[[int], int] = lambda partition: partition,
    ) -> None:
        """Start with no partition.

        Args:
            topic: State topic; a partition's records go to the same partition number, unless ``place`` says otherwise.
            kind: What it holds, one of `headrace.schemas.snapshot.StateKind`.
            codec: Of what it holds.
            every: Write a snapshot within the settle too once a key was staged this often since its last one; 0: on
                commit only.
            record_answers: Write snapshots with the answers in them before the answers are published (P-16).
            ended_ttl_ms: Age at which a marker goes, ms; longer than any zombie lives.
            max_markers: Markers that are kept per partition; beyond, the oldest that a commit has passed go early.
            chunk_bytes: Keys and values of one chunk of a commit, bytes; a single larger record is its own chunk.
            max_bytes: Largest value of a record; the states themselves fit. 0 is any size.
            wall_ms: Now, ms since the epoch.
            on_forgotten: Told the keys whose markers are gone, their tombstones acknowledged.
            place: Returns the partition of the topic for one of the input.
            complete: Returns states with what is stored beside them; as they are where it is not given.
        """
        self._topic = topic
        self._kind = kind
        self._codec = codec
        self._every = every
        self._record_answers = record_answers
        self._ended_ttl_ms = ended_ttl_ms
        self._max_markers = max_markers
        self._chunk_bytes = chunk_bytes
        self._max_bytes = max_bytes
        self._wall_ms = wall_ms
        self._on_forgotten = on_forgotten
        self._complete = complete
        self._place = place
        self._parts: dict[TP, StoredPartition[S]] = {}
        self.counts = StoreCounts()

    def __len__(self) -> int:
        """Return how many keys have no acknowledged snapshot of their latest state."""
        return sum(map(self.pending, self._parts))

    def __repr__(self) -> str:
        """Show the counts."""
        return f"StateStore({self._topic}, {len(self._parts)} partitions, {len(self)} pending)"

    def open(self, tp: TP, restored: Restored[S], nonce: bytes) -> None:
        """Begin a takeover's time as the owner of an input partition.

        What nobody can go on with is written as the marker that it has become: else every takeover would lose it anew.

        Args:
            tp: The input partition.
            restored: What the state partition holds.
            nonce: Of this takeover, never used before (`headrace.schemas.snapshot.takeover_nonce`).
        """
        part = StoredPartition[S](nonce, restored.nonces, restored.answers)
        now_ms = self._wall_ms()
        markers = [
            (restored.written_ms.get(key, now_ms), key, state)
            for key, state in restored.states.items()
            if state.flag is not Flag.LIVE
        ]
        for written_ms, key, state in sorted(markers, key=lambda marker: marker[0]):
            part.mark(key, state.offset, written_ms)
        part.dirty.update({key: restored.states[key] for key in restored.finally_lost})
        self._parts[tp] = part

    def resume(self, tp: TP) -> bool:
        """Go on with a partition that came back (P-7); what waited for a settle was dropped. False: it is forgotten."""
        if (part := self._parts.get(tp)) is not None:
            part.withdraw()
        return part is not None

    def close(self, tp: TP) -> None:
        """Forget a partition; a commit of it that has begun still writes what was fixed."""
        self._parts.pop(tp, None)

    def stage(self, tp: TP, states: Mapping[bytes, S]) -> None:
        """Take note of the states that follow from answers which were put for the coming settle.

        Args:
            tp: The input partition; nothing happens where it is not open.
            states: Key → state; a key counts as one step per call.
        """
        part = self._parts.get(tp)
        if part is None:
            return
        part.staged.update(states if self._complete is None else self._complete(tp, states))
        if self._every > 1:
            for key in states:
                part.unsaved[key] = part.unsaved.get(key, 0) + 1

    def record(self, tp: TP, answers: Iterable[tuple[bytes, int, Out]]) -> None:
        """Take note of answers, with key and input offset: one of every request that has a key.

        Of those too that change no state (an unknown sequence): a later request's snapshot covers their offsets, and
        who reads it closes them without running.
        """
        part = self._parts.get(tp)
        if part is None or not self._record_answers:
            return
        for key, offset, out in answers:
            part.recorded.setdefault(key, {})[offset] = out

    def answers(self, tp: TP, key: bytes, offset: int) -> Out | None:
        """Return the answer that an earlier owner recorded for a request; None if there is none, or it is out."""
        part = self._parts.get(tp)
        return None if part is None else part.answers.get(key, {}).get(offset)

    def begin(self, tp: TP) -> tuple[Sequence[Out], Sequence[Out]]:
        """Fix what the settle that begins now is about; called right before it, again if it failed.

        What was returned for a try that failed is not returned again: it is kept by whoever publishes it, as the
        answers are.

        Returns:
            Records that must be acknowledged before the answers are published, and such to publish in the same
            settle after its answers are acknowledged.
        """
        part = self._parts.get(tp)
        if part is None:
            return (), ()
        staged = part.begin()
        if not self._record_answers and self._every == 0:
            return (), ()
        outs: list[StateOut[S]] = []
        part.race()
        again = {out.state_key for out in part.emitted}
        if self._record_answers:
            # Own tombstones go the way of the snapshots, for a commit's would race with them (5).
            gone = part.forgettable(list(islice(self._due(part, self._wall_ms()), MAX_FORGOTTEN)))
            outs += [self._tombstone(tp, key, part.nonce) for key in gone if key not in again]
            found = [self._recorded(tp, part, key, state) for key, state in staged.items()]
            outs += [out for out in found if out is not None]
        else:
            for key, state in staged.items():
                if key not in part.raced and (self._is_full(part, key) or key in again):
                    outs.append(self._snapshot(tp, part, key, state))
                    if part.unsaved:
                        part.unsaved.pop(key, None)
        part.emitted += outs
        return (outs, ()) if self._record_answers else ((), outs)

    def settled(self, owner: TP, position: Position) -> None:
        """Take note that the settle's answers, and what `begin` returned for it, are acknowledged."""
        del position  # what was staged for it says more
        part = self._parts.get(owner)
        if part is None:
            return
        settling, part.settling = part.settling, {}
        emitted, part.emitted = part.emitted, []
        raced, part.raced = part.raced, set()
        published, part.publishing = part.publishing, {}
        saved = [
            out
            for out in emitted
            if (out.state_key not in settling if out.state is None else out.state_key not in raced)
        ]
        dirty = part.dirty
        for out in saved:
            if out.state is not None:
                if dirty:
                    dirty.pop(out.state_key, None)
                if settling.get(out.state_key) is out.state:
                    del settling[out.state_key]
        self.counts.unrecorded += sum(
            len(published.get(key, ())) for key in settling if key not in raced
        )
        part.dirty.update(settling)
        self.saved(owner, saved)

    def snapshots(self, owner: TP, position: Position) -> Iterator[Sequence[Out]] | None:
        """Return what must be acknowledged before the position is committed, and the tombstones that are due.

        What they hold is fixed by this call; it is encoded chunk by chunk, as they are taken. None for a partition
        that was closed since: nobody knows any more what was settled of it.
        """
        del position  # everything settled is written, and that is at least what it stands for
        part = self._parts.get(owner)
        if part is None:
            return None
        return self._chunks(owner, part, part.freeze(), list(self._due(part, self._wall_ms())))

    def saved(self, owner: TP, outs: Sequence[Out]) -> None:
        """Take note that these records are acknowledged."""
        part = self._parts.get(owner)
        if part is None:
            return
        now_ms = self._wall_ms()
        snapshots = size = markers = 0
        forgotten: list[bytes] = []
        for out in outs:
            if not isinstance(out, StateOut):
                continue
            if out.state is None:
                self.counts.tombstones += 1
                if out.nonce != part.nonce:
                    part.removed(out.state_key, out.nonce)
                    continue
                part.forgetting.discard(out.state_key)
                if out.state_key in part.passed and not part.is_pending(out.state_key):
                    written_ms = part.passed.pop(out.state_key)
                    self.counts.early += now_ms - written_ms < self._ended_ttl_ms
                    forgotten.append(out.state_key)
            elif out.nonce == part.nonce:
                snapshots += 1
                size += len(out.value or b"")
                markers += out.state.flag is not Flag.LIVE
                part.wrote(out.state_key, out.state, now_ms)
        self.counts.snapshots += snapshots
        self.counts.snapshot_bytes += size
        self.counts.markers += markers
        if forgotten:
            self._on_forgotten(owner, forgotten)

    def committed(self, owner: TP, position: Position) -> None:
        """Take note that the position is committed; a takeover's confirmed one counts too."""
        part = self._parts.get(owner)
        if part is not None:
            part.commit(position.offset)

    def aborted(self, owner: TP) -> None:
        """Forget a partition: nobody knows what of it is committed, and the takeover that follows reads it (P-10)."""
        self.close(owner)

    def due(self, tp: TP, now_ms: int) -> bool:
        """Say whether something waits for a settle and a commit, even though nothing may be answered for long.

        Tombstones, and markers of what a takeover has lost.
        """
        part = self._parts.get(tp)
        if part is None:
            return False
        return bool(part.dirty or part.staged) or next(self._due(part, now_ms), None) is not None

    def pending(self, tp: TP) -> int:
        """Return how many keys of a partition have no acknowledged snapshot of their latest state."""
        part = self._parts.get(tp)
        keys = () if part is None else (*part.staged, *part.settling, *part.dirty, *part.frozen)
        return len(set(keys))

    def _due(self, part: StoredPartition[S], now_ms: int) -> Iterator[bytes]:
        return part.due(now_ms - self._ended_ttl_ms, self._max_markers)

    def _is_full(self, part: StoredPartition[S], key: bytes) -> bool:
        return self._every == 1 or part.unsaved.get(key, 0) >= self._every

    def _chunks(
        self,
        tp: TP,
        part: StoredPartition[S],
        frozen: Sequence[tuple[bytes, S]],
        due: Sequence[bytes],
    ) -> Iterator[Sequence[Out]]:
        """Snapshots, then tombstones: each kind is chosen when the chunks before it are acknowledged."""
        yield from self._chunked(self._snapshot(tp, part, key, state) for key, state in frozen)
        for _ in range(2):  # the second time the winners of markers whose others are gone by now
            yield from self._chunked(self._tombstone(tp, *gone) for gone in part.removable(due))
        if not self._record_answers:
            gone = part.forgettable(due)
            part.forgetting.update(gone)
            yield from self._chunked(self._tombstone(tp, key, part.nonce) for key in gone)

    def _chunked(self, outs: Iterable[StateOut[S]]) -> Iterator[Sequence[Out]]:
        chunk: list[Out] = []
        size = 0
        for out in outs:
            more = len(out.key or b"") + len(out.value or b"")
            if chunk and size + more > self._chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(out)
            size += more
        if chunk:
            yield chunk

    def _snapshot(self, tp: TP, part: StoredPartition[S], key: bytes, state: S) -> StateOut[S]:
        """Make a snapshot of a state whose answers are acknowledged."""
        value = pack_snapshot(self._codec, state, part.answers.get(key) if part.answers else None)
        if 0 < self._max_bytes < len(value):
            # A step came behind all that were taken over, so they are out again; a marker has room for them.
            value = pack_snapshot(self._codec, state)
        return self._state_out(tp, key, part.nonce, value, state)

    def _recorded(
        self, tp: TP, part: StoredPartition[S], key: bytes, state: S
    ) -> StateOut[S] | None:
        """Make a snapshot that holds its answers; None where a record has no room for all of them."""
        answers = {**part.answers.get(key, {}), **part.publishing.get(key, {})}
        value = pack_snapshot(self._codec, state, answers)
        if 0 < self._max_bytes < len(value):
            return None
        return self._state_out(tp, key, part.nonce, value, state)

    def _state_out(
        self, tp: TP, key: bytes, nonce: bytes, value: bytes | None, state: S | None
    ) -> StateOut[S]:
        return StateOut(
            (self._topic, self._place(tp.partition)),
            state_key(self._kind, key, nonce),
            value,
            state_key=key,
            nonce=nonce,
            state=state,
        )

    def _tombstone(self, tp: TP, key: bytes, nonce: bytes) -> StateOut[S]:
        return self._state_out(tp, key, nonce, None, None)
