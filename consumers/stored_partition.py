"""What a state store knows of one input partition: where each key's latest state stands.

Pure, and without rules of its own: they are in `headrace.consumers.state_store`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from headrace.schemas.record import Out
from headrace.schemas.sequence import Flag
from headrace.schemas.snapshot import S

NOTHING_COMMITTED = -1


@dataclass(slots=True)
class StoreCounts:
    """What a store has written, as acknowledged.

    Attributes:
        snapshots: Snapshots, markers included.
        snapshot_bytes: Their values' bytes.
        markers: Markers among them.
        tombstones: Tombstones, of others' keys too.
        early: Keys forgotten before their time because there were more than ``max_markers``.
        unrecorded: Answers that were published before a snapshot, since none that holds them fits into a record: their
            requests may be answered otherwise if they are delivered again.
    """

    snapshots: int = 0
    snapshot_bytes: int = 0
    markers: int = 0
    tombstones: int = 0
    early: int = 0
    unrecorded: int = 0


class StateOut(Out, Generic[S]):
    """A state record, with what it says.

    Attributes:
        state_key: Key of the state.
        nonce: Of the takeover whose record it is.
        state: The state, None in a tombstone.
    """

    __slots__ = ("nonce", "state", "state_key")

    def __init__(
        self,
        target: tuple[str, int],
        key: bytes,
        value: bytes | None,
        *,
        state_key: bytes,
        nonce: bytes,
        state: S | None,
    ) -> None:
        """Keep the parts; ``target`` is topic and partition."""
        self.topic, self.partition = target
        self.key = key
        self.value = value
        self.headers = ()
        self.state_key = state_key
        self.nonce = nonce
        self.state = state


class StoredPartition(Generic[S]):
    """One input partition from takeover to loss.

    Attributes:
        nonce: Of the takeover: a part of each key that is written.
        staged: Answers that lead to them are put for the coming settle.
        settling: The settle is under way, or has failed and will be tried again.
        emitted: What `StateStore.begin` returned for that settle and its failed tries, in the order of the log.
        raced: Keys of which a commit writes an older state meanwhile, so that what was emitted does not count.
        dirty: Settled, and in no acknowledged snapshot.
        frozen: What a commit is to write, until it is acknowledged.
        unsaved: Key → times staged since its last snapshot was made; only where snapshots are made every so often.
        recorded: Key → input offset → answer that is put for the coming settle, where they are recorded.
        publishing: The same of the settle that is under way, or has failed and will be tried again.
        answers: The same as taken over, from the committed offset on.
        foreign: Key → other takeovers' nonces under which it may still be in the topic, the winner's last.
        forgetting: Keys of own tombstones that a commit is writing.
        removing: Keys and foreign nonces of others' tombstones that it is writing.
        superseded: Keys with foreign nonces of which an own snapshot is acknowledged.
        waiting: Key → offset and time of writing of markers that no commit has passed.
        passed: Key → time of writing of those that one has passed, in the order in which that came, ms.
        committed: Acknowledged committed offset.
    """

    __slots__ = (
        "answers",
        "committed",
        "dirty",
        "emitted",
        "foreign",
        "forgetting",
        "frozen",
        "nonce",
        "passed",
        "publishing",
        "raced",
        "recorded",
        "removing",
        "settling",
        "staged",
        "superseded",
        "unsaved",
        "waiting",
    )

    def __init__(
        self,
        nonce: bytes,
        foreign: Mapping[bytes, Sequence[bytes]],
        answers: Mapping[bytes, Mapping[int, Out]],
    ) -> None:
        """Start with nothing of our own."""
        self.nonce = nonce
        self.foreign = dict(foreign)
        self.answers = {key: dict(recorded) for key, recorded in answers.items()}
        self.staged: dict[bytes, S] = {}
        self.settling: dict[bytes, S] = {}
        self.emitted: list[StateOut[S]] = []
        self.raced: set[bytes] = set()
        self.dirty: dict[bytes, S] = {}
        self.frozen: dict[bytes, S] = {}
        self.unsaved: dict[bytes, int] = {}
        self.recorded: dict[bytes, dict[int, Out]] = {}
        self.publishing: dict[bytes, dict[int, Out]] = {}
        self.forgetting: set[bytes] = set()
        self.removing: set[tuple[bytes, bytes]] = set()
        self.superseded: dict[bytes, None] = {}
        self.waiting: dict[bytes, tuple[int, int]] = {}
        self.passed: dict[bytes, int] = {}
        self.committed = NOTHING_COMMITTED

    def __repr__(self) -> str:
        """Show the counts."""
        return (
            f"StoredPartition({len(self.staged)} staged, {len(self.settling)} settling, "
            f"{len(self.dirty)} dirty, {len(self.frozen)} frozen, {self.markers} markers)"
        )

    @property
    def markers(self) -> int:
        """Markers whose tombstones are still to come."""
        return len(self.waiting) + len(self.passed)

    def is_pending(self, key: bytes) -> bool:
        """Whether a state of the key is in no acknowledged snapshot."""
        return (
            key in self.staged or key in self.settling or key in self.dirty or key in self.frozen
        )

    def begin(self) -> dict[bytes, S]:
        """Fix what the settle that begins now is about; returns what was staged since it was last tried."""
        staged, self.staged = self.staged, {}
        recorded, self.recorded = self.recorded, {}
        self.settling.update(staged)
        for key, answers in recorded.items():
            self.publishing.setdefault(key, {}).update(answers)
        return staged

    def freeze(self) -> list[tuple[bytes, S]]:
        """Fix what a commit writes: everything that is settled and not saved."""
        self.frozen.update(self.dirty)
        self.dirty = {}
        self.forgetting.clear()  # of a commit that failed
        self.removing.clear()
        if self.emitted:
            self.raced.update(self.frozen)
        if self.unsaved:
            for key in self.frozen:
                self.unsaved.pop(key, None)
        return list(self.frozen.items())

    def wrote(self, key: bytes, state: S, now_ms: int) -> None:
        """Take note of an acknowledged snapshot."""
        if self.frozen and self.frozen.get(key) is state:
            del self.frozen[key]
        if self.foreign and key in self.foreign:
            self.superseded[key] = None
        if state.flag is not Flag.LIVE:
            self.mark(key, state.offset, now_ms)
        elif self.waiting or self.passed:
            self.waiting.pop(key, None)
            self.passed.pop(key, None)

    def mark(self, key: bytes, offset: int, written_ms: int) -> None:
        """Keep a marker that is in the topic until its tombstone is."""
        self.waiting.pop(key, None)
        self.passed.pop(key, None)
        if offset < self.committed:
            self.passed[key] = written_ms
        else:
            self.waiting[key] = (offset, written_ms)

    def commit(self, offset: int) -> None:
        """Take note of an acknowledged commit: markers before it are passed, restored answers before it not needed."""
        self.committed = max(self.committed, offset)
        for key, (at, _) in list(self.waiting.items()):
            if at < self.committed:
                self.passed[key] = self.waiting.pop(key)[1]
        for key, recorded in list(self.answers.items()):
            for at in [at for at in recorded if at < self.committed]:
                del recorded[at]
            if not recorded:
                del self.answers[key]

    def due(self, older_than_ms: int, max_markers: int) -> Iterator[bytes]:
        """Iterate over the keys whose markers may go; not while markers change.

        Args:
            older_than_ms: Those written before, ms since the epoch.
            max_markers: Beyond so many, the oldest that a commit has passed go early.
        """
        surplus = self.markers - max_markers
        for key, written_ms in self.passed.items():
            if written_ms > older_than_ms and surplus <= 0:
                return
            surplus -= 1
            yield key

    def removable(self, due: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the other takeovers' keys and nonces that may go now; each once in a commit.

        Where an own snapshot is acknowledged, all of them; where a restored marker is due, the winner only when
        the others are gone.
        """
        found = [(key, nonce) for key in self.superseded for nonce in self.foreign[key]]
        for key in due:
            nonces = self.foreign.get(key, ())
            if nonces and key not in self.superseded and not self.is_pending(key):
                found += [(key, nonce) for nonce in nonces[:-1] or nonces]
        found = [gone for gone in found if gone not in self.removing]
        self.removing.update(found)
        return found

    def withdraw(self) -> None:
        """Let the next settle be about what was tried in vain, as if nobody had."""
        self.staged = {**self.settling, **self.staged}
        for key, answers in self.recorded.items():
            self.publishing.setdefault(key, {}).update(answers)
        self.recorded, self.publishing = self.publishing, {}
        self.settling, self.emitted, self.raced = {}, [], set()

    def race(self) -> None:
        """Take note that a settle writes beside what a commit has in its hands."""
        self.raced.update(self.frozen, self.forgetting)

    def forgettable(self, due: Sequence[bytes]) -> list[bytes]:
        """Return the keys among those that are due of which only our own record may be left."""
        return [
            key
            for key in due
            if key in self.passed and key not in self.foreign and not self.is_pending(key)
        ]

    def removed(self, key: bytes, nonce: bytes) -> None:
        """Take note of an acknowledged tombstone of another takeover's record."""
        left = tuple(other for other in self.foreign.get(key, ()) if other != nonce)
        if left:
            self.foreign[key] = left
        else:
            self.foreign.pop(key, None)
            self.superseded.pop(key, None)
