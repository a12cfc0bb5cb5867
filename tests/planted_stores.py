"""State stores and folds with one rule taken away each: the tests that keep the rules must find every one of them."""

from __future__ import annotations

from headrace.consumers.restore import StateFold
from headrace.consumers.state_store import StateStore
from headrace.schemas.sequence import Flag


class TombstoneAtEnd(StateStore):
    """D2: no marker, its tombstone at once."""

    def _snapshot(self, tp, part, key, state):
        out = super()._snapshot(tp, part, key, state)
        if state.flag is not Flag.LIVE:
            out.value = None
        return out


class TombstoneBeforeCommit(StateStore):
    """D2: a marker goes without a commit that has passed it."""

    def open(self, tp, restored, nonce):
        super().open(tp, restored, nonce)
        self._parts[tp].committed = 1 << 60


class CommitsWithoutSnapshots(StateStore):
    """D3: snapshots are written every so often only."""

    def snapshots(self, owner, position):
        return iter(())


class SavesUnanswered(StateStore):
    """M1: a snapshot does not wait for the answers that it covers."""

    def begin(self, tp):
        outs = super().begin(tp)
        self._parts[tp].dirty.update(self._parts[tp].settling)
        return outs


class LastWriterWins(StateFold):
    """D4b: the last record in the log, whoever wrote it."""

    def add(self, records):
        for record in records:
            super().add([record])
            if record.key in self._best:
                self._best[record.key] = ((record.offset, False), record, "")


class OneNonce(StateStore):
    """M5: all owners write under one key."""

    def open(self, tp, restored, nonce):
        super().open(tp, restored, b"00000000")


class KeepsWinnersOnly(StateFold):
    """P-4: a reader that remembers nothing but the greatest offset of a key, and then reads its tombstone."""

    def add(self, records):
        for record in records:
            super().add([record])
            keys = sorted(self._best, key=lambda key: self._best[key][0], reverse=True)
            seen = set()
            for record_key in keys:
                key = record_key.rpartition(b"/")[0]
                if key in seen:
                    del self._best[record_key]
                seen.add(key)


class RemovesOthersFirst(StateStore):
    """P-4: others' snapshots go before there is one of ours."""

    def open(self, tp, restored, nonce):
        super().open(tp, restored, nonce)
        self._parts[tp].superseded = dict.fromkeys(self._parts[tp].foreign)


class RemovesWinnersFirst(StateStore):
    """P-4: of a restored marker, the one that won goes first."""

    def open(self, tp, restored, nonce):
        restored.nonces = {key: nonces[::-1] for key, nonces in restored.nonces.items()}
        super().open(tp, restored, nonce)


class Races(StateStore):
    """Rule 5: what `begin` wrote counts, whatever a commit writes meanwhile."""

    def settled(self, owner, position):
        self._parts[owner].raced = set()
        super().settled(owner, position)


class RacesTombstones(StateStore):
    """Rule 5: what `begin` wrote counts, though a commit has the tombstone of the same key in its hands."""

    def begin(self, tp):
        self._parts[tp].forgetting.clear()
        return super().begin(tp)


class LosesFailedSettles(StateStore):
    """What was to be settled is forgotten when the settle fails."""

    def begin(self, tp):
        self._parts[tp].settling = {}
        return super().begin(tp)


class LosesFailedCommits(StateStore):
    """What was to be saved is forgotten when the commit fails."""

    def snapshots(self, owner, position):
        self._parts[owner].frozen = {}
        return super().snapshots(owner, position)


class ForgetsReusedKeys(StateStore):
    """R4: a pending tombstone is not cancelled by a START of the same id."""

    def _chunks(self, tp, part, frozen, due):
        yield from super()._chunks(tp, part, frozen, due)
        yield from self._chunked(self._tombstone(tp, key, part.nonce) for key in due)


class PrunesAnswers(StateStore):
    """R6: of the answers that are not acknowledged only the latest is in the snapshot."""

    def record(self, tp, answers):
        for key, offset, out in answers:
            self._parts[tp].recorded[key] = {offset: out}


class PrunesFailedAnswers(StateStore):
    """R6: answers of a settle that failed are left out of the next one's snapshots."""

    def begin(self, tp):
        self._parts[tp].publishing = {}
        return super().begin(tp)


class RecordsWhatFits(StateStore):
    """Rule 1: a snapshot goes ahead of the answers that it has no room for."""

    def _recorded(self, tp, part, key, state):
        return super()._recorded(tp, part, key, state) or self._snapshot(tp, part, key, state)


class ForgetsAnswers(StateStore):
    """R6: restored answers are left out of one's own snapshots."""

    def open(self, tp, restored, nonce):
        restored.answers = {}
        super().open(tp, restored, nonce)
