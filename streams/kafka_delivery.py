"""At-least-once delivery on Kafka: answers acknowledged, then positions committed, at most every so often.

A settle returns when everything is acknowledged. Its commit follows within the interval, by
`headrace.streams.committer`; what is still to be committed when partitions are revoked is committed then. A crash
in between costs answers a second time, never an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack

from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.committer import Committer
from headrace.streams.cover import Cover
from headrace.streams.delivery_buffers import redirect
from headrace.streams.kafka_producer import KafkaProducer, TargetBatch
from headrace.streams.kafka_source import KafkaSource
from headrace.streams.log import Outcome, Position


class KafkaDelivery:
    """See `headrace.streams.log.Delivery`.

    Settles of one owner may overlap: their records are queued in the order of the calls, and a position is taken
    over only when every earlier settle of its owner has been acknowledged.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        source: KafkaSource,
        cover: Cover | None,
        *,
        commit_interval_s: float,
    ) -> None:
        """Keep the parts and have the source flush at revocations."""
        self._producer = producer
        self._outs: dict[TP, list[Out]] = {}
        self._late: dict[TP, list[Out]] = {}
        self._source = source
        self._turns: dict[TP, asyncio.Lock] = {}
        self._last: dict[TP, asyncio.Future[bool]] = {}
        self._committer = Committer(source, producer.publish, cover, interval_s=commit_interval_s)
        source.adopt(self)

    def __repr__(self) -> str:
        """Show the counts."""
        buffered = sum(map(len, self._outs.values())) + sum(map(len, self._late.values()))
        return (
            f"KafkaDelivery({buffered} records buffered, {len(self._committer)} positions pending)"
        )

    async def take_over(self, owners: Mapping[TP, int]) -> Set[TP]:
        """Return them: at least once nothing of an earlier owner is to be ended."""
        return owners.keys()

    def assigned(self, kept: Set[TP]) -> None:
        """Take no note: the worker releases what it has not any more."""

    def put(
        self,
        owner: TP,
        outs: Sequence[Out],
        *,
        after_ack: bool = False,
        after_commit: bool = False,
    ) -> None:
        """Buffer."""
        del after_commit  # at least once it is an answer like the others
        buffer = self._late if after_ack else self._outs
        found = buffer.get(owner)
        if found is None:
            buffer[owner] = list(outs)
        else:
            found.extend(outs)

    def redirect(self, topics: Set[str], change: Callable[[Out], None]) -> None:
        """Change what is buffered for these topics."""
        redirect((self._outs, self._late), topics, change)

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Publish what is buffered for these owners and take over their positions for the next commit."""
        committer = self._committer
        committer.raise_failure()
        released = {tp: committer.times_released(tp) for tp in upto}
        await self._producer.start()
        outcomes = {tp: committer.outcome(tp, at) for tp, at in upto.items()}
        if not self._source.membership.is_certain():
            # Whoever has them meanwhile, after a cut or a freeze, has answered these too: an answer would come twice.
            ours = await self._source.still_assigned({tp: at.epoch for tp, at in upto.items()})
            outcomes |= dict.fromkeys(outcomes.keys() - ours, Outcome.FENCED)
        owners = sorted(tp for tp, outcome in outcomes.items() if outcome is Outcome.SETTLED)
        for owner in upto.keys() - set(owners):
            self._forget(owner)
        if owners:
            await self._publish_in_turn(owners)
        for owner in owners:
            outcomes[owner] = committer.take_over(owner, upto[owner], released[owner])
        if await committer.commit_when_due():
            for owner in owners:
                if outcomes[owner] is Outcome.SETTLED:
                    outcomes[owner] = committer.outcome(owner, upto[owner])
        return outcomes

    async def flush(self) -> None:
        """Commit everything settled now; `LogError` if it fails, and the positions are kept for the next time."""
        await self._committer.flush()

    async def release(self, owner: TP, *, abort: bool) -> None:
        """Forget a partition, publishing first what is there unless ``abort``; what was settled is committed."""
        if not abort and (owner in self._outs or owner in self._late):
            await self._producer.start()
            await self._publish_in_turn([owner])
        self._outs.pop(owner, None)
        self._late.pop(owner, None)
        try:
            await self._committer.release(owner)
        finally:
            self._forget(owner)

    async def close(self) -> None:
        """Stop committing."""
        await self._committer.close()

    async def _publish_in_turn(self, owners: Sequence[TP]) -> None:
        """Publish these owners' buffers; `LogError` if that fails or an earlier settle of theirs did."""
        acknowledged: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        taken: dict[TP, list[Out]] = {}
        late: dict[TP, list[Out]] = {}
        batches: list[TargetBatch] = []
        futures: list[asyncio.Future[object]] = []
        try:
            async with AsyncExitStack() as turns:
                for owner in owners:  # sorted, so that two settles cannot wait for each other
                    await turns.enter_async_context(self._turns.setdefault(owner, asyncio.Lock()))
                taken = _take(self._outs, owners)
                late = _take(self._late, owners)
                # One that has failed by now has put its records back, and they were just taken.
                last = {self._last[owner] for owner in owners if owner in self._last}
                earlier = {settled for settled in last if not settled.done()}
                self._last.update(dict.fromkeys(owners, acknowledged))
                batches = await self._producer.batches(_flat(taken))
                late_batches = await self._producer.batches(_flat(late))
                futures = await self._producer.send(batches)
            await self._producer.acknowledged(batches, futures)
            taken = {}
            if late_batches:
                batches, futures = late_batches, []
                futures = await self._producer.send(late_batches)
                await self._producer.acknowledged(late_batches, futures)
                late = {}
            if not all([await settled for settled in earlier]):
                # These are out; the earlier settle has put its own back.
                raise LogError("an earlier settle of the same partitions failed", retriable=True)  # noqa: TRY301  # one way out
            acknowledged.set_result(True)
        except BaseException:
            out = _acknowledged(batches, futures)
            _put_back(self._outs, taken, out)
            _put_back(self._late, late, frozenset() if taken else out)
            if not acknowledged.done():
                acknowledged.set_result(False)
            raise

    def _forget(self, owner: TP) -> None:
        self._outs.pop(owner, None)
        self._late.pop(owner, None)
        self._turns.pop(owner, None)
        self._last.pop(owner, None)


def _take(buffer: dict[TP, list[Out]], owners: Iterable[TP]) -> dict[TP, list[Out]]:
    return {owner: buffer.pop(owner) for owner in owners if owner in buffer}


def _put_back(
    buffer: dict[TP, list[Out]], taken: Mapping[TP, list[Out]], acknowledged: Set[tuple[str, int]]
) -> None:
    """Publish again what is not out: one topic that refuses its records must not repeat the others' answers."""
    for owner, outs in taken.items():
        left = [out for out in outs if (out.topic, out.partition) not in acknowledged]
        buffer[owner] = left + buffer.get(owner, [])


def _acknowledged(
    batches: Sequence[TargetBatch], futures: Sequence[asyncio.Future[object]]
) -> Set[tuple[str, int]]:
    """Return topic and partition of which every batch is out."""
    done: set[tuple[str, int]] = set()
    left: set[tuple[str, int]] = set()
    for place, (topic, partition, _) in enumerate(batches):
        future = futures[place] if place < len(futures) else None
        is_out = (
            future is not None
            and future.done()
            and not future.cancelled()
            and future.exception() is None
        )
        (done if is_out else left).add((topic, partition))
    return done - left


def _flat(taken: Mapping[TP, list[Out]]) -> list[Out]:
    if len(taken) == 1:
        return next(iter(taken.values()))
    return [out for outs in taken.values() for out in outs]
