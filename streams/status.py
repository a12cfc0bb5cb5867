"""What each worker and gateway says about itself, as records on the compacted status topic.

Workers and gateways write, gateways and tools read. A key names the writer and what it speaks of, so that
compaction keeps the newest word of each; a clean stop leaves a tombstone. Values are JSON: fields that a later
release adds are ignored, missing ones take their default, and what is no status at all is the caller's to count
and skip. Everything here is pure; `headrace.streams.fleet` keeps what was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]

STALE_AFTER_INTERVALS = 3
"""Heartbeats that may be missing before a writer counts as dead."""

DEFAULT_INTERVAL_MS = 2_000
"""Milliseconds between two status records of one writer, unless configured."""


class ModelState(StrEnum):
    """State of a model version, as the repository index spells it (SEMANTICS PB-63)."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


class Failure(StrEnum):
    """Why a counted request failed: the ``reason`` label of SEMANTICS MX-02."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class ModelCounts:
    """Counters of one model version in one process, incremented by its worker (SEMANTICS MX-01…MX-10).

    Attributes:
        success: Requests answered OK.
        failure: Failed requests by reason; all four reasons exist from the start (MX-02). What is refused
            before or at enqueue is not counted (MX-31).
        inference_count: Items: a request with batch size n adds n.
        exec_count: Executions of the model.
        request_us: Cumulative time from admission to answer, µs.
        queue_us: Cumulative wait in the batcher, µs.
        compute_input_us: Cumulative time to gather inputs, µs.
        compute_infer_us: Cumulative time in the model, µs.
        compute_output_us: Cumulative time to split and encode outputs, µs.
        pending: Requests that wait and do not execute yet; a gauge.
    """

    success: int = 0
    failure: dict[Failure, int] = field(default_factory=lambda: dict.fromkeys(Failure, 0))
    inference_count: int = 0
    exec_count: int = 0
    request_us: int = 0
    queue_us: int = 0
    compute_input_us: int = 0
    compute_infer_us: int = 0
    compute_output_us: int = 0
    pending: int = 0

    def add(self, other: ModelCounts) -> None:
        """Add another process's counts to these."""
        for name in _COUNT_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.failure.items():
            self.failure[reason] += count


_COUNT_NAMES = tuple(item.name for item in fields(ModelCounts) if item.name != "failure")


@dataclass(slots=True)
class SequenceCounts:
    """What one worker counts of one model's sequences, incremented by it; all but the first two only rise.

    Attributes:
        live: Sequences that have started and neither ended nor expired, parked ones included; a gauge.
        backlogged: Those of them that wait for a slot; a gauge.
        parked: Times that a sequence gave up its slot for another one (DESIGN §7).
        ended: By END.
        expired: By silence, or by a timeout in the backlog (SEMANTICS SQ-09).
        restored: From snapshots, at takeovers.
        lost: Not restored: their model keeps memory of its own, or their snapshot is unreadable.
        split: Requests whose sequence is live on another partition: their producers hash keys differently (DESIGN §4).
        snapshots: Snapshots written.
        snapshot_bytes: Bytes of their values.
        snapshots_corrupt: Snapshots read at takeovers that are none.
        snapshots_shape: Those of states of another shape than the model has.
        snapshots_newer: Those of a release that writes another form.
    """

    live: int = 0
    backlogged: int = 0
    parked: int = 0
    ended: int = 0
    expired: int = 0
    restored: int = 0
    lost: int = 0
    split: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshots_corrupt: int = 0
    snapshots_shape: int = 0
    snapshots_newer: int = 0


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version of a model in one worker.

    Attributes:
        version: Version number; 0 stands for a model that could not even be resolved to versions.
        state: Its state.
        reason: Why, where it is not READY; ``unloaded`` is forgiven by readiness (SEMANTICS SV-02).
        config: Completed configuration as the config endpoint shows it (PB-62); None where there is none.
        counts: What it has served.
    """

    version: int
    state: ModelState
    reason: str = ""
    config: JsonObject | None = None
    counts: ModelCounts = field(default_factory=ModelCounts)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A priority level's queue in one worker.

    Attributes:
        level: Priority level, 0 where the model has none.
        size: Requests that wait.
        max_size: The queue policy's ``max_queue_size``; 0 is unlimited.
    """

    level: int
    size: int
    max_size: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker says about one model.

    Attributes:
        worker: Worker id.
        model: Model name.
        at_ms: When it was written, ms since the epoch.
        requests_topic: Topic that the model's requests are read from.
        results_topic: Topic that unaddressed answers go to.
        partitions: Partition count of the requests topic.
        assigned: Partitions that this worker reads.
        versions: Every known version, failed ones included.
        queues: One per priority level.
        draining: Takes no more work.
        guarantee: Delivery guarantee, as `headrace.streams.log.Mode` spells it.
        interval_ms: Milliseconds until the next such record.
        url: Root of the worker's own port for others to reach; ``""`` where it has none.
        sequences: None where the model's requests are independent of each other.
    """

    worker: str
    model: str
    at_ms: int
    requests_topic: str = ""
    results_topic: str = ""
    partitions: int = 0
    assigned: tuple[int, ...] = ()
    versions: tuple[VersionStatus, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    draining: bool = False
    guarantee: str = ""
    interval_ms: int = DEFAULT_INTERVAL_MS
    url: str = ""
    sequences: SequenceCounts | None = None

    @property
    def key(self) -> bytes:
        """Key of the record."""
        return worker_key(self.worker, self.model)


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """What a gateway says about itself.

    Attributes:
        gateway: Gateway id.
        at_ms: When it was written, ms since the epoch.
        reply_partitions: Partitions of the replies topic that it reads.
        interval_ms: Milliseconds until the next such record.
    """

    gateway: str
    at_ms: int
    reply_partitions: tuple[int, ...] = ()
    interval_ms: int = DEFAULT_INTERVAL_MS

    @property
    def key(self) -> bytes:
        """Key of the record."""
        return gateway_key(self.gateway)


Status: TypeAlias = WorkerStatus | GatewayStatus


def worker_key(worker: str, model: str) -> bytes:
    """Return the key of a worker's word about a model: ``worker/<worker id>/<model>``.

    Raises:
        ValueError: The worker id holds a slash, which would make the key ambiguous.
    """
    if "/" in worker or not worker:
        raise ValueError(f"worker id {worker!r} is empty or holds a slash")
    return f"worker/{worker}/{model}".encode()


def gateway_key(gateway: str) -> bytes:
    """Return the key of a gateway's word: ``gateway/<gateway id>``."""
    return f"gateway/{gateway}".encode()


def encode_status(status: Status) -> bytes:
    """Return the value of a status record."""
    if isinstance(status, GatewayStatus):
        body = _plain(status)
    else:
        body = _plain(status, skip=("versions", "queues", "sequences"))
        body["versions"] = [_version_json(version) for version in status.versions]
        body["queues"] = [_plain(queue) for queue in status.queues]
        if status.sequences is not None:
            body["sequences"] = _plain(status.sequences)
    return json.dumps(body, separators=(",", ":")).encode()


def decode_status(key: bytes, value: bytes) -> Status | None:
    """Read a status record; None where the key is of a kind that this release does not know.

    Raises:
        ValueError: It is no status: broken JSON, or a field of the wrong type. Count and skip it.
    """
    kind, _, rest = key.partition(b"/")
    if kind not in (b"worker", b"gateway") or not rest:
        return None
    try:
        body = _object(json.loads(value))
        if kind == b"gateway":
            return _gateway_status(body)
        return _worker_status(body)
    except (TypeError, KeyError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"status record {key!r} cannot be read: {error}") from error


def _plain(item: Any, skip: Iterable[str] = ()) -> dict[str, Any]:
    return {f.name: getattr(item, f.name) for f in fields(item) if f.name not in skip}


def _version_json(version: VersionStatus) -> dict[str, Any]:
    body = _plain(version, skip=("counts", "config"))
    if version.config is not None:
        body["config"] = version.config
    body["counts"] = _plain(version.counts)
    return body


def _typed(body: JsonObject, name: str, kind: type, default: Any) -> Any:
    """Return a field of the given JSON type, or the default where it is missing."""
    value = body.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"field '{name}' is {value!r}, expected {kind.__name__}")
    return value


def _required(body: JsonObject, name: str, kind: type) -> Any:
    return _typed(body, name, kind, None)


def _ints(body: JsonObject, name: str) -> tuple[int, ...]:
    return tuple(_typed({name: item}, name, int, None) for item in _typed(body, name, list, []))


def _object(item: object) -> JsonObject:
    """Return a JSON value that must be an object."""
    if not isinstance(item, dict):
        raise TypeError(f"{item!r} is no object")
    return item


def _gateway_status(body: JsonObject) -> GatewayStatus:
    return GatewayStatus(
        gateway=_required(body, "gateway", str),
        at_ms=_required(body, "at_ms", int),
        reply_partitions=_ints(body, "reply_partitions"),
        interval_ms=_typed(body, "interval_ms", int, DEFAULT_INTERVAL_MS),
    )


def _worker_status(body: JsonObject) -> WorkerStatus:
    return WorkerStatus(
        worker=_required(body, "worker", str),
        model=_required(body, "model", str),
        at_ms=_required(body, "at_ms", int),
        requests_topic=_typed(body, "requests_topic", str, ""),
        results_topic=_typed(body, "results_topic", str, ""),
        partitions=_typed(body, "partitions", int, 0),
        assigned=_ints(body, "assigned"),
        versions=tuple(_version(item) for item in _typed(body, "versions", list, [])),
        queues=tuple(_queue(item) for item in _typed(body, "queues", list, [])),
        draining=_typed(body, "draining", bool, False),
        guarantee=_typed(body, "guarantee", str, ""),
        interval_ms=_typed(body, "interval_ms", int, DEFAULT_INTERVAL_MS),
        url=_typed(body, "url", str, ""),
        sequences=_sequence_counts(body.get("sequences")),
    )


def _sequence_counts(item: object) -> SequenceCounts | None:
    if item is None:
        return None
    body = _object(item)
    return SequenceCounts(**{f.name: _typed(body, f.name, int, 0) for f in fields(SequenceCounts)})


def _version(item: object) -> VersionStatus:
    body = _object(item)
    config = body.get("config")
    if config is not None and not isinstance(config, dict):
        raise TypeError(f"field 'config' is {config!r}, expected an object")
    state = _required(body, "state", str)
    return VersionStatus(
        version=_required(body, "version", int),
        # A state that a later release adds is no reason to drop the whole record.
        state=ModelState(state) if state in ModelState.__members__ else ModelState.UNKNOWN,
        reason=_typed(body, "reason", str, ""),
        config=config,
        counts=_counts(_typed(body, "counts", dict, {})),
    )


def _counts(body: JsonObject) -> ModelCounts:
    counts = ModelCounts(**{name: _typed(body, name, int, 0) for name in _COUNT_NAMES})
    failure = _typed(body, "failure", dict, {})
    for reason in Failure:
        counts.failure[reason] = _typed(failure, reason, int, 0)
    return counts


def _queue(item: object) -> QueueStatus:
    body = _object(item)
    return QueueStatus(
        level=_required(body, "level", int),
        size=_typed(body, "size", int, 0),
        max_size=_typed(body, "max_size", int, 0),
    )
