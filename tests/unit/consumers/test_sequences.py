"""Which record is a step of which sequence: routing by the log's order and times alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from batching_kit import entry
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.sequences import Sequences
from headrace.schemas.batch import Entry
from headrace.schemas.config_text import parse_config
from headrace.schemas.config_view import config_from_message
from headrace.schemas.errors import Cancelled, InferError, InvalidRequest, Reason
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState, sequence_key
from headrace.schemas.signature import Signature
from headrace.streams.status import SequenceCounts

HERE = TP("h.m.requests", 0)
THERE = TP("h.m.requests", 1)
IDLE_MS = 1000
CONFIG = """
name: "m" max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
sequence_batching { direct { } }
"""
INITIAL = SequenceState(-1, Flag.LIVE, 0, 1, 0)


class Step(NamedTuple):
    """As much of a record as routing looks at."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes = b"v"


@dataclass
class Table:
    """A `Sequences` with a batcher that runs each step as soon as `run` says so."""

    keeps_state: bool = True
    max_live: int = 100
    versions: tuple[int, ...] = (1,)
    checks_keys: bool = True
    first_sight: bool = False
    released: list[bytes] = field(default_factory=list)
    adopted: list[bytes] = field(default_factory=list)
    splits: list[tuple[bytes, int, int]] = field(default_factory=list)
    queued: list[LiveSequence] = field(default_factory=list)
    counts: SequenceCounts = field(default_factory=SequenceCounts)

    def __post_init__(self) -> None:
        self.sequences = Sequences(
            dict.fromkeys(
                self.versions,
                Signature(config_from_message(parse_config(CONFIG, "config.pbtxt")), 1),
            ),
            counts=self.counts,
            idle_us=IDLE_MS * 1000,
            keeps_state=self.keeps_state,
            checks_keys=self.checks_keys,
            max_live=self.max_live,
            release=lambda lane: self.released.append(lane.key),
            adopt=lambda lane: self.adopted.append(lane.key),
            on_split=lambda key, a, b: self.splits.append((key, a.partition, b.partition)),
            first_sight=self.first_sight,
        )
        self.sequences.open(HERE, 1, {}, {})

    def route(self, *entries: Entry, tp: TP = HERE) -> list[str]:
        """Route records; returns what became of each, the queued ones pushed to their sequence."""
        routed = self.sequences.route(tp, entries)
        words: dict[int, str] = {}
        for version, found in routed.by_version.items():
            for one in found:
                one.sequence.push(one)
                self.queued.append(one.sequence)
                words[id(one)] = f"v{version}" if one.error is None else one.error.reason
        words.update({id(one): "closed" for one in routed.closed})
        words.update({id(one): f"!{error.reason}" for one, error in routed.refusals})
        return [str(words[id(one)]) for one in entries]

    def run(self) -> None:
        """Finish everything that is queued."""
        for lane in self.queued:
            while lane.head is not None:
                if lane.head.error is not None:
                    lane.refuse(lane.pop())
                    continue
                before = lane.start(INITIAL)
                assert lane.running is not None
                lane.running.state_out = ((b"s",), ((1,),))
                lane.finish(before)
            self.sequences.idle(lane)
        self.queued.clear()


def step(
    offset: int,
    sequence_id: int | str = 7,
    *,
    ms: int = 0,
    start: bool = False,
    end: bool = False,
    tp: TP = HERE,
    key: bytes | None = b"",
    rows: int = 1,
    version: int = 1,
    **fields: object,
) -> Entry:
    """A record of a sequence; its key is the id unless given."""
    made = entry(rows, tp=tp, sequence_id=sequence_id, sequence_start=start, sequence_end=end)
    made.record = Step(offset, ms, str(sequence_id).encode() if key == b"" else key)
    made.version = version
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def text_of(table: Table, one: Entry, tp: TP = HERE) -> str:
    """Route one record that must be refused at once; returns its sentence."""
    routed = table.sequences.route(tp, [one])
    ((_, error),) = routed.refusals
    return error.detail


def test_SQ03_a_sequence_begins_with_start_and_ends_with_end() -> None:
    """Unknown before START and after END, with Triton's words; a new START makes it anew."""
    table = Table()
    assert table.route(step(0)) == ["!sequence_unknown"]
    assert table.route(step(1, start=True), step(2), step(3, end=True)) == ["v1"] * 3
    assert table.route(step(4)) == ["sequence_unknown"]
    table.run()
    assert table.route(step(5)) == ["!sequence_unknown"]
    assert table.route(step(6, start=True)) == ["v1"]
    assert (
        text_of(Table(), step(0))
        == "inference request for sequence 7 to model 'm' must specify the START flag on the "
        "first request of the sequence"
    )


def test_SQ01_SQ02_no_id_and_larger_batches_are_refused() -> None:
    """By the request alone, before anything is known of the sequence."""
    table = Table()
    assert "must specify a non-zero or non-empty correlation ID" in text_of(table, step(0, 0))
    assert "non-empty" in text_of(table, step(1, "", key=None))
    assert "must specify batch-size 1" in text_of(table, step(2, start=True, rows=2))
    assert len(table.sequences) == 0


def test_ids_are_bounded_in_length() -> None:
    """They stand in keys, snapshots and answers: 128 bytes of text, as in Triton."""
    assert Table().route(step(0, "ü" * 64, start=True)) == ["v1"]
    table = Table()
    text = text_of(table, step(0, "ü" * 64 + "x", start=True))
    assert "has 129 bytes, expected at most 128" in text
    assert len(text) < 200


def test_KX12_ids_of_both_types_are_two_sequences() -> None:
    """7 and "7" never collide, though their records have the same key."""
    table = Table()
    table.route(step(0, 7, start=True), step(1, "7", start=True))
    assert {lane.key for lane in table.sequences} == {b"u:7", b"s:7"}
    table.run()
    table.route(step(2, "7", end=True))
    table.run()
    assert table.route(step(3, 7), step(4, "7")) == ["v1", "!sequence_unknown"]


@pytest.mark.parametrize(
    ("key", "shown"), [(None, "no key"), (b"8", "the key b'8'"), (b"u:7", "the key b'u:7'")]
)
def test_a_key_that_is_not_the_id_is_refused(key: bytes | None, shown: str) -> None:
    """On our own topics, where affinity depends on it; on mapped ones any key will do."""
    table = Table()
    assert f"the record has {shown}, expected its sequence id b'7'" in text_of(
        table, step(0, start=True, key=key)
    )
    mapped = Table(checks_keys=False)
    assert mapped.route(step(0, start=True, key=key)) == ["v1"]


def test_at_first_sight_a_sequence_begins_without_start_and_anew_behind_its_end() -> None:
    """On mapped topics that say so: an end, a silence and a loss before do not matter; a step is no start."""
    table = Table(checks_keys=False, first_sight=True)
    steps = [step(0), step(1), step(2, end=True), step(3), step(4)]
    assert table.route(*steps) == ["v1"] * 5
    assert [one.sequence_start for one in steps] == [True, False, False, True, False]
    table.run()
    late, next_one = step(5, ms=IDLE_MS + 1), step(6, ms=IDLE_MS + 2)
    assert table.route(late, next_one) == ["v1"] * 2
    assert [one.sequence_start for one in (late, next_one)] == [True, False]
    assert table.counts.expired == 1
    again = Table(checks_keys=False, first_sight=True, keeps_state=False)
    again.sequences.close(HERE)
    again.sequences.open(HERE, 2, {b"u:7": SequenceState(5, Flag.LIVE, 9, 1, 3)}, {})
    assert again.route(step(5), step(6)) == ["closed", "v1"]
    assert again.counts.lost == 1


def test_at_first_sight_a_bad_record_begins_nothing() -> None:
    """It is answered at once, and the first good one begins."""
    table = Table(checks_keys=False, first_sight=True)
    bad = step(0, error=InvalidRequest("bad"))
    assert table.route(bad) == ["!invalid_request"]
    good = step(1)
    assert table.route(good) == ["v1"]
    assert good.sequence_start


def test_KX05_B89_idleness_is_judged_between_the_records_of_a_sequence() -> None:
    """A gap above the limit expires it, however late it is read; START works at once."""
    table = Table()
    assert table.route(
        step(0, start=True, ms=0), step(1, ms=1000), step(2, ms=2001), step(3, ms=2002)
    ) == ["v1", "v1", "sequence_expired", "sequence_expired"]
    table.run()
    assert table.route(step(4, ms=2003)) == ["!sequence_expired"]
    assert table.route(step(5, ms=2004, start=True), step(6, ms=2005)) == ["v1", "v1"]
    table.run()
    assert table.counts.expired == 1


def test_B89_the_sentence_says_how_long_it_was_silent() -> None:
    """And has Triton's words, for clients that match on them."""
    table = Table()
    table.route(step(0, start=True))
    table.run()
    routed = table.sequences.route(HERE, [step(1, ms=1500)])
    (late,) = routed.by_version[1]
    assert late.error is not None
    assert late.error.detail == (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the "
        "sequence: it expired, 1.500 s after its last request, expected within 1.000 s "
        "(max_sequence_idle_microseconds)"
    )


def test_SQ04_a_start_on_a_live_id_goes_on_in_the_same_sequence() -> None:
    """No error; what is queued runs first."""
    table = Table()
    table.route(step(0, start=True), step(1), step(2, start=True), step(3))
    (lane,) = table.sequences
    assert lane.waiting == 4


def test_KX03_one_id_is_one_order_over_its_incarnations() -> None:
    """A START behind an END waits in the same queue."""
    table = Table()
    table.route(step(0, start=True), step(1, end=True), step(2, start=True))
    (lane,) = table.sequences
    assert [one.record.offset for one in lane] == [0, 1, 2]
    assert lane.is_open
    table.run()
    assert table.route(step(3)) == ["v1"]


def test_P03_records_at_or_below_the_state_are_closed() -> None:
    """After a takeover: they were answered by an earlier owner."""
    table = Table()
    table.sequences.open(
        HERE,
        2,
        {
            b"u:7": SequenceState(5, Flag.LIVE, 0, 1, 3),
            b"u:8": SequenceState(6, Flag.ENDED, 0, 1, 2),
        },
        {},
    )
    assert table.route(step(4), step(5), step(6, 8, end=True), step(7), step(8, 8)) == [
        "closed",
        "closed",
        "closed",
        "v1",
        "!sequence_unknown",
    ]
    assert table.counts.restored == 1


def test_P03_an_error_advances_the_offset() -> None:
    """Of a live sequence in its turn, of an ended one at once: a later owner closes the record."""
    table = Table()
    table.route(step(0, start=True), step(1, rows=2), step(2, end=True))
    (lane,) = table.sequences
    table.run()
    assert lane.state == SequenceState(2, Flag.ENDED, 0, 1, 2)
    late = step(3)
    assert table.route(late) == ["!sequence_unknown"]
    assert late.after == SequenceState(3, Flag.ENDED, 0, 1, 2)
    assert late.sequence.key == b"u:7"


def test_a_bad_request_waits_for_its_turn() -> None:
    """P-18, SQ-20: what came before it in its sequence is answered first."""
    table = Table()
    bad = step(1, error=InvalidRequest("bad"))
    assert table.route(step(0, start=True), bad) == ["v1", "invalid_request"]
    (lane,) = table.sequences
    assert [one.error is None for one in lane] == [True, False]
    assert Table().route(step(0, error=InvalidRequest("bad"))) == ["!invalid_request"]


def test_SQ16_a_cancel_that_came_first_ends_the_sequence() -> None:
    """The cancelled step is answered in its turn, and what follows has no sequence: its state would be a marker's."""
    table = Table()
    cancelled = step(1, error=Cancelled("the request was cancelled before it was queued"))
    assert table.route(step(0, start=True), cancelled, step(2)) == [
        "v1",
        "cancelled",
        "sequence_unknown",
    ]
    table.run()
    assert table.route(step(3)) == ["!sequence_unknown"]
    assert table.route(step(4, start=True), step(5)) == ["v1", "v1"]


def test_P15_a_takeover_knows_no_time_before_it_has_read() -> None:
    """Neither from other sequences' snapshots nor from what never ran: steps in time are still to be read."""
    table = Table()
    states = {
        b"u:7": SequenceState(0, Flag.LIVE, 0, 1, 1),
        b"u:8": SequenceState(9, Flag.LIVE, 5000, 1, 1),
    }
    table.sequences.open(HERE, 2, states, {})
    assert table.sequences.reap(HERE) == {}
    assert table.route(step(1, ms=900)) == ["v1"]
    table.run()
    table.sequences.route(HERE, [step(10, 9, start=True, ms=9000)])
    table.sequences.resume(HERE, 3)
    assert table.sequences.reap(HERE) == {}


def test_models_with_memory_of_their_own_lose_their_sequences() -> None:
    """At the takeover, and they say so until the next START; the marker is to be remembered."""
    table = Table(keeps_state=False)
    lost = table.sequences.open(HERE, 2, {b"u:7": SequenceState(5, Flag.LIVE, 9, 1, 3)}, {})
    assert lost == {b"u:7": SequenceState(5, Flag.LOST, 9, 1, 3)}
    assert "it was lost, its worker is gone" in text_of(table, step(6))
    assert table.route(step(7)) == ["!sequence_lost"]
    assert table.route(step(8, start=True), step(9)) == ["v1", "v1"]
    assert table.counts.lost == 1


def test_unreadable_states_are_lost_with_their_reason() -> None:
    """What restoring found wrong is what the client hears."""
    table = Table()
    states = {
        b"u:7": SequenceState(5, Flag.LOST, 0, 0, 0),
        b"u:8": SequenceState(3, Flag.LIVE, 0, 9, 1),
    }
    table.sequences.open(HERE, 2, states, {b"u:7": "its snapshot is corrupt"})
    assert text_of(table, step(6)).endswith("it was lost, its snapshot is corrupt")
    assert text_of(table, step(7, 8)).endswith("it was on version 9, which is not served any more")
    assert table.counts.lost == 2


def test_a_sequence_stays_on_its_version() -> None:
    """Later requests follow it; asking for another one is an error; START may choose anew."""
    table = Table(versions=(1, 2))
    assert table.route(step(0, start=True, version=1), step(1, version=2)) == ["v1", "v1"]
    wrong = step(2, version=2, model_version="2")
    assert table.route(wrong) == ["sequence_unknown"]
    assert wrong.error is not None
    assert "it asks for version 2, and the sequence is on version 1" in wrong.error.detail
    # While the old one's queue is there, the new incarnation waits in it; then it moves.
    assert table.route(step(3, start=True, version=2)) == ["v1"]
    (lane,) = table.sequences
    assert (lane.home, lane.version) == (1, 2)
    lane.clear()
    lane.push(step(3, version=2))
    table.sequences.moved(lane)
    assert lane.home == 2
    assert table.adopted == [b"u:7"]


def test_a_start_for_another_version_passes_the_old_ones_batcher() -> None:
    """Idle or not: earlier steps of the same block may be on their way to it."""
    table = Table(versions=(1, 2))
    table.route(step(0, start=True, version=1))
    table.run()
    assert table.route(step(1, version=2), step(2, start=True, version=2)) == ["v1", "v1"]
    (lane,) = table.sequences
    assert [one.version for one in lane] == [1, 2]


def test_B88_silent_sequences_are_reaped_once() -> None:
    """By the partition's own time; busy ones are left alone."""
    table = Table()
    table.route(
        step(0, 1, start=True), step(1, 2, start=True, ms=10), step(2, 3, start=True, ms=20)
    )
    table.run()
    assert table.sequences.reap(HERE) == {}
    table.route(step(3, 9, ms=1011))
    assert set(table.sequences.reap(HERE)) == {b"u:1", b"u:2"}
    assert table.sequences.reap(HERE) == {}
    assert table.released == [b"u:1", b"u:2"]
    assert len(table.sequences) == 1
    assert table.route(step(4, 1, ms=1012)) == ["!sequence_expired"]


def test_P15_our_clock_counts_only_where_it_is_certain() -> None:
    """The caller says so, once the partition is read to an end that it fetched after the deadline."""
    table = Table()
    table.route(step(0, start=True, ms=5000))
    table.run()
    assert not table.sequences.silent(HERE, 6000)
    assert table.sequences.silent(HERE, 6001)
    assert table.sequences.reap(HERE) == {}
    assert set(table.sequences.reap(HERE, 6001)) == {b"u:7"}


def test_a_busy_sequence_is_not_reaped() -> None:
    """What is queued decides by its own timestamps."""
    table = Table()
    table.route(step(0, 1, start=True), step(1, 2, ms=5000))
    assert table.sequences.reap(HERE, 9000) == {}


def test_a_busy_sequence_hides_no_silent_one() -> None:
    """A backlogged one that is silent longest waits for the slot of the silent one behind it."""
    table = Table(keeps_state=False)
    table.route(step(0, 1, start=True))
    table.run()
    table.route(step(1, 2, start=True, ms=10))  # waits for a slot
    table.route(step(2, 1, ms=20))
    (busy,) = table.queued[:1]
    table.queued.remove(busy)
    table.run()
    assert table.sequences.silent(HERE, 1500)
    assert set(table.sequences.reap(HERE, 1500)) == {b"u:1"}
    assert table.released == [b"u:1"]
    assert [lane.sequence_id for lane in table.sequences] == [2]


def test_the_number_of_live_sequences_is_bounded() -> None:
    """A START above it is refused at once, whichever partition it is on; others go on."""
    table = Table(max_live=1)
    table.sequences.open(THERE, 1, {}, {})
    assert table.route(step(0, start=True)) == ["v1"]
    refused = table.sequences.route(THERE, [step(0, 8, start=True, tp=THERE)]).refusals
    assert refused[0].error.reason is Reason.QUEUE_FULL
    assert "max_live_sequences" in refused[0].error.detail
    table.route(step(1, end=True))
    table.run()
    assert table.route(step(2, 8, start=True)) == ["v1"]


def test_a_sequence_on_two_partitions_is_counted_and_told() -> None:
    """DESIGN §4: producers that hash keys differently."""
    table = Table()
    table.sequences.open(THERE, 1, {}, {})
    table.route(step(0, start=True))
    assert "(it is live on partition 0, and this is 1)" in text_of(table, step(0, tp=THERE), THERE)
    table.route(step(1, start=True, tp=THERE), tp=THERE)
    assert table.splits == [(b"u:7", 1, 0)] * 2
    assert table.counts.split == 2


def test_a_closed_partition_leaves_nothing() -> None:
    """Neither live sequences nor markers; another partition's stay."""
    table = Table()
    table.sequences.open(THERE, 1, {}, {})
    table.route(step(0, start=True))
    table.route(step(0, 8, start=True, tp=THERE), tp=THERE)
    table.sequences.close(HERE)
    assert [lane.sequence_id for lane in table.sequences] == [8]
    (lane,) = table.queued[:1]
    table.sequences.idle(lane)  # its last step may end later
    assert len(table.sequences) == 1


def test_forgotten_markers_are_unknown_again() -> None:
    """Once their tombstones are written."""
    table = Table()
    table.route(step(0, start=True), step(1, ms=5000))
    table.run()
    assert table.route(step(2, ms=5001)) == ["!sequence_expired"]
    table.sequences.forget(HERE, [b"u:7"])
    assert table.route(step(3, ms=5002)) == ["!sequence_unknown"]


def test_recent_shows_the_latest_first() -> None:
    """For people who look: the last active ones of all partitions, and never more than asked for."""
    table = Table()
    table.route(step(0, 1, start=True), step(1, 2, start=True), step(2, 3, start=True), step(3, 1))
    assert [lane.sequence_id for lane in table.sequences.recent(2)] == [1, 3]
    other = TP(HERE.topic, 1)
    table.sequences.open(other, 1, {}, {})
    entries = [step(0, 8, start=True, ms=1), step(1, 9, start=True, ms=9000)]
    table.sequences.route(other, entries)
    assert [lane.sequence_id for lane in table.sequences.recent(3)] == [9, 8, 1]
    assert len(table.sequences.recent(9)) == 5


def test_keys_come_back_as_ids() -> None:
    """The type tag is taken off again, whatever the id holds."""
    for sequence_id in (7, 2**64 - 1, "7", "u:7", "a/b", "ü"):
        assert sequence_key(sequence_id).startswith((b"u:", b"s:"))


def test_errors_are_typed() -> None:
    """All refusals are what a client may see."""
    table = Table()
    routed = table.sequences.route(HERE, [step(0, 0), step(1)])
    assert all(isinstance(error, InferError) for _, error in routed.refusals)
