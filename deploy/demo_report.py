"""What the demo prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from headrace.deploy.console import out as console
from rich.columns import Columns
from rich.table import Table

if TYPE_CHECKING:
    from headrace.deploy.demo import Run

SHOWN_TYPES = 15
"""Rows of the table of types."""
BAR_WIDTH = 30


def print_report(run: Run) -> None:
    """Print the types found, rate, latencies, batch sizes and how many answers are equal."""
    tables = Columns([_types(run), _batches(run), _figures(run)], padding=(1, 3))
    console.print(tables, soft_wrap=False)
    for path, got, wanted in run.different[:10]:
        console.print(f"[red]{path}: answered {got!r}, Magika says {wanted!r}[/]")
    if run.http_text:
        console.print(run.http_text)
    compared = len(run.jobs) - run.changed
    if run.is_good:
        console.print(f"[bold green]All {run.equal} of {compared} answers equal Magika's own.[/]")
    else:
        console.print(
            f"[bold red]{run.equal} of {compared} answers equal Magika's own, "
            f"{len(run.different)} differ, {run.missing} are missing.[/]"
        )


def _types(run: Run) -> Table:
    table = Table("type", "files", title="Types found")
    common = run.types.most_common()
    for label, count in common[:SHOWN_TYPES]:
        table.add_row(label, str(count))
    rest = common[SHOWN_TYPES:]
    if rest:
        table.add_row(f"{len(rest)} more types", str(sum(count for _, count in rest)))
    table.add_row("decided without the model", str(run.decided))
    return table


def _batches(run: Run) -> Table:
    table = Table("rows", "batches", "", title="Batch sizes")
    most = max(run.batch_rows.values(), default=1) or 1
    for rows, count in run.batch_rows.items():
        table.add_row(rows, str(count), "█" * round(BAR_WIDTH * count / most))
    return table


def _figures(run: Run) -> Table:
    answered = [job.latency_s for job in run.jobs.values() if job.latency_s is not None]
    table = Table("figure", "value", title="Records in, records out")
    table.add_row("records", str(len(run.jobs)))
    table.add_row("answers", str(len(answered)))
    table.add_row("equal to Magika's own", str(run.equal))
    if run.equal_in_batch:
        table.add_row("of these, to its verdict in a batch", str(run.equal_in_batch))
    if run.changed:
        table.add_row("files changed meanwhile", str(run.changed))
    table.add_row("rate", f"{len(answered) / max(run.seconds, 1e-9):,.0f} files/s")
    if answered:
        p50, p99 = np.percentile(answered, [50, 99])
        table.add_row("latency p50", f"{p50 * 1000:.1f} ms")
        table.add_row("latency p99", f"{p99 * 1000:.1f} ms")
    return table
