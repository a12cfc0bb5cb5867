"""`headrace topics`: which topics the models need, and whether they exist."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.loading import repository_paths
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.repository.layout import scan
from headrace.streams.log import TopicSpec


@with_settings(
    "model_repository",
    "bootstrap_servers",
    "kafka_config",
    "topic_prefix",
    "partitions",
    "idempotency_window_secs",
    "config",
    "log_level",
)
def topics(
    settings: Settings,
    path: Annotated[
        Path | None, typer.Argument(help="Model repository, model folder or model file.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the missing ones, with these settings.")
    ] = False,
) -> None:
    """Show the topics that the models of a repository need, their settings, and whether they exist.

    [bold]Examples[/]

      headrace topics models --bootstrap-servers 127.0.0.1:9092

      headrace topics models --kafka-config client.properties --create
    """
    paths = repository_paths(settings, path)
    topology = topology_of(settings)
    window_ms = settings.idempotency_window_secs * 1000
    specs = list(topology.shared_specs())
    for model in scan(paths).sources:
        specs += topology.model_specs(model, window_ms=window_ms)
    existing, warnings = asyncio.run(_look(settings, specs, create=create))
    rows = [
        (
            spec.name,
            spec.partitions if existing.get(spec.name) is None else existing[spec.name],
            ", ".join(f"{name}={value}" for name, value in spec.settings.items())
            or "the broker's",
            "no" if existing.get(spec.name) is None else "yes",
        )
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    print_table(("topic", "partitions", "settings", "exists"), rows)
    for warning in warnings:
        out.print(warning, markup=False)
    missing = sum(row[3] == "no" for row in rows)
    if missing:
        raise CommandFailed(f"{missing} topics do not exist; --create makes them")


async def _look(
    settings: Settings, specs: Sequence[TopicSpec], *, create: bool
) -> tuple[dict[str, int], Sequence[str]]:
    """Return the partition counts of what exists, after creating the rest if wanted, and warnings."""
    async with open_log(named_kafka(settings), settings) as log:
        warnings = await log.ensure(specs) if create else ()
        return dict(await log.topics()), warnings
