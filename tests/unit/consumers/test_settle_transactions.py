"""When the settle loop of exactly_once makes a cut, on virtual time; what it does when one fails (P-10…P-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.observe_transactions import TransactionMetrics
from headrace.consumers.partition import Partition
from headrace.consumers.pauses import CALM_S, Pauses
from headrace.consumers.placement import Placement
from headrace.consumers.refused_replies import RefusedReplies
from headrace.consumers.settle_transactions import CutBounds, ExactlyOnceSettler
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import Outcome, Position
from headrace.streams.memory_partition import MemoryRecord
from prometheus_client import CollectorRegistry
from virtual_loop import run_virtual

A, B = TP("t", 0), TP("t", 1)
INTERVAL_S = 0.1


class Cuts:
    """A delivery that writes down when each partition is settled, and takes as long as it is told.

    Attributes:
        seen: Time, partition and committed offset of each settle.
        taken: How many records went with each.
        takes_s: How long one takes, by partition.
        outcomes: What becomes of the next ones; a `LogError` is raised.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, TP, int]] = []
        self.buffered = 0
        self.taken: list[int] = []
        self.takes_s: dict[TP, float] = {}
        self.outcomes: list[Outcome | LogError] = []

    def put(self, owner, outs, *, after_ack=False, after_commit=False) -> None:
        """Count."""
        self.buffered += len(outs)

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Take its time."""
        ((tp, position),) = upto.items()
        self.taken.append(self.buffered)
        self.buffered = 0
        self.seen.append((round(asyncio.get_running_loop().time(), 4), tp, position.offset))
        await asyncio.sleep(self.takes_s.get(tp, 0.0))
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome.SETTLED
        if isinstance(outcome, LogError):
            raise outcome
        return {tp: outcome}


async def two_partitions(topic: str) -> int:
    """Be the look-up of reply topics."""
    assert topic
    return 2


class Scene:
    """A settler with two partitions."""

    def __init__(self, records: int = 100, transactions: int = 2) -> None:
        self.cuts = Cuts()
        self.lost: list[tuple[TP, Outcome]] = []
        self.is_pointless = False
        self.room_made: Callable[[], None] = lambda: None
        self.registry = CollectorRegistry()
        self.placement = Placement("r", 1, allowed=bool, lookup=two_partitions, max_topics=10)
        self.parts = {tp: self._part(tp) for tp in (A, B)}
        self.settler = ExactlyOnceSettler(
            self.cuts,  # type: ignore[arg-type]  # as much of a delivery as is used
            on_lost=lambda part, outcome: self.lost.append((part.tp, outcome)),
            on_settled=lambda count: self.room_made(),
            is_pointless=self._asked,
            retry_s=60.0,
            refused=RefusedReplies(self.placement),
            bounds=CutBounds(INTERVAL_S, records, 1_000_000, transactions),
            transactions=TransactionMetrics(self.registry).model("m"),
        )

    async def _asked(self) -> bool:
        return self.is_pointless

    def _part(self, tp: TP) -> Partition:
        ledger = OffsetLedger()
        ledger.begin(0)
        records = [MemoryRecord(tp.topic, tp.partition, n, 0, None, b"", ()) for n in range(500)]
        ledger.admit(records)
        part = Partition(tp, 1, 1, ledger)
        part.in_flight = 500
        return part

    def answer(self, tp: TP, first: int, count: int = 1, *, awaited: bool = False) -> None:
        """Answer some records of a partition."""
        out = Out("r", 0, None, b"")
        offsets = range(first, first + count)
        self.settler.put(self.parts[tp], [out] * count, list(offsets), count, awaited=awaited)
        self.settler.schedule(at_once=True, awaited=awaited)

    def ended(self, outcome: str) -> float | None:
        """Return how many transactions ended so."""
        labels = {"model": "m", "outcome": outcome}
        return self.registry.get_sample_value("headrace_transactions_total", labels)


def play(act: Callable[[Scene], Awaitable[None]], scene: Scene | None = None) -> Scene:
    """Run the settler around an act."""
    scene = scene or Scene()

    async def run() -> None:
        running = asyncio.create_task(scene.settler.run())
        await asyncio.sleep(0)
        acting = asyncio.ensure_future(act(scene))
        await asyncio.wait([running, acting], return_when=asyncio.FIRST_COMPLETED)
        acting.cancel()
        if running.done():
            running.result()
        acting.result()
        running.cancel()
        await asyncio.wait([running])

    run_virtual(run())
    return scene


def test_P12_what_nobody_awaits_gathers_for_the_interval():
    """Though nothing else is in flight; one transaction for all of it."""

    async def act(scene: Scene) -> None:
        scene.answer(A, 0)
        await asyncio.sleep(0.06)
        scene.answer(A, 1, 3)
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == [(0.1, A, 4)]


def test_P13_what_is_awaited_is_cut_at_once_and_takes_along_what_has_gathered():
    """Only of its own partition."""

    async def act(scene: Scene) -> None:
        scene.answer(A, 0)
        scene.answer(B, 0)
        await asyncio.sleep(0.03)
        scene.answer(A, 1, awaited=True)
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == [(0.03, A, 2), (0.1, B, 1)]


def test_P12_a_slow_transaction_holds_no_other_partition_back():
    """And what is awaited of its own is cut as soon as it ends, all together."""

    async def act(scene: Scene) -> None:
        scene.cuts.takes_s[A] = 0.5
        scene.answer(A, 0, awaited=True)
        await asyncio.sleep(0.1)
        scene.answer(A, 1, awaited=True)
        scene.answer(B, 0, awaited=True)
        await asyncio.sleep(0.1)
        scene.answer(A, 2, awaited=True)
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == [(0.0, A, 1), (0.1, B, 1), (0.5, A, 3)]


def test_much_that_is_answered_is_cut_before_the_interval_is_over():
    """Else the rest of what may be admitted would be used up; what makes little of it waits for its interval."""

    async def act(scene: Scene) -> None:
        scene.answer(A, 0, 60)
        await asyncio.sleep(0.01)
        scene.answer(B, 0, 40)
        await asyncio.sleep(0.02)
        scene.answer(A, 60, 10)
        scene.answer(B, 40, 50)
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == [(0.01, A, 60), (0.03, B, 90), (0.13, A, 70)]


def test_a_cut_is_taken_when_it_is_its_turn():
    """What is answered while a partition waits for it goes along; nothing is cut a second time for it."""

    async def act(scene: Scene) -> None:
        scene.cuts.takes_s[A] = 0.5
        scene.answer(A, 0, awaited=True)
        scene.answer(B, 0, awaited=True)
        await asyncio.sleep(0.1)
        scene.answer(B, 1, 2)
        await asyncio.sleep(1.0)

    assert play(act, Scene(transactions=1)).cuts.seen == [(0.0, A, 1), (0.5, B, 3)]


def test_a_partition_that_is_forgotten_while_it_waits_for_its_turn_is_not_cut():
    """And is cut again under its next epoch, when that is due."""

    async def act(scene: Scene) -> None:
        scene.cuts.takes_s[A] = 0.5
        scene.answer(A, 0, awaited=True)
        scene.answer(B, 0, awaited=True)
        await asyncio.sleep(0.1)
        scene.settler.forget(scene.parts[B])
        await asyncio.sleep(0.35)
        scene.answer(B, 1)
        await asyncio.sleep(1.0)

    # Both of its answers: the scene leaves the first one where it was.
    assert play(act, Scene(transactions=1)).cuts.seen == [(0.0, A, 1), (0.55, B, 2)]


def test_a_hurry_cuts_everything_at_once():
    """Partitions are about to go."""

    async def act(scene: Scene) -> None:
        scene.answer(A, 0)
        scene.answer(B, 0)
        scene.settler.hurry()
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == [(0.0, A, 1), (0.0, B, 1)]


def test_a_forgotten_partition_is_not_cut():
    """It is handed over, or taken over anew."""

    async def act(scene: Scene) -> None:
        scene.answer(A, 0)
        scene.settler.forget(scene.parts[A])
        await asyncio.sleep(1.0)

    assert play(act).cuts.seen == []


def test_P10_aborts_and_fencings_are_told_and_counted():
    """Each by its outcome; what was committed makes room."""

    async def act(scene: Scene) -> None:
        scene.cuts.outcomes = [Outcome.ABORTED, Outcome.PRODUCER_FENCED, Outcome.FENCED]
        for offset in range(4):
            scene.answer(A, offset, awaited=True)
            await asyncio.sleep(0.1)

    scene = play(act)
    assert scene.lost == [(A, Outcome.ABORTED), (A, Outcome.PRODUCER_FENCED), (A, Outcome.FENCED)]
    found = [scene.ended(outcome) for outcome in ("committed", "aborted", "fenced")]
    assert found == [1.0, 1.0, 2.0]


def test_B7_transactions_that_fail_for_a_minute_end_the_membership():
    """It joins again, and readiness says why it does not serve."""

    async def act(scene: Scene) -> None:
        scene.cuts.outcomes = [Outcome.ABORTED] * 100
        for offset in range(100):
            scene.answer(A, offset, awaited=True)
            await asyncio.sleep(1.0)

    with pytest.raises(ExceptionGroup) as ended:
        play(act)
    assert "no transaction of t/0 could be committed for 61 s" in str(ended.value.exceptions[0])


def test_an_abort_because_of_a_topic_that_is_gone_ends_the_membership():
    """Joining again addresses the answers anew."""

    async def act(scene: Scene) -> None:
        scene.is_pointless = True
        scene.cuts.outcomes = [Outcome.ABORTED]
        scene.answer(A, 0, awaited=True)
        await asyncio.sleep(1.0)

    with pytest.raises(ExceptionGroup) as ended:
        play(act)
    assert "write to a topic that is gone" in str(ended.value.exceptions[0])


def test_P11_what_no_later_try_can_mend_ends_the_membership():
    """And what comes meanwhile begins no transaction."""

    async def act(scene: Scene) -> None:
        scene.cuts.outcomes = [LogError("not authorised", retriable=False)]
        scene.answer(A, 0, awaited=True)
        await asyncio.sleep(1.0)

    scene = Scene()
    with pytest.raises(ExceptionGroup) as ended:
        play(act, scene)
    assert "not authorised" in str(ended.value.exceptions[0])
    scene.settler.hurry()
    assert len(scene.cuts.seen) == 1


def test_what_a_reply_topic_refuses_is_run_again_and_the_membership_goes_on():
    """The topic that a client named, and no other: then its requests are refused before they run."""

    async def act(scene: Scene) -> None:
        await scene.placement.learn(["theirs"])
        scene.cuts.outcomes = [
            LogError("no right", retriable=False, topics=frozenset({"theirs", "unheard-of"}))
        ]
        scene.answer(A, 0, awaited=True)
        await asyncio.sleep(1.0)
        assert scene.lost == [(A, Outcome.ABORTED)]
        assert "'theirs' refuses answers: no right" in scene.placement.why_not("theirs")
        scene.answer(B, 0, awaited=True)
        await asyncio.sleep(1.0)
        assert [tp for _, tp, _ in scene.cuts.seen] == [A, B]

    play(act)


def test_P6_who_is_fenced_waits_before_it_takes_its_id_back_and_longer_each_time():
    """An abort is taken over again at once, the second one in a row not."""
    pauses = Pauses(0.1, 1.0)
    assert [pauses.next_s(A, 0.0, is_fenced=True) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert [pauses.next_s(B, 0.0, is_fenced=False) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert pauses.next_s(A, CALM_S, is_fenced=True) == 0.1


def test_P10_what_is_answered_in_the_room_of_a_cut_is_in_it_with_its_position() -> None:
    """A request that was held may be refused as soon as there is room: else its answer would be there without it."""

    async def act(scene: Scene) -> None:
        def refuse() -> None:
            scene.room_made = lambda: None
            scene.answer(A, 1)

        scene.room_made = refuse
        scene.answer(A, 0, awaited=True)
        await asyncio.sleep(3 * INTERVAL_S)

    cuts = play(act).cuts
    assert cuts.seen[0][2] == 2
    assert cuts.taken[0] == 2
    assert sum(cuts.taken) == 2
