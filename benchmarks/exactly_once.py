"""exactly_once beside at_least_once, the same worker on the same work in turn: rates, calls over HTTP, awaited replies.

Answers that nobody awaits gather for 100 ms before their transaction, the worker's default; an answer counts once it is
committed.

An awaited reply is measured by a client with one call in flight, alone and beside a neighbour: another worker on the
same broker whose transactions follow each other without a pause.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import calls
from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.contest import Run, Worker, backlog, serving
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import started

NAME = "eos-vs-alo"
ON_BROKERS = (KAFKA,)  # the embedded one has no transactions
PARTITIONS = (4, 64)
BAR = Bar("ratio", 0.7)
REPLY_BAR = Bar("value", 15.0, at_most=True)
EXACTLY_ONCE = ("--delivery", "exactly_once")
IN_FLIGHT = 64
NEIGHBOUR_PER_S = 80.0
"""Two requests for each of its partitions in each interval, so that there is always something to commit: what is
measured is the wait for its transactions, not the weight of further requests on the same cores."""


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield rate and CPU time per record by number of partitions, then calls' rate and times."""
    write_repository(folder / "models")
    with broker(kind, folder) as running:
        yield from _rates(running, folder, quick=quick)
        yield from _calls(running, folder, quick=quick)


def contenders(folder: Path) -> dict[str, Worker]:
    """Return the worker in either mode, by the mode's name."""
    models = folder / "models"
    return {
        "at_least_once": Worker(models, name="at_least_once"),
        "exactly_once": Worker(models, EXACTLY_ONCE, name="exactly_once"),
    }


def _rates(running: Broker, folder: Path, *, quick: bool) -> Iterator[Figure]:
    count, rounds = (40_000, 1) if quick else (100_000, 3)
    modes = contenders(folder)
    # The first run after a broker's start is a quarter slower, whoever makes it: it does not count.
    backlog(running, modes["exactly_once"], count // 4, max(PARTITIONS), folder)
    for partitions in PARTITIONS:
        pairs: list[tuple[Run, Run]] = []
        for n in range(rounds):
            order = list(modes) if n % 2 == 0 else list(modes)[::-1]
            done = {m: backlog(running, modes[m], count, partitions, folder) for m in order}
            pairs.append((done["exactly_once"], done["at_least_once"]))
        name = f"{NAME}.{partitions}-partitions"
        yield _figure(name, "records/s", [(once.rate, least.rate) for once, least in pairs], BAR)
        cpu_us = [(once.cpu_us, least.cpu_us) for once, least in pairs]
        yield _figure(f"{name}.cpu", "µs/record", cpu_us)
        broker_us = [(once.broker_cpu_us, least.broker_cpu_us) for once, least in pairs]
        if all(least for _, least in broker_us):
            yield _figure(f"{name}.broker-cpu", "µs/record", broker_us)


def _calls(running: Broker, folder: Path, *, quick: bool) -> Iterator[Figure]:
    seconds, rounds = (2.0, 1) if quick else (4.0, 3)
    at_once: list[tuple[dict[str, float], dict[str, float]]] = []
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        ports = {
            mode: stack.enter_context(calls.serving(running, worker, folder)).gateway.http_port
            for mode, worker in contenders(folder).items()
        }

        def drive(in_flight: int) -> tuple[dict[str, float], dict[str, float]]:
            done = {m: calls.drive(port, seconds, in_flight) for m, port in ports.items()}
            return done["exactly_once"], done["at_least_once"]

        def p50s_ms() -> tuple[float, float]:
            once, least = drive(1)
            return once["p50_ms"], least["p50_ms"]

        # A broker answers single calls four times as slowly before it has compiled their way: they do not count.
        drive(IN_FLIGHT)
        with _neighbour(running, folder):
            drive(1)
        for _ in range(rounds):
            at_once.append(drive(IN_FLIGHT))
            alone.append(p50s_ms())
            with _neighbour(running, folder):
                beside.append(p50s_ms())
    http = f"{NAME}.http"
    yield _figure(http, "requests/s", [(once["rate"], least["rate"]) for once, least in at_once])
    p50s = [(once["p50_ms"], least["p50_ms"]) for once, least in at_once]
    yield _figure(f"{http}.p50", "ms", p50s)
    yield _figure(f"{NAME}.reply", "ms", alone, REPLY_BAR)
    yield _figure(f"{NAME}.reply-beside-busy", "ms", beside, REPLY_BAR)


@contextlib.contextmanager
def _neighbour(running: Broker, folder: Path) -> Iterator[None]:
    """Keep another worker's transactions busy for the time of a block."""
    worker = Worker(folder / "models", EXACTLY_ONCE, name="neighbour")
    with serving(running, worker, 1, PARTITIONS[0], folder) as (_, eyes, source):
        eyes.seen()  # it has one to see, and ends
        feed = [
            *(sys.executable, "-m", "benchmarks.feed", "--bootstrap", running.bootstrap),
            *("--topic", source, "--partitions", str(PARTITIONS[0])),
            *("--per-s", str(NEIGHBOUR_PER_S)),
        ]
        with started(feed, folder / f"{source}-feed.log") as process:
            yield
            process.check_alive()


def _figure(
    name: str, unit: str, pairs: Sequence[tuple[float, float]], bar: Bar | None = None
) -> Figure:
    return Figure(
        name,
        KAFKA,
        statistics.median(once for once, _ in pairs),
        unit,
        "at_least_once",
        statistics.median(least for _, least in pairs),
        bar,
        statistics.median(once / least for once, least in pairs),
    )
