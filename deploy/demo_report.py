"""What the demo prints at its end."""

from __future__ import annotations

from collections.abc import Mapping
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
    tables = Columns([_types(run), batches_table(run.batch_rows), _figures(run)], padding=(1, 3))
    console.print(tables, soft_wrap=False)
    for path, got, wanted in run.different[:10]:
        console.print(f"[red]{path}: answered {got!r}, Magika says {wanted!r}[/]")
    if run.http_text:
        console.print(run.http_text)
    console.print(f"[bold {'green' if run.is_good else 'red'}]{verdict_of(run)}[/]")


def verdict_of(run: Run) -> str:
    """Return the demo's closing sentence: what was compared with what, and what came of it."""
    alone = run.equal - run.equal_in_batch
    parts = [f"{alone} equal Magika's verdict of the file alone"]
    if run.equal_in_batch:
        parts.append(
            f"{run.equal_in_batch} only its verdict of the file in a batch (a near tie of two labels)"
        )
    if run.different:
        parts.append(f"{len(run.different)} differ")
    if run.missing:
        parts.append(f"{run.missing} are missing")
    if run.changed or run.gone:
        parts.append(f"not compared as their files changed meanwhile: {run.changed + run.gone}")
    if not run.http_label:
        parts.append("nothing was asked over HTTP")
    if run.equal < run.least:
        parts.append(f"expected at least {run.least} that are equal")
    start = "All answers are Magika's own: o" if run.is_good else "O"
    return f"{start}f {len(run.jobs)} files asked about, {', '.join(parts)}."


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


def batches_table(batch_rows: Mapping[str, int], title: str = "Batch sizes") -> Table:
    """Return a histogram: a bucket's rows → number of batches."""
    table = Table("rows", "batches", "", title=title)
    most = max(batch_rows.values(), default=1) or 1
    for rows, count in batch_rows.items():
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
    if run.changed or run.gone:
        table.add_row("files changed meanwhile", str(run.changed + run.gone))
    table.add_row("rate", f"{len(answered) / max(run.seconds, 1e-9):,.0f} files/s")
    if answered:
        p50, p99 = np.percentile(answered, [50, 99])
        table.add_row("latency p50", f"{p50 * 1000:.1f} ms")
        table.add_row("latency p99", f"{p99 * 1000:.1f} ms")
    return table
