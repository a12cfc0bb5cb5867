"""The keyed store by its rules: when a snapshot is written, when a marker goes, and what neither costs (P-2…P-4)."""

from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import pytest
from headrace.consumers.restore import Restored, StateFold
from headrace.consumers.state_store import MAX_FORGOTTEN, StateStore
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import (
    SequenceCodec,
    StateKind,
    pack_snapshot,
    read_head,
    split_state_key,
    unpack_snapshot,
)
from headrace.streams.log import Position
from headrace.streams.memory_partition import MemoryRecord

TP0 = TP("in", 3)
NONCE = b"000000aa"
TTL_MS = 1000


class Counting(SequenceCodec):
    """Counts what is encoded."""

    def __init__(self) -> None:
        super().__init__(())
        self.encoded = 0

    def encode(self, state: SequenceState) -> list[bytes]:
        self.encoded += 1
        return super().encode(state)


class Bench:
    """A store of one open partition, with a clock and what it told."""

    def __init__(
        self, restored: Restored[SequenceState] | None = None, nonce: bytes = NONCE, **options
    ) -> None:
        self.now_ms = 5_000_000
        self.forgotten: list[bytes] = []
        self.codec = Counting()
        self.store = StateStore(
            "p.m.state",
            StateKind.SEQUENCE,
            self.codec,
            wall_ms=lambda: self.now_ms,
            on_forgotten=lambda tp, keys: self.forgotten.extend(keys),
            **{"max_markers": 100, "ended_ttl_ms": TTL_MS, **options},
        )
        self.store.open(TP0, restored or Restored(), nonce)
        self.topic: list[Out] = []

    def stage(self, *states: tuple[bytes, SequenceState]) -> None:
        self.store.stage(TP0, dict(states))

    def settle(self, *states: tuple[bytes, SequenceState]) -> tuple[list[Out], list[Out]]:
        """One whole settle; returns what travelled with it."""
        self.stage(*states)
        first, last = map(list, self.store.begin(TP0))
        self.store.settled(TP0, Position(0))
        return first, last

    def commit(self, offset: int) -> list[Out]:
        """One whole commit; returns what it wrote."""
        written: list[Out] = []
        for chunk in self.store.snapshots(TP0, Position(offset)):
            written += chunk
            self.store.saved(TP0, chunk)
        self.store.committed(TP0, Position(offset))
        return written


def live(offset: int, *, steps: int = 1, data: bytes = b"abcd") -> SequenceState:
    return SequenceState(offset, Flag.LIVE, offset, 1, steps, (data,), ((len(data),),))


def marker(offset: int, flag: Flag = Flag.ENDED) -> SequenceState:
    return SequenceState(offset, flag, offset, 1, 1)


def said(outs: list[Out]) -> list[tuple[bytes, bytes, int | None]]:
    """Key, nonce and offset of state records; None is a tombstone."""
    return [
        (
            *split_state_key(out.key or b"")[1:],
            None if out.value is None else read_head(out.value).offset,
        )
        for out in outs
    ]


def restored_of(outs: list[Out]) -> Restored[SequenceState]:
    """What the next owner finds."""
    fold = StateFold()
    fold.add([MemoryRecord("s", 0, i, 77, out.key, out.value, ()) for i, out in enumerate(outs)])
    found: Restored[SequenceState] = Restored()
    for _ in fold.decode(SequenceCodec(()), found):
        pass
    return found


def test_P3_a_commit_writes_every_settled_sequence_once() -> None:
    """Its latest state, to the partition of the same number, under the key of this takeover."""
    bench = Bench()
    bench.settle((b"u:1", live(0)), (b"u:2", live(1)))
    bench.settle((b"u:1", live(2)))
    written = bench.commit(3)
    assert sorted(said(written)) == [(b"u:1", NONCE, 2), (b"u:2", NONCE, 1)]
    assert {(out.topic, out.partition) for out in written} == {("p.m.state", 3)}
    assert unpack_snapshot(SequenceCodec(()), written[0].value or b"") == (live(2), {})
    assert bench.commit(4) == []


def test_M1_a_commit_leaves_out_what_is_not_settled() -> None:
    """Staged and settling states wait for their answers."""
    bench = Bench()
    bench.settle((b"u:1", live(0)))
    bench.stage((b"u:1", live(1)), (b"u:2", live(2)))
    assert said(bench.commit(1)) == [(b"u:1", NONCE, 0)]
    bench.store.begin(TP0)
    assert bench.commit(1) == []
    bench.store.settled(TP0, Position(3))
    assert sorted(said(bench.commit(3))) == [(b"u:1", NONCE, 1), (b"u:2", NONCE, 2)]


def test_a_step_encodes_nothing() -> None:
    """A hundred steps of a sequence between two commits cost one snapshot."""
    bench = Bench()
    for offset in range(100):
        bench.settle((b"u:1", live(offset)))
    assert bench.codec.encoded == 0
    bench.commit(100)
    assert bench.codec.encoded == 1


def test_P3_what_a_commit_writes_is_fixed_when_it_begins() -> None:
    """However late the chunks are taken: a later state may stand for answers that are not acknowledged."""
    bench = Bench(chunk_bytes=1)
    bench.settle((b"u:1", live(0)), (b"u:2", live(1)))
    chunks = bench.store.snapshots(TP0, Position(2))
    bench.settle((b"u:1", live(2)), (b"u:3", live(3)))
    assert said([out for chunk in chunks for out in chunk]) == [
        (b"u:1", NONCE, 0),
        (b"u:2", NONCE, 1),
    ]


def test_chunks_are_bounded_and_made_as_they_are_taken() -> None:
    """A commit of ten thousand sequences holds neither the loop nor the memory of all of them."""
    bench = Bench(chunk_bytes=5000)
    bench.settle(*[(b"u:%d" % i, live(i, data=bytes(1000))) for i in range(20)])
    chunks = bench.store.snapshots(TP0, Position(20))
    assert bench.codec.encoded == 0
    taken = next(chunks)
    assert len(taken) == bench.codec.encoded - 1 == 4
    sizes = [sum(len(out.key or b"") + len(out.value or b"") for out in chunk) for chunk in chunks]
    assert max(sizes) <= 5000
    assert bench.codec.encoded == 20


def test_a_record_above_the_chunk_size_is_a_chunk_of_its_own() -> None:
    """It has to go out all the same."""
    bench = Bench(chunk_bytes=100)
    bench.settle((b"u:1", live(0, data=bytes(1000))), (b"u:2", live(1)))
    assert [len(chunk) for chunk in bench.store.snapshots(TP0, Position(2))] == [1, 1]


def test_P3_a_failed_commit_is_made_good_by_the_next() -> None:
    """What was acknowledged of it is not written again, what was not is, or what has followed since."""
    bench = Bench(chunk_bytes=1)
    bench.settle((b"u:1", live(0)), (b"u:2", live(1)), (b"u:3", live(2)))
    chunks = bench.store.snapshots(TP0, Position(3))
    bench.store.saved(TP0, next(chunks))
    next(chunks)
    assert bench.store.pending(TP0) == 2
    bench.settle((b"u:3", live(3)))
    assert said(bench.commit(4)) == [(b"u:2", NONCE, 1), (b"u:3", NONCE, 3)]
    assert bench.store.pending(TP0) == 0


def test_P3_a_failed_settle_is_made_good_by_the_next() -> None:
    """Nothing counts before the acknowledgement; then the latest of both."""
    bench = Bench()
    bench.stage((b"u:1", live(0)), (b"u:2", live(1)))
    bench.store.begin(TP0)
    assert bench.commit(0) == []
    bench.settle((b"u:1", live(2)))
    assert sorted(said(bench.commit(3))) == [(b"u:1", NONCE, 2), (b"u:2", NONCE, 1)]


def test_P3_every_step_travels_behind_its_answers() -> None:
    """every=1: nothing is left for the commit."""
    bench = Bench(every=1)
    first, last = bench.settle((b"u:1", live(0)), (b"u:2", marker(1)))
    assert first == []
    assert said(last) == [(b"u:1", NONCE, 0), (b"u:2", NONCE, 1)]
    assert bench.commit(2) == []
    assert bench.store.counts.snapshots == 2


def test_P3_every_third_step_travels_and_the_commit_has_the_rest() -> None:
    """Counted per key since its last snapshot, on commit or not."""
    bench = Bench(every=3)
    travelled = [said(bench.settle((b"u:1", live(i)))[1]) for i in range(7)]
    assert travelled == [[], [], [(b"u:1", NONCE, 2)], [], [], [(b"u:1", NONCE, 5)], []]
    assert said(bench.commit(7)) == [(b"u:1", NONCE, 6)]
    assert [said(bench.settle((b"u:1", live(i)))[1]) for i in (7, 8)] == [[], []]
    assert said(bench.settle((b"u:1", live(9)))[1]) == [(b"u:1", NONCE, 9)]


def test_P3_a_snapshot_that_travelled_in_vain_travels_again() -> None:
    """By the delivery, and as of the latest step: the settle failed, so nobody knows whether it is in the topic."""
    bench = Bench(every=2)
    bench.stage((b"u:1", live(0)))
    bench.stage((b"u:1", live(1)))
    _, lost = bench.store.begin(TP0)
    _, again = bench.settle((b"u:1", live(2)))
    assert said([*lost, *again]) == [(b"u:1", NONCE, 1), (b"u:1", NONCE, 2)]
    assert bench.commit(3) == []


def ended(bench: Bench, *keys: bytes, commit: int = 100) -> None:
    """These end, and a commit passes them."""
    bench.settle(*[(key, marker(i)) for i, key in enumerate(keys)])
    bench.commit(commit)


def test_P2_a_marker_goes_when_a_commit_has_passed_it_and_its_time_is_over() -> None:
    """Both, and only with the next commit; then whoever keeps it in memory is told."""
    bench = Bench()
    bench.settle((b"u:1", marker(7)))
    bench.commit(7)  # the next offset to read: not passed
    bench.now_ms += 10 * TTL_MS
    assert not bench.store.due(TP0, bench.now_ms)
    assert bench.commit(7) == []
    assert bench.commit(8) == []
    assert bench.store.due(TP0, bench.now_ms)
    assert not bench.forgotten
    assert said(bench.commit(8)) == [(b"u:1", NONCE, None)]
    assert bench.forgotten == [b"u:1"]
    assert not bench.store.due(TP0, bench.now_ms)


def test_P2_the_time_counts_from_the_writing_of_the_marker() -> None:
    """A backlog of yesterday: its requests' timestamps are older than any time to live, a zombie is not."""
    bench = Bench()
    ended(bench, b"u:1")
    assert bench.now_ms - marker(0).timestamp_ms > TTL_MS
    assert not bench.store.due(TP0, bench.now_ms + TTL_MS - 1)
    assert bench.store.due(TP0, bench.now_ms + TTL_MS)


def test_P2_a_restored_marker_goes_on_aging() -> None:
    """From the timestamp of its record: else a worker that restarts often would keep them for ever."""
    bench = Bench()
    bench.settle((b"u:1", marker(7)), (b"u:2", live(8)))
    restored = restored_of(bench.commit(9))
    assert restored.written_ms == {b"u:1": 77}
    later = Bench(restored)
    assert not later.store.due(TP0, 77 + 10 * TTL_MS)
    later.store.committed(TP0, Position(9))
    assert not later.store.due(TP0, 77 + TTL_MS - 1)
    assert later.store.due(TP0, 77 + TTL_MS)


def test_P2_beyond_the_bound_the_oldest_go_early_but_never_before_a_commit() -> None:
    """max_markers: memory stays bounded whatever ends within an hour; the early ones are counted."""
    bench = Bench(max_markers=3)
    bench.settle(*[(b"u:%d" % i, marker(i)) for i in range(5)])
    assert [offset for _, _, offset in said(bench.commit(0))] == [0, 1, 2, 3, 4]
    assert bench.commit(0) == []
    bench.store.committed(TP0, Position(1))
    assert said(bench.commit(1)) == [(b"u:0", NONCE, None)]
    bench.store.committed(TP0, Position(5))
    assert bench.store.due(TP0, bench.now_ms)
    assert said(bench.commit(5)) == [(b"u:1", NONCE, None)]
    assert bench.commit(5) == []
    assert bench.store.counts.early == 2
    assert bench.forgotten == [b"u:0", b"u:1"]


@pytest.mark.parametrize("until", ["staged", "settling", "dirty", "saved"])
def test_R4_a_reused_id_cancels_its_tombstone(until: str) -> None:
    """SQ-05: wherever the new START stands when the tombstone is due."""
    bench = Bench()
    ended(bench, b"u:1")
    bench.now_ms += TTL_MS
    bench.stage((b"u:1", live(9)))
    if until != "staged":
        bench.store.begin(TP0)
    if until in ("dirty", "saved"):
        bench.store.settled(TP0, Position(10))
    if until == "saved":
        assert said(bench.commit(10)) == [(b"u:1", NONCE, 9)]
    assert (b"u:1", NONCE, None) not in said(bench.commit(10))
    assert not bench.forgotten


def test_P2_a_marker_that_follows_a_marker_starts_anew() -> None:
    """A late request was answered in its turn (P-3): the later offset has to be passed."""
    bench = Bench()
    ended(bench, b"u:1", commit=50)
    bench.settle((b"u:1", marker(60)))
    bench.commit(60)
    bench.now_ms += TTL_MS
    assert not bench.store.due(TP0, bench.now_ms)
    bench.store.committed(TP0, Position(61))
    assert bench.store.due(TP0, bench.now_ms)


def taken_over(*states: tuple[bytes, SequenceState], nonces: tuple[bytes, ...]) -> Restored:
    """What several owners have left."""
    return Restored(
        states=dict(states), nonces={key: nonces for key, _ in states}, written_ms={b"u:9": 0}
    )


def test_P4_others_snapshots_go_after_the_first_own_one() -> None:
    """In the same commit; a sequence that has no step yet keeps theirs."""
    found = taken_over((b"u:1", live(0)), (b"u:2", live(1)), nonces=(b"old1", b"old2"))
    bench = Bench(found)
    bench.settle((b"u:1", live(2)))
    assert said(bench.commit(3)) == [
        (b"u:1", NONCE, 2),
        (b"u:1", b"old1", None),
        (b"u:1", b"old2", None),
    ]
    assert bench.commit(3) == []


def test_P4_an_unacknowledged_own_snapshot_removes_nothing() -> None:
    """And a failed removal is tried again."""
    bench = Bench(taken_over((b"u:1", live(0)), nonces=(b"old1",)))
    bench.settle((b"u:1", live(2)))
    chunks = bench.store.snapshots(TP0, Position(3))
    assert [said(list(chunk)) for chunk in chunks] == [[(b"u:1", NONCE, 2)]]
    chunks = bench.store.snapshots(TP0, Position(3))
    bench.store.saved(TP0, next(chunks))
    next(chunks)
    assert said(bench.commit(3)) == [(b"u:1", b"old1", None)]


def test_P4_a_restored_marker_goes_winner_last_and_then_our_own_key() -> None:
    """Each only when those before are acknowledged."""
    bench = Bench(taken_over((b"u:9", marker(4)), nonces=(b"old1", b"old2", b"won1")))
    bench.store.committed(TP0, Position(5))
    chunks = bench.store.snapshots(TP0, Position(5))
    first = next(chunks)
    assert said(list(first)) == [(b"u:9", b"old1", None), (b"u:9", b"old2", None)]
    rest = [out for chunk in chunks for out in chunk]
    assert (b"u:9", b"won1", None) not in said(rest)
    assert [key[1:] for key in said(bench.commit(5))] == [
        (b"old1", None),
        (b"old2", None),
        (b"won1", None),
        (NONCE, None),
    ]
    assert bench.forgotten == [b"u:9"]


def test_P4_what_nobody_can_read_is_written_once_as_lost() -> None:
    """Without any request: the next takeover finds a marker, and not the damage again."""
    old = Bench()
    old.settle((b"u:1", live(3)), (b"u:2", live(4)), (b"u:3", live(5)))
    outs = old.commit(6)
    outs[0].value = (outs[0].value or b"")[:-1] + b"?"
    outs[1].value = b"?"  # nobody knows its offset
    outs[2].value = pack_snapshot(
        JoinCodec(), Join(5, Flag.LIVE, 0, b"")
    )  # good for another layout
    restored = restored_of(outs)
    assert restored.failures.keys() == {b"u:1", b"u:2", b"u:3"}
    bench = Bench(restored, b"000000bb")
    assert bench.store.due(TP0, bench.now_ms)
    bench.settle()
    written = bench.commit(6)
    assert said(written) == [(b"u:1", b"000000bb", 3), (b"u:1", NONCE, None)]
    assert not bench.store.due(TP0, bench.now_ms)
    again = restored_of([out for out in written if out.value is not None])
    assert (again.states[b"u:1"].flag, again.states[b"u:1"].offset) == (Flag.LOST, 3)
    assert not again.failures


def test_due_says_that_staged_markers_wait() -> None:
    """Of sequences that a takeover has ended: a quiet partition has nothing else that would settle them."""
    bench = Bench()
    bench.stage((b"u:1", marker(3, Flag.LOST)))
    assert bench.store.due(TP0, bench.now_ms)
    bench.settle()
    assert bench.store.due(TP0, bench.now_ms)
    bench.commit(4)
    assert not bench.store.due(TP0, bench.now_ms)


def test_P16_snapshots_with_their_answers_travel_ahead() -> None:
    """record_answers: until they are acknowledged; what a next owner was told stays in its own until a commit."""
    bench = Bench(record_answers=True)
    answers = [Out("p.m.results", 0, b"u:1", b"%d" % i, [("id", b"x")]) for i in range(3)]
    bench.store.record(TP0, [(b"u:1", 4, answers[0])])
    bench.stage((b"u:1", live(4)))
    lost, last = bench.store.begin(TP0)
    assert restored_of(list(lost)).answers[b"u:1"].keys() == {4}
    assert list(last) == []
    bench.store.record(TP0, [(b"u:1", 6, answers[1])])
    first, _ = bench.settle((b"u:1", live(6)))
    restored = restored_of(first)
    assert restored.answers[b"u:1"].keys() == {4, 6}
    assert bench.commit(5) == []
    later = Bench(restored, record_answers=True)
    again = later.store.answers(TP0, b"u:1", 6)
    assert again is not None
    assert (again.topic, again.key, again.value, again.headers) == (
        "p.m.results",
        b"u:1",
        b"1",
        [("id", b"x")],
    )
    assert later.store.answers(TP0, b"u:1", 5) is later.store.answers(TP0, b"u:2", 6) is None
    later.store.committed(TP0, Position(5))
    later.store.record(TP0, [(b"u:1", 8, answers[2])])
    first, _ = later.settle((b"u:1", live(8)))
    assert restored_of(first).answers[b"u:1"].keys() == {6, 8}


def test_P16_own_tombstones_travel_the_way_of_the_snapshots() -> None:
    """A commit's could overtake the snapshot of a reused id; bounded per settle."""
    bench = Bench(record_answers=True)
    keys = [b"u:%d" % i for i in range(MAX_FORGOTTEN + 5)]
    bench.settle(*[(key, marker(1)) for key in keys])
    bench.commit(2)
    bench.now_ms += TTL_MS
    bench.stage((keys[0], live(3)))
    first, _ = bench.settle((b"u:x", live(4)))
    gone = [key for key, _, offset in said(first) if offset is None]
    assert gone == keys[1:MAX_FORGOTTEN]
    assert bench.forgotten == gone
    assert bench.commit(5) == []
    first, _ = bench.settle()
    assert [key for key, _, _ in said(first)] == keys[MAX_FORGOTTEN:]


def test_a_partition_that_is_not_open_is_passed_over() -> None:
    """Answers of an old epoch, and the delivery's calls for owners without state."""
    bench = Bench()
    other = TP("in", 9)
    bench.store.stage(other, {b"u:1": live(0)})
    bench.store.record(other, [(b"u:1", 0, Out("t", 0, None, None))])
    assert bench.store.begin(other) == ((), ())
    bench.store.settled(other, Position(1))
    assert (
        bench.store.snapshots(other, Position(1)) is None
    )  # never committed: it may stand for anything (D3)
    bench.store.saved(other, [])
    bench.store.committed(other, Position(1))
    assert not bench.store.due(other, bench.now_ms)
    assert bench.store.pending(other) == 0
    assert bench.store.answers(other, b"u:1", 0) is None
    bench.store.close(other)
    assert len(bench.store) == 0


def test_P4_a_late_acknowledgement_says_nothing_about_the_next_takeover() -> None:
    """The same partition again under another nonce: its sequences are still to be written."""
    bench = Bench()
    bench.settle((b"u:1", live(0)))
    chunk = next(bench.store.snapshots(TP0, Position(1)))
    bench.store.close(TP0)
    bench.store.open(TP0, taken_over((b"u:1", live(0)), nonces=(NONCE,)), b"000000bb")
    bench.settle((b"u:1", live(1)))
    bench.store.saved(TP0, chunk)
    assert said(bench.commit(2)) == [(b"u:1", b"000000bb", 1), (b"u:1", NONCE, None)]


def test_P3_a_commit_that_has_begun_is_finished_though_the_partition_is_closed() -> None:
    """The position that it leads to may still be accepted."""
    bench = Bench()
    bench.settle((b"u:1", live(0)))
    chunks = bench.store.snapshots(TP0, Position(1))
    bench.store.close(TP0)
    assert said([out for chunk in chunks for out in chunk]) == [(b"u:1", NONCE, 0)]


def test_counts() -> None:
    """For metrics: as acknowledged."""
    bench = Bench()
    bench.settle((b"u:1", live(0)), (b"u:2", marker(1)))
    assert len(bench.store) == 2
    assert repr(bench.store) == "StateStore(p.m.state, 1 partitions, 2 pending)"
    written = bench.commit(2)
    counts = bench.store.counts
    assert (counts.snapshots, counts.markers, counts.tombstones, counts.early) == (2, 1, 0, 0)
    assert counts.snapshot_bytes == sum(len(out.value or b"") for out in written)
    bench.now_ms += TTL_MS
    bench.commit(2)
    assert (counts.snapshots, counts.tombstones, counts.early) == (2, 1, 0)
    assert len(bench.store) == 0


class Join(NamedTuple):
    """As much of a join as a store asks for."""

    offset: int
    flag: Flag
    timestamp_ms: int
    fragments: bytes


class JoinCodec:
    """Any codec will do."""

    digest = 5

    def check_key(self, key: bytes) -> None:
        topic, partition, offset = key.split(b"/")
        assert topic
        assert int(partition) <= int(offset)

    def encode(self, state: Join) -> list[bytes]:
        return [state.fragments]

    def decode(self, head, content: memoryview) -> Join:
        return Join(head.offset, Flag(head.flag), head.timestamp_ms, bytes(content))

    def lost(self, offset: int, timestamp_ms: int) -> Join:
        return Join(offset, Flag.LOST, timestamp_ms, b"")


def test_the_store_holds_joins_as_well() -> None:
    """Of another kind, under ids with slashes in them, beside sequences in one topic."""
    store: StateStore[Join] = StateStore(
        "p.e.state",
        StateKind.JOIN,
        JoinCodec(),
        max_markers=1,
        wall_ms=lambda: 0,
        on_forgotten=lambda tp, keys: None,
    )
    store.open(TP0, Restored(), NONCE)
    join = Join(4, Flag.LIVE, 9, b"fragments")
    store.stage(TP0, {b"in/0/41": join})
    store.begin(TP0)
    store.settled(TP0, Position(5))
    outs = [out for chunk in store.snapshots(TP0, Position(5)) for out in chunk]
    bench = Bench()
    bench.settle((b"u:1", live(0)))
    fold = StateFold(StateKind.JOIN)
    fold.add(
        [
            MemoryRecord("s", 0, i, 0, out.key, out.value, ())
            for i, out in enumerate(outs + bench.commit(1))
        ]
    )
    found: Restored[Join] = Restored()
    for _ in fold.decode(JoinCodec(), found):
        pass
    assert found.states == {b"in/0/41": join}
    assert found.ignored == 1


def test_memory_of_a_live_sequence_beyond_its_state() -> None:
    """At most 300 bytes: taken over from another owner, stepped, settled, and not yet saved."""
    count = 20_000
    keys = [b"u:%d" % i for i in range(count)]
    states = [live(i) for i in range(count)]
    nonces = (b"old1",)
    found = Restored(
        states=dict(zip(keys, states, strict=True)), nonces=dict.fromkeys(keys, nonces)
    )
    bench = Bench(max_markers=10)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        bench.store.open(TP0, found, NONCE)
        bench.settle(*zip(keys, states, strict=True))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count <= 300


def test_P16_recorded_answers_go_with_their_acknowledgement() -> None:
    """One slow request holds the commit: no snapshot repeats what is out, not even what came while it was settled."""
    bench = Bench(record_answers=True)
    sizes = set()
    for offset in range(100, 200):
        bench.store.record(TP0, [(b"u:1", offset, Out("results", 3, b"7", bytes(100), ()))])
        bench.stage((b"u:1", live(offset)))
        (snapshot,), _ = bench.store.begin(TP0)
        assert restored_of([snapshot]).answers[b"u:1"].keys() == {offset}
        sizes.add(len(snapshot.value or b""))
        bench.store.record(TP0, [(b"u:2", offset, Out("results", 3, b"8", b"", ()))])
        bench.store.settled(TP0, Position(0))
    assert len(sizes) == 1
    (snapshot,), _ = bench.settle((b"u:2", live(200)))
    assert restored_of([snapshot]).answers[b"u:2"].keys() == {199}


def test_P16_answers_that_fit_into_no_record_go_before_their_snapshot() -> None:
    """M1 then, as without recording: none is lost, and they are counted; others' snapshots go ahead all the same."""
    bench = Bench(record_answers=True, max_bytes=2_000)
    for offset in range(40):
        answer = Out("results", 3, b"7", bytes(100), ())
        bench.store.record(TP0, [(b"u:1", offset, answer)])
    bench.store.record(TP0, [(b"u:2", 40, answer)])
    bench.stage((b"u:1", live(39)), (b"u:2", live(40)))
    first, last = bench.store.begin(TP0)
    assert said(list(first)) == [(b"u:2", NONCE, 40)]
    assert list(last) == []
    assert bench.commit(0) == []
    bench.store.settled(TP0, Position(41))
    assert bench.store.counts.unrecorded == 40
    written = bench.commit(41)
    assert said(written) == [(b"u:1", NONCE, 39)]
    assert unpack_snapshot(bench.codec, written[0].value or b"") == (live(39), {})


def test_P16_restored_answers_without_room_are_left_out_behind_a_step() -> None:
    """They were published again in front of it; the state itself always fits, by a check at load."""
    answers = {offset: Out("results", 3, b"7", bytes(100), ()) for offset in range(15)}
    found = Restored(states={b"u:1": live(14)}, answers={b"u:1": answers})
    bench = Bench(found, record_answers=True, max_bytes=2_500)
    first, _ = bench.settle((b"u:1", live(15, data=bytes(1_000))))
    assert first == []
    (snapshot,) = bench.commit(0)
    assert unpack_snapshot(bench.codec, snapshot.value or b"")[1] == {}


@pytest.mark.parametrize("options", [{"every": 1}, {"record_answers": True}], ids=str)
def test_what_travelled_in_vain_is_not_returned_again(options: dict) -> None:
    """It waits in the delivery: a log that fails for minutes must not fill the memory with copies."""
    bench = Bench(**options)
    bench.stage((b"u:1", live(0)), (b"u:2", live(1)))
    tries = [[*first, *last] for first, last in [bench.store.begin(TP0) for _ in range(3)]]
    bench.stage((b"u:2", live(2)), (b"u:3", live(3)))
    tries.append([out for outs in bench.store.begin(TP0) for out in outs])
    assert [said(outs) for outs in tries] == [
        [(b"u:1", NONCE, 0), (b"u:2", NONCE, 1)],
        [],
        [],
        [(b"u:2", NONCE, 2), (b"u:3", NONCE, 3)],
    ]
    bench.store.settled(TP0, Position(4))
    assert bench.commit(4) == []
    assert bench.store.counts.snapshots == 4


def test_P3_a_snapshot_that_travelled_replaces_what_a_commit_was_to_write() -> None:
    """Rule 5: the older one behind it would be the one that compaction keeps."""
    bench = Bench(every=2)
    bench.settle((b"u:1", live(0)))
    assert said(bench.settle((b"u:1", live(1)))[1]) == [(b"u:1", NONCE, 1)]
    assert bench.commit(2) == []


def test_P3_a_race_with_a_failed_try_counts() -> None:
    """The commit is over when the settle is tried again, and may have written behind what the first try wrote."""
    bench = Bench(every=2)
    bench.settle((b"u:1", live(0)))
    bench.stage((b"u:1", live(1)))
    assert said(list(bench.store.begin(TP0)[1])) == [(b"u:1", NONCE, 1)]
    assert said(bench.commit(1)) == [(b"u:1", NONCE, 0)]
    bench.settle()
    assert said(bench.commit(2)) == [(b"u:1", NONCE, 1)]


def test_P16_a_step_without_room_behind_one_with_room_is_left_to_the_commit() -> None:
    """Two tries of a settle: what the first one wrote is not what the second one is about."""
    bench = Bench(record_answers=True, max_bytes=2_000)
    for offset, size in [(0, 10), (1, 3_000)]:
        bench.store.record(TP0, [(b"u:1", offset, Out("results", 3, b"7", bytes(size), ()))])
        bench.stage((b"u:1", live(offset)))
        first, _ = bench.store.begin(TP0)
        assert said(list(first)) == ([(b"u:1", NONCE, 0)] if offset == 0 else [])
    bench.store.settled(TP0, Position(2))
    assert said(bench.commit(2)) == [(b"u:1", NONCE, 1)]


@pytest.mark.parametrize("options", [{"every": 1}, {"record_answers": True}], ids=str)
def test_P7_what_was_dropped_with_a_partition_is_returned_when_it_comes_back(
    options: dict,
) -> None:
    """An expired marker, say, whose settle failed until the revocation: nothing was answered, so nothing waited."""
    bench = Bench(**options)
    bench.store.record(TP0, [(b"u:1", 0, Out("results", 3, b"7", b"a", ()))])
    bench.stage((b"u:1", live(0)), (b"u:2", marker(1)))
    lost = [out for outs in bench.store.begin(TP0) for out in outs]
    bench.stage((b"u:2", live(2)))
    bench.store.resume(TP0)
    bench.store.settled(TP0, Position(0))  # nothing is counted that is not there
    again = [out for outs in bench.store.begin(TP0) for out in outs]
    assert said(lost) == [(b"u:1", NONCE, 0), (b"u:2", NONCE, 1)]
    assert said(again) == [(b"u:1", NONCE, 0), (b"u:2", NONCE, 2)]
    assert again[0].value == lost[0].value
    bench.store.settled(TP0, Position(3))
    assert bench.commit(3) == []


def test_P16_a_tombstone_that_travelled_in_vain_forgets_no_sequence_that_began_since() -> None:
    """It is out, in front of the new one's snapshot; and while nothing began it is not repeated."""
    bench = Bench(record_answers=True)
    bench.settle((b"u:1", marker(1)), (b"u:2", marker(2)))
    bench.commit(3)
    bench.now_ms += TTL_MS
    assert {key for key, _, _ in said(list(bench.store.begin(TP0)[0]))} == {b"u:1", b"u:2"}
    bench.stage((b"u:1", live(3)))
    assert said(list(bench.store.begin(TP0)[0])) == [(b"u:1", NONCE, 3)]
    bench.store.settled(TP0, Position(4))
    assert bench.forgotten == [b"u:2"]
    assert bench.store.pending(TP0) == 0
    bench.now_ms += TTL_MS
    assert not bench.store.due(TP0, bench.now_ms)
