"""`headrace topics`: which topics the models need and whether they exist; how to use them, and how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.commands_topics_describe import describe
from headrace.deploy.commands_topics_schema import schema
from headrace.deploy.console import hint, out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.loading import repository_paths
from headrace.deploy.mappings import read_mappings, topics_of
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
    "mapping",
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

      headrace topics models --mapping fraud=fraud.toml --bootstrap-servers 127.0.0.1:9092
    """
    paths = repository_paths(settings, path)
    mapped = topics_of(read_mappings(settings))
    topology = topology_of(settings, mapped)
    sources = scan(paths).sources.values()
    specs, existing, warnings = asyncio.run(_look(settings, topology, sources, create=create))
    theirs = sorted({topics.requests for topics in mapped.values()})
    rows = [
        (name, existing.get(name, "-"), "yours, never made here", _exists(name in existing))
        for name in theirs
    ]
    rows += [
        (
            spec.name,
            existing.get(spec.name, spec.partitions),
            ", ".join(f"{name}={value}" for name, value in spec.settings.items())
            or "the broker's",
            _exists(spec.name in existing, is_made_later=spec.name == topology.async_replies),
        )
        for spec in specs
    ]
    print_table(("topic", "partitions", "settings", "exists"), rows)
    for warning in warnings:
        out.print(warning, markup=False)
    if absent := [name for name in theirs if name not in existing]:
        raise CommandFailed(f"topic {absent[0]}, which a mapping names, does not exist")
    missing = sum(row[3] == "no" for row in rows)
    if missing:
        raise CommandFailed(f"{missing} topics do not exist; --create makes them")


app.command("schema")(schema)
app.command("describe")(describe)


def specs_of(
    topology: Topology, source: ModelSource, settings: Settings, *, partitions: int = 0
) -> Sequence[TopicSpec]:
    """Return a model's topics: what it needs beside requests and results stands in its configuration.

    Args:
        topology: Names them.
        source: The model.
        settings: Of the command.
        partitions: That its requests topic has; 0 where there is none yet.
    """
    window_ms = settings.idempotency_window_secs * 1000
    is_stateful = False
    try:
        config = written_config(source, LoadSettings(config_name=settings.model_config_name))
        own = read_idempotency_window_ms(config.parameters, "")
        window_ms = window_ms if own is None else own
        is_stateful = config.sequence_batching is not None
    except ConfigError as exc:
        hint(f"{exc}; the topics of model '{source.name}' are those of a model without sequences")
    return topology.model_specs(
        source.name, partitions=partitions, stateful=is_stateful, window_ms=window_ms
    )


def _exists(exists: bool, *, is_made_later: bool = False) -> str:
    return "yes" if exists else "when first used" if is_made_later else "no"


async def _look(
    settings: Settings, topology: Topology, sources: Iterable[ModelSource], *, create: bool
) -> tuple[list[TopicSpec], dict[str, int], Sequence[str]]:
    """Return what is needed, the partition counts of what exists after creating the rest if wanted, and warnings."""
    async with open_log(named_kafka(settings), settings) as log:
        there = await log.topics()
        specs = [*topology.shared_specs(), topology.async_spec(settings.async_window_secs * 1000)]
        for source in sources:
            # Results have as many partitions as the requests that are there, of a mapped topic above all.
            count = there.get(topology.requests(source.name), 0)
            specs += specs_of(topology, source, settings, partitions=count)
        # Without the topic that a mapping names nobody knows how many partitions its results need.
        create = (
            create and {topics.requests for topics in topology.mapped.values()} <= there.keys()
        )
        warnings = await log.ensure(specs) if create else ()
        specs.sort(key=lambda spec: spec.name)
        return specs, dict(await log.topics()), warnings
