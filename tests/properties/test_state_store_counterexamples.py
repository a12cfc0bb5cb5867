"""Each counterexample of the delivery's model that a state store can prevent, as the shortest way into it.

Every scenario holds with all rules in force and is found when its rule is taken away: that is the test of the test
(DELIVERY; the names are those of its models).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import planted_stores as planted
import pytest
from state_world import INPUT, TTL_MS, Counterexample, World

X, Y = b"u:1", b"s:a/b"


def end_behind_a_slow_start(world: World) -> None:
    """The slow START of X holds the commit while Y ends; the worker dies with Y's END acknowledged."""
    for key, kind in [(Y, "S"), (X, "S"), (Y, "M"), (Y, "E")]:
        world.send(key, kind)
    owner = world.owner
    owner.step()
    owner.finish()
    owner.commit_all()
    for _ in range(3):
        owner.admit()
    owner.run(1)
    owner.run(1)
    assert owner.queue == [1]
    owner.finish()
    owner.save_all()
    world.check()
    owner.fail_commit()
    owner.save_all()
    world.check()


def step_between_snapshots(world: World) -> None:
    """A commit passes a step that no snapshot holds yet."""
    world.send(Y, "S")
    world.owner.step()
    world.owner.finish()
    world.owner.commit_all()
    world.check()


def commit_beside_a_settle(world: World) -> None:
    """A commit begins while the answer of the next step is not acknowledged."""
    world.send(Y, "S")
    world.send(Y, "M")
    world.owner.step()
    world.owner.finish()
    world.owner.step()
    world.owner.begin()
    world.owner.save_all()
    world.check()


def zombie_writes_last(world: World) -> None:
    """A former owner's older snapshot is the last record of the topic; then compaction."""
    for kind in "SMM":
        world.send(Y, kind)
    old = world.owner
    old.step()
    old.finish()
    world.move()
    world.owner.work()
    world.owner.finish()
    world.owner.save_all()
    old.commit_all()
    world.check()
    world.owner.save()
    assert world.committed[0] == 3
    world.compact()
    world.check()


def zombie_ahead(world: World) -> None:
    """The owner removes the snapshot of a zombie that was ahead of it: from then on the owner's own counts."""
    for kind in "SMM":
        world.send(Y, kind)
    old = world.owner
    old.step()
    old.finish()
    old.save_all()
    old.fail_commit()
    world.move()
    old.step(2)
    old.finish()
    old.save_all()
    assert world.read().states[Y].offset == 2
    world.owner.step(2)
    world.owner.finish()
    world.owner.commit_all()
    assert world.committed[0] == 2
    world.check()
    assert world.read().states[Y].offset == 1


def restored_and_untouched(world: World) -> None:
    """The next owner commits before it has written anything of a restored sequence."""
    world.send(Y, "S")
    world.owner.step()
    world.owner.finish()
    world.owner.commit_all()
    world.crash()
    world.send(X, "S")
    world.owner.step()
    world.owner.finish()
    world.owner.commit_all()
    world.check()
    assert world.read().nonces[Y] == (b"00000001",)


def restored_marker_goes(world: World) -> None:
    """A marker was restored beside an older owner's live snapshot: whatever tombstone is the last one that is out."""
    world.send(Y, "S")
    world.owner.step()
    world.owner.finish()
    world.owner.commit_all()
    world.crash()
    world.send(Y, "E")
    world.owner.step()
    world.owner.finish()
    world.owner.start_commit()
    world.owner.save()
    world.owner.save()
    world.crash()
    assert len(world.read().nonces[Y]) == 2
    world.owner.admit()
    world.owner.finish()
    world.owner.commit_all()
    world.owner.finish()
    world.owner.start_commit()
    while world.owner.committing is not None:
        world.owner.save()
        world.check()
    assert not world.read().states


def snapshot_beside_a_commit(world: World) -> None:
    """A settle writes a snapshot while a commit has an older one of the same key in its hands; then compaction."""
    world.send(Y, "S")
    world.send(Y, "M")
    owner = world.owner
    owner.step()
    owner.finish()
    owner.step()
    owner.begin()
    owner.start_commit()
    owner.save()
    owner.finish()
    owner.save_all()
    owner.save()
    world.compact()
    world.check()
    owner.commit_all()
    assert world.committed[0] == 2
    world.check()


def commit_beside_a_snapshot(world: World) -> None:
    """The other way round: the commit has begun when the settle begins."""
    for kind in "SMM":
        world.send(Y, kind)
    owner = world.owner
    owner.step()
    owner.finish()
    owner.start_commit()
    owner.save()
    owner.step(2)
    owner.finish()
    owner.save_all()
    owner.save()
    world.compact()
    world.check()
    owner.commit_all()
    assert world.committed[0] == 3
    world.check()


def settle_fails(world: World) -> None:
    """The first try of a settle fails; the second one has another step too."""
    world.send(Y, "S")
    world.send(X, "S")
    owner = world.owner
    owner.step()
    owner.begin()
    owner.publish(0)
    owner.step()
    owner.finish()
    owner.commit_all()
    assert world.committed[0] == 2
    world.check()


def commit_fails(world: World) -> None:
    """A chunk of snapshots cannot be published; the next commit has it again."""
    world.send(Y, "S")
    world.send(X, "S")
    owner = world.owner
    owner.step(2)
    owner.finish()
    owner.start_commit()
    owner.save()
    owner.save(1)
    world.check()
    owner.commit_all()
    assert world.committed[0] == 2
    world.check()


def id_used_again(world: World) -> None:
    """A START of the same id comes when the tombstone of its marker is due."""
    for kind in "SES":
        world.send(Y, kind)
    owner = world.owner
    owner.step(2)
    owner.finish()
    owner.commit_all()
    assert owner.store.due(INPUT, world.now_ms)
    owner.step()
    owner.finish()
    owner.commit_all()
    world.check()
    owner.finish()
    owner.commit_all()
    world.check()


def id_used_again_beside_its_tombstone(world: World) -> None:
    """A commit has the tombstone of the marker in its hands while a settle writes the snapshot of the new START."""
    for kind in "SES":
        world.send(Y, kind)
    owner = world.owner
    owner.step(2)
    owner.finish()
    owner.commit_all()
    owner.finish()
    owner.start_commit()
    while owner.chunk is None:
        owner.save()
    owner.step()
    owner.finish()
    owner.save()
    owner.save_all()
    owner.save()
    world.check()
    owner.commit_all()
    assert world.committed[0] == 3
    world.check()


def second_run_differs(world: World) -> None:
    """An answer is published, then the worker dies before the commit, and a second run would give another one."""
    world.send(Y, "S")
    world.send(Y, "M")
    world.owner.work()
    world.owner.finish()
    world.crash()
    world.check()
    world.owner.work()
    world.owner.finish()
    world.check()


def written_ahead_twice(world: World) -> None:
    """Two owners in turn die between the snapshot that was written ahead and its answers."""
    world.send(Y, "S")
    world.send(Y, "M")
    world.owner.work()
    world.owner.begin()
    world.owner.publish()
    world.crash()
    world.check()
    world.send(Y, "M")
    world.owner.work()
    world.owner.begin()
    world.owner.publish()
    world.crash()
    world.check()
    world.owner.work()
    world.owner.finish()
    world.owner.commit_all()
    world.check()


def written_ahead_in_two_tries(world: World) -> None:
    """The snapshot of a first try is out and its answer is not; the second try has another step, and dies there too."""
    world.send(Y, "S")
    world.send(Y, "M")
    owner = world.owner
    owner.step()
    owner.begin()
    owner.publish()
    owner.publish(0)
    owner.step()
    owner.begin()
    owner.publish()
    world.check()
    world.crash()
    world.owner.work()
    world.owner.finish()
    world.owner.commit_all()
    assert world.visible.keys() == {0, 1}


def no_room_for_answers(world: World) -> None:
    """Answers that fit into no record with their state; the worker dies before they are published."""
    world.send(Y, "S")
    world.send(Y, "M")
    world.send(X, "SE")
    world.owner.work()
    world.owner.begin()
    world.owner.publish()
    world.check()
    world.owner.publish()
    world.check()
    world.owner.commit_all()
    assert world.committed[0] == 3
    world.check()
    world.crash()
    world.check()


class Case(NamedTuple):
    """A way into a counterexample."""

    run: Callable[[World], None]
    removed: Mapping[str, object]
    options: Mapping[str, object] = MappingProxyType({})


NO_ROOM = 150
"""Bytes of a snapshot: one has room for an answer at most."""

RECORDS = {"record_answers": True}
CASES = {
    "D2 a tombstone at END": Case(end_behind_a_slow_start, {"store": planted.TombstoneAtEnd}),
    "D2 a tombstone before the commit": Case(
        end_behind_a_slow_start, {"store": planted.TombstoneBeforeCommit}, {"ended_ttl_ms": 0}
    ),
    "D3 commits without snapshots": Case(
        step_between_snapshots, {"store": planted.CommitsWithoutSnapshots}, {"every": 2}
    ),
    "M1 snapshots before the answers": Case(
        commit_beside_a_settle, {"store": planted.SavesUnanswered}
    ),
    "D4b the last writer wins": Case(zombie_writes_last, {"fold": planted.LastWriterWins}),
    "M5 one nonce": Case(zombie_writes_last, {"store": planted.OneNonce}),
    "D8 published before it is recorded": Case(second_run_differs, {"ahead": False}, RECORDS),
    "R6 pruned too early": Case(written_ahead_twice, {"store": planted.PrunesAnswers}, RECORDS),
    "R6 pruned though the settle failed": Case(
        written_ahead_in_two_tries, {"store": planted.PrunesFailedAnswers}, RECORDS
    ),
    "M1 ahead of answers without room": Case(
        no_room_for_answers,
        {"store": planted.RecordsWhatFits},
        {"ahead": True, "max_bytes": NO_ROOM},
    ),
    "R6 not taken over": Case(written_ahead_twice, {"store": planted.ForgetsAnswers}, RECORDS),
    "R4 a reused id's tombstone": Case(
        id_used_again, {"store": planted.ForgetsReusedKeys}, {"ended_ttl_ms": 0}
    ),
    "P4 only winners kept": Case(zombie_ahead, {"fold": planted.KeepsWinnersOnly}),
    "P4 others removed first": Case(restored_and_untouched, {"store": planted.RemovesOthersFirst}),
    "P4 the winner removed first": Case(
        restored_marker_goes, {"store": planted.RemovesWinnersFirst}, {"ended_ttl_ms": 0}
    ),
    "P3 a race counts as saved": Case(
        snapshot_beside_a_commit, {"store": planted.Races}, {"every": 2}
    ),
    "P3 a tombstone's race counts as saved": Case(
        id_used_again_beside_its_tombstone,
        {"store": planted.RacesTombstones},
        {"ended_ttl_ms": 0, "every": 1},
    ),
    "P3 a failed settle forgotten": Case(settle_fails, {"store": planted.LosesFailedSettles}),
    "P3 a failed commit forgotten": Case(commit_fails, {"store": planted.LosesFailedCommits}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_all_rules_it_holds(case: Case) -> None:
    """The counterexample is not reached."""
    case.run(World(**case.options))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_its_rule_it_is_found(case: Case) -> None:
    """The scenario can fail."""
    with pytest.raises(Counterexample):
        case.run(World(**{**case.options, **case.removed}))


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_P3_settles_and_commits_side_by_side(every: int) -> None:
    """Whichever begins first, and whether the settle writes anything or not."""
    snapshot_beside_a_commit(World(every=every))
    commit_beside_a_snapshot(World(every=every))


def test_P2_a_marker_outlives_a_zombie_that_does_not_know() -> None:
    """The zombie writes the sequence as it was long before its END; the marker's time is longer than the zombie's."""
    world = World()
    for kind in "SE":
        world.send(Y, kind)
    old = world.owner
    old.step()
    old.finish()
    world.move()
    world.owner.work()
    world.owner.finish()
    world.owner.commit_all()
    old.commit_all()
    world.check()
    world.advance(TTL_MS)
    assert not world.zombies
    world.owner.finish()
    world.owner.commit_all()
    world.advance(1)
    world.check()
