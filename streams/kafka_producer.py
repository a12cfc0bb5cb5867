"""Producing by aiokafka: one shared producer per log, one future per batch where there are several records.

acks=all always. The producer is not idempotent unless ``enable.idempotence`` says so (the embedded broker has
none): aiokafka keeps one request per partition in flight and retries a batch before the next, so records of a
partition keep their order, and a retry after a lost acknowledgement may write a batch twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalOperation, KafkaError
from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.kafka_batches import by_target, check_size, pack
from headrace.streams.kafka_client import bounded, known_target, refusing, tame, translated
from headrace.streams.kafka_properties import KafkaSettings
from headrace.streams.kafka_rights import Operation, Resource, Right

# A target and aiokafka's batch for it.
TargetBatch: TypeAlias = tuple[str, int, Any]

BATCHED_RECORDS = 8
"""A publish of so many is packed into batches of its own: half the cost for each record. Fewer join others' batches."""

KILL_S = 1.0  # how long the requests of a killed producer may take to fail


class KafkaProducer:
    """The producer that deliveries and publishers of a log share; starts at its first use.

    Attributes:
        max_record_bytes: Largest record, keys and headers included (``max.request.size``).
    """

    def __init__(self, settings: KafkaSettings, **more: object) -> None:
        """Keep the settings; ``more``: further arguments of aiokafka's producer."""
        self.max_record_bytes = int(str(settings.producer["max_request_size"]))
        self._settings = settings
        self._more = more
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._is_killed = False
        self._is_closed = False
        self._abandoned: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, once; again where a producer was stuck.

        Who waits for it goes on in the order in which they came: a settle must not overtake one of the same partition.
        """
        async with self._starting:
            if self._producer is not None:
                return
            if self._is_closed:
                raise LogError("the producer is closed", retriable=True)
            arguments = {**self._settings.client, **self._settings.producer, **self._more}
            producer = AIOKafkaProducer(**arguments, acks="all")
            tame(producer.client)
            try:
                await bounded(
                    producer.start(),
                    self._settings.request_timeout_s,
                    "starting the producer",
                    self._settings.needs(),
                )
            except BaseException:
                await producer.client.close()
                producer._closed = True  # noqa: SLF001  # stop() would wait for a sender that never began
                raise
            self._producer = producer

    async def close(self) -> None:
        """Send what is queued within the request timeout, and close."""
        self._is_closed = True
        if self._abandoned:
            await asyncio.wait(self._abandoned)
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self._is_killed:
            await self._close_killed(producer)
            return
        stopping = asyncio.create_task(producer.stop())
        await asyncio.wait({stopping}, timeout=self._settings.request_timeout_s)
        if not stopping.done():
            stopping.cancel()
            await producer._sender.close()  # noqa: SLF001  # stop() still waits for acknowledgements
            await producer.client.close()
        await asyncio.gather(stopping, return_exceptions=True)

    async def batches(self, outs: Sequence[Out]) -> list[TargetBatch]:
        """Pack records into batches by target, in order; nothing is sent yet.

        Raises:
            LogError: A record is above ``max.request.size``, or its topic or partition does not exist.
        """
        packed: list[TargetBatch] = []
        create = self.running().create_batch
        for (topic, partition), records in by_target(outs).items():
            await self._check_target(topic, partition)
            batches = pack(records, create, self.max_record_bytes)
            packed += [(topic, partition, batch) for batch in batches]
        return packed

    async def send(self, batches: Sequence[TargetBatch]) -> list[asyncio.Future[object]]:
        """Queue batches; returns a future of each one's acknowledgement."""
        producer = self.running()
        futures: list[asyncio.Future[object]] = []
        for topic, partition, batch in batches:
            try:
                futures.append(await producer.send_batch(batch, topic, partition=partition))
            except (
                KafkaError,
                IllegalOperation,
            ) as exc:  # the latter where its transaction has failed
                await self._settle(futures)
                raise self._refused(exc, topic, partition) from exc
        self._drain(producer)
        return futures

    def _drain(self, producer: AIOKafkaProducer) -> None:
        """Begin with the requests for what is queued, as the sender does when it hears of it.

        It does four turns of the loop later, and a turn is milliseconds in a busy gateway.
        """
        sender, queued = producer._sender, producer._message_accumulator  # noqa: SLF001  # no public way
        if producer is not self._producer or self._is_killed:
            queued._wakeup(queued._waiter_future)  # noqa: SLF001  # what is left is the sender's
            return
        if sender._txn_manager is not None:  # noqa: SLF001  # idem
            return  # it may have to ask for its producer id first
        batches, _ = queued.drain_by_nodes(
            ignore_nodes=sender._in_flight,  # noqa: SLF001  # idem
            muted_partitions=sender._muted_partitions,  # noqa: SLF001  # idem
        )
        for node, found in batches.items():
            sender._in_flight.add(node)  # noqa: SLF001  # idem
            sender._muted_partitions.update(found)  # noqa: SLF001  # idem
            request = asyncio.create_task(sender._send_produce_req(node, found))  # noqa: SLF001  # idem
            self._requests.add(request)
            request.add_done_callback(partial(self._sent, producer))

    def _sent(self, producer: AIOKafkaProducer, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if not request.cancelled() and request.exception() is not None:
            producer._sender._fail_all(request)  # noqa: SLF001  # a bug ends the sender, too
            self._abandon(producer)
        self._drain(producer)

    async def acknowledged(
        self, batches: Sequence[TargetBatch], futures: Sequence[asyncio.Future[object]]
    ) -> None:
        """Await all acknowledgements; `LogError` names the first target that failed."""
        failures = await self._settle(futures)
        for (topic, partition, _), failure in zip(batches, failures, strict=True):
            if failure is not None:
                raise self._refused(failure, topic, partition) from failure

    async def publish(self, outs: Sequence[Out]) -> None:
        """Publish in order and await all acknowledgements; `LogError` if any fails."""
        await self.start()
        batches = await self.batches(outs)
        await self.acknowledged(batches, await self.send(batches))

    async def each(self, outs: Sequence[Out]) -> None:
        """Publish records one by one, in order, so that those of concurrent callers share batches (FAULTS B93)."""
        producer = self.running()
        for out in outs:
            self.check_size(out)
            await self._check_target(out.topic, out.partition)
        futures: list[asyncio.Future[object]] = []
        topic, partition = "", -1
        try:
            for out in outs:
                topic, partition = out.topic, out.partition
                headers = out.headers if type(out.headers) is list else list(out.headers)
                futures.append(
                    await producer.send(
                        out.topic, out.value, out.key, out.partition, headers=headers
                    )
                )
        except KafkaError as exc:
            await self._settle(futures)
            raise self._refused(exc, topic, partition) from exc
        self._drain(producer)
        for out, failure in zip(outs, await self._settle(futures), strict=True):
            if failure is not None:
                raise self._refused(failure, out.topic, out.partition) from failure

    def check_size(self, out: Out) -> None:
        """Check one record; `LogError` if it is too large."""
        check_size(out, self.max_record_bytes)

    async def _settle(
        self, futures: Sequence[asyncio.Future[object]]
    ) -> list[BaseException | None]:
        """Await all; returns why each failed, None where it did not."""
        if not futures:
            return []
        # aiokafka fails a batch after request.timeout.ms plus one request; past twice that, its sender is stuck.
        bound_s = 2 * self._settings.request_timeout_s + 1
        producer = self._producer
        _, late = await asyncio.wait(futures, timeout=bound_s)
        if late:
            self._abandon(producer)
            raise LogError(f"no acknowledgement within {bound_s:g} s", retriable=True)
        return [future.exception() for future in futures]

    async def _check_target(self, topic: str, partition: int) -> None:
        try:
            await known_target(self.running().client, topic, partition)
        except KafkaError as exc:
            raise self._refused(exc, topic, partition) from exc

    def kill(self) -> None:
        """Send nothing more, as if the process were gone; `close` follows."""
        self._is_killed = True
        if self._producer is not None:
            self._cancel(self._producer)

    def _abandon(self, producer: AIOKafkaProducer | None) -> None:
        """Let the next publish have a producer of its own: one whose sender is stuck stays so (FAULTS B7)."""
        if self._producer is None or producer is not self._producer:
            return
        self._producer = None
        self._cancel(producer)
        closing = asyncio.create_task(self._close_killed(producer))
        self._abandoned.add(closing)
        closing.add_done_callback(self._abandoned.discard)

    def _cancel(self, producer: AIOKafkaProducer) -> None:
        """Let a producer send nothing more; stop() would send what is queued."""
        for task in (producer._sender.sender_task, *self._requests):  # noqa: SLF001  # no public way
            task.cancel()

    async def _close_killed(self, producer: AIOKafkaProducer) -> None:
        """Close without a word to the brokers; what is queued fails nowhere, nobody waits for it."""
        await producer.client.close()
        sender = producer._sender.sender_task  # noqa: SLF001  # as in `kill`
        # It ends when its requests have, which fail with their connections.
        await asyncio.wait({sender}, timeout=KILL_S)
        if not sender.done():
            sender.cancel()
            await asyncio.wait({sender}, timeout=KILL_S)
        await producer.client.close()  # a request may have connected again meanwhile
        producer._closed = True  # noqa: SLF001  # as in `start`

    def _refused(self, exc: BaseException, topic: str, partition: int) -> LogError:
        needs = self._settings.needs(Right(Operation.WRITE, Resource.TOPIC, topic))
        said = translated(exc, f"publishing to {topic}/{partition}", needs)
        return LogError(said.detail, retriable=said.retriable, topics=refusing(exc, topic))

    def running(self) -> AIOKafkaProducer:
        """Return aiokafka's producer; `LogError` unless it is started and not closed."""
        if self._producer is None:
            raise LogError("the producer is closed", retriable=True)
        return self._producer


class KafkaPublisher:
    """See `headrace.streams.log.Publisher`."""

    def __init__(self, producer: KafkaProducer) -> None:
        """Keep the shared producer."""
        self._producer = producer

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._producer.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing is queued: `publish` returned after the acknowledgement; the log closes the producer."""

    async def publish(self, outs: Sequence[Out]) -> None:
        """Produce and await the acknowledgement of all."""
        await self._producer.start()
        if len(outs) < BATCHED_RECORDS:
            await self._producer.each(outs)
            return
        batches = await self._producer.batches(outs)
        await self._producer.acknowledged(batches, await self._producer.send(batches))
