"""`headrace audit`: whether every accepted request has exactly one answer, counted in the log itself.

It joins no consumer group and writes nothing, so it may look at a fleet at work.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum
from functools import wraps
from typing import Annotated, NoReturn, TypeVar

import typer
from headrace.consumers.ledger import decode_metadata
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import errors, out, plain, print_table
from headrace.deploy.failure import CommandFailed, failure_of
from headrace.deploy.mappings import read_mappings, topics_of
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.deploy.times import period_ms
from headrace.schemas.mapping import ModelMapping
from headrace.schemas.record import TP
from headrace.streams.audit import Auditor, AuditSettings, ProgressOf
from headrace.streams.audit_offsets import Progress
from headrace.streams.audit_range import AuditRange
from headrace.streams.audit_report import AuditReport, Counts, Example, Kind, Verdict
from headrace.streams.kafka_committed import committed_positions
from headrace.streams.kafka_properties import KafkaSettings, translate
from headrace.streams.log import Mode
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as ProgressBar

STATUS = {Verdict.CLEAN: 0, Verdict.FINDINGS: 1, Verdict.UNSURE: 2}
"""Exit status of each verdict; 2 is also that of an audit that could not be finished."""

OFFSETS = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{0,18})", re.ASCII)

Result = TypeVar("Result")


class View(StrEnum):
    """Kafka's ``isolation.level``."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def _cannot_tell(command: Callable[..., Result]) -> Callable[..., Result]:
    """Let a command end with 2 where it fails, by a bug of ours, too: 1 says that something was found."""

    @wraps(command)
    def run(**values: object) -> Result:
        try:
            return command(**values)
        except typer.Exit:
            raise  # it says what it found
        except Exception as exc:
            raise CommandFailed(str(failure_of(exc)), status=STATUS[Verdict.UNSURE]) from exc

    return run


@_cannot_tell
@with_settings(
    "bootstrap_servers",
    "kafka_config",
    "topic_prefix",
    "allow_reply_topics",
    "mapping",
    "config",
    "log_level",
)
def audit(
    *,
    settings: Settings,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Names of models; none audits all that have topics."),
    ] = None,
    delivery: Annotated[
        Mode,
        typer.Option(
            help="The promise to hold it against: at_least_once allows equal duplicates, exactly_once a call's "
            "missing reply (its caller got 504)."
        ),
    ] = Mode.AT_LEAST_ONCE,
    isolation_level: Annotated[
        View, typer.Option(help="The view to audit; the other one is all that was ever written.")
    ] = View.COMMITTED,
    since: Annotated[
        str,
        typer.Option(
            help="First time: an age (15m, 2h, 7d), a time in UTC or epoch milliseconds."
        ),
    ] = "",
    until: Annotated[str, typer.Option(help="Time to stop before, spelled the same.")] = "",
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            help="Stretch of a partition of the one model's requests, PARTITION:FIRST-[END]; the end is not "
            "part of it. Once for each partition, instead of times.",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Show so many of each kind and model.")
    ] = 10,
    max_memory_mib: Annotated[
        int, typer.Option(min=1, help="Memory for the requests of the range: a byte each.")
    ] = 512,
    json_out: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Count the answers of every accepted request: missing, duplicated and orphaned ones, with coordinates.

    Reads the topics of requests, results, replies and dead letters, and what the models' groups have committed. Joins
    no group, writes nothing. A request that is not finished yet is pending, not missing; one whose answer may have been
    deleted by retention is unknown. Duplicates are compared: floats within 1e-5 are equal.

    Ends with 0 if it is clean, 1 if the promise is broken, 2 if it cannot tell: something is unknown, a topic cannot
    be read, or the arguments are wrong.

    [bold]Examples[/]

      headrace audit --bootstrap-servers 127.0.0.1:9092

      headrace audit resnet vad --delivery exactly_once --since 2h --json

      headrace audit resnet --offsets 0:1000-2000 --kafka-config client.properties

      headrace audit fraud --mapping fraud=fraud.toml --since 2h --bootstrap-servers 127.0.0.1:9092
    """
    mappings = read_mappings(settings)
    topology = topology_of(settings, topics_of(mappings))
    span = _span(topology, models or [], since, until, offsets or [])
    if span.is_whole:
        _check_beginnings(mappings, models or list(mappings))
    bounds = AuditSettings(
        committed=isolation_level is View.COMMITTED,
        max_examples=examples,
        max_memory_bytes=max_memory_mib << 20,
    )
    report = asyncio.run(run_audit(settings, topology, models or [], span, bounds))
    verdict = report.verdict(delivery)
    if json_out:
        document = {"verdict": verdict, "delivery": delivery, **report.to_json()}
        out.print(json.dumps(document), markup=False)
    else:
        print_report(report, verdict, delivery)
    raise typer.Exit(STATUS[verdict])


async def run_audit(
    settings: Settings,
    topology: Topology,
    models: Sequence[str],
    span: AuditRange,
    bounds: AuditSettings,
) -> AuditReport:
    """Audit models on the Kafka that the settings name, with a bar on standard error where that is a terminal."""
    properties = named_kafka(settings)
    file = "" if settings.kafka_config is None else str(settings.kafka_config)
    progress = kafka_progress(translate(properties, file=file))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    async with open_log(properties, settings) as log:
        with ProgressBar(
            *columns, console=errors, transient=True, disable=not errors.is_terminal
        ) as bar:
            task = bar.add_task("", total=None)

            def on_step(step: str, done: int, total: int) -> None:
                bar.update(task, description=step, completed=done, total=total)

            auditor = Auditor(log, topology, bounds, progress=progress, on_step=on_step)
            return await auditor.audit(models, span)


def kafka_progress(kafka: KafkaSettings) -> ProgressOf:
    """Return the function that asks Kafka what a worker's group has finished (DELIVERY P-1)."""

    async def ask(group: str, tps: Set[TP]) -> Mapping[TP, Progress]:
        found = await committed_positions(kafka, group, tps)
        return {tp: Progress.of(position, decode_metadata) for tp, position in found.items()}

    return ask


def print_report(report: AuditReport, verdict: Verdict, delivery: Mode) -> None:
    """Print the counts of each partition, the examples, and what they come to."""
    rows = [
        (model.model, p.partition, f"{p.start}-{p.end}", *_cells(p.counts))
        for model in report.models
        for p in model.partitions
    ]
    total = report.total
    print_table(
        ("model", "partition", "offsets", "requests", "answered", "besides"),
        [*rows, ("all", "", "", *_cells(total))],
    )
    for model in report.models:
        for example in model.examples:
            # No table: a place that is cut, or broken into two lines, leads nobody there.
            out.print(plain(_told(example)), markup=False)
    for note in report.notes:
        errors.print(note, markup=False)
    out.print(_sentence(total, verdict, delivery), markup=False)


WORDS = {
    Kind.MISSING: "missing",
    Kind.UNKNOWN: "unknown",
    Kind.DUPLICATED: "different duplicate",
    Kind.REPEATED: "equal duplicate",
    Kind.UNCOMPARED: "duplicate not compared",
    Kind.ORPHANED: "orphaned",
}


def _told(example: Example) -> str:
    places = ", ".join(example.answers)
    detail = "" if example.detail == "equal" else example.detail
    return ": ".join(filter(None, (WORDS[example.kind], example.source, detail, places)))


def _cells(counts: Counts) -> tuple[int | str, ...]:
    besides = (
        (counts.pending, "pending"),
        (counts.missing, "missing"),
        (counts.missing_replies, "without a reply"),
        (counts.unknown, "unknown"),
        (counts.duplicated_equal, "equal duplicates"),
        (counts.duplicated_different, "different duplicates"),
        (counts.duplicated_unknown, "duplicates not compared"),
        (counts.orphaned, "orphaned"),
        (counts.dead_letters, "dead letters"),
        (counts.dead_letters_repeated, "repeated dead letters"),
    )
    told = ", ".join(f"{count} {word}" for count, word in besides if count)
    return counts.requests, counts.answered, told


def _sentence(total: Counts, verdict: Verdict, delivery: Mode) -> str:
    is_once = delivery is Mode.EXACTLY_ONCE
    if verdict is Verdict.CLEAN:
        kept = f"{total.answered} of {total.requests} requests are answered, {total.pending} are pending"
        lost = total.missing_replies  # else they would be findings
        got = f", {lost} calls got no reply (their callers got 504)" if lost else ""
        return f"Clean, as {delivery} promises: {kept}{got}."
    if verdict is Verdict.UNSURE:
        return (
            f"Cannot tell: {total.unknown} answers may have been deleted or lie elsewhere, "
            f"{total.duplicated_unknown} duplicates were not compared; nothing else was found."
        )
    missing = total.missing if is_once else total.missing + total.missing_replies
    letters = total.dead_letters_repeated if is_once else 0
    return (
        f"Not as {delivery} promises: {missing} missing, {total.duplicated} duplicated "
        f"({total.duplicated_equal} of them equal), {total.orphaned} orphaned"
        + (f", {letters} dead letters repeated." if letters else ".")
    )


def _check_beginnings(mappings: Mapping[str, ModelMapping], models: Sequence[str]) -> None:
    """Refuse models some of whose requests were there before they were served, which have no answer."""
    for name in models:
        mapping = mappings.get(name)
        if mapping is not None and mapping.source.offset_reset == "latest":
            raise CommandFailed(
                f"model '{name}' was first served from where topic {mapping.source.topic} ended then, expected --since "
                "or --offsets"
            )


def _span(
    topology: Topology, models: Sequence[str], since: str, until: str, offsets: Sequence[str]
) -> AuditRange:
    if not offsets:
        return AuditRange(*period_ms(since, until, wall_ms()))
    if since or until or len(models) != 1:
        raise CommandFailed(
            f"--offsets goes with one model and no times, found {len(models)} models"
            + (" and times" if since or until else "")
        )
    topic = topology.requests(models[0])
    spans: dict[TP, tuple[int, int | None]] = {}
    for text in offsets:
        found = OFFSETS.fullmatch(text)
        if found is None:
            _refuse("--offsets", text, "PARTITION:FIRST-END such as 0:1000-2000, or 0:1000-")
        partition, first, end = found.groups()
        if end and int(end) < int(first):
            _refuse("--offsets", text, "an end that is not before the first offset")
        tp = TP(topic, int(partition))
        if tp in spans:
            _refuse("--offsets", text, f"one stretch of partition {partition}")
        spans[tp] = (int(first), int(end) if end else None)
    return AuditRange(offsets=spans)


def _refuse(option: str, text: str, expected: str) -> NoReturn:
    raise CommandFailed(f"{option} is {text[:100]!r}, expected {expected}")
