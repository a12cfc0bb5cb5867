"""`headrace models`: what a gateway has, and what a repository would give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from headrace.deploy.client import HttpClient
from headrace.deploy.console import out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.loading import load_settings_of, repository_paths
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.repository.check import CheckRow
from headrace.repository.check import check as check_repositories

app = typer.Typer()
TIMEOUT_S = 10.0
"""Seconds to wait for the gateway's index."""


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    url: Annotated[
        str, typer.Option("--url", envvar="HEADRACE_URL", help="Gateway to ask.")
    ] = "http://127.0.0.1:8000",
) -> None:
    """Show every model version that a gateway knows, with its state and why.

    [bold]Examples[/]

      headrace models

      headrace models --url http://gateway:8000

      headrace models check /path/to/model_repository
    """
    if context.invoked_subcommand is not None:
        return
    rows = asyncio.run(_index(url))
    columns = ("name", "version", "state", "reason")
    print_table(columns, [[row.get(column, "") for column in columns] for row in rows])
    if not rows:
        out.print("No worker has said that it serves a model.")


async def _index(url: str) -> list[dict[str, str]]:
    async with HttpClient(url, timeout_s=TIMEOUT_S) as client:
        return await client.index()


@app.command("check")
@with_settings(
    "model_repository",
    "model_config_name",
    "disable_auto_complete_config",
    "config",
    "log_level",
)
def check(
    settings: Settings,
    repositories: Annotated[
        list[Path] | None,
        typer.Argument(help="Model repositories, model folders or model files."),
    ] = None,
) -> None:
    """Say what would load and what not and why, before anything starts; ends with 1 if something would not.

    [bold]Examples[/]

      headrace models check /path/to/model_repository

      headrace models check my_model.onnx
    """
    paths = repository_paths(settings, *(repositories or ()))
    rows = check_repositories(paths, load_settings_of(settings))
    print_check(rows)
    failed = len({row.model for row in rows if not row.ok})
    if failed:
        raise CommandFailed(
            f"{failed} of {len({row.model for row in rows})} models would not load"
        )


def print_check(rows: Iterable[CheckRow]) -> None:
    """Print the check table, and below it what is skipped or ignored."""
    rows = list(rows)
    print_table(
        ("model", "versions", "backend", "loads", "file", "field", "value", "expected"),
        [
            (
                row.model,
                ", ".join(map(str, row.versions)),
                row.backend,
                "yes" if row.ok else "no",
                row.file,
                row.field,
                row.value,
                row.expected,
            )
            for row in rows
        ],
    )
    for warning in dict.fromkeys(warning for row in rows for warning in row.warnings):
        out.print(f"warning: {warning}", markup=False)
