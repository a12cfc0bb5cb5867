"""The directory rules of a model repository: which models and versions lie where (SEMANTICS §1.1).

What a directory means is decided here by pure functions over names; the functions that look at the disk only
read, and never change or copy anything. Loading is `headrace.repository.models`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import VersionPolicy, VersionPolicyKind

CONFIG_FILE = "config.pbtxt"
CONFIG_FOLDER = "configs"
MAX_NAME_CHARS = 150
"""Characters of a model name: Kafka allows 249 in ``<prefix>.<model>.requests``."""
MAX_VERSION = 2**63 - 1
"""Highest version number; Triton's own type."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a backend's models look like (SEMANTICS MR-08, MR-09).

    Attributes:
        backend: Backend name.
        platforms: Triton platforms that mean it; the first is written into the configuration.
        files: Model file names in a version directory, the default first.
    """

    backend: str
    platforms: tuple[str, ...]
    files: tuple[str, ...]


KINDS = (
    Kind("tensorrt", ("tensorrt_plan",), ("model.plan",)),
    Kind("onnxruntime", ("onnxruntime_onnx",), ("model.onnx",)),
    Kind("openvino", (), ("model.xml",)),
    Kind("pytorch", ("pytorch_libtorch",), ("model.pt", "model.pt2")),
    Kind("python", (), ("model.py",)),
    Kind("dali", (), ("model.dali",)),
    Kind(
        "tensorflow",
        ("tensorflow_savedmodel", "tensorflow_graphdef"),
        ("model.savedmodel", "model.graphdef"),
    ),
)
_BY_SUFFIX = {Path(name).suffix: kind for kind in KINDS for name in kind.files}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model as it lies on disk.

    Attributes:
        name: Model name: the directory's, or made from a single file's.
        directory: Model directory; of a single file, the directory that it is in.
        versions: Version → directory, ascending.
        file: A single model file that is served as version 1 without a repository; else None.
        warnings: Sentences about version directories that are skipped.
    """

    name: str
    directory: Path
    versions: Mapping[int, Path]
    file: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file or directory as the user knows it."""
        return self.file or self.directory

    def contents(self) -> set[str]:
        """Return the names in the first version directory: they tell the backend (MR-09)."""
        if self.file is not None:
            return {self.file.name}
        for directory in self.versions.values():
            return {entry.name for entry in directory.iterdir()}
        return set()


@dataclass(frozen=True, slots=True)
class Scan:
    """What the repositories hold.

    Attributes:
        sources: Models by name, sorted.
        duplicates: Name → the places where it appears, where these are several (MR-05): neither is served.
    """

    sources: Mapping[str, ModelSource]
    duplicates: Mapping[str, tuple[Path, ...]]


def scan(paths: Sequence[Path]) -> Scan:
    """Look at every repository.

    Args:
        paths: Repository directories; also a single model file or one model's directory.

    Raises:
        ConfigError: A path does not exist or cannot be read, or no model is found at all.
    """
    found: dict[str, list[ModelSource]] = {}
    for path in paths:
        try:
            sources = _sources(path)
        except OSError as exc:
            raise ConfigError(
                f"cannot be read: {exc.strerror}", field="model repository", value=exc.filename
            ) from exc
        for source in sources:
            found.setdefault(source.name, []).append(source)
    if not found:
        raise ConfigError(
            "expected at least one model directory such as <repository>/<model>/1/model.onnx",
            field="model repository",
            value=", ".join(map(str, paths)) or "none",
        )
    return Scan(
        sources={name: found[name][0] for name in sorted(found) if len(found[name]) == 1},
        duplicates={
            name: tuple(source.path for source in found[name])
            for name in sorted(found)
            if len(found[name]) > 1
        },
    )


def single_file_repository(path: Path) -> ModelSource:
    """Describe a model that is served without a repository: a model file, or one model's directory.

    Args:
        path: ``my.onnx``, a directory of that name with ``model.onnx`` in it (MR-10), or a directory with a
            ``config.pbtxt`` or version directories. Nothing is copied.

    Raises:
        ConfigError: Nothing there, no such kind of file, or a name from which no model name can be made.
    """
    if not path.exists():
        raise ConfigError("no such file or directory", field="model", value=path)
    if _is_model_directory(path):
        return read_model(path)
    if path.suffix not in _BY_SUFFIX:
        known = ", ".join(sorted(_BY_SUFFIX))
        raise ConfigError(
            f"expected a model file ({known}) or a model directory", field="model", value=path
        )
    name = re.sub(r"[^a-zA-Z0-9._-]", "_", path.stem)
    check_topic_name(name, str(path))
    return ModelSource(name, path.parent, {1: path.parent}, file=path)


def read_model(directory: Path) -> ModelSource:
    """Describe one model directory: its name and versions."""
    entries = [entry for entry in sorted(directory.iterdir()) if entry.is_dir()]
    numbers, warnings = version_numbers([entry.name for entry in entries])
    return ModelSource(
        name=directory.name or directory.resolve().name,
        directory=directory,
        versions={number: directory / str(number) for number in numbers},
        warnings=tuple(f"{directory}: {warning}" for warning in warnings),
    )


def version_numbers(names: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the version numbers among directory names, ascending, and warnings (SEMANTICS MR-02).

    Names that are no integers are skipped silently (``configs``, ``warmup`` …), those that look like versions
    and are none with a warning.
    """
    numbers: list[int] = []
    warnings: list[str] = []
    for name in names:
        if not (name.isascii() and name.isdigit()):
            continue
        if name.startswith("0"):
            warnings.append(
                f"version directory '{name}' is skipped, expected a positive integer without "
                "leading zeros"
            )
        elif len(name) > len(str(MAX_VERSION)) or int(name) > MAX_VERSION:
            warnings.append(
                f"version directory '{name}' is skipped, expected at most {MAX_VERSION}"
            )
        else:
            numbers.append(int(name))
    return sorted(numbers), warnings


def select_versions(
    policy: VersionPolicy, available: Collection[int], *, file: str
) -> tuple[tuple[int, ...], list[str]]:
    """Choose the versions to serve, ascending, and warn of asked ones that are missing (SEMANTICS MR-06).

    Raises:
        ConfigError: None is left (MR-03).
    """
    warnings: list[str] = []
    if policy.kind is VersionPolicyKind.SPECIFIC:
        wanted = sorted(set(policy.versions))
        chosen = [version for version in wanted if version in available]
        warnings = [
            f"{file}: version {version} is not there and is skipped"
            for version in wanted
            if version not in available
        ]
    else:
        chosen = sorted(available)
        if policy.kind is VersionPolicyKind.LATEST:
            chosen = chosen[-policy.num_versions :]
    if not chosen:
        listed = ", ".join(map(str, sorted(available))) or "none"
        raise ConfigError(
            f"at least one version must be available under the version policy, found {listed}",
            file=file,
            field="version_policy",
            value=policy.kind.value,
        )
    return tuple(chosen), warnings


def check_topic_name(name: str, file: str) -> None:
    """Check that a model's topics can bear its name (DESIGN §4).

    Raises:
        ConfigError: They cannot; says the rule.
    """
    if not _LEGAL_NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS or name in (".", ".."):
        raise ConfigError(
            "a model's topics bear its name, so it must be 1 to "
            f"{MAX_NAME_CHARS} characters of a-z, A-Z, 0-9, '.', '_' and '-'",
            file=file,
            field="name",
            value=name,
        )


def config_path(source: ModelSource, config_name: str = "") -> Path | None:
    """Return the configuration file to read; None: there is none, auto-complete must suffice.

    Args:
        source: The model.
        config_name: ``--model-config-name``: ``configs/<name>.pbtxt`` is read where it exists (MR-13).
    """
    if source.file is not None:
        return None
    plain = source.directory / CONFIG_FILE
    if config_name:
        named = source.directory / CONFIG_FOLDER / f"{config_name}.pbtxt"
        if named.is_file():
            return named
    return plain if plain.is_file() else None


@dataclass(frozen=True, slots=True)
class Inferred:
    """Backend, platform and model file of a model, as MR-09 finds them."""

    backend: str
    platform: str
    filename: str


def infer_backend(given: Inferred, name: str, contents: Collection[str], *, file: str) -> Inferred:
    """Find a model's backend (SEMANTICS MR-09) and its default file name (MR-08).

    Args:
        given: The configuration's ``backend``, ``platform`` and ``default_model_filename``, maybe all empty.
        name: Model name; ``<x>.<backend>`` is the last resort.
        contents: Names in the first version directory.
        file: Path for the error's sentence.

    Raises:
        ConfigError: Nothing tells it, or platform and backend disagree.
    """
    by_platform = next((kind for kind in KINDS if given.platform in kind.platforms), None)
    if given.platform and by_platform is None and not given.backend:
        known = ", ".join(platform for kind in KINDS for platform in kind.platforms)
        raise ConfigError(
            f"expected one of {known}", file=file, field="platform", value=given.platform
        )
    if by_platform is not None and given.backend not in ("", by_platform.backend):
        raise ConfigError(
            f"expected a platform of backend '{given.backend}'",
            file=file,
            field="platform",
            value=given.platform,
        )
    if given.backend:
        kind = next((kind for kind in KINDS if kind.backend == given.backend), None)
        if kind is None:
            return given
    else:
        kind = by_platform or _kind_by_files(given.filename, contents)
    if kind is not None:
        present = [filename for filename in kind.files if filename in contents]
        return Inferred(
            backend=kind.backend,
            platform=given.platform or next(iter(kind.platforms), ""),
            filename=given.filename or next(iter(present), kind.files[0]),
        )
    _, dot, backend = name.partition(".")
    if not dot or not backend:
        raise ConfigError(
            f"Could not determine backend for model '{name}' with no backend in model configuration. "
            "Expected a backend field, a model file of a known name such as model.onnx, or a model name "
            "of the form '<model>.<backend>'",
            file=file,
            field="backend",
        )
    return Inferred(backend, given.platform, given.filename)


def _kind_by_files(filename: str, contents: Collection[str]) -> Kind | None:
    if filename:
        return _BY_SUFFIX.get(Path(filename).suffix)
    exact = (kind for kind in KINDS if any(name in contents for name in kind.files))
    return next(exact, None)


def _sources(path: Path) -> list[ModelSource]:
    """Return the models of one path."""
    if not path.exists():
        raise ConfigError(
            "expected an existing repository, model folder or model file",
            field="model repository",
            value=path,
        )
    if path.is_file() or path.suffix in _BY_SUFFIX or _is_model_directory(path):
        return [single_file_repository(path)]
    # Hidden directories belong to tools (version control, notebooks, mounted volumes), never to models.
    return [
        read_model(entry)
        for entry in sorted(path.iterdir())
        if entry.is_dir() and not entry.name.startswith(".")
    ]


def _is_model_directory(path: Path) -> bool:
    """Whether a directory is one model rather than a repository of models."""
    if not path.is_dir():
        return False
    if (path / CONFIG_FILE).is_file():
        return True
    numbers, _ = version_numbers(entry.name for entry in path.iterdir() if entry.is_dir())
    # A repository may hold a model called "1"; that one has a configuration or versions of its own.
    return any(not _is_model_directory(path / str(number)) for number in numbers)
