"""A worker process: one `ModelWorker` per loaded model, cancels, status records, metrics and readiness.

The composition happens here; the command line only brings the log, the loaded repository and the stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol, Self

from headrace.backends.backend import Instance
from headrace.consumers.alone import Alone
from headrace.consumers.announcing import Announcing
from headrace.consumers.answering import Answering
from headrace.consumers.batcher import Batcher
from headrace.consumers.cancelling import Cancelling
from headrace.consumers.claimed_requests import request_decoder
from headrace.consumers.delivery_mode import require_mode
from headrace.consumers.encoding import Encoder
from headrace.consumers.instances import Instances
from headrace.consumers.mapped import MappedModel
from headrace.consumers.observe import ModelObserver, SequenceMetrics, WorkerMetrics
from headrace.consumers.observe_attempts import AttemptMetrics
from headrace.consumers.observe_keys import KeyMetrics
from headrace.consumers.observe_partitions import PartitionMetrics
from headrace.consumers.observe_transactions import TransactionMetrics
from headrace.consumers.placement import Placement
from headrace.consumers.pool import Pool
from headrace.consumers.remember_options import remembered_answers, window_ms
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.sequence_parts import SequenceParts
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.stored_watch import watch_stored
from headrace.consumers.streamed_answers import make_emitting
from headrace.consumers.supervision import Supervision
from headrace.consumers.suspects import attempting_on
from headrace.consumers.version import Healthy, Version
from headrace.consumers.version_parts import fault_bounds, make_batcher, stage_rows, supervision
from headrace.consumers.watch_loop import watch_loop
from headrace.consumers.worker import ModelWorker
from headrace.repository.models import LoadedModel, LoadedVersion
from headrace.repository.repository import Repository
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.errors import LogError
from headrace.schemas.snapshot_size import max_state_bytes
from headrace.streams.claims import Claims
from headrace.streams.log import Log, Mode, TopicSpec
from headrace.streams.metrics_text import Series
from headrace.streams.sequence_list import SequencePage
from headrace.streams.topology import Topology
from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)


class InstancePool(Instances, Healthy, Protocol):
    """Instances with their threads: `headrace.consumers.pool.Pool`, or a simulation's."""

    def start(self, supervision: Supervision | None = None) -> None:
        """Start them, inside the running loop; ``supervision`` says how those that go away are replaced."""

    async def close(self, timeout_s: float) -> bool:
        """End them; False if one is still busy after the time."""


class Worker:
    """One worker process. Enter it (topics are made, threads started), then `run` until the stop.

    Attributes:
        models: Model name → its worker, for every model that loaded.
        registry: Headrace's own metrics of this process.
        warnings: Sentences about topics that differ from what they should be.
    """

    def __init__(
        self,
        log: Log,
        repository: Repository,
        topology: Topology,
        settings: WorkerSettings,
        *,
        clock: Clock | None = None,
        pool: Callable[[Sequence[Instance], str], InstancePool] = Pool,
        claims: Claims | None = None,
        mapped: Mapping[str, MappedModel] = MappingProxyType({}),
    ) -> None:
        """Keep the parts.

        Args:
            log: Entered already; outlives this.
            repository: Loaded already; closed by whoever made it, after this has been left.
            topology: Topic names.
            settings: Bounds.
            clock: Time; the machine's unless given.
            pool: Makes the instances' threads; simulations bring their own.
            claims: Store of values that no record can hold; without it records that need one are answered so.
            mapped: Models on topics of other people's, whose names the topology has.
        """
        self.models: dict[str, ModelWorker] = {}
        self.registry = CollectorRegistry()
        self.warnings: Sequence[str] = ()
        self._log = log
        self._repository = repository
        self._topology = topology
        self._settings = settings
        self._clock = clock or Clock()
        self._metrics = WorkerMetrics(self.registry)
        self._sequence_metrics = SequenceMetrics(self.registry)
        self._transaction_metrics = TransactionMetrics(self.registry)
        self._attempts = AttemptMetrics(self.registry)
        self._alone = Alone(settings.suspect_bound_s)
        PartitionMetrics(self.models, self.registry)
        self._key_metrics = KeyMetrics(self.registry)
        self._pool = pool
        self._claims = claims
        self._mapped = mapped
        self._pools: list[InstancePool] = []
        self._missing: tuple[str, ...] = ()
        self._counts: dict[str, int] = {}
        self._stopping = False
        self._announcing = Announcing(self, log, repository, topology, settings, self._clock)

    async def __aenter__(self) -> Self:
        """Make sure that the topics exist and start the instances' threads.

        Raises:
            LogError: The log cannot be reached, or refuses to create a topic; the sentence says which.
        """
        self.warnings = await self._ensure()
        for warning in self.warnings:
            logger.warning("%s", warning)
        dead_letters = await self._partitions(self._topology.dead_letters)
        for name, model in self._repository.models.items():
            self.models[name] = await self._model_worker(name, model, dead_letters)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the instances' threads; one that hangs in a model is left behind."""
        for worker in self.models.values():
            worker.answering.close()
        for pool in self._pools:
            if not await pool.close(1.0):
                logger.warning("an instance still executes and is left behind")

    def ready(self) -> bool:
        """Whether every known model is READY and every loaded one is served (SEMANTICS SV-02)."""
        return (
            not self._stopping
            and not self._missing
            and self._repository.is_ready()
            and self.is_serving()
        )

    def is_serving(self) -> bool:
        """Whether every loaded model is served, and the fleet knows it.

        Who restarts workers one after the other ends the next one as soon as this one is ready: gateways that did not
        know of it yet would find nobody (FAULTS B67).
        """
        return self._announcing.has_told() and all(w.ready() for w in self.models.values())

    def series(self) -> list[Series]:
        """Return this process's counts of every served version, for Triton's metric names (MX-01…MX-10)."""
        found: list[Series] = []
        for name, worker in self.models.items():
            tags = self._repository.models[name].config.metric_tags
            for number, version in worker.answering.versions.items():
                version.observer.counts.pending = len(version.scheduler.batcher)
                found.append(Series(name, number, tags, version.observer.counts))
        return found

    def sequences(self, model: str, limit: int) -> SequencePage | None:
        """Return a model's most recently active live sequences; None where it is not served or has none ever."""
        worker = self.models.get(model)
        if worker is None or worker.sequences is None:
            return None
        return worker.sequences.page(limit, self._settings.worker_id)

    def troubles(self) -> list[str]:
        """Return a sentence for each reason that keeps the worker from being ready."""
        found = [f"topic {name} does not exist" for name in self._missing]
        found += [
            f"model '{name}': {trouble}"
            for name, worker in self.models.items()
            if (trouble := worker.troubled())
        ]
        found += [failure.text for failure in self._repository.failures.values()]
        return found

    def exit_by(self, deadline: float) -> None:
        """Bound the drain by a time of the loop's clock, too: others may have had their part of the stop already."""
        for worker in self.models.values():
            worker.exit_by = deadline

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; then every model drains within ``exit_timeout_s``."""
        retry_s = self._settings.topic_check_interval_s
        cancelling = Cancelling(self.models, self._log, self._topology.cancels, retry_s=retry_s)
        async with asyncio.TaskGroup() as tasks:
            around = [
                tasks.create_task(cancelling.run()),
                tasks.create_task(self._announcing.run()),
                tasks.create_task(self._watch_topics()),
                tasks.create_task(watch_loop(self.models, self._metrics)),
            ]
            serving = [tasks.create_task(w.run(stop)) for w in self.models.values()]
            await stop.wait()
            self._stopping = True
            self._announcing.wake()
            if serving:
                await asyncio.wait(serving)
            for task in around:
                task.cancel()
        await self._announcing.leave()

    async def _ensure(self) -> Sequence[str]:
        """Create what is missing; returns sentences about what differs."""
        have = await self._log.topics()
        for name in self._repository.models:
            if count := have.get(self._topology.requests(name)):
                # Results have as many partitions as requests (DESIGN §4).
                self._counts |= dict.fromkeys(
                    [spec.name for spec in self._model_specs(name)], count
                )
        specs = self._specs()
        warnings = await self._log.ensure(specs)
        self._take_counts(specs, await self._log.topics())
        return warnings

    def _specs(self) -> list[TopicSpec]:
        """Return every topic that is read or written, with the partition count that it had when it was last seen."""
        specs = list(self._topology.shared_specs())
        for name in self._repository.models:
            specs += self._model_specs(name)
        return [replace(s, partitions=self._counts.get(s.name, s.partitions)) for s in specs]

    def _model_specs(self, name: str) -> Sequence[TopicSpec]:
        config = self._repository.models[name].config
        return self._topology.model_specs(
            name,
            stateful=config.sequence_batching is not None,
            window_ms=window_ms(config, self._settings),
        )

    def _take_counts(self, specs: Sequence[TopicSpec], there: Mapping[str, int]) -> None:
        self._counts = {spec.name: there.get(spec.name, spec.partitions) for spec in specs}

    async def _partitions(self, topic: str) -> int:
        count = await self._log.partitions(topic)
        if count is None:
            raise LogError(f"topic {topic} does not exist", retriable=True)
        return count

    async def _model_worker(self, name: str, model: LoadedModel, dead_letters: int) -> ModelWorker:
        topology, settings, clock = self._topology, self._settings, self._clock
        mapped = self._mapped.get(name)
        own = None if mapped is None else mapped.decoder(settings.max_record_bytes)
        results = topology.results(name)
        mode = require_mode(self._log, model.config, settings.delivery)
        placement = Placement(
            results,
            await self._partitions(results),
            allowed=topology.reply_allowed,
            lookup=self._log.partitions,
            max_topics=settings.max_reply_topics,
            own={topology.replies, topology.dead_letters},
        )
        answering = Answering(
            name,
            placement=placement,
            encode_error=encode_error if mapped is None else mapped.encode_error(),
            dead_letters=(topology.dead_letters, dead_letters),
            max_record_bytes=self._log.max_record_bytes,
            max_inline_bytes=settings.max_inline_bytes,
            clock=clock,
            count_refused=lambda reason: self._metrics.refused.labels(name, reason.value).inc(),
        )
        answering.replies = topology.replies if mode is Mode.EXACTLY_ONCE else ""
        parts = self._sequence_parts(name, model, answering)
        if parts is not None:
            answering.records = parts.sequences.options.record_answers
        remembered = remembered_answers(
            model.config, self._log, topology, settings, clock=clock, mode=mode
        )
        for number, version in model.versions.items():
            batcher = make_batcher(version) if parts is None else parts.batcher(version)
            answering.versions[number] = self._version(name, version, batcher, answering)
        keyed = remembered if parts is None else parts.sequences.keyed
        if keyed is not None:
            self._key_metrics.watch(name, keyed.keys)
        return ModelWorker(
            name,
            log=self._log,
            group=topology.group(name),
            topic=topology.requests(name),
            partition_count=await self._partitions(topology.requests(name)),
            decoder=request_decoder(name, model, settings.max_record_bytes, self._claims, own),
            answering=answering,
            placement=placement,
            settings=settings,
            clock=clock,
            sequences=None if parts is None else parts.sequences,
            remembered=remembered,
            mode=mode,
            transactions=self._transaction_metrics.model(name) if answering.replies else None,
            rebalanced=self._metrics.rebalance.labels(name).observe,
            attempting=attempting_on(self._log, settings, self._alone, self._attempts.model(name)),
            from_end=mapped is not None and mapped.from_end,
            mapped="" if mapped is None else mapped.word,
        )

    def _sequence_parts(
        self, name: str, model: LoadedModel, answering: Answering
    ) -> SequenceParts | None:
        if model.config.sequence_batching is None:
            return None
        return SequenceParts(
            name,
            model,
            answering.versions,
            log=self._log,
            topology=self._topology,
            settings=self._settings,
            clock=self._clock,
            metrics=self._sequence_metrics,
            first_sight=name in self._mapped and self._mapped[name].first_sight,
        )

    def _version(
        self, name: str, loaded: LoadedVersion, batcher: Batcher, answering: Answering
    ) -> Version:
        pool = self._pool(loaded.instances, f"{name}-{loaded.version}")
        self._pools.append(pool)
        decoupled = loaded.config.decoupled
        observer = ModelObserver(name, loaded.version, self._metrics, decoupled=decoupled)
        scheduler = Scheduler(
            loaded.version,
            batcher,
            pool,
            answering,
            repeatable=loaded.model.repeatable,
            emitting=make_emitting(loaded, answering),
            stage_rows=stage_rows(loaded),
            max_state_bytes=max_state_bytes(self._log.max_record_bytes),
            max_rows=loaded.config.max_batch_size,
            bounds=fault_bounds(loaded.config, self._settings),
            faults=observer,
            alone=self._alone,
            clock=self._clock,
        )
        pool.start(supervision(loaded, scheduler, observer, self._settings))
        batching = loaded.config.dynamic_batching or loaded.config.sequence_batching
        return Version(
            scheduler,
            pool,
            self._encoder(name, loaded),
            observer,
            decoupled=decoupled,
            preserve_ordering=batching is not None and batching.preserve_ordering,
            claims=self._claims,
        )

    def _encoder(self, name: str, loaded: LoadedVersion) -> Encoder:
        usual = ResponseEncoder(loaded.signature, loaded.labels)
        mapped = self._mapped.get(name)
        return usual if mapped is None else mapped.encoder(loaded.version, usual)

    async def _watch_topics(self) -> None:
        """Create topics again that were deleted, or be not ready with their names (FAULTS B104); count partitions."""
        while True:
            await asyncio.sleep(self._settings.topic_check_interval_s)
            try:
                await self._check_topics()
            except LogError as exc:
                logger.warning("topics cannot be checked: %s", exc.detail)

    async def _check_topics(self) -> None:
        specs = self._specs()
        there = await self._log.topics()
        missing = [spec for spec in specs if spec.name not in there]
        gone = {spec.name for spec in missing}
        if missing:
            self._missing = tuple(spec.name for spec in missing)
            logger.warning("topics are gone, creating them again: %s", ", ".join(self._missing))
            await self._log.ensure(missing)
            there = await self._log.topics()
            for name, worker in self.models.items():
                if self._topology.requests(name) in gone:
                    worker.take_over_again()
        self._missing = ()
        self._take_counts(specs, there)
        for worker in self.models.values():
            worker.counted(there)
        keepers = [found for worker in self.models.values() if (found := worker.stateful)]
        await watch_stored(self._log, keepers, gone)
