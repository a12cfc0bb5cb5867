"""What the speech demo prints at its end."""

from __future__ import annotations

from headrace.deploy.console import out as console
from headrace.deploy.demo_report import batches_table
from headrace.deploy.demo_speech_audio import segments_of
from headrace.deploy.demo_speech_model import TOLERANCE
from headrace.deploy.demo_speech_run import Run
from rich.columns import Columns
from rich.table import Table

SHOWN_ERRORS = 10


def print_report(run: Run) -> None:
    """Print who spoke when, the figures, what is wrong if anything is, and the closing sentence."""
    console.print(_segments(run), soft_wrap=False)
    tables = [_figures(run), batches_table(run.batch_rows, "Batch sizes of worker b")]
    console.print(Columns(tables, padding=(1, 3)), soft_wrap=False)
    for sentence in complaints(run)[:SHOWN_ERRORS]:
        console.print(sentence, style="red", markup=False)
    console.print(f"steps lost: {run.lost}")
    console.print(f"steps applied twice: {run.twice}")
    console.print(f"[bold {'green' if run.is_good else 'red'}]{verdict_of(run)}[/]")


def verdict_of(run: Run) -> str:
    """Return the demo's closing sentence: what was compared with what, and what came of it."""
    tally, kill = run.tally, run.kill
    parts = [
        f"{run.equal} have the probability that the model gives alone, in order, within {TOLERANCE:g}"
    ]
    if run.equal < run.steps:
        parts.append(f"{run.steps - run.equal} differ or are missing")
    if tally.errors:
        parts.append(f"{len(tally.errors)} answers are errors")
    if tally.disordered:
        parts.append(f"{tally.disordered} answers came out of order")
    if tally.repeated_differently:
        parts.append(f"{tally.repeated_differently} answers came again with another value")
    if kill.open < len(run.streams):
        parts.append(f"only {kill.open} streams were open at the kill")
    if len(run.streams) < run.least:
        parts.append(f"expected at least {run.least} streams")
    start = "The kill changed no answer: o" if run.is_good else "O"
    return f"{start}f {run.steps} steps of {len(run.streams)} streams, {', '.join(parts)}."


def complaints(run: Run) -> list[str]:
    """Return a sentence per stream that leaves the model, then one per error."""
    sentences = []
    for row, departure in run.departures.items():
        why = "for no reason that was found"
        if departure.lost:
            why = f"as if {departure.lost} steps before it had not run"
        elif departure.twice:
            why = f"as if {departure.twice} steps before it had run twice"
        sentences.append(
            f"{run.streams[row].name}: step {departure.step} has "
            f"{run.tally.answers[row, departure.step]:.6f}, the model alone says "
            f"{run.expected[row, departure.step]:.6f}, {why}"
        )
    return sentences + run.tally.errors


def _segments(run: Run) -> Table:
    table = Table("stream", "cut from", "speech, seconds", title="Who spoke when")
    for row, stream in enumerate(run.streams):
        spoken = segments_of(run.tally.answers[row])
        table.add_row(
            stream.name,
            stream.origin,
            " ".join(f"{start:.1f}-{end:.1f}" for start, end in spoken) or "nothing",
        )
    return table


def _figures(run: Run) -> Table:
    tally, kill = run.tally, run.kill
    table = Table("figure", "value", title="Records in, records out")
    table.add_row("streams at once", str(len(run.streams)))
    table.add_row("seconds of each", f"{run.seconds:.1f}")
    table.add_row("steps", str(run.steps))
    table.add_row("answered before the kill", str(kill.answered))
    table.add_row(
        "answered again after it, equal", str(tally.repeated - tally.repeated_differently)
    )
    table.add_row("the same, not equal", str(tally.repeated_differently))
    table.add_row("latency p50 before the kill", f"{run.latency_p50_s * 1000:.1f} ms")
    table.add_row("longest time without an answer", f"{run.gap_s:.1f} s")
    table.add_row("largest difference", f"{run.largest_difference:.1e}")
    return table
