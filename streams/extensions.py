"""What Triton's extensions keep in one gateway, and which of them it offers (SEMANTICS PB-60).

These settings hold for the process that was asked, as with Triton: each of several gateways has its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.streams.log_settings import LogSettings
from headrace.streams.shared_memory import SharedMemory
from headrace.streams.trace_settings import TraceSettings


@dataclass(frozen=True, slots=True)
class Extensions:
    """What clients may set at a gateway; HTTP and gRPC serve the same.

    Attributes:
        traces: Trace settings.
        logs: Logging settings.
        memory: Regions of system shared memory.
    """

    traces: TraceSettings = field(default_factory=TraceSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    memory: SharedMemory = field(default_factory=SharedMemory)

    def names(self) -> list[str]:
        """Return the extensions that this gateway offers, by Triton's names and in its order."""
        return [
            "classification",
            "sequence",
            "model_repository",
            "schedule_policy",
            "model_configuration",
            *(["system_shared_memory"] if self.memory.is_allowed else []),
            "binary_tensor_data",
            "parameters",
            "statistics",
            "trace",
            "logging",
        ]
