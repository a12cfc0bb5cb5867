"""What this worker says about itself on the status topic: at each heartbeat, and sooner when something changed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.version import Version
from headrace.consumers.worker import ModelWorker
from headrace.repository.models import WHOLE_MODEL
from headrace.repository.repository import Repository
from headrace.schemas.config_text import config_to_json
from headrace.schemas.errors import LogError
from headrace.streams.announce import Announcer
from headrace.streams.json_fields import JsonObject
from headrace.streams.log import Log
from headrace.streams.model_view import UNHEALTHY
from headrace.streams.status import (
    ModelState,
    QueueStatus,
    VersionStatus,
    WorkerStatus,
    worker_key,
)
from headrace.streams.topology import Topology

if TYPE_CHECKING:
    from headrace.consumers.service import Worker

logger = logging.getLogger(__name__)

CHANGE_INTERVAL_S = 0.2
"""A change is said at most this late, seconds: gateways refuse by queue lengths that are this old (KX-02)."""


class Announcing:
    """The status writer of one worker process."""

    def __init__(
        self,
        worker: Worker,
        log: Log,
        repository: Repository,
        topology: Topology,
        settings: WorkerSettings,
        clock: Clock,
    ) -> None:
        """Keep the parts."""
        self._worker = worker
        self._log = log
        self._repository = repository
        self._topology = topology
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()
        self._configs: dict[str, JsonObject] = {}
        self._joined: set[str] = set()
        self._said: dict[str, object] = {}
        self._said_at: dict[str, float] = {}
        self._told: set[str] = set()

    def wake(self) -> None:
        """Say at once what changed."""
        self._wake.set()

    def has_told(self) -> bool:
        """Whether the fleet has been told of every model that it is served here."""
        return self._worker.models.keys() <= self._told

    async def run(self) -> None:
        """Write for ever; a log that fails is tried again at the next turn."""
        async with self._log.publisher() as publisher:
            announcer = Announcer(self._log, publisher, self._topology.status)
            while True:
                due = self._due()
                if due:
                    try:
                        joined = {status.model for status in due} & self._joined
                        await announcer.write(due)
                        self._told |= joined
                    except LogError as exc:
                        self._said.clear()
                        logger.warning("the worker's status cannot be written: %s", exc.detail)
                try:
                    async with asyncio.timeout(CHANGE_INTERVAL_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    async def leave(self) -> None:
        """Take this worker's words back: a clean stop."""
        names = [*self._worker.models, *self._repository.failures]
        try:
            async with self._log.publisher() as publisher:
                announcer = Announcer(self._log, publisher, self._topology.status)
                await announcer.clear(
                    [worker_key(self._settings.worker_id, name) for name in names]
                )
        except LogError as exc:
            logger.warning("the worker's status cannot be taken back: %s", exc.detail)

    def _due(self) -> list[WorkerStatus]:
        """Return the status of each model that changed, or whose heartbeat is due."""
        due: list[WorkerStatus] = []
        now = asyncio.get_running_loop().time()
        for name in [*self._worker.models, *self._repository.failures]:
            worker = self._worker.models.get(name)
            mark = self._mark(name, worker)
            late = now - self._said_at.get(name, -1e9) >= self._settings.status_interval_s
            if late or mark != self._said.get(name):
                self._said[name] = mark
                self._said_at[name] = now
                due.append(self._failed(name) if worker is None else self._status(name, worker))
        return due

    def _mark(self, name: str, worker: ModelWorker | None) -> object:
        """Return something cheap that differs whenever the status does, but for its time."""
        if worker is None:
            return self._repository.index.generation
        counts = tuple(
            (
                v.observer.counts.success,
                sum(v.observer.counts.failure.values()),
                len(v.scheduler.batcher),
            )
            for v in worker.answering.versions.values()
        )
        return (counts, tuple(worker.partitions), worker.ready(), worker.draining, name)

    def _status(self, name: str, worker: ModelWorker) -> WorkerStatus:
        model = self._repository.models[name]
        if worker.ready():
            # For good: a rebalance is no reason to refuse calls, they wait in the log.
            self._joined.add(name)
        config = self._configs.get(name)
        if config is None:
            config = self._configs[name] = config_to_json(model.config)
        versions = []
        queues: list[QueueStatus] = []
        for number, version in worker.answering.versions.items():
            counts = version.observer.counts
            counts.pending = len(version.scheduler.batcher)
            state, reason = self._state(name, version)
            versions.append(VersionStatus(number, state, reason, config, counts))
            queues += [QueueStatus(*row) for row in version.scheduler.batcher.queues()]
        return WorkerStatus(
            worker=self._settings.worker_id,
            model=name,
            at_ms=self._clock.wall_ms(),
            requests_topic=self._topology.requests(name),
            results_topic=self._topology.results(name),
            partitions=worker.partition_count,
            assigned=tuple(sorted(tp.partition for tp in worker.partitions)),
            versions=tuple(versions),
            queues=tuple(queues),
            draining=worker.draining,
            guarantee=worker.mode,
            timeout_ms=int(self._settings.status_timeout_s * 1000),
            url=self._settings.advertised_url,
            sequences=None if worker.sequences is None else worker.sequences.count(),
            mapped=worker.mapped,
        )

    def _state(self, name: str, version: Version) -> tuple[ModelState, str]:
        """Return a version's state: READY only once records are read, or a first call would wait for the group."""
        if not version.pool.healthy():
            return ModelState.UNAVAILABLE, UNHEALTHY
        if name not in self._joined:
            return ModelState.LOADING, "joining the consumer group"
        return ModelState.READY, ""

    def _failed(self, name: str) -> WorkerStatus:
        """Return the status of a model that did not load, so that every index names it with the reason."""
        failure = self._repository.failures[name]
        versions = tuple(
            VersionStatus(
                version if version != WHOLE_MODEL else 0, ModelState.UNAVAILABLE, str(cause)
            )
            for version, cause in failure.causes.items()
        )
        return WorkerStatus(
            worker=self._settings.worker_id,
            model=name,
            at_ms=self._clock.wall_ms(),
            versions=versions,
            timeout_ms=int(self._settings.status_timeout_s * 1000),
        )
