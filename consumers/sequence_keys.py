"""Idempotency keys of sequences' requests: a repeated step is answered, and its sequence does not step (P-17).

A repeat is known when its block is read, before it can open, end or step anything; it is answered in its turn within
its sequence, so that answers keep the order of the records (P-18). Keys and answers travel in the sequence's snapshots,
markers too: whoever repeats the last step after the end gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.consumers.key_table import KeyBounds, KeyTable
from headrace.consumers.keyed import Ended
from headrace.consumers.keys import KeyTables
from headrace.consumers.replays import kept_answer, replayed
from headrace.schemas.answers import Answer
from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, WorkerCrashed
from headrace.schemas.idempotency import key_reused
from headrace.schemas.record import TP
from headrace.schemas.remembered import KeptAnswer
from headrace.schemas.sequence import SequenceState, sequence_key


class Repeat(InferError):
    """Stands in an entry's ``error``: it is answered in its turn, with the answer of the first one with its key.

    Attributes:
        answers: That answer; None until the first one has it.
    """

    def __init__(self, answers: Sequence[KeptAnswer] | None) -> None:
        """Keep the answer."""
        super().__init__("the request repeats another one")
        self.answers = answers


class SequenceKeys:
    """The keys of one model's sequences; a `headrace.consumers.keyed.Keyed`.

    Attributes:
        keys: What is known, by partition and sequence.
    """

    def __init__(
        self,
        bounds: KeyBounds,
        wall_ms: Callable[[], int],
        *,
        finished: Callable[[TP, bytes], int],
        max_bytes: int,
    ) -> None:
        """Start with nothing.

        Args:
            bounds: How much is remembered.
            wall_ms: Now, ms since the epoch.
            finished: Returns the offset up to which a sequence's records are finished, -1 where nothing is known.
            max_bytes: Of a snapshot, for states and answers together.
        """
        self.keys = KeyTables(bounds, wall_ms)
        self._bounds = bounds
        self._finished = finished
        self._max_bytes = max_bytes
        self._followers: dict[Entry, list[Repeat]] = {}

    def restored(self, tp: TP, epoch: int, states: Mapping[bytes, SequenceState]) -> None:
        """Begin with what the snapshots of a partition hold."""
        self.close(tp)
        table = self.keys.open(tp, epoch)
        found = [
            (answer.at_ms, scope, key, answer)
            for scope, state in states.items()
            for key, answer in state.recent
        ]
        for _, scope, key, answer in sorted(found, key=lambda item: item[0]):
            self.keys.restored(table, scope, key, answer)

    def resume(self, tp: TP, epoch: int) -> None:
        """Go on with a partition that came back; what was queued is read again."""
        self._let_go(tp)
        self.keys.resume(tp, epoch)

    def close(self, tp: TP) -> None:
        """Forget a partition."""
        self._let_go(tp)
        self.keys.close(tp)

    def _let_go(self, tp: TP) -> None:
        table = self.keys.get(tp)
        for leader in () if table is None else table.leaders.values():
            self._followers.pop(leader, None)

    def forget(self, tp: TP, sequences: Sequence[bytes]) -> None:
        """Forget the keys of sequences whose markers are gone."""
        table = self.keys.get(tp)
        if table:
            table.forget_scopes(sequences)

    def screen(self, tp: TP, keyed: Sequence[Entry]) -> None:
        """Know repeats among a block's requests with a key, before they are routed: their ``error`` says so."""
        table = self.keys.get(tp)
        assert table is not None, "what is admitted has been taken over"
        now_ms = self.keys.now_ms()
        for entry in keyed:
            if not entry.sequence_id or not (
                entry.error is None or isinstance(entry.error, WorkerCrashed)
            ):
                continue  # answered with that error, which a repeat may mend
            scope = sequence_key(entry.sequence_id)
            if entry.record.offset > self._finished(tp, scope):
                self._screen(table, scope, entry, now_ms)

    def _screen(self, table: KeyTable, scope: bytes, entry: Entry, now_ms: int) -> None:
        key = entry.idempotency_key
        leader = table.leaders.get((scope, key))
        known = table.find(scope, key, now_ms)
        if leader is not None:
            digest, answers = leader.digest, None
        elif known is not None:
            digest, answers = known.digest, known.answers
        else:
            self.keys.lead(table, scope, entry)
            return
        if digest != entry.digest:
            entry.error = key_reused(key)
            return
        repeat = entry.error = Repeat(answers)
        entry.dead_letter = False
        self.keys.wait(table, 1)
        if leader is not None:
            self._followers.setdefault(leader, []).append(repeat)

    def ended(
        self,
        answers: Sequence[Answer],
        finished: Sequence[Entry],
        fit: Callable[[Answer], Answer],
    ) -> Ended:
        """Remember answers, and give repeats theirs; see `headrace.consumers.keyed.Keyed`.

        What is stored goes into the snapshots (`complete`).
        """
        mine: dict[Entry, list[Answer]] = {
            entry: []
            for entry in finished
            if entry.idempotency_key and self.keys.of(entry) is not None
        }
        if not mine:
            return Ended(answers, finished, {})
        for answer in answers:
            if (own := mine.get(answer[0])) is not None:
                own.append(fit(answer))
        for entry, own in mine.items():
            table = self.keys.of(entry)
            assert table is not None
            if isinstance(entry.error, Repeat):
                assert entry.error.answers is not None, "the first one comes before"
                mine[entry] = replayed(entry, entry.error.answers)
                self.keys.wait(table, -1)
                self.keys.counts.replayed += 1
            elif self.keys.land(table, scope := sequence_key(entry.sequence_id), entry):
                self.keys.remember(table, scope, entry, own)
                said = [kept_answer(value, headers) for _, value, headers in own]
                for repeat in self._followers.pop(entry, ()):
                    repeat.answers = said
        return Ended(_put_in(answers, mine), finished, {})

    def complete(
        self, tp: TP, states: Mapping[bytes, SequenceState]
    ) -> Mapping[bytes, SequenceState]:
        """Return what is to be stored of sequences: their states with the keys and answers that are remembered."""
        table = self.keys.get(tp)
        if not table:
            return states
        return {key: self._completed(table, key, state) for key, state in states.items()}

    def _completed(self, table: KeyTable, key: bytes, state: SequenceState) -> SequenceState:
        room = min(self._bounds.sequence_size, self._max_bytes - sum(map(len, state.tensors)))
        recent = table.recent(key, room)
        return state._replace(recent=recent) if recent else state


def _put_in(answers: Sequence[Answer], mine: Mapping[Entry, Sequence[Answer]]) -> list[Answer]:
    """Return answers in their order, those of some entries replaced."""
    found: list[Answer] = []
    done: set[Entry] = set()
    for answer in answers:
        entry = answer[0]
        if entry not in mine:
            found.append(answer)
        elif entry not in done:
            done.add(entry)
            found += mine[entry]
    return found
