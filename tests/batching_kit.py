"""Parts for tests of schedulers: signatures, entries, and a service on a clock that moves from event to event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.consumers.batcher import Batcher
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import InferError
from headrace.schemas.model_config import (
    DynamicBatching,
    ModelConfig,
    SequenceBatching,
    TensorConfig,
    VersionPolicy,
)
from headrace.schemas.record import TP
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype
from tritonclient.grpc import model_config_pb2

MS = 1_000_000
"""Nanoseconds."""

REQUESTS = TP("headrace.m.requests", 0)


class Place(NamedTuple):
    """As much of a record as a scheduler's entry needs."""

    offset: int


def signature(
    max_batch_size: int = 8,
    inputs: Iterable[TensorConfig] = (),
    sequences: SequenceBatching | None = None,
    version: int = 1,
) -> Signature:
    """A model with one FP32 input of 16 elements, or with the given inputs."""
    given = tuple(inputs) or (TensorConfig("INPUT0", Datatype.FP32, (16,)),)
    config = ModelConfig(
        name="m",
        platform="",
        backend="identity",
        max_batch_size=max_batch_size,
        inputs=given,
        outputs=(TensorConfig("OUTPUT0", Datatype.FP32, (16,)),),
        batch_inputs=(),
        batch_outputs=(),
        version_policy=VersionPolicy(),
        dynamic_batching=None,
        instance_groups=(),
        default_model_filename="",
        parameters={},
        gpu_accelerators=(),
        cpu_accelerators=(),
        metric_tags={},
        warmup=(),
        decoupled=False,
        message=model_config_pb2.ModelConfig(name="m"),
        sequence_batching=sequences,
    )
    return Signature(config, version)


def variable(name: str = "INPUT0", **flags: bool) -> TensorConfig:
    """An input of any length."""
    return TensorConfig(name, Datatype.FP32, (-1,), **flags)


def batching(*preferred: int, delay_ms: float = 0, **fields: Any) -> DynamicBatching:
    """Settings of the dynamic batcher, the delay in milliseconds."""
    return DynamicBatching(
        preferred_batch_size=preferred, max_queue_delay_us=round(delay_ms * 1000), **fields
    )


def entry(
    rows: int = 1,
    shapes: tuple[tuple[int, ...] | None, ...] = ((16,),),
    *,
    offset: int = 0,
    tp: TP = REQUESTS,
    **fields: Any,
) -> Entry:
    """A waiting request; unset fields keep the class's defaults, as the decoders leave them."""
    made = Entry()
    made.tp = tp
    made.epoch = 1
    made.record = Place(offset)
    made.rows = rows
    made.data = tuple(None if shape is None else bytes(4) for shape in shapes)
    made.shapes = shapes
    made.content_type = "application/octet-stream"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Ran(NamedTuple):
    """A batch that was handed to an instance."""

    ms: float
    instance: int
    batch: Batch

    @property
    def rows(self) -> int:
        return self.batch.rows


class Left(NamedTuple):
    """An entry that left without executing."""

    ms: float
    entry: Entry
    error: InferError


@dataclass
class Service:
    """A batcher, instances and the loop around them, on a clock that jumps from event to event.

    Attributes:
        batcher: Under test.
        instances: How many.
        busy_ms: How long each execution takes.
        held_until_ms: Instances are free from then on only: Triton's tests hold so until N are queued.
    """

    batcher: Batcher
    instances: int = 1
    busy_ms: float = 0
    held_until_ms: float = 0
    ran: list[Ran] = field(default_factory=list)
    refused: list[Left] = field(default_factory=list)
    now_ns: int = 0

    def run(self, arrivals: Sequence[tuple[float, Sequence[Entry]]]) -> None:
        """Let entries arrive at their times, in ms, and go on until nothing is to happen any more."""
        coming = sorted(arrivals, key=lambda arrival: arrival[0])
        busy: dict[int, tuple[int, Batch | None]] = {}
        if self.held_until_ms:
            held_ns = round(self.held_until_ms * MS)
            busy = dict.fromkeys(range(self.instances), (held_ns, None))
        last_wake_ns = None
        while True:
            wake_ns = self.batcher.wake_at()
            times = [round(ms * MS) for ms, _ in coming[:1]] + [
                until for until, _ in busy.values()
            ]
            if wake_ns is not None:
                assert wake_ns != last_wake_ns, (
                    "woken twice for the same time: the loop would spin"
                )
                times.append(wake_ns)
            if not times:
                return
            self.now_ns = max(self.now_ns, min(times))
            last_wake_ns = wake_ns if wake_ns == self.now_ns else None
            while coming and round(coming[0][0] * MS) <= self.now_ns:
                self._note(self.batcher.offer(coming.pop(0)[1], self.now_ns))
            self._note(self.batcher.expire(self.now_ns))
            for instance in [i for i, (until, _) in busy.items() if until <= self.now_ns]:
                _, batch = busy.pop(instance)
                if batch is not None:
                    self.batcher.done(batch, self.now_ns)
            self._dispatch(busy)

    def _dispatch(self, busy: dict[int, tuple[int, Batch | None]]) -> None:
        for instance in range(self.instances):
            while instance not in busy:
                batch = self.batcher.take(instance, self.now_ns)
                if batch is None:
                    return
                self.ran.append(Ran(self.now_ns / MS, instance, batch))
                if self.busy_ms:
                    busy[instance] = (self.now_ns + round(self.busy_ms * MS), batch)
                else:
                    self.batcher.done(batch, self.now_ns)

    def _note(self, refusals: Iterable[tuple[Entry, InferError]]) -> None:
        self.refused += [Left(self.now_ns / MS, entry, error) for entry, error in refusals]

    @property
    def history(self) -> list[tuple[int, float]]:
        """Rows and time in ms of each execution."""
        return [(ran.rows, ran.ms) for ran in self.ran]

    @property
    def sizes(self) -> list[int]:
        """Rows of each execution."""
        return [ran.rows for ran in self.ran]

    @property
    def texts(self) -> list[str]:
        """Sentences of the refusals."""
        return [left.error.detail for left in self.refused]
