"""`headrace topics describe`: how far the requests of each model are, and which worker reads them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import out, print_table
from headrace.deploy.fleet_reading import read_fleet
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.schemas.record import TP
from headrace.streams.kafka_committed import committed_positions
from headrace.streams.kafka_properties import KafkaSettings, translate
from headrace.streams.log import EARLIEST, LATEST, Log, Span
from headrace.streams.partition_view import Look, PartitionView, partition_views
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms

NOTHING = "-"

Views = Mapping[str, Sequence[PartitionView]]
"""Model → its partitions."""


@with_settings("bootstrap_servers", "kafka_config", "topic_prefix", "config", "log_level")
def describe(
    *,
    settings: Settings,
    model: Annotated[
        str,
        typer.Argument(metavar="[MODEL]", help="Name of a model; none shows all, a line each."),
    ] = "",
    window_secs: Annotated[
        float,
        typer.Option(
            "--window-secs", min=0.1, max=600.0, help="Seconds over which rates are taken."
        ),
    ] = 2.0,
    json_out: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show how far the models' requests are: partitions, lag, rates, and which worker reads which.

    Lag is what the model's group has not committed yet. Joins no group, writes nothing. Ends with 1 if there is no
    such model.

    [bold]Examples[/]

      headrace topics describe --bootstrap-servers 127.0.0.1:9092

      headrace topics describe resnet --bootstrap-servers 127.0.0.1:9092 --window-secs 10
    """
    views = asyncio.run(look_at(settings, model, window_secs))
    if json_out:
        document = {name: [_plain(view) for view in found] for name, found in views.items()}
        out.print(json.dumps(document), markup=False)
    elif model:
        _print_partitions(settings, model, views[model])
    else:
        _print_models(views)


async def look_at(settings: Settings, model: str, window_s: float) -> Views:
    """Look twice at the requests of one model or of all; models whose requests topic is gone have no partitions.

    Raises:
        CommandFailed: There is no such model, or nobody has said anything yet.
        LogError: Something cannot be looked at.
    """
    properties = named_kafka(settings)
    file = "" if settings.kafka_config is None else str(settings.kafka_config)
    kafka = translate(properties, file=file)
    topology = topology_of(settings)
    async with open_log(properties, settings) as log:
        fleet = await read_fleet(log, topology.status, model)
        names = [model] if model else fleet.models()
        workers = {name: fleet.workers(name, wall_ms()) for name in names}
        there = await log.topics()
        groups: dict[str, set[TP]] = {}
        for name in names:
            told = [worker.requests_topic for worker in workers[name]]
            topic = told[-1] if told else topology.requests(name)
            groups[name] = {TP(topic, number) for number in range(there.get(topic, 0))}
        before = await _look(log, kafka, topology, groups)
        await asyncio.sleep(window_s)
        after = await _look(log, kafka, topology, groups)
    return {name: partition_views(before[name], after[name], workers[name]) for name in names}


async def _look(
    log: Log, kafka: KafkaSettings, topology: Topology, groups: Mapping[str, set[TP]]
) -> dict[str, Look]:
    tps = [tp for found in groups.values() for tp in found]
    if not tps:
        return {name: Look(0.0, {}, {}, {}) for name in groups}
    async with log.reader({tp: Span(EARLIEST) for tp in tps}) as reader:
        first = reader.positions()
    async with log.reader({tp: Span(LATEST) for tp in tps}) as reader:
        ends, at_s = reader.positions(), time.monotonic()
    looks = {}
    for name, own in groups.items():
        found = await committed_positions(kafka, topology.group(name), own) if own else {}
        looks[name] = Look(
            at_s,
            {tp: first[tp] for tp in own},
            {tp: ends[tp] for tp in own},
            {tp: position.offset for tp, position in found.items() if position is not None},
        )
    return looks


def _print_partitions(settings: Settings, model: str, views: Sequence[PartitionView]) -> None:
    rows = [
        (
            view.tp.partition,
            f"{view.first}-{view.end}",
            NOTHING if view.committed is None else view.committed,
            view.lag,
            f"{view.in_per_s:.1f}",
            f"{view.done_per_s:.1f}",
            ", ".join(view.workers) or NOTHING,
        )
        for view in views
    ]
    topic = views[0].tp.topic if views else "its requests topic does not exist"
    print_table(
        ("partition", "offsets", "committed", "lag", "in/s", "done/s", "worker"),
        rows,
        title=f"{model}: {topic}, group {topology_of(settings).group(model)}",
    )


def _print_models(views: Views) -> None:
    rows = []
    for model, found in views.items():
        workers = sorted({worker for view in found for worker in view.workers})
        rows.append(
            (
                model,
                len(found),
                sum(view.lag for view in found),
                f"{sum(view.in_per_s for view in found):.1f}",
                f"{sum(view.done_per_s for view in found):.1f}",
                ", ".join(workers) or NOTHING,
                sum(not view.workers for view in found),
            )
        )
    print_table(("model", "partitions", "lag", "in/s", "done/s", "workers", "unread"), rows)


def _plain(view: PartitionView) -> dict[str, object]:
    found = asdict(view)
    topic, partition = found.pop("tp")
    return {"topic": topic, "partition": partition, **found}
