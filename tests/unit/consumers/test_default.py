"""The default scheduler: one request per execution, first in, first out (SEMANTICS DB-33)."""

from __future__ import annotations

from batching_kit import MS, Service, entry, signature
from headrace.consumers.default import DefaultBatcher
from headrace.schemas.errors import Cancelled, DeadlineExceeded, Reason
from headrace.schemas.record import TP


def test_DB33_requests_are_never_merged() -> None:
    """Even where the model batches; a request that is itself a batch stays whole."""
    service = Service(DefaultBatcher(signature(8)))
    service.run([(0, [entry(1), entry(4), entry(1)])])
    assert service.history == [(1, 0), (4, 0), (1, 0)]


def test_all_instances_share_the_queue_in_order() -> None:
    """Whoever is free gets the oldest."""
    service = Service(DefaultBatcher(signature(0)), instances=2, busy_ms=10)
    service.run([(0, [entry(offset=i) for i in range(5)])])
    assert [ran.batch.entries[0].record.offset for ran in service.ran] == [0, 1, 2, 3, 4]
    assert [ran.ms for ran in service.ran] == [0, 0, 10, 10, 20]


def test_there_is_no_queue_policy() -> None:
    """Priority and ``timeout`` of a request do nothing, and no queue is full."""
    batcher = DefaultBatcher(signature(8))
    entries = [entry(offset=i, priority=5 - i, timeout_us=1) for i in range(5)]
    assert batcher.offer(entries, 0) == []
    assert batcher.expire(1000 * MS) == []
    assert batcher.wake_at() is None
    served = [batcher.take(0, 1000 * MS) for _ in range(6)]
    assert [one and one.entries[0] for one in served] == [*entries, None]


def test_deadlines_and_cancels_count_here_too() -> None:
    """B64, B102: what has expired or was cancelled is not executed."""
    batcher = DefaultBatcher(signature(8))
    late, gone, kept = entry(expires_ns=5 * MS), entry(correlation_id=b"c"), entry()
    batcher.offer([late, gone, kept], 0)
    assert batcher.wake_at() == 5 * MS + 1
    assert [type(error) for _, error in batcher.cancel({b"c", b"other"})] == [Cancelled]
    batch = batcher.take(0, 6 * MS)
    assert batch is not None
    assert batch.entries == [kept]
    assert batcher.wake_at() == 6 * MS  # a refusal waits to be fetched
    [(refused, error)] = batcher.expire(6 * MS)
    assert refused is late
    assert isinstance(error, DeadlineExceeded)
    assert error.reason is Reason.DEADLINE_PASSED
    assert batcher.take(0, 6 * MS) is None


def test_a_revoked_partition_leaves_the_queue() -> None:
    """Its entries come back unanswered, the others stay in order."""
    batcher = DefaultBatcher(signature(8))
    mine, other = TP("t", 0), TP("t", 1)
    entries = [entry(offset=i, tp=other if i % 2 else mine) for i in range(4)]
    batcher.offer(entries, 0)
    assert batcher.drop(mine) == [entries[0], entries[2]]
    assert len(batcher) == 2
    assert [batcher.take(0, 0).entries[0] for _ in range(2)] == [entries[1], entries[3]]


def test_instances_may_come_and_go() -> None:
    """Nothing is bound to one."""
    batcher = DefaultBatcher(signature(8))
    batcher.resize({0, 1})
    batcher.offer([entry()], 0)
    batcher.resize(set())
    batch = batcher.take(7, 0)
    assert batch is not None
    batcher.done(batch, 1)
    assert len(batcher) == 0
