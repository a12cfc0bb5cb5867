"""What a group member has: partitions under epochs of ours, of which generation, and until when that is certain.

A member whose heartbeats get no answer learns only from the first that does that its session is over; its fetches may
go on before that, after a cut of the network or after the process was frozen. So the time of the last good heartbeat
is kept: within the session from its sending, nobody else can have been given our partitions.

aiokafka keeps that time to itself, so its coordinator's heartbeat is wrapped here. Its version is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from aiokafka.consumer.group_coordinator import GroupCoordinator
from headrace.schemas.record import TP

NOBODY = (-1, "")
"""Generation and member id of who was never admitted."""


class Membership:
    """The assignment of one member.

    Attributes:
        epochs: Partition → our epoch.
        keys: Every partition that is assigned, under itself: one object for all blocks.
        member: Generation and member id that it was assigned under.
    """

    def __init__(
        self, session_s: float, now_s: Callable[[], float], on_heard: Callable[[], None]
    ) -> None:
        """Start without partitions.

        Args:
            session_s: The group's session timeout.
            now_s: Monotonic time, which goes on while the process is frozen.
            on_heard: Called when the membership is certain again.
        """
        self.epochs: dict[TP, int] = {}
        self.keys: dict[TP, TP] = {}
        self.member = NOBODY
        self._session_s = session_s
        self._now_s = now_s
        self._on_heard = on_heard
        self._heard_s = 0.0
        self._coordinator: GroupCoordinator | None = None
        self._former: tuple[tuple[int, str], Set[TP]] = (NOBODY, frozenset())
        self._kept: Set[TP] = frozenset()

    def is_admitted(self) -> bool:
        """Whether generation and member id are those of the assignment (P-8)."""
        coordinator = self._coordinator
        return (
            coordinator is not None
            and (coordinator.generation, coordinator.member_id) == self.member
        )

    def is_certain(self) -> bool:
        """Whether the coordinator cannot have given our partitions to others, whatever we have not heard of yet."""
        return self._now_s() - self._heard_s <= self._session_s

    def heard(self, sent_s: float) -> None:
        """Take note that the coordinator knew us when it answered what was sent at that time."""
        was_certain = self.is_certain()
        self._heard_s = max(self._heard_s, sent_s)
        if not was_certain:
            self._on_heard()

    def owns(self, tp: TP, epoch: int) -> bool:
        """Say whether a partition is ours under this epoch, as far as we know.

        A heartbeat may have told that we are out of the group before we are told to give up what we had.
        """
        return self.epochs.get(tp) == epoch and self.is_admitted()

    def kept(self) -> Set[TP]:
        """Return the partitions of the last assignment that were ours in the generation before it, too."""
        return self._kept & self.epochs.keys()

    def assign(self, coordinator: GroupCoordinator, tps: Set[TP], epoch: int) -> None:
        """Have these under a new epoch, and none else."""
        if coordinator is not self._coordinator:
            self._watch(coordinator)
        self.member = (coordinator.generation, coordinator.member_id)
        (generation, member_id), before = self._former
        self._former = (NOBODY, frozenset())
        is_next = self.member == (generation + 1, member_id)
        self._kept = before & tps if is_next else frozenset()
        self.epochs = dict.fromkeys(tps, epoch)
        self.keys = {tp: tp for tp in tps}
        self.heard(self._now_s())  # it has just told us what is ours

    def leave(self) -> Set[TP]:
        """Take note that all partitions are about to be given up, and may come back; returns them."""
        gone = frozenset(self.epochs)
        if gone and self.is_admitted():
            self._former = (self.member, gone)
        return gone

    def drop(self) -> None:
        """Have no partitions."""
        self.epochs = {}
        self.keys = {}

    def _watch(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        beat = coordinator._do_heartbeat  # noqa: SLF001  # see the module's docstring

        async def watched() -> bool:
            sent_s = self._now_s()
            is_good: bool = await beat()
            if is_good:
                self.heard(sent_s)
            return is_good

        coordinator._do_heartbeat = watched  # noqa: SLF001  # idem
