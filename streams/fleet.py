"""What the whole fleet has, worked out from the status records of its workers and gateways.

Pure: records go in as they are read, the time is passed in, answers come out. A gateway and the tools know models
from here only, so nothing but the status topic has to be shared.

A writer counts as dead when its word is older than it says itself (``timeout_ms``). A word that arrives while we watch
counts from its arrival, so a worker whose clock is wrong still lives; one that was read on start counts from the
time written in it. Dead workers' words are kept for a while, to answer "not ready" rather than "unknown".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.schemas.config_text import config_from_json
from headrace.schemas.errors import ConfigError, NotFound, Reason, Unavailable
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.signature import Signature
from headrace.streams.counts import ModelCounts
from headrace.streams.json_fields import JsonObject
from headrace.streams.load import QueueLoad
from headrace.streams.metrics_text import Series
from headrace.streams.model_view import (
    LOADED,
    ModelView,
    Route,
    buried,
    capacity,
    is_view_ready,
    merged,
    metric_tags,
    version_number,
)
from headrace.streams.status import (
    GatewayStatus,
    ModelState,
    Status,
    WorkerStatus,
    decode_status,
    gateway_key,
)

DEFAULT_FORGET_AFTER_MS = 3_600_000
"""Milliseconds after its death at which a writer's word is forgotten and its key may be tombstoned."""

MAX_NAMED_MODELS = 10
"""Known models that a "not found" sentence lists at most."""


@dataclass(slots=True)
class _Word:
    status: Status
    until_ms: int
    order: int


class Fleet:
    """The registry of status records. See the module's docstring.

    Attributes:
        corrupt: Records that could not be read and were skipped.
    """

    def __init__(self, *, forget_after_ms: int = DEFAULT_FORGET_AFTER_MS) -> None:
        """Start empty; ``forget_after_ms`` bounds how long the dead are remembered."""
        self.corrupt = 0
        self._forget_after_ms = forget_after_ms
        self._applied = 0
        self._words: dict[bytes, _Word] = {}
        self._keys: dict[str, set[bytes]] = {}
        self._views: dict[str, ModelView] = {}
        self._loads: dict[str, dict[int, QueueLoad]] = {}
        self._compiled: dict[tuple[str, int], tuple[JsonObject, ModelConfig, Signature]] = {}

    def __repr__(self) -> str:
        """Show how much is known."""
        return f"Fleet({len(self._words)} words, {len(self._keys)} models, {self.corrupt} corrupt)"

    def apply(
        self, key: bytes | None, value: bytes | None, now_ms: int, *, live: bool = True
    ) -> None:
        """Take in one status record.

        Args:
            key: Its key.
            value: Its value; None is a tombstone and drops the writer's word.
            now_ms: Milliseconds since the epoch.
            live: It was written while we watched, so its arrival proves that the writer lives.
        """
        if key is None:
            self.corrupt += 1
            return
        if value is None:
            self._drop(key, now_ms)
            return
        try:
            status = decode_status(key, value)
        except ValueError:
            self.corrupt += 1
            return
        if status is None:
            return
        if status.key != key:
            self.corrupt += 1
            return
        since_ms = now_ms if live else min(status.at_ms, now_ms)
        until_ms = since_ms + status.timeout_ms
        self._applied += 1
        order = self._applied
        known = self._words.get(key)
        if known is not None and _same_claim(known.status, status):
            order = known.order  # a heartbeat is no new claim
        self._words[key] = _Word(status, until_ms, order)
        if isinstance(status, WorkerStatus):
            self._keys.setdefault(status.model, set()).add(key)
            self._refresh(status.model, now_ms)

    def forget(self, now_ms: int) -> list[bytes]:
        """Drop the words of writers that have been dead for long; return their keys, to be tombstoned."""
        limit = now_ms - self._forget_after_ms
        gone = [key for key, word in self._words.items() if word.until_ms < limit]
        for key in gone:
            self._drop(key, now_ms)
        return gone

    def models(self) -> list[str]:
        """Return the names of all known models, sorted."""
        return sorted(self._keys)

    def view(self, model: str, now_ms: int) -> ModelView | None:
        """Return what is known about a model, None where nothing is."""
        view = self._views.get(model)
        if view is not None and now_ms >= view.valid_until_ms:
            view = self._refresh(model, now_ms)
        return view

    def workers(self, model: str, now_ms: int) -> list[WorkerStatus]:
        """Return what the live workers of a model say, sorted by their names."""
        words = [self._words[key] for key in self._keys.get(model, ())]
        statuses = [w.status for w in words if w.until_ms > now_ms]
        return sorted((s for s in statuses if isinstance(s, WorkerStatus)), key=lambda s: s.worker)

    def route(self, model: str, version: str, now_ms: int) -> Route:
        """Look up a model version for a request; ``""`` is the highest READY one (SEMANTICS MR-07).

        Raises:
            NotFound: Unknown model or version, or no version is available (PB-33).
            Unavailable: The version is known and not READY, or no live worker serves the model.
        """
        view = self.view(model, now_ms)
        if view is None:
            raise NotFound(
                f"Request for unknown model: '{model}' is not found{self._known_models()}"
            )
        number = version_number(version)
        found = view.routes.get(number)
        if found is None:
            found = self._resolve(view, number, version)
            view.routes[number] = found
        return found

    def index(self, now_ms: int, *, only_ready: bool = False) -> list[dict[str, str]]:
        """Return the repository index (SEMANTICS PB-63), sorted by name and version."""
        items: list[dict[str, str]] = []
        for view in self._all(now_ms):
            if not view.versions and not only_ready:
                items.append({"name": view.name})
            for number, status in sorted(view.versions.items()):
                if only_ready and status.state is not ModelState.READY:
                    continue
                item = {"name": view.name}
                if number:
                    item["version"] = str(number)
                item["state"] = status.state.value
                if status.reason:
                    item["reason"] = status.reason
                items.append(item)
        return items

    def is_ready(self, now_ms: int, *, strict: bool = True) -> bool:
        """Whether the fleet is ready (SEMANTICS SV-02).

        Strict: at least one model is known, and every version of every model is READY, where one that was
        unloaded is forgiven. Not strict: always, for the caller itself is what must be ready then.
        """
        if not strict:
            return True
        return bool(self._keys) and all(is_view_ready(view) for view in self._all(now_ms))

    def series(self, now_ms: int) -> list[Series]:
        """Return the counts of every loaded version, summed over live workers (SEMANTICS MX-30, KX-11).

        Each worker counts for itself; a worker that ends takes its part of the sums along, which Prometheus
        reads as a counter's restart.
        """
        totals: dict[tuple[str, int], Series] = {}
        for word in self._words.values():
            status = word.status
            if isinstance(status, GatewayStatus) or word.until_ms <= now_ms:
                continue
            for version in status.versions:
                if version.version < 1 or version.state not in LOADED:
                    continue
                key = (status.model, version.version)
                if key not in totals:
                    totals[key] = Series(*key, metric_tags(version.config), ModelCounts())
                totals[key].counts.add(version.counts)
        return [totals[key] for key in sorted(totals)]

    def claimed(self, gateway: str) -> tuple[int, ...]:
        """Return the replies partitions that a gateway's newest word claims."""
        word = self._words.get(gateway_key(gateway))
        status = word.status if word is not None else None
        return status.reply_partitions if isinstance(status, GatewayStatus) else ()

    def claims(
        self, now_ms: int, *, besides: str = "", only_earlier: bool = False
    ) -> Counter[int]:
        """Return how many live gateways read each replies partition.

        Args:
            now_ms: Milliseconds since the epoch.
            besides: A gateway that is not counted.
            only_earlier: Count only claims that were made before that one's.
        """
        own = self._words.get(gateway_key(besides))
        limit = own.order if only_earlier and own else 2**62
        claims: Counter[int] = Counter()
        for word in self._words.values():
            status = word.status
            if (
                isinstance(status, GatewayStatus)
                and status.gateway != besides
                and word.order < limit
                and word.until_ms > now_ms
            ):
                claims.update(status.reply_partitions)
        return claims

    def _drop(self, key: bytes, now_ms: int) -> None:
        word = self._words.pop(key, None)
        if word is None or isinstance(word.status, GatewayStatus):
            return
        model = word.status.model
        keys = self._keys[model]
        keys.discard(key)
        if keys:
            self._refresh(model, now_ms)
            return
        del self._keys[model]
        self._views.pop(model, None)
        self._loads.pop(model, None)
        for compiled in [pair for pair in self._compiled if pair[0] == model]:
            del self._compiled[compiled]

    def _all(self, now_ms: int) -> Iterable[ModelView]:
        for model in self.models():
            view = self.view(model, now_ms)
            if view is not None:
                yield view

    def _refresh(self, model: str, now_ms: int) -> ModelView:
        """Work out a model's view again, and reset its queue loads to what workers say now."""
        words = [self._words[key] for key in self._keys[model]]
        live = [word for word in words if word.until_ms > now_ms]
        statuses = sorted(
            (w.status for w in live if isinstance(w.status, WorkerStatus)), key=lambda s: s.at_ms
        )
        dead = [w.status for w in words if isinstance(w.status, WorkerStatus)]
        taking = [status for status in statuses if not status.draining]
        view = ModelView(
            name=model,
            versions=merged(statuses) if statuses else buried(dead),
            newest=taking[-1] if taking else None,
            valid_until_ms=min((word.until_ms for word in live), default=2**62),
        )
        self._views[model] = view
        self._reset_loads(model, taking)
        return view

    def _reset_loads(self, model: str, taking: Iterable[WorkerStatus]) -> None:
        queues: dict[int, list[tuple[int, int, int]]] = {}
        for status in taking:
            running = sum(capacity(version.config) for version in status.versions)
            for queue in status.queues:
                queues.setdefault(queue.level, []).append((queue.size, queue.max_size, running))
        loads = self._loads.setdefault(model, {})
        for level in loads.keys() - queues.keys():
            del loads[level]
        for level, told in queues.items():
            sizes, limits, capacities = zip(*told, strict=True)
            loads.setdefault(level, QueueLoad()).reset(
                waiting=sum(sizes),
                limit=sum(limits) if all(limits) else 0,
                capacity=sum(capacities),
            )

    def _resolve(self, view: ModelView, number: int, asked: str) -> Route:
        if number < 0 or (number > 0 and number not in view.versions):
            raise NotFound(
                f"Request for unknown model: '{view.name}' version {asked} is not found",
                reason=Reason.UNKNOWN_VERSION,
            )
        if view.newest is None:
            raise Unavailable(
                f"model '{view.name}' is not at ready state: no live worker serves it"
            )
        ready = view.ready_versions
        if number == 0 and not ready:
            raise NotFound(
                f"Request for unknown model: '{view.name}' has no available versions",
                reason=Reason.UNKNOWN_VERSION,
            )
        if number > 0 and number not in ready:
            raise Unavailable(
                f"Request for unknown model: '{view.name}' version {number} is not at ready state"
            )
        return self._route(view, view.newest, number or ready[-1])

    def _route(self, view: ModelView, newest: WorkerStatus, number: int) -> Route:
        config_json = view.versions[number].config or {}
        key = (view.name, number)
        compiled = self._compiled.get(key)
        if compiled is None or compiled[0] != config_json:
            try:
                config = config_from_json(config_json)
            except ConfigError as error:
                raise Unavailable(
                    f"model '{view.name}' version {number} is not at ready state: its worker's "
                    f"configuration cannot be read here: {error}"
                ) from error
            compiled = (config_json, config, Signature(config, number))
            self._compiled[key] = compiled
        return Route(
            topic=newest.requests_topic,
            partitions=newest.partitions,
            config=compiled[1],
            config_json=config_json,
            signature=compiled[2],
            loads=self._loads.get(view.name, {}),
            mapped=newest.mapped,
        )

    def _known_models(self) -> str:
        """Return a clause that lists known models, for somebody who mistyped one (FAULTS B77)."""
        names = self.models()
        if not names:
            return ", no worker has announced any model"
        more = (
            f" and {len(names) - MAX_NAMED_MODELS} more" if len(names) > MAX_NAMED_MODELS else ""
        )
        return f", known models: {', '.join(names[:MAX_NAMED_MODELS])}{more}"


def _same_claim(one: Status, other: Status) -> bool:
    return (
        isinstance(one, GatewayStatus)
        and isinstance(other, GatewayStatus)
        and one.reply_partitions == other.reply_partitions
    )
