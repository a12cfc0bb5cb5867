"""What a version's configuration and the worker's settings make of its parts; used by the worker's composition."""

from __future__ import annotations

from headrace.consumers.batcher import Batcher
from headrace.consumers.default import DefaultBatcher
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.observe import ModelObserver
from headrace.consumers.recovery import FaultBounds
from headrace.consumers.retry import RetryBounds
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.supervision import Supervision
from headrace.repository.models import LoadedVersion
from headrace.schemas.config_parameters import read_execution_timeout_ms
from headrace.schemas.model_config import ModelConfig

NS = 1e9


def fault_bounds(config: ModelConfig, settings: WorkerSettings) -> FaultBounds:
    """Return what a model's parameters say about failing executions, else the worker's settings."""
    timeout_ms = read_execution_timeout_ms(config.parameters, "")
    timeout_s = settings.execution_timeout_s if timeout_ms is None else timeout_ms / 1000
    return FaultBounds(
        RetryBounds(
            settings.max_attempts,
            round(settings.retry_backoff_s * NS),
            round(settings.retry_backoff_max_s * NS),
        ),
        execution_timeout_ns=round(timeout_s * NS),
        ceiling_hold_ns=round(settings.memory_ceiling_s * NS),
    )


def supervision(
    loaded: LoadedVersion, scheduler: Scheduler, observer: ModelObserver, settings: WorkerSettings
) -> Supervision:
    """Return how the instances of a version are replaced."""
    return Supervision(
        renew=lambda number, closes: loaded.renew(number, closes=closes),
        changed=scheduler.dispatch_soon,
        restarted=observer.restarted,
        abandoned=observer.abandoned,
        exhausted=scheduler.fail,
        backoff_s=settings.retry_backoff_s,
        backoff_max_s=settings.restart_backoff_s,
        max_abandoned=settings.max_abandoned_executions,
        max_starved=settings.max_starved_executions,
        bound=loaded.config.sequence_batching is not None,
    )


def stage_rows(loaded: LoadedVersion) -> int:
    """Return the rows of a full batch where batches may be given out ahead; 0 where order may change until then.

    What a model remembers by itself must not be ahead of what it has run.
    """
    sequences = loaded.config.sequence_batching
    if sequences is not None:
        return loaded.config.max_batch_size if sequences.states else 0
    batching = loaded.config.dynamic_batching
    return 0 if batching is None or batching.priority_levels else loaded.config.max_batch_size


def make_batcher(loaded: LoadedVersion) -> Batcher:
    """Return the scheduler that a version's configuration asks for, where it has no sequences."""
    batching = loaded.config.dynamic_batching
    if batching is None:
        return DefaultBatcher(loaded.signature)
    return DynamicBatcher(loaded.signature, batching)
