"""Files that a configuration names: the model file, labels and warm-up data, kept inside their directories."""

from __future__ import annotations

from pathlib import Path

from headrace.repository.layout import ModelSource
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig

ONNX_FILE = "model.onnx"


def inside(directory: Path, name: str, *, file: str, field: str) -> Path:
    """Return the path of a named file, which must lie inside a directory.

    A model directory may itself be a symbolic link; what a configuration names may not lead out of it.

    Raises:
        ConfigError: Absolute, by ``..`` or by a link outside, or not there.
    """
    path = directory / name
    try:
        base, target = directory.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError) as exc:  # links in a circle, a null character
        raise ConfigError(
            f"expected a path inside {directory}: {exc}", file=file, field=field, value=name
        ) from exc
    if not target.is_relative_to(base) or target == base:
        raise ConfigError(
            f"expected a path inside {directory}", file=file, field=field, value=name
        )
    if not path.exists():
        raise ConfigError(f"no such file in {directory}", file=file, field=field, value=name)
    return path


def model_path(source: ModelSource, version: int, filename: str, *, file: str) -> Path:
    """Return the model file or directory of one version (SEMANTICS MR-08, MR-10).

    Args:
        source: The model.
        version: One of its versions.
        filename: The configuration's, or the backend's own; ``""``: the backend takes the version directory.
        file: Configuration file for the error's sentence.

    Raises:
        ConfigError: It is not there, or leads out of the version directory.
    """
    if source.file is not None:
        path = source.file
    elif filename:
        path = _version_file(source.versions[version], filename, file)
    else:
        return source.versions[version]
    if path.is_dir() and (path / ONNX_FILE).is_file():
        return path / ONNX_FILE
    return path


def _version_file(directory: Path, filename: str, file: str) -> Path:
    path = directory / filename
    # The file itself may be a link to a store of blobs; only the name must not wander.
    if Path(filename).is_absolute() or ".." in Path(filename).parts:
        raise ConfigError(
            f"expected a path inside {directory}",
            file=file,
            field="default_model_filename",
            value=filename,
        )
    if not path.exists():
        listed = ", ".join(sorted(entry.name for entry in directory.iterdir())) or "nothing"
        raise ConfigError(
            f"no such model file, the version directory holds {listed}",
            file=str(path),
            field="default_model_filename",
            value=filename,
        )
    return path


def read_labels(config: ModelConfig, directory: Path, *, file: str) -> dict[str, tuple[str, ...]]:
    """Read the label files of a model's outputs: one label per line (SEMANTICS MR-26).

    Returns:
        Output name → labels; outputs without a label file are absent.

    Raises:
        ConfigError: A file is not there, leads out of the model directory, or is not UTF-8.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.outputs:
        if not output.label_filename:
            continue
        field = f"output[{output.name}].label_filename"
        path = inside(directory, output.label_filename, file=file, field=field)
        text = read_text(path, file=file, field=field, value=output.label_filename)
        # Not `splitlines`: a label may contain what Unicode, but no editor, calls a line break.
        lines = text.removesuffix("\n").split("\n") if text else []
        labels[output.name] = tuple(line.removesuffix("\r") for line in lines)
    return labels


def read_text(path: Path, *, file: str, field: str = "", value: object = "") -> str:
    """Read a UTF-8 file.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"expected UTF-8 text, byte {exc.start} is not", file=file, field=field, value=value
        ) from exc
    except OSError as exc:
        raise ConfigError(
            f"cannot be read: {exc.strerror}", file=file, field=field, value=value
        ) from exc
