"""Child processes of a benchmark: started, measured through /proc, and ended again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1
# One thread per numeric library: the model's threads are set by its configuration, nothing else may add some.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class BenchmarkFailed(Exception):
    """A process ended early, an answer is missing or wrong: the figures would mean nothing."""


class Skipped(Exception):
    """What a benchmark needs is not on this machine; the sentence says what."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A running child and its descendants."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Start it in the repository's root; both outputs go to the file ``log``."""
        self.log = log
        with log.open("wb") as out:
            self._child = subprocess.Popen(
                list(argv),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **SINGLE_THREADED, **env},
                preexec_fn=_die_with_parent,  # noqa: PLW1509  # no threads here when children start
            )
        self.pid = self._child.pid
        self.argv = argv

    def check_alive(self) -> None:
        """Raise `BenchmarkFailed` with the end of its log once it has ended."""
        code = self._child.poll()
        if code is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise BenchmarkFailed(
                f"{' '.join(self.argv[:4])} … ended with {code}; its log ends:\n{tail}"
            )

    def running(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise BenchmarkFailed(
                f"{' '.join(self.argv[:4])} … still runs after {timeout_s:g} s"
            ) from exc

    def cpu_s(self) -> float:
        """Return user and system time so far, of all its threads and live descendants."""
        return sum(_stat_cpu_s(pid) for pid in _tree(self.pid))

    def rss_bytes(self) -> int:
        """Return the resident memory of it and its descendants."""
        return sum(_status_bytes(pid, "VmRSS") for pid in _tree(self.pid))

    def sockets(self) -> int:
        """Return how many sockets it and its descendants have open."""
        return sum(_sockets(pid) for pid in _tree(self.pid))

    def stop(self, timeout_s: float = 15.0) -> None:
        """Ask it to end, and end it after ``timeout_s``."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait(timeout_s)


@contextlib.contextmanager
def started(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a process for the time of a block."""
    process = Process(argv, log, env or {})
    try:
        yield process
    finally:
        process.stop()


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    what: str,
    *alive: Process,
    every_s: float = 0.002,
) -> None:
    """Poll a condition while the processes ``alive`` run.

    Raises:
        BenchmarkFailed: One of them ended, or the time is up.
    """
    until = time.monotonic() + timeout_s
    while not condition():
        for process in alive:
            if not process.running() and not condition():
                process.check_alive()
        if time.monotonic() > until:
            logs = "".join(
                f"\n{p.log}: {p.log.read_text(errors='replace')[-1500:]}" for p in alive
            )
            raise BenchmarkFailed(f"no {what} within {timeout_s:g} s{logs}")
        pause(every_s)


def pause(seconds: float) -> None:
    """Block this thread; a benchmark has nothing else to do meanwhile."""
    time.sleep(seconds)  # noqa: TID251  # not a test: the observed processes run in real time


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return _status_bytes(os.getpid(), "VmRSS")


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_pids = [], [root]
    while open_pids:
        pid = open_pids.pop()
        found.append(pid)
        open_pids += children.get(pid, [])
    return found


def _sockets(pid: int) -> int:
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(entry.readlink()).startswith("socket:")
    return found


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name (state is first), or nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # ended meanwhile
        return []
    return text.rsplit(")", 1)[1].split()


def _stat_cpu_s(pid: int) -> float:
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0


def _status_bytes(pid: int, field: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # ended meanwhile
        return 0
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0
