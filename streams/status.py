"""What each worker and gateway says about itself, as records on the compacted status topic.

Workers and gateways write, gateways and tools read. A key names the writer and what it speaks of, so that
compaction keeps the newest word of each; a clean stop leaves a tombstone. Values are JSON: fields that a later
release adds are ignored, missing ones take their default, and what is no status at all is the caller's to count
and skip. Everything here is pure; `headrace.streams.fleet` keeps what was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias

from headrace.streams.counts import ModelCounts, counts_json, counts_of
from headrace.streams.json_fields import JsonObject, object_of, required, typed, whole_numbers

DEFAULT_INTERVAL_MS = 1_000
"""Milliseconds between two status records of one writer, unless configured."""

DEFAULT_TIMEOUT_MS = 10_000
"""Milliseconds after which a writer that says nothing counts as dead, unless configured. Ten heartbeats, for on a busy
machine several in a row come late, and a worker that is taken for dead costs every call; one that really died costs
only those that no other worker takes over, for so long."""


class ModelState(StrEnum):
    """State of a model version, as the repository index spells it (SEMANTICS PB-63)."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


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
        timeout_ms: Milliseconds for which this word counts; newer ones come long before.
        url: Root of the worker's own port for others to reach; ``""`` where it has none.
        sequences: None where the model's requests are independent of each other.
        mapped: Format of the topic's own records, such as ``json``; ``""`` where they are V2 requests.
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
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    url: str = ""
    sequences: SequenceCounts | None = None
    mapped: str = ""

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
        timeout_ms: Milliseconds for which this word counts; newer ones come long before.
    """

    gateway: str
    at_ms: int
    reply_partitions: tuple[int, ...] = ()
    timeout_ms: int = DEFAULT_TIMEOUT_MS

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
        body = object_of(json.loads(value))
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
    body["counts"] = counts_json(version.counts)
    return body


def _gateway_status(body: JsonObject) -> GatewayStatus:
    return GatewayStatus(
        gateway=required(body, "gateway", str),
        at_ms=required(body, "at_ms", int),
        reply_partitions=whole_numbers(body, "reply_partitions"),
        timeout_ms=typed(body, "timeout_ms", int, DEFAULT_TIMEOUT_MS),
    )


def _worker_status(body: JsonObject) -> WorkerStatus:
    return WorkerStatus(
        worker=required(body, "worker", str),
        model=required(body, "model", str),
        at_ms=required(body, "at_ms", int),
        requests_topic=typed(body, "requests_topic", str, ""),
        results_topic=typed(body, "results_topic", str, ""),
        partitions=typed(body, "partitions", int, 0),
        assigned=whole_numbers(body, "assigned"),
        versions=tuple(_version(item) for item in typed(body, "versions", list, [])),
        queues=tuple(_queue(item) for item in typed(body, "queues", list, [])),
        draining=typed(body, "draining", bool, False),
        guarantee=typed(body, "guarantee", str, ""),
        timeout_ms=typed(body, "timeout_ms", int, DEFAULT_TIMEOUT_MS),
        url=typed(body, "url", str, ""),
        sequences=_sequence_counts(body.get("sequences")),
        mapped=typed(body, "mapped", str, ""),
    )


def _sequence_counts(item: object) -> SequenceCounts | None:
    if item is None:
        return None
    body = object_of(item)
    return SequenceCounts(**{f.name: typed(body, f.name, int, 0) for f in fields(SequenceCounts)})


def _version(item: object) -> VersionStatus:
    body = object_of(item)
    config = body.get("config")
    if config is not None and not isinstance(config, dict):
        raise TypeError(f"field 'config' is {config!r}, expected an object")
    state = required(body, "state", str)
    return VersionStatus(
        version=required(body, "version", int),
        # A state that a later release adds is no reason to drop the whole record.
        state=ModelState(state) if state in ModelState.__members__ else ModelState.UNKNOWN,
        reason=typed(body, "reason", str, ""),
        config=config,
        counts=counts_of(typed(body, "counts", dict, {})),
    )


def _queue(item: object) -> QueueStatus:
    body = object_of(item)
    return QueueStatus(
        level=required(body, "level", int),
        size=typed(body, "size", int, 0),
        max_size=typed(body, "max_size", int, 0),
    )
