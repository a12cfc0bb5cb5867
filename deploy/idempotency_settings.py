"""The settings of remembered answers; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings

KEYS: dict[str, Any] = {"panel": "Idempotency keys", "flag": False}


class IdempotencySettings(BaseSettings):
    """What is remembered under idempotency keys, see `headrace.consumers.settings.WorkerSettings`."""

    idempotency_window_secs: int = Field(
        3600,
        ge=0,
        description="Seconds that an answer is remembered under its request's idempotency key; 0 remembers none, and "
        "refuses requests with a key. A model's parameter idempotency_window_ms goes before it.",
        json_schema_extra=KEYS,
    )
    max_idempotency_keys: int = Field(
        10_000,
        ge=1,
        description="Keys that are remembered of a partition; above, the oldest are forgotten and counted.",
        json_schema_extra=KEYS,
    )
    max_idempotency_bytes: int = Field(
        16 * 2**20,
        ge=1,
        description="The same in bytes of the answers.",
        json_schema_extra=KEYS,
    )
    max_sequence_keys: int = Field(
        8,
        ge=1,
        description="Keys that are remembered of a sequence; above, the oldest are forgotten and counted.",
        json_schema_extra=KEYS,
    )
    max_sequence_key_bytes: int = Field(
        64 * 2**10,
        ge=0,
        description="The same in bytes of the answers, which are written with each snapshot of the sequence; 0 "
        "remembers none.",
        json_schema_extra=KEYS,
    )
