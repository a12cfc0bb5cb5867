"""`headrace topics schema`: what a record for one model looks like, and a program that sends one."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import out, print_table
from headrace.deploy.contract_words import REQUEST_HEADERS, RESULT_HEADERS
from headrace.deploy.fleet_reading import read_fleet
from headrace.deploy.inputs import specs_of
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.deploy.snippets import Asked, Language, snippet
from headrace.schemas.avro import schema_text
from headrace.streams.call_records import refuse_mapped
from headrace.streams.model_view import Route
from headrace.streams.watch import wall_ms


@with_settings("bootstrap_servers", "kafka_config", "topic_prefix", "config", "log_level")
def schema(
    *,
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    language: Annotated[
        Language | None,
        typer.Option("--language", help="Print nothing but a program in this language."),
    ] = None,
    url: Annotated[
        str,
        typer.Option("--url", envvar="HEADRACE_URL", help="Gateway that the curl program asks."),
    ] = "http://127.0.0.1:8000",
) -> None:
    """Show what a record for a model looks like: topics, tensors, headers, Avro schemas, and a program that sends one.

    The model must be served somewhere: its workers say what it takes.

    [bold]Examples[/]

      headrace topics schema resnet --bootstrap-servers 127.0.0.1:9092

      headrace topics schema resnet --bootstrap-servers 127.0.0.1:9092 --language java > Ask.java
    """
    asked, route = asyncio.run(_look(settings, model, url))
    if language is not None and route.mapped:
        refuse_mapped(route)
    if language is not None:
        out.print(snippet(asked, language), markup=False)
        return
    print_schema(asked, route)


async def _look(settings: Settings, model: str, url: str) -> tuple[Asked, Route]:
    """Ask the status topic what a model takes.

    Raises:
        CommandFailed: There is no such model.
        InferError: No version of it is ready.
    """
    properties, topology = named_kafka(settings), topology_of(settings)
    async with open_log(properties, settings) as log:
        fleet = await read_fleet(log, topology.status, model)
    route = fleet.route(model, "", wall_ms())
    (*_, newest) = fleet.workers(model, wall_ms())
    asked = Asked(
        model=model,
        requests=route.topic,
        results=newest.results_topic or topology.results(model),
        inputs=specs_of(route.signature),
        bootstrap=properties["bootstrap.servers"],
        prefix=topology.prefix,
        is_sequence=route.signature.is_sequence,
        is_decoupled=route.config.decoupled,
        url=url.rstrip("/"),
    )
    return asked, route


def print_schema(asked: Asked, route: Route) -> None:
    """Print everything, the program in Python at the end."""
    print_table(
        ("topic", "partitions", "what"),
        [
            (asked.requests, route.partitions, _requests(asked, route)),
            (asked.results, route.partitions, "results, where no reply-topic is named"),
        ],
        title=f"{asked.model}, version {route.signature.version}",
    )
    rows = [("input", s.name, s.datatype, s.wire_dims()) for s in route.signature.inputs]
    rows += [("output", s.name, s.datatype, s.wire_dims()) for s in route.signature.outputs]
    print_table(("tensor", "name", "datatype", "shape (-1 is any size)"), rows)
    print_table(("result header", "meaning"), RESULT_HEADERS.items())
    if route.mapped:
        shows = f"headrace map check REPOSITORY --mapping {asked.model}=FILE"
        out.print(f"Its mapping says which fields become which tensors: {shows}", markup=False)
        return
    print_table(("request header", "meaning"), REQUEST_HEADERS.items())
    for name, what in (("infer_request", "a request"), ("infer_response", "a result")):
        out.print(f"\nAvro schema of {what}:\n{schema_text(name)}", markup=False)
    out.print(f"In Python (--language {', '.join(Language)}):\n", markup=False)
    out.print(snippet(asked, Language.PYTHON), markup=False)


def _requests(asked: Asked, route: Route) -> str:
    if route.mapped:
        return f"records of your own, {route.mapped}, read by a mapping"
    if asked.is_sequence:
        return "requests; the key is the sequence id as text, hashed by murmur2"
    return "requests, with any key or none"
