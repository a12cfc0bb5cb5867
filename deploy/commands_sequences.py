"""`headrace sequences`: which sequences of a model are live, where they are, and what they wait for.

The workers of the model are found in the status topic, and each is asked on its own port: what changes with every step
does not go through the log.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import aiohttp
import typer
from headrace.deploy.broker import named_kafka, open_log, topology_of
from headrace.deploy.console import errors, out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.fleet_reading import HEARTBEAT_S, read_fleet
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings, option_name
from headrace.streams.log import Log
from headrace.streams.sequence_list import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NO_INSTANCE,
    SequencePage,
    SequenceRow,
    merged,
)
from headrace.streams.status import WorkerStatus
from headrace.streams.watch import wall_ms

ASK_S = 5.0
"""Seconds that a worker may take to answer."""


@with_settings("bootstrap_servers", "kafka_config", "topic_prefix", "config", "log_level")
def sequences(
    *,
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=MAX_LIMIT, help="Show this many, the most recently active ones."
        ),
    ] = DEFAULT_LIMIT,
    json_out: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Show a model's live sequences: id, partition, slot or backlog, steps, idle time, version and worker.

    A sequence is live from its START until its END, or until it was silent for too long. String ids stand in quotes:
    7 and '7' are two sequences. Ends with 1 if no worker answers.

    [bold]Examples[/]

      headrace sequences vad --bootstrap-servers 127.0.0.1:9092

      headrace sequences vad --kafka-config client.properties --limit 1000

      headrace sequences vad --bootstrap-servers 127.0.0.1:9092 --json
    """
    page = asyncio.run(ask_workers(settings, model, limit))
    if json_out:
        out.print(page.to_json().decode(), markup=False)
    else:
        print_sequences(model, page)


def print_sequences(model: str, page: SequencePage) -> None:
    """Print a table of sequences, the most recently active ones first."""
    if not page.rows:
        out.print(f"Model '{model}' has no live sequences.", markup=False)
        return
    print_table(
        ("id", "partition", "place", "steps", "idle", "version", "worker"),
        [
            (
                repr(row.id),  # a client's word: without what a terminal would obey
                row.partition,
                _place(row),
                row.steps,
                f"{row.idle_ms / 1000:.1f} s",
                row.version,
                row.worker,
            )
            for row in page.rows
        ],
        title=f"{model}: {len(page.rows)} of {page.total} live sequences",
    )


def _place(row: SequenceRow) -> str:
    return row.place if row.instance == NO_INSTANCE else f"instance {row.instance}, {row.place}"


async def ask_workers(settings: Settings, model: str, limit: int) -> SequencePage:
    """Return the merged pages of the workers that answer; says on standard error which do not.

    Raises:
        CommandFailed: There is no such model, it has no sequences, or no worker answers.
    """
    async with open_log(named_kafka(settings), settings) as log:
        workers = await live_workers(log, topology_of(settings).status, model)
    timeout = aiohttp.ClientTimeout(ASK_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answers = await asyncio.gather(
            *(_ask(session, worker, limit) for worker in workers), return_exceptions=True
        )
    pages: list[SequencePage] = []
    failures: list[CommandFailed] = []
    for answer in answers:
        if isinstance(answer, SequencePage):
            pages.append(answer)
        elif isinstance(answer, CommandFailed):
            failures.append(answer)
        else:
            raise answer
    for failure in failures:
        errors.print(str(failure), markup=False)
    if not pages:
        raise CommandFailed(f"no worker of model '{model}' told its sequences")
    return merged(pages, limit)


async def live_workers(
    log: Log, topic: str, model: str, *, wait_s: float = HEARTBEAT_S
) -> Sequence[WorkerStatus]:
    """Return what the live workers of a sequence model say in the status topic.

    Args:
        log: Entered already.
        topic: The status topic.
        model: Name of the model.
        wait_s: As of `read_fleet`.

    Raises:
        CommandFailed: The topic cannot be read in time, there is no such model, no worker serves it, or it has no
            sequences.
    """
    fleet = await read_fleet(log, topic, model, wait_s=wait_s)
    workers = fleet.workers(model, wall_ms())
    if not workers:
        raise CommandFailed(f"no live worker serves model '{model}'")
    if not any(worker.sequences is not None or _has_sequences(worker) for worker in workers):
        raise CommandFailed(
            f"model '{model}' has no sequences: there is no sequence_batching in its configuration"
        )
    return workers


def _has_sequences(worker: WorkerStatus) -> bool:
    return any("sequence_batching" in (version.config or {}) for version in worker.versions)


async def _ask(session: aiohttp.ClientSession, worker: WorkerStatus, limit: int) -> SequencePage:
    """Ask one worker.

    Raises:
        CommandFailed: It cannot be asked, refuses, or answers something else.
    """
    name, option = f"worker '{worker.worker}'", option_name("worker_advertised_url")
    if not worker.url:
        raise CommandFailed(f"{name} has told no address; {option} of the worker names one")
    path = f"{worker.url}/v2/models/{quote(worker.model, safe='')}/sequences"
    try:
        async with session.get(path, params={"limit": str(limit)}) as answer:
            status, body = answer.status, await answer.read()
    except TimeoutError as exc:
        raise CommandFailed(f"{name} did not answer on {worker.url} within {ASK_S:g} s") from exc
    except (aiohttp.ClientError, ValueError) as exc:
        cause = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        raise CommandFailed(
            f"{name} cannot be reached on {worker.url} ({cause}); {option} of the worker says "
            "where others reach it"
        ) from exc
    if status != 200:
        raise CommandFailed(f"{name} on {worker.url} answered {status}: {_reason(body)}")
    try:
        return SequencePage.from_json(body)
    except ValueError as exc:
        raise CommandFailed(
            f"{name} on {worker.url} answered something else than sequences: {exc}"
        ) from exc


def _reason(body: bytes) -> str:
    """Return what an error body says, whoever made it."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no reason given"
