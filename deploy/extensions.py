"""What Triton's extensions keep in a gateway process, made from its settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.settings import Settings
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.streams.extensions import Extensions
from headrace.streams.log_settings import LogSetting, LogSettings
from headrace.streams.shared_memory import SharedMemory
from headrace.streams.trace_file import TraceFile
from headrace.streams.trace_settings import TraceSetting, TraceSettings

EXTENSIONS = (
    "allow_client_shm",
    "max_shm_regions",
    "trace_file",
    "trace_level",
    "trace_rate",
    "trace_count",
    "trace_log_frequency",
)
"""The options of a command that runs a gateway."""


@contextmanager
def extensions_of(settings: Settings) -> Iterator[Extensions]:
    """Make them; leave when the last call has been answered: traces are written then, and regions closed.

    Raises:
        ConfigError: The trace settings cannot be.
    """
    file = TraceFile(Path(settings.trace_file)) if settings.trace_file else None
    setting = TraceSetting(
        is_on=settings.trace_level == "TIMESTAMPS",
        rate=settings.trace_rate,
        count=settings.trace_count,
        log_frequency=settings.trace_log_frequency,
    )
    memory = SharedMemory(
        is_allowed=settings.allow_client_shm, max_regions=settings.max_shm_regions
    )
    try:
        if file is not None and not Path(settings.trace_file).parent.is_dir():
            raise ConfigError(
                "its folder does not exist", field="--trace-file", value=settings.trace_file
            )
        traces = TraceSettings(setting, path=settings.trace_file, writer=file)
    except InvalidRequest as error:
        raise ConfigError(
            error.detail, field="--trace-level", value=settings.trace_level
        ) from error
    logs = LogSettings(
        LogSetting.from_level(settings.log_level), handlers=logging.getLogger().handlers
    )
    try:
        yield Extensions(traces, logs, memory)
    finally:
        traces.close()
        logs.close()
        memory.clear()
        if file is not None:
            file.close()
