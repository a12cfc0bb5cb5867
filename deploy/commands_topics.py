"""`headrace topics`: which topics the models need and whether they exist; how to use them, and how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.commands_topics_describe import describe
from headrace.deploy.commands_topics_schema import schema
from headrace.deploy.console import hint, out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.loading import repository_paths
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.repository.layout import ModelSource, scan
from headrace.repository.prepare import LoadSettings, written_config
from headrace.schemas.config_parameters import read_idempotency_window_ms
from headrace.schemas.errors import ConfigError
from headrace.streams.log import TopicSpec
from headrace.streams.topology import Topology
from typer.core import TyperGroup

LIST = "list"
"""The command that is meant where none is named."""


class _Topics(TyperGroup):
    """Commands of which one is meant where what follows names none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name in front; help is of them all. The context's class is the one that typer brings, or click's."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Topics)


@app.callback()
def topics() -> None:
    """Show the topics that models need; what records look like (schema); how far requests are (describe).

    [bold]Examples[/]

      headrace topics models --bootstrap-servers 127.0.0.1:9092

      headrace topics schema resnet --bootstrap-servers 127.0.0.1:9092

      headrace topics describe --bootstrap-servers 127.0.0.1:9092
    """


@app.command(LIST)
@with_settings(
    "model_repository",
    "bootstrap_servers",
    "kafka_config",
    "topic_prefix",
    "partitions",
    "idempotency_window_secs",
    "async_window_secs",
    "model_config_name",
    "config",
    "log_level",
)
def list_topics(
    settings: Settings,
    path: Annotated[
        Path | None, typer.Argument(help="Model repository, model folder or model file.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the missing ones, with these settings.")
    ] = False,
) -> None:
    """Show the topics that the models of a repository need, their settings, and whether they exist.

    The word list may be left out, unless the path is one of these commands' names.

    [bold]Examples[/]

      headrace topics list models --bootstrap-servers 127.0.0.1:9092

      headrace topics models --kafka-config client.properties --create
    """
    paths = repository_paths(settings, path)
    topology = topology_of(settings)
    later = topology.async_spec(settings.async_window_secs * 1000)
    specs = [*topology.shared_specs(), later]
    for source in scan(paths).sources.values():
        specs += specs_of(topology, source, settings)
    existing, warnings = asyncio.run(_look(settings, specs, create=create))
    rows = [
        (
            spec.name,
            existing.get(spec.name, spec.partitions),
            ", ".join(f"{name}={value}" for name, value in spec.settings.items())
            or "the broker's",
            _exists(spec.name in existing, is_made_later=spec is later),
        )
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    print_table(("topic", "partitions", "settings", "exists"), rows)
    for warning in warnings:
        out.print(warning, markup=False)
    missing = sum(row[3] == "no" for row in rows)
    if missing:
        raise CommandFailed(f"{missing} topics do not exist; --create makes them")


app.command("schema")(schema)
app.command("describe")(describe)


def specs_of(topology: Topology, source: ModelSource, settings: Settings) -> Sequence[TopicSpec]:
    """Return a model's topics: what it needs beside requests and results stands in its configuration."""
    window_ms = settings.idempotency_window_secs * 1000
    is_stateful = False
    try:
        config = written_config(source, LoadSettings(config_name=settings.model_config_name))
        own = read_idempotency_window_ms(config.parameters, "")
        window_ms = window_ms if own is None else own
        is_stateful = config.sequence_batching is not None
    except ConfigError as exc:
        hint(f"{exc}; the topics of model '{source.name}' are those of a model without sequences")
    return topology.model_specs(source.name, stateful=is_stateful, window_ms=window_ms)


def _exists(exists: bool, *, is_made_later: bool) -> str:
    return "yes" if exists else "when first used" if is_made_later else "no"


async def _look(
    settings: Settings, specs: Sequence[TopicSpec], *, create: bool
) -> tuple[dict[str, int], Sequence[str]]:
    """Return the partition counts of what exists, after creating the rest if wanted, and warnings."""
    async with open_log(named_kafka(settings), settings) as log:
        warnings = await log.ensure(specs) if create else ()
        return dict(await log.topics()), warnings
