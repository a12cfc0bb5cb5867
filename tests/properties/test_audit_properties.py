"""The audit's books against plain sets and lists, over any interleaving of requests, answers and dead letters."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from audit_kit import REQUESTS, RESULTS, TOPOLOGY, answer
from headrace.schemas.dead_letter import SOURCE as DEAD_LETTER_SOURCE
from headrace.schemas.record import TP
from headrace.streams.audit_book import AuditBook, ModelBook
from headrace.streams.audit_compare import Comparison, difference
from headrace.streams.audit_identity import WHOLE, identity_of
from headrace.streams.audit_offsets import PAGE, Budget, Progress
from headrace.streams.audit_report import Counts
from headrace.streams.deduplicate import Deduplicator
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from service_parts import PlainRecord

BASE = PAGE - 6
"""Offsets begin here, so that the end of a page is among them."""
REACH = 14
START, END, NEWEST = BASE + 2, BASE + 11, BASE + 13
"""Range of the audit, and where the log ended when answers were read."""

HOT = (BASE + 4, BASE + 6)
"""Most answers are of these, so that each gets many."""
OFFSETS = st.sampled_from(HOT) | st.sampled_from(HOT) | st.integers(BASE, BASE + REACH)


class Written(NamedTuple):
    """A record of the log: an answer, or a dead letter."""

    partition: int
    offset: int
    response: int = WHOLE
    final: bool = True
    value: bytes = b"a"
    attempt: int = 1
    is_letter: bool = False


ANSWERS = st.builds(
    Written,
    st.sampled_from([0, 0, 0, 1]),
    OFFSETS,
    st.sampled_from([WHOLE, WHOLE, WHOLE, 0, 0, 1, 2]),
    st.booleans(),
    st.sampled_from([b"a", b"a", b"a", b"b"]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([False] * 9 + [True]),
)
LOGS = st.integers(0, 80).flatmap(lambda size: st.lists(ANSWERS, min_size=size, max_size=size))
REQUEST_OFFSETS = st.sets(st.integers(START, END - 1)).map(lambda few: few | set(HOT))


@dataclass
class Naive:
    """What is known of one request, in plain containers."""

    first: dict[int, Written] = field(default_factory=dict)
    repeats: list[tuple[Written, Written]] = field(default_factory=list)
    conflicts: int = 0
    letters: int = 0
    finals: list[int] = field(default_factory=list)
    closed: int | None = None

    def take(self, one: Written) -> None:
        if self.closed is not None and self.is_behind(one):
            self.conflicts += 1
            return
        if one.response in self.first:
            self.repeats.append((self.first[one.response], one))
        else:
            self.first[one.response] = one
        if one.response == WHOLE:
            self.closed = self.prefix() if self.closed is None else self.closed
        elif self.closed is None:
            if one.final:
                self.finals.append(one.response)
            if self.finals and self.finals[0] < self.prefix():
                self.closed = self.prefix()

    def count_repeats(self, counts: Counts) -> None:
        counts.duplicated_different += self.conflicts
        for first, other in self.repeats:
            if self.closed is not None and self.is_behind(other):
                counts.duplicated_unknown += 1
            elif difference(record_of(first), record_of(other)):
                counts.duplicated_different += 1
            else:
                counts.duplicated_equal += 1

    def prefix(self) -> int:
        return next(n for n in range(100) if n not in self.first)

    def is_behind(self, one: Written) -> bool:
        assert self.closed is not None
        if one.response == WHOLE:
            return WHOLE not in self.first
        return one.response >= self.closed


def reference(
    requests: list[set[int]], log: list[Written], progress: list[Progress | None]
) -> list[Counts]:
    """Count with sets."""
    result = [Counts(requests=len(present)) for present in requests]
    known: dict[tuple[int, int], Naive] = defaultdict(Naive)
    for one in log:
        counts = result[one.partition]
        if one.offset not in requests[one.partition]:
            outside = one.offset < START or END <= one.offset < NEWEST
            counts.orphaned += not outside
            continue
        request = known[one.partition, one.offset]
        if one.is_letter:
            request.letters += 1
        else:
            counts.retried += one.attempt > 1
            request.take(one)
    for partition, present in enumerate(requests):
        counts = result[partition]
        for offset in present:
            request = known[partition, offset]
            if request.closed is not None:
                counts.answered += 1
            elif progress[partition] is None or progress[partition].covers(offset):
                counts.missing += 1
            else:
                counts.pending += 1
            counts.dead_letters += request.letters > 0
            counts.dead_letters_repeated += max(request.letters - 1, 0)
            request.count_repeats(counts)
    return result


def record_of(one: Written, place: int = 0) -> PlainRecord:
    """Return it as it lies in the log."""
    source = f"{REQUESTS}/{one.partition}/{one.offset}"
    if one.is_letter:
        headers = [(DEAD_LETTER_SOURCE, source.encode())]
        return PlainRecord(TOPOLOGY.dead_letters, 0, place, 0, None, b"", headers)
    out = answer(
        source,
        value=one.value,
        index=None if one.response == WHOLE else one.response,
        final=one.final,
        attempt=one.attempt,
    )
    return PlainRecord(out.topic, out.partition, place, 0, None, out.value, out.headers)


def counted(
    requests: list[set[int]],
    log: list[Written],
    progress: list[Progress | None],
    *,
    room: int,
) -> list[Counts]:
    """Count with the books."""
    book = AuditBook([ModelBook("echo", REQUESTS, RESULTS, 3)], {REQUESTS: 2, RESULTS: 2})
    tps = [TP(REQUESTS, partition) for partition in (0, 1)]
    budget = Budget(1 << 30)
    book.begin(dict.fromkeys(tps, (START, END)), budget)
    for tp, present in zip(tps, requests, strict=True):
        if present:
            book.add_requests(tp, [PlainRecord(offset=offset) for offset in sorted(present)])
    tallies = [book.book_of(tp)[1] for tp in tps]
    for tally in tallies:
        tally.newest = NEWEST
    records = [record_of(one, place) for place, one in enumerate(log)]
    for one, record in zip(log, records, strict=True):
        if one.is_letter:
            book.add_dead_letters([record])
        else:
            book.add_answers(TP(record.topic, record.partition), [record])
    answers = [record for one, record in zip(log, records, strict=True) if not one.is_letter]
    for tally, known in zip(tallies, progress, strict=True):
        tally.close(known)
        tally.counts.missing = tally.unaccounted
        low, high = tally.unaccounted_span
        assert sum(map(tally.is_unaccounted, range(BASE, BASE + REACH))) == tally.unaccounted
        assert sum(map(tally.is_unaccounted, range(low, high))) == tally.unaccounted
    for _ in range(len(log) + 1):  # each reading has room for one request at least
        comparison = Comparison(room)
        book.compare(comparison, TP(RESULTS, 0), answers)
        comparison.close()
        assert comparison.kept_bytes == 0
        if not comparison.deferred:
            break
    else:
        raise AssertionError("comparing does not end")
    return [tally.counts for tally in tallies]


def progresses() -> st.SearchStrategy[Progress | None]:
    def build(offset: int, gaps: list[tuple[int, int]]) -> Progress:
        runs, at = [], offset
        for gap, length in gaps:
            runs.append((at + gap, at + gap + length))
            at += gap + length
        return Progress(offset, tuple(runs))

    pairs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=4)
    return st.none() | st.builds(build, st.integers(BASE - 3, BASE + REACH), pairs)


@settings(max_examples=400, deadline=None)
@over(
    st.lists(REQUEST_OFFSETS, min_size=2, max_size=2),
    LOGS,
    st.lists(progresses(), min_size=2, max_size=2),
    st.sampled_from([1, 5_000, 1 << 30]),
)
def test_the_books_count_what_plain_sets_count(requests, log, progress, room):
    """Whatever order answers come in, wherever a page ends, and however little room comparing has."""
    assert counted(requests, log, progress, room=room) == reference(requests, log, progress)


@over(LOGS)
def test_what_is_kept_of_unfinished_responses_is_given_back(log):
    """Only whole pages stay taken once every request has its last response (B101)."""
    requests = [set(range(START, END)), set(range(START, END))]
    book = AuditBook([ModelBook("echo", REQUESTS, RESULTS, 0)], {REQUESTS: 2})
    budget = Budget(1 << 30)
    tps = [TP(REQUESTS, partition) for partition in (0, 1)]
    book.begin(dict.fromkeys(tps, (START, END)), budget)
    for tp, present in zip(tps, requests, strict=True):
        book.add_requests(tp, [PlainRecord(offset=offset) for offset in sorted(present)])
        book.add_answers(TP(RESULTS, 0), [record_of(one) for one in log if not one.is_letter])
        book.add_answers(
            TP(RESULTS, 0), [record_of(Written(tp.partition, offset)) for offset in present]
        )
    book.add_answers(TP(RESULTS, 0), [record_of(Written(0, offset)) for offset in requests[0]])
    assert budget.used_bytes % PAGE == 0


@settings(deadline=None)
@over(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 90), st.sampled_from([WHOLE, 0, 1, 5])),
        max_size=120,
    ),
    st.sampled_from([8, 16, 128]),
)
def test_a_deduplicator_passes_each_answer_once_as_far_as_its_window_reaches(seen, window):
    """Against a set: nothing that is new is ever dropped, and every repeat within the window is."""
    records = [record_of(Written(p, offset, response)) for p, offset, response in seen]
    once = Deduplicator(window=window)
    before: set[tuple[bytes, int, int]] = set()
    newest: dict[bytes, int] = {}
    for record in records:
        identity = identity_of(record.headers)
        key = (identity.partition, identity.offset, identity.response)
        top = newest[identity.partition] = max(newest.get(identity.partition, 0), identity.offset)
        is_repeat = once.is_repeat(record)
        if identity.offset > top - window:
            assert is_repeat == (key in before)
        else:
            assert not is_repeat
        before.add(key)
