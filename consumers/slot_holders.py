"""Which sequences have the slots of a model version's instances, and who gives one up for another. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Set

from headrace.consumers.live_sequence import NO_SLOT, LiveSequence
from headrace.consumers.slots import Slots, instance_of
from headrace.schemas.record import TP


class SlotHolders:
    """The lanes with a slot.

    A slot belongs to one lane or is free. `LiveSequence.slot` is the only title to it, and every way of giving it up
    passes through it: so no race of cancel, expiry, drop and end frees a slot twice (FAULTS B87).

    Attributes:
        parked: How often a lane lost its slot although its sequence goes on.
    """

    def __init__(self, slots: Slots, *, parks: bool) -> None:
        """Start with all slots free.

        Args:
            slots: Of all instances.
            parks: An idle lane may lose its slot.
        """
        self.parked = 0
        self._slots = slots
        self._parks = parks
        # By slot, so that handing one over is one store; only a partition that is given up has them all looked at.
        self._lanes: dict[int, LiveSequence] = {}
        # Those that may be parked, the longest idle first; an ordered dict finds the first one at once.
        self._idle: OrderedDict[LiveSequence, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of lanes, those of dropped partitions included whose last step still runs."""
        return len(self._slots)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"SlotHolders({self._slots}, {len(self._idle)} may be parked)"

    def __contains__(self, lane: LiveSequence) -> bool:
        """Whether a lane has its slot here."""
        return self._lanes.get(lane.slot) is lane

    def seat(self, lane: LiveSequence) -> bool:
        """Give a lane the lowest free slot (SQ-10), else that of the longest idle lane; False if there is neither."""
        slot = NO_SLOT if self._slots.is_exhausted else self._slots.take()
        if slot == NO_SLOT:
            if not self._idle:
                return False
            idle, _ = self._idle.popitem(last=False)
            slot = idle.slot
            idle.slot = NO_SLOT
            self.parked += 1
        lane.slot = slot
        self._lanes[slot] = lane
        return True

    def wake(self, lane: LiveSequence) -> None:
        """Take note that an idle lane with a slot has got something to do."""
        if self._parks:
            del self._idle[lane]

    def rest(self, lane: LiveSequence) -> None:
        """Take note that a lane with a slot is idle: it loses it if it has ended, or its instance was removed."""
        if not lane.is_open:
            self.free(lane)
        elif self._parks:
            if self.is_leaving(lane):
                self.free(lane)
                self.parked += 1
            else:
                self._idle[lane] = None

    def park(self, lane: LiveSequence) -> None:
        """Take the slot of a lane that has something to do, none of which runs."""
        self.free(lane)
        self.parked += 1

    def is_leaving(self, lane: LiveSequence) -> bool:
        """Whether a lane's slot is given to nobody any more: its instance was removed (SQ-21)."""
        return self._slots.has_shrunk and self._slots.is_leaving(lane.slot)

    def hand_over(self, lane: LiveSequence, to: LiveSequence) -> None:
        """Park a lane and give its slot to one without."""
        slot = lane.slot
        lane.slot, to.slot = NO_SLOT, slot
        self._lanes[slot] = to
        self.parked += 1

    def free(self, lane: LiveSequence) -> None:
        """Let a lane have no slot; it is not idle, or `rest` was not told. Does nothing where it has none."""
        slot = lane.slot
        if slot == NO_SLOT:
            return
        lane.slot = NO_SLOT
        self._slots.free(slot)
        if self._lanes.get(slot) is lane:  # else its partition was dropped
            del self._lanes[slot]

    def release(self, lane: LiveSequence) -> None:
        """Let an idle lane have no slot; does nothing where it has none here (FAULTS B88)."""
        if lane in self:
            self._idle.pop(lane, None)
            self.free(lane)

    def of(self, tp: TP) -> list[LiveSequence]:
        """Return the lanes of a partition."""
        return [lane for lane in self._lanes.values() if lane.tp == tp]

    def on(self, instance: int) -> list[LiveSequence]:
        """Return the lanes of an instance."""
        return [lane for slot, lane in self._lanes.items() if instance_of(slot) == instance]

    def drop(self, tp: TP) -> Iterable[LiveSequence]:
        """Forget the lanes of a partition, which still have their slots then; returns them."""
        lanes = self.of(tp)
        for lane in lanes:
            del self._lanes[lane.slot]
            self._idle.pop(lane, None)
        return lanes

    def resize(self, instances: Set[int]) -> None:
        """Set which instances exist (SQ-21); what is idle on removed ones is parked where that is possible."""
        self._slots.resize(instances)
        for lane in [lane for lane in self._idle if self._slots.is_leaving(lane.slot)]:
            del self._idle[lane]
            self.park(lane)
