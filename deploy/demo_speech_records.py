"""The speech demo's records: sent at the pace of speech and read as they come, with plain aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from headrace.deploy.console import out as console
from headrace.deploy.demo_speech_audio import STEP_S, Stream
from headrace.deploy.demo_speech_model import MODEL
from headrace.deploy.demo_speech_tally import Tally, step_id
from headrace.deploy.demo_wire import binary_request
from headrace.schemas.record import ID, SEQUENCE_END, SEQUENCE_ID, SEQUENCE_ID_TYPE, SEQUENCE_START
from headrace.streams.topology import Topology
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE_S = 45.0
"""Without one more answer for so long, the demo gives up: a session's time-out and a start, several times over."""


def step_record(stream: Stream, number: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return value and headers of a step's record: START on the first step, END on the last."""
    value, headers = binary_request("input", "FP32", stream.steps[number : number + 1], "output")
    headers += [
        (ID, step_id(stream.name, number)),
        (SEQUENCE_ID, stream.name.encode()),
        (SEQUENCE_ID_TYPE, b"string"),
    ]
    if number == 0:
        headers.append((SEQUENCE_START, b"true"))
    if number == len(stream.steps) - 1:
        headers.append((SEQUENCE_END, b"true"))
    return value, headers


class Microphones:
    """Sends every stream's steps as a microphone gives them, 32 ms each, and reads the answers.

    Attributes:
        tally: What came back.
        halfway: Set when the first answer to the middle step of any stream was read: its state is then newer than
            anything that is committed, and all streams are open.
        sent_s: When each step was sent, seconds on the monotonic clock; of all streams at once.
    """

    def __init__(self, bootstrap: str, topology: Topology, streams: Sequence[Stream]) -> None:
        """Keep the parts; `run` does the work."""
        self.tally = Tally(streams)
        self.halfway = asyncio.Event()
        self.sent_s: list[float] = []
        self._streams = streams
        self._steps = len(streams[0].steps)
        self._bootstrap = bootstrap
        self._topology = topology
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._progress.add_task("Steps answered", total=len(streams) * self._steps)

    async def run(self) -> None:
        """Send all steps and read until the last answer, or until none has come for `PATIENCE_S`."""
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap)
        consumer = AIOKafkaConsumer(
            self._topology.results(MODEL),
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
        )
        async with consumer, producer:
            with self._progress:
                sending = asyncio.create_task(self._send(producer))
                try:
                    await self._read(consumer, sending)
                finally:
                    sending.cancel()
                    with suppress(asyncio.CancelledError):
                        await sending

    async def _send(self, producer: AIOKafkaProducer) -> None:
        topic = self._topology.requests(MODEL)
        started = time.monotonic()
        for number in range(self._steps):
            await asyncio.sleep(started + number * STEP_S - time.monotonic())
            self.sent_s.append(time.monotonic())
            acknowledged = []
            for stream in self._streams:
                value, headers = step_record(stream, number)
                acknowledged.append(
                    await producer.send(topic, value, key=stream.name.encode(), headers=headers)
                )
            await asyncio.gather(*acknowledged)

    async def _read(self, consumer: AIOKafkaConsumer, sending: asyncio.Task[None]) -> None:
        last = time.monotonic()
        while not self.tally.is_complete:
            got = await consumer.getmany(timeout_ms=100)
            now = time.monotonic()
            before = self.tally.answered
            for record in (record for records in got.values() for record in records):
                place = self.tally.take(record.value, dict(record.headers), now)
                if place is not None and place[1] == self._steps // 2:
                    self.halfway.set()
            if self.tally.answered > before:
                last = now
                self._progress.update(self._bar, completed=self.tally.answered)
            if sending.done():
                sending.result()  # a failure to send ends it here
            if now - last > PATIENCE_S:
                return
