"""Remembered answers of a stateless model: who leads, who follows, and what is stored (DELIVERY P-17).

Every request with an idempotency key passes `RememberedAnswers.screen` before it is queued, and every answer passes
`RememberedAnswers.ended` before it is published. What is remembered is stored in the model's answers topic by the same
settle, in exactly_once in the same transaction, and whoever takes the partition over reads it before it admits.

A follower is in no queue: it hangs on its leader (`Entry.followers`) and goes where that goes. Where the leader ends by
a fate of its own (its caller went away, its deadline passed), the first follower takes its place.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from headrace.consumers.batcher import Refusal
from headrace.consumers.key_table import WHOLE, KeyBounds, KeyTable
from headrace.consumers.keyed import Ended
from headrace.consumers.keys import KeyCounts, KeyTables
from headrace.consumers.partition import Partition
from headrace.consumers.replays import kept_answer, replayed
from headrace.consumers.restore import Newest, restore
from headrace.consumers.settle import Settler
from headrace.consumers.state_store import StateStore
from headrace.schemas.answers import Answer
from headrace.schemas.batch import Entry
from headrace.schemas.errors import LogError
from headrace.schemas.idempotency import OWN_FATE, key_reused, not_remembered, outcome_of
from headrace.schemas.record import TP
from headrace.schemas.remembered import AnswerCodec, KeptAnswer, Remembered
from headrace.schemas.sequence import Flag
from headrace.schemas.snapshot import StateKind, takeover_nonce
from headrace.schemas.snapshot_size import max_snapshot_bytes
from headrace.streams.log import Log, Mode, Position, Source

logger = logging.getLogger(__name__)

OFFSETS_PER_KEY = 2
"""Of the answers topic so many offsets are read per key that may be remembered: a transaction's marker takes one."""


class Screened(NamedTuple):
    """What becomes of requests.

    Attributes:
        queue: To be run, in their order.
        refusals: Another request had their key.
        replays: Answered with what is remembered.
        closed: Answered before, by an earlier owner.
    """

    queue: list[Entry]
    refusals: list[Refusal]
    replays: list[tuple[Entry, Sequence[KeptAnswer]]]
    closed: list[Entry]


class RememberedAnswers:
    """Of one model in this worker, over all of its memberships; a `headrace.consumers.assignment.Stateful`.

    Attributes:
        topic: Where it is stored.
        keys: What is known, by partition.
        store: What is durable of it; a new one per membership.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        bounds: KeyBounds,
        *,
        mode: Mode,
        wall_ms: Callable[[], int],
        counts: KeyCounts | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            log: Where the answers topic is.
            topic: Compacted and deleted, partitions as the requests topic.
            bounds: How much is remembered.
            mode: The guarantee of the model's answers.
            wall_ms: Now, ms since the epoch.
            counts: Where to count.
        """
        self._max_bytes = max_snapshot_bytes(log.max_record_bytes)
        self.keys = KeyTables(bounds._replace(answer_size=self._max_bytes), wall_ms, counts)
        self.topic = topic
        self._log = log
        self._newest = Newest(bounds.keys, bounds.size, OFFSETS_PER_KEY * bounds.keys)
        self._count = (
            1  # partitions of the topic: where it has fewer than the requests, several share one
        )
        self._ends: Mapping[TP, int] = {}
        self._is_exact = mode is Mode.EXACTLY_ONCE
        self._wall_ms = wall_ms
        self._partitions: Mapping[TP, Partition] = {}
        self._settler: Settler | None = None
        self._suspended: set[TP] = set()
        self.store = self.new_store()

    def new_store(self) -> StateStore[Remembered]:
        """Start a membership with an empty store; returns it."""
        self.store = StateStore(
            self.topic,
            StateKind.ANSWER,
            AnswerCodec(),
            # Each answer with the settle that publishes it: what was seen is remembered at once, not with a commit.
            every=0 if self._is_exact else 1,
            max_markers=1,
            max_bytes=self._max_bytes,
            wall_ms=self._wall_ms,
            on_forgotten=lambda *_: None,
            place=self._place,
        )
        return self.store

    def attach(self, partitions: Mapping[TP, Partition], settler: Settler, source: Source) -> None:
        """Bring the parts of a new membership."""
        del source  # what is remembered needs nothing of the group
        self._partitions, self._settler = partitions, settler

    # What `headrace.consumers.assignment.Stateful` asks for.

    async def restore(self, parts: Sequence[Partition]) -> None:
        """Read what is remembered of partitions that are being taken over (P-5 step 3); `LogError` if that fails."""
        if not parts:
            return
        count = await self._log.partitions(self.topic)
        if count is None:
            raise LogError(f"topic {self.topic} does not exist", retriable=True)
        self._count = count
        numbers = {self._place(part.tp.partition) for part in parts}
        found = await restore(
            self._log,
            self.topic,
            numbers,
            AnswerCodec(),
            kind=StateKind.ANSWER,
            newest=self._newest,
        )
        nonce = takeover_nonce(count, secrets.token_hex(4))
        for part in parts:
            if self._partitions.get(part.tp) is not part:
                continue  # it changed hands meanwhile
            restored = found[self._place(part.tp.partition)]
            if restored.failures:
                logger.warning(
                    "%s/%d: %d remembered answers cannot be read, their requests run again if they are repeated",
                    *part.tp,
                    len(restored.failures),
                )
            self.store.open(part.tp, restored, nonce)
            table = self.keys.open(part.tp, part.epoch)
            answers = [item for item in restored.states.items() if item[1].flag is Flag.LIVE]
            for key, answer in sorted(answers, key=lambda item: item[1].at_ms):
                self.keys.restored(table, WHOLE, key, answer)

    def _place(self, partition: int) -> int:
        """Return the partition of the topic for one of the requests."""
        return partition % self._count

    def confirmed(self, part: Partition, position: Position) -> None:
        """Take note that a partition's position was accepted by the coordinator."""
        self.store.committed(part.tp, position)

    def suspend(self, tp: TP) -> None:
        """Keep what is known of a partition that was revoked with everything answered and committed (P-7)."""
        self._suspended.add(tp)

    async def resume(self, parts: Sequence[Partition]) -> Set[TP]:
        """Go on with those that were suspended; returns which."""
        kept: set[TP] = set()
        for part in parts:
            if part.tp not in self._suspended:
                continue
            self._suspended.discard(part.tp)
            if self.store.resume(part.tp):
                self.keys.resume(part.tp, part.epoch)
                kept.add(part.tp)
            else:
                self.close(part.tp)
        return kept

    def forget_suspended(self, *, but: Set[TP] = frozenset()) -> None:
        """Forget suspended partitions: somebody else has them."""
        for tp in self._suspended - but:
            self._suspended.discard(tp)
            self.close(tp)

    def close(self, tp: TP) -> None:
        """Forget a partition that is not ours any more."""
        self.keys.close(tp)
        self.store.close(tp)

    # What the answers topic needs when it is deleted (FAULTS B104).

    def state_partitions(self) -> Set[TP]:
        """Return the partitions of the answers topic that are written now and hold something."""
        return {TP(self.topic, self._place(tp.partition)) for tp, table in self.keys if table}

    def look(self, ends: Mapping[TP, int]) -> None:
        """Store everything anew where an end of the topic has gone back: another worker has made it again."""
        before, self._ends = self._ends, dict(ends)
        if any(end < before.get(tp, 0) for tp, end in ends.items()):
            self.write_again()

    def write_again(self) -> None:
        """Store everything anew: the topic was made again, and what was in it is gone."""
        logger.warning("topic %s was made again: what is remembered is stored anew", self.topic)
        for tp, table in self.keys:
            part = self._partitions.get(tp)
            if part is None or self._settler is None or not part.active:
                continue
            states = {
                key: answer
                for (_, key), answer in table.items()
                if part.ledger.is_finished(answer.offset)
            }
            self._settler.put(part, (), (), 0, states=states)
            self._settler.schedule(at_once=False)

    # What becomes of requests and of answers.

    def screen(self, part: Partition, version: int, entries: Sequence[Entry]) -> Screened:
        """Decide what becomes of requests, some of which have a key.

        Args:
            part: Their partition, which is ours.
            version: Model version that they are for.
            entries: In offset order.
        """
        screened = Screened([], [], [], [])
        table = self.keys.get(part.tp)
        assert table is not None, "what is admitted has been taken over"
        now_ms = self._wall_ms()
        for entry in entries:
            if not entry.idempotency_key:
                screened.queue.append(entry)
                continue
            entry.version = version
            answer = table.find(WHOLE, entry.idempotency_key, now_ms)
            if answer is None:
                self._follow(table, entry, screened)
            else:
                self._repeat(table, entry, answer, screened)
        return screened

    def _follow(self, table: KeyTable, entry: Entry, screened: Screened) -> None:
        leader = table.leaders.get((WHOLE, entry.idempotency_key))
        if leader is None:
            self.keys.lead(table, WHOLE, entry)
            screened.queue.append(entry)
        elif leader.digest != entry.digest:
            screened.refusals.append(Refusal(entry, key_reused(entry.idempotency_key)))
        else:
            leader.followers = (*leader.followers, entry)

    def _repeat(
        self, table: KeyTable, entry: Entry, answer: Remembered, screened: Screened
    ) -> None:
        record = entry.record
        if (answer.offset, answer.timestamp_ms) == (record.offset, record.timestamp):
            screened.closed.append(entry)
        elif answer.digest != entry.digest:
            screened.refusals.append(Refusal(entry, key_reused(entry.idempotency_key)))
        elif entry.attempt > 1 and not _is_result(answer.answers):
            # A dead letter that was sent again: the model may have been mended.
            table.drop(WHOLE, entry.idempotency_key)
            self._follow(table, entry, screened)
        else:
            self.keys.counts.replayed += 1
            screened.replays.append((entry, answer.answers))

    def ended(
        self,
        answers: Sequence[Answer],
        finished: Sequence[Entry],
        fit: Callable[[Answer], Answer],
    ) -> Ended:
        """Remember answers, and give them to those who follow; see `headrace.consumers.keyed.Keyed`."""
        mine: dict[Entry, list[Answer]] = {entry: [] for entry in finished if self._land(entry)}
        if not mine:
            return Ended(answers, finished, {})
        for answer in answers:
            if (own := mine.get(answer[0])) is not None:
                own.append(fit(answer))
        more: list[Answer] = []
        followers: list[Entry] = []
        kept: dict[Entry, Remembered] = {}
        for entry, own in mine.items():
            table = self.keys.of(entry)
            assert table is not None
            if (remembered := self.keys.remember(table, WHOLE, entry, own)) is not None:
                kept[entry] = remembered
            if entry.followers and any(outcome_of(said)[1] in OWN_FATE for _, _, said in own):
                self._promote(table, entry)
                continue
            more += _to_followers(entry, own)
            followers += entry.followers
        self.keys.counts.replayed += len(followers)
        return Ended([*answers, *more], [*finished, *followers], kept)

    def _land(self, entry: Entry) -> bool:
        """Whether an entry led until now."""
        table = self.keys.of(entry) if entry.idempotency_key else None
        return table is not None and self.keys.land(table, WHOLE, entry)

    def _promote(self, table: KeyTable, entry: Entry) -> None:
        """Let the first follower take the place of its leader; it is queued when there is room."""
        part = self._partitions.get(entry.tp)
        if part is None:
            return
        first, *others = entry.followers
        entry.followers, first.followers = (), tuple(others)
        first.model_version = str(first.version)
        self.keys.lead(table, WHOLE, first)
        part.held.append(first)


def _to_followers(entry: Entry, own: Sequence[Answer]) -> list[Answer]:
    said = [kept_answer(value, headers) for _, value, headers in own] if entry.followers else ()
    return [answer for follower in entry.followers for answer in replayed(follower, said)]


def refuse_keyed(model_name: str, entries: Sequence[Entry]) -> Screened:
    """Return what becomes of requests where no answer is remembered: one with a key would run again if repeated."""
    screened = Screened([], [], [], [])
    for entry in entries:
        if entry.idempotency_key:
            error = not_remembered(model_name, entry.idempotency_key)
            screened.refusals.append(Refusal(entry, error))
        else:
            screened.queue.append(entry)
    return screened


def _is_result(answers: Sequence[KeptAnswer]) -> bool:
    return all(outcome_of(answer.headers)[0] == "OK" for answer in answers)
