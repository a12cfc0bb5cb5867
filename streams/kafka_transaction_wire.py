"""The connections over which all transactions of a log travel, and who answers for what.

A broker handles the requests of one connection one after the other, each to its end: one connection would let
transactions wait for each other's replication, and two of its own for each partition are what made 64 partitions
dear. So a transaction is given a *lane* while it runs: a number under which there is a connection to each broker that
it talks to. Lanes are shared once there are more transactions than lanes; the lowest are used first, so that few
partitions have few connections.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from aiokafka import TopicPartition
from aiokafka import __version__ as client_version
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    RequestTimedOutError,
)
from aiokafka.protocol.api import Request, Response
from headrace.schemas.record import TP
from headrace.streams.kafka_client import bounded, known_target, tame
from headrace.streams.kafka_properties import KafkaSettings, connection_arguments
from headrace.streams.kafka_transaction_dialects import Dialect, First, Second
from headrace.streams.kafka_transaction_requests import (
    FEATURE,
    NO_TAGS,
    SECOND,
    ApiVersionsRequest_v3,
    Exactly,
)

LANES = 16
"""Connections to one broker at most: as many transactions of a model run side by side."""

Kind: TypeAlias = CoordinationType


class TransactionWire:
    """Sends requests of transactions; starts at its first use.

    Attributes:
        settings: Translated properties.
        dialect: What the cluster speaks; the first protocol until `start`.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Keep the settings."""
        self.settings = settings
        self.dialect: Dialect = First()
        self._client: AIOKafkaClient | None = None
        self._starting = asyncio.Lock()
        self._users = [0] * LANES
        self._connections: dict[tuple[int, int], AIOKafkaConnection] = {}
        self._connecting: dict[tuple[int, int], asyncio.Lock] = {}
        self._coordinators: dict[tuple[Kind, str], int] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"TransactionWire({len(self._connections)} connections, {sum(self._users)} users)"

    async def start(self) -> None:
        """Connect and ask what the cluster speaks, once."""
        async with self._starting:
            if self._client is not None:
                return
            client = AIOKafkaClient(**self.settings.client)
            tame(client)
            try:
                await bounded(
                    self._greet(client),
                    self.settings.request_timeout_s,
                    "starting transactions",
                    self.settings.needs(),
                )
            except BaseException:
                await client.close()
                raise
            self._client = client

    async def _greet(self, client: AIOKafkaClient) -> None:
        await client.bootstrap()
        hello = Exactly(ApiVersionsRequest_v3("headrace", client_version, NO_TAGS))
        node = client.get_random_node()
        if node is None:
            raise NodeNotReadyError("the cluster has no broker yet")
        answer = await client.send(node, hello)
        self.dialect = Second() if answer.feature(FEATURE) >= SECOND else First()

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close(reason=CloseReason.SHUTDOWN)
        if client is not None:
            await client.close()

    def take_lane(self) -> int:
        """Return the lane with the fewest users, the lowest of them; `leave_lane` follows."""
        lane = self._users.index(min(self._users))
        self._users[lane] += 1
        return lane

    def leave_lane(self, lane: int) -> None:
        """Use a lane no more."""
        self._users[lane] -= 1

    async def request(self, lane: int, node: int, request: Request) -> Response:
        """Send a request to a broker and return its answer; `KafkaError` where none comes.

        One that is given up takes its connection with it, for its answer might never come, and the requests behind it
        would wait as long: they are sent again by whoever they belong to.
        """
        connection = await self._connection(lane, node)
        try:
            return await connection.send(request)
        except TimeoutError as exc:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise RequestTimedOutError from exc
        except asyncio.CancelledError:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise

    async def _connection(self, lane: int, node: int) -> AIOKafkaConnection:
        place = (lane, node)
        found = self._connections.get(place)
        if found is not None and found.connected():
            return found
        async with self._connecting.setdefault(place, asyncio.Lock()):
            found = self._connections.get(place)
            if found is not None and found.connected():
                return found
            broker = self._running().cluster.broker_metadata(node)
            if broker is None:
                raise NodeNotReadyError(f"broker {node} is not known")
            try:
                made = await create_conn(
                    broker.host, broker.port, **connection_arguments(self.settings)
                )
            except (OSError, TimeoutError) as exc:
                raise KafkaConnectionError(
                    f"no connection to {broker.host}:{broker.port}: {exc}"
                ) from exc
            if self._client is None:  # closed meanwhile
                made.close(reason=CloseReason.SHUTDOWN)
                self._running()
            self._connections[place] = made
            return made

    async def coordinator(self, kind: Kind, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id."""
        found = self._coordinators.get((kind, key))
        if found is None:
            found = int(await self._running().coordinator_lookup(kind, key))
            self._coordinators[kind, key] = found
        return found

    def forget_coordinator(self, kind: Kind, key: str) -> None:
        """Look it up again next time."""
        self._coordinators.pop((kind, key), None)

    async def known(self, tp: TP) -> None:
        """Wait until a partition is known; `LogError` where there is none."""
        await known_target(self._running(), tp.topic, tp.partition)

    def leader(self, tp: TP) -> int:
        """Return the broker that leads a partition, below 0 where nobody is known to."""
        found: Any = self._running().cluster.leader_for_partition(TopicPartition(*tp))
        return -1 if found is None else int(found)

    async def look_again(self) -> None:
        """Ask who leads what, and where brokers are."""
        await self._running().force_metadata_update()

    def _running(self) -> AIOKafkaClient:
        if self._client is None:
            raise KafkaError("the log is closed")
        return self._client
