"""One run of one contender: a backlog is preloaded, the contender starts, an observer watches what comes out.

The rate is that of an observer's eyes: the answers after the first poll that held one, by the time since it. So
start-up and joining the group do not count, and nothing counts that others cannot read yet.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.brokers import Broker, free_port
from benchmarks.formats import FORMATS
from benchmarks.observer import Seen, load
from benchmarks.processes import BenchmarkFailed, Process, started, wait_for
from benchmarks.traffic import preload
from benchmarks.workload import MODEL, Floats, is_right

STALL_S = 15.0
_run_number = itertools.count()


class Contender(Protocol):
    """Something that answers requests of one topic on another."""

    @property
    def name(self) -> str:
        """What it is called in figures and failures."""

    @property
    def format(self) -> str:
        """Word for how it reads and writes records, one of `FORMATS`."""

    def topics(self, tag: str) -> tuple[str, str]:
        """Return the input and output topic of a run."""

    def argv(self, tag: str, broker: Broker) -> Sequence[str]:
        """Return the command that serves them."""


@dataclass(frozen=True)
class Loop:
    """The hand-written loop.

    Attributes:
        model: ONNX file.
        options: Further options of loop.py.
    """

    model: Path
    options: tuple[str, ...] = ()
    name: str = "loop"
    format: str = "raw"

    def topics(self, tag: str) -> tuple[str, str]:
        return f"{tag}.in", f"{tag}.out"

    def argv(self, tag: str, broker: Broker) -> Sequence[str]:
        source, target = self.topics(tag)
        return [
            *(sys.executable, "-m", "benchmarks.loop", "--bootstrap", broker.bootstrap),
            *("--model", str(self.model), "--input", source, "--output", target),
            *("--group", tag, *self.options),
        ]


@dataclass(frozen=True)
class Worker:
    """Headrace's worker, as its command starts it.

    Attributes:
        repository: Model repository.
        options: Further options of the command.
        model: The model in it that is asked.
    """

    repository: Path
    options: tuple[str, ...] = ()
    name: str = "worker"
    format: str = "avro"
    model: str = MODEL

    def topics(self, tag: str) -> tuple[str, str]:
        return f"{tag}.{self.model}.requests", f"{tag}.{self.model}.results"

    def argv(self, tag: str, broker: Broker) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "headrace.deploy.cli", "--debug", "worker"),
            *("--model-repository", str(self.repository)),
            *("--bootstrap-servers", broker.bootstrap, "--topic-prefix", tag),
            *("--kafka-config", str(broker.properties)),
            *("--worker-port", str(free_port()), "--log-level", "warning"),
            *self.options,
        ]


@dataclass(frozen=True)
class Run:
    """What a run showed.

    Attributes:
        rate: Answers per second.
        cpu_us: The contender's CPU time per answer, µs.
        broker_cpu_us: The broker's, µs; 0 for a broker that is not ours.
        peak_bytes: Its highest resident memory between first and last answer.
    """

    rate: float
    cpu_us: float
    broker_cpu_us: float
    peak_bytes: int


def fresh_tag() -> str:
    """Return a word that no topic and no group of this run begins with yet."""
    return f"bench-{next(_run_number)}"


def backlog(
    broker: Broker, contender: Contender, count: int, partitions: int, folder: Path
) -> Run:
    """Let a contender answer ``count`` preloaded requests on fresh topics, and check every answer."""
    tag = fresh_tag()
    source, target = contender.topics(tag)
    broker.create_topics([source, target], partitions)
    requests = FORMATS[contender.format]()
    preload(broker.bootstrap, source, partitions, count, requests)
    with (
        observed(broker, target, partitions, count, contender.format, folder / tag) as eyes,
        started(contender.argv(tag, broker), folder / f"{tag}-{contender.name}.log") as process,
    ):
        wait_for(eyes.first.exists, 60.0, "first answer", process, eyes.process)
        cpu_s, broker_cpu_s = process.cpu_s(), _cpu_s(broker)
        peak = PeakMemory(process)
        wait_for(
            lambda: peak.sample() and eyes.all.exists(),
            60.0 + count / 1000,
            "last answer",
            process,
            eyes.process,
            every_s=0.1,  # looking at memory reads all of /proc
        )
        cpu_s, broker_cpu_s = process.cpu_s() - cpu_s, _cpu_s(broker) - broker_cpu_s
        seen = eyes.seen()
    check(contender.name, seen, range(count), requests.is_right)
    counted = count - int((seen.arrivals_s == seen.arrivals_s[0]).sum())
    return Run(
        rate=counted / (seen.arrivals_s[-1] - seen.arrivals_s[0]),
        cpu_us=1e6 * cpu_s / counted,
        broker_cpu_us=1e6 * broker_cpu_s / counted,
        peak_bytes=peak.bytes,
    )


@contextlib.contextmanager
def serving(
    broker: Broker, contender: Contender, count: int, partitions: int, folder: Path
) -> Iterator[tuple[Process, Eyes, str]]:
    """Run a contender on fresh topics for the time of a block, entered once it has answered request 0.

    Yields:
        The contender, an observer that waits for ``count`` answers (the first included), and the input topic.
    """
    tag = fresh_tag()
    source, target = contender.topics(tag)
    broker.create_topics([source, target], partitions)
    with (
        observed(broker, target, partitions, count, contender.format, folder / tag) as eyes,
        started(contender.argv(tag, broker), folder / f"{tag}-{contender.name}.log") as process,
    ):
        preload(broker.bootstrap, source, partitions, 1, FORMATS[contender.format]())
        wait_for(eyes.first.exists, 60.0, "first answer", process, eyes.process)
        yield process, eyes, source


class PeakMemory:
    """The highest resident memory seen of a process."""

    def __init__(self, process: Process) -> None:
        """Start at nothing."""
        self._process = process
        self.bytes = 0

    def sample(self) -> bool:
        """Look once; always true, to stand in a condition."""
        self.bytes = max(self.bytes, self._process.rss_bytes())
        return True


class Eyes:
    """A running observer, and the files by which it tells how far it is."""

    def __init__(self, process: Process, folder: Path) -> None:
        """Name the files."""
        self.process = process
        self._folder = folder
        self.ready, self.first, self.all = (folder / n for n in ("ready", "first", "all"))

    def seen(self) -> Seen:
        """Wait for the observer's end and return what it saw."""
        if self.process.wait(120.0) != 0:
            self.process.check_alive()
        seen = load(self._folder)
        shutil.rmtree(self._folder)
        return seen


@contextlib.contextmanager
def observed(
    broker: Broker,
    topic: str,
    partitions: int,
    count: int,
    answers: str,
    folder: Path,
    *,
    stall_s: float = STALL_S,
) -> Iterator[Eyes]:
    """Run an observer of a topic for the time of a block, entered once it reads.

    It ends when ``count`` answers are there, or when none has come for ``stall_s``.
    """
    folder.mkdir()
    argv = [
        *(sys.executable, "-m", "benchmarks.observer", "--bootstrap", broker.bootstrap),
        *("--topic", topic, "--partitions", str(partitions), "--count", str(count)),
        *("--format", answers, "--folder", str(folder), "--stall-s", str(stall_s)),
    ]
    with started(argv, folder.with_suffix(".observer.log")) as process:
        eyes = Eyes(process, folder)
        wait_for(eyes.ready.exists, 30.0, "ready observer", process)
        yield eyes


def check(
    name: str,
    seen: Seen,
    numbers: range,
    right: Callable[[npt.NDArray[np.int64], Floats], npt.NDArray[np.bool_]] = is_right,
) -> None:
    """Raise `BenchmarkFailed` unless each request was answered once, and rightly."""
    distinct = np.unique(seen.numbers)
    missing = np.setdiff1d(np.arange(numbers.start, numbers.stop), distinct)
    repeated = len(seen.numbers) - len(distinct)
    wrong = int((~right(seen.numbers, seen.answers)).sum())
    if len(missing) or repeated or wrong:
        raise BenchmarkFailed(
            f"{name}: of {len(numbers)} requests {len(missing)} are unanswered (such as "
            f"{missing[:3].tolist()}), {repeated} answers are repeated, {wrong} are wrong"
        )


def _cpu_s(broker: Broker) -> float:
    return broker.process.cpu_s() if broker.process is not None else 0.0
