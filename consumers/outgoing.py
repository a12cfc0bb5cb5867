"""Answers on their way to the settler, sorted by the partition that their requests came from.

This is the path of each record: nothing is looked up per record that one block of records shares. What belongs
to an old epoch of its partition is dropped (DELIVERY P-7): whoever owns it now answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.consumers.encoding import Answer
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.settle import Settler
from headrace.schemas.batch import Entry
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import sequence_key
from headrace.schemas.snapshot import Stored

HEADER_ROOM_BYTES = 64 * 1024
"""Within this much of the limit, an answer's size is computed exactly."""


class _Group:
    """What follows for one partition; ``epoch`` -1 where it is no longer ours."""

    __slots__ = (
        "awaited",
        "epoch",
        "offsets",
        "outs",
        "part",
        "recorded",
        "replies",
        "size",
        "states",
        "target",
    )

    def __init__(self, part: Partition | None, target: tuple[str, int]) -> None:
        self.part = part
        self.epoch = -1 if part is None else part.epoch
        self.target = target  # of an answer without a reply address
        self.outs: list[Out] = []
        self.replies: list[Out] = []  # to gateways, behind the commit
        self.awaited = False
        self.offsets: list[int] = []
        self.size = 0
        self.states: dict[bytes, Stored] = {}
        self.recorded: list[tuple[bytes, int, Out]] = []


class Outgoing:
    """What one batch, or one list of refusals, sends out."""

    def __init__(
        self,
        partitions: Mapping[TP, Partition],
        placement: Placement,
        *,
        max_bytes: int,
        bound: Callable[[Entry, Out], None],
        records: bool = False,
        replies: str = "",
    ) -> None:
        """Start empty.

        Args:
            partitions: Those that are ours now.
            placement: Where answers go.
            max_bytes: Largest record that the log publishes.
            bound: Called with an answer that may be larger: makes it fit.
            records: Answers of sequences are remembered with their state (P-16).
            replies: Topic whose answers are published behind the commit of their records (P-13); ``""`` is none.
        """
        self._partitions = partitions
        self._placement = placement
        self._limit = max_bytes - HEADER_ROOM_BYTES
        self._bound = bound
        self._records = records
        self._replies = replies
        self._groups: dict[TP, _Group] = {}
        # The same by the very object, which the entry keeps alive: steps of many partitions share a batch.
        self._known: dict[int, _Group] = {}

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for one of the answers."""
        return any(group.awaited for group in self._groups.values())

    def answer(self, answers: Sequence[Answer]) -> None:
        """Add answers, addressed."""
        group, last = _NOBODY, None
        limit, known = self._limit, self._known
        for entry, value, headers in answers:
            # Entries of one block share the object that names their partition.
            if entry.tp is not last:
                last = entry.tp
                group = known.get(id(last)) or self._group(last)
            if group.epoch != entry.epoch:
                continue
            topic, partition = group.target
            outs = group.outs
            if entry.reply_topic:
                topic, partition = entry.reply_topic, entry.reply_partition
                group.awaited = True
                if topic == self._replies:
                    outs = group.replies
            key = entry.record.key
            out = Out(topic, partition, key, value, headers)
            if len(value) + (0 if key is None else len(key)) > limit:
                self._bound(entry, out)
            outs.append(out)
            if self._records and entry.sequence_id:
                # Also where no state follows: a later snapshot of the id closes this record too (D8).
                key = sequence_key(entry.sequence_id)
                group.recorded.append((key, entry.record.offset, out))

    def copy(self, entry: Entry, out: Out) -> None:
        """Add a record that follows from an entry beside its answer, such as a dead letter."""
        group = self._group(entry.tp)
        if group.epoch == entry.epoch:
            group.outs.append(out)

    def finish(self, entries: Sequence[Entry]) -> None:
        """Note entries that are answered with what was added."""
        group, last = _NOBODY, None
        known = self._known
        for entry in entries:
            if entry.tp is not last:
                last = entry.tp
                group = known.get(id(last)) or self._group(last)
            if group.epoch == entry.epoch:
                record = entry.record
                group.offsets.append(record.offset)
                if record.value is not None:
                    group.size += len(record.value)
                if entry.after is not None:
                    group.states[entry.sequence.key] = entry.after

    def keep(self, kept: Mapping[Entry, Stored]) -> None:
        """Add what is to be stored of entries with an idempotency key (P-17)."""
        for entry, state in kept.items():
            group = self._group(entry.tp)
            if group.epoch == entry.epoch:
                group.states[entry.idempotency_key] = state

    def put(self, settler: Settler) -> None:
        """Hand everything over."""
        for group in self._groups.values():
            if group.part is not None and (group.offsets or group.outs):
                settler.put(
                    group.part,
                    group.outs,
                    group.offsets,
                    group.size,
                    states=group.states,
                    recorded=group.recorded,
                    replies=group.replies,
                    awaited=group.awaited,
                )

    def _group(self, tp: TP) -> _Group:
        group = self._groups.get(tp)
        if group is None:
            target = self._placement.results(tp.partition)
            group = self._groups[tp] = _Group(self._partitions.get(tp), target)
        self._known[id(tp)] = group
        return group


_NOBODY = _Group(None, ("", 0))
