"""One partition's sequences: the live ones, what ended, and the partition's own time. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from headrace.consumers.batcher import Refusal
from headrace.consumers.live_sequence import LiveSequence
from headrace.schemas.batch import Entry
from headrace.schemas.sequence import SequenceState


class Routed(NamedTuple):
    """A block's records.

    Attributes:
        by_version: Entries for each version's batcher, in order.
        refusals: Answered at once: no sequence has them wait.
        closed: Finished by an earlier owner: nothing runs.
    """

    by_version: dict[int, list[Entry]]
    refusals: list[Refusal]
    closed: list[Entry]


class SequenceTable:
    """One partition's sequences.

    Attributes:
        epoch: Our epoch of its assignment.
        lanes: Key → live sequence, the longest silent first.
        markers: Key → what ended.
        details: Key → why its state could not be restored.
        log_ms: Greatest record timestamp that was read.
    """

    __slots__ = ("details", "epoch", "lanes", "log_ms", "markers")

    def __init__(self, epoch: int) -> None:
        """Start empty."""
        self.epoch = epoch
        # An ordered dict, for the longest silent one must be found without walking over removed places.
        self.lanes: OrderedDict[bytes, LiveSequence] = OrderedDict()
        self.markers: dict[bytes, SequenceState] = {}
        self.details: dict[bytes, str] = {}
        self.log_ms = 0

    def silent(self, before_ms: float) -> Iterator[LiveSequence]:
        """Yield the idle sequences whose last record is older; not while the table changes.

        Busy ones are passed over, and there are never more of them than requests in flight: with memory of its own
        a model may have the longest silent one in the backlog, waiting for the slot of a silent one behind it.
        """
        for lane in self.lanes.values():
            if lane.timestamp_ms >= before_ms:
                return
            if lane.is_idle:
                yield lane
