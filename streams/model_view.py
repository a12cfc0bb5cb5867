"""What a fleet says about one model, merged from its workers' words: pure functions and the values they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.schemas.model_config import ModelConfig
from headrace.schemas.signature import Signature
from headrace.streams.json_fields import JsonObject
from headrace.streams.load import QueueLoad
from headrace.streams.status import ModelState, VersionStatus, WorkerStatus

UNLOADED = "unloaded"
"""The one reason that server readiness forgives (SEMANTICS SV-02)."""

UNHEALTHY = "an instance cannot execute"
"""The reason of a version that is loaded and whose backend does not work (SEMANTICS SV-04)."""

MAX_VERSION_DIGITS = 18
"""Digits of a version number that can exist; longer ones are not even parsed."""

LOADED = (ModelState.READY, ModelState.UNLOADING)
"""States of a version that is in memory: its metrics are shown (SEMANTICS MX-30)."""

_RANK = {
    ModelState.READY: 4,
    ModelState.LOADING: 3,
    ModelState.UNLOADING: 2,
    ModelState.UNAVAILABLE: 1,
    ModelState.UNKNOWN: 0,
}


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests for one ready version go, and what they must look like.

    Attributes:
        topic: The model's requests topic.
        partitions: Its partition count.
        config: Completed configuration.
        config_json: The same, as the config endpoint shows it (SEMANTICS PB-62).
        signature: Inputs and outputs.
        loads: Queue load by priority level; levels nobody reported are absent.
        mapped: Format of the topic's own records; ``""`` where they are V2 requests.
    """

    topic: str
    partitions: int
    config: ModelConfig
    config_json: JsonObject
    signature: Signature
    loads: Mapping[int, QueueLoad]
    mapped: str = ""

    def load(self, priority: int) -> QueueLoad | None:
        """Return the load of the queue that a request of this priority joins (SEMANTICS QT-06)."""
        batching = self.config.dynamic_batching
        if batching is None or batching.priority_levels == 0:
            return self.loads.get(0)
        in_range = 1 <= priority <= batching.priority_levels
        return self.loads.get(priority if in_range else batching.default_priority_level)


@dataclass(slots=True)
class ModelView:
    """What all workers together say about one model.

    Attributes:
        name: Model name.
        versions: Version → its best state over the fleet.
        newest: The newest word of a worker that takes work; None where there is none.
        valid_until_ms: When a worker's word turns stale and this must be worked out again.
    """

    name: str
    versions: dict[int, VersionStatus]
    newest: WorkerStatus | None
    valid_until_ms: int
    routes: dict[int, Route] = field(default_factory=dict)

    @property
    def ready_versions(self) -> list[int]:
        """READY versions, ascending."""
        return sorted(v for v, s in self.versions.items() if s.state is ModelState.READY)

    def is_unhealthy(self, number: int) -> bool:
        """Whether this version, or with 0 any, is loaded everywhere but works nowhere (SEMANTICS SV-05)."""
        asked = [status for v, status in self.versions.items() if number in (0, v)]
        return any(s.state is ModelState.UNAVAILABLE and s.reason == UNHEALTHY for s in asked)


def version_number(version: str) -> int:
    """Return the number of a version, 0 for ``""``, -1 for what cannot exist."""
    if not version:
        return 0
    if not (version.isascii() and version.isdigit()) or len(version) > MAX_VERSION_DIGITS:
        return -1
    return int(version) or -1


def metric_tags(config: JsonObject | None) -> Mapping[str, str]:
    """Return the ``metric_tags`` of a configuration in JSON form; what is no text is left out."""
    tags = (config or {}).get("metric_tags")
    if not isinstance(tags, dict):
        return {}
    return {name: value for name, value in tags.items() if isinstance(value, str)}


def capacity(config: JsonObject | None) -> int:
    """Return how many requests may execute at once in one worker: instances times batch size."""
    if config is None:
        return 0
    groups = config.get("instance_group")
    counts = [g.get("count") for g in groups or () if isinstance(g, dict)]
    instances = sum(count for count in counts if isinstance(count, int))
    size = config.get("max_batch_size")
    return max(1, instances) * max(1, size if isinstance(size, int) else 0)


def merged(statuses: Iterable[WorkerStatus]) -> dict[int, VersionStatus]:
    """Return each version's best state over live workers, the newer word where two are equal."""
    best: dict[int, VersionStatus] = {}
    for status in statuses:
        for version in status.versions:
            seen = version
            if status.draining and version.state is ModelState.READY:
                seen = VersionStatus(
                    version.version, ModelState.UNLOADING, "draining", version.config
                )
            other = best.get(seen.version)
            if other is None or _weight(seen) >= _weight(other):
                best[seen.version] = seen
    if len(best) > 1:
        best.pop(0, None)
    return best


def _weight(version: VersionStatus) -> tuple[int, bool]:
    # A failure outweighs an unload: it is what somebody has to mend.
    return _RANK[version.state], version.reason != UNLOADED


def buried(statuses: Iterable[WorkerStatus]) -> dict[int, VersionStatus]:
    """Return the versions of dead workers, all unavailable."""
    return {
        version.version: VersionStatus(
            version.version,
            ModelState.UNAVAILABLE,
            f"worker '{status.worker}' has stopped reporting",
            version.config,
        )
        for status in statuses
        for version in status.versions
    }


def is_view_ready(view: ModelView) -> bool:
    """Whether every version is READY or was unloaded on purpose; a model without any is not ready (SV-02)."""
    return bool(view.versions) and all(
        status.state is ModelState.READY or status.reason == UNLOADED
        for status in view.versions.values()
    )
