"""The bounds of a gateway's open calls; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any

from headrace.streams.gateway import DEFAULT_GATHER_MS
from headrace.streams.streamed import DEFAULT_MAX_STREAM_BYTES
from pydantic import Field
from pydantic_settings import BaseSettings

GATEWAY: dict[str, Any] = {"panel": "Gateway", "flag": False}


class CallSettings(BaseSettings):
    """How many calls may be open, and what a gateway does about clients that read their streams slowly."""

    max_pending: int = Field(
        1024,
        ge=1,
        description="Calls that may wait for their answers; above, 503 with Retry-After.",
        json_schema_extra=GATEWAY,
    )
    gather_ms: int = Field(
        DEFAULT_GATHER_MS,
        ge=0,
        le=1000,
        description="Milliseconds that requests may gather to be produced together while many calls are open and more "
        "come; 0 produces each at once.",
        json_schema_extra=GATEWAY,
    )
    max_stream_bytes: int = Field(
        DEFAULT_MAX_STREAM_BYTES,
        ge=1,
        description="Bytes of responses that may wait for the client of one stream, and 16 times that for those of "
        "all; above, the stream ends with an error and its request is cancelled.",
        json_schema_extra=GATEWAY,
    )
