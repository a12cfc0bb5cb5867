"""All commands of `headrace`, and their one end: whatever it is becomes one sentence and an exit status."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from headrace.deploy.commands_audit import audit
from headrace.deploy.commands_claims import app as claims_app
from headrace.deploy.commands_dlq import app as dlq_app
from headrace.deploy.commands_infer import infer
from headrace.deploy.commands_map import app as map_app
from headrace.deploy.commands_models import app as models_app
from headrace.deploy.commands_sequences import sequences
from headrace.deploy.commands_serve import gateway, serve, worker
from headrace.deploy.commands_topics import app as topics_app
from headrace.deploy.console import errors
from headrace.deploy.failure import failure_of

INTERRUPTED = 130
"""Exit status after the interrupt key, as shells have it."""

app = typer.Typer(
    name="headrace",
    help="Serve machine-learning models from Apache Kafka with Triton's semantics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (serve, worker, gateway, infer, sequences, audit):
    app.command()(command)
app.add_typer(models_app, name="models")
app.add_typer(topics_app, name="topics")
app.add_typer(dlq_app, name="dlq")
app.add_typer(claims_app, name="claims")
app.add_typer(map_app, name="map")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("headrace"))
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from (a traceback).")
    ] = False,
) -> None:
    """Serve machine-learning models from Apache Kafka with Triton's semantics."""


def run(arguments: list[str]) -> None:
    """Run the command line; always ends with `SystemExit`.

    Args:
        arguments: Without the program's name.
    """
    try:
        app(args=arguments, prog_name="headrace")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as exc:
        if "--debug" in arguments:
            raise
        failure = failure_of(exc)
        errors.print(str(failure), markup=False)
        sys.exit(failure.status)
