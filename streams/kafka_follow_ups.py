"""The producer of what follows a commit, such as replies to gateways (DELIVERY P-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.schemas.errors import LogError
from headrace.schemas.record import Out
from headrace.streams.kafka_producer import KafkaProducer
from headrace.streams.kafka_properties import KafkaSettings


class KafkaFollowUps:
    """Publishes what follows a commit, such as replies, by an idempotent producer: none comes twice.

    One that a broker has refused a batch of is replaced; it closes behind the last of those that it serves.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Keep the settings."""
        self._settings = settings
        self._producer = self._made()
        self._serves: dict[KafkaProducer, int] = {}

    async def publish(self, outs: Sequence[Out]) -> None:
        """Publish in order and await all acknowledgements; `LogError` if any fails."""
        producer = self._producer
        self._serves[producer] = self._serves.get(producer, 0) + 1
        try:
            await producer.publish(outs)
        except LogError:
            if self._producer is producer:
                self._producer = self._made()
            raise
        finally:
            self._serves[producer] -= 1
            if not self._serves[producer]:
                del self._serves[producer]
                if self._producer is not producer:
                    await asyncio.shield(producer.close())

    async def close(self) -> None:
        """Send what is queued and close."""
        await self._producer.close()

    def _made(self) -> KafkaProducer:
        return KafkaProducer(self._settings, enable_idempotence=True)
