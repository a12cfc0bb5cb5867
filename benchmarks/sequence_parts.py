"""The parts of a sequence model's worker without log and model, tied as the worker ties them: decode to state store.

States come from one array that is made once; they have the size of the recurrent network's and are copied per step, as
a model's are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from aiokafka.structs import ConsumerRecord
from headrace.consumers.direct import DirectBatcher
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.restore import Restored
from headrace.consumers.sequence_batcher import BacklogBounds, SequenceBatcher
from headrace.consumers.sequences import Sequences
from headrace.consumers.state_store import StateStore
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.record import TP, Out, Record
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Signature
from headrace.schemas.snapshot import SequenceCodec, StateKind, takeover_nonce
from headrace.schemas.split import split_states
from headrace.streams.log import Position
from headrace.streams.status import SequenceCounts

from benchmarks.formats import Steps
from benchmarks.recurrent import IDLE_US, MODEL, STATE, STATE_BYTES, configuration
from benchmarks.workload import MAX_BATCH_ROWS

BLOCK_RECORDS = 512
"""Records of one poll of the worker."""
_REQUESTS, _STATES = TP(f"parts.{MODEL}.requests", 0), f"parts.{MODEL}.state"
_NONCE = takeover_nonce(1, "0123abcd")
_WIDE = BacklogBounds(sequences=1 << 30, records=1 << 30, span=1 << 30, size=1 << 60)


class Parts:
    """One partition's sequences with their batcher and their store.

    Attributes:
        sequences: Which there are.
        batcher: Where their steps wait.
        store: Their states until they are saved.
        codec: Writes and reads those.
    """

    def __init__(
        self, strategy: str, live: int, *, rows: int = MAX_BATCH_ROWS, candidates: int = 0
    ) -> None:
        """Start with no sequence.

        Args:
            strategy: ``direct`` or ``oldest``.
            live: Sequences that there will be.
            rows: Rows of a batch at most; ``direct`` has as many slots.
            candidates: Slots of ``oldest``; 0 is one for each sequence.
        """
        text = configuration(strategy, rows=rows, candidates=candidates or live)
        config = config_from_message(
            parse_config(text, "config.pbtxt"), file="config.pbtxt", directory_name=MODEL
        )
        batching = config.sequence_batching
        assert batching is not None
        self._signature = Signature(config, 1)
        self._decoder = RequestDecoder({1: self._signature}, model_name=MODEL)
        self.codec = SequenceCodec(batching.states)
        self._column = np.ones((rows, STATE), np.float32)
        self._requests = Steps(live)
        self._next = 0
        self.sequences = Sequences(
            {1: self._signature},
            counts=SequenceCounts(),
            idle_us=IDLE_US,
            keeps_state=True,
            max_live=live,
            release=lambda lane: self.batcher.release(lane),  # noqa: PLW0108  # there is none yet
            adopt=lambda lane: self.batcher.adopt(lane, time.monotonic_ns()),
        )
        kind = DirectBatcher if strategy == "direct" else OldestBatcher
        self.batcher: SequenceBatcher = kind(
            self._signature,
            batching,
            version=1,
            initial=SequenceState(-1, Flag.LIVE, 0, 1, 0, (bytes(STATE_BYTES),), ((STATE,),)),
            instances=1,
            bounds=_WIDE,
            on_idle=self.sequences.idle,
            on_moved=self.sequences.moved,
        )
        self.store = StateStore(
            _STATES,
            StateKind.SEQUENCE,
            self.codec,
            max_markers=live,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            on_forgotten=self.sequences.forget,
        )
        self.open(Restored())

    def open(self, restored: Restored[SequenceState]) -> None:
        """Take the partition over, anew."""
        self.store.open(_REQUESTS, restored, _NONCE)
        self.sequences.open(_REQUESTS, 1, restored.states, {})

    def decode(self, numbers: Iterable[int]) -> Sequence[Entry]:
        """Return the requests of these numbers as they come from the log, in this order."""
        records: list[Record] = []
        now_ms = time.time_ns() // 1_000_000
        for number in numbers:
            key, value, headers = self._requests.request(number)
            records.append(
                ConsumerRecord(
                    topic=_REQUESTS.topic,
                    partition=_REQUESTS.partition,
                    offset=self._next,
                    timestamp=now_ms,
                    timestamp_type=1,
                    key=key,
                    value=value,
                    checksum=None,
                    serialized_key_size=len(key),
                    serialized_value_size=len(value),
                    headers=tuple(headers),
                )
            )
            self._next += 1
        decoded = self._decoder.decode(_REQUESTS, 1, records)
        assert not decoded.failures
        entries = decoded.by_version[1]
        for entry in entries:
            entry.version = 1
        return entries

    def admit(self, entries: Sequence[Entry]) -> None:
        """Route and queue a block."""
        routed = self.sequences.route(_REQUESTS, entries)
        assert not routed.refusals
        refused = self.batcher.offer(routed.by_version[1], time.monotonic_ns())
        assert not refused

    def take(self) -> Batch | None:
        """Return the next batch of the one instance, and look at the timer as a scheduler does."""
        batch = self.batcher.take(0, time.monotonic_ns())
        self.batcher.wake_at()
        return batch

    def execute(self, batch: Batch) -> None:
        """Give each step its new state, as an execution does after its model."""
        column = self._column[: batch.rows]
        states = split_states(batch, Responses({}, states={"STATE_OUT": column}))
        for entry, state in zip(batch.entries, states, strict=True):
            if entry is not None:
                entry.state_out = state

    def finish(self, batch: Batch) -> None:
        """End a batch and stage the states that follow from it."""
        self.batcher.done(batch, time.monotonic_ns())
        states: dict[bytes, SequenceState] = {}
        for entry in batch.entries:
            if entry is not None and entry.after is not None:
                states[entry.sequence.key] = entry.after
        self.store.stage(_REQUESTS, states)

    def reap(self) -> None:
        """Look for silent sequences, as the worker does four times a second."""
        assert not self.sequences.silent(_REQUESTS, 0)
        assert not self.sequences.reap(_REQUESTS)

    def settle(self) -> None:
        """Let the log acknowledge the answers of what is staged."""
        before, behind = self.store.begin(_REQUESTS)
        assert not before
        assert not behind
        self.store.settled(_REQUESTS, self._position())

    def commit(self) -> Iterator[Sequence[Out]]:
        """Save and commit what is settled; yields the state records, chunk by chunk as they are written."""
        for outs in self.store.snapshots(_REQUESTS, self._position()):
            self.store.saved(_REQUESTS, outs)
            yield outs
        self.store.committed(_REQUESTS, self._position())

    def run(self, numbers: Sequence[int]) -> None:
        """Take requests through all parts, block by block, up to settled; nothing is committed."""
        for at in range(0, len(numbers), BLOCK_RECORDS):
            self.admit(self.decode(numbers[at : at + BLOCK_RECORDS]))
            while (batch := self.take()) is not None:
                self.execute(batch)
                self.finish(batch)
            self.settle()

    def _position(self) -> Position:
        return Position(self._next)
