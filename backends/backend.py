"""The backend port: what a runtime must offer to serve a model, and how it is found.

A backend is a class named by an entry point of the group ``headrace.backends``, so any package can bring one.
`Backend.load` reads the weights once; each `Instance` is a copy that executes one batch at a time, blocking, in
a thread of its own. Backends raise `headrace.schemas.errors.BackendError`, translated from the runtime's own
exceptions with ``from exc``; or a kind of it that says more: `OutOfMemory` (fewer rows may fit), `Retriable` (the same
request may succeed later) or `BackendUnavailable` (so may the whole batch, whatever is in it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import InstanceKind, ModelConfig

GROUP = "headrace.backends"
"""Entry-point group in which backends are found."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where an instance runs: ``KIND_CPU``, ``KIND_GPU`` with its number, or ``KIND_MODEL`` (the model decides)."""

    kind: InstanceKind
    id: int = 0


class Instance(Protocol):
    """One copy of a model version that executes.

    Attributes:
        name: As the instance group names it, such as ``mlp_0_1``.
        concurrency: Batches that it takes at once; above 1 only for asynchronous runtimes.
        device: What it really runs on, as the runtime reports it, for people (``CPUExecutionProvider``).
    """

    name: str
    concurrency: int
    device: str

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Run one batch and emit 0..n responses; blocking, called from the instance's own thread.

        What a decoupled model emits leaves at once where the guarantee is at_least_once, so emit it when it is there;
        ``emit`` waits where the log takes less than the model gives. Between two responses it may look at
        `Entry.is_cancelled` and give nothing more to who is gone (SEMANTICS CX-01).

        Of a sequence model `Batch.inputs` holds its control and state tensors too, and what becomes of the declared
        states goes into `Responses.states`; one that is left out keeps its value (SEMANTICS SB-06, SB-07, SB-10).

        Raises:
            BackendError: The whole batch failed. Nothing emitted so far counts, but for what has left: run again, a
                request is given only what comes behind that.
        """

    def healthy(self) -> bool:
        """Whether it can execute."""

    def close(self) -> None:
        """Free what it holds; not called while it executes, and maybe called again."""


class Model(Protocol):
    """One loaded model version: weights and what its instances share.

    Attributes:
        repeatable: A failed batch may be split and run again; False where the model keeps memory of its own.
    """

    repeatable: bool

    def instance(self, name: str, device: Device) -> Instance:
        """Make an instance on a device.

        Raises:
            ConfigError: The device is not to be had.
        """

    def close(self) -> None:
        """Free the weights, after all instances are closed."""


class Backend(Protocol):
    """A runtime. One object per process; constructed without arguments and without doing work.

    Attributes:
        name: As in the configuration's ``backend``.
        default_filename: Model file of a version (SEMANTICS MR-08); ``""`` where none is needed.
        default_cpu_count: Instances of a CPU group that names no count (MR-30).
        default_max_batch_size: Rows per batch that `complete` chooses where the model allows batching and the
            user says nothing (AC-02); set it before loading.
        supports_decoupled: `Instance.execute` may emit 0..n responses; else a decoupled model is refused.
    """

    name: str
    default_filename: str
    default_cpu_count: int
    default_max_batch_size: int
    supports_decoupled: bool

    def gpus(self) -> Sequence[int]:
        """Return the numbers of the GPUs that instances can run on; empty where there are none."""

    def complete(self, config: ModelConfig, path: Path) -> ModelConfig:
        """Return the configuration with what the model file itself says filled in (SEMANTICS AC-01, AC-02).

        Args:
            config: As parsed; user values win or must agree.
            path: The model file or directory of one version.

        Raises:
            ConfigError: The file cannot be read, or contradicts the configuration.
        """

    def load(self, config: ModelConfig, path: Path) -> Model:
        """Load one version's weights.

        Raises:
            ConfigError: The file cannot be loaded or a setting is not supported.
        """


def backend_names() -> tuple[str, ...]:
    """Return the names of all installed backends, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def find_backend(name: str) -> Backend:
    """Return a new backend object by name.

    Raises:
        ConfigError: None is installed under that name, or importing it fails (a missing extra is named).
    """
    for point in entry_points(group=GROUP, name=name):
        try:
            made: Callable[[], Backend] = point.load()
        except ImportError as exc:
            extra = EXTRAS.get(name)
            hint = f'; install it with: pip install "headrace[{extra}]"' if extra else ""
            raise ConfigError(
                f"the backend's runtime is not installed ({exc}){hint}",
                field="backend",
                value=name,
            ) from exc
        return made()
    raise ConfigError(
        f"no such backend is installed, expected one of {', '.join(backend_names())}",
        field="backend",
        value=name,
    )


EXTRAS: Mapping[str, str] = {
    "onnxruntime": "onnx",
    "pytorch": "torch",
    "tensorrt": "tensorrt",
    "tensorflow": "tensorflow",
}
"""Backend name → pip extra that brings its runtime."""
