"""The settings of Triton's extensions at a gateway; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings

GATEWAY: dict[str, Any] = {"panel": "Gateway", "flag": False}


class ExtensionSettings(BaseSettings):
    """Shared memory and traces, see `headrace.streams.shared_memory` and `headrace.streams.trace_settings`."""

    allow_client_shm: bool = Field(
        default=False,
        description="Let clients register system shared memory, from which their tensors are read and to which "
        "answers are written: whoever may call reads and writes objects in /dev/shm that this process may.",
        json_schema_extra=GATEWAY,
    )
    max_shm_regions: int = Field(
        256,
        ge=1,
        description="Regions of shared memory that may be registered at once; each holds an open file.",
        json_schema_extra=GATEWAY,
    )
    trace_file: str = Field(
        "",
        description="File that traces of requests are written to, as JSON in Triton's form; none traces nothing.",
        json_schema_extra=GATEWAY,
    )
    trace_level: Literal["OFF", "TIMESTAMPS"] = Field(
        "OFF",
        description="What is traced of a request, until a client changes it by the trace extension.",
        json_schema_extra=GATEWAY,
    )
    trace_rate: int = Field(
        1000,
        ge=0,
        le=2**32 - 1,
        description="Every so many requests one is traced.",
        json_schema_extra=GATEWAY,
    )
    trace_count: int = Field(
        -1,
        ge=-1,
        le=2**31 - 1,
        description="Traces that are collected until it ends; -1 is no end.",
        json_schema_extra=GATEWAY,
    )
    trace_log_frequency: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Traces that are written together to a file of their own, whose name gets a number; 0 is one file "
        "for all.",
        json_schema_extra=GATEWAY,
    )
