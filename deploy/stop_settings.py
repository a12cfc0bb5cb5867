"""The settings of a graceful stop; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings

PROCESS: dict[str, Any] = {"panel": "Process", "flag": False}


class StopSettings(BaseSettings):
    """What a process does between SIGTERM and its end."""

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
