"""For how long a model's answers are remembered, and how many: its parameter and the worker's settings (P-17)."""

from __future__ import annotations

from headrace.consumers.key_table import KeyBounds
from headrace.consumers.remembered_answers import RememberedAnswers
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.schemas.config_parameters import read_idempotency_window_ms
from headrace.schemas.model_config import ModelConfig
from headrace.streams.log import Log, Mode
from headrace.streams.topology import Topology


def window_ms(config: ModelConfig, settings: WorkerSettings) -> int:
    """Return for how long, ms; 0: not at all."""
    own = read_idempotency_window_ms(config.parameters, "")
    return round(settings.idempotency_window_s * 1000) if own is None else own


def key_bounds(config: ModelConfig, settings: WorkerSettings) -> KeyBounds:
    """Return how much is remembered."""
    return KeyBounds(
        window_ms=window_ms(config, settings),
        keys=settings.max_idempotency_keys,
        size=settings.max_idempotency_bytes,
        answer_size=settings.max_idempotency_bytes,
        sequence_keys=settings.max_sequence_keys,
        sequence_size=settings.max_sequence_key_bytes,
    )


def remembered_answers(
    config: ModelConfig,
    log: Log,
    topology: Topology,
    settings: WorkerSettings,
    *,
    clock: Clock,
    mode: Mode,
) -> RememberedAnswers | None:
    """Make what remembers a model's answers; None where nothing is, or the steps of its sequences remember theirs."""
    bounds = key_bounds(config, settings)
    if not bounds.window_ms or config.sequence_batching is not None:
        return None
    topic = topology.answers(config.name)
    return RememberedAnswers(log, topic, bounds, mode=mode, wall_ms=clock.wall_ms)
