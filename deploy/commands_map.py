"""`headrace map`: put a model onto a topic that people already have: propose a mapping, check it, try it dry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from headrace.consumers.mapped import MappedModel
from headrace.deploy.console import out, plain, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.loading import load_settings_of, repository_paths
from headrace.deploy.map_samples import samples_of
from headrace.deploy.map_trial import Tried, try_records
from headrace.deploy.mappings import (
    fit_model,
    mapped_model,
    read_mappings,
    read_source_file,
    registries_of,
    registry_url,
    source_format,
)
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings, option_name
from headrace.repository.layout import scan
from headrace.repository.prepare import Backends, Prepared, prepare
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping import (
    ModelMapping,
    RequestMapping,
    ResultsMapping,
    SourceMapping,
)
from headrace.schemas.mapping_check import MappingPlan
from headrace.schemas.mapping_events import read_event_fields
from headrace.schemas.mapping_fields import in_order
from headrace.schemas.mapping_format import FormatSettings, RegistryFormat
from headrace.schemas.mapping_path import Fields
from headrace.schemas.mapping_propose import propose as proposed
from headrace.schemas.mapping_tables import nearest
from headrace.schemas.record import Record
from headrace.schemas.signature import Signature

app = typer.Typer(no_args_is_help=True)

MODELS = ("model_repository", "model_config_name", "disable_auto_complete_config")
KAFKA = ("bootstrap_servers", "kafka_config", "topic_prefix")
COMMON = ("config", "log_level")

Repositories = Annotated[
    list[Path] | None, typer.Argument(help="Model repositories, model folders or model files.")
]
SampleFile = Annotated[
    Path | None,
    typer.Option("--sample", help="File with a record; of JSON also several, one per line."),
]


@app.callback()
def map_() -> None:
    """Serve a model from a topic that you already have, by a mapping file.

    [bold]Examples[/]

      headrace map propose fraud models --sample payment.json --topic payments > fraud.toml

      headrace map check models --mapping fraud=fraud.toml

      headrace map run models --mapping fraud=fraud.toml --dry-run --bootstrap-servers 127.0.0.1:9092

      headrace worker models --mapping fraud=fraud.toml --bootstrap-servers 127.0.0.1:9092
    """


@app.command("propose")
@with_settings(*MODELS, *KAFKA, *COMMON)
def propose(
    *,
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    repositories: Repositories = None,
    sample: SampleFile = None,
    topic: Annotated[
        str, typer.Option("--topic", help="Topic that has the records; without a sample, asked.")
    ] = "",
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            help="File with the table source of a mapping and no more, where records are no JSON.",
        ),
    ] = None,
) -> None:
    """Write a first mapping of a model, from a record and the model's configuration; to be read and mended.

    Records are JSON, or what a file says that begins a mapping: its table source with topic, format, schema, registry.

    [bold]Examples[/]

      headrace map propose fraud models --sample payment.json > fraud.toml

      headrace map propose fraud models --topic payments --bootstrap-servers 127.0.0.1:9092

      headrace map propose fraud models --source payments.toml --bootstrap-servers 127.0.0.1:9092
    """
    if sample is None and not topic and source is None:
        raise CommandFailed(
            "no record is named: give --sample FILE, --topic TOPIC or --source FILE", status=2
        )
    if topic and source is not None:
        raise CommandFailed("expected either --topic or --source, which names a topic", status=2)
    signature = _signature(_prepared(settings, model, repositories))
    topic = topic or (sample.stem if sample is not None else "")
    head, begun = "", SourceMapping(topic, FormatSettings("json"), "latest", "skip")
    if source is not None:
        head, begun = read_source_file(source)
    base = ModelMapping(
        file="the proposal" if source is None else str(source),
        source=begun,
        inputs=(),
        request=RequestMapping(),
        sequence=None,
        results=ResultsMapping("", FormatSettings("json")),
    )
    record, fields = asyncio.run(_sample(settings, base, sample))
    print(proposed(fields, signature, base, key=record.key, head=head), end="")


async def _sample(
    settings: Settings, base: ModelMapping, sample: Path | None
) -> tuple[Record, Fields]:
    """Return a record and its fields; the schema that it names is asked for.

    Raises:
        CommandFailed: There is no record.
        InferError: It cannot be read.
        LogError: The registry does not answer.
    """
    source = base.source
    if source.format.word == "v2":
        raise CommandFailed(f"{base.file}: expected another format than v2, which needs no more")
    (record,) = await samples_of(settings, source, sample, limit=1)
    reading = source_format(source.format, base.file)
    if isinstance(reading, RegistryFormat):
        async with registries_of(settings, [base]) as registries:
            schemas = registries[registry_url(settings, source.format)]
            for number in reading.missing([record.value]):
                reading.learn(number, await schemas.fetch(number))

    def read(value: bytes) -> Fields:
        return in_order(reading.read(value), reading.names)

    return record, read_event_fields(record, read) if source.events else read(record.value or b"")


@app.command("check")
@with_settings(*MODELS, "mapping", *COMMON)
def check(settings: Settings, repositories: Repositories = None) -> None:
    """Say whether mappings fit their models, and what they make of a record; ends with 1 if one does not.

    [bold]Examples[/]

      headrace map check models --mapping fraud=fraud.toml
    """
    for model, mapping in _mappings(settings).items():
        prepared = _prepared(settings, model, repositories)
        if mapping.source.format.word == "v2":
            out.print(f"{model}: V2 requests of topic {mapping.source.topic}", markup=False)
            continue
        source_format(mapping.source.format, mapping.file)
        print_plan(fit_model(mapping, _signature(prepared), prepared.labels))


@app.command("run")
@with_settings(*MODELS, *KAFKA, "mapping", *COMMON)
def run(
    *,
    settings: Settings,
    repositories: Repositories = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be; nothing is written or committed."),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Records to look at.")] = 20,
    sample: SampleFile = None,
) -> None:
    """Show, for the last records of a mapped topic, the tensors that come out and the results that would be written.

    No group is joined, nothing is written: the topic's readers notice nothing. The records of a sequence model are
    served in their order, as if nothing had been before them.

    [bold]Examples[/]

      headrace map run models --mapping fraud=fraud.toml --dry-run --limit 20 --bootstrap-servers 127.0.0.1:9092

      headrace map run models --mapping fraud=fraud.toml --dry-run --sample payment.json
    """
    if not dry_run:
        raise CommandFailed(
            f"expected --dry-run; headrace worker {option_name('mapping')} … serves the topic",
            status=2,
        )
    failed = 0
    for model, mapping in _mappings(settings).items():
        if mapping.source.format.word == "v2":
            raise CommandFailed(
                f"model '{model}' is mapped onto V2 requests, which headrace dlq and topics show"
            )
        prepared = _prepared(settings, model, repositories)
        tried = asyncio.run(_try(settings, mapping, prepared, sample, limit))
        failed += print_tried(model, tried)
    if failed:
        words = "1 record" if failed == 1 else f"{failed} records"
        raise CommandFailed(f"{words} would be answered with an error")


async def _try(
    settings: Settings, mapping: ModelMapping, prepared: Prepared, sample: Path | None, limit: int
) -> list[Tried]:
    version = max(prepared.paths)
    plan = fit_model(mapping, Signature(prepared.config, version), prepared.labels)
    records = await samples_of(settings, mapping.source, sample, limit=limit)
    async with registries_of(settings, [mapping]) as registries:
        # Nothing is registered: what is shown of a result in Avro is its fields.
        mapped: MappedModel = await mapped_model(
            settings, mapping, {version: plan}, registries, dry=True
        )
        return await try_records(mapped, prepared, version, records, load_settings_of(settings))


def _mappings(settings: Settings) -> dict[str, ModelMapping]:
    mappings = read_mappings(settings)
    if not mappings:
        raise CommandFailed(
            f"no mapping is named: give {option_name('mapping')} MODEL=FILE", status=2
        )
    return mappings


def _prepared(settings: Settings, model: str, repositories: Sequence[Path] | None) -> Prepared:
    """Read and complete the configuration of one model.

    Raises:
        ConfigError: There is no such model (the nearest name is in the sentence), or it would not load.
    """
    sources = scan(repository_paths(settings, *(repositories or ()))).sources
    source = sources.get(model)
    if source is None:
        raise ConfigError(
            f"there is no such model, {nearest(model, sources)}", field="model", value=model
        )
    chosen = load_settings_of(settings)
    return prepare(source, chosen, Backends(chosen))


def _signature(prepared: Prepared) -> Signature:
    return Signature(prepared.config, max(prepared.paths))


def print_plan(plan: MappingPlan) -> None:
    """Print what a mapping makes of a record, and of a result."""
    mapping = plan.mapping
    rows = [
        (
            one.spec.name,
            f"{one.spec.datatype} {list(one.shape)}",
            one.mapping.encoding,
            ", ".join(field.path.text for field in one.mapping.fields),
        )
        for one in plan.inputs
        if one is not None
    ]
    title = f"{plan.signature.model_name}: {mapping.source.format.word} records of {mapping.source.topic}"
    print_table(("input", "tensor", "encoding", "fields"), rows, title=title)
    print_table(("result field", "from"), list(_result_rows(plan)))


def _result_rows(plan: MappingPlan) -> Iterator[tuple[str, str]]:
    for passed in plan.passed:
        yield passed.name, f"field {passed.path.text}"
    for result in plan.results:
        mapping, spec = result.mapping, result.spec
        what = f"output {spec.name}, {spec.datatype} {list(spec.dims)}"
        if mapping.is_label:
            what += ", the best label"
        elif mapping.top_k:
            what += f", the {mapping.top_k} largest"
        yield mapping.name, what


def _lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def print_tried(model: str, tried: Sequence[Tried]) -> int:
    """Print what became of records; return how many would be answered with an error."""
    rows = [
        (f"{one.record.partition}/{one.record.offset}", _lines(one.tensors), _lines(one.result))
        for one in tried
    ]
    print_table(("record", "tensors", "result"), rows, title=model, lines=True)
    return sum(one.is_error for one in tried)
