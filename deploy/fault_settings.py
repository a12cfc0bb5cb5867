"""The settings of what a worker does about what fails or hangs; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings

WORKER: dict[str, Any] = {"panel": "Worker", "flag": False}


class FaultSettings(BaseSettings):
    """Retries, timeouts, memory errors and stuck partitions, see `headrace.consumers.settings.WorkerSettings`."""

    max_attempts: int = Field(
        3,
        ge=1,
        description="Tries of a request whose execution fails in a way that may pass (out of memory, timeout, an "
        "instance that died); then it is answered with the error and kept as a dead letter.",
        json_schema_extra=WORKER,
    )
    max_crashes: int = Field(
        3,
        ge=1,
        le=1000,
        description="Times that the worker may end while nothing but one request runs; then that request is answered "
        "with the error and kept as a dead letter. It begins after two ends in a row without progress; not on the "
        "embedded broker, which keeps no metadata of commits.",
        json_schema_extra=WORKER,
    )
    retry_backoff_ms: float = Field(
        100.0,
        ge=0,
        description="Milliseconds before the second try, doubled for each further one; also between replacements of "
        "a broken instance.",
        json_schema_extra=WORKER,
    )
    retry_backoff_max_ms: float = Field(
        5000.0,
        ge=0,
        description="Longest pause before a further try, milliseconds.",
        json_schema_extra=WORKER,
    )
    execution_timeout_ms: int = Field(
        0,
        ge=0,
        description="Milliseconds that one execution of a model may take; then it is given up and its instance "
        "replaced. 0 is any time. A model's parameter execution_timeout_ms goes before it.",
        json_schema_extra=WORKER,
    )
    max_abandoned_executions: int = Field(
        4,
        ge=0,
        description="Given-up executions of a model version that may hang in their threads while their instances are "
        "replaced; above, readiness falls, and when nothing can execute the worker ends with status 75.",
        json_schema_extra=WORKER,
    )
    max_starved_executions: int = Field(
        5,
        ge=1,
        description="Single requests in a row that run out of memory before their instance is replaced.",
        json_schema_extra=WORKER,
    )
    memory_ceiling_secs: float = Field(
        30.0,
        ge=0,
        description="Seconds that batches stay smaller after memory ran out, before they grow again by a step.",
        json_schema_extra=WORKER,
    )
    stall_timeout_secs: float = Field(
        20.0,
        gt=0,
        description="Seconds that a partition may have records and hand out none before readiness falls and it is "
        "fetched again; after three times as long the worker ends with status 75. Readiness falls as late where the "
        "brokers do not tell where partitions end, or the group not which are ours.",
        json_schema_extra=WORKER,
    )
