"""`headrace dlq`: what could not be served, why, and once the cause is mended, all of it again.

As Kafka's own tools that change something do, `redrive` only says what it would do until it is told ``--execute``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import errors, hint, out
from headrace.deploy.dlq_report import (
    letter_json,
    print_letter,
    print_letters,
    print_planned,
    printed_json,
)
from headrace.deploy.failure import CommandFailed
from headrace.deploy.options import BROKER, COMMON, with_settings
from headrace.deploy.settings import Settings
from headrace.deploy.times import period_ms
from headrace.schemas.dead_letter import DeadLetter
from headrace.schemas.errors import LogError
from headrace.streams.dead_letter_redrive import Options, Planned, plan, redrive
from headrace.streams.dead_letter_topic import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    Found,
    LetterId,
    LetterRow,
    LetterState,
    Selection,
    find_letters,
    read_letters,
)
from headrace.streams.log import Log
from headrace.streams.watch import wall_ms
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

app = typer.Typer(no_args_is_help=True)

REDRIVE_LIMIT = 1_000
"""Letters that one redrive sends, unless asked for otherwise."""

Models = Annotated[
    list[str] | None, typer.Option("--model", help="Only those of this model; may be repeated.")
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", help="Only those with this reason word; may be repeated."),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        min=0,
        help="Only requests of this partition of their topic; may be repeated.",
    ),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        help="Only those written since then: an age (30m, 2h, 7d), a time in UTC or epoch milliseconds.",
    ),
]
Until = Annotated[str, typer.Option("--until", help="Only those written before then.")]
States = Annotated[
    list[LetterState] | None,
    typer.Option("--state", help="Only those of which this became; may be repeated."),
]
OldestFirst = Annotated[
    bool, typer.Option("--oldest-first", help="The first written ones, in the topic's order.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="Show this many.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Their ids, as list shows them.")
]
Everything = Annotated[bool, typer.Option("--all", help="Every pending one.")]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Send them, or only say what would be sent.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Also those that were redriven, or may have been.")
]
DropDeadline = Annotated[
    bool, typer.Option("--drop-deadline", help="Send them without their own deadline-ms.")
]
RedriveLimit = Annotated[
    int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="At most this many, the oldest first.")
]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@app.callback()
def dlq() -> None:
    """Look at the dead-letter topic, and send what it holds again.

    [bold]Examples[/]

      headrace dlq list --bootstrap-servers 127.0.0.1:9092

      headrace dlq show 0/42 --bootstrap-servers 127.0.0.1:9092

      headrace dlq redrive --model vad --execute --bootstrap-servers 127.0.0.1:9092
    """


@app.command("list")
@with_settings(*BROKER, *COMMON)
def list_letters(
    *,
    settings: Settings,
    model: Models = None,
    reason: Reasons = None,
    partition: Partitions = None,
    since: Since = "",
    until: Until = "",
    state: States = None,
    oldest_first: OldestFirst = False,
    limit: Limit = DEFAULT_LIMIT,
    json_out: Json = False,
) -> None:
    """Show what could not be served, the latest first: where it came from, why, and what became of it.

    A letter's id is its partition and offset in the dead-letter topic. It is pending until it is redriven; it is in
    doubt where a redrive ended before it could say whether it was sent.

    [bold]Examples[/]

      headrace dlq list --bootstrap-servers 127.0.0.1:9092

      headrace dlq list --kafka-config client.properties --model vad --reason undecodable --since 2h

      headrace dlq list --bootstrap-servers 127.0.0.1:9092 --state pending --oldest-first --json
    """
    selection = _selection(model, reason, partition, since, until)
    selection = replace(selection, states=frozenset(state or ()))
    found = asyncio.run(_find(settings, selection))
    rows = found.oldest(limit) if oldest_first else found.newest(limit)
    if json_out:
        letters = [row.to_json() for row in rows]
        out.print(printed_json({"total": len(found.rows), "letters": letters}), markup=False)
        return
    if found.others:
        hint(f"{found.others} records of the topic are no dead letters and are left out.")
    print_letters(rows, len(found.rows))


@app.command("show")
@with_settings(*BROKER, *COMMON)
def show(
    *,
    settings: Settings,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, as list shows it.")],
    json_out: Json = False,
) -> None:
    """Show one dead letter: its error, headers and sizes, the request if it can be decoded, and its first bytes.

    As JSON it has the whole key and value in base64.

    [bold]Examples[/]

      headrace dlq show 0/42 --bootstrap-servers 127.0.0.1:9092

      headrace dlq show 0/42 --kafka-config client.properties --json
    """
    (wanted,) = _ids([letter_id])
    row, letter = asyncio.run(_read(settings, wanted))
    if json_out:
        out.print(printed_json(letter_json(row, letter)), markup=False)
    else:
        print_letter(row, letter)


@app.command("redrive")
@with_settings(*BROKER, *COMMON)
def redrive_letters(
    *,
    settings: Settings,
    letter_ids: Ids = None,
    model: Models = None,
    reason: Reasons = None,
    partition: Partitions = None,
    since: Since = "",
    until: Until = "",
    everything: Everything = False,
    execute: Execute = False,
    again: Again = False,
    drop_deadline: DropDeadline = False,
    limit: RedriveLimit = REDRIVE_LIMIT,
    json_out: Json = False,
) -> None:
    """Send dead letters again as the requests that they were; without --execute only say what would be sent.

    A request goes to the topic and partition that it came from, with its key, value and headers as they were; its
    header attempt is raised. Each letter is marked in the dead-letter topic before and after, and a second redrive of
    it is refused unless --again. Ends with 1 if a letter that was asked for is not sent. Steps of a sequence come
    behind what was sent meanwhile, so a sequence that went on without them is better started anew. Two redrives of
    the same letters at the same time may both send them.

    [bold]Examples[/]

      headrace dlq redrive 0/42 1/7 --bootstrap-servers 127.0.0.1:9092

      headrace dlq redrive --model vad --since 2h --bootstrap-servers 127.0.0.1:9092

      headrace dlq redrive --all --execute --kafka-config client.properties
    """
    selection = _selection(model, reason, partition, since, until)
    selection = replace(selection, ids=frozenset(_ids(letter_ids or ())))
    if selection == Selection() and not everything:
        raise CommandFailed(
            "say which dead letters: ids, --model, --reason, --partition, --since, --until, or --all",
            status=2,
        )
    if not selection.ids and not again:
        # What may have been sent is looked at too, and told to be refused.
        states = frozenset({LetterState.PENDING, LetterState.IN_DOUBT})
        selection = replace(selection, states=states)
    run = _Run(settings, selection, again=again, drop_deadline=drop_deadline, limit=limit)
    try:
        asyncio.run(run.go(execute=execute))
    finally:
        if run.is_planned:
            run.report(execute=execute, json_out=json_out)
    kept = len(run.planned) - len(run.sent)
    if execute and kept:
        raise CommandFailed(f"{kept} of {len(run.planned)} dead letters were not sent")


class _Run:
    """One redrive: what was planned, and what of it was sent, also where it ends early."""

    def __init__(
        self,
        settings: Settings,
        selection: Selection,
        *,
        again: bool,
        drop_deadline: bool,
        limit: int,
    ) -> None:
        self.is_planned = False
        self.planned: list[Planned] = []
        self.sent: list[Planned] = []
        self._more = 0
        self._settings = settings
        self._selection = selection
        self._again = again
        self._drop_deadline = drop_deadline
        self._limit = limit

    async def go(self, *, execute: bool) -> None:
        """Plan, and send what was planned if wanted."""
        topic = topology_of(self._settings).dead_letters
        async with open_log(named_kafka(self._settings), self._settings) as log:
            found = await find_letters(log, topic, self._selection)
            _check_found(self._selection.ids, found.rows, topic)
            rows = found.oldest(self._limit)
            self._more = len(found.rows) - len(rows)
            options = Options(
                again=self._again,
                without_deadline=self._drop_deadline,
                now_ms=wall_ms(),
                max_record_bytes=log.max_record_bytes,
            )
            self.planned = plan(rows, await log.topics(), options)
            self.is_planned = True
            if execute:
                await self._send(log, topic, options)

    async def _send(self, log: Log, topic: str, options: Options) -> None:
        going = sum(not one.refusal for one in self.planned)
        columns = (TextColumn("redriving"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
            shown = progress.add_task("", total=going)

            def on_sent(batch: Sequence[Planned]) -> None:
                self.sent += batch
                progress.advance(shown, len(batch))

            try:
                await redrive(log, topic, self.planned, options, on_sent)
            except LogError as exc:
                raise CommandFailed(
                    f"the redrive ended after {len(self.sent)} of {going} dead letters: {exc.detail}; "
                    "headrace dlq list --state in-doubt shows those that may have been sent"
                ) from exc

    def report(self, *, execute: bool, json_out: bool) -> None:
        """Print what would be sent, or what was."""
        sent = {one.row.id for one in self.sent}
        if json_out:
            letters = [{**one.to_json(), "sent": one.row.id in sent} for one in self.planned]
            body = {"dry_run": not execute, "letters": letters, "more": self._more}
            out.print(printed_json(body), markup=False)
            return
        print_planned(self.planned, sent, is_dry=not execute)
        if self._more:
            hint(f"{self._more} more match: run it again, or raise --limit (at most {MAX_LIMIT}).")


async def _find(settings: Settings, selection: Selection) -> Found:
    async with open_log(named_kafka(settings), settings) as log:
        return await find_letters(log, topology_of(settings).dead_letters, selection)


async def _read(settings: Settings, wanted: LetterId) -> tuple[LetterRow, DeadLetter]:
    topic = topology_of(settings).dead_letters
    async with open_log(named_kafka(settings), settings) as log:
        found = await find_letters(log, topic, Selection(ids=frozenset({wanted})))
        letters = [letter async for _, letter in read_letters(log, topic, [wanted])]
    _check_found([wanted], found.rows if letters else [], topic)
    return found.rows[0], letters[0]


def _check_found(wanted: Iterable[LetterId], rows: Sequence[LetterRow], topic: str) -> None:
    """Refuse ids of which there is no letter, or that the rest of the selection leaves out.

    Raises:
        CommandFailed: Names them.
    """
    missing = sorted(set(wanted) - {row.id for row in rows})
    if missing:
        raise CommandFailed(
            f"topic {topic} has no dead letter {', '.join(map(str, missing))} that is selected"
        )


def _ids(texts: Iterable[str]) -> list[LetterId]:
    try:
        return [LetterId.of(text) for text in texts]
    except ValueError as exc:
        raise CommandFailed(str(exc), status=2) from exc


def _selection(
    models: Sequence[str] | None,
    reasons: Sequence[str] | None,
    partitions: Sequence[int] | None,
    since: str,
    until: str,
) -> Selection:
    start, end = period_ms(since, until, wall_ms())
    return Selection(
        models=frozenset(models or ()),
        reasons=frozenset(reasons or ()),
        partitions=frozenset(partitions or ()),
        since_ms=start or 0,
        until_ms=end,
    )
