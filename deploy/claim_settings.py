"""The settings of values that no record can hold; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings

VALUES: dict[str, Any] = {"panel": "Large values", "flag": False}


class ClaimSettings(BaseSettings):
    """The claim-check store, see `headrace.streams.claims.ClaimBounds`."""

    claim_check_url: str = Field(
        "",
        description="Where values are kept that are too large for a record: a folder that all workers and gateways "
        "share, or a URL of a store that fsspec knows, such as s3://bucket/claims (without credentials: these come "
        "from FSSPEC_S3_… variables or the SDK). None answers such values as too large.",
        json_schema_extra=VALUES,
    )
    claim_check_above: int = Field(
        0,
        ge=0,
        description="Values with more bytes than this are stored; 0 stores those that a record of max.request.size "
        "cannot hold.",
        json_schema_extra=VALUES,
    )
    claim_check_max_bytes: int = Field(
        64 * 2**20,
        ge=1,
        description="Largest value that is stored or fetched, bytes.",
        json_schema_extra=VALUES,
    )
    claim_check_max_moving_bytes: int = Field(
        256 * 2**20,
        ge=1,
        description="Bytes of all values that a process stores or fetches at once.",
        json_schema_extra=VALUES,
    )
    claim_check_max_calls: int = Field(
        4,
        ge=1,
        description="Calls to the store at once, each in a thread.",
        json_schema_extra=VALUES,
    )
    claim_check_timeout_secs: float = Field(
        30.0,
        gt=0,
        description="Seconds that a call to the store may take, and that a failed one is tried again.",
        json_schema_extra=VALUES,
    )
    claim_check_ttl_secs: float = Field(
        7 * 24 * 3600.0,
        ge=0,
        description="Seconds after which workers remove values from the store; 0 never does, for stores with rules of "
        "their own. Longer than topics and dead letters are kept and re-driven.",
        json_schema_extra=VALUES,
    )
