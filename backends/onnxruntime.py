"""The ``onnxruntime`` backend: ONNX models on CPU, CUDA and TensorRT.

Runs release the interpreter's lock, so instances are threads of the worker's own process (DESIGN §10). The
weights are read once per model on CPU: its instances share one session, whose runs may overlap. On a GPU each
instance has a session, and so a stream and workspace, of its own.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from headrace.backends import ort
from headrace.backends.backend import Device
from headrace.backends.onnx_feeds import constant_feeds, feed_shapes, fetch_shapes
from headrace.backends.onnx_providers import Plan, plans
from headrace.backends.onnx_settings import SessionSettings, read_settings
from headrace.backends.onnx_signature import check_config, complete_config, is_listed
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import (
    BackendError,
    ConfigError,
    InferError,
    InvalidRequest,
)
from headrace.schemas.model_config import InstanceKind, ModelConfig
from headrace.schemas.signature import TensorSpec
from headrace.schemas.tensor import Array, Datatype

logger = logging.getLogger(__name__)

DEFAULT_MAX_BATCH_SIZE = 4
"""Rows per batch that auto-complete chooses; Triton's ``default-max-batch-size`` (SEMANTICS AC-02)."""


class OnnxRuntimeBackend:
    """ONNX models (SEMANTICS MR-08, MR-10).

    Attributes:
        name: Backend name.
        default_filename: Model file, or a directory of that name that holds one (MR-10).
        default_cpu_count: Instances of a CPU group without a count (MR-30).
        default_max_batch_size: Rows per batch that `complete` chooses; set it before loading.
        supports_decoupled: One response per request, always.
    """

    name = "onnxruntime"
    default_filename = "model.onnx"
    default_cpu_count = 2
    supports_decoupled = False

    def __init__(self) -> None:
        """Take the defaults; nothing is loaded."""
        self.default_max_batch_size = DEFAULT_MAX_BATCH_SIZE

    def gpus(self) -> Sequence[int]:
        """Return the numbers of the GPUs that instances can run on."""
        return ort.cuda_devices()

    def complete(self, config: ModelConfig, path: Path) -> ModelConfig:
        """Return the configuration with what the model file says filled in (SEMANTICS AC-01, AC-02).

        The file is only opened when inputs or outputs are not listed.

        Raises:
            ConfigError: The file cannot be read, or contradicts the configuration.
        """
        ort.check_installation()
        if is_listed(config):
            return config
        file = model_file(path, config.default_model_filename)
        return complete_config(config, ort.inspect(file), self.default_max_batch_size, str(file))

    def load(self, config: ModelConfig, path: Path) -> OnnxModel:
        """Read one version's weights and check its tensors against the configuration.

        Raises:
            ConfigError: The file cannot be loaded, contradicts the configuration, or a setting or device is
                not to be had.
        """
        ort.check_installation()
        if config.decoupled:
            raise ConfigError(
                "ONNX models give exactly one response per request, expected false",
                file=str(path),
                field="model_transaction_policy.decoupled",
                value="true",
            )
        file = model_file(path, config.default_model_filename)
        model = OnnxModel(config, file, read_settings(config, ort.usable_cores()))
        model.open_first()
        return model


def model_file(path: Path, filename: str) -> Path:
    """Return the ONNX file of a version, given the file, its directory (MR-10) or the version's directory.

    Raises:
        ConfigError: There is none; names the path that was looked for.
    """
    found = path
    for name in (filename or "model.onnx", "model.onnx"):
        if found.is_dir():
            found = found / name
    if not found.is_file():
        raise ConfigError("no such model file", file=str(found))
    return found


class OnnxModel:
    """One loaded version: sessions by plan, shared or handed out.

    Attributes:
        repeatable: Runs leave no trace: what a sequence model remembers, it is given and gives back.
    """

    repeatable = True

    def __init__(self, config: ModelConfig, file: Path, settings: SessionSettings) -> None:
        """Keep the parts; `open_first` reads the weights."""
        self._config = config
        self._file = file
        self._settings = settings
        self._available = ort.available_providers()
        self._sessions: dict[tuple[InstanceKind, int], ort.Session] = {}
        # Instances of one model may be made by several threads; its weights must be read once all the same.
        self._lock = threading.Lock()

    def open_first(self) -> None:
        """Open the first instance's session, so that a model that cannot run fails at load.

        Raises:
            ConfigError: It cannot be opened, or contradicts the configuration.
        """
        groups = self._config.instance_groups
        kind = groups[0].kind if groups else InstanceKind.KIND_AUTO
        gpus = groups[0].gpus if groups else ()
        key = (kind, gpus[0] if gpus else 0)
        self._sessions[key] = self._open(*key)

    def instance(self, name: str, device: Device) -> OnnxInstance:
        """Make an instance on a device.

        Raises:
            ConfigError: The device is not to be had.
        """
        with self._lock:
            on_gpu = device.kind in (InstanceKind.KIND_GPU, InstanceKind.KIND_AUTO)
            key = (device.kind, device.id if on_gpu else 0)
            session = self._sessions.get(key) or self._open(*key)
            shares = self._settings.share_session
            if shares or (shares is None and session.provider == "CPUExecutionProvider"):
                self._sessions[key] = session
            else:
                # The session of `open_first` belongs to the first instance that asks for its device.
                self._sessions.pop(key, None)
        return OnnxInstance(name, self._config, session, ort.run_options(self._settings))

    def close(self) -> None:
        """Let the sessions go; the weights are freed with the last instance."""
        self._sessions.clear()

    def _open(self, kind: InstanceKind, device_id: int) -> ort.Session:
        tried = plans(self._config, kind, device_id, self._available)
        for plan in tried[:-1]:
            try:
                return self._open_plan(plan)
            except ConfigError as exc:
                logger.warning("model '%s' does not run on a GPU: %s", self._config.name, exc)
        return self._open_plan(tried[-1])

    def _open_plan(self, plan: Plan) -> ort.Session:
        session = ort.open_session(self._file, self._settings, plan)
        check_config(self._config, session.tensors, str(self._file))
        return session


class OnnxInstance:
    """One instance: runs batches on its session.

    Attributes:
        name: As the instance group names it.
        concurrency: One batch at a time (SEMANTICS MR-31).
        device: The provider that the session prefers, as ONNX Runtime reports it.
    """

    concurrency = 1

    def __init__(
        self, name: str, config: ModelConfig, session: ort.Session, options: object
    ) -> None:
        """Prepare what each run needs."""
        self.name = name
        self.device = session.provider
        self._model_name = config.name
        self._session: ort.Session | None = session
        self._options = options
        self._outputs = tuple(spec.name for spec in config.outputs)
        self._has_text = any(spec.datatype is Datatype.BYTES for spec in config.inputs)
        self._constants = constant_feeds(config, session.tensors, config.name)
        self._feed_shapes = feed_shapes(config, session.tensors)
        self._fetch_shapes = fetch_shapes(config, session.tensors)
        sequences = config.sequence_batching
        states = () if sequences is None else sequences.states
        controls = () if sequences is None else sequences.controls
        self._states = tuple(state.output_name for state in states)
        self._made_texts = [c.name for c in controls if c.datatype is Datatype.BYTES]
        self._made_texts += [s.input_name for s in states if s.datatype is Datatype.BYTES]
        # A control's batch axis is a matter of its shape: its items are single values.
        given = {*(spec.name for spec in config.inputs), *(state.input_name for state in states)}
        made = {*self._outputs, *self._states}
        axes = config.batch_axes
        self._feed_axes = {name: axis for name, axis in axes.items() if axis and name in given}
        self._fetch_axes = {name: axis for name, axis in axes.items() if axis and name in made}

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Run one batch and emit its one response; only outputs that somebody wants are computed.

        A request whose BYTES are not UTF-8, which ONNX strings are, gets its own error; the others are served.

        Raises:
            InvalidRequest: No request of the batch has text that is UTF-8.
            OutOfMemory: The runtime could not allocate for this batch.
            BackendError: It failed otherwise; model and the runtime's message are named.
        """
        session = self._session
        if session is None:
            raise BackendError(f"instance '{self.name}' is closed")
        feeds = dict(batch.inputs())
        errors = _decode_text(batch, feeds) if self._has_text else {}
        self._shape_feeds(feeds)
        wanted = [name for name in self._outputs if batch.wants(name)]
        names = [*wanted, *(name for name in self._states if name not in wanted)]
        try:
            found = dict(zip(names, session.run(names, feeds, self._options), strict=True))
        except ort.RUNTIME_ERRORS as exc:
            raise ort.translate(exc, self._model_name) from exc
        for name, shape in self._fetch_shapes.items():
            if name in found:
                found[name] = found[name].reshape(shape)
        for name, axis in self._fetch_axes.items():
            if name in found:
                found[name] = np.moveaxis(found[name], axis, 0)
        emit(
            Responses(
                {name: found[name] for name in wanted},
                errors=errors,
                states={name: found[name] for name in self._states},
            )
        )

    def _shape_feeds(self, feeds: dict[str, Array]) -> None:
        """Turn columns into what the model file declares, in place of the mapping, and add its constants."""
        for name in self._made_texts:
            feeds[name] = _texts(self._model_name, name, feeds[name])
        for name, shape in self._feed_shapes.items():
            if name in feeds:
                feeds[name] = feeds[name].reshape(shape)
        for name, axis in self._feed_axes.items():
            if name in feeds:
                feeds[name] = np.ascontiguousarray(np.moveaxis(feeds[name], 0, axis))
        feeds.update(self._constants)

    def healthy(self) -> bool:
        """Whether it can execute: until it is closed."""
        return self._session is not None

    def close(self) -> None:
        """Let the session go."""
        self._session = None


def _texts(model_name: str, name: str, column: Array) -> Array:
    """Return a control or a state of BYTES as the text that ONNX Runtime takes.

    Raises:
        BackendError: It is no UTF-8, as a file of initial data may be.
    """
    items: list[bytes] = column.ravel().tolist()
    texts = np.empty(len(items), dtype=object)
    try:
        texts[:] = [item.decode() for item in items]
    except UnicodeDecodeError as exc:
        raise BackendError(
            f"'{name}' of model '{model_name}' has an element that is not UTF-8 text, which an ONNX string must be"
        ) from exc
    return texts.reshape(column.shape)


def _decode_text(batch: Batch, feeds: dict[str, Array]) -> dict[int, InferError]:
    """Replace the bytes of BYTES columns by text, in place of the mapping; return errors by entry.

    ONNX Runtime takes text objects only, and would turn bytes into their ``repr``.
    """
    errors: dict[int, InferError] = {}
    for spec in batch.signature.inputs:
        column = feeds.get(spec.name)
        if spec.datatype is not Datatype.BYTES or column is None:
            continue
        items: list[bytes] = column.ravel().tolist()
        try:
            texts = [item.decode() for item in items]
        except UnicodeDecodeError:
            texts = _decode_apart(batch, spec, items, errors)
        decoded = np.empty(len(texts), dtype=object)
        decoded[:] = texts
        feeds[spec.name] = decoded.reshape(column.shape)
    if errors and all(i in errors for i, e in enumerate(batch.entries) if e is not None):
        raise next(iter(errors.values()))
    return errors


def _decode_apart(
    batch: Batch, spec: TensorSpec, items: list[bytes], errors: dict[int, InferError]
) -> list[str]:
    """Decode entry by entry; an entry that is not UTF-8 counts as empty texts and gets an error."""
    texts: list[str] = []
    first = next(entry for entry in batch.entries if entry is not None)
    for index, entry in enumerate(batch.entries):
        here = first if entry is None else entry
        count = here.rows * math.prod(here.shapes[spec.index] or ())
        part = items[len(texts) : len(texts) + count]
        try:
            texts.extend([item.decode() for item in part])
        except UnicodeDecodeError:
            texts.extend([""] * count)
            if entry is None:
                continue
            errors[index] = InvalidRequest(
                f"input '{spec.name}' for model '{batch.signature.model_name}' has an element that is "
                "not UTF-8 text, which an ONNX string must be"
            )
    return texts
