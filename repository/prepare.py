"""From a model's directory to what is to be loaded: its configuration read, completed and checked.

Nothing here starts an instance, so `headrace models check` and the loader say the same about a model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.backends.backend import Backend, find_backend
from headrace.repository.files import model_path, read_labels, read_text
from headrace.repository.layout import (
    Inferred,
    ModelSource,
    check_topic_name,
    config_path,
    infer_backend,
    select_versions,
)
from headrace.repository.states import read_initial_state
from headrace.schemas.config_check import check_config
from headrace.schemas.config_rules import check_decoupled, check_supported
from headrace.schemas.config_text import parse_config
from headrace.schemas.config_view import config_from_message, resolve
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.tensor import Shape
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How models are loaded.

    Attributes:
        config_name: ``--model-config-name``: read ``configs/<name>.pbtxt`` where it exists (MR-13).
        auto_complete: False is ``--disable-auto-complete-config`` (AC-01).
        default_max_batch_size: Rows per batch that auto-complete chooses for a model that allows batching;
            Triton's backend setting ``default-max-batch-size`` (AC-02).
        load_threads: Models that load at once: ``--model-load-thread-count`` (MC-04).
        retry_count: Times that a failed load is tried again: ``--model-load-retry-count`` (MC-04).
    """

    config_name: str = ""
    auto_complete: bool = True
    default_max_batch_size: int = 4
    load_threads: int = 4
    retry_count: int = 0


class Backends:
    """The process's backend objects, one per name, made when first asked for."""

    def __init__(
        self, settings: LoadSettings, find: Callable[[str], Backend] = find_backend
    ) -> None:
        """Keep the way to find them; nothing is imported yet."""
        self._settings = settings
        self._find = find
        self._lock = threading.Lock()
        self._backends: dict[str, Backend] = {}

    def get(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises:
            ConfigError: None is installed under that name, or its runtime is not.
        """
        with self._lock:
            if name not in self._backends:
                backend = self._find(name)
                backend.default_max_batch_size = self._settings.default_max_batch_size
                self._backends[name] = backend
            return self._backends[name]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that may be loaded.

    Attributes:
        source: Where it lies.
        file: Its configuration file, or its directory where it has none: what sentences name.
        config: Complete and checked; the same for all its versions.
        backend: That runs it.
        paths: Version → model file or directory, ascending: the versions to serve.
        labels: Output → class labels.
        initial_state: As in `headrace.repository.states.read_initial_state`.
        warnings: Sentences for the log, once per model.
    """

    source: ModelSource
    file: str
    config: ModelConfig
    backend: Backend
    paths: Mapping[int, Path]
    labels: Mapping[str, tuple[str, ...]]
    initial_state: tuple[tuple[bytes, ...], tuple[Shape, ...]]
    warnings: tuple[str, ...]


class VersionError(ConfigError):
    """One version's model file is missing, or the configuration cannot be completed from it.

    Attributes:
        version: That version.
        served: All versions that were to be served.
    """

    def __init__(self, cause: ConfigError, version: int, served: tuple[int, ...]) -> None:
        """Say the same as the cause."""
        super().__init__(cause.expected, file=cause.file, field=cause.field, value=cause.value)
        self.version = version
        self.served = served


def config_file(source: ModelSource, settings: LoadSettings) -> str:
    """Return what sentences about a model's configuration name: the file, or where it would be."""
    return str(config_path(source, settings.config_name) or source.path)


def written_config(source: ModelSource, settings: LoadSettings) -> ModelConfig:
    """Read a model's configuration as it is written, for who needs no backend: nothing is completed or checked.

    Raises:
        ConfigError: It cannot be read.
    """
    file = config_file(source, settings)
    with located(file):
        return config_from_message(_read(source, settings), file=file, directory_name=source.name)


def prepare(source: ModelSource, settings: LoadSettings, backends: Backends) -> Prepared:
    """Read, complete and check one model's configuration.

    The configuration is completed from the highest version that is to be served, and every other version must
    agree with it when it is loaded: a model has one configuration (Triton too completes once).

    Raises:
        ConfigError: Anything is wrong; names file, field, value and what was expected. `VersionError` where it
            is one version's model file.
    """
    file = config_file(source, settings)
    with located(file):
        return _prepare(source, file, settings, backends)


def _prepare(
    source: ModelSource, file: str, settings: LoadSettings, backends: Backends
) -> Prepared:
    check_topic_name(source.name, file)
    message = _read(source, settings)
    # An ensemble is refused for what it is, not for the backend that it does not name.
    hints = check_supported(message, file=file)
    given = config_from_message(message, file=file, directory_name=source.name)
    check_config(given, file=file, is_complete=False)
    versions, missing = select_versions(given.version_policy, source.versions, file=file)
    inferred = _infer(source, given, file)
    with located(file, inferred.backend):
        backend = backends.get(inferred.backend)
    check_decoupled(
        message,
        file=file,
        backend=backend.name,
        supports_decoupled=backend.supports_decoupled,
    )
    filename = inferred.filename or backend.default_filename
    paths: dict[int, Path] = {}
    for version in versions:
        with _about(version, versions):
            paths[version] = model_path(source, version, filename, file=file)
    config = _filled(given, inferred, filename, file)
    newest = paths[versions[-1]]
    with _about(versions[-1], versions), located(str(newest), backend.name):
        if settings.auto_complete:
            config = backend.complete(config, newest)
        config = resolve(
            config,
            backend=backend.name,
            default_cpu_count=backend.default_cpu_count,
            gpus=backend.gpus(),
            file=file,
        )
    check_config(config, file=file)
    return Prepared(
        source=source,
        file=file,
        config=config,
        backend=backend,
        paths=paths,
        labels=read_labels(config, source.directory, file=file),
        initial_state=read_initial_state(config, source.directory, file=file),
        warnings=(*source.warnings, *missing, *hints),
    )


@contextmanager
def located(file: str, backend: str = "") -> Iterator[None]:
    """Give errors a file where they name none, and turn the disk's and a backend's own into `ConfigError`.

    Args:
        file: Path that was being worked on.
        backend: Backend whose code runs inside; ``""``: ours, whose bugs pass through.
    """
    try:
        yield
    except ConfigError as exc:
        if exc.file:
            raise
        raise ConfigError(exc.expected, file=file, field=exc.field, value=exc.value) from exc
    except OSError as exc:
        if backend:
            raise _foreign(exc, file, backend) from exc
        raise ConfigError(f"cannot be read: {exc.strerror}", file=exc.filename or file) from exc
    except Exception as exc:
        if not backend:
            raise
        # A backend may be anybody's package: its bug fails one model's load, not all the others'.
        raise _foreign(exc, file, backend) from exc


def _foreign(exc: Exception, file: str, backend: str) -> ConfigError:
    detail = f"the backend raised {type(exc).__name__}: {exc}"
    return ConfigError(detail, file=file, field="backend", value=backend)


@contextmanager
def _about(version: int, served: tuple[int, ...]) -> Iterator[None]:
    try:
        yield
    except ConfigError as exc:
        raise VersionError(exc, version, served) from exc


def _read(source: ModelSource, settings: LoadSettings) -> ModelConfigMessage:
    path = config_path(source, settings.config_name)
    if path is not None:
        return parse_config(read_text(path, file=str(path)), str(path))
    if settings.auto_complete:
        return ModelConfigMessage()
    raise ConfigError(
        "expected a config.pbtxt, as auto-complete is switched off",
        file=str(source.path),
        field="config.pbtxt",
        value="none",
    )


def _infer(source: ModelSource, config: ModelConfig, file: str) -> Inferred:
    filename = config.default_model_filename if source.file is None else source.file.name
    given = Inferred(config.backend, config.platform, filename)
    return infer_backend(given, source.name, source.contents(), file=file)


def _filled(config: ModelConfig, inferred: Inferred, filename: str, file: str) -> ModelConfig:
    """Write backend, platform and model file into the configuration, as Triton does before completion."""
    message = ModelConfigMessage()
    message.CopyFrom(config.message)
    message.backend = inferred.backend
    message.platform = inferred.platform
    message.default_model_filename = filename
    return config_from_message(message, file=file)
