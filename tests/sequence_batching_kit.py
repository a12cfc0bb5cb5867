"""A sequence model at work on a clock that is moved by hand: routing, batchers, and an accumulator that runs batches.

The model answers the sum of its sequence's inputs since START. Where it declares its state, it gets the sum from the
batch; else it remembers sums by itself as Triton's models do: by row with ``direct``, by id with ``oldest``. So a
sequence that changed its row or shared it shows in the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batching_kit import MS, entry, signature
from headrace.consumers.batcher import Refusal
from headrace.consumers.direct import DirectBatcher
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.sequence_batcher import BacklogBounds, SequenceBatcher
from headrace.consumers.sequences import Sequences
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError
from headrace.schemas.infer import SequenceId
from headrace.schemas.model_config import SequenceBatching, StateConfig, TensorConfig
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState, sequence_key
from headrace.schemas.tensor import Datatype
from headrace.streams.status import SequenceCounts

SUM = StateConfig("SUM_IN", "SUM_OUT", Datatype.INT64, (1,))
WIDE = BacklogBounds(sequences=10**6, records=10**6, span=10**9, size=10**9)
TPS = tuple(TP("headrace.m.requests", partition) for partition in range(4))


class Place(NamedTuple):
    """As much of a record as a step needs."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes = b""


class Ran(NamedTuple):
    """A batch that was executed."""

    ms: float
    instance: int
    batch: Batch


class OwnRows(DirectBatcher):
    """With as many slots as rows whatever the model declares: so a sequence more than that waits, or is parked."""

    SEATS = 0


@dataclass
class Model:
    """A sequence model with its instances.

    Attributes:
        make: The batcher under test.
        rows: ``max_batch_size``.
        instances: How many.
        states: Declared; none: the model remembers by itself.
        candidates: Oldest: slots per instance.
        preferred: Oldest: preferred sizes, the largest batch if empty.
        delay_ms: Longest wait for more to run together.
        utilization: Direct: share of slots that are worth running.
        bounds: Of the backlog.
        idle_ms: Longest silence of a sequence.
        versions: Served versions.
        inputs: Of another model than the usual one.
    """

    make: type[SequenceBatcher] = OwnRows
    rows: int = 4
    instances: int = 1
    states: tuple[StateConfig, ...] = (SUM,)
    candidates: int = 4
    preferred: tuple[int, ...] = ()
    delay_ms: float = 0
    utilization: float = 0
    bounds: BacklogBounds = WIDE
    idle_ms: int = 5000
    versions: tuple[int, ...] = (1,)
    inputs: tuple[TensorConfig, ...] = ()

    batchers: dict[int, SequenceBatcher] = field(init=False)
    sequences: Sequences = field(init=False)
    now_ns: int = field(default=MS, init=False)
    ran: list[Ran] = field(default_factory=list, init=False)
    answers: dict[Entry, int | InferError] = field(default_factory=dict, init=False)
    ran_on: dict[Entry, int] = field(default_factory=dict, init=False)
    order: list[Entry] = field(default_factory=list, init=False)
    queued: list[LiveSequence] = field(default_factory=list, init=False)
    idled: list[LiveSequence] = field(default_factory=list, init=False)
    busy: dict[tuple[int, int], Batch] = field(default_factory=dict, init=False)
    offsets: Counter[TP] = field(default_factory=Counter, init=False)
    memory: dict[object, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        config = SequenceBatching(
            states=self.states,
            max_queue_delay_us=round(self.delay_ms * 1000),
            min_slot_utilization=self.utilization,
            max_candidates=self.candidates,
            preferred_batch_size=self.preferred or (max(1, self.rows),),
        )
        zeros = tuple(b"\0" * 8 for _ in self.states)
        shapes = tuple((1,) for _ in self.states)
        self.sequences = Sequences(
            {
                version: signature(self.rows, self.inputs, config, version)
                for version in self.versions
            },
            counts=SequenceCounts(),
            idle_us=self.idle_ms * 1000,
            keeps_state=bool(self.states),
            checks_keys=False,
            max_live=10**6,
            release=lambda lane: self.batchers[lane.home].release(lane),
            adopt=lambda lane: self.batchers[lane.home].adopt(lane, self.now_ns),
        )
        self.batchers = {
            version: self.make(
                signature(self.rows, self.inputs, config, version),
                config,
                version=version,
                initial=SequenceState(-1, Flag.LIVE, 0, version, 0, zeros, shapes),
                instances=self.instances,
                bounds=self.bounds,
                on_idle=self._idle,
                on_moved=self.sequences.moved,
            )
            for version in self.versions
        }
        for tp in TPS:
            self.sequences.open(tp, 1, {}, {})

    def _idle(self, lane: LiveSequence) -> None:
        assert lane.is_idle
        self.idled.append(lane)
        self.sequences.idle(lane)

    @property
    def batcher(self) -> SequenceBatcher:
        """Of the only version."""
        (batcher,) = self.batchers.values()
        return batcher

    def lane(self, sequence_id: SequenceId, partition: int = 0) -> LiveSequence:
        """A live sequence."""
        return self.sequences._tables[TPS[partition]].lanes[sequence_id]

    # --- what comes ---

    def ask(
        self,
        sequence_id: SequenceId,
        value: int,
        flags: str = "",
        *,
        partition: int = 0,
        version: int = 0,
        shape: tuple[int, ...] = (16,),
        **fields: Any,
    ) -> Entry:
        """A request, next in its partition; ``flags``: S is START, E is END."""
        tp = TPS[partition]
        made = entry(
            1,
            (shape,),
            tp=tp,
            sequence_id=sequence_id,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
            version=version or max(self.versions),
            **fields,
        )
        data = str(value).encode()
        made.record = Place(self.offsets[tp], self.now_ns // MS, value=data)
        made.data = (data,)
        self.offsets[tp] += 1
        return made

    def chain(
        self, sequence_id: SequenceId, values: Iterable[int], *, ends: bool = True, **fields: Any
    ) -> list[Entry]:
        """A sequence's requests, START first, END last."""
        given = list(values)
        last = len(given) - 1
        return [
            self.ask(
                sequence_id,
                value,
                ("S" if place == 0 else "") + ("E" if ends and place == last else ""),
                **fields,
            )
            for place, value in enumerate(given)
        ]

    def offer(self, *entries: Entry) -> None:
        """Let records come, in one block per partition."""
        for tp in dict.fromkeys(one.tp for one in entries):
            block = sorted(
                [one for one in entries if one.tp == tp], key=lambda one: one.record.offset
            )
            routed = self.sequences.route(tp, block)
            self.refused(routed.refusals)
            for version, steps in routed.by_version.items():
                self.queued += [step.sequence for step in steps]
                self.refused(self.batchers[version].offer(steps, self.now_ns))

    # --- what runs ---

    def take(self, instance: int = 0, *, flush: bool = False, version: int = 0) -> Batch | None:
        """Let an instance that is free begin its next batch; returns it."""
        version = version or max(self.versions)
        assert (version, instance) not in self.busy
        batch = self.batchers[version].take(instance, self.now_ns, flush=flush)
        if batch is not None:
            self.busy[version, instance] = batch
        return batch

    def finish(self, instance: int = 0, *, version: int = 0) -> None:
        """Let an instance end its batch: the model runs, and the batcher is told."""
        version = version or max(self.versions)
        batch = self.busy.pop((version, instance))
        self.ran.append(Ran(self.now_ns / MS, instance, batch))
        sums = self._execute(version, instance, batch)
        self.batchers[version].done(batch, self.now_ns)
        for one, total in sums:
            self.ran_on[one] = version
            self._answer(one, total)

    def _execute(self, version: int, instance: int, batch: Batch) -> list[tuple[Entry, int]]:
        sums: list[tuple[Entry, int]] = []
        for row, (one, before) in enumerate(zip(batch.entries, batch.states, strict=True)):
            if one is None:
                continue
            value = int(bytes(one.data[0] or b""))
            if self.states:
                total = int.from_bytes(before.tensors[0], "little", signed=True) + value
                one.state_out = ((total.to_bytes(8, "little", signed=True),), before.shapes)
            else:
                mine: object = (version, instance, row)
                if not issubclass(self.make, DirectBatcher):
                    mine = (version, one.tp, sequence_key(one.sequence_id))
                total = value + (0 if one.sequence_start else self.memory[mine])
                self.memory[mine] = total
                one.state_out = ((), ())
            sums.append((one, total))
        return sums

    def tick(self, ms: float = 0) -> None:
        """Let time pass, and answer what is refused by then."""
        self.now_ns += round(ms * MS)
        for batcher in self.batchers.values():
            self.refused(batcher.expire(self.now_ns))

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Answer with errors."""
        for one, error in refusals:
            self._answer(one, error)

    def _answer(self, one: Entry, answer: int | InferError) -> None:
        assert one not in self.answers, f"{one} is answered twice"
        self.answers[one] = answer
        self.order.append(one)

    def run(self, *, flush: bool = False) -> None:
        """Run whatever is due now, instance by instance, until nothing is."""
        going = True
        while going:
            answered = len(self.order)
            self.tick()
            for version in self.versions:
                for instance in range(self.instances):
                    if self.take(instance, flush=flush, version=version) is not None:
                        self.finish(instance, version=version)
            going = len(self.order) > answered

    # --- what came of it ---

    def sums(self, *entries: Entry) -> list[object]:
        """Each request's sum, or the reason for which it has none; None: not answered."""
        found = [self.answers.get(one) for one in entries]
        return [str(one.reason) if isinstance(one, InferError) else one for one in found]

    def text(self, one: Entry) -> str:
        """The sentence with which a request was refused."""
        error = self.answers[one]
        assert isinstance(error, InferError)
        return error.detail

    @property
    def sizes(self) -> dict[int, int]:
        """Rows → how many executions had so many, padding included as Triton counts them."""
        return dict(Counter(len(ran.batch) for ran in self.ran))

    @property
    def counts(self) -> tuple[int, int]:
        """Executions and inferences: padding rows are none."""
        return len(self.ran), sum(one is not None for ran in self.ran for one in ran.batch.entries)

    @property
    def rows_run(self) -> list[list[SequenceId | None]]:
        """The ids of each execution, row by row."""
        return [
            [None if one is None else one.sequence_id for one in ran.batch.entries]
            for ran in self.ran
        ]


Make = Callable[..., Model]
"""Makes a model with a batcher of one strategy."""

STRATEGIES: tuple[type[SequenceBatcher], ...] = (OwnRows, OldestBatcher)
