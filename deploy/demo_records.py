"""The demo's records: sent and read with plain aiokafka, as a user's own programs would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from headrace.deploy.console import out as console
from headrace.deploy.demo_files import FileTypes
from headrace.deploy.demo_wire import binary_output, binary_request
from headrace.schemas.tensor import Array
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

REQUESTS = "headrace.magika.requests"
RESULTS = "headrace.magika.results"
IN_FLIGHT = 32
"""Records sent and not yet answered at most: latencies then show the service, not the length of our own queue."""
PATIENCE_S = 30.0
"""Without one more answer for so long, the demo gives up."""


@dataclass(slots=True)
class Job:
    """One file on its way.

    Attributes:
        path: The file.
        stamp: Its size and modification time before it was read.
        sent_s: When its record was sent, on the monotonic clock.
        latency_s: Until its answer was read; None while there is none.
        label: The label of the answer, or what went wrong.
    """

    path: Path
    stamp: tuple[int, int]
    sent_s: float = 0.0
    latency_s: float | None = None
    label: str = ""

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is still there and as it was when it was read."""
        try:
            return self.stamp == self.stamp_of(self.path)
        except OSError:
            return False

    @staticmethod
    def stamp_of(path: Path) -> tuple[int, int]:
        """Return size and modification time of a file.

        Raises:
            OSError: It went away.
        """
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns


def record_of(features: Array) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return value and headers of a request record: a V2 JSON header, then the tensor's bytes."""
    return binary_request("bytes", "INT32", features, "target_label")


def label_of(value: bytes, headers: dict[str, bytes], labels: Sequence[str]) -> str:
    """Return the label of a result record, or ``error: …`` for an error answer."""
    if headers.get("status") != b"OK":
        return f"error: {value[:200].decode(errors='replace')}"
    return labels[int(binary_output(value, headers).argmax())]


class Exchange:
    """Sends a record per file, with at most `IN_FLIGHT` unanswered, and reads the answers as they come.

    Attributes:
        jobs: Files that were sent, by id; filled while it runs.
        decided: Files that the library decides without the model.
        gone: Files that went away before they were read.
        seconds: From the first record to the last answer.
    """

    def __init__(self, bootstrap: str, types: FileTypes, jobs: dict[str, Job]) -> None:
        """Keep the parts; `run` does the work."""
        self.jobs = jobs
        self.decided = 0
        self.gone = 0
        self.seconds = 0.0
        self._types = types
        self._labels = types.labels
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        self._consumer = AIOKafkaConsumer(
            RESULTS,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
        )
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._progress.add_task("Files asked about")

    async def run(self, files: Sequence[Path]) -> None:
        """Send all files and read until the last answer, or until none has come for `PATIENCE_S`."""
        self._progress.update(self._bar, total=len(files))
        async with self._consumer, self._producer:
            with self._progress:
                started = time.monotonic()
                sending = asyncio.create_task(self._send(files))
                try:
                    await self._read(sending)
                finally:
                    sending.cancel()
                    with suppress(asyncio.CancelledError):
                        await sending
                self.seconds = time.monotonic() - started

    async def _send(self, files: Sequence[Path]) -> None:
        for number, path in enumerate(files):
            await self._room.acquire()
            try:
                stamp = Job.stamp_of(path)
                features = await asyncio.to_thread(self._types.features, path)
            except OSError:
                self.gone += 1
                self._passed_over()
                continue
            if features is None:
                self.decided += 1
                self._passed_over()
                continue
            job = Job(path, stamp, time.monotonic())
            value, headers = record_of(features)
            self.jobs[str(number)] = job
            await self._producer.send(
                REQUESTS, value, headers=[("id", str(number).encode()), *headers]
            )

    def _passed_over(self) -> None:
        self._room.release()
        self._progress.advance(self._bar)

    async def _read(self, sending: asyncio.Task[None]) -> None:
        last = time.monotonic()
        while not sending.done() or any(job.latency_s is None for job in self.jobs.values()):
            got = await self._consumer.getmany(timeout_ms=100)
            now = time.monotonic()
            for record in (record for records in got.values() for record in records):
                headers = dict(record.headers)
                job = self.jobs.get(headers.get("id", b"").decode())
                if job is None or job.latency_s is not None:
                    continue  # at least once: an answer may come twice
                job.latency_s = now - job.sent_s
                job.label = label_of(record.value, headers, self._labels)
                last = now
                self._room.release()
                self._progress.advance(self._bar)
            if now - last > PATIENCE_S:
                return
