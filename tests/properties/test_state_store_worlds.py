"""The state store in any order of acts: no step is lost or applied twice, and none is answered twice differently.

`state_world.World` checks after every act what a next owner would answer, and hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import planted_stores as planted
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_world import INPUT, TTL_MS, Counterexample, World

X, Y = b"u:1", b"s:a/b"
KEYS = st.sampled_from([X, Y])
KINDS = st.sampled_from(["S", "M", "M", "E", "SE"])
REQUESTS = 24


def when(is_enabled: Callable[[World], bool]) -> Callable:
    """Leave out acts that would do nothing: those that are left go deep."""
    return precondition(lambda self: is_enabled(self.world))


class Machine(RuleBasedStateMachine):
    """Everything that can happen to a partition, in any order."""

    options: ClassVar[dict] = {}
    zombies = True

    @initialize(kinds=st.lists(st.tuples(KEYS, KINDS), max_size=4))
    def start(self, kinds: list[tuple[bytes, str]]) -> None:
        self.world = World(**self.options)
        for key, kind in kinds:
            self.world.send(key, kind)

    @when(lambda world: len(world.requests) < REQUESTS)
    @rule(key=KEYS, kind=KINDS)
    def send(self, key: bytes, kind: str) -> None:
        self.world.send(key, kind)

    @when(lambda world: len(world.requests) < REQUESTS)
    @rule(key=KEYS, kind=KINDS)
    def send_and_work(self, key: bytes, kind: str) -> None:
        self.world.send(key, kind)
        self.world.owner.work()

    @when(lambda world: len(world.requests) < REQUESTS)
    @rule(key=KEYS, kind=KINDS)
    def serve(self, key: bytes, kind: str) -> None:
        self.world.send(key, kind)
        self.world.owner.work()
        self.world.owner.finish()

    @when(lambda world: world.owner.has_work)
    @rule(choice=st.integers(0, 1))
    def work(self, choice: int) -> None:
        self.world.owner.admit()
        self.world.owner.run(choice)

    @when(lambda world: world.owner.has_work)
    @rule()
    def admit(self) -> None:
        self.world.owner.admit()

    @when(lambda world: world.owner.idle)
    @rule()
    def expire(self) -> None:
        for key in [X, Y]:
            self.world.owner.expire(key)

    @when(lambda world: world.owner.settle is None and world.owner.has_unsettled)
    @rule()
    def begin(self) -> None:
        self.world.owner.begin()

    @when(lambda world: world.owner.settle is not None)
    @rule()
    def publish(self) -> None:
        self.world.owner.publish()

    @when(lambda world: world.owner.settle is not None or world.owner.has_unsettled)
    @rule(phases=st.integers(0, 1), upto=st.integers(0, 3))
    def settle_fails(self, phases: int, upto: int) -> None:
        self.world.owner.begin()
        for _ in range(phases):
            self.world.owner.publish()
        self.world.owner.publish(upto)

    @when(lambda world: world.owner.settle is not None or world.owner.has_unsettled)
    @rule()
    def finish(self) -> None:
        self.world.owner.finish()

    @when(lambda world: world.owner.committing is None and world.owner.pending is not None)
    @rule()
    def start_commit(self) -> None:
        self.world.owner.start_commit()

    @when(lambda world: world.owner.committing is not None)
    @rule()
    def save(self) -> None:
        self.world.owner.save()

    @when(lambda world: world.owner.committing is not None or world.owner.pending is not None)
    @rule(saves=st.integers(0, 4), upto=st.integers(0, 3))
    def commit_fails(self, saves: int, upto: int) -> None:
        self.world.owner.start_commit()
        for _ in range(saves):
            self.world.owner.save()
        if self.world.owner.chunk is not None:
            self.world.owner.save(upto)

    @when(lambda world: world.owner.committing is not None or world.owner.pending is not None)
    @rule()
    def commit(self) -> None:
        self.world.owner.commit_all()

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @when(lambda world: world.can_compact)
    @rule()
    def compact(self) -> None:
        self.world.compact()

    @rule(ms=st.sampled_from([100, TTL_MS + 1]))
    def advance(self, ms: int) -> None:
        """A long time brings what was due for it: settles and commits without anything new."""
        self.world.advance(ms)
        if self.world.owner.store.due(INPUT, self.world.now_ms):
            self.world.owner.finish()
            self.world.owner.commit_all()

    @precondition(lambda self: self.zombies and not self.world.zombies)
    @rule()
    def move(self) -> None:
        self.world.move()

    @when(lambda world: world.zombies)
    @rule(choice=st.integers(0, 1))
    def zombie_works(self, choice: int) -> None:
        for _, zombie in self.world.zombies:
            zombie.admit()
            zombie.run(choice)

    @when(lambda world: world.zombies)
    @rule()
    def zombie_finishes(self) -> None:
        for _, zombie in self.world.zombies:
            zombie.finish()
            zombie.commit_all()

    @invariant()
    def check(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """The last owner can finish everything."""
        world = self.world
        for _ in range(3):
            world.owner.work()
            world.owner.finish()
            world.owner.commit_all()
        assert world.committed == (len(world.requests), frozenset())
        world.check()


def hold(*, zombies: bool = True, steps: int = 40, options: dict, **how: object) -> None:
    """Let Hypothesis try."""
    machine = type("Tried", (Machine,), {"options": options, "zombies": zombies})
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None,
            database=None,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            **how,
        ),
    )


COMMON = {
    "on commit": {},
    "in small chunks": {"chunk_bytes": 1},
    "every step": {"every": 1},
    "every 2": {"every": 2, "chunk_bytes": 100},
}


@pytest.mark.parametrize("options", COMMON.values(), ids=COMMON)
def test_P3_P4_no_step_is_lost_or_applied_twice(options: dict) -> None:
    """Crashes, zombies, compaction, publishes that fail or were written in part, id reuse, expiry."""
    hold(options=options, max_examples=60)


def test_P16_R6_no_request_is_answered_twice_differently() -> None:
    """With a model that is no function of the log; here without zombies, of which record_answers promises nothing."""
    hold(options={"record_answers": True}, zombies=False, max_examples=100)


@pytest.mark.parametrize("max_bytes", [1, 200, 300])
def test_P16_M1_no_answer_is_lost_that_fits_into_no_record(max_bytes: int) -> None:
    """With a function of the log: what was not recorded is answered anew."""
    hold(options={"ahead": True, "max_bytes": max_bytes}, zombies=False, max_examples=60)


def test_P2_few_markers_are_kept_and_no_step_is_lost() -> None:
    """Early tombstones, which may bring a zombie's garbage back, so here without zombies."""
    hold(options={"max_markers": 0}, zombies=False, max_examples=60)


FOUND = {
    "D2": {"store": planted.TombstoneAtEnd},
    "D3": {"store": planted.CommitsWithoutSnapshots},
    "D4b": {"fold": planted.LastWriterWins},
    "M1": {"store": planted.SavesUnanswered},
    "M5": {"store": planted.OneNonce},
    "R4": {"store": planted.ForgetsReusedKeys},
    "P3 settles": {"store": planted.LosesFailedSettles},
    "P4 others": {"store": planted.RemovesOthersFirst},
    "D8": {"record_answers": True, "ahead": False},
    "R6 pruned": {"record_answers": True, "store": planted.PrunesAnswers},
    "M1 ahead": {"ahead": True, "max_bytes": 200, "store": planted.RecordsWhatFits},
    "R6 taken over": {"record_answers": True, "store": planted.ForgetsAnswers},
}


@pytest.mark.parametrize("options", FOUND.values(), ids=FOUND)
def test_without_its_rule_it_is_found_by_chance(options: dict) -> None:
    """The machine reaches what the models reach; the rarer ones are in the file of counterexamples."""
    with pytest.raises(Counterexample):
        hold(
            options=options,
            zombies="record_answers" not in options,
            max_examples=6000,
            derandomize=True,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
        )
