"""Loads the models of a process and says what came of it: states, what failed, what auto-complete chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.deploy.console import errors, hint, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.settings import Settings, option_name
from headrace.repository.files import read_text
from headrace.repository.layout import config_path, scan
from headrace.repository.prepare import LoadSettings
from headrace.repository.repository import Repository
from headrace.schemas.config_text import parse_config
from headrace.schemas.model_config import ModelConfig


def load_settings_of(settings: Settings) -> LoadSettings:
    """Return how models are loaded under these settings."""
    return LoadSettings(
        config_name=settings.model_config_name,
        auto_complete=not settings.disable_auto_complete_config,
        default_max_batch_size=settings.default_max_batch_size,
        load_threads=settings.model_load_thread_count,
        retry_count=settings.model_load_retry_count,
    )


def repository_paths(settings: Settings, *given: Path | None) -> list[Path]:
    """Return where models lie: the options' repositories, and the command's own arguments.

    Raises:
        CommandFailed: None is given.
    """
    paths = [*map(Path, settings.model_repository), *(path for path in given if path)]
    if not paths:
        raise CommandFailed(
            f"no models are named: give a model repository, a model folder or a model file "
            f"({option_name('model_repository')} PATH)",
            status=2,
        )
    return paths


def print_models(repository: Repository) -> None:
    """Print every model version with its state, how it is batched, on what it runs, and why it does not serve."""
    rows = []
    for row in repository.index.rows():
        model = repository.models.get(row["name"])
        loaded = None if model is None else model.versions.get(int(row.get("version", 0)))
        rows.append(
            (
                row["name"],
                row.get("version", ""),
                row.get("state", ""),
                "" if loaded is None else batching_of(loaded.config),
                "" if loaded is None else _instances([i.device for i in loaded.instances]),
                row.get("reason", ""),
            )
        )
    print_table(("model", "version", "state", "batching", "instances", "reason"), rows)


def batching_of(config: ModelConfig) -> str:
    """Return in words how a model's requests are batched."""
    sequences = config.sequence_batching
    if sequences is not None:
        slots = sequences.max_candidates
        return f"sequences, {sequences.strategy}, {slots} slot{'s' * (slots != 1)} an instance"
    if config.max_batch_size == 0:
        return "none"
    if config.dynamic_batching is None:
        return f"none, up to {config.max_batch_size} rows a request"
    delay = config.dynamic_batching.max_queue_delay_us
    return f"up to {config.max_batch_size} rows" + (f", {delay} µs delay" if delay else "")


def _instances(devices: Sequence[str]) -> str:
    counts = {device: devices.count(device) for device in devices}
    return ", ".join(f"{count} on {device}" for device, count in counts.items())


def hint_at_batching(settings: Settings, paths: Sequence[Path], repository: Repository) -> None:
    """Print the batch sizes that auto-complete chose, and how to raise them."""
    for name, source in scan(paths).sources.items():
        model = repository.models.get(name)
        if model is None or model.config.max_batch_size == 0:
            continue
        file = config_path(source, settings.model_config_name)
        if (
            file is not None
            and parse_config(read_text(file, file=str(file)), str(file)).max_batch_size
        ):
            continue
        size = model.config.max_batch_size
        where = f"max_batch_size in {file or source.directory / 'config.pbtxt'}, or "
        if source.file is not None:
            where = ""
        hint(
            f"{name}: batches of up to {size} rows were chosen by auto-complete; raise it with "
            f"{where}{option_name('default_max_batch_size')} N"
        )


def refuse_failures(settings: Settings, repository: Repository) -> None:
    """End the start when a model did not load, unless the settings say to serve the others (MC-04).

    Raises:
        CommandFailed: With ``--exit-on-error`` (the default); the table of causes has been printed.
    """
    if not repository.failures:
        return
    table = [
        (failure.model, version or "all", cause.file, cause.field, cause.value, cause.expected)
        for failure in repository.failures.values()
        for version, cause in failure.causes.items()
    ]
    print_table(
        ("model", "version", "file", "field", "value", "expected"), table, title="Did not load"
    )
    count, total = len(repository.failures), len(repository.failures) + len(repository.models)
    sentence = f"{count} of {total} models did not load"
    if settings.exit_on_error:
        raise CommandFailed(
            f"{sentence}; serve the others with {option_name('exit_on_error')}=false"
        )
    errors.print(f"{sentence}; the others are served", style="yellow", markup=False)
