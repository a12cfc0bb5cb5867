"""Makes the parts of a sequence model and ties them to the model's versions; used by the worker's composition."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.consumers.delivery_mode import delivery_mode
from headrace.consumers.direct import DirectBatcher
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.live_sequence import LiveSequence
from headrace.consumers.model_sequences import ModelSequences, StateOptions
from headrace.consumers.observe import SequenceMetrics
from headrace.consumers.oldest import OldestBatcher
from headrace.consumers.remember_options import key_bounds
from headrace.consumers.sequence_batcher import BacklogBounds, SequenceBatcher
from headrace.consumers.sequence_keys import SequenceKeys
from headrace.consumers.sequences import Sequences
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.version import Version
from headrace.repository.models import LoadedModel, LoadedVersion
from headrace.schemas.config_parameters import (
    RECORD_ANSWERS,
    SNAPSHOT_EVERY,
    read_record_answers,
    read_snapshot_every,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig, SequenceBatching, SequenceStrategy
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import SequenceCodec
from headrace.schemas.snapshot_size import max_state_bytes
from headrace.streams.log import Log, Mode
from headrace.streams.topology import Topology

logger = logging.getLogger(__name__)

MAX_SPLIT_WARNINGS = 100
"""Sequences on two partitions that are warned about one by one; all are counted."""


def state_options(config: ModelConfig, settings: WorkerSettings) -> StateOptions:
    """Read how a model's sequences are kept from its parameters, else from the worker's settings.

    In exactly_once states are written in each transaction, and by nothing else (P-3): what asks for more is passed
    over with a warning.
    """
    every = read_snapshot_every(config.parameters, "")
    options = StateOptions(
        every=settings.snapshot_every if every is None else every,
        record_answers=read_record_answers(config.parameters, ""),
    )
    if delivery_mode(config, settings.delivery) is Mode.AT_LEAST_ONCE:
        return options
    asked = {SNAPSHOT_EVERY: bool(options.every), RECORD_ANSWERS: options.record_answers}
    for name in (name for name, is_asked in asked.items() if is_asked):
        logger.warning(
            "model '%s': %s is passed over, for with exactly_once states are written in each transaction",
            config.name,
            name,
        )
    return StateOptions()


def backlog_bounds(settings: WorkerSettings, versions: int) -> BacklogBounds:
    """Return what may wait for slots of one version of a model that has memory of its own.

    Together the versions' backlogs hold half of what intake admits, so that reading goes on to the ENDs while the other
    half runs; and no request in them is so old that its partition could not be read on (DELIVERY P-1).
    """
    ledger = OffsetLedger(
        max_span=settings.max_partition_span, block_records=settings.max_poll_records
    )
    return BacklogBounds(
        sequences=settings.max_backlogged_sequences,
        records=settings.max_queued_records // (2 * versions),
        span=ledger.reach,
        size=settings.max_queued_bytes // (2 * versions),
    )


def _check_span(model: LoadedModel, bounds: BacklogBounds, settings: WorkerSettings) -> None:
    """Refuse at start a worker that would stop reading behind the first sequence that waits."""
    if bounds.span < 1:
        most = settings.max_poll_records + bounds.span - 1
        raise ConfigError(
            f"model '{model.config.name}' keeps memory of its own, so a sequence that waits for a slot must not stop "
            f"the reading of its partition: expected at most {most}, less than max_partition_span "
            f"({settings.max_partition_span}) and than a commit's metadata has room for",
            field="max_poll_records",
            value=settings.max_poll_records,
        )


def _check_size(model: LoadedModel, max_record_bytes: int) -> None:
    """Refuse at start what no snapshot could ever hold."""
    limit = max_state_bytes(max_record_bytes)
    for version in model.versions.values():
        size = sum(map(len, version.initial_state[0]))
        if size > limit:
            raise ConfigError(
                f"a sequence's states have {size} bytes, expected at most {limit}, which fit into a record "
                "(max.request.size)",
                file=str(model.directory),
                field="sequence_batching.state",
            )


class SequenceParts:
    """Makes what one sequence model needs beside the parts of every model.

    Attributes:
        sequences: Of the model.
    """

    def __init__(
        self,
        name: str,
        model: LoadedModel,
        versions: Mapping[int, Version],
        *,
        log: Log,
        topology: Topology,
        settings: WorkerSettings,
        clock: Clock,
        metrics: SequenceMetrics,
        first_sight: bool = False,
    ) -> None:
        """Make them.

        Args:
            name: Model.
            model: As loaded; it has ``sequence_batching``.
            versions: Filled later: version → what serves it.
            log: Where the state topic is.
            topology: Topic names.
            settings: Bounds.
            clock: Time.
            metrics: Where to count.
            first_sight: A request of no live sequence starts one.

        Raises:
            ConfigError: A state does not fit into a record; or the model has memory of its own, and a partition
                could not be read on while a sequence waits for a slot.
        """
        batching = model.config.sequence_batching
        assert batching is not None
        self._batching: SequenceBatching = batching
        self._name = name
        self._topic = topology.requests(name)
        self._versions = versions
        self._clock = clock
        self._first_sight = first_sight
        self._split_seen: set[bytes] = set()
        _check_size(model, log.max_record_bytes)
        self._bounds = backlog_bounds(settings, len(model.versions))
        if not batching.states:
            _check_span(model, self._bounds, settings)
        self._sequences = self._route(model, topology, settings, metrics)
        self.sequences = ModelSequences(
            name,
            self._sequences,
            log=log,
            state_topic=topology.state(name),
            codec=SequenceCodec(batching.states),
            options=state_options(model.config, settings),
            idle_us=batching.max_idle_us,
            settings=settings,
            clock=clock,
            took_over=lambda seconds: metrics.took_over(name, seconds),
            batchers=self._batchers,
            keyed=self._keyed(model.config, log, settings),
            read_on=self._read_on,
        )

    def _route(
        self,
        model: LoadedModel,
        topology: Topology,
        settings: WorkerSettings,
        metrics: SequenceMetrics,
    ) -> Sequences:
        """Make what decides about every record."""
        return Sequences(
            {number: version.signature for number, version in model.versions.items()},
            counts=metrics.model(self._name),
            idle_us=self._batching.max_idle_us,
            keeps_state=bool(self._batching.states),
            checks_keys=self._name not in topology.mapped,
            max_live=settings.max_live_sequences,
            release=self._release,
            adopt=self._adopt,
            on_split=self._split,
            first_sight=self._first_sight,
        )

    def _keyed(
        self, config: ModelConfig, log: Log, settings: WorkerSettings
    ) -> SequenceKeys | None:
        bounds = key_bounds(config, settings)
        if not bounds.window_ms:
            return None
        return SequenceKeys(
            bounds,
            self._clock.wall_ms,
            finished=self._sequences.finished,
            max_bytes=max_state_bytes(log.max_record_bytes),
        )

    def batcher(self, loaded: LoadedVersion) -> SequenceBatcher:
        """Make the scheduler of one version."""
        tensors, shapes = loaded.initial_state
        kind = (
            DirectBatcher if self._batching.strategy is SequenceStrategy.DIRECT else OldestBatcher
        )
        return kind(
            loaded.signature,
            self._batching,
            version=loaded.version,
            initial=SequenceState(-1, Flag.LIVE, 0, loaded.version, 0, tensors, shapes),
            instances=len(loaded.instances),
            bounds=self._bounds,
            on_idle=self._sequences.idle,
            on_moved=self._sequences.moved,
        )

    def _batchers(self) -> Mapping[int, SequenceBatcher]:
        found: dict[int, SequenceBatcher] = {}
        for number, version in self._versions.items():
            batcher = version.scheduler.batcher
            assert isinstance(batcher, SequenceBatcher)
            found[number] = batcher
        return found

    def _release(self, lane: LiveSequence) -> None:
        if lane.home in self._versions:
            self._batchers()[lane.home].release(lane)
            self._versions[lane.home].scheduler.dispatch_soon()

    def _adopt(self, lane: LiveSequence) -> None:
        """Queue a sequence at its new version; called while the old one's batcher is at work."""
        self._batchers()[lane.home].adopt(lane, self._clock.now_ns())
        self._versions[lane.home].scheduler.dispatch_soon()

    def _read_on(self, tp: TP, next_offset: int) -> None:
        """Let every version's backlog know how far a partition is read, whatever its records are."""
        for number, batcher in self._batchers().items():
            if batcher.read_on(tp, next_offset):
                self._versions[number].scheduler.dispatch_soon()

    def _split(self, key: bytes, here: TP, there: TP) -> None:
        if key in self._split_seen or len(self._split_seen) >= MAX_SPLIT_WARNINGS:
            return
        self._split_seen.add(key)
        logger.warning(
            "sequence %s of model '%s' came to partition %d of %s and is live on partition %d: producers must put a "
            "sequence into one partition, and librdkafka's do not agree with others unless they are told "
            "partitioner=murmur2_random",
            key.decode(errors="replace"),
            self._name,
            here.partition,
            self._topic,
            there.partition,
        )
