"""The settings of calls that are answered later; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings

ASYNC: dict[str, Any] = {"panel": "Gateway", "flag": False}


class AsyncSettings(BaseSettings):
    """Bounds of calls with ``Prefer: respond-async``, see `headrace.streams.async_table.AsyncBounds`."""

    async_window_secs: int = Field(
        3600,
        ge=1,
        description="Seconds that a call with Prefer: respond-async may wait for its answer, and its answer for its "
        "caller.",
        json_schema_extra=ASYNC,
    )
    max_async_calls: int = Field(
        10_000,
        ge=1,
        description="Such calls that are known at once, waiting or answered; above, the oldest answers are "
        "forgotten, and where all wait a new one gets 503 with Retry-After.",
        json_schema_extra=ASYNC,
    )
    max_async_bytes: int = Field(
        64 * 2**20,
        ge=1,
        description="Bytes of their answers that are kept; above, the oldest are let go and fetching one is 410.",
        json_schema_extra=ASYNC,
    )
