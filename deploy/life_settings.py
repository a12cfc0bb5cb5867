"""The settings of how a process says that it lives, and how it stops; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

PROCESS: dict[str, Any] = {"panel": "Process", "flag": False}

MIN_INTERVALS = 3
"""Heartbeats that must fit into the time-out: one that comes late is no death."""


class LifeSettings(BaseSettings):
    """For how long a process's word counts, see `headrace.streams.status`, and what it does from SIGTERM to its end."""

    status_interval_ms: int = Field(
        1000,
        ge=100,
        description="Milliseconds between two status records of a worker or gateway.",
        json_schema_extra=PROCESS,
    )
    status_timeout_ms: int = Field(
        10_000,
        ge=300,
        validate_default=True,
        description="Milliseconds after which this worker or gateway counts as dead where it says nothing: calls for "
        "models that nobody else serves are then refused with 503. At least three times the interval.",
        json_schema_extra=PROCESS,
    )
    stop_delay_secs: float = Field(
        0.0,
        ge=0,
        description="Seconds on stop in which readiness is off and everything else goes on, so that load balancers "
        "stop sending calls before they are refused.",
        json_schema_extra=PROCESS,
    )
    exit_timeout_secs: int = Field(
        30,
        ge=0,
        description="Seconds to finish what is in flight on stop.",
        json_schema_extra=PROCESS,
    )

    @field_validator("status_timeout_ms")
    @classmethod
    def _check_timeout(cls, value: int, info: ValidationInfo) -> int:
        interval: int = info.data.get("status_interval_ms", 0)
        if value < MIN_INTERVALS * interval:
            raise ValueError(
                f"expected at least {MIN_INTERVALS} times --status-interval-ms, {MIN_INTERVALS * interval}"
            )
        return value
