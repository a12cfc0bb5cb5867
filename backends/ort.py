"""The one module that imports ONNX Runtime: opens sessions, runs them, and translates what they raise.

``onnxruntime.InferenceSession`` replaces providers that fail by the CPU, silently or with a line on the
console, both at load and at run time. Here neither happens: that fallback is off, and a session whose
providers are not the plan's is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import io
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from headrace.backends.onnx_providers import CUDA, Plan
from headrace.backends.onnx_settings import GraphLevel, SessionSettings
from headrace.backends.onnx_tensors import ModelTensor, ModelTensors
from headrace.backends.out_of_memory import is_out_of_memory
from headrace.schemas.errors import BackendError, ConfigError, OutOfMemory
from headrace.schemas.tensor import Array, Datatype
from onnxruntime.capi import onnxruntime_pybind11_state as states

logger = logging.getLogger(__name__)

# Its wheels report usage to their vendor over the network unless told not to; which models somebody serves is
# nobody else's business.
onnxruntime.disable_telemetry_events()

DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-training",
    "onnxruntime-migraphx",
    "onnxruntime-qnn",
)
"""Distributions that all install the package ``onnxruntime``: two of them overwrite each other's files."""

MAX_TEXT = 1_000
"""Characters of the runtime's own message that an error keeps."""

BFLOAT16 = 16
"""ONNX's number of the element type (``TensorProto.BFLOAT16``), for which numpy has no dtype."""

SEVERITY_ERROR = 3
SEVERITY_FATAL = 4

RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(
        error
        for error in vars(states).values()
        if isinstance(error, type) and issubclass(error, Exception)
    ),
    # What the binding raises itself: unknown names, objects that it cannot convert, texts that are no UTF-8.
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
)
"""Everything that ONNX Runtime raises at load or in a run; its own classes have no common parent."""

_GRAPH_LEVELS = {
    GraphLevel.DISABLE_ALL: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    GraphLevel.BASIC: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    GraphLevel.EXTENDED: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    GraphLevel.ALL: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def check_installation(installed: Iterable[str] | None = None) -> None:
    """Check that exactly one distribution brought the package ``onnxruntime``.

    Args:
        installed: Names of the distributions; None asks the environment.

    Raises:
        ConfigError: Several are installed; names them and what to uninstall.
    """
    found = [
        name
        for name in DISTRIBUTIONS
        if (_is_installed(name) if installed is None else name in installed)
    ]
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(found)} are installed together and overwrite each other's files, expected one "
            f"of them; uninstall all with: pip uninstall {' '.join(found)}, then install one again",
            field="backend",
            value="onnxruntime",
        )


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def available_providers() -> tuple[str, ...]:
    """Return the execution providers that the installed ONNX Runtime was built with."""
    return tuple(onnxruntime.get_available_providers())


def cuda_devices() -> tuple[int, ...]:
    """Return the numbers of the GPUs that CUDA offers this process, if this ONNX Runtime can use them.

    The driver is asked itself (it honours ``CUDA_VISIBLE_DEVICES``); ONNX Runtime only says what it was
    built with.
    """
    if CUDA not in available_providers():
        return ()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(range(count.value))


def usable_cores() -> int:
    """Return the CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Session:
    """An open model: weights on a device, ready to run. Runs may overlap.

    Attributes:
        tensors: What the model file declares.
        provider: The provider that the runtime prefers for its operators, as it reports itself.
    """

    __slots__ = ("_bits", "_is_plain", "_outputs", "_session", "provider", "tensors")

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        """Read the tensors of an open session."""
        self._session = session
        self.tensors = ModelTensors(
            inputs=_tensors(session.get_inputs()),
            optional=_tensors(session.get_overridable_initializers()),
            outputs=_tensors(session.get_outputs()),
        )
        self.provider = str(session.get_providers()[0])
        declared = (*self.tensors.inputs, *self.tensors.optional, *self.tensors.outputs)
        self._bits = {t.name for t in declared if t.datatype is Datatype.BF16}
        self._is_plain = not self._bits
        self._outputs = [tensor.name for tensor in self.tensors.outputs]

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: object
    ) -> Sequence[Array]:
        """Run the model once; blocking, without the interpreter's lock.

        Args:
            names: Outputs to compute, not empty.
            feeds: Input name → array; BF16 as bit patterns, BYTES as text objects.
            options: Made by `run_options`.

        Returns:
            One array per name, owned by the caller; BF16 as bit patterns, BYTES as text objects.

        Raises:
            Exception: One of `RUNTIME_ERRORS`, which the caller gives to `translate`.
        """
        if self._is_plain:
            found: Sequence[Array] = self._session.run(names, feeds, options)
            return found
        return self._run_values(names, feeds, options)

    def _run_values(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: object
    ) -> Sequence[Array]:
        """Run with the runtime's own values, the only ones that can hold a BF16 tensor."""
        make = onnxruntime.OrtValue
        values = {
            name: make.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), BFLOAT16)
            if name in self._bits
            else make.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }
        found = self._session.run_with_ort_values(names, values, options)
        return [
            _bits(value) if name in self._bits else value.numpy()
            for name, value in zip(names, found, strict=True)
        ]


def _bits(value: Any) -> Array:
    """Copy a BF16 value's bit patterns; the runtime offers no array of them."""
    if value.device_name() != "cpu":
        raise RuntimeError(f"a BF16 output was left on device {value.device_name()}")
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype=Datatype.BF16.numpy).reshape(value.shape())


def _tensors(arguments: Iterable[Any]) -> tuple[ModelTensor, ...]:
    return tuple(
        ModelTensor(
            argument.name,
            argument.type,
            tuple(
                size if isinstance(size, int) and size >= 0 else -1
                for size in argument.shape or ()
            ),
        )
        for argument in arguments
    )


def run_options(settings: SessionSettings) -> object:
    """Return the options of one instance's runs."""
    options = onnxruntime.RunOptions()
    # A failed run is answered and logged by whoever called it; the runtime's own line would repeat it.
    options.log_severity_level = SEVERITY_FATAL
    if settings.shrink_arenas:
        options.add_run_config_entry(
            "memory.enable_memory_arena_shrinkage", settings.shrink_arenas
        )
    return options


def inspect(path: Path) -> ModelTensors:
    """Return a model file's tensors; its weights are read and let go again.

    Raises:
        ConfigError: The file cannot be loaded.
    """
    settings = SessionSettings(graph_level=GraphLevel.DISABLE_ALL, enable_mem_arena=False)
    return _open(path, settings, [("CPUExecutionProvider", {})])[0].tensors


def open_session(path: Path, settings: SessionSettings, plan: Plan) -> Session:
    """Open a model on the first provider of a plan.

    Args:
        path: Model file; files of external data are found beside it (SEMANTICS MR-10).
        settings: Of the session.
        plan: Providers, the best first.

    Raises:
        ConfigError: The file cannot be loaded, or a provider of the plan could not start.
    """
    if any(provider.name == CUDA for provider in plan):
        _load_cuda_libraries()
    session, names = _open(
        path, settings, [(provider.name, dict(provider.options)) for provider in plan]
    )
    dropped = [provider.name for provider in plan if provider.name not in names]
    if dropped:
        raise ConfigError(
            f"{', '.join(dropped)} could not start and the runtime would go on with {', '.join(names)}; "
            "see its lines on standard error for the missing library or device",
            file=str(path),
            field="instance_group",
        )
    return session


def _open(
    path: Path, settings: SessionSettings, providers: Sequence[tuple[str, Mapping[str, str]]]
) -> tuple[Session, Sequence[str]]:
    """Open a session; return it and the providers that the runtime really took."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_ERROR
    options.graph_optimization_level = _GRAPH_LEVELS[settings.graph_level]
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    options.execution_mode = (
        onnxruntime.ExecutionMode.ORT_PARALLEL
        if settings.parallel
        else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    )
    options.enable_cpu_mem_arena = settings.enable_mem_arena
    options.enable_mem_pattern = settings.enable_mem_pattern
    try:
        for key, value in settings.entries.items():
            options.add_session_config_entry(key, value)
        opened = onnxruntime.InferenceSession(
            os.fspath(path), options, providers=list(providers), enable_fallback=0
        )
    except RUNTIME_ERRORS as exc:
        raise ConfigError(
            f"ONNX Runtime cannot load the model: {one_line(exc)}", file=str(path)
        ) from exc
    return Session(opened), opened.get_providers()


_cuda_lock = threading.Lock()


def _load_cuda_libraries() -> None:
    """Let the runtime find CUDA's libraries where pip put them; they are on no search path."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return
    printed = io.StringIO()
    with _cuda_lock, contextlib.redirect_stdout(printed):
        preload()
    if printed.getvalue():
        logger.warning("loading CUDA libraries: %s", " ".join(printed.getvalue().split()))


def translate(exc: Exception, model_name: str) -> BackendError:
    """Return our error for what a run raised: the runtime's text, in one line."""
    text = one_line(exc)
    if is_out_of_memory(exc):
        return OutOfMemory(f"model '{model_name}' ran out of memory: {text}")
    return BackendError(f"model '{model_name}' failed: {text}")


def one_line(exc: Exception) -> str:
    """Return an exception's text in one line of at most `MAX_TEXT` characters."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
