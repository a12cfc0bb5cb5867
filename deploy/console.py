"""Where commands print: tables for people on standard output, errors and hints on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

STATE_STYLES = {
    "READY": "green",
    "UNAVAILABLE": "red",
    "LOADING": "yellow",
    "yes": "green",
    "no": "red",
}


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> None:
    """Print a table; cells are plain text, states get their colour."""
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(str(cell), STATE_STYLES.get(str(cell), "")) for cell in row))
    # Wider than a pipe's 80 columns: a sentence that is cut says nothing.
    out.print(table, soft_wrap=False, width=out.width if out.is_terminal else 160)


def hint(sentence: str) -> None:
    """Print a sentence that helps, on standard error."""
    errors.print(sentence, style="yellow", markup=False)
