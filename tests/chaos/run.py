"""The long form of the chaos tests: ``make chaos [FAULT=name] [TIMES=n] [MODE=at_least_once|exactly_once]``.

Three Apache Kafka brokers are started once; each fault has worker processes and topics of its own. Prints one table,
and ends with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.disk import Disk, Unmountable
from chaos.faults import FAULTS, Fault
from chaos.play import played, three_brokers
from chaos.verdict import Figures
from cluster import Cluster
from headrace.deploy.console import errors, out, print_table
from headrace.streams.log import Mode
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

COLUMNS = (
    *("mode", "fault", "times injected", "requests", "lost", "duplicated", "orphaned"),
    *("longest stall", "calls", "verdict"),
)


def main() -> int:
    """Play the faults that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only these")
    parser.add_argument("--times", type=int, default=0, help="inject each so often")
    parser.add_argument("--mode", action="append", choices=[*Mode], help="only these")
    given = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    modes = [Mode(mode) for mode in given.mode or Mode]
    faults = [FAULTS[name] for name in given.fault or FAULTS]
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, _bar() as bar:
        starting = bar.add_task("starting three brokers", total=None)
        with three_brokers(Path(folder)) as (cluster, disk):
            bar.remove_task(starting)
            long = Long(cluster, disk, Path(folder), given.times, bar)
            rows = list(long.play_all(modes, faults))
    _print(rows)
    return int(any(figures.broken() for figures in rows))


@dataclass(frozen=True)
class Long:
    """A run of the long form: where, how often, and who is told."""

    cluster: Cluster
    disk: Disk | Unmountable
    folder: Path
    times: int
    bar: Progress

    def play_all(self, modes: Sequence[Mode], faults: Sequence[Fault]) -> Iterator[Figures]:
        """Play one fault after the other."""
        for mode in modes:
            for fault in faults:
                if mode not in fault.modes:
                    continue
                if fault.needs_disk and isinstance(self.disk, Unmountable):
                    errors.print(f"{fault.name} is passed over: {self.disk}", markup=False)
                    continue
                figures = asyncio.run(self._play(mode, fault))
                if ended := self.cluster.ended():
                    figures.failure = f"brokers {ended} ended by themselves. {figures.failure}"
                verdict = "; ".join(figures.broken()) or "kept"
                self.bar.console.print(f"{mode} {fault.name}: {verdict}", markup=False)
                yield figures
                if left := {1, 2, 3} - set(self.cluster.running()):
                    self.cluster.start(*left)  # it was not played to its end

    async def _play(self, mode: Mode, fault: Fault) -> Figures:
        """Play one fault; one that fails is a row of the table, too."""
        total, injected = self.times or fault.times, 0
        task = self.bar.add_task(f"{mode} {fault.name}", total=total)

        def on_injected(count: int) -> None:
            nonlocal injected
            injected = count
            self.bar.update(task, completed=count)

        disk = None if isinstance(self.disk, Unmountable) else self.disk
        folder = self.folder / f"{mode}-{fault.name}"
        try:
            async with played(
                self.cluster, mode, folder, disk=disk, proxied=fault.proxied
            ) as scene:
                return await scene.play(fault, total, on_injected)
        except Exception as exc:  # noqa: BLE001  # whatever it is, the others are played
            errors.print_exception()
            return Figures(
                fault.name, mode, injected, failure=f"not played to its end: {exc}"[:200]
            )
        finally:
            self.bar.stop_task(task)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=errors)


def _print(rows: Sequence[Figures]) -> None:
    print_table(COLUMNS, [_cells(figures) for figures in rows])
    for figures in rows:
        for example in figures.examples:
            out.print(f"{figures.mode} {figures.fault}: {example}", markup=False)


def _cells(figures: Figures) -> Sequence[object]:
    calls = ", ".join(f"{count} {outcome}" for outcome, count in sorted(figures.calls.items()))
    return (
        *(figures.mode, figures.fault, figures.times, figures.requests, figures.lost),
        *(figures.duplicated, figures.orphaned, f"{figures.stall_s:.1f} s", calls),
        "; ".join(figures.broken()) or "kept",
    )


if __name__ == "__main__":
    sys.exit(main())
