"""How far the partitions of a model's requests are, from two looks at them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.schemas.record import TP
from headrace.streams.status import WorkerStatus


@dataclass(frozen=True, slots=True)
class Look:
    """Offsets at one moment.

    Attributes:
        at_s: When, on any clock that only goes on.
        first: First offset that is still there, by partition.
        ends: Offset after the last record.
        committed: What the model's group has committed; partitions of which it has committed nothing are missing.
    """

    at_s: float
    first: Mapping[TP, int]
    ends: Mapping[TP, int]
    committed: Mapping[TP, int]

    def done(self, tp: TP) -> int:
        """Return the offset below which everything is finished, or is not there any more."""
        return max(self.committed.get(tp, 0), self.first[tp])


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition.

    Attributes:
        tp: Which.
        first: First offset that is still there.
        end: Offset after the last record.
        committed: The group's offset; None where it has committed nothing.
        lag: Records that are there and not finished, as Kafka counts them.
        in_per_s: Records written per second between the two looks.
        done_per_s: Records finished per second; what is committed moves in steps.
        workers: Who reads it, sorted; nobody between two assignments, two where one has just lost it.
    """

    tp: TP
    first: int
    end: int
    committed: int | None
    lag: int
    in_per_s: float
    done_per_s: float
    workers: tuple[str, ...]


def partition_views(
    before: Look, after: Look, workers: Iterable[WorkerStatus]
) -> list[PartitionView]:
    """Return what is to be seen of each partition, in their order.

    Args:
        before: The first look.
        after: The second one, of the same partitions.
        workers: What live workers of the model say.
    """
    seconds = max(after.at_s - before.at_s, 1e-9)
    owners: dict[int, list[str]] = {}
    for worker in sorted(workers, key=lambda worker: worker.worker):
        for number in worker.assigned:
            owners.setdefault(number, []).append(worker.worker)
    return [
        PartitionView(
            tp=tp,
            first=after.first[tp],
            end=end,
            committed=after.committed.get(tp),
            # A topic that was made anew ends before what was committed of the old one.
            lag=max(0, end - after.done(tp)),
            in_per_s=max(0, end - before.ends[tp]) / seconds,
            done_per_s=max(0, after.done(tp) - before.done(tp)) / seconds,
            workers=tuple(owners.get(tp.partition, ())),
        )
        for tp, end in sorted(after.ends.items())
    ]
