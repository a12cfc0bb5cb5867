"""A consumer-group member by aiokafka, with epochs of our own and commits that carry their admission's generation.

aiokafka rebalances eagerly: everything is revoked, then everything is assigned, and at the revocation nobody knows
what will come back. So each revocation is a revocation (drain within the grace, commit) and each assignment a new
epoch; the sticky assignor makes that the same partitions mostly come back.

Records that were fetched ahead under an old assignment never come out under a new one (FAULTS B16): aiokafka
checks the assignment object of a fetch when it hands out records, and we hand out only what is resumed since.

What is private to aiokafka is used where it has nothing public for it, here and in `headrace.streams.kafka_fetcher`.
Its version is pinned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.committer import Adopted
from headrace.streams.kafka_client import (
    bounded,
    own_sticky_assignor,
    stop_consumer,
    tame,
    translated,
)
from headrace.streams.kafka_fetcher import UNKNOWN, fetch, fetch_again, position, put_back, wake
from headrace.streams.kafka_group import (
    CommitRefused,
    Listener,
    commit_positions,
    fetch_committed,
    is_member,
)
from headrace.streams.kafka_membership import Membership
from headrace.streams.kafka_offsets import end_offsets
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, Resource, Right, topics_rights
from headrace.streams.log import Block, Position, Rebalance

logger = logging.getLogger("headrace.streams")

T = TypeVar("T")

# A member of the fetcher's set of partitions that is never assigned: an empty set would mean all of them.
NOWHERE = TopicPartition("", -1)
LOOK_S = 1.0  # how often a member without partitions asks for the topics


class KafkaSource:
    """A group member; see `headrace.streams.log.Source` for the contract.

    Attributes:
        membership: What it has, and whether that is certain.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topics: Set[str],
        on: Rebalance,
        *,
        revoke_grace_s: float,
        next_epoch: Callable[[], int],
        missing: Callable[[Set[str]], Awaitable[Set[str]]],
        ends_by_batch: bool,
    ) -> None:
        """Keep the parts; entering joins.

        Args:
            settings: Translated properties.
            group: Consumer group.
            topics: Topics to subscribe to.
            on: Told what the group assigns.
            revoke_grace_s: How long `Rebalance.revoked` may take; the group waits for it that long.
            next_epoch: Makes an epoch that no assignment had before.
            missing: Says which topics do not exist.
            ends_by_batch: See `headrace.streams.kafka_offsets`.
        """
        self.group = group
        self._settings = settings
        self._topics = frozenset(topics)
        self._needs = settings.needs(
            Right(Operation.READ, Resource.GROUP, group), *topics_rights(Operation.READ, topics)
        )
        self._on = on
        self._grace_s = revoke_grace_s
        self._next_epoch = next_epoch
        self._missing = missing
        self._ends_by_batch = ends_by_batch
        self._consumer: AIOKafkaConsumer | None = None
        self._active: set[tuple[str, int]] = {NOWHERE}
        self._changed = asyncio.Event()
        self._session_ms = int(str(settings.group["session_timeout_ms"]))
        self.membership = Membership(self._session_ms / 1000, time.monotonic, self._changed.set)
        self._looked_at = 0.0
        self._join_s = 0.0
        self._left_at: float | None = None
        self._error: BaseException | None = None
        self._deliveries: list[Adopted] = []

    def __repr__(self) -> str:
        """Show group, topics and counts."""
        count = len(self.membership.epochs)
        return f"KafkaSource({self.group}, {sorted(self._topics)}, {count} partitions)"

    async def __aenter__(self) -> Self:
        """Join; `LogError` if a topic does not exist or the group cannot be joined within the bound."""
        gone = await self._missing(self._topics)
        if gone:
            raise LogError(f"topic {', '.join(sorted(gone))} does not exist", retriable=True)
        rebalance_ms = max(self._session_ms, int(self._grace_s * 1000) + 5000)
        self._consumer = AIOKafkaConsumer(
            **self._settings.client,
            **self._settings.fetch,
            **self._settings.group,
            group_id=self.group,
            enable_auto_commit=False,
            # What an aborted transaction of the hop before left is nobody's request.
            isolation_level="read_committed",
            # Where retention has removed the committed offset: what is left is still to be answered.
            auto_offset_reset="earliest",
            rebalance_timeout_ms=rebalance_ms,
            partition_assignment_strategy=(own_sticky_assignor(),),
        )
        tame(self._consumer._client)  # noqa: SLF001  # it has no option for it
        self._consumer.subscribe(sorted(self._topics), listener=Listener(self.revoke, self.assign))
        try:
            # Others may take their whole grace before the group is complete.
            self._join_s = rebalance_ms / 1000 + self._settings.request_timeout_s
            doing = f"joining group {self.group}"
            await bounded(self._consumer.start(), self._join_s, doing, self._needs)
        except BaseException:
            await stop_consumer(self._consumer)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Commit what was settled and leave the group within a bound."""
        for delivery in self._deliveries:
            try:
                await delivery.flush()
            except LogError as error:
                logger.warning("group %s: the last commit failed: %s", self.group, error)
            await delivery.close()
        self._drop()
        if self._consumer is not None:
            await stop_consumer(self._consumer)

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Hand out at most ``max_records``; waits up to ``timeout_s`` for the first.

        Raises:
            LogError: The client met something that it will not retry, such as a missing authorisation or a
                record that it cannot parse; the positions are those before this call.
        """
        await asyncio.sleep(0)  # the fetcher does not yield while it has records
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        consumer = self._running()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self._left_at is not None and loop.time() - self._left_at > self._join_s:
            took = f"took longer than {self._join_s:g} s"
            raise LogError(f"joining group {self.group} again {took}", retriable=True)
        try:
            consumer._coordinator.check_errors()  # noqa: SLF001  # see the module's docstring
            # Within it the member counts as polling, whatever is paused (FAULTS B1).
            with consumer._subscription.fetch_context():  # noqa: SLF001  # see the module's docstring
                while self._must_wait(consumer):
                    left = deadline - loop.time()
                    if left <= 0:
                        return ()
                    await self._change(left)
                fetched = await fetch(consumer, self._active, max_records, deadline - loop.time())
                if fetched and not self.membership.is_certain():
                    put_back(consumer, fetched)
                    return ()
        except KafkaError as exc:
            fetch_again(consumer, self.membership.epochs)
            doing = f"reading {', '.join(sorted(self._topics))}"
            raise translated(exc, doing, self._needs) from exc
        return [
            Block(self.membership.keys[tp], self.membership.epochs[tp], records)
            for tp, records in fetched.items()
            if tp in self.membership.epochs
        ]

    def _must_wait(self, consumer: AIOKafkaConsumer) -> bool:
        """Whether nothing may be handed out: no partition is active, or others may have them without our knowing."""
        changes = bool(consumer._subscription.reassignment_in_progress)  # noqa: SLF001  # see the module's docstring
        return len(self._active) == 1 or changes or not self.membership.is_certain()

    async def _change(self, timeout_s: float) -> None:
        """Wait until `resume`, a rebalance or a heartbeat that was long due, or until an error is there."""
        self._changed.clear()
        self._look_for_partitions()
        try:
            # Errors do not wake it: look once a second.
            async with asyncio.timeout(min(timeout_s, 1.0)):
                await self._changed.wait()
        except TimeoutError:
            self._running()._coordinator.check_errors()  # noqa: SLF001  # see the module's docstring

    def _look_for_partitions(self) -> None:
        """Ask for the topics now and then while nothing is assigned.

        The group's leader rebalances when partitions appear, and would else look again after
        ``metadata.max.age.ms`` only: a topic that was deleted and made again has none until then (FAULTS B104).
        """
        now = asyncio.get_running_loop().time()
        if not self.membership.epochs and now - self._looked_at > LOOK_S:
            self._looked_at = now
            self._running()._client.force_metadata_update()  # noqa: SLF001  # see the module's docstring

    def counted(self, there: Mapping[str, int]) -> None:
        """Have the client look at the topics where it knows of another partition count than these."""
        if self._consumer is None or self._consumer._closed:  # noqa: SLF001  # it joins, or has left
            return
        client = self._consumer._client  # noqa: SLF001  # see the module's docstring
        known = {name: client.cluster.partitions_for_topic(name) or () for name in self._topics}
        if any(len(found) != there.get(name, len(found)) for name, found in known.items()):
            client.force_metadata_update()

    def pause(self, tps: Set[TP]) -> None:
        """Stop handing out these; what is fetched already is kept. Unassigned ones are ignored."""
        mine = tps & self.membership.epochs.keys()
        self._active -= mine
        if mine:
            self._running().pause(*[TopicPartition(*tp) for tp in mine])

    def resume(self, tps: Set[TP]) -> None:
        """Hand these out again. Unassigned ones are ignored."""
        mine = tps & self.membership.epochs.keys()
        if not mine:
            return
        consumer = self._running()
        self._active |= mine
        consumer.resume(*[TopicPartition(*tp) for tp in mine])
        self._changed.set()
        wake(consumer)

    def seek(self, tp: TP, offset: int) -> None:
        """Set the next offset, dropping what was fetched; `LogError` if the partition is not assigned."""
        if tp not in self.membership.epochs:
            raise LogError(f"{tp.topic}/{tp.partition} is not assigned", retriable=True)
        self._running().seek(TopicPartition(*tp), offset)

    def position(self, tp: TP) -> int:
        """Return the next offset to hand out, -1 where none is known."""
        return position(self._running(), tp) if tp in self.membership.epochs else UNKNOWN

    def assignment(self) -> Mapping[TP, int]:
        """Partition → epoch."""
        return dict(self.membership.epochs)

    def left_at(self) -> float | None:
        """Since when a rebalance is under way."""
        return self._left_at

    async def committed(self, tps: Set[TP]) -> Mapping[TP, Position | None]:
        """Committed offset and metadata (P-1), retried while the coordinator moves."""
        coordinator = self._running()._coordinator  # noqa: SLF001  # see `kafka_group`
        asking = fetch_committed(coordinator, self.group, tps)
        return await self._bounded(asking, f"fetching committed offsets of group {self.group}")

    async def end_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """Offset after the last record that is there now."""
        asking = end_offsets(self._running(), tps, by_batch=self._ends_by_batch)
        return await self._bounded(asking, "fetching end offsets")

    async def beginning_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """First offset that is still there."""
        asking = self._running().beginning_offsets([TopicPartition(*tp) for tp in tps])
        found = await self._bounded(asking, "fetching beginning offsets")
        return {TP(*tp): offset for tp, offset in found.items()}

    async def confirm(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit what was read, once more; returns the partitions that the coordinator still counts as ours."""
        return positions.keys() - await self.commit(positions)

    def kept(self) -> Set[TP]:
        """Return the partitions of the last assignment that were ours in the generation before it, too."""
        return self.membership.kept()

    # What deliveries use.

    def adopt(self, delivery: Adopted) -> None:
        """Flush this delivery when partitions go."""
        self._deliveries.append(delivery)

    def owns(self, tp: TP, epoch: int) -> bool:
        """Say whether a partition is ours under this epoch, as far as we know."""
        return self.membership.owns(tp, epoch)

    async def still_assigned(self, epochs: Mapping[TP, int]) -> Set[TP]:
        """Ask the coordinator, by one heartbeat, which are ours; `LogError` if it cannot be reached."""
        if not any(self.owns(*owner) for owner in epochs.items()):
            return frozenset()
        coordinator = self._running()._coordinator  # noqa: SLF001  # see `kafka_group`
        asked_s = time.monotonic()
        asking = is_member(coordinator, self.group, self.membership.member)
        answer = await self._bounded(asking, f"asking for the membership in group {self.group}")
        if answer and self.membership.is_admitted():
            self.membership.heard(asked_s)
        return {tp for tp, epoch in epochs.items() if answer and self.owns(tp, epoch)}

    async def commit(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit in one request and return the partitions that were refused: not ours under that epoch (P-8).

        Raises:
            LogError: The coordinator could not be reached within the bound, or refused for another reason.
        """
        consumer = self._running()
        coordinator = consumer._coordinator  # noqa: SLF001  # see `kafka_group`

        def current() -> dict[TP, Position]:
            return {tp: at for tp, at in positions.items() if self.owns(tp, at.epoch)}

        try:
            member = self.membership.member
            committing = commit_positions(coordinator, self.group, member, current)
            done = await self._bounded(committing, f"committing offsets of group {self.group}")
        except CommitRefused:
            return frozenset(positions)
        return positions.keys() - done

    # What the rebalance listener calls.

    async def revoke(self) -> None:
        """Give up everything: lost where the generation is gone (P-7), else within the grace."""
        gone = self.membership.leave()
        self._left_at = asyncio.get_running_loop().time()
        self._active.clear()
        self._active.add(NOWHERE)
        if not gone:
            return
        try:
            if self._running()._coordinator.generation < 0:  # noqa: SLF001  # see the module's docstring
                self._drop()
                self._tell_deliveries(frozenset())
                self._on.lost(gone)
                return
            deadline = asyncio.get_running_loop().time() + self._grace_s
            async with asyncio.timeout_at(deadline):
                await self._on.revoked(gone, deadline)
                for delivery in self._deliveries:
                    await delivery.flush()
        except TimeoutError:
            logger.warning("group %s: revoked before everything was settled", self.group)
        except LogError as error:
            logger.warning("group %s: the commit at a revocation failed: %s", self.group, error)
        except Exception as exc:  # noqa: BLE001  # a bug in the worker's callback: its next poll raises it
            self._error = exc
        finally:
            self._drop()

    def assign(self, tps: Set[TP]) -> None:
        """Own these under a new epoch, paused."""
        consumer = self._running()
        coordinator = consumer._coordinator  # noqa: SLF001  # see `kafka_group`
        epoch = self._next_epoch()
        self.membership.assign(coordinator, tps, epoch)
        self._tell_deliveries(self.membership.kept())
        try:
            if tps:
                consumer.pause(*[TopicPartition(*tp) for tp in tps])
                self._on.assigned(tps, epoch)
        except Exception as exc:  # noqa: BLE001  # as in `revoke`
            self._error = exc
        self._left_at = None
        self._changed.set()

    def _tell_deliveries(self, kept: Set[TP]) -> None:
        for delivery in self._deliveries:
            delivery.assigned(kept)

    async def _bounded(self, asking: Awaitable[T], doing: str) -> T:
        return await bounded(asking, self._settings.request_timeout_s, doing, self._needs)

    def _drop(self) -> None:
        self.membership.drop()
        self._active.clear()
        self._active.add(NOWHERE)
        self._changed.set()

    def _running(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "entered first"
        if self._consumer._closed:  # noqa: SLF001  # a closed fetcher would wait without an error
            raise LogError(f"the source of group {self.group} is closed", retriable=False)
        return self._consumer
