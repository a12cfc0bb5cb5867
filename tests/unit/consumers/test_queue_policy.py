"""Priority levels and queue policies (SEMANTICS QT-01…QT-07, §5.6), deadlines and cancels, on a moved clock."""

from __future__ import annotations

import pytest
from batching_kit import MS, Service, batching, entry, signature
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.queues import EntryQueue
from headrace.schemas.batch import Entry
from headrace.schemas.errors import Cancelled, Code, DeadlineExceeded, QueueFull, Reason
from headrace.schemas.model_config import QueuePolicy, TimeoutAction
from headrace.schemas.record import TP

MODEL = signature(8)
MAX_UINT64 = 2**64 - 1
REJECT_100_MS = QueuePolicy(default_timeout_us=100_000)
DELAY_100_MS = QueuePolicy(TimeoutAction.DELAY, default_timeout_us=100_000)


def policy(**fields: object) -> DynamicBatcher:
    """A batcher of 8 rows with one level and this policy, and no delay."""
    return DynamicBatcher(MODEL, batching(8, default_queue_policy=QueuePolicy(**fields)))


def ids(entries: list[Entry | None]) -> list[str]:
    return [one.id for one in entries if one is not None]


def served(batcher: DynamicBatcher, now_ns: int = 0) -> list[str]:
    """Ids of everything in the queue, in the order in which it is served."""
    order: list[str] = []
    while (batch := batcher.take(0, now_ns)) is not None:
        order += ids(batch.entries)
    return order


# --- §5.6 ---


def test_5_6_max_queue_size() -> None:
    """One of 8 rows executes, 10 more attempts: exactly 2 are rejected (QT-01)."""
    config = batching(8, default_queue_policy=QueuePolicy(max_queue_size=8))
    service = Service(DynamicBatcher(MODEL, config), busy_ms=1000)
    service.run([(0, [entry(8)]), *((i, [entry(8, id=f"r{i}")]) for i in range(1, 11))])
    assert service.texts == [
        "[request id: r9] Exceeds maximum queue size",
        "[request id: r10] Exceeds maximum queue size",
    ]
    assert [left.ms for left in service.refused] == [9, 10]
    assert service.sizes == [8] * 9


def test_5_6_policy_delay() -> None:
    """The first waits out the 10 s delay; two later ones of 2 rows make 4 and run at once; nobody is rejected."""
    config = batching(4, 8, delay_ms=10_000, default_queue_policy=DELAY_100_MS)
    service = Service(DynamicBatcher(MODEL, config))
    service.run([(0, [entry(1)]), (200, [entry(2)]), (201, [entry(2)])])
    assert service.history == [(4, 201), (1, 10_000)]
    assert service.refused == []


def test_5_6_policy_reject() -> None:
    """The first times out, the others run at once."""
    config = batching(4, 8, delay_ms=10_000, default_queue_policy=REJECT_100_MS)
    service = Service(DynamicBatcher(MODEL, config))
    service.run([(0, [entry(1)]), (200, [entry(2)]), (201, [entry(2)])])
    assert service.history == [(4, 201)]
    [(ms, _, error)] = service.refused
    assert ms == pytest.approx(100, abs=0.001)
    assert isinstance(error, DeadlineExceeded)
    assert error.detail == "[request id: <id_unknown>] Request timeout expired"
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.TIMEOUT_EXPIRED)


@pytest.mark.parametrize("levels", [2, MAX_UINT64], ids=["two levels", "max uint64 levels"])
def test_5_6_priority_levels(levels: int) -> None:
    """Level 1 overtakes the default level, however many levels there are."""
    config = batching(4, priority_levels=levels, default_priority_level=levels)
    service = Service(DynamicBatcher(MODEL, config), busy_ms=100)
    service.run(
        [
            (0, [entry(4, id="running")]),
            (1, [entry(4, id="plain")]),
            (2, [entry(4, id="lowest", priority=levels)]),
            (3, [entry(4, id="first", priority=1)]),
        ]
    )
    order = [name for ran in service.ran for name in ids(ran.batch.entries)]
    assert order == ["running", "first", "plain", "lowest"]


# --- QT, rule by rule ---


def test_QT01_text_and_kind() -> None:
    """UNAVAILABLE, retriable, with Triton's text and prefix."""
    batcher = policy(max_queue_size=1)
    refused = batcher.offer([entry(id="a"), entry(id="b"), entry()], 0)
    assert [error.detail for _, error in refused] == [
        "[request id: b] Exceeds maximum queue size",
        "[request id: <id_unknown>] Exceeds maximum queue size",
    ]
    assert all(isinstance(error, QueueFull) for _, error in refused)
    assert (refused[0].error.code, refused[0].error.retriable) == (Code.UNAVAILABLE, True)
    assert len(batcher) == 1


def test_DB11_the_size_counts_requests_of_the_level() -> None:
    """Not rows, not other levels, and not what executes; late ones count."""
    config = batching(
        8,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 100_000, max_queue_size=2),
        priority_queue_policy={1: QueuePolicy(max_queue_size=1)},
    )
    batcher = DynamicBatcher(MODEL, config)
    offered = [entry(5), entry(5), entry(1), entry(1, priority=1), entry(1, priority=1)]
    refused = batcher.offer(offered, 0)
    assert [one for one, _ in refused] == [offered[2], offered[4]]
    assert batcher.expire(200 * MS) == []  # both of level 2 are late now, and still wait
    assert len(batcher.offer([entry(1)], 200 * MS)) == 1
    assert batcher.take(0, 200 * MS) is not None  # the one of level 1, and a late one
    assert len(batcher) == 1
    assert batcher.offer([entry(1)], 200 * MS) == []


def test_QT01_what_has_expired_makes_room() -> None:
    """An entry that is to be rejected anyway does not keep another one out."""
    batcher = policy(max_queue_size=1, default_timeout_us=1000)
    batcher.offer([entry(id="old")], 0)
    assert batcher.offer([entry(id="new")], 1 * MS + 1) == []
    assert [one.id for one, _ in batcher.expire(1 * MS + 1)] == ["old"]
    assert len(batcher) == 1


def test_QT02_nothing_times_out_once_taken() -> None:
    """The timeout measures queue time only."""
    batcher = policy(default_timeout_us=1000)
    batcher.offer([entry()], 0)
    assert batcher.take(0, 1 * MS) is not None
    assert batcher.wake_at() is None
    assert batcher.expire(10 * MS) == []


@pytest.mark.parametrize(
    ("default_us", "override", "asked_us", "expected_us"),
    [
        (1000, True, 400, 400),
        (1000, True, 0, 1000),  # zero is none asked for
        (1000, True, 5000, 1000),  # a longer one is ignored
        (1000, True, 1000, 1000),
        (1000, True, -5, 1000),
        (1000, False, 400, 1000),  # not allowed
        (0, True, 400, None),  # nothing to shorten
        (-7, True, 400, None),
    ],
)
def test_QT03_override_only_shortens(
    default_us: int, override: bool, asked_us: int, expected_us: int | None
) -> None:
    """A request's ``timeout`` counts only where allowed, nonzero and shorter than the default."""
    batcher = policy(default_timeout_us=default_us, allow_timeout_override=override)
    batcher.offer([entry(timeout_us=asked_us)], 0)
    if expected_us is None:
        assert batcher.wake_at() is None
        assert batcher.expire(10**15) == []
        return
    at_ns = expected_us * 1000
    assert batcher.wake_at() == at_ns + 1
    assert batcher.expire(at_ns) == []
    assert len(batcher.expire(at_ns + 1)) == 1


def test_QT04_swept_while_all_instances_are_busy() -> None:
    """The client hears promptly, not when an instance is free again."""
    config = batching(8, default_queue_policy=REJECT_100_MS)
    service = Service(DynamicBatcher(MODEL, config), busy_ms=10_000)
    service.run([(0, [entry(8)]), (1, [entry(1)])])
    assert [round(left.ms, 3) for left in service.refused] == [101]


def test_QT05_late_entries_come_after_the_unexpired_of_their_level() -> None:
    """And before the next level; among themselves in the order in which they became late."""
    config = batching(
        8,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(
            TimeoutAction.DELAY, 100_000, allow_timeout_override=True
        ),
        priority_queue_policy={
            1: QueuePolicy(TimeoutAction.DELAY, 100_000, allow_timeout_override=True)
        },
    )
    batcher = DynamicBatcher(MODEL, config)
    batcher.offer(
        [
            entry(id="b-late", priority=1, timeout_us=50_000),
            entry(id="a-late", priority=1, timeout_us=20_000),
            entry(id="second-level"),
            entry(id="in-time", priority=1),
        ],
        0,
    )
    assert batcher.expire(60 * MS) == []
    batcher.offer([entry(id="new", priority=1)], 60 * MS)
    assert served(batcher, 60 * MS) == ["in-time", "new", "a-late", "b-late", "second-level"]


def test_QT05_a_late_entry_is_never_rejected_but_keeps_its_deadline() -> None:
    """Policy and caller's deadline are independent of one another."""
    batcher = DynamicBatcher(MODEL, batching(8, delay_ms=1000, default_queue_policy=DELAY_100_MS))
    batcher.offer([entry(id="a"), entry(id="b", expires_ns=300 * MS)], 0)
    assert batcher.wake_at() == 100 * MS + 1
    assert batcher.expire(101 * MS) == []
    assert batcher.wake_at() == 300 * MS + 1
    assert [one.id for one, _ in batcher.expire(301 * MS)] == ["b"]
    assert batcher.wake_at() == 1000 * MS
    assert served(batcher, 1000 * MS) == ["a"]


@pytest.mark.parametrize("priority", [0, 4, MAX_UINT64, -1])
def test_QT06_unknown_priorities_are_the_default_level(priority: int) -> None:
    """Silently."""
    config = batching(8, priority_levels=3, default_priority_level=2)
    batcher = DynamicBatcher(MODEL, config)
    batcher.offer(
        [
            entry(id="three", priority=3),
            entry(id="asked", priority=priority),
            entry(id="two", priority=2),
            entry(id="one", priority=1),
        ],
        0,
    )
    assert served(batcher) == ["one", "asked", "two", "three"]


def test_QT06_priority_without_levels_is_ignored() -> None:
    """One level, arrival order."""
    batcher = DynamicBatcher(MODEL, batching(8))
    batcher.offer([entry(id="a", priority=2), entry(id="b", priority=1)], 0)
    assert served(batcher) == ["a", "b"]


def test_DB07_a_level_has_its_own_policy_or_the_default_one() -> None:
    """Timeouts of 50 ms and 100 ms."""
    config = batching(
        8,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=REJECT_100_MS,
        priority_queue_policy={2: QueuePolicy(default_timeout_us=50_000)},
    )
    batcher = DynamicBatcher(MODEL, config)
    batcher.offer([entry(id="one"), entry(id="two", priority=2)], 0)
    assert [one.id for one, _ in batcher.expire(51 * MS)] == ["two"]
    assert [one.id for one, _ in batcher.expire(101 * MS)] == ["one"]


def test_levels_exist_only_while_they_hold_something() -> None:
    """A client that invents a new level for each request costs nothing that stays."""
    config = batching(8, priority_levels=MAX_UINT64, default_priority_level=1)
    batcher = DynamicBatcher(MODEL, config)
    for turn in range(3):
        names = [entry(priority=7 + i, correlation_id=b"%d" % i) for i in range(50)]
        batcher.offer(names, 0)
        assert len(batcher._levels) == 51
        match turn:
            case 0:
                assert len(served(batcher)) == 50
            case 1:
                batcher.cancel({b"%d" % i for i in range(50)})
            case 2:
                batcher.drop(names[0].tp)
        assert len(batcher._levels) == len(batcher._order) == 1


def test_queue_lengths_by_level() -> None:
    """What a status record shows: each level in use with its length and bound, the default one always."""
    config = batching(
        8,
        priority_levels=5,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(max_queue_size=9),
        priority_queue_policy={4: QueuePolicy()},
    )
    batcher = DynamicBatcher(MODEL, config)
    assert list(batcher.queues()) == [(2, 0, 9)]
    batcher.offer([entry(priority=4), entry(priority=1), entry(priority=4)], 0)
    assert list(batcher.queues()) == [(1, 1, 9), (2, 0, 9), (4, 2, 0)]


def test_QT07_and_B64_cancelled_requests_are_skipped() -> None:
    """FAULTS B64: a cancelled one is answered CANCELLED and never executes; others with no id stay."""
    batcher = policy()
    batcher.offer(
        [
            entry(id="a", correlation_id=b"1"),
            entry(id="b", correlation_id=b"2"),
            entry(id="again", correlation_id=b"1"),
            entry(id="c"),
        ],
        0,
    )
    refused = batcher.cancel({b"1", b"unknown", b""})
    assert [one.id for one, _ in refused] == ["a", "again"]
    assert all(isinstance(error, Cancelled) for _, error in refused)
    assert refused[0].error.detail.startswith("[request id: a] ")
    assert served(batcher) == ["b", "c"]
    assert batcher.cancel({b"2"}) == []


# --- deadlines ---


def test_B102_expired_requests_are_answered_and_none_executes() -> None:
    """FAULTS B102: a queue full of requests whose deadline has passed is answered at once, at offer."""
    batcher = policy()
    entries = [entry(id=str(i), expires_ns=1 + i, deadline_ms=77) for i in range(1000)]
    refused = batcher.offer(entries, 10_000)
    assert [one for one, _ in refused] == entries
    assert len(batcher) == 0
    assert batcher.take(0, 10_000) is None
    assert {error.reason for _, error in refused} == {Reason.DEADLINE_PASSED}
    assert refused[0].error.detail.startswith("[request id: 0] ")
    assert "77 ms" in refused[0].error.detail


def test_B102_expired_while_queued() -> None:
    """Checked when a batch is formed, too: `take` hands out only what is still in time."""
    batcher = policy()
    entries = [entry(id=str(i), expires_ns=(5 + i % 2 * 10) * MS) for i in range(6)]
    batcher.offer(entries, 0)
    assert served(batcher, 6 * MS) == ["1", "3", "5"]
    assert [one.id for one, _ in batcher.expire(6 * MS)] == ["0", "2", "4"]


def test_a_deadline_before_the_clock_began_is_refused() -> None:
    """Negative on the monotonic clock; 0 is none."""
    batcher = policy()
    refused = batcher.offer([entry(expires_ns=-5), entry(expires_ns=0)], 0)
    assert len(refused) == 1
    assert len(batcher) == 1


@pytest.mark.parametrize(
    ("timeout_ms", "deadline_ms", "reason"),
    [
        (10, 20, Reason.TIMEOUT_EXPIRED),
        (20, 10, Reason.DEADLINE_PASSED),
        (10, 10, Reason.DEADLINE_PASSED),
    ],
)
def test_the_first_to_pass_gives_the_reason(
    timeout_ms: int, deadline_ms: int, reason: Reason
) -> None:
    """Also when both have passed before anybody looks."""
    batcher = policy(default_timeout_us=timeout_ms * 1000)
    batcher.offer([entry(expires_ns=deadline_ms * MS)], 0)
    [(_, error)] = batcher.expire(1000 * MS)
    assert error.reason is reason


def test_equal_times_expire_together_in_arrival_order() -> None:
    """Ties are broken by arrival, so the answer is the same each time."""
    batcher = policy(default_timeout_us=1000)
    batcher.offer([entry(id=str(i)) for i in range(5)], 0)
    assert [one.id for one, _ in batcher.expire(2 * MS)] == ["0", "1", "2", "3", "4"]
    assert batcher.expire(2 * MS) == []


def test_DB31_a_timeout_equal_to_the_delay_batches() -> None:
    """At that very instant it is still served; one that is shorter rejects what would have been batched."""
    for timeout_us, sizes in ((10_000, [2]), (9_999, [])):
        config = batching(
            8, delay_ms=10, default_queue_policy=QueuePolicy(default_timeout_us=timeout_us)
        )
        service = Service(DynamicBatcher(MODEL, config))
        service.run([(0, [entry(), entry()])])
        assert service.sizes == sizes
        assert len(service.refused) == 2 - sum(sizes)


# --- partitions and bookkeeping ---


def test_drop_takes_a_partition_out_of_every_line() -> None:
    """Levels, late ones and refusals that nobody has fetched: none of them is answered here any more."""
    gone, kept = TP("t", 0), TP("t", 1)
    config = batching(
        8,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=DELAY_100_MS,
        priority_queue_policy={1: REJECT_100_MS},
    )
    batcher = DynamicBatcher(MODEL, config)
    for tp in (gone, kept):
        batcher.offer([entry(id="late", tp=tp), entry(id="out", tp=tp, priority=1)], 0)
    for tp in (gone, kept):
        batcher.offer([entry(id="new", tp=tp), entry(id="first", tp=tp, priority=1)], 150 * MS)
    dropped = batcher.drop(gone)
    assert [one.id for one in dropped] == ["first", "new", "late", "out"]
    assert {one.tp for one in dropped} == {gone}
    assert [one.id for one, _ in batcher.expire(150 * MS)] == ["out"]
    assert served(batcher, 150 * MS) == ["first", "new", "late"]


def test_an_entry_may_be_offered_again_once_it_has_left() -> None:
    """A retried one is an entry like any other, with a new time of arrival."""
    batcher = policy(default_timeout_us=1000)
    again = entry(id="again", correlation_id=b"x")
    for now_ns in (0, 100, 200):
        batcher.offer([again], now_ns)
        assert len(batcher.cancel({b"x"})) == 1
    batcher.offer([again], 500_000)
    assert batcher.expire(1 * MS + 300_000) == []
    assert len(batcher.expire(2 * MS)) == 1


def test_stale_timers_do_not_pile_up() -> None:
    """Far deadlines of entries that were served long ago are thrown away, not kept until they come."""
    batcher = policy()
    for round_ in range(100):
        batcher.offer([entry(expires_ns=10**15) for _ in range(64)], round_)
        assert len(served(batcher, round_)) == 64
    assert len(batcher._heap) <= 400
    assert batcher.wake_at() is None


def test_removed_places_do_not_pile_up() -> None:
    """Cancelling from the middle of a long queue leaves nothing to step over."""
    queue = EntryQueue()
    entries = [entry(id=str(i), correlation_id=b"%d" % i) for i in range(3000)]
    queue.offer(entries, 0)
    queue.cancel({b"%d" % i for i in range(2500)})
    assert [one.id for one in queue.in_order()] == [str(i) for i in range(2500, 3000)]
    assert queue._default.main._removed <= 500
    assert len(queue.pop(500)) == 500
    assert len(queue) == 0
