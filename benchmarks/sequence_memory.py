"""What a live sequence costs a worker in memory beside its state: the resident growth from 20,000 of them to 40,000.

Each count is taken in two cases that a worker meets, in a process of its own. ``live``: every sequence has stepped
since the last commit, so that its state is in the store too. ``restored``: all were just taken over from snapshots, so
that the store remembers under which keys they lie.

As a program (``python -m benchmarks.sequence_memory CASE FEW MANY``) it prints the two sizes in bytes.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiokafka.structs import ConsumerRecord
from headrace.consumers.restore import Restored, StateFold
from headrace.schemas.record import Out, Record
from headrace.schemas.sequence import SequenceState

from benchmarks.figures import Bar, Figure
from benchmarks.processes import ROOT, BenchmarkFailed, resident_bytes
from benchmarks.recurrent import STATE_BYTES
from benchmarks.sequence_parts import BLOCK_RECORDS, Parts

NAME = "sequence-memory"
ON_BROKERS = ()
CASES = ("live", "restored")
BAR = Bar("value", 2000, at_most=True)
_FEW, _MANY = 20_000, 40_000
_TIMEOUT_S = 300.0


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:  # noqa: ARG001  # all benchmarks are called alike
    """Yield the bytes of a sequence beyond those of its state, in both cases."""
    few, many = (5000, 10_000) if quick else (_FEW, _MANY)
    for case in CASES:
        sizes = _run(case, few, many)
        beyond = (sizes[1] - sizes[0]) / (many - few) - STATE_BYTES
        yield Figure(
            f"{NAME}.{case}", "", beyond, "bytes/sequence", "its state", STATE_BYTES, BAR,
            beyond / STATE_BYTES,
        )  # fmt: skip


def _run(case: str, few: int, many: int) -> Sequence[int]:
    argv = [sys.executable, "-m", "benchmarks.sequence_memory", case, str(few), str(many)]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode != 0:
        raise BenchmarkFailed(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    return [int(word) for word in done.stdout.split()]


def live(few: int, many: int) -> Iterator[int]:
    """Yield the resident bytes with few and then many sequences, all of whose latest states wait for a commit."""
    parts = Parts("oldest", many)
    begun = 0
    for count in (few, many):
        parts.run(range(begun, count))
        for _ in parts.commit():
            pass
        # Second steps: the requests of the first round of all ``many`` are STARTs.
        parts.run(range(many, many + count))
        begun = count
        if len(parts.sequences) != count or len(parts.store) != count:
            raise BenchmarkFailed(f"{parts.sequences} and {parts.store}, expected {count} of each")
        yield _resident_bytes()


def restored(few: int, many: int) -> Iterator[int]:
    """Yield the resident bytes with few and then many sequences, all of which were taken over."""
    for count in (few, many):
        parts = Parts("oldest", count)
        parts.open(_restored(count))
        if len(parts.sequences) != count:
            raise BenchmarkFailed(f"{parts.sequences}, expected {count}")
        yield _resident_bytes()
        del parts


def _restored(count: int) -> Restored[SequenceState]:
    """Write a snapshot of each sequence and read it back, a few at a time."""
    writer = Parts("oldest", count)
    fold = StateFold()
    for at in range(0, count, BLOCK_RECORDS):
        writer.run(range(at, min(at + BLOCK_RECORDS, count)))
        for outs in writer.commit():
            fold.add([_record(out) for out in outs])
    found = Restored[SequenceState]()
    for _ in fold.decode(writer.codec, found):
        pass
    return found


def _record(out: Out) -> Record:
    return ConsumerRecord(
        topic=out.topic, partition=out.partition, offset=0, timestamp=0, timestamp_type=0, key=out.key, value=out.value,
        checksum=None, serialized_key_size=0, serialized_value_size=0, headers=(),
    )  # fmt: skip


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is nobody's
    return resident_bytes()


def main() -> None:
    """Print the sizes."""
    case, few, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cases = {"live": live, "restored": restored}
    print(*cases[case](few, many))


if __name__ == "__main__":
    main()
