"""Reads every answer from an output topic, in a process of its own, and writes down what came when.

It has no group and commits nothing. It ends when ``--count`` different answers are there and nothing follows for
``--linger-s``, or when none comes for ``--stall-s`` after the first. Nothing is decoded while it reads: that
would take the cores that the observed process needs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import uvloop
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from benchmarks.formats import FORMATS, Format


class Seen(NamedTuple):
    """What an observer saw, one item an answer, in order of arrival.

    Attributes:
        numbers: Request numbers.
        arrivals_s: Monotonic times.
        answers: Values [n, 10].
    """

    numbers: npt.NDArray[np.int64]
    arrivals_s: npt.NDArray[np.float64]
    answers: npt.NDArray[np.float32]


def load(folder: Path) -> Seen:
    """Read what an ended observer wrote to ``folder``."""
    with np.load(folder / "seen.npz") as stored:
        return Seen(stored["numbers"], stored["arrivals_s"], stored["answers"])


async def observe(
    args: argparse.Namespace, answers: Format
) -> list[tuple[float, list[ConsumerRecord]]]:
    """Return the polls that held answers, with their times."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=args.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=args.fetch_wait_ms,
        check_crcs=False,
    )
    await consumer.start()
    polls: list[tuple[float, list[ConsumerRecord]]] = []
    mark = answers.mark
    try:
        tps = [TopicPartition(args.topic, p) for p in range(args.partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        (args.folder / "ready").touch()
        marks: set[bytes] = set()
        last = time.monotonic()
        while True:
            polled = await consumer.getmany(timeout_ms=20, max_records=10_000)
            now = time.monotonic()
            records = [record for part in polled.values() for record in part]
            if records:
                if not polls:
                    (args.folder / "first").touch()
                polls.append((now, records))
                before = len(marks)
                marks.update([mark(record.key, record.headers) for record in records])
                last = now
                if before < args.count <= len(marks):
                    (args.folder / "all").touch()
            elif len(marks) >= args.count:
                if now - last >= args.linger_s:
                    break
            elif polls and now - last >= args.stall_s:
                (args.folder / "all").touch()
                break
    finally:
        await consumer.stop()
    return polls


def write(folder: Path, polls: list[tuple[float, list[ConsumerRecord]]], answers: Format) -> None:
    """Decode what was seen and write it to ``folder``."""
    total = sum(len(records) for _, records in polls)
    seen = Seen(np.empty(total, np.int64), np.empty(total), np.empty((total, 10), np.float32))
    at = 0
    for arrival_s, records in polls:
        for record in records:
            number, values = answers.answer(record.key, record.value, record.headers)
            seen.numbers[at] = number
            seen.arrivals_s[at] = arrival_s
            seen.answers[at] = values
            at += 1
    np.savez(folder / "seen.npz", **seen._asdict())


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--format", choices=sorted(FORMATS), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fetch-wait-ms", type=int, default=20)
    parser.add_argument("--linger-s", type=float, default=0.3)
    parser.add_argument("--stall-s", type=float, default=15.0)
    args = parser.parse_args()
    answers = FORMATS[args.format]()
    polls = uvloop.run(observe(args, answers))
    write(args.folder, polls, answers)


if __name__ == "__main__":
    main()
