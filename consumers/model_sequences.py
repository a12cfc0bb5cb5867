"""A sequence model's part of its worker: routing, durable state, takeover, and the reaper, tied together.

`headrace.consumers.sequences` decides, `headrace.consumers.state_store` remembers, `headrace.consumers.restore`
reads back; here they meet the log, the settler and the clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from headrace.consumers.partition import Partition
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.sequence_keys import SequenceKeys
from headrace.consumers.sequence_page import sequence_page
from headrace.consumers.sequence_table import Routed
from headrace.consumers.sequences import Sequences
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.settle import Settler
from headrace.consumers.state_store import StateStore
from headrace.consumers.state_topic import StateTopic
from headrace.consumers.stored_partition import StoreCounts
from headrace.schemas.batch import Entry
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import SequenceState, sequence_key
from headrace.schemas.snapshot import Damage, SequenceCodec, StateKind, takeover_nonce
from headrace.schemas.snapshot_size import max_snapshot_bytes
from headrace.streams.log import Log, Position, Source
from headrace.streams.sequence_list import SequencePage
from headrace.streams.status import SequenceCounts

logger = logging.getLogger(__name__)

REAP_INTERVAL_S = 0.25
"""Shortest pause between two looks for silent sequences, seconds."""

REAP_INTERVAL_MAX_S = 5.0
"""Longest one."""

SUSPENDED_S = 60.0
"""A revoked partition that has not come back after so long is another's, seconds: rebalances take less."""

MAX_LOST_WARNINGS = 20
"""Sequences that a takeover has lost of one partition and that are warned about one by one; all are counted."""


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How a model's sequences are kept.

    Attributes:
        every: Snapshot also after so many steps; 0 is only before each commit (P-3).
        record_answers: Snapshot with the answer before it is published (P-16).
    """

    every: int = 0
    record_answers: bool = False


class ModelSequences:
    """The sequences of one model in this worker, over all of its memberships.

    Attributes:
        sequences: Which there are.
        keyed: Their idempotency keys, None where answers are not remembered.
        store: Their durable state; a new one per membership.
    """

    def __init__(
        self,
        model_name: str,
        sequences: Sequences,
        *,
        log: Log,
        state_topic: str,
        codec: SequenceCodec,
        options: StateOptions,
        idle_us: int,
        settings: WorkerSettings,
        clock: Clock,
        took_over: Callable[[float], None],
        batchers: Callable[[], Mapping[int, SequenceBatcher]],
        keyed: SequenceKeys | None = None,
        read_on: Callable[[TP, int], None],
    ) -> None:
        """Keep the parts.

        Args:
            model_name: Which model.
            sequences: Its sequences; nothing is open yet.
            log: Where the state topic is.
            state_topic: Compacted, partitions as the requests topic.
            codec: Reads and writes states.
            options: Of the model.
            idle_us: Longest silence of a sequence, µs.
            settings: Bounds.
            clock: Time.
            took_over: Told how long a takeover's reading took, seconds.
            batchers: Returns each version's batcher.
            keyed: Their idempotency keys; None where answers are not remembered.
            read_on: Told the next offset of a partition to read, before a block's records are queued.
        """
        self.sequences = sequences
        self.keyed = keyed
        self.options = options
        self._model_name = model_name
        self._log = log
        self._topic = StateTopic(log, state_topic, codec)
        self._codec = codec
        self._idle_s = idle_us / 1e6
        self._settings = settings
        self._clock = clock
        self._took_over = took_over
        self._batchers = batchers
        self._read_on = read_on
        self._partitions: Mapping[TP, Partition] = {}
        self._settler: Settler | None = None
        self._source: Source | None = None
        self._suspended: dict[TP, float] = {}
        self._counts: dict[
            TP, int
        ] = {}  # partitions of the requests topic when one was taken over
        self._before = StoreCounts()  # of the stores of earlier memberships
        self.store = self._new_store()

    @property
    def topic(self) -> str:
        """Where their states are."""
        return self._topic.name

    def new_store(self) -> StateStore[SequenceState]:
        """Start a membership with an empty store; returns it."""
        self._before.snapshots += self.store.counts.snapshots
        self._before.snapshot_bytes += self.store.counts.snapshot_bytes
        self.store = self._new_store()
        return self.store

    def _new_store(self) -> StateStore[SequenceState]:
        settings = self._settings
        return StateStore(
            self._topic.name,
            StateKind.SEQUENCE,
            self._codec,
            every=self.options.every,
            record_answers=self.options.record_answers,
            # Never below the idle time: a zombie's late snapshot must be too old to go on once the marker is gone.
            ended_ttl_ms=int(max(settings.ended_ttl_s, self._idle_s) * 1000),
            max_markers=settings.max_ended_sequences,
            max_bytes=max_snapshot_bytes(self._log.max_record_bytes),
            wall_ms=self._clock.wall_ms,
            on_forgotten=self._forget,
            complete=None if self.keyed is None else self.keyed.complete,
        )

    def _forget(self, tp: TP, keys: Sequence[bytes]) -> None:
        self.sequences.forget(tp, keys)
        if self.keyed is not None:
            self.keyed.forget(tp, keys)

    def attach(self, partitions: Mapping[TP, Partition], settler: Settler, source: Source) -> None:
        """Bring the parts of a new membership."""
        self._partitions, self._settler, self._source = partitions, settler, source

    async def restore(self, parts: Sequence[Partition]) -> None:
        """Read the states of partitions that are being taken over, and open them (P-5 step 3).

        Raises:
            LogError: The state topic cannot be read; nothing is open then.
        """
        if not parts:
            return
        began_ns = self._clock.now_ns()
        assert self._source is not None
        tps = [part.tp for part in parts]
        count = await self._topic.input_partitions(tps)
        found = await self._topic.read(tps, self._source, count)
        nonce = takeover_nonce(count, secrets.token_hex(4))
        for part in parts:
            if self._partitions.get(part.tp) is not part:
                continue  # it changed hands meanwhile
            restored = found[part.tp.partition]
            self._warn_of_lost(part.tp, restored.failures)
            self._counts[part.tp] = count
            self.store.open(part.tp, restored, nonce)
            if self.keyed is not None:
                self.keyed.restored(part.tp, part.epoch, restored.states)
            lost = self.sequences.open(part.tp, part.epoch, restored.states, restored.failures)
            if lost:
                self.store.stage(part.tp, lost)
            counts = self.sequences.counts
            counts.snapshots_corrupt += restored.damage.get(Damage.CORRUPT, 0)
            counts.snapshots_shape += restored.damage.get(Damage.OTHER_LAYOUT, 0)
            counts.snapshots_newer += restored.damage.get(Damage.NEWER, 0)
        self._took_over((self._clock.now_ns() - began_ns) / 1e9)

    def _warn_of_lost(self, tp: TP, failures: Mapping[bytes, str]) -> None:
        for key, why in islice(failures.items(), MAX_LOST_WARNINGS):
            logger.warning(
                "model '%s': sequence %s on partition %d is lost: %s",
                self._model_name,
                key.decode(errors="replace"),
                tp.partition,
                why,
            )
        if len(failures) > MAX_LOST_WARNINGS:
            logger.warning(
                "model '%s': %d sequences on partition %d are lost, not all are named here",
                self._model_name,
                len(failures),
                tp.partition,
            )

    def state_partitions(self) -> Set[TP]:
        """Return the partitions of the state topic that are written now."""
        return self._topic.partitions({p.tp for p in self._partitions.values() if p.active})

    def look(self, ends: Mapping[TP, int]) -> None:
        """Write every state anew where an end of the state topic has gone back: another worker has made it again."""
        if self._topic.went_back(ends):
            self.write_again()

    def write_again(self) -> None:
        """Write every state anew: the state topic was made again, and what was in it is gone (FAULTS B104)."""
        logger.warning(
            "state topic %s was made again: every state is written anew", self._topic.name
        )
        for part in self._partitions.values():
            if self._settler is None or not part.active:
                continue
            # The others' answers are not put yet, or wait for a settle: their states will be written with these (M1).
            states = {
                key: state
                for key, state in self.sequences.states(part.tp)
                if part.ledger.is_finished(state.offset)
            }
            self._settler.put(part, (), (), 0, states=states)
            self._settler.schedule(at_once=False)

    def confirmed(self, part: Partition, position: Position) -> None:
        """Take note that a partition's position was accepted by the coordinator: it is ours (P-5 step 4)."""
        self.store.committed(part.tp, position)

    def suspend(self, tp: TP) -> None:
        """Keep what is known of a partition that was revoked with everything answered and committed (P-7)."""
        self._suspended[tp] = asyncio.get_running_loop().time()

    async def resume(self, parts: Sequence[Partition]) -> Set[TP]:
        """Go on with those that were suspended, unless their topic has got more partitions since; returns which.

        Raises:
            LogError: It cannot be asked how many it has now.
        """
        kept: set[TP] = set()
        suspended = [part for part in parts if part.tp in self._suspended]
        if not suspended:
            return kept
        count = await self._topic.input_partitions([part.tp for part in suspended])
        for part in suspended:
            if self._partitions.get(part.tp) is not part or part.tp not in self._suspended:
                continue  # it changed hands meanwhile
            del self._suspended[part.tp]
            if self._counts.get(part.tp) != count or not self.store.resume(part.tp):
                self.close(part.tp)
                continue
            self.sequences.resume(part.tp, part.epoch)
            if self.keyed is not None:
                self.keyed.resume(part.tp, part.epoch)
            kept.add(part.tp)
        return kept

    def forget_suspended(self, older_than_s: float = 0.0, *, but: Set[TP] = frozenset()) -> None:
        """Forget suspended partitions: somebody else has them."""
        now = asyncio.get_running_loop().time()
        for tp, since in list(self._suspended.items()):
            if tp not in but and now - since >= older_than_s:
                del self._suspended[tp]
                self.close(tp)

    def close(self, tp: TP) -> None:
        """Forget a partition that is not ours any more; nothing of it is queued."""
        for batcher in self._batchers().values():
            batcher.drop(tp)
        self.sequences.close(tp)
        if self.keyed is not None:
            self.keyed.close(tp)
        self.store.close(tp)
        self._counts.pop(tp, None)

    def route(self, part: Partition, entries: Sequence[Entry]) -> Routed:
        """Decide what becomes of a block's records; what was finished before is closed here."""
        routed = self.sequences.route(part.tp, entries)
        if routed.closed:
            self._finished_before(part, routed.closed)
        self._read_on(part.tp, part.ledger.next_offset)
        return routed

    def _finished_before(self, part: Partition, entries: Sequence[Entry]) -> None:
        """Finish records that an earlier owner answered; answers that were recorded are published again (P-16)."""
        assert self._settler is not None
        outs: list[Out] = []
        size = 0
        for entry in entries:
            record = entry.record
            size += 0 if record.value is None else len(record.value)
            if self.options.record_answers:
                key = sequence_key(entry.sequence_id)
                out = self.store.answers(part.tp, key, record.offset)
                if out is not None:
                    outs.append(out)
        self._settler.put(part, outs, [entry.record.offset for entry in entries], size)
        self._settler.schedule(at_once=False)

    def count(self) -> SequenceCounts:
        """Return what is counted, the gauges as of now."""
        counts = self.sequences.counts
        batchers = self._batchers().values()
        counts.live = len(self.sequences)
        counts.backlogged = sum(batcher.backlogged for batcher in batchers)
        counts.parked = sum(batcher.parked for batcher in batchers)
        counts.snapshots = self._before.snapshots + self.store.counts.snapshots
        counts.snapshot_bytes = self._before.snapshot_bytes + self.store.counts.snapshot_bytes
        return counts

    def page(self, limit: int, worker: str) -> SequencePage:
        """Return the most recently active live sequences."""
        now_ms = self._clock.wall_ms()
        return sequence_page(self.sequences, self._batchers(), now_ms, limit=limit, worker=worker)

    async def reap(self) -> None:
        """Expire silent sequences and write tombstones that are due, for ever; ends by cancellation."""
        pause_s = min(REAP_INTERVAL_MAX_S, max(REAP_INTERVAL_S, self._idle_s / 4))
        while True:
            await asyncio.sleep(pause_s)
            self.forget_suspended(SUSPENDED_S)
            try:
                await self._look()
            except LogError as exc:
                logger.warning("silent sequences cannot be judged, trying again: %s", exc.detail)

    async def _look(self) -> None:
        parts = [part for part in self._partitions.values() if part.active]
        certain_ms = self._clock.wall_ms() - self._settings.sequence_skew_s * 1000
        waiting = [part for part in parts if self.sequences.silent(part.tp, certain_ms)]
        ends: Mapping[TP, int] = {}
        if waiting and self._source is not None:
            # Fetched after the deadline: what is appended behind it is later than the deadline (P-15, D7).
            ends = await self._source.end_offsets({part.tp for part in waiting})
        for part in parts:
            if not self._is_ours(part):
                continue
            is_read = part.tp in ends and self._read_to(part) >= ends[part.tp]
            markers = self.sequences.reap(part.tp, certain_ms if is_read else 0)
            self._stage(part, markers)

    def _read_to(self, part: Partition) -> int:
        """Return up to where every record was routed; takes the ledger past what holds none at the end (P-1).

        A partition may end in a transaction's marker, or in what compaction took: nothing is handed out of these.
        """
        if part.decoding:
            return 0  # a step among these may have come in time
        if self._source is not None:
            part.ledger.advance(self._source.position(part.tp))
        return part.ledger.next_offset

    def _is_ours(self, part: Partition) -> bool:
        return part.active and self._partitions.get(part.tp) is part

    def _stage(self, part: Partition, markers: Mapping[bytes, SequenceState]) -> None:
        """Let markers be written, and tombstones that wait for a commit."""
        if self._settler is None:
            return
        if markers or self.store.due(part.tp, self._clock.wall_ms()):
            # Behind the answers that are on their way: a marker says that all before it is answered (M1).
            self._settler.put(part, (), (), 0, states=markers)
            self._settler.schedule(at_once=False)
