"""A consumer group of the memory log: members, sticky assignment, committed positions.

Rebalances are eager, as aiokafka's are: every member's partitions are revoked, then each is assigned its share
under a new epoch. They run in one task per group, so that a member's `revoked` may wait for work that its own
polling loop does. Nothing here reads a clock: the order of joins, leaves and polls decides everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

from headrace.schemas.record import TP
from headrace.streams.log import Position


class Member(Protocol):
    """What a group needs of a member."""

    topics: frozenset[str]

    async def give_up(self) -> None:
        """Tell the worker that everything is revoked, wait within its grace, and own nothing."""

    def take_over(self, tps: Set[TP], epoch: int) -> None:
        """Own these partitions, paused, and tell the worker; there may be none."""


def sticky(
    subscriptions: Sequence[Set[str]], before: Sequence[Set[TP]], tps: Iterable[TP]
) -> list[set[TP]]:
    """Share partitions out evenly, moving as few as possible; the same arguments give the same answer.

    Args:
        subscriptions: Topics of each member, in the order of joining.
        before: What each member had, same order.
        tps: All partitions there are.

    Returns:
        Partitions per member. Loads differ by at most one where all members read the same topics.
    """
    shares: list[set[TP]] = [set() for _ in subscriptions]
    wanted = sorted(tp for tp in set(tps) if any(tp.topic in topics for topics in subscriptions))
    if not subscriptions or not wanted:
        return shares
    ceiling = -(-len(wanted) // len(subscriptions))
    homeless = []
    for tp in wanted:
        owner = next((i for i, had in enumerate(before) if tp in had), None)
        if owner is None or tp.topic not in subscriptions[owner] or len(shares[owner]) >= ceiling:
            homeless.append(tp)
        else:
            shares[owner].add(tp)
    for tp in homeless:
        readers = [i for i, topics in enumerate(subscriptions) if tp.topic in topics]
        shares[min(readers, key=lambda i: (len(shares[i]), i))].add(tp)
    _level(shares, subscriptions)
    return shares


def _level(shares: list[set[TP]], subscriptions: Sequence[Set[str]]) -> None:
    """Move partitions from the fullest to the emptiest member until they differ by one at most."""
    while True:
        order = sorted(range(len(shares)), key=lambda i: (len(shares[i]), i))
        poor, rich = order[0], order[-1]
        movable = sorted(tp for tp in shares[rich] if tp.topic in subscriptions[poor])
        if len(shares[rich]) - len(shares[poor]) < 2 or not movable:
            return
        shares[rich].remove(movable[-1])
        shares[poor].add(movable[-1])


class MemoryGroup:
    """One consumer group: who is in it, who owns what under which epoch, and what is committed.

    Attributes:
        name: Its id.
        members: In the order of joining.
        generation: Rises with each rebalance.
        committed: Committed positions; their ``epoch`` is the one that committed.
    """

    def __init__(
        self,
        name: str,
        partitions: Callable[[], Iterable[TP]],
        next_epoch: Callable[[], int],
    ) -> None:
        """Keep the name, and where to ask for the partitions that exist and for a new epoch."""
        self.name = name
        self.members: list[Member] = []
        self.generation = 0
        self.committed: dict[TP, Position] = {}
        self._partitions = partitions
        self._next_epoch = next_epoch
        self._owners: dict[TP, tuple[Member, int]] = {}
        self._rotate = False
        self._stale = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Show the counts."""
        return (
            f"MemoryGroup(generation={self.generation}, {len(self.members)} members, "
            f"{len(self._owners)} partitions owned)"
        )

    def owns(self, member: Member, tp: TP, epoch: int) -> bool:
        """Say whether a commit of this member under this epoch would be accepted (DELIVERY P-8)."""
        return self._owners.get(tp) == (member, epoch)

    def rebalance(self, *, rotate: bool = False) -> asyncio.Task[None]:
        """Start a rebalance, or let the running one go round again; the task ends when all is quiet.

        Args:
            rotate: Hand every member's partitions to the next one instead of keeping them.
        """
        self._stale = True
        self._rotate = self._rotate or rotate
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return self._task

    def remove(self, member: Member) -> None:
        """Forget a member at once: it owns nothing from here on, whatever it believes."""
        if member in self.members:
            self.members.remove(member)
        self._owners = {tp: own for tp, own in self._owners.items() if own[0] is not member}

    async def close(self) -> None:
        """End a running rebalance."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._stale:
            self._stale = False
            await self._once()

    async def _once(self) -> None:
        before = self._shares()
        await asyncio.gather(*[member.give_up() for member in tuple(self.members)])
        self.generation += 1
        # Members may have crashed or left while the others gave up.
        here = tuple(self.members)
        kept = [before.get(id(member), set()) for member in here]
        if self._rotate and len(kept) > 1:
            kept = kept[1:] + kept[:1]
        self._rotate = False
        shares = sticky([member.topics for member in here], kept, self._partitions())
        epochs = [self._next_epoch() for _ in here]
        self._owners = {
            tp: (member, epoch)
            for member, share, epoch in zip(here, shares, epochs, strict=True)
            for tp in share
        }
        for member, share, epoch in zip(here, shares, epochs, strict=True):
            member.take_over(share, epoch)

    def _shares(self) -> Mapping[int, set[TP]]:
        shares: dict[int, set[TP]] = {}
        for tp, (member, _) in self._owners.items():
            shares.setdefault(id(member), set()).add(tp)
        return shares
