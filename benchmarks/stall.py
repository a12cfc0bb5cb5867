"""How long answers stand still while three workers are restarted one by one, with static membership, in either mode.

Requests come at a steady pace to all partitions. Each worker is asked to end and, once it has, started again under the
same ``group.instance.id``: the group knows it again, nobody else pauses, and its partitions wait for it. So the longest
gap between two answers of one partition is what a restart costs its callers; between any two answers there is hardly
one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.contest import Worker, check, fresh_tag, observed
from benchmarks.exactly_once import contenders
from benchmarks.figures import Figure
from benchmarks.models import write_repository
from benchmarks.observer import Seen
from benchmarks.processes import Process, pause, started, wait_for

NAME = "stall"
ON_BROKERS = (KAFKA,)
PARTITIONS = 6
REQUESTS_PER_S = 120.0
_NAMES = ("one", "two", "three")
_CALM_S = 3.0  # before the first restart and behind each, so that their gaps do not meet
_MANY = 1_000_000  # answers that the observer waits for: it ends when none come any more
_QUIET_S = 8.0


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the longest gap between answers of one partition, and between any two, in both modes."""
    write_repository(folder / "models")
    rounds = 1 if quick else 2
    gaps_s: dict[str, list[tuple[float, float]]] = {}
    with broker(kind, folder) as running:
        for n in range(rounds):
            modes = contenders(folder)
            for mode in list(modes)[:: -1 if n % 2 else 1]:
                gaps_s.setdefault(mode, []).append(_gaps_s(running, modes[mode], folder))
    for place, what in enumerate(("", ".any")):
        value, against = [
            max(pair[place] for pair in gaps_s[mode]) for mode in ("exactly_once", "at_least_once")
        ]
        yield Figure(
            f"{NAME}{what}", kind, value, "s", "at_least_once", against, ratio=value / against
        )


def _gaps_s(running: Broker, worker: Worker, folder: Path) -> tuple[float, float]:
    """Restart each worker once; returns the longest gap of one partition, and over all, seconds."""
    tag = fresh_tag()
    source, target = worker.topics(tag)
    running.create_topics([source, target], PARTITIONS)
    feed = [
        *(sys.executable, "-m", "benchmarks.feed", "--bootstrap", running.bootstrap),
        *("--topic", source, "--partitions", str(PARTITIONS), "--first", "0"),
        *("--per-s", str(REQUESTS_PER_S)),
    ]
    with (
        observed(
            running, target, PARTITIONS, _MANY, worker.format, folder / tag, stall_s=_QUIET_S
        ) as eyes,
        contextlib.ExitStack() as stack,
    ):
        crew = {
            name: stack.enter_context(_member(running, worker, tag, name, folder))
            for name in _NAMES
        }
        with started(feed, folder / f"{tag}-feed.log") as feeding:
            wait_for(
                eyes.first.exists, 60.0, "first answer", feeding, eyes.process, *crew.values()
            )
            pause(_CALM_S)
            for name in _NAMES:
                crew[name].stop(60.0)
                crew[name] = stack.enter_context(_member(running, worker, tag, name, folder))
                pause(_CALM_S)
            feeding.check_alive()
        seen = eyes.seen()
    return _longest_s(worker, seen)


@contextlib.contextmanager
def _member(
    running: Broker, worker: Worker, tag: str, name: str, folder: Path
) -> Iterator[Process]:
    """Run one of a group's workers for the time of a block, entered once it is ready."""
    argv = [*worker.argv(tag, running), "--worker-id", name, "--group-instance-id", name]
    port = argv[argv.index("--worker-port") + 1]
    with started(argv, folder / f"{tag}-{name}.log") as process:
        ready = f"http://127.0.0.1:{port}/v2/health/ready"
        wait_for(lambda: peers.answers(ready), 60.0, "ready worker", process, every_s=0.05)
        yield process


def _longest_s(worker: Worker, seen: Seen) -> tuple[float, float]:
    """Return the longest gaps; raises `BenchmarkFailed` where an answer is missing, wrong, or one too many."""
    numbers, first = np.unique(seen.numbers, return_index=True)
    if worker.name == "at_least_once":  # which may repeat one
        seen = Seen(numbers, seen.arrivals_s[first], seen.answers[first])
    # What the feed had not sent yet when it was ended comes from its end.
    check(worker.name, seen, range(int(numbers[-1]) + 1))
    parts = [seen.arrivals_s[seen.numbers % PARTITIONS == n] for n in range(PARTITIONS)]
    each = max(float(np.diff(np.sort(part)).max()) for part in parts)
    return each, float(np.diff(np.sort(seen.arrivals_s)).max())
