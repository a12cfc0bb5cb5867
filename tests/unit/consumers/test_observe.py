"""What a worker counts of batches, to the nanosecond (SEMANTICS §2.7)."""

from __future__ import annotations

import numpy as np
import pytest
from headrace.consumers.batcher import Refusal
from headrace.consumers.encoding import Encoded
from headrace.consumers.execution import Execution, Part, execute
from headrace.consumers.observe import ModelObserver, WorkerMetrics
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import BackendError, Cancelled, DeadlineExceeded, WrongOutput
from headrace.streams.counts import BatchCounts, Failure
from prometheus_client import CollectorRegistry
from service_parts import make_entry, make_signature

SIGNATURE = make_signature()
NOW_MS = 1_700_000_000_000
START, GATHERED, END = 1_000, 1_010, 1_110


def observer(*, decoupled: bool = False) -> ModelObserver:
    return ModelObserver("m", 1, WorkerMetrics(CollectorRegistry()), decoupled=decoupled)


def entries(*rows: int) -> list[Entry | None]:
    """Return entries of so many rows, admitted at 100, 200, …; 0 rows is padding."""
    made: list[Entry | None] = []
    for number, count in enumerate(rows):
        if count == 0:
            made.append(None)
            continue
        entry = make_entry(rows=count, offset=number)
        entry.admitted_ns = 100 * (number + 1)
        made.append(entry)
    return made


def ran(members: list[Entry | None], **more: object) -> tuple[Batch, Execution]:
    batch = Batch(SIGNATURE, members)
    part = Part(batch, [Responses({})], None)
    return batch, Execution([part], 1, START, GATHERED, END, **more)  # type: ignore[arg-type]  # as given


def test_ST02_ST03_a_batch_counts_its_requests_items_and_times() -> None:
    """Each request has its own wait, and each the whole batch's compute times."""
    watch = observer()
    batch, execution = ran(entries(3, 1))
    watch.executed(batch, execution, Encoded([], [], 7), NOW_MS)
    counts = watch.counts
    assert (counts.success, counts.inference_count, counts.exec_count) == (2, 4, 1)
    assert counts.last_inference_ms == NOW_MS
    assert counts.queue_ns == (START - 100) + (START - 200)
    assert counts.request_ns == (END + 7 - 100) + (END + 7 - 200)
    assert counts.compute_input_ns == 2 * (GATHERED - START)
    assert counts.compute_infer_ns == 2 * (END - GATHERED)
    assert counts.compute_output_ns == 2 * 7
    assert counts.batches == {4: BatchCounts(1, GATHERED - START, END - GATHERED, 7)}
    assert counts.responses == {}


def test_ST02_padding_rows_count_in_the_batch_size_and_nowhere_else() -> None:
    """SEMANTICS §5.3: three executions of four rows may be three inferences."""
    watch = observer()
    watch.executed(*ran(entries(1, 0, 0, 1)), Encoded([], [], 0), NOW_MS)
    assert watch.counts.inference_count == 2
    assert list(watch.counts.batches) == [4]


def test_ST02_a_batch_that_ran_in_pieces_counts_each_of_them() -> None:
    """Their sum is the execution count; the times are the first one's."""
    watch = observer()
    batch, execution = ran(entries(1, 1, 1, 1), sizes=[4, 2, 2])
    watch.executed(batch, execution, Encoded([], [], 0), NOW_MS)
    assert watch.counts.exec_count == 3
    assert {rows: part.count for rows, part in watch.counts.batches.items()} == {4: 1, 2: 2}
    assert watch.counts.batches[4].compute_infer_ns == END - GATHERED
    watch.ran([2])
    assert (watch.counts.exec_count, watch.counts.batches[2].count) == (4, 3)


def test_ST05_failures_count_their_time_and_do_not_wait() -> None:
    watch = observer()
    batch, execution = ran(members := entries(1, 1))
    assert members[0] is not None
    failed = Refusal(members[0], BackendError("broken"))
    watch.executed(batch, execution, Encoded([], [failed], 7), NOW_MS)
    counts = watch.counts
    assert (counts.success, counts.failure[Failure.BACKEND]) == (1, 1)
    assert counts.fail_ns == END + 7 - 100
    assert counts.queue_ns == START - 200
    assert members[1] is not None
    watch.refused(Refusal(members[1], DeadlineExceeded("late")), 250)
    watch.refused(Refusal(make_entry(), Cancelled("gone")), 5)  # never admitted
    assert counts.fail_ns == END + 7 - 100 + 50
    assert counts.queue_ns == START - 200


class Talker:
    """A decoupled instance that gives what it is told, a tick apart."""

    name = "talker"

    def __init__(self, *given: Responses) -> None:
        """Keep what to give."""
        self.given = given

    def execute(self, batch: Batch, emit) -> None:
        """Give it."""
        for responses in self.given:
            emit(responses)


def given(**more: object) -> Responses:
    rows = len(more["members"]) if isinstance(more.get("members"), list) else 2  # type: ignore[arg-type]  # a list
    return Responses({"OUTPUT0": np.zeros((rows, 2), np.float32)}, **more)  # type: ignore[arg-type]  # as given


def told(*responses: Responses, failures: list[Refusal] | None = None) -> dict[int, tuple]:
    """Run two requests; return success, fail and empty by response index."""
    watch = observer(decoupled=True)
    clock = iter(range(0, 10_000, 10))
    batch = Batch(SIGNATURE, entries(1, 1))
    execution = execute(
        Talker(*responses), batch, repeatable=True, decoupled=True, now_ns=lambda: next(clock)
    )
    watch.executed(batch, execution, Encoded([], failures or [], 8), NOW_MS)
    found = watch.counts.responses
    return {i: (found[i].success, found[i].fail, found[i].empty) for i in sorted(found)}


def test_DC03_responses_are_counted_by_their_index() -> None:
    """Two for both; the second is the final one."""
    assert told(given(final=False), given()) == {0: (2, 0, 0), 1: (2, 0, 0)}


def test_DC03_a_request_that_is_left_open_ends_with_an_empty_response() -> None:
    """One got nothing, the other one that was not final."""
    assert told(given(members=[0], final=False)) == {0: (1, 0, 1), 1: (0, 0, 1)}
    assert told(Responses({}, members=[0]), given(members=[1])) == {0: (1, 0, 1)}


def test_DC03_an_error_ends_its_request_and_nothing_counts_behind_it() -> None:
    error = {0: BackendError("broken")}
    assert told(given(errors=error, final=False), given()) == {0: (1, 1, 0), 1: (1, 0, 0)}


def test_DC03_a_batch_that_failed_is_a_failed_first_response() -> None:
    watch = observer(decoupled=True)
    batch = Batch(SIGNATURE, entries(1, 0, 1))
    part = Part(batch, (), BackendError("broken"))
    execution = Execution([part], 1, START, GATHERED, END, failed=True)
    watch.executed(batch, execution, Encoded([], [], 0), NOW_MS)
    counts = watch.counts.responses[0]
    assert (counts.success, counts.fail, counts.fail_ns) == (0, 2, 2 * (END - GATHERED))


@pytest.mark.parametrize("nonsense", [None, Responses({}, members=[7])])
def test_B41_what_a_plug_in_gives_that_is_nothing_fails_and_breaks_nothing(nonsense) -> None:
    """Its requests are answered with `WrongOutput`; that is what is counted."""
    batch = Batch(SIGNATURE, entries(1, 1))
    watch = observer(decoupled=True)
    part = Part(batch, [nonsense], None, [5])
    failures = [Refusal(e, WrongOutput("no response")) for e in batch.entries if e is not None]
    execution = Execution([part], 1, START, GATHERED, END)
    watch.executed(batch, execution, Encoded([], failures, 0), NOW_MS)
    assert watch.counts.responses[0].fail == 2


def test_DC03_who_was_cancelled_while_it_ran_counts_where_it_stood() -> None:
    watch = observer(decoupled=True)
    batch = Batch(SIGNATURE, entries(1, 1))
    assert batch.entries[1] is not None
    batch.entries[1].streamed = 3
    gone = Refusal(batch.entries[1], Cancelled("gone"))
    execution = Execution([Part(batch, [], None, [])], 1, START, GATHERED, END)
    watch.executed(batch, execution, Encoded([], [gone], 0), NOW_MS)
    assert (watch.counts.responses[3].cancel, watch.counts.failure[Failure.CANCELED]) == (1, 1)


def test_DC03_times_run_from_the_response_before() -> None:
    """And each response has its share of the time that encoding took."""
    watch = observer(decoupled=True)
    batch = Batch(SIGNATURE, entries(1, 1))
    part = Part(batch, [given(final=False), given()], None, [GATHERED + 5, GATHERED + 25])
    execution = Execution([part], 1, START, GATHERED, END)
    watch.executed(batch, execution, Encoded([], [], 40), NOW_MS)
    first, second = watch.counts.responses[0], watch.counts.responses[1]
    assert (first.success_ns, first.compute_infer_ns, first.compute_output_ns) == (10, 10, 20)
    assert (second.success_ns, second.compute_infer_ns, second.compute_output_ns) == (40, 40, 20)
