"""What a partition costs the worker that has it, in either mode: memory, sockets, CPU time while idle, and the rate.

One worker has all partitions of its model's topic. It is looked at once it has answered two records of each, so that
whatever it keeps for a partition is there, and has nothing to do; then another one, on fresh topics of as many
partitions, answers a backlog. Beside each figure stands that of the fewest partitions in the same mode. A broker takes
a while for the first records of many partitions, whoever reads and writes them, so the rate also stands beside that of
the hand-written loop on as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.contest import Loop, Worker, backlog, serving
from benchmarks.exactly_once import contenders
from benchmarks.figures import Figure
from benchmarks.formats import FORMATS
from benchmarks.models import write_repository
from benchmarks.processes import pause, wait_for
from benchmarks.traffic import preload

NAME = "partitions"
ON_BROKERS = (KAFKA,)
PARTITIONS = (1, 8, 64, 256)
_IDLE_S = 5.0
_CALM_S = 2.0  # connections that only the start needed close, and the heap is quiet


@dataclass(frozen=True)
class _Cost:
    """Of a worker with so many partitions.

    Attributes:
        memory: Resident, MB.
        sockets: Open ones.
        idle: CPU time per second with nothing to do, ms.
        rate: Answers per second from a backlog.
    """

    memory: float
    sockets: float
    idle: float
    rate: float


UNITS = {"memory": "MB", "sockets": "sockets", "idle": "ms/s", "rate": "records/s"}


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield four figures for each number of partitions and mode."""
    model = write_repository(folder / "models")
    count = 20_000 if quick else 60_000
    wanted = PARTITIONS[:-1] if quick else PARTITIONS
    with broker(kind, folder) as running:
        # The first run after a broker's start is a quarter slower, whoever makes it: it does not count.
        for worker in contenders(folder).values():
            backlog(running, worker, count // 2, PARTITIONS[0], folder)
        loops = {n: backlog(running, Loop(model), count, n, folder).rate for n in wanted}
        for mode, worker in contenders(folder).items():
            fewest = None
            for partitions in wanted:
                cost = _cost(running, worker, partitions, count, folder)
                fewest = fewest or cost
                name = f"{NAME}.{mode}.{partitions}"
                yield from _figures(name, kind, cost, fewest)
                yield _beside_loop(name, kind, cost.rate, loops[partitions])


def _cost(running: Broker, worker: Worker, partitions: int, count: int, folder: Path) -> _Cost:
    answers = 2 * partitions
    with serving(running, worker, answers, partitions, folder) as (process, eyes, source):
        # Request 0 comes a second time, and is answered a second time: nobody checks these.
        preload(running.bootstrap, source, partitions, answers, FORMATS[worker.format]())
        wait_for(eyes.all.exists, 60.0, "answers from every partition", process, eyes.process)
        eyes.process.stop()
        pause(_CALM_S)
        cpu_s = process.cpu_s()
        pause(_IDLE_S)
        idle_ms = 1e3 * (process.cpu_s() - cpu_s) / _IDLE_S
        memory, sockets = process.rss_bytes() / 1e6, process.sockets()
    rate = backlog(running, worker, count, partitions, folder).rate
    return _Cost(memory, sockets, idle_ms, rate)


def _figures(name: str, kind: str, cost: _Cost, fewest: _Cost) -> Iterator[Figure]:
    for what, unit in UNITS.items():
        value, against = getattr(cost, what), getattr(fewest, what)
        ratio = value / against if against else None
        of = f"{PARTITIONS[0]} partition"
        yield Figure(f"{name}.{what}", kind, value, unit, of, against, ratio=ratio)


def _beside_loop(name: str, kind: str, rate: float, loop: float) -> Figure:
    return Figure(
        f"{name}.rate-of-loop", kind, rate, UNITS["rate"], "the loop", loop, ratio=rate / loop
    )
