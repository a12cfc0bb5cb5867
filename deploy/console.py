"""Where commands print: tables for people on standard output, errors and hints on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 160
"""Width of tables that go into a file or a pipe: a sentence that is cut at 80 columns says nothing."""


def _width(stream: TextIO) -> int | None:
    """Return the width to print at; None is the terminal's own, or ``COLUMNS``."""
    return None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_COLUMNS


out = Console(soft_wrap=True, highlight=False, width=_width(sys.stdout))
errors = Console(stderr=True, soft_wrap=True, highlight=False, width=_width(sys.stderr))

STATE_STYLES = {
    "READY": "green",
    "UNAVAILABLE": "red",
    "LOADING": "yellow",
    "yes": "green",
    "no": "red",
}


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    lines: bool = False,
) -> None:
    """Print a table; cells are plain text, states get their colour.

    What is too wide is broken, not cut: half a number or a name is none. ``lines`` keeps rows of several lines apart.
    """
    table = Table(title=title or None, title_justify="left", show_lines=lines)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell), STATE_STYLES.get(str(cell), "")) for cell in row))
    out.print(table, soft_wrap=False)


def plain(text: str) -> str:
    """Return somebody else's words without what a terminal would obey: what cannot be printed is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def hint(sentence: str) -> None:
    """Print a sentence that helps, on standard error."""
    errors.print(sentence, style="yellow", markup=False)
