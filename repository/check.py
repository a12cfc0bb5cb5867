"""What would load and what not, before anything starts: ``headrace models check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.backends.backend import Backend, find_backend
from headrace.repository.index import DUPLICATE
from headrace.repository.layout import ModelSource, scan
from headrace.repository.prepare import (
    Backends,
    LoadSettings,
    Prepared,
    VersionError,
    located,
    prepare,
)
from headrace.repository.warmup import build_samples
from headrace.schemas.errors import ConfigError
from headrace.schemas.signature import Signature


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One line of the check table.

    Attributes:
        model: Name.
        versions: That the line is about, ascending; empty where the configuration itself is wrong.
        backend: Backend name; ``""`` where it is not known.
        ok: It would load.
        file: Offending file, or ``""``.
        field: Offending field, or ``""``.
        value: Offending value, or ``""``.
        expected: What was expected, or the cause; ``""`` where all is well.
        warnings: What is skipped or ignored.
    """

    model: str
    versions: tuple[int, ...]
    backend: str
    ok: bool
    file: str = ""
    field: str = ""
    value: str = ""
    expected: str = ""
    warnings: tuple[str, ...] = ()


def check(
    paths: Sequence[Path],
    settings: LoadSettings | None = None,
    *,
    find: Callable[[str], Backend] = find_backend,
) -> list[CheckRow]:
    """Try every model of the repositories: configuration, auto-complete, the files that it names, model files.

    Model files are really loaded and freed again, one at a time; no instance is started.

    Args:
        paths: Repositories; also single model files and model directories.
        settings: How they would be loaded.
        find: Backend by name.

    Returns:
        One row per model that would load, and one per version or model that would not, by model.

    Raises:
        ConfigError: A repository does not exist, or there is no model at all.
    """
    chosen = settings or LoadSettings()
    backends = Backends(chosen, find)
    found = scan(paths)
    rows = [
        CheckRow(
            name,
            (),
            "",
            ok=False,
            file=", ".join(map(str, places)),
            field="name",
            value=name,
            expected=f"{DUPLICATE}, expected one",
        )
        for name, places in found.duplicates.items()
    ]
    for source in found.sources.values():
        rows.extend(_check_model(source, chosen, backends))
    return sorted(rows, key=lambda row: row.model)


def _check_model(
    source: ModelSource, settings: LoadSettings, backends: Backends
) -> list[CheckRow]:
    try:
        prepared = prepare(source, settings, backends)
    except VersionError as exc:
        return [_failure(source.name, (exc.version,), "", exc, source.warnings)]
    except ConfigError as exc:
        return [_failure(source.name, (), "", exc, source.warnings)]
    rows: list[CheckRow] = []
    backend = prepared.backend.name
    for version in prepared.paths:
        try:
            _check_version(prepared, version)
        except ConfigError as exc:
            rows.append(_failure(source.name, (version,), backend, exc, prepared.warnings))
    if rows:
        return rows
    versions = tuple(prepared.paths)
    return [CheckRow(source.name, versions, backend, ok=True, warnings=prepared.warnings)]


def _check_version(prepared: Prepared, version: int) -> None:
    signature = Signature(prepared.config, version)
    with located(prepared.file):
        build_samples(prepared, signature)
    path = prepared.paths[version]
    with located(str(path), prepared.backend.name):
        prepared.backend.load(prepared.config, path).close()


def _failure(
    model: str,
    versions: tuple[int, ...],
    backend: str,
    error: ConfigError,
    warnings: tuple[str, ...],
) -> CheckRow:
    return CheckRow(
        model,
        versions,
        backend,
        ok=False,
        file=error.file,
        field=error.field,
        value=error.value,
        expected=error.expected,
        warnings=warnings,
    )
